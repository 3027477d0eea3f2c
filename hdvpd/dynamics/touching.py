"""What a particle's surroundings say before anything is learned: who went along, who is touched.

Beyond the papers (`model.contact`): pure functions of observed places, colours and the robot's
plan. Nothing here has a gradient. Lengths are metres.
"""

import dataclasses

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, ParticleCloud, RobotPoints, pytree
from hdvpd.dynamics.carrying import nearest_points
from hdvpd.kernels.neighbors import Backend, Neighbors, knn

CANDIDATES = 4
"""Counterparts in the other cloud among which the one of like colour is chosen."""
# Distance that a difference of 1 in a colour counts as.
_COLOR_M = 0.2
# One particle's evidence is worth this much at most: sampled clouds are about as coarse.
_EVIDENCE_M = 0.05
# Neighbours that share what they know: how many, how near and how like in colour.
_PARTNERS = 16
_PARTNER_M = 0.03
_PARTNER_COLOR = 0.25
# So that the opinion of a few centimetres decides where particles are half a centimetre apart.
_ROUNDS = 6
# Brightness is divided out of colours as far as there is light to tell a hue by.
_DARK = 0.1
# A finger's surface is this far from its kinematic points; measured surfaces are seen as particles,
# the nearest of which is about half as far as a particle's surroundings reach.
_TOUCH_M = 0.025
_TOUCH_SPACING = 0.35
# Rounds in which a touch spreads over an object, a centimetre each where particles are half a
# centimetre apart, and how much farther from the hand a particle seems by a step across an edge of
# `_PARTNER_COLOR`.
_SPREADING = 16
_EDGE_M = 0.02
# An opening half way between open and closed.
_OPEN = 0.65
_OPEN_WIDTH = 0.05
_SHORTEST_WAY_M = 0.01


@pytree
class Surroundings:
    """The nearest particles of every particle, and how unlike in colour they are.

    Attributes:
      indices: of the particles, nearest first, oneself among them.
      distances: [m]; inf where there are fewer particles.
      unlike: squared difference of hues, 1 where a colour's edge is.
    """

    indices: Int[Array, "n k"]
    distances: Float[Array, "n k"]
    unlike: Float[JaxArray, "n k"]

    def among(self, mask: Bool[Array, "n"]) -> "Surroundings":
        """Return the surroundings of which only particles of a mask are left; others are at inf."""
        distances = jnp.where(jnp.asarray(mask)[self.indices], self.distances, jnp.inf)
        return dataclasses.replace(self, distances=distances)


def surroundings(cloud: ParticleCloud, *, colors: bool, backend: Backend = "auto") -> Surroundings:
    """Find every particle's surroundings.

    Args:
      cloud: particles.
      colors: whether the first three features are the logits of colours; without them all
        particles are alike.
      backend: of the neighbour search.
    """
    cloud = jax.lax.stop_gradient(cloud)
    near = knn(cloud.positions, cloud.positions, _PARTNERS, mask=cloud.mask, backend=backend)
    own = _colors(cloud, colors)
    brightness = own.mean(axis=-1, keepdims=True)
    # Faces of one object differ in brightness, and by the light that falls on them.
    hue = (own - brightness) / (brightness + _DARK)
    unlike = jnp.sum((hue[near.indices] - hue[:, None]) ** 2, axis=-1) / _PARTNER_COLOR**2
    return Surroundings(indices=near.indices, distances=near.distances, unlike=unlike)


def shared(values: Float[Array, "n"], around: Surroundings) -> Float[JaxArray, "n"]:
    """Return the mean that near particles of one colour agree on, in several rounds."""
    weights = jnp.exp(-((around.distances / _PARTNER_M) ** 2) - around.unlike)
    weights /= jnp.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    # A loop of the program: unrolled, every neighbour's value would be computed anew.
    return jax.lax.fori_loop(
        0, _ROUNDS, lambda _, x: jnp.sum(weights * x[around.indices], axis=1), jnp.asarray(values)
    )


def counterparts(
    cloud: ParticleCloud,
    other: ParticleCloud,
    carried_m: Float[Array, "n 3"],
    backend: Backend = "auto",
    count: int = CANDIDATES,
) -> Neighbors:
    """Find the nearest particles of another time to where particles are, and to where they go.

    In a compiled program, equal calls are one search.

    Args:
      cloud: particles.
      other: the cloud of the other time.
      carried_m: displacement of the skeleton at each particle's place until the other time [m].
      backend: of the neighbour search.
      count: of particles that are found for each place.

    Returns:
      Those of every particle's place, then those of every place to which it is carried.
    """
    # One search: building its tree costs as much as asking it.
    places = jnp.concatenate([cloud.positions, cloud.positions + carried_m])
    return knn(places, other.positions, count, mask=other.mask, backend=backend)


