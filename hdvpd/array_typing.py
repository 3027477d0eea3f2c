"""Array types and the one legend of axis letters.

`b` batch, `f` frames of a window, `v` views (cameras), `h w` image rows and columns,
`n` particles, `p` kinematic points of the robot, `t` tokens, `e` walk-graph entries,
`k` neighbours, `q` queries, `r` rays, `s` samples on a ray or steps of a rollout,
`c` feature channels, `m` random-feature or head width; a leading `*batch` broadcasts.

`Array` is a jax or a numpy array: everything that crosses the loader is either.
"""

import dataclasses
from typing import TypeVar, dataclass_transform

import jax
import numpy as np
from jaxtyping import Bool, Float, Int, Key, Shaped, UInt8

Array = jax.Array | np.ndarray
PRNGKey = Key[jax.Array, ""]

__all__ = ["Array", "Bool", "Float", "Int", "Key", "PRNGKey", "Shaped", "UInt8", "pytree"]

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def pytree(cls: type[T]) -> type[T]:
    """Make a frozen dataclass whose fields are all children of a jax pytree.

    Unflattening bypasses the constructor, because vmap, scan and eval_shape build trees whose
    leaves are not arrays, which a runtime-checked constructor would refuse
    (patrick-kidger/jaxtyping#277).
    """
    cls = dataclasses.dataclass(frozen=True)(cls)
    names = tuple(f.name for f in dataclasses.fields(cls))  # type: ignore[arg-type]

    def flatten(tree: T) -> tuple[tuple[tuple[jax.tree_util.GetAttrKey, object], ...], None]:
        children = ((jax.tree_util.GetAttrKey(name), getattr(tree, name)) for name in names)
        return tuple(children), None

    def unflatten(_: None, children: tuple[object, ...]) -> T:
        tree = object.__new__(cls)
        for name, child in zip(names, children, strict=True):
            object.__setattr__(tree, name, child)
        return tree

    jax.tree_util.register_pytree_with_keys(cls, flatten, unflatten)
    return cls
