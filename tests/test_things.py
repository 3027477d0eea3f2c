"""What is not the robot is pushed, held and let go, before anything is learned."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import scenes

from hdvpd.basics.types import ParticleCloud, RobotPoints
from hdvpd.dynamics.body import Boxes
from hdvpd.dynamics.surroundings import surroundings
from hdvpd.dynamics.things import moved_things

RED, GREEN, WHITE = [3.0, -3.0, -3.0], [-3.0, 3.0, -3.0], [1.0, 1.0, 1.0]
OPEN, CLOSED = 1.2, 0.1
CLOSES, OPENS = (1.0, 0.4, 0.2), (CLOSED, CLOSED, OPEN)
TURNS = {"z": (0, 1, 2), "x": (1, 2, 0), "y": (2, 0, 1)}
FINGER_M = 0.01
"""Half the width of a finger."""


@functools.partial(jax.jit, static_argnums=3)
def displaced(current, robot, things, up):
    around = surroundings(current, colors=True)
    size = np.full((robot.positions.shape[1], 3), FINGER_M, np.float32)
    return moved_things(current, robot, things, around, Boxes(-size, size), up=up).displacement


def predict(current, robot, up="z", things=None):
    things = np.ones(len(current.mask), bool) if things is None else things
    return np.asarray(displaced(current, robot, things, up))


def cloud_of(block, table):
    positions = np.concatenate([block, table])
    return ParticleCloud(
        positions=np.float32(positions),
        features=np.float32(np.repeat([RED, WHITE], [len(block), len(table)], axis=0)),
        mask=np.ones(len(positions), bool),
    )


def cube(middle, size_m=0.05, ticks=6):
    """Points of the surface of a cube, a centimetre apart."""
    line = np.linspace(-size_m / 2, size_m / 2, ticks)
    grid = np.stack(np.meshgrid(line, line, line, indexing="ij"), axis=-1).reshape(-1, 3)
    return grid[np.abs(grid).max(1) > size_m / 2 - 1e-6] + middle


SIZE = 152
"""Points of a cube."""


def table(ticks=41):
    """A square of 40 cm at height 0."""
    line = np.linspace(-0.2, 0.2, ticks)
    x, y = np.meshgrid(line, line, indexing="ij")
    return np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=-1)


def hand(way, opening=CLOSED, apart_m=0.072):
    """Two fingers, so far apart, at t - 2, t - 1 and t."""
    beside = np.asarray([[0.0, -apart_m / 2, 0.0], [0.0, apart_m / 2, 0.0]])
    return scenes.unturned(np.asarray(way)[:, None] + beside, np.reshape(opening, (-1, 1)))


def lifted(height_m, step, opening=CLOSED):
    """A cube between two fingers, its lower face so high above the table."""
    now = np.asarray([0.0, 0.0, height_m + 0.025])
    robot = hand([now - step, now, now + step], opening)
    return cloud_of(cube(now), table()), robot


def test_what_is_off_its_support_goes_along_with_a_hand_that_does_not_open():
    step = np.asarray([0.03, 0.0, 0.01])
    for opening in (CLOSED, CLOSES):
        moved = predict(*lifted(0.10, step, opening))
        np.testing.assert_allclose(moved[:SIZE], np.tile(step, (SIZE, 1)), atol=2e-3)
        np.testing.assert_allclose(moved[SIZE:], 0, atol=1e-6)


def test_what_hangs_in_an_open_hand_is_its_own():
    """A finger's edge of 2 cm, which was not told to be the robot's, and a cube between both."""
    step, now = np.asarray([0.03, 0.0, 0.01]), np.asarray([0.0, 0.0, 0.125])
    robot = hand([now - step, now, now + step], OPEN)
    edge = cube(now + [0.0, 0.045, 0.0], 0.02)
    moved = predict(cloud_of(edge, table()), robot)
    np.testing.assert_allclose(moved[:SIZE], np.tile(step, (SIZE, 1)), atol=2e-3)
    np.testing.assert_allclose(predict(cloud_of(cube(now), table()), robot), 0, atol=1e-6)


@pytest.mark.parametrize("opening", [CLOSES, CLOSED])
def test_a_closed_hand_lifts_what_is_between_its_fingers_however_long_it_takes(opening):
    step = np.asarray([0.0, 0.0, 0.005])
    moved = predict(*lifted(0.002, step, opening))
    np.testing.assert_allclose(moved[:SIZE], np.tile(step, (SIZE, 1)), atol=2e-3)
    np.testing.assert_allclose(moved[SIZE:], 0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "apart_m", "aside_m", "above_m"),
    [
        ("one side", 0.0, 0.036, 0.0),
        ("beside the middle", 0.06, 0.03, 0.0),
        ("from above", 0.03, 0.0, 0.034),
    ],
)
def test_a_closed_hand_does_not_lift_what_it_only_touches(name, apart_m, aside_m, above_m):
    """The cube's half width is 2.5 cm, that of a finger one."""
    now = np.asarray([aside_m, 0.0, 0.027 + above_m])
    step = np.asarray([0.0, 0.0, 0.005])
    current = cloud_of(cube([0.0, 0.0, 0.027]), table())
    moved = predict(current, hand([now - step, now, now + step], CLOSES, apart_m))
    np.testing.assert_allclose(moved[:, 2], 0, atol=1e-6, err_msg=name)
    middle = now - [aside_m, 0, above_m]
    there = predict(current, hand([middle - step, middle, middle + step], CLOSES, 0.06))
    np.testing.assert_allclose(there[:SIZE, 2], 0.005, atol=1e-6)


