"""Where the robot's skeleton takes what is on it.

Beyond the papers (`model.carry`). The kinematic points near a particle say how their links move;
the rigid motion that fits theirs best takes the particle along. Lengths are metres.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.geometry import solve_3x3
from hdvpd.basics.types import Array, Float, JaxArray, ParticleCloud, RobotPoints, pytree

MOTION_SCALE_M = 0.05
"""Motion of the robot per step is centimetres: in this unit it is of order one."""
# A link's surface lies 4 to 9 cm from its axis, where the kinematic points are.
_BANDWIDTH_M = 0.07
_REACH_M = 0.12
FAR_M = 0.25
"""What is farther from every kinematic point is neither the robot nor held by it."""
# Points on a line tell no turn about it; those that are farther from it than this do.
_BESIDE_M = 0.003


@pytree
class RigidMotion:
    """One rigid motion per particle: x goes to `after` + R (x - `before`).

    Attributes:
      turn: axis times tan(angle / 2) of R, without unit.
      before: a place before the motion [m].
      after: where it goes [m].
    """

    turn: Float[Array, "n 3"]
    before: Float[Array, "n 3"]
    after: Float[Array, "n 3"]

    def displacement(self, positions: Float[Array, "n 3"]) -> Float[JaxArray, "n 3"]:
        """Return by how much the motions displace positions, one each [m]."""
        arm = positions - self.before
        across = jnp.cross(self.turn, arm)
        square = jnp.sum(self.turn**2, axis=-1, keepdims=True)
        turned = 2.0 * (across + jnp.cross(self.turn, across)) / (1.0 + square)
        return jnp.asarray(self.after - self.before + turned)


def rigid_motions(
    weights: Float[Array, "n p"], start: Float[Array, "p 3"], *ends: Float[Array, "p 3"]
) -> list[RigidMotion]:
    """Fit rigid motions to those of points, for every row of weights.

    With r the mean of a point's place before and after, each from its weighted centroid, and d the
    difference of the two, a turn by g = axis tan(angle / 2) has d = 2 g x r exactly (Cayley), so g
    is a linear least-squares problem; the smallest turn where the points do not tell.

    Args:
      weights: of the points, in sum 1.
      start: points before the motion [m].
      *ends: points after it, for each motion [m]; the sums of all are one product.
    """
    origin = jax.lax.stop_gradient(start.mean(axis=0))
    told = []
    for end in ends:
        middle, moved = (start + end) / 2 - origin[None], end - start
        outer = middle[:, :, None] * middle[:, None]
        told += [middle, moved, jnp.cross(middle, moved), outer.reshape(-1, 9)]
    moments = jnp.split(weights @ jnp.concatenate(told, axis=1), len(ends), axis=1)
    return [_fitted(x, origin) for x in moments]


def _fitted(moments: Float[Array, "n 18"], origin: Float[Array, "3"]) -> RigidMotion:
    center, shift, moment, spread = jnp.split(moments, [3, 6, 9], axis=1)
    spread = spread.reshape(-1, 3, 3) - center[:, :, None] * center[:, None]
    # Constants of numpy: those of jax are made before a loop, each call's of its own, and keep the
    # compiler from seeing that calls are equal.
    unit = np.eye(3, dtype=np.float32)[None]
    across = jnp.sum(spread * unit, axis=(1, 2))[:, None, None] + _BESIDE_M**2
    turn = solve_3x3(2.0 * (across * unit - spread), moment - jnp.cross(center, shift))
    center += origin[None]
    return RigidMotion(turn=turn, before=center - shift / 2, after=center + shift / 2)


def motions_nearby(
    positions: Float[Array, "n 3"], start: Float[Array, "p 3"], *ends: Float[Array, "p 3"]
) -> list[RigidMotion]:
    """Return the motions of the skeleton at each particle's place.

    The points weigh softmax_p(-(d / 7 cm)^2), which picks the nearest ones. Which they are has no
    gradient; where they go has.

    Args:
      positions: particles [m].
      start: kinematic points of the same time step [m].
      *ends: the same points at other times [m].
    """
    squared = _squared_distances(*jax.lax.stop_gradient((positions, start)))
    # Less the nearest before scaling: far from the robot, softmax's own subtraction of the largest
    # is inexact once the compiler fuses it with the scaling, and its exponent overflows.
    nearer = (squared.min(axis=1, keepdims=True) - squared) / _BANDWIDTH_M**2
    return rigid_motions(jax.nn.softmax(nearer, axis=1), start, *ends)


def reached(
    positions: Float[Array, "n 3"], points: Float[Array, "p 3"], reach_m: float = _REACH_M
) -> Float[JaxArray, "n 1"]:
    """Say how far particles are within the robot's reach: exp(-(min d / reach)^4).

    With a reach of 12 cm it is flat on the robot's surface and lets go of everything else.
    """
    squared = _squared_distances(positions, points)
    nearest = jax.lax.stop_gradient(squared.min(axis=1, keepdims=True))
    # The gradient of a minimum divides by how many are equal to it, which are none where a compiler
    # computes distances twice and rounds otherwise.
    equal = jax.lax.stop_gradient(squared <= nearest)
    share = equal / jnp.maximum(equal.sum(axis=1, keepdims=True), 1)
    way = jnp.sum(share * squared, axis=1, keepdims=True)
    nearest += way - jax.lax.stop_gradient(way)
    return jnp.exp(-((nearest / reach_m**2) ** 2))


def carried_motion(cloud: ParticleCloud, robot: RobotPoints, slice_: int) -> Float[JaxArray, "n 4"]:
    """Return where the skeleton at each particle's place takes it until t, and its reach [m].

    Args:
      cloud: particles of slice 0 (t - 2) or 1 (t - 1).
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      slice_: which of the two.

    Returns:
      The displacement [m], which fades with the reach, and the reach times 5 cm, so that both are
      of one scale.
    """
    # Where that is 0 the reach is below 1e-8, and in a compiled program equal calls are one.
    motion, _ = taken_along(cloud, robot, slice_)
    reach = reached(cloud.positions, robot.positions[slice_])
    return jnp.concatenate([reach * motion, MOTION_SCALE_M * reach], axis=1)


def taken_along(
    cloud: ParticleCloud, robot: RobotPoints, slice_: int, far_m: float = FAR_M
) -> tuple[Float[JaxArray, "n 3"], Float[JaxArray, "n 3"]]:
    """Return where the skeleton takes what is on it or held by it until t, and the other slice [m].

    Nothing fades until what is too far to be taken along: a surface 8 cm from its link's axis that
    takes part in 82 % of every step falls behind by centimetres in a rollout (docs/lab-book.md).

    Args:
      cloud: particles of slice 0 (t - 2) or 1 (t - 1).
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      slice_: which of the two.
      far_m: what is farther from all kinematic points is not taken along [m].
    """
    squared = _squared_distances(cloud.positions, robot.positions[slice_])
    near = jax.lax.stop_gradient(squared).min(axis=1, keepdims=True) < far_m**2
    positions = jnp.asarray(cloud.positions)
    ends = robot.positions[2], robot.positions[1 - slice_]
    motions = motions_nearby(positions, robot.positions[slice_], *ends)
    until_t, until_other = (jnp.where(near, x.displacement(positions), 0.0) for x in motions)
    return until_t, until_other


def _squared_distances(
    positions: Float[Array, "n 3"], points: Float[Array, "p 3"]
) -> Float[JaxArray, "n p"]:
    # Axis by axis: sums over an axis of three are not vectorised.
    places, points = jnp.asarray(positions), jnp.asarray(points)
    x, y, z = (places[:, axis, None] - points[None, :, axis] for axis in range(3))
    return x**2 + y**2 + z**2
