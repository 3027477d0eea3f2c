"""Recursive prediction: scan equals loop, plans are read anew, remat and kernels change nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes

from hdvpd.basics.layers import Keys
from hdvpd.dynamics.base import Change, advance
from hdvpd.dynamics.rollout import rollout

STEPS = 4


def key():
    return jax.random.key(0)


CONFIG = scenes.tiny_config(model={"num_particles": 12}).model


@functools.cache
def make(**fields):
    config = dataclasses.replace(CONFIG, **fields)
    build = lambda: config.dynamics.make(config, scenes.SCENE, rngs=Keys(0))  # noqa: E731
    return scenes.random_params(build)


def inputs(seed=0):
    previous = scenes.random_cloud(seed, 12, 6, 10)
    return (
        previous,
        scenes.random_cloud(seed + 1, 12, 6, 10),
        scenes.random_robot(seed + 2, STEPS + 2),
    )


def test_step_s_sees_the_robot_at_s_minus_two_to_s_and_the_last_two_clouds():
    def spy(previous, current, robot, key):
        del key
        # Displacements record what the step was given.
        seen = jnp.stack([robot.gripper[0, 0], robot.gripper[1, 0], robot.gripper[2, 0]])
        return Change(
            displacement=jnp.broadcast_to(seen[None], current.positions.shape),
            features=current.positions - previous.positions,
        )

    previous, current, robot = inputs()
    previous, current = (
        dataclasses.replace(x, features=x.features[:, :3]) for x in (previous, current)
    )
    robot = dataclasses.replace(
        robot, gripper=np.tile(np.arange(STEPS + 2, dtype=np.float32)[:, None], (1, 5))
    )
    clouds = rollout(spy, previous, current, robot, key())
    positions = [np.asarray(previous.positions), np.asarray(current.positions)]
    features = np.asarray(current.features)
    for s in range(STEPS):
        features = features + positions[-1] - positions[-2]
        positions.append(positions[-1] + np.array([[s, s + 1, s + 2]], np.float32))
        np.testing.assert_allclose(clouds.positions[s], positions[-1], rtol=1e-6)
        np.testing.assert_allclose(clouds.features[s], features, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(clouds.mask[s], current.mask)


@pytest.fixture(scope="module")
def rolled():
    """Definition, parameters and jitted rollout of a trained-looking Interlacer."""
    graphdef, params = make()
    run = jax.jit(
        lambda previous, current, robot: rollout(
            scenes.apply(graphdef, params), previous, current, robot, key()
        )
    )
    return graphdef, params, run


def test_scan_equals_a_loop(rolled):
    graphdef, params, run = rolled
    previous, current, robot = inputs()
    clouds = run(previous, current, robot)
    step = jax.jit(lambda *x: advance(x[1], scenes.apply(graphdef, params)(*x, key())))
    for s in range(STEPS):
        window = jax.tree.map(lambda x, s=s: x[s : s + 3], robot)
        previous, current = current, step(previous, current, window)
        for field in ("positions", "features", "mask"):
            np.testing.assert_allclose(
                getattr(clouds, field)[s], getattr(current, field), atol=2e-5, rtol=1e-5
            )


def test_an_action_changes_its_own_step_and_later_ones_only(rolled):
    _, _, run = rolled
    previous, current, robot = inputs()
    clouds = run(previous, current, robot)
    other = dataclasses.replace(robot, positions=robot.positions.copy())
    other.positions[4] += 0.1  # planned step 2
    changed = run(previous, current, other)
    for s in range(STEPS):
        same = np.array_equal(clouds.positions[s], changed.positions[s])
        assert same == (s < 2)


def test_untrained_model_repeats_the_last_cloud_bit_for_bit():
    graphdef, params = make()
    params = scenes.with_last_layer(params)
    _, current, _ = inputs()
    clouds = jax.jit(lambda *x: rollout(scenes.apply(graphdef, params), *x, key()))(*inputs())
    for s in range(STEPS):
        np.testing.assert_array_equal(clouds.positions[s], current.positions)
        np.testing.assert_array_equal(clouds.features[s], current.features)


@functools.cache
def loss_and_gradients(kernels, remat, unroll=False):
    """Return value and gradients of two squared rollouts to parameters and clouds."""
    graphdef, params = make(kernels=kernels, knn="kdtree" if kernels == "host" else "xla")

    def one(params, previous, current, robot):
        dynamics = scenes.apply(graphdef, params)
        clouds = rollout(dynamics, previous, current, robot, key(), remat=remat, unroll=unroll)
        return (clouds.positions**2).sum() + (clouds.features**2).mean()

    def total(moving, fixed):
        params, positions, features = moving
        previous, current, robot = fixed
        current = dataclasses.replace(current, positions=positions, features=features)
        return jax.vmap(one, in_axes=(None, 0, 0, 0))(params, previous, current, robot).sum()

    fixed = jax.tree.map(lambda *x: np.stack(x), inputs(), inputs(seed=7))
    moving = (params, fixed[1].positions, fixed[1].features)
    return jax.jit(jax.value_and_grad(total))(moving, fixed)


def assert_agree(results, others):
    np.testing.assert_allclose(results[0], others[0], rtol=1e-5)
    for one, other in zip(jax.tree.leaves(results[1]), jax.tree.leaves(others[1]), strict=True):
        np.testing.assert_allclose(
            one, other, rtol=2e-3, atol=1e-4 * max(np.abs(other).max(), 1e-3)
        )


def test_rematerialisation_changes_neither_value_nor_gradient():
    assert_agree(loss_and_gradients("host", True), loss_and_gradients("host", False))


def test_unrolling_changes_neither_value_nor_gradient():
    assert_agree(loss_and_gradients("host", False, True), loss_and_gradients("host", False))


def test_host_and_xla_agree_through_a_rematerialised_batched_rollout():
    assert_agree(loss_and_gradients("host", True), loss_and_gradients("xla", True))
