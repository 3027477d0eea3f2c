"""Array types and the one legend of axis letters.

`b` batch, `f` frames of a window, `v` views (cameras), `h w` image rows and columns,
`n` particles, `p` kinematic points of the robot, `t` tokens, `e` walk-graph entries,
`k` neighbours, `q` queries, `r` rays, `s` samples on a ray or steps of a rollout,
`c` feature channels, `m` random-feature or head width; a leading `*batch` broadcasts.

`Array` is a jax or a numpy array: everything that crosses the loader is either.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float, Int, Key, Shaped, UInt8

Array = jax.Array | np.ndarray
# Inside jitted modules everything is a jax array.
JaxArray = jax.Array
PRNGKey = Key[jax.Array, ""]

__all__ = [
    "Array",
    "Bool",
    "Float",
    "Int",
    "JaxArray",
    "Key",
    "PRNGKey",
    "Shaped",
    "UInt8",
    "is_known",
    "pytree",
    "static",
]

T = TypeVar("T")


def is_known(tree: Any) -> bool:
    """Whether the numbers of a pytree can be looked at: none is traced."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(tree))


def static(*, default: Any = dataclasses.MISSING) -> Any:
    """Declare a field of a `pytree` that is part of its structure: hashable, never traced."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclass_transform(frozen_default=True, field_specifiers=(static,))
def pytree(cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields, but for `static` ones, are children of a jax pytree.

    Unflattening bypasses the constructor, because vmap, scan and eval_shape build trees whose
    leaves are not arrays, which a runtime-checked constructor would refuse
    (patrick-kidger/jaxtyping#277).
    """
    dataclasses.dataclass(frozen=True)(cls)
    fields: Any = dataclasses.fields(cls)  # type: ignore[arg-type]
    fixed = tuple(field.name for field in fields if field.metadata.get("static"))
    names = tuple(field.name for field in fields if field.name not in fixed)

    def flatten(tree: Any) -> tuple[tuple[tuple[Any, Any], ...], tuple[Any, ...]]:
        children = ((jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in names)
        return tuple(children), tuple(getattr(tree, name) for name in fixed)

    def unflatten(structure: tuple[Any, ...], children: Iterable[Any]) -> Any:
        tree: Any = object.__new__(cls)
        values = (*children, *structure)
        for name, value in zip((*names, *fixed), values, strict=True):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls
