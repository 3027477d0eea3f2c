"""The skeleton's motion at a particle's place: closed forms, a float64 oracle, edges."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from scipy.spatial.transform import Rotation

from hdvpd.dynamics.carrying import (
    FAR_M,
    carried_motion,
    motions_nearby,
    rigid_motions,
    taken_along,
)

TURN = Rotation.from_rotvec([0.2, -0.3, 0.25])
SHIFT = np.array([0.05, 0.02, -0.03])
carry = jax.jit(carried_motion, static_argnums=2)
fit = jax.jit(lambda *x: rigid_motions(*x)[0])


def moved(points):
    return TURN.apply(points) + SHIFT


def test_particles_are_carried_by_the_points_at_their_place():
    robot = scenes.random_robot(0, 3)
    start, end = (np.float64(robot.positions[time]) for time in (1, 2))
    cloud = scenes.random_cloud(1, 12, 6)
    # One particle on a point, one far from all.
    positions = cloud.positions
    positions[0], positions[1] = robot.positions[1, 0], 50.0
    carried = np.asarray(carry(cloud, robot, 1))
    motion, reach = references.carried_motion(np.float64(positions), start, end)
    np.testing.assert_allclose(carried[:, :3], motion, atol=1e-4)
    np.testing.assert_allclose(carried[:, 3] / 0.05, reach, atol=1e-6)
    assert np.abs(motion).max() > 0.01
    assert carried[0, 3] == pytest.approx(0.05)
    np.testing.assert_array_equal(carried[1], 0.0)
    # A robot that is pushed along as a whole carries what lies on it by as much.
    robot.positions[2] = robot.positions[1] + np.float32(0.1)
    np.testing.assert_allclose(carry(cloud, robot, 1)[0, :3], 0.1, rtol=1e-5)


def test_what_is_on_the_robot_is_taken_along_as_far_as_the_skeleton_goes():
    robot, cloud = scenes.random_robot(0, 3), scenes.random_cloud(1, 40, 6)
    places = np.float64(cloud.positions)
    for slice_ in (0, 1):
        start = np.float64(robot.positions[slice_])
        away = np.linalg.norm(places[:, None] - start[None], axis=-1).min(axis=1)
        taken = jax.jit(taken_along, static_argnums=2)(cloud, robot, slice_)
        for until, found in zip((2, 1 - slice_), taken, strict=True):
            end = np.float64(robot.positions[until])
            motion, reach = references.carried_motion(places, start, end)
            # Far away the fading motion is the difference of nearly equal numbers.
            near = away < 0.15
            whole = motion[near] / reach[near, None]
            np.testing.assert_allclose(found[near], whole, atol=2e-4)
            assert np.abs(found[(away > 0.15) & (away < FAR_M)]).min() > 0.0
            np.testing.assert_array_equal(found[away > FAR_M], 0.0)
        assert near.sum() > 5
        assert (away > FAR_M).any()


def test_a_body_that_turns_takes_its_surface_along():
    rng = np.random.default_rng(0)
    points, surface = rng.normal(0.3, 0.08, (12, 3)), rng.normal(0.3, 0.08, (20, 3))
    (motion,) = jax.jit(motions_nearby)(*map(np.float32, (surface, points, moved(points))))
    went = surface + np.asarray(motion.displacement(np.float32(surface)))
    # The fit holds back turns that it hardly sees: of 3 mm against some 7 cm here.
    np.testing.assert_allclose(went, moved(surface), atol=2e-3)


def test_points_on_a_line_tell_its_turn_but_none_about_it():
    along = np.linspace(0.0, 0.3, 7)[:, None] * np.array([[0.0, 0.6, 0.8]])
    weights = np.full((1, 7), 1 / 7, np.float32)
    swing = Rotation.from_rotvec([0.4, 0.0, 0.0])
    swung = fit(weights, *map(np.float32, (along, swing.apply(along))))
    np.testing.assert_allclose(swung.turn[0], [np.tan(0.2), 0.0, 0.0], atol=1e-3)
    # What lies 6 cm off the line goes with it; the mean of the points' motions would miss 2 cm.
    beside = np.array([[0.0, 0.16 - 0.8 * 0.06, 0.12 + 0.6 * 0.06]], np.float32)
    went = beside + np.asarray(swung.displacement(beside))
    np.testing.assert_allclose(went, swing.apply(beside), atol=1e-3)
    twist = Rotation.from_rotvec(0.5 * np.array([0.0, 0.6, 0.8]))
    np.testing.assert_allclose(
        fit(weights, *map(np.float32, (along, twist.apply(along)))).turn, 0.0, atol=1e-3
    )


def test_does_not_depend_on_place_and_turn():
    rng = np.random.default_rng(1)
    start, end = rng.normal(0, 0.1, (8, 3)), rng.normal(0, 0.1, (8, 3))
    places = rng.normal(0, 0.1, (5, 3))

    def displacement(places, start, end):
        places, start, end = map(np.float32, (places, start, end))
        return np.asarray(motions_nearby(places, start, end)[0].displacement(places))

    expected = TURN.apply(displacement(places, start, end))
    np.testing.assert_allclose(displacement(*map(moved, (places, start, end))), expected, atol=1e-4)


@pytest.mark.parametrize("spread", [0.0, 1e-6, 1e-3])
def test_values_and_gradients_are_finite_where_points_coincide(spread):
    rng = np.random.default_rng(2)
    start = np.float32(spread * rng.normal(size=(4, 3)) + 0.3)
    places = np.float32([[0.3, 0.3, 0.3], [0.31, 0.3, 0.3], [9.0, 0.0, 0.0]])

    def total(places, start, end):
        return jnp.sum(motions_nearby(places, start, end)[0].displacement(places) ** 2)

    end = start + np.float32(SHIFT)
    value, grads = jax.jit(jax.value_and_grad(total, (0, 1, 2)))(places, start, end)
    assert float(value) == pytest.approx(3 * float(np.sum(SHIFT**2)), rel=1e-3)
    assert all(np.isfinite(x).all() for x in grads)
    # What is planned is found by this gradient.
    assert np.abs(grads[2]).max() > 0.0
