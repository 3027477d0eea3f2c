"""Where the robot's skeleton takes what is on it.

Beyond the papers (`model.carry`). What is the robot belongs to the link of the kinematic point
that is nearest, and goes where that link goes; what the robot holds goes with the links near it
together. Lengths are metres.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.geometry import turned
from hdvpd.basics.types import Array, Float, JaxArray, ParticleCloud, RobotPoints
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.gaussian_mean import gaussian_mean
from hdvpd.kernels.neighbors import Backend, Neighbors, knn

MOTION_SCALE_M = 0.05
"""Motion of the robot per step is centimetres: in this unit it is of order one."""
NUM_POINTS = 4
"""Kinematic points that a particle looks at."""
FAR_M = 0.25
"""What is farther from every kinematic point is neither the robot nor held by it."""
# A link's surface lies 4 to 9 cm from its axis, where the kinematic points are.
_REACH_M = 0.12
_BANDWIDTH_M = 0.07
_LEAST_ABLE = 1e-6


def nearest_points(
    cloud: ParticleCloud, robot: RobotPoints, slice_: int, backend: Backend = "auto"
) -> Neighbors:
    """Find the kinematic points of a slice that are nearest to particles.

    In a compiled program, equal calls are one search.
    """
    points = robot.positions[slice_]
    return knn(cloud.positions, points, min(NUM_POINTS, points.shape[0]), backend=backend)


def reached(
    cloud: ParticleCloud,
    robot: RobotPoints,
    slice_: int,
    reach_m: float = _REACH_M,
    backend: Backend = "auto",
) -> Float[JaxArray, "n 1"]:
    """Say how far particles are within the robot's reach: exp(-(min d / reach)^4).

    With a reach of 12 cm it is flat on the robot's surface and lets go of everything else.
    """
    nearest = nearest_points(cloud, robot, slice_, backend).indices[:, 0]
    away = cloud.positions - jnp.asarray(robot.positions)[slice_, nearest]
    squared = jnp.sum(away**2, axis=-1, keepdims=True)
    return jnp.exp(-((squared / reach_m**2) ** 2))


def carried_motion(
    cloud: ParticleCloud, robot: RobotPoints, slice_: int, backend: Backend = "auto"
) -> Float[JaxArray, "n 4"]:
    """Return where the skeleton at each particle's place takes it until t, and its reach [m].

    Args:
      cloud: particles of slice 0 (t - 2) or 1 (t - 1).
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      slice_: which of the two.
      backend: of the neighbour search.

    Returns:
      The displacement [m], which fades with the reach, and the reach times 5 cm, so that both are
      of one scale.
    """
    motion = taken_along(cloud, robot, slice_, 2, backend=backend)
    reach = reached(cloud, robot, slice_, backend=backend)
    return jnp.concatenate([reach * motion, MOTION_SCALE_M * reach], axis=1)


def taken_along(
    cloud: ParticleCloud,
    robot: RobotPoints,
    slice_: int,
    until: int,
    far_m: float = FAR_M,
    backend: Backend = "auto",
) -> Float[JaxArray, "n 3"]:
    """Return by how much the link of its nearest point displaces each particle [m].

    Nothing fades until what is too far to be taken along: a surface 8 cm from its link's axis that
    takes part in 82 % of every step falls behind by centimetres in a rollout (docs/lab-book.md).
    Which link a particle belongs to has no gradient; where the link goes has.

    Args:
      cloud: particles of slice 0 (t - 2) or 1 (t - 1).
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      slice_: which of the two.
      until: the slice of `robot` at which the motion ends.
      far_m: what is farther from all kinematic points is not taken along [m].
      backend: of the neighbour search.
    """
    near = nearest_points(cloud, robot, slice_, backend)
    nearest, away_m = near.indices[:, 0], jnp.asarray(near.distances)[:, :1]
    turn, shift = _motions(robot, slice_, until)
    arm = cloud.positions - jnp.asarray(robot.positions)[slice_, nearest]
    moved = shift[nearest] + turned(turn[nearest], arm)
    return jnp.where(away_m < far_m, moved, 0.0)


def held_along(
    cloud: ParticleCloud,
    robot: RobotPoints,
    slice_: int,
    until: int,
    at: Float[Array, "n 3"] | None = None,
    able: Float[Array, "p"] | None = None,
    kernels: Kernels = "auto",
) -> Float[JaxArray, "n 3"]:
    """Return by how much the links nearby displace each particle together [m].

    For what is held by several of them: fingers that are told to close, and that what is between
    them keeps from it, do not take either half of it along. Each point's link weighs
    softmax_p(-(d / 7 cm)^2), which has no gradient; where the links go has.

    Args:
      cloud: particles of slice 0 (t - 2) or 1 (t - 1).
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      slice_: which of the two.
      until: the slice of `robot` at which the motion ends.
      at: the places from which d is taken, one for all particles that move as one [m]; by default
        each particle's own, and nothing moves that is too far to be held.
      able: how far each point takes part, 0 to 1, beside others that do; by default all do.
      kernels: form in which the weighted mean is computed.
    """
    start = jnp.asarray(robot.positions)[slice_]
    turn, shift = _motions(robot, slice_, until)
    # x goes to x + shift + turn (x - start), from which the weighted mean is taken.
    middle = jax.lax.stop_gradient(start.mean(axis=0))[None]
    fixed = shift - turned(turn, start - middle)
    motions = jnp.concatenate([turn.reshape(-1, 9), fixed], axis=1)
    places, points = jax.lax.stop_gradient(
        (jnp.asarray(cloud.positions if at is None else at), start)
    )
    shares = jnp.ones(len(start)) if able is None else jnp.maximum(able, _LEAST_ABLE)
    mean, least = gaussian_mean(places, points, shares, motions, _BANDWIDTH_M, kernels)
    arm = cloud.positions - middle
    moved = mean[:, 9:] + turned(mean[:, :9].reshape(-1, 3, 3), arm)
    return moved if at is not None else jnp.where(least[:, None] < FAR_M**2, moved, 0.0)


def _motions(
    robot: RobotPoints, slice_: int, until: int
) -> tuple[Float[JaxArray, "p 3 3"], Float[JaxArray, "p 3"]]:
    """Return how every point's link turns, less the identity, and its point's displacement [m]."""
    positions, axes = jnp.asarray(robot.positions), jnp.asarray(robot.axes)
    # Less the identity, so that what hardly turns keeps its digits.
    unit = np.eye(3, dtype=np.float32)[None]
    # XLA calls a library for products, which takes longer than sums of so few numbers.
    turn = jnp.sum(axes[until][:, :, None] * axes[slice_][:, None], axis=-1) - unit
    return turn, positions[until] - positions[slice_]
