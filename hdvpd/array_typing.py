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
    "pytree",
]

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields are all children of a jax pytree.

    Unflattening bypasses the constructor, because vmap, scan and eval_shape build trees whose
    leaves are not arrays, which a runtime-checked constructor would refuse
    (patrick-kidger/jaxtyping#277).
    """
    dataclasses.dataclass(frozen=True)(cls)
    names = tuple(cls.__dataclass_fields__)  # type: ignore[attr-defined]

    def flatten(tree: Any) -> tuple[tuple[tuple[Any, Any], ...], None]:
        children = ((jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in names)
        return tuple(children), None

    def unflatten(_: None, children: Iterable[Any]) -> Any:
        tree: Any = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(tree, name, child)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls
