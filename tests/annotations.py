"""Every annotation of the code is checked when a test calls it: types, and shapes across a call."""

import inspect
from collections.abc import Callable
from typing import Any, ForwardRef, Literal, get_args, get_origin

import jaxtyping


def check_annotations(*packages: str) -> None:
    """Check the calls of packages that are imported from now on.

    A function without shapes is checked by beartype alone: the books that jaxtyping keeps of a
    call's shapes take longer than most functions, and it is settings that are asked most often.
    """
    jaxtyping.install_import_hook(packages, "beartype.beartype")
    jaxtyped = jaxtyping.jaxtyped

    def checked(*, typechecker: Callable[[Any], Any]) -> Callable[[Any], Any]:
        with_shapes = jaxtyped(typechecker=typechecker)

        def check(called: Any) -> Any:
            plain = inspect.isfunction(called) and not has_shapes(*called.__annotations__.values())
            return typechecker(called) if plain else with_shapes(called)

        return check

    jaxtyping.jaxtyped = checked  # what the hook writes above every function


def has_shapes(*annotations: Any) -> bool:
    """Say whether annotations may name a shape, as those do that are still text."""
    return any(
        isinstance(annotation, str | ForwardRef)
        or type(annotation).__module__.startswith("jaxtyping")
        or (get_origin(annotation) is not Literal and has_shapes(*_parts(annotation)))
        for annotation in annotations
    )


def _parts(annotation: Any) -> tuple[Any, ...]:
    return tuple(annotation) if isinstance(annotation, list) else get_args(annotation)
