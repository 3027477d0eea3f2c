"""The robot's body: a box about every kinematic point, in the axes of its link.

Beyond the papers (`model.contact`). A kinematic point is a place inside the robot; what touches
something is the surface around it. The boxes hold that surface. They are learned from recorded
frames (`hdvpd/training/body.py`), are parameters, and have no gradient. Lengths are metres.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.geometry import safe_norm, turned
from hdvpd.basics.types import Array, Float, Int, JaxArray, RobotPoints, pytree
from hdvpd.kernels.neighbors import Backend, knn

NEAR_M = 0.12
"""What is farther from every kinematic point is not the robot's; so wide are boxes of which
recordings have not told yet."""
NEAREST = 6
"""Kinematic points whose boxes a place is compared with."""
_STILL_M = 1e-6


@pytree
class Boxes:
    """Boxes of kinematic points, in the axes of their links.

    Attributes:
      low: corner, from the point [m].
      high: the opposite corner [m].
    """

    low: Float[Array, "p 3"]
    high: Float[Array, "p 3"]


class Body(nnx.Module):
    """Boxes as parameters."""

    def __init__(self, num_points: int):
        self.low = nnx.Param(jnp.full((num_points, 3), -NEAR_M))
        self.high = nnx.Param(jnp.full((num_points, 3), NEAR_M))

    @property
    def boxes(self) -> Boxes:
        """The parameters, without gradient."""
        return jax.lax.stop_gradient(Boxes(self.low[...], self.high[...]))

    def learn(self, boxes: Boxes) -> None:
        """Take these boxes."""
        self.low[...], self.high[...] = jnp.asarray(boxes.low), jnp.asarray(boxes.high)


@pytree
class Approach:
    """How the body comes to places that stay where they are, from t - 1 to t.

    Attributes:
      now_m: distance at t - 1, inside less than 0 [m].
      then_m: at t [m].
      entered: share of the step after which a place is within the margin, 1 if it never is; of a
        box that takes along but a part, so much later.
      point: number of the kinematic point whose box is nearest at t.
    """

    now_m: Float[JaxArray, "n"]
    then_m: Float[JaxArray, "n"]
    entered: Float[JaxArray, "n"]
    point: Int[JaxArray, "n"]


def body_distance(
    boxes: Boxes,
    places: Float[Array, "n 3"],
    points: Float[Array, "p 3"],
    axes: Float[Array, "p 3 3"],
    backend: Backend = "auto",
) -> Float[JaxArray, "n"]:
    """Return how far places are from the robot, inside it less than 0 [m].

    Compared are the boxes of the six nearest kinematic points.

    Args:
      boxes: of the kinematic points.
      places: [m].
      points: kinematic points [m].
      axes: of their links, in columns.
      backend: of the neighbour search.
    """
    places, points, axes = jax.lax.stop_gradient(tuple(map(jnp.asarray, (places, points, axes))))
    near = _nearest(places, points, backend)
    return _distances(_local(boxes, places, near, points, axes), _half(boxes)[near]).min(axis=1)


def approach(
    boxes: Boxes,
    places: Float[Array, "n 3"],
    robot: RobotPoints,
    margin_m: Float[Array, "n"],
    able: Float[Array, "p"],
    backend: Backend = "auto",
) -> Approach:
    """Say when and how far the body comes to places.

    Seen from a box, a place moves on a straight line; when it enters the box and its margin is the
    last of the times at which it passes a pair of sides (Kay and Kajiya, SIGGRAPH 1986), so that
    nothing is missed between two frames. Compared are the boxes of the six points nearest at t.

    Args:
      boxes: of the kinematic points.
      places: at t - 1 [m].
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      margin_m: distance that counts as inside, for every place [m].
      able: how far every point's box takes along what enters it, 0 to 1.
      backend: of the neighbour search.
    """
    places, points, axes = jax.lax.stop_gradient(
        tuple(map(jnp.asarray, (places, robot.positions, robot.axes)))
    )
    near = _nearest(places, points[2], backend)
    start, end = (_local(boxes, places, near, points[k], axes[k]) for k in (1, 2))
    half = _half(boxes)[near]
    way, wide = end - start, half + jnp.asarray(margin_m)[:, None, None]
    # What does not move along an axis is between its sides always or never.
    way = jnp.where(jnp.abs(way) < _STILL_M, _STILL_M, way)
    first, second = (-wide - start) / way, (wide - start) / way
    enters = jnp.minimum(first, second).max(axis=-1)
    leaves = jnp.maximum(first, second).min(axis=-1)
    inside = (enters < leaves) & (leaves > 0)
    within = jnp.where(inside, 1.0 - jnp.clip(enters, 0.0, 1.0), 0.0) * jnp.asarray(able)[near]
    then_m = _distances(end, half)
    best = jnp.argmin(then_m, axis=1, keepdims=True)
    return Approach(
        now_m=_distances(start, half).min(axis=1),
        then_m=then_m.min(axis=1),
        entered=1.0 - within.max(axis=1),
        point=jnp.take_along_axis(near, best, axis=1)[:, 0],
    )


def _nearest(
    places: Float[JaxArray, "n 3"], points: Float[JaxArray, "p 3"], backend: Backend
) -> Int[JaxArray, "n k"]:
    return jnp.asarray(knn(places, points, min(NEAREST, len(points)), backend=backend).indices)


def _half(boxes: Boxes) -> Float[JaxArray, "p 3"]:
    return (jnp.asarray(boxes.high) - jnp.asarray(boxes.low)) / 2


def _local(
    boxes: Boxes,
    places: Float[JaxArray, "n 3"],
    near: Int[JaxArray, "n k"],
    points: Float[JaxArray, "p 3"],
    axes: Float[JaxArray, "p 3 3"],
) -> Float[JaxArray, "n k 3"]:
    """Return places in the axes of boxes, from their middles."""
    middle = (jnp.asarray(boxes.low) + jnp.asarray(boxes.high)) / 2
    center = points + turned(axes, middle)
    away = places[:, None] - center[near]
    return turned(jnp.swapaxes(axes, -1, -2)[near], away)


def _distances(
    local: Float[JaxArray, "n k 3"], half: Float[JaxArray, "n k 3"]
) -> Float[JaxArray, "n k"]:
    beyond = jnp.abs(local) - half
    return jnp.asarray(safe_norm(jnp.maximum(beyond, 0.0))) + jnp.minimum(beyond.max(axis=-1), 0.0)
