"""Every annotation of the code is checked when a test calls it: types, and shapes across a call.

Of many calls within one test the first hundred are checked.
"""

import dataclasses
import functools
import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any, ForwardRef, Literal, get_args, get_origin

import jaxtyping

_jaxtyped: Any = jaxtyping.jaxtyped

MOST = 100
"""Calls of a function that are checked in one test."""
calls: Counter[Callable[..., Any]] = Counter()
"""How many there were in this test; what starts a test clears it."""


def check_annotations(*packages: str) -> None:
    """Check the calls of packages that are imported from now on.

    Beartype checks a call once; jaxtyping's own decorator has it check arguments twice and binds
    them to the signature before, which took longer than most functions do. A function without
    shapes has no need of the books that are kept of a call's.
    """
    jaxtyping.install_import_hook(packages, "beartype.beartype")
    # What the hook writes above every function and class.
    jaxtyping.jaxtyped = lambda *, typechecker: functools.partial(checked, typechecker)


def checked(typechecker: Callable[[Any], Any], called: Any) -> Any:
    """Return a function that checks its calls, or a class whose constructor does.

    What checks is made at the first call: a process calls few of all functions.
    """
    if inspect.isclass(called):
        if dataclasses.is_dataclass(called) and "__init__" in vars(called):
            called.__init__ = checked(typechecker, called.__init__)
        return called
    # Beartype checks a generator's arguments at its first step.
    if inspect.isgeneratorfunction(called):
        return _jaxtyped(called, typechecker=typechecker)
    if not called.__annotations__:
        return called
    annotations = called.__annotations__.values()
    # What is only named is looked up while its class or module is being made, or never found.
    named = any(isinstance(x, str) or "ForwardRef(" in repr(x) for x in annotations)
    check = _make_check(typechecker, called) if named else None

    @functools.wraps(called)
    def check_first_calls(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        nonlocal check
        if calls[called] >= MOST:
            return called(*args, **kwargs)
        calls[called] += 1
        check = check or _make_check(typechecker, called)
        return check(*args, **kwargs)

    return check_first_calls


def _make_check(typechecker: Callable[[Any], Any], called: Any) -> Callable[..., Any]:
    if "ForwardRef(" in repr(called.__annotations__):  # optax names what only it knows
        return _jaxtyped(called, typechecker=typechecker)
    check_types = typechecker(called)
    if not has_shapes(*called.__annotations__.values()):
        return check_types

    def check_shapes(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        with _jaxtyped("context"):  # axes of one name are equal within one call
            return check_types(*args, **kwargs)

    return check_shapes


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