def went_along(
    cloud: ParticleCloud,
    other: ParticleCloud,
    carried_m: Float[Array, "n 3"],
    around: Surroundings,
    *,
    colors: bool,
    backend: Backend = "auto",
) -> Float[JaxArray, "n"]:
    """Weigh the two explanations of the last step: the robot took a particle along, or it stood.

    How much farther is its counterpart in the other cloud if it stood still than if it went along
    with the robot; the counterpart is the nearest of four in place and colour together. Particles
    near each other and of one colour share what they know, so that the gaps between the particles
    of a cloud do not decide.

    Args:
      cloud: particles.
      other: the cloud of the other time.
      carried_m: displacement of the skeleton at each particle's place until the other time [m].
      around: the surroundings of `cloud`.
      colors: whether the first three features are the logits of colours.
      backend: of the neighbour search.

    Returns:
      Evidence for going along, from -5 to 5 cm; 0 where the robot stood still. Without gradient.
    """
    cloud, other, carried_m = jax.lax.stop_gradient((cloud, other, carried_m))
    own, others = (_colors(x, colors) for x in (cloud, other))
    near = counterparts(cloud, other, carried_m, backend)
    unlike = jnp.sum((others[near.indices] - jnp.tile(own, (2, 1))[:, None]) ** 2, axis=-1)
    distance = jnp.sqrt(jnp.min(near.distances**2 + _COLOR_M**2 * unlike, axis=1))
    stood, went = jnp.split(distance, 2)
    evidence = jnp.minimum(stood, 1.0) - jnp.minimum(went, 1.0)
    evidence = jnp.clip(evidence, -_EVIDENCE_M, _EVIDENCE_M)
    return shared(evidence, around)


@pytree
class Touch:
    """What the robot's plan does to the object that a particle seems to belong to.

    Attributes:
      share: of the coming step during which the object is touched, from 0 to 1.
      gap_m: from the object to the nearest kinematic point at t [m].
      opening: of the hand that is nearest at t.
      origin: number of the object's particle that is nearest to the robot at t.
      point: number of the kinematic point that it is nearest to.
    """

    share: Float[JaxArray, "n"]
    gap_m: Float[JaxArray, "n"]
    opening: Float[JaxArray, "n"]
    origin: Int[JaxArray, "n"]
    point: Int[JaxArray, "n"]


def closed(opening: Float[Array, "*batch"]) -> Float[JaxArray, "*batch"]:
    """Return how far hands are closed, 0 to 1: open ones touch nothing between their fingers."""
    return jax.nn.sigmoid((_OPEN - jnp.asarray(opening)) / _OPEN_WIDTH)


def touched(
    cloud: ParticleCloud,
    robot: RobotPoints,
    around: Surroundings,
    *,
    colors: bool,
    backend: Backend = "auto",
) -> Touch:
    """Say which particles a closed hand will touch, or move because it touches their neighbours.

    A particle's distance to the robot at t is that of the nearest particle to which a path through
    like neighbours leads; a step across a colour's edge makes it seem farther. So an object is
    touched as a whole, and the table below it is not. In contact is what is nearer than 2.5 cm and
    half of the surroundings' reach; a hand that comes nearer touches during the rest of the step.

    Args:
      cloud: particles at t - 1.
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      around: the surroundings of `cloud`.
      colors: whether colours tell objects apart; else a touch does not spread.
      backend: of the neighbour search.
    """
    cloud, robot = jax.lax.stop_gradient((cloud, robot))
    now = nearest_points(cloud, robot, 1, backend)
    then = knn(cloud.positions, robot.positions[2], 1, backend=backend)
    direct_m = gap_m = jnp.asarray(then.distances)[:, 0]
    origin = jnp.arange(gap_m.shape[0])
    reach_m = _median(around.distances[:, _PARTNERS // 2])
    step_m = _EDGE_M * around.unlike**2 + jnp.maximum(around.distances - reach_m, 0.0)

    def spread(
        _: Int[Array, ""], seen: tuple[Float[Array, "n"], Int[Array, "n"]]
    ) -> tuple[Float[Array, "n"], Int[Array, "n"]]:
        gap_m, origin = seen
        through_m = gap_m[around.indices] + step_m
        best = jnp.argmin(through_m, axis=1, keepdims=True)
        nearest_m = jnp.take_along_axis(through_m, best, axis=1)[:, 0]
        through = jnp.take_along_axis(jnp.asarray(around.indices), best, axis=1)[:, 0]
        origin = jnp.where(nearest_m < gap_m, origin[through], origin)
        return jnp.minimum(gap_m, nearest_m), origin

    # A loop of the program, as in `shared`.
    rounds = _SPREADING if colors else 0
    gap_m, origin = jax.lax.fori_loop(0, rounds, spread, (gap_m, origin))

    radius_m = _TOUCH_M + _TOUCH_SPACING * reach_m
    coming_m = (jnp.asarray(now.distances)[:, 0] - direct_m)[origin]
    share = jnp.clip((radius_m - gap_m) / jnp.maximum(coming_m, _SHORTEST_WAY_M), 0.0, 1.0)
    point = jnp.asarray(then.indices)[:, 0][origin]
    opening = jnp.asarray(robot.gripper)[2][point]
    share *= closed(opening)
    return Touch(share=share, gap_m=gap_m, opening=opening, origin=origin, point=point)


def _colors(cloud: ParticleCloud, known: bool) -> Float[JaxArray, "n 3"]:
    return jax.nn.sigmoid(jax.lax.stop_gradient(jnp.asarray(cloud.features))[:, :3]) * known


def _median(x: Float[Array, "n"]) -> Float[JaxArray, ""]:
    """Return the median of the finite ones of distances, 0 without any."""
    count = jnp.isfinite(x).sum()
    # Bits of numbers that are not negative are in the same order, and integers are sorted sooner.
    bits = jnp.sort(jax.lax.bitcast_convert_type(x, jnp.int32))[jnp.maximum(count - 1, 0) // 2]
    return jnp.where(count > 0, jax.lax.bitcast_convert_type(bits, jnp.float32), 0.0)
