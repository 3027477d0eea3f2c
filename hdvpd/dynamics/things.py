"""How what is not the robot moves before anything is learned: pushed, held, let go.

Beyond the papers (`model.contact`): pure functions of observed places and the robot's plan. A thing
(`segments.py`) moves as one, by as much as it must so that a closed hand does not come into it;
what stays in touch goes along. Pushed beside its middle it turns, as what slides on a table does,
and what stands before it is pushed in turn.
A closed hand lifts what it touches and has on two sides of its middle; what is off its support and
near a hand is held, unless it rests on another thing, and falls when the hand opens. Lengths are
metres.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.geometry import safe_norm
from hdvpd.basics.types import Array, Bool, Float, JaxArray, ParticleCloud, RobotPoints, pytree
from hdvpd.config import Up
from hdvpd.dynamics.body import Approach, Boxes, approach
from hdvpd.dynamics.carrying import held_along
from hdvpd.dynamics.segments import Segments, segments, up_axis
from hdvpd.dynamics.surroundings import Surroundings
from hdvpd.dynamics.unseen import Unseen, unseen_of_things
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.neighbors import Backend, knn

# In touch is what is nearer to the body than this and a share of the distance between particles:
# the face that is pushed is hidden by the hand, and the nearest particle is beside it.
_TOUCH_M, _TOUCH_REACHES = 0.003, 0.15
# What goes away by more than this leaves.
_LEAVES_M = 0.003
# A thing pushes another if a particle of it would come nearer to one of the other than this share
# of the distance between particles, and would pass it by less than that one; so many in a row.
_BEFORE_REACHES, _ASIDE_REACHES = 0.15, 0.25
# Its middle is before that of the first, within 60 degrees: what slides along a face is not.
_BEFORE = 0.5
_ROW = 3
# What is nearer to the hand than this, and so far off its support, is in it.
_IN_HAND_M = 0.02
_OFF_M = 0.02
# It rests on another thing instead, if the top of that one is no higher above its lowest particle
# than this, and the two are neighbours, not farther apart than this many times the reach.
_RESTS_M, _RESTS_REACHES = 0.005, 1.3
# A hand grasps if the line between two of its points passes the middle of a thing by less than this
# share of the thing's radius: one that closes beside the middle presses a round thing out.
_GRASP_SHARE = 0.8
# Points nearest to the middle, of whose pairs one has to do so.
_GRASP_POINTS = 8
# What is lower than this is the support's: a thing's lower edge takes some of it along, but nothing
# raises it.
_SUPPORT_M = 0.0015
# An opening half way between open and closed.
_OPEN = 0.65
_OPEN_WIDTH = 0.02
# The middle of a thing is that of its top, which is seen whole; thicker than this it is a side.
_TOP_M = 0.012
# What slides resists turning by this share of the square of its radius of gyration: .8 if contact
# sticks and pressure is even, more as contact slips.
_TURNS = 1.3
# Half the distance of particles of a face: contact reaches as far beyond them.
_BESIDE_M = 0.003
_SMALLEST_M = 0.01
# What is pushed by less than this more than it moves already is not.
_STILL_M = 1e-4


@pytree
class Things:
    """What geometry says of every particle that is not the robot's.

    Attributes:
      displacement: until the next time step [m].
      share: of the coming step during which the particle's thing is pushed, from 0 to 1.
      gap_m: from the thing to the robot's body at t [m].
      opening: of the hand that touches it or is nearest at t.
    """

    displacement: Float[JaxArray, "n 3"]
    share: Float[JaxArray, "n"]
    gap_m: Float[JaxArray, "n"]
    opening: Float[JaxArray, "n"]


def closed(opening: Float[Array, "*batch"]) -> Float[JaxArray, "*batch"]:
    """Return how far hands are closed, 0 to 1: open ones touch nothing between their fingers."""
    return jax.nn.sigmoid((_OPEN - jnp.asarray(opening)) / _OPEN_WIDTH)


def opened(openings: Float[Array, "3 *batch"]) -> Float[JaxArray, "*batch"]:
    """Return how much of its hold a hand gives up from t - 1 to t, 0 to 1.

    Shares of one opening over several steps make up the whole, and a hand that keeps its opening
    keeps its hold.
    """
    before, after = closed(openings[1]), closed(openings[2])
    return jnp.clip(1.0 - after / jnp.maximum(before, 1e-6), 0.0, 1.0)


def moved_things(
    current: ParticleCloud,
    robot: RobotPoints,
    things: Bool[Array, "n"],
    around: Surroundings,
    boxes: Boxes,
    *,
    up: Up,
    unseen: Unseen | None = None,
    backend: Backend = "auto",
    kernels: Kernels = "auto",
) -> Things:
    """Predict how what is not the robot moves.

    Args:
      current: particles at t - 1.
      robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
      things: which particles of `current` are not the robot's.
      around: the surroundings of all particles of `current`.
      boxes: the robot's body.
      up: axis of the world that points up; "none" where it is not known: nothing is lifted off a
        support, and nothing falls.
      unseen: what cannot be seen of things; None takes what is likeliest.
      backend: of the neighbour searches.
      kernels: form in which things are told apart, and how the robot's links move them.
    """
    cloud = dataclasses.replace(current, mask=jnp.asarray(current.mask) & things)
    found = segments(cloud, around, up=up, kernels=kernels)
    axis = None if up == "none" else up_axis(up)
    gripper = jnp.asarray(robot.gripper)
    able = closed(gripper[2])
    carried_m = held_along(current, robot, 1, 2, able=able, kernels=kernels)
    margin_m = jnp.full(found.label.shape, _TOUCH_M + _TOUCH_REACHES * found.reach_m)
    if unseen is not None:
        unseen = unseen_of_things(found, unseen, cloud.positions, axis)
        margin_m = jnp.maximum(margin_m + unseen.margin_m, 0.0)
    coming = approach(boxes, cloud.positions, robot, margin_m, able, backend)
    openings = gripper[:, coming.point]
    share, origin = _pushed(coming, found)
    moved_m = share[:, None] * carried_m[origin]
    if axis is not None:
        top = _tops(cloud, found, axis)
        lift_m = jnp.maximum(moved_m @ axis, 0.0) * (1.0 - _grasped(top, robot, axis, backend))
        moved_m -= lift_m[:, None] * axis[None]
        # What the body has passed by the end of the step was in touch, too.
        moved_m = _turned(moved_m, top, found, coming.entered < 1.0, axis, unseen)
        moved_m = _passed_on(moved_m, cloud.positions, top, found, around, axis, unseen)
        # By one motion for all of a thing: of its own links each particle would go elsewhere.
        middle = found.mean(cloud.positions, found.inside.astype(jnp.float32))
        carried_m = held_along(current, robot, 1, 2, middle, kernels=kernels)
        nearest = found.last(found.inside & (coming.now_m <= found.min(coming.now_m)))
        hands = coming.now_m, openings[:, nearest]
        moved_m = _held(moved_m, carried_m, *hands, found, around, axis)
    return Things(
        displacement=jnp.where(found.inside[:, None], moved_m, 0.0),
        share=jnp.where(found.inside, share, 0.0),
        gap_m=jnp.where(found.inside, found.min(coming.then_m), coming.then_m),
        opening=openings[2, origin],
    )


def _pushed(coming: Approach, found: Segments) -> tuple[Float[JaxArray, "n"], Array]:
    """Return the share of the step during which things are pushed, and by which of their particles.

    A particle has to go along from when it is within the margin of a closed hand on, unless the
    body leaves it. The one that has to go the farthest decides for its thing; of those that need
    the same, the deepest.
    """
    leaves = coming.then_m - coming.now_m > _LEAVES_M
    needed = jnp.where(leaves, 0.0, 1.0 - coming.entered)
    first = needed - 1e-3 * coming.then_m
    origin = found.last(found.inside & (first >= found.max(first)))
    return jnp.where(found.inside, found.max(needed), 0.0), origin


@pytree
class _Tops:
    """The tops of particles' things, which are seen whole.

    Attributes:
      middle: mean place [m].
      arm: from there to the particle, horizontally [m].
      gyration2: mean square of the top's arms [m^2].
      height: of the highest particle, along the axis that points up [m].
    """

    middle: Float[JaxArray, "n 3"]
    arm: Float[JaxArray, "n 3"]
    gyration2: Float[JaxArray, "n"]
    height: Float[JaxArray, "n"]


def _tops(cloud: ParticleCloud, found: Segments, axis: Float[np.ndarray, "3"]) -> _Tops:
    places = jax.lax.stop_gradient(jnp.asarray(cloud.positions))
    heights = places @ axis
    highest = found.max(heights)
    top = (found.inside & (heights > highest - _TOP_M)).astype(jnp.float32)
    middle = found.mean(places, top)
    arm = _flat(places - middle, axis)
    return _Tops(middle, arm, found.mean(jnp.sum(arm**2, axis=-1), top), highest)


def _flat(x: Float[Array, "*batch 3"], axis: Float[np.ndarray, "3"]) -> Float[JaxArray, "*batch 3"]:
    """Return the horizontal part."""
    x = jnp.asarray(x)
    return x - jnp.multiply.outer(x @ axis, axis)


def _grasped(
    top: _Tops, robot: RobotPoints, axis: Float[np.ndarray, "3"], backend: Backend
) -> Float[JaxArray, "n"]:
    """Say which particles' things a closed hand has on two sides of their middle, from 0 to 1.

    So a thing that is pushed, or touched beside its middle, stays on its support.
    """
    points = jnp.asarray(robot.positions)[1]
    count = min(_GRASP_POINTS, points.shape[0])
    # Axis by axis, with the particles last: sums over an axis of three are not vectorised.
    near = jnp.asarray(knn(top.middle, points, count, backend=backend).indices).T
    able = closed(jnp.asarray(robot.gripper)[2])[near] * ((points @ axis)[near] < top.height[None])
    level, places = _flat(points, axis).T, _flat(top.middle, axis).T
    offsets = [mine[near] - its[None] for mine, its in zip(level, places, strict=True)]
    grasped = jnp.zeros(top.height.shape)
    # Of pairs picked by their numbers, XLA would make no vector code.
    for one in range(count - 1):
        starts = [offset[one][None] for offset in offsets]
        ways = [offset[one + 1 :] - offset[one][None] for offset in offsets]
        length2 = jnp.maximum(_dot(ways, ways), _SMALLEST_M**2)
        along = jnp.clip(-_dot(starts, ways) / length2, 0.0, 1.0)
        passes = [start + along * way for start, way in zip(starts, ways, strict=True)]
        # A disc of radius r has a radius of gyration of r / sqrt(2).
        holds = _dot(passes, passes) < 2.0 * _GRASP_SHARE**2 * top.gyration2[None]
        held = holds * able[one][None] * able[one + 1 :]
        grasped = jnp.maximum(grasped, held.max(axis=0))
    return grasped


def _dot(
    x: Sequence[Float[Array, "*#batch"]], y: Sequence[Float[Array, "*#batch"]]
) -> Float[JaxArray, "*batch"]:
    return sum((jnp.multiply(a, b) for a, b in zip(x, y, strict=True)), jnp.zeros(()))


def _passed_on(
    moved_m: Float[Array, "n 3"],
    positions: Float[Array, "n 3"],
    top: _Tops,
    found: Segments,
    around: Surroundings,
    axis: Float[np.ndarray, "3"],
    unseen: Unseen | None,
) -> Float[JaxArray, "n 3"]:
    """Let things that are pushed push those before them, and turn these.

    The pair of particles of which one would come farthest into the other decides.
    """
    indices = jnp.asarray(around.indices)
    places = jax.lax.stop_gradient(jnp.asarray(positions))
    two = (found.label[indices] != found.label[:, None]) & found.inside[indices]
    two &= found.inside[:, None]
    offset = places[:, None] - places[indices]
    length2 = jnp.sum(offset**2, axis=-1)
    from_middle = _flat(top.middle[:, None] - top.middle[indices], axis)
    between_m = safe_norm(from_middle)

    def pass_on(moved_m: Float[JaxArray, "n 3"]) -> tuple[Float[JaxArray, "n 3"], Array]:
        push = _flat(moved_m, axis)
        way_m = jax.lax.stop_gradient(safe_norm(push))
        ahead = jax.lax.stop_gradient(push) / jnp.maximum(way_m, 1e-6)[:, None]
        along_m = jnp.sum(offset * ahead[indices], axis=-1)
        meets = two & (along_m > 0.0)
        meets &= length2 - along_m**2 < (_ASIDE_REACHES * found.reach_m) ** 2
        meets &= jnp.sum(from_middle * ahead[indices], axis=-1) > _BEFORE * between_m
        beyond_m = way_m[indices] + _BEFORE_REACHES * found.reach_m - along_m
        comes_m = jnp.where(meets, jnp.clip(beyond_m, 0.0, way_m[indices]), 0.0)
        own_m, most_m = comes_m.max(axis=1), found.max(comes_m.max(axis=1))
        origin = found.last(found.inside & (own_m >= most_m))
        best = jnp.take_along_axis(indices, comes_m.argmax(axis=1)[:, None], axis=1)[:, 0]
        source = best[origin]
        share = most_m / jnp.maximum(way_m[source], 1e-6)
        pushed = found.inside & (most_m > found.max(way_m) + _STILL_M)
        given_m = jnp.where(pushed[:, None], share[:, None] * push[source], 0.0)
        turned_m = _turned(given_m, top, found, own_m > 0.0, axis, unseen)
        return jnp.where(pushed[:, None], turned_m, moved_m), pushed.any()

    # A branch: most of the time nothing is pushed, and then nothing pushes another.
    return jax.lax.fori_loop(
        0,
        _ROW,
        lambda _, state: jax.lax.cond(state[1], pass_on, lambda x: (x, False), state[0]),
        (moved_m, jnp.any(jnp.asarray(moved_m) != 0)),
    )[0]


def _held(
    moved_m: Float[Array, "n 3"],
    carried_m: Float[Array, "n 3"],
    away_m: Float[Array, "n"],
    openings: Float[Array, "3 n"],
    found: Segments,
    around: Surroundings,
    axis: Float[np.ndarray, "3"],
) -> Float[JaxArray, "n 3"]:
    """Take along what is off its support in a hand; let it fall when the hand opens.

    In an open hand nothing hangs but what is the hand's own, wholly near it, and was not told to
    be: of a thing between open fingers the lower part is hidden.
    """
    on_support = found.height_m < _SUPPORT_M
    off = found.inside & ~on_support
    lowest_m = found.min(jnp.where(off, found.height_m, jnp.inf))
    nearest_m, farthest_m = found.min(away_m), found.max(jnp.where(off, away_m, -jnp.inf))
    # What a hand holds keeps it from closing: about as open as a hand that is called open.
    holds = jnp.minimum(openings[1], openings[2]) < _OPEN + 2 * _OPEN_WIDTH
    near = jnp.where(holds, nearest_m, farthest_m) < _IN_HAND_M
    in_hand = near & (lowest_m > _OFF_M) & (lowest_m < jnp.inf)
    in_hand = _not_resting(in_hand, lowest_m, found.max(moved_m @ axis) > _STILL_M, found, around)
    let_go = jnp.where(openings[1] < _OPEN + 2 * _OPEN_WIDTH, opened(openings), 0.0)[:, None]
    fall_m = -jnp.where(in_hand, lowest_m, 0.0)[:, None] * axis[None]
    held_m = (1 - let_go) * carried_m + let_go * fall_m
    moved_m = jnp.where(in_hand[:, None], held_m, moved_m)
    return moved_m - (on_support * jnp.maximum(moved_m @ axis, 0.0))[:, None] * axis[None]


def _not_resting(
    in_hand: Bool[Array, "n"],
    lowest_m: Float[Array, "n"],
    rises: Bool[Array, "n"],
    found: Segments,
    around: Surroundings,
) -> Bool[JaxArray, "n"]:
    """Return which particles' things are in a hand and do not rest on one that is not.

    Of a stack the lowest thing stands, so that one round tells of every further thing.
    """
    indices = jnp.asarray(around.indices)
    two = (found.label[indices] != found.label[:, None]) & found.inside[indices]
    two &= jnp.asarray(around.distances) < _RESTS_REACHES * found.reach_m
    two &= found.max(found.height_m)[indices] < jnp.asarray(lowest_m)[:, None] + _RESTS_M

    def put_down(_: object, held: Bool[JaxArray, "n"]) -> Bool[JaxArray, "n"]:
        rests = (two & ~(held | rises)[indices]).any(axis=1)
        return held & (found.max(rests.astype(jnp.float32)) < 1.0)

    return jax.lax.fori_loop(0, _ROW, put_down, jnp.asarray(in_hand))


def _turned(
    moved_m: Float[Array, "n 3"],
    top: _Tops,
    found: Segments,
    contact: Bool[Array, "n"],
    axis: Float[np.ndarray, "3"],
    unseen: Unseen | None,
) -> Float[JaxArray, "n 3"]:
    """Turn things that are pushed beside their middle, by quasi-static sliding.

    Friction of what slides on a plane resists force f and torque m as an ellipsoid does (Goyal,
    Ruina and Papadopoulos, Wear 1991): velocity of the middle ~ f, turning ~ m / c^2, c a share of
    the radius of gyration. So a contact at (x, y) from the middle, x along the push v, that sticks,
    turns the thing by w = -y v / (c^2 + x^2 + y^2). Contact along a face is at the place of it that
    is nearest to the line of push through the middle.
    """
    arm, gyration2 = top.arm, top.gyration2
    radius2 = _TURNS * gyration2
    if unseen is not None:
        arm -= jnp.sqrt(gyration2)[:, None] * _flat(unseen.middle, axis)
        radius2 *= jnp.exp(unseen.turning)
    radius2 = jnp.maximum(radius2, _SMALLEST_M**2)
    push = _flat(moved_m, axis)
    raised = moved_m - push
    way_m = safe_norm(push)
    ahead = push / jnp.maximum(way_m, 1e-6)[:, None]
    aside = jnp.cross(jnp.broadcast_to(axis, ahead.shape), ahead)
    x, y = jnp.sum(arm * ahead, axis=-1), jnp.sum(arm * aside, axis=-1)
    x = found.mean(x, contact.astype(jnp.float32))
    least = found.min(jnp.where(contact, y, jnp.inf)) - _BESIDE_M
    most = found.max(jnp.where(contact, y, -jnp.inf)) + _BESIDE_M
    y = jnp.where(least <= most, jnp.clip(0.0, least, most), 0.0)
    angle = -y * way_m / (radius2 + x**2 + y**2)
    forward, sideways = way_m + y * angle, -x * angle
    cos, sin = jnp.cos(angle)[:, None], jnp.sin(angle)[:, None]
    across = jnp.cross(jnp.broadcast_to(axis, arm.shape), arm)
    slid = forward[:, None] * ahead + sideways[:, None] * aside + (cos - 1) * arm + sin * across
    slides = found.inside & (way_m > 1e-6)
    return jnp.where(slides[:, None], slid + raised, moved_m)
