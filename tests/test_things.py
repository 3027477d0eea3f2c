"""What is not the robot is pushed, held and let go, before anything is learned."""

import dataclasses

import jax
import numpy as np
import pytest
import scenes

from hdvpd.basics.types import ParticleCloud
from hdvpd.dynamics.carrying import held_along
from hdvpd.dynamics.things import moved_things
from hdvpd.dynamics.touching import surroundings, went_along

RED, WHITE = [3.0, -3.0, -3.0], [1.0, 1.0, 1.0]
OPEN, CLOSED = 1.2, 0.1
TURNS = {"z": (0, 1, 2), "x": (1, 2, 0), "y": (2, 0, 1)}


def displaced(previous, current, robot, things, up):
    around = surroundings(current, colors=True)
    back_m = held_along(current, robot, 1, 0)
    evidence = went_along(current, previous, back_m, around, colors=True)
    moved = moved_things(current, robot, things, around, evidence, up=up, colors=True)
    return moved.displacement


def predict(previous, current, robot, up="z", things=None):
    things = np.ones(len(current.mask), bool) if things is None else things
    return np.asarray(jax.jit(displaced, static_argnums=4)(previous, current, robot, things, up))


def cloud_of(block, table):
    positions = np.concatenate([block, table])
    return ParticleCloud(
        positions=np.float32(positions),
        features=np.float32(np.repeat([RED, WHITE], [len(block), len(table)], axis=0)),
        mask=np.ones(len(positions), bool),
    )


def cube(middle, size_m=0.05, ticks=5):
    """Points of the surface of a cube."""
    line = np.linspace(-size_m / 2, size_m / 2, ticks)
    grid = np.stack(np.meshgrid(line, line, line, indexing="ij"), axis=-1).reshape(-1, 3)
    return grid[np.abs(grid).max(1) > size_m / 2 - 1e-6] + middle


def table(ticks=16):
    """A square of 30 cm at height 0."""
    line = np.linspace(-0.15, 0.15, ticks)
    x, y = np.meshgrid(line, line, indexing="ij")
    return np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=-1)


def hand(way, opening=CLOSED):
    """Two fingers, 3 cm to either side of where the hand is at t - 2, t - 1 and t."""
    beside = np.asarray([[0.0, -0.03, 0.0], [0.0, 0.03, 0.0]])
    return scenes.unturned(np.asarray(way)[:, None] + beside, opening)


def lifted(height_m, step, opening=CLOSED, next_step=None):
    """A cube that went along with the hand about it, its lower face so high above the table."""
    now = np.asarray([0.0, 0.0, height_m + 0.025])
    next_step = step if next_step is None else next_step
    before, current = (cloud_of(cube(now - back), table()) for back in (step, np.zeros(3)))
    return before, current, hand([now - step, now, now + next_step], opening)


def test_what_is_held_goes_along_while_the_hand_is_closed():
    step = np.asarray([0.03, 0.0, 0.01])
    moved = predict(*lifted(0.10, step))
    np.testing.assert_allclose(moved[:98], np.tile(step, (98, 1)), atol=2e-3)
    np.testing.assert_allclose(moved[98:], 0, atol=1e-6)


def test_what_is_let_go_falls_to_what_is_below_it():
    """From 10 cm, to within the centimetre at which particles say that it rests."""
    step = np.asarray([0.03, 0.0, 0.0])
    moved = predict(*lifted(0.10, step, OPEN))
    np.testing.assert_allclose(moved[:98], np.tile([0, 0, -0.09], (98, 1)), atol=1e-3)
    np.testing.assert_allclose(moved[98:], 0, atol=1e-6)


def test_what_was_pushed_along_the_table_stays_when_the_hand_goes_up():
    """It went along and is touched no longer; on its support nothing holds it."""
    step, up = np.asarray([0.03, 0.0, 0.0]), np.asarray([-0.02, 0.0, 0.10])
    before, current, robot = lifted(0.0, step, next_step=up)
    away = robot.positions - np.float32([[[0.07, 0, 0]]])
    moved = predict(before, current, dataclasses.replace(robot, positions=away))
    assert np.abs(moved).max() < 2e-3


def test_a_closed_hand_pushes_what_it_comes_to_and_nothing_else():
    block = cube(np.asarray([0.05, 0.0, 0.026]))
    other = cube(np.asarray([0.05, 0.12, 0.026]))
    cloud = cloud_of(np.concatenate([block, other]), table())
    way = [[-0.06, 0, 0.05], [-0.03, 0, 0.05], [0.02, 0, 0.05]]
    moved = predict(cloud, cloud, hand(way))
    assert moved[:98, 0].min() > 0.02
    np.testing.assert_allclose(moved[:98, 1:], 0, atol=2e-3)
    assert np.abs(moved[98:]).max() < 2e-3
    # An open one has it between its fingers.
    assert np.abs(predict(cloud, cloud, hand(way, OPEN))).max() < 1e-3


def test_the_robot_and_padding_are_left_alone():
    before, current, robot = lifted(0.10, np.asarray([0.03, 0.0, 0.0]))
    things = np.arange(len(current.mask)) >= 98
    assert not predict(before, current, robot, things=things)[:98].any()
    masked = dataclasses.replace(current, mask=things)
    assert not predict(before, masked, robot)[:98].any()


@pytest.mark.parametrize("up", ["x", "y", "-z"])
def test_no_axis_is_special(up):
    """The same scene with another axis up, or upside down, moves as the first one does."""
    scene = lifted(0.10, np.asarray([0.03, 0.0, 0.0]), OPEN)
    order = TURNS[up[-1]]
    sign = np.float32([1, 1, -1] if up[0] == "-" else [1, 1, 1])

    def turn(x):
        return dataclasses.replace(x, positions=(x.positions * sign)[..., np.argsort(order)])

    turned = predict(*map(turn, scene), up=up)
    np.testing.assert_allclose(turned, (predict(*scene) * sign)[:, np.argsort(order)], atol=1e-5)


def test_where_gravity_is_not_known_what_went_along_goes_on_as_long_as_the_hand_does():
    step = np.asarray([0.03, 0.0, 0.0])
    moved = predict(*lifted(0.0, step), up="none")
    np.testing.assert_allclose(moved[:98], np.tile(step, (98, 1)), atol=2e-3)
    # Turned by a right angle, and too high to touch it.
    before, current, robot = lifted(0.0, step, next_step=np.asarray([0.0, 0.0, 0.15]))
    assert np.abs(predict(before, current, robot, up="none")).max() < 2e-3
    # Nothing falls.
    scene = lifted(0.10, step, OPEN)
    assert np.abs(predict(*scene, up="none")).max() < 2e-3


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
            return displaced(there, moved, robot, np.ones(6, bool), up).sum()

        value, gradient = jax.jit(jax.value_and_grad(total))(there.positions)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()