def test_what_stands_between_open_fingers_stays_though_its_lower_part_is_hidden():
    """The hand goes down about a cube of which nothing is seen below 3 cm."""
    step = np.asarray([0.0, 0.0, -0.02])
    now = np.asarray([0.0, 0.0, 0.055])
    current = cloud_of(cube(now), table())
    moved = predict(current, hand([now - step, now, now + step], OPEN))
    np.testing.assert_allclose(moved, 0, atol=1e-6)
    gone = predict(current, hand([now - step, now, now + step], CLOSED))
    np.testing.assert_allclose(gone[:SIZE], np.tile(step, (SIZE, 1)), atol=2e-3)


def colored(*parts):
    """Points beside their colours, as one cloud."""
    counts = [len(points) for points, _ in parts]
    return ParticleCloud(
        positions=np.float32(np.concatenate([points for points, _ in parts])),
        features=np.float32(np.repeat([color for _, color in parts], counts, axis=0)),
        mask=np.ones(sum(counts), bool),
    )


def test_what_stands_on_another_thing_is_not_held_by_a_hand_beside_it():
    """Two or three cubes, one above the other; the hand passes the upper ones at a centimetre."""
    step, colors = np.asarray([0.0, 0.01, 0.0]), [RED, GREEN, RED]
    for levels in (2, 3):
        cubes = [cube([0.0, 0.0, 0.027 + 0.061 * level]) for level in range(levels)]
        stack = colored(*zip(cubes, colors, strict=False), (table(), WHITE))
        beside = np.asarray([0.025 + 0.01 + FINGER_M, 0.0, 0.088 + 0.0305 * (levels - 2)])
        passes = hand([beside - step, beside, beside + step], CLOSED, 0.0)
        np.testing.assert_allclose(predict(stack, passes), 0, atol=1e-6)
        # Without the lowest, what is left hangs in the hand.
        hangs = colored(*zip(cubes[1:], colors[1:], strict=False), (table(), WHITE))
        moved = predict(hangs, passes)[: SIZE * (levels - 1)]
        np.testing.assert_allclose(moved, np.tile(step, (len(moved), 1)), atol=2e-3)


def test_what_is_held_beside_a_higher_thing_does_not_rest_on_it():
    step, now = np.asarray([0.01, 0.0, 0.01]), np.asarray([0.0, 0.0, 0.125])
    robot = hand([now - step, now, now + step])
    wall = cube([-0.06, 0.0, 0.052], 0.05), cube([-0.06, 0.0, 0.104], 0.05)
    held = colored((cube(now), RED), *((part, GREEN) for part in wall), (table(), WHITE))
    moved = predict(held, robot)
    np.testing.assert_allclose(moved[:SIZE], np.tile(step, (SIZE, 1)), atol=2e-3)
    np.testing.assert_allclose(moved[SIZE:], 0, atol=1e-6)


def test_an_open_hand_lifts_nothing():
    assert not predict(*lifted(0.002, np.asarray([0.0, 0.0, 0.005]), OPEN)).any()


def test_nothing_raises_the_support_however_like_it_is():
    """A white cube on a white table, whose lower edge takes some of the table along."""
    current, robot = lifted(0.002, np.asarray([0.02, 0.0, 0.02]), CLOSES)
    white = dataclasses.replace(current, features=np.full_like(current.features, 1.0))
    moved = predict(white, robot)
    np.testing.assert_allclose(moved[:SIZE, 2], 0.02, atol=2e-3)
    assert np.abs(moved[SIZE:, 0]).max() > 0.01
    np.testing.assert_allclose(moved[SIZE:, 2], 0, atol=1e-6)


def test_what_is_let_go_falls_to_what_is_below_it():
    moved = predict(*lifted(0.10, np.asarray([0.03, 0.0, 0.0]), OPENS))
    np.testing.assert_allclose(moved[:SIZE], np.tile([0, 0, -0.10], (SIZE, 1)), atol=1e-3)
    np.testing.assert_allclose(moved[SIZE:], 0, atol=1e-6)


@pytest.mark.parametrize("opening", [0.3, 0.6, 0.66, 0.68])
def test_a_hand_that_keeps_its_opening_keeps_its_hold(opening):
    step = np.asarray([0.03, 0.0, 0.0])
    moved = predict(*lifted(0.10, step, opening))
    np.testing.assert_allclose(moved[:SIZE], np.tile(step, (SIZE, 1)), atol=1e-5)


@pytest.mark.parametrize("ways", [(0.1, 0.1, 0.65, 1.2), (0.1, 0.1, 0.63, 0.64, 0.66, 1.2)])
def test_a_hand_that_opens_over_several_steps_lets_go_once(ways):
    now = np.asarray([0.0, 0.0, 0.525])
    places = np.float32(cube(now))
    for opening in zip(ways, ways[1:], ways[2:], strict=False):
        moved = predict(cloud_of(places, table()), hand([now] * 3, opening))
        places = places + moved[:SIZE]
        now = places.mean(axis=0)  # the hand stays about it, so that all steps are of one hold
    np.testing.assert_allclose(places[:, 2].min(), 0, atol=1e-3)


def test_what_is_held_moves_as_one_thing_whatever_its_fingers_are_told():
    """A hand that a thing keeps from closing is told to close; the thing is longer than a hand."""
    step = np.asarray([0.03, 0.01, 0.02])
    now = np.asarray([0.0, 0.0, 0.125])
    rod = np.stack([np.linspace(-0.35, 0.35, 71), np.zeros(71), np.full(71, 0.1)], axis=-1)
    held = np.concatenate([cube(now, 0.05), rod])
    robot = hand([now - step, now, now + step])
    told = hand([now + step], CLOSED, 0.01)
    positions = np.concatenate([robot.positions[:2], told.positions])
    current = cloud_of(held, table(81) * 2.0)
    moved = predict(current, dataclasses.replace(robot, positions=positions))[: len(held)]
    np.testing.assert_allclose(moved, np.tile(step, (len(held), 1)), atol=1e-4)


def pushing(start_x, end_x, y=0.0, opening=CLOSED, height_m=0.03):
    """One finger that goes along x to a cube whose face is at x = 0, before the next step."""
    cloud = cloud_of(cube(np.asarray([0.025, 0.0, 0.026])), table())
    way = [[2 * start_x - end_x, y, height_m], [start_x, y, height_m], [end_x, y, height_m]]
    return cloud, hand(way, opening, apart_m=0.0)


def test_a_closed_hand_pushes_what_it_comes_to_by_what_it_would_come_into_it():
    """The finger's face ends 2 cm behind the cube's; it may be nearer than 3 mm and some."""
    cloud, robot = pushing(-0.05, 0.01)
    moved = predict(cloud, robot)
    assert 0.022 < moved[:SIZE, 0].min() <= moved[:SIZE, 0].max() < 0.027
    np.testing.assert_allclose(moved[:SIZE, 1:], 0, atol=1e-3)
    np.testing.assert_allclose(moved[SIZE:], 0, atol=1e-6)
    # An open one has it between its fingers.
    assert np.abs(predict(*pushing(-0.05, 0.01, opening=OPEN))).max() < 1e-3


@pytest.mark.parametrize(
    ("start", "end", "y"), [(-0.05, -0.02, 0.0), (-0.011, -0.03, 0.0), (-0.02, 0.03, 0.042)]
)
def test_what_the_hand_does_not_reach_leaves_or_passes_stays(start, end, y):
    """It ends a centimetre before the face; it goes back from it; it passes 7 mm beside it."""
    assert np.abs(predict(*pushing(start, end, y))).max() < 1e-4


def test_what_stays_in_touch_goes_along_wholly():
    moved = predict(*pushing(-0.012, 0.008))
    np.testing.assert_allclose(moved[:SIZE], np.tile([0.02, 0, 0], (SIZE, 1)), atol=1e-4)


def test_what_is_pushed_beside_its_middle_turns_as_sliding_says():
    """The contact at (-25, 20) mm sticks: it goes where the finger goes, and the cube turns about.

    The finger touches from y = 1 cm on, and half a centimetre before that.
    """
    cloud, robot = pushing(-0.012, -0.007, 0.02)
    moved = predict(cloud, robot)[:SIZE]
    before = cloud.positions[:SIZE]
    middle = np.asarray([0.025, 0.0])
    after = (before + moved)[:, :2].mean(axis=0)
    turned = (before + moved)[:, :2] - after
    arm = before[:, :2] - before[:, :2].mean(axis=0)
    angle = np.arctan2(
        (arm[:, 0] * turned[:, 1] - arm[:, 1] * turned[:, 0]).sum(), (arm * turned).sum()
    )
    rim = before[before[:, 2] > 0.04][:, :2] - middle
    radius2 = 1.3 * (rim**2).sum(axis=1).mean()
    # Of the particles in touch, a centimetre apart, the nearest to the middle is at 5 mm.
    x, y = -0.025, 0.005 - 0.003
    expected = -y * 0.005 / (radius2 + x**2 + y**2)
    np.testing.assert_allclose(angle, expected, rtol=0.1)
    went = after - before[:, :2].mean(axis=0)
    np.testing.assert_allclose(went, [0.005 + y * expected, -x * expected], rtol=0.1)
    # Rigid, and on the table.
    np.testing.assert_allclose(
        np.linalg.norm(turned, axis=1), np.linalg.norm(arm, axis=1), atol=1e-5
    )
    np.testing.assert_allclose(moved[:, 2], 0, atol=1e-6)


def two_cubes(gap_m, aside_m=0.0):
    """The cube that `pushing` comes to, and behind it another of another colour."""
    first, second = cube([0.025, 0.0, 0.027]), cube([0.075 + gap_m, aside_m, 0.027])
    cloud = cloud_of(np.concatenate([first, second]), table())
    features = np.array(cloud.features)
    features[SIZE : 2 * SIZE] = GREEN
    return dataclasses.replace(cloud, features=features)


def test_what_is_pushed_pushes_what_is_behind_it():
    """By what it would come nearer than .15 times how far particles are apart, 1.7 to 2 cm."""
    _, robot = pushing(-0.04, 0.0)
    for gap_m in (0.002, 0.008):
        moved = predict(two_cubes(gap_m), robot)
        first, second = moved[:SIZE].mean(0), moved[SIZE : 2 * SIZE].mean(0)
        assert first[0] > 0.01
        np.testing.assert_allclose(first[0] - second[0], max(gap_m - 0.003, 0.0), atol=1.5e-3)
        np.testing.assert_allclose(second[1:], 0, atol=1e-4)


@pytest.mark.parametrize(("gap_m", "aside_m"), [(0.03, 0.0), (0.002, 0.058)])
def test_what_is_pushed_leaves_what_it_does_not_reach_or_passes(gap_m, aside_m):
    moved = predict(two_cubes(gap_m, aside_m), pushing(-0.04, 0.0)[1])
    assert moved[:SIZE, 0].mean() > 0.01
    np.testing.assert_allclose(moved[SIZE:], 0, atol=1e-6)


def test_what_is_pushed_draws_nothing_along():
    """A finger pushes the second cube along the face of the first."""
    way = [[0.102, y, 0.03] for y in (-0.08, -0.05, -0.02)]
    moved = predict(two_cubes(0.002), hand(way, CLOSED, apart_m=0.0))
    assert moved[SIZE : 2 * SIZE, 1].mean() > 0.01
    np.testing.assert_allclose(moved[:SIZE], 0, atol=1e-6)


