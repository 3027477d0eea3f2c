"""Where the skeleton takes what is on it: closed forms, a float64 oracle, edges."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from scipy.spatial.transform import Rotation

from hdvpd.dynamics.carrying import FAR_M, carried_motion, held_along, taken_along
from hdvpd.kernels import dense

TURN = Rotation.from_rotvec([0.2, -0.3, 0.25])
SHIFT = np.array([0.05, 0.02, -0.03])
carry = jax.jit(carried_motion, static_argnums=2)
take = jax.jit(taken_along, static_argnums=(2, 3))
hold = jax.jit(held_along, static_argnums=(2, 3))


def moved(points):
    return TURN.apply(points) + SHIFT


def test_particles_are_carried_by_the_link_at_their_place():
    robot = scenes.random_robot(0, 3)
    cloud = scenes.random_cloud(1, 12, 6)
    # One particle on a point, one far from all.
    positions = cloud.positions
    positions[0], positions[1] = robot.positions[1, 0], 50.0
    carried = np.asarray(carry(cloud, robot, 1))
    motion, reach = references.carried_motion(np.float64(positions), robot, 1, 2)
    np.testing.assert_allclose(carried[:, :3], reach[:, None] * motion, atol=1e-5)
    np.testing.assert_allclose(carried[:, 3] / 0.05, reach, atol=1e-6)
    assert np.abs(carried[:, :3]).max() > 0.01
    assert carried[0, 3] == pytest.approx(0.05)
    np.testing.assert_array_equal(carried[1], 0.0)
    # What lies on a point goes where the point goes, however its link turns.
    step = robot.positions[2, 0] - robot.positions[1, 0]
    np.testing.assert_allclose(carried[0, :3], step, atol=1e-6)


def test_what_is_on_the_robot_is_taken_along_as_far_as_the_skeleton_goes():
    robot, cloud = scenes.random_robot(0, 3), scenes.random_cloud(1, 40, 6)
    places = np.float64(cloud.positions)
    for slice_, until in ((0, 2), (0, 1), (1, 2), (1, 0)):
        start = np.float64(robot.positions[slice_])
        away = np.linalg.norm(places[:, None] - start[None], axis=-1).min(axis=1)
        taken = take(cloud, robot, slice_, until)
        motion, _ = references.carried_motion(places, robot, slice_, until)
        near = away < FAR_M
        np.testing.assert_allclose(taken[near], motion[near], atol=1e-5)
        np.testing.assert_array_equal(taken[~near], 0.0)
        assert near.sum() > 5
        assert (~near).any()


def test_each_of_two_links_takes_its_surface_along():
    """A hinge: two links of three points, the second turns by 40 degrees about their common end."""
    arm = np.linspace([0.0, 0.0, 0.0], [0.5, 0.0, 0.0], 6)
    hinge, swing = np.array([0.25, 0.0, 0.0]), Rotation.from_rotvec([0.0, 0.0, 0.7])
    swung = arm.copy()
    swung[3:] = swing.apply(arm[3:] - hinge) + hinge
    robot = scenes.unturned([arm, arm, swung])
    robot.axes[2, 3:] = swing.as_matrix()
    # Skins of a radius of 4 cm.
    angle = np.linspace(0.0, 2 * np.pi, 9)[:-1]
    ring = 0.04 * np.stack([np.zeros(8), np.cos(angle), np.sin(angle)], axis=-1)
    skin = (arm[:, None] + ring[None]).reshape(-1, 3)
    expected = skin.copy()
    expected[24:] = swing.apply(skin[24:] - hinge) + hinge
    cloud = dataclasses.replace(scenes.random_cloud(0, 48, 2), positions=np.float32(skin))
    np.testing.assert_allclose(skin + take(cloud, robot, 1, 2), expected, atol=1e-6)


def test_what_is_held_goes_with_all_links_nearby():
    robot, cloud = scenes.random_robot(3, 3), scenes.random_cloud(4, 40, 6)
    places = np.float64(cloud.positions)
    for slice_, until in ((0, 1), (1, 2), (1, 0)):
        start = np.float64(robot.positions[slice_])
        away = np.linalg.norm(places[:, None] - start[None], axis=-1).min(axis=1)
        held, near = hold(cloud, robot, slice_, until), away < FAR_M
        expected = references.held_motion(places, robot, slice_, until)
        np.testing.assert_allclose(held[near], expected[near], atol=1e-5)
        np.testing.assert_array_equal(held[~near], 0.0)
        assert 5 < near.sum() < 40


def test_fingers_that_are_told_to_close_take_no_half_of_what_they_hold():
    """Fingers 3 cm to either side close by 2 cm each, while the hand turns what it holds."""
    fingers = np.array([[0.0, -0.03, 0.0], [0.0, 0.03, 0.0]])
    closed = fingers * [1.0, 1 / 3, 1.0]
    robot = scenes.unturned([fingers, fingers, moved(closed)])
    robot.axes[2] = TURN.as_matrix()
    line = np.linspace(-0.02, 0.02, 5)[:, None] * [[0.0, 1.0, 0.0]]
    cloud = dataclasses.replace(scenes.random_cloud(0, 5, 2), positions=np.float32(line))
    torn = np.abs(line + take(cloud, robot, 1, 2) - moved(line)).max(axis=1)
    whole = np.linalg.norm(line + hold(cloud, robot, 1, 2) - moved(line), axis=1)
    assert torn[0] > 0.015
    assert whole[2] < 1e-6
    assert whole.max() < 0.01


def test_does_not_depend_on_place_and_turn():
    robot, cloud = scenes.random_robot(1, 3), scenes.random_cloud(2, 9, 2)
    elsewhere = dataclasses.replace(
        robot,
        positions=np.float32(moved(robot.positions.reshape(-1, 3)).reshape(robot.positions.shape)),
        axes=np.float32(TURN.as_matrix() @ robot.axes),
    )
    there = dataclasses.replace(cloud, positions=np.float32(moved(cloud.positions)))
    for along in (take, hold):
        expected = TURN.apply(along(cloud, robot, 1, 2))
        np.testing.assert_allclose(along(there, elsewhere, 1, 2), expected, atol=1e-5)


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3])
def test_values_and_gradients_are_finite_where_points_coincide(spread):
    rng = np.random.default_rng(2)
    start = np.float32(spread * rng.normal(size=(4, 3)) + 0.3)
    cloud = dataclasses.replace(
        scenes.random_cloud(0, 3, 2),
        positions=np.float32([[0.3, 0.3, 0.3], [0.31, 0.3, 0.3], [9.0, 0.0, 0.0]]),
    )
    robot = scenes.unturned([start, start, start + np.float32(SHIFT)])

    def total(positions, robot):
        there = dataclasses.replace(cloud, positions=positions)
        carried = carried_motion(there, robot, 1)
        return jnp.sum(carried[:, :3] ** 2) + jnp.sum(held_along(there, robot, 1, 2) ** 2)

    value, grads = jax.jit(jax.value_and_grad(total, (0, 1)))(cloud.positions, robot)
    # Two of three are on the robot, twice.
    assert float(value) == pytest.approx(4 * float(np.sum(SHIFT**2)), rel=1e-3)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(grads))
    # What is planned is found by these gradients.
    assert np.abs(grads[1].positions[2]).max() > 0.0
    assert np.abs(grads[1].axes[2]).max() > 0.0


@pytest.mark.parametrize("able", [None, [1.0, 0.2, 0.0, 0.6]])
def test_host_code_and_plain_jax_hold_alike(able, monkeypatch):
    """Values, and gradients of the robot: by these plans are found."""
    monkeypatch.setattr(dense, "LEAST_ROWS", 1)
    robot, cloud = scenes.random_robot(1, 4), scenes.random_cloud(2, 100, 2)
    bar = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    able = None if able is None else jnp.resize(jnp.asarray(able), robot.positions.shape[1])

    def both(kernels):
        def held(robot, able):
            return held_along(cloud, robot, 1, 2, None, able, kernels)

        value, back = jax.vjp(held, robot, able)
        return jax.tree.leaves((value, back(bar)))

    for ours, theirs in zip(both("host"), both("xla"), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5 * max(1.0, np.abs(theirs).max()))
