"""Array types, the one legend of axis letters, and the named trees that cross module borders.

`b` batch, `f` frames of a window, `v` views (cameras), `h w` image rows and columns,
`n` particles, `p` kinematic points of the robot, `t` tokens, `e` walk-graph entries,
`k` neighbours, `q` queries, `r` rays, `s` samples on a ray or steps of a rollout,
`c` feature channels, `m` random-feature or head width; a leading `*batch` broadcasts.

`Array` is a jax or a numpy array: everything that crosses the loader is either. Lengths are metres
in the world frame.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np
from jax.core import Tracer
from jaxtyping import Bool, Float, Int, Key, Shaped, UInt8, UInt32

Array = jax.Array | np.ndarray
# Inside jitted modules everything is a jax array.
JaxArray = jax.Array
PRNGKey = Key[jax.Array, ""]

__all__ = [
    "Array",
    "Batch",
    "Bool",
    "Camera",
    "Float",
    "Int",
    "JaxArray",
    "Key",
    "PRNGKey",
    "ParticleCloud",
    "Rays",
    "Rendering",
    "RgbdFrames",
    "RobotPoints",
    "Shaped",
    "UInt8",
    "UInt32",
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


@pytree
class Camera:
    """Pinhole cameras.

    Attributes:
      intrinsics: 3x3 without skew [px]; the centre of pixel (row i, column j) is
        (x, y) = (j + 0.5, i + 0.5).
      camera_to_world: 4x4 pose, OpenCV axes (x right, y down, z forward) [m].
    """

    intrinsics: Float[Array, "*batch 3 3"]
    camera_to_world: Float[Array, "*batch 4 4"]


@pytree
class RgbdFrames:
    """Calibrated RGB-D images.

    Attributes:
      rgb: colours, 0..255.
      depth_m: planar depth along the optical axis [m]; 0, NaN and inf are invalid.
      camera: one camera per frame and view.
    """

    rgb: UInt8[Array, "*batch h w 3"]
    depth_m: Float[Array, "*batch h w"]
    camera: Camera


@pytree
class RobotPoints:
    """Kinematic points of the robot.

    Attributes:
      positions: forward kinematics of every point [m].
      axes: of the link that the point lies on, in the columns; what is around it turns with them.
      gripper: opening of the point's arm, of order one: in units of 5 cm, radians, or from 0 to 1.
    """

    positions: Float[Array, "*batch p 3"]
    axes: Float[Array, "*batch p 3 3"]
    gripper: Float[Array, "*batch p"]


@pytree
class Batch:
    """Windows of 2 observed and f - 2 following frames.

    Attributes:
      frames: images of every view; axes (b f v).
      robot: measured points for the two observed frames, commanded ones after; axes (b f).
      episode: number of the episode of each window.
      start: first frame of each window.
    """

    frames: RgbdFrames
    robot: RobotPoints
    episode: Int[Array, "*batch"]
    start: Int[Array, "*batch"]


@pytree
class ParticleCloud:
    """Particles of one time step.

    Attributes:
      positions: [m].
      features: latent features.
      mask: True for real particles, False for padding.
    """

    positions: Float[Array, "*batch n 3"]
    features: Float[Array, "*batch n c"]
    mask: Bool[Array, "*batch n"]


@pytree
class Rays:
    """Rays through pixel centres.

    Attributes:
      origins: camera centres [m].
      directions: unit vectors; distance along a ray is in metres.
      z_scale: z component of the direction in camera axes: planar depth = distance * z_scale.
    """

    origins: Float[Array, "*batch 3"]
    directions: Float[Array, "*batch 3"]
    z_scale: Float[Array, "*batch"]


@pytree
class Rendering:
    """What a ray sees.

    Attributes:
      rgb: colour on the white background, in [0, 1].
      depth_m: planar depth [m]; the background lies at the far end of the ray.
      acc: accumulated opacity in [0, 1].
    """

    rgb: Float[Array, "*batch 3"]
    depth_m: Float[Array, "*batch"]
    acc: Float[Array, "*batch"]