@pytest.mark.parametrize("opening", [CLOSED, OPEN])
def test_an_open_hand_that_touches_a_thing_does_not_keep_another_from_pushing_it(opening):
    """A closed finger pushes a cube; the other hand's touches its side, and stands still."""
    current, alone = pushing(-0.05, 0.01)
    way = alone.positions[:, :1]
    beside = np.tile(np.float32([[[0.025, 0.036, 0.03]]]), (3, 1, 1))
    axes = np.repeat(alone.axes[:, :1], 2, axis=1)
    gripper = np.float32([[CLOSED, opening]] * 3)
    both = RobotPoints(np.concatenate([way, beside], axis=1), axes, gripper)
    far = RobotPoints(np.concatenate([way, way + np.float32([0, 0, 1])], axis=1), axes, gripper)
    moved, expected = predict(current, both)[:SIZE], predict(current, far)[:SIZE]
    assert expected[:, 0].mean() > 0.01
    if opening == OPEN:
        np.testing.assert_allclose(moved, expected, atol=1e-4)
    else:  # what is held between two closed hands stays in touch with both
        assert moved[:, 0].mean() < expected[:, 0].mean()


def test_the_robot_and_padding_are_left_alone():
    current, robot = lifted(0.10, np.asarray([0.03, 0.0, 0.0]))
    things = np.arange(len(current.mask)) >= SIZE
    assert not predict(current, robot, things=things)[:SIZE].any()
    masked = dataclasses.replace(current, mask=things)
    assert not predict(masked, robot)[:SIZE].any()


def test_how_much_padding_there_is_makes_no_difference():
    """A closed finger passes a cube at 2.5 cm, of which much padding made a push."""
    current, robot = pushing(-0.05, -0.03, 0.0)
    far = dataclasses.replace(current, positions=current.positions + np.float32([0.6, 0, 0]))
    robot = dataclasses.replace(robot, positions=robot.positions + np.float32([0.6, 0, 0]))
    count = len(far.mask)
    padded = ParticleCloud(
        positions=np.pad(far.positions, ((0, 2 * count), (0, 0))),
        features=np.pad(far.features, ((0, 2 * count), (0, 0))),
        mask=np.pad(far.mask, (0, 2 * count)),
    )
    np.testing.assert_array_equal(predict(padded, robot)[:count], predict(far, robot))


@pytest.mark.parametrize("up", ["x", "y", "-z"])
def test_no_axis_is_special(up):
    """The same scene with another axis up, or upside down, moves as the first one does."""
    scene = pushing(-0.012, -0.007, 0.02)
    order = TURNS[up[-1]]
    sign = np.float32([1, -1, -1] if up[0] == "-" else [1, 1, 1])

    def turn(x):
        return dataclasses.replace(x, positions=(x.positions * sign)[..., np.argsort(order)])

    turned = predict(*map(turn, scene), up=up)
    np.testing.assert_allclose(turned, (predict(*scene) * sign)[:, np.argsort(order)], atol=1e-5)


def test_where_gravity_is_not_known_what_is_in_touch_goes_along_and_nothing_falls():
    step = np.asarray([0.03, 0.0, 0.0])
    moved = predict(*lifted(0.10, step), up="none")
    np.testing.assert_allclose(moved[:SIZE], np.tile(step, (SIZE, 1)), atol=2e-3)
    np.testing.assert_allclose(moved[SIZE:], 0, atol=1e-6)
    assert np.abs(predict(*lifted(0.10, step, OPEN), up="none")).max() < 2e-3


@pytest.mark.parametrize("up", ["z", "none"])
def test_gradients_are_finite_where_nothing_is_known(up):
    """No particles but padding; all particles at one place; a robot that stands still."""
    cloud = scenes.random_cloud(0, 6, 3)
    robot = hand([[0.0, 0.0, 0.1]] * 3)
    for there in (
        cloud,
        dataclasses.replace(cloud, positions=np.zeros_like(cloud.positions)),
        dataclasses.replace(cloud, mask=np.zeros_like(cloud.mask)),
    ):

        def total(positions, there=there):
            moved = dataclasses.replace(there, positions=positions)
            return displaced(moved, robot, np.ones(6, bool), up).sum()

        value, gradient = jax.jit(jax.value_and_grad(total))(there.positions)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
