"""How what is not the robot moves before anything is learned: pushed, held, let go.

Beyond the papers (`model.contact`): pure functions of observed places, colours and the robot's
plan. What a closed hand touches is pushed along as a whole. What went along in the last step and
is off its support is held, and goes along until the hand opens; then it falls. Whatever else went
along was pushed, and stays where the hand leaves it. Lengths are metres.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.geometry import safe_norm
from hdvpd.basics.types import Array, Bool, Float, JaxArray, ParticleCloud, RobotPoints, pytree
from hdvpd.config import Up
from hdvpd.dynamics.carrying import held_along
from hdvpd.dynamics.touching import Surroundings, Touch, closed, touched
from hdvpd.kernels.neighbors import Backend, knn

# Evidence above which a particle went along with the robot: of sampled clouds less is noise.
_WENT_M = 0.002
# What is nearer to the hand than this, by touch, may be in it.
_IN_HAND_M = 0.05
# Particles below an object that say how high its support is.
_BELOW = 8
# An object this far above what is below it does not rest on it: particles of its lower edge and of
# the table are up to 2 cm apart.
_OFF_M, _OFF_WIDTH_M = 0.03, 0.005
_REST_M = 0.01
# Where gravity is not known, what was pushed goes on while the hand's way turns by less than this.
_SAME_WAY, _SAME_WAY_WIDTH = 0.5, 0.1


@pytree
class Things:
    """What geometry and history say of every particle that is not the robot's.

    Attributes:
      displacement: until the next time step [m].
      touch: by the coming step.
    """

    displacement: Float[JaxArray, "n 3"]
    touch: Touch


def moved_things(
    current: ParticleCloud,
    robot: RobotPoints,
    things: Bool[Array, "n"],
    around: Surroundings,
    evidence: Float[Array, "n"],
    *,
    up: Up,
    colors: bool,
    backend: Backend = "auto",
) -> Things:
    """Predict how what is not the robot moves.

    Args:
      current: particles at t - 1.
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      things: which particles of `current` are not the robot's.
      around: the surroundings of all particles of `current`.
      evidence: for having gone along with the robot in the last step, `went_along` [m].
      up: axis of the world that points up; "none" where it is not known: nothing falls, and what
        went along goes on while the hand keeps its way.
      colors: whether the first three features are the logits of colours.
      backend: of the neighbour searches.
    """
    cloud = dataclasses.replace(current, mask=jnp.asarray(current.mask) & things)
    around = around.among(cloud.mask)
    # What the tokens have asked as well is computed once (`touching.counterparts`).
    carried_m, back_m = (held_along(current, robot, 1, until) for until in (2, 0))
    touch = touched(cloud, robot, around, colors=colors, backend=backend)
    went = (evidence > _WENT_M) & cloud.mask
    grip = closed(touch.opening)
    if up == "none":
        held = _same_way(-back_m, carried_m)
        fall_m = jnp.zeros_like(carried_m)
    else:
        axis = _axis(up)
        height_m = _height(cloud, went, touch, robot.positions.shape[1], axis, backend)
        held = jax.nn.sigmoid((height_m - _OFF_M) / _OFF_WIDTH_M)
        fall_m = -jnp.maximum(height_m - _REST_M, 0.0)[:, None] * axis[None]
    pushed, held = touch.share[:, None], (went * grip * held)[:, None]
    moved_m = pushed * carried_m[touch.origin] + (1 - pushed) * held * carried_m
    moved_m += (went * (1 - grip))[:, None] * fall_m
    return Things(displacement=jnp.where(cloud.mask[:, None], moved_m, 0.0), touch=touch)


def _axis(up: Up) -> Float[np.ndarray, "3"]:
    return (-1.0 if up[0] == "-" else 1.0) * np.eye(3, dtype=np.float32)["xyz".index(up[-1])]


def _same_way(before: Float[Array, "n 3"], after: Float[Array, "n 3"]) -> Float[JaxArray, "n"]:
    """Say whether motions go on: about 1 where they turn by less than 60 degrees, else 0."""
    before, after = jax.lax.stop_gradient((before, after))
    size = safe_norm(before) * safe_norm(after)
    cosine = jnp.sum(before * after, axis=-1) / jnp.maximum(size, 1e-12)
    return jax.nn.sigmoid((cosine - _SAME_WAY) / _SAME_WAY_WIDTH)


def _height(
    cloud: ParticleCloud,
    went: Bool[Array, "n"],
    touch: Touch,
    num_points: int,
    axis: Float[np.ndarray, "3"],
    backend: Backend,
) -> Float[JaxArray, "n"]:
    """Return how far above what is below it every object in a hand is; 0 for all else [m].

    An object is what went along and is nearest to the same kinematic point. What is below it are
    the particles nearest to its middle, seen along `axis`, that did not go along.
    """
    positions = jax.lax.stop_gradient(jnp.asarray(cloud.positions))
    inside = went & (touch.gap_m < _IN_HAND_M)
    heights = positions @ axis
    count = jax.ops.segment_sum(inside.astype(jnp.float32), touch.point, num_points)
    total = jax.ops.segment_sum(inside[:, None] * positions, touch.point, num_points)
    lowest = jax.ops.segment_min(jnp.where(inside, heights, jnp.inf), touch.point, num_points)
    middle = total / jnp.maximum(count, 1.0)[:, None]
    flat, center = (x - (x @ axis)[:, None] * axis[None] for x in (positions, middle))
    below = knn(center, flat, _BELOW, mask=cloud.mask & ~went, backend=backend)
    below_it = below.found & (heights[below.indices] < (middle @ axis)[:, None])
    support = jnp.nanmedian(jnp.where(below_it, heights[below.indices], jnp.nan), axis=1)
    known = (count > 0) & below_it.any(axis=1)
    above = jnp.where(known, jnp.maximum(lowest - support, 0.0), 0.0)
    return jnp.where(inside, above[touch.point], 0.0)
