"""The Interlacer's options against a dense numpy version, and its tokens.

What it shares with the other members is in test_members.py.
"""

import functools

import jax
import numpy as np
import pytest
import references
import scenes

from hdvpd.basics.layers import Keys
from hdvpd.dynamics.tokens import fourier_features

# With the optional carrying, so that symmetries and limits hold for it as well.
CONFIG = scenes.tiny_config(
    model={"num_particles": 20, "kernels": "xla", "knn": "kdtree", "carry": True}
).model
CENTER = np.array(scenes.SCENE.center)


@functools.cache
def make(changes=""):
    """Return definition and trained-looking parameters of an Interlacer."""
    config = scenes.changed(CONFIG, changes)
    return scenes.random_params(lambda: config.dynamics.make(config, scenes.SCENE, rngs=Keys(0)))


@functools.cache
def jitted(changes=""):
    """Return the jitted call (params, previous, current, robot) and trained-looking parameters."""
    graphdef, params = make(changes)
    return jax.jit(
        lambda params, *inputs: scenes.apply(graphdef, params)(*inputs, jax.random.key(0))
    ), params


def inputs(num_real=16, seed=0):
    previous = scenes.random_cloud(seed, 20, 6, num_real)
    current = scenes.random_cloud(seed + 1, 20, 6, num_real)
    return previous, current, scenes.random_robot(seed + 2, 3)


def assert_close(change, other, atol=1e-5):
    np.testing.assert_allclose(change.displacement, other.displacement, atol=atol)
    np.testing.assert_allclose(change.features, other.features, atol=10 * atol)


@pytest.mark.parametrize(
    "changes",
    [
        "dynamics.num_layers = 2",
        'kernels = "host"\nposition_frequencies = 2',
        'knn = "xla"\nposition_embedding = false\ncarry = false',
        'dynamics.local = "none"',
        'dynamics = {local = "none", attention.mask = "diffusion"}',
        'dynamics = {local.mask = "rwgnk", attention.mask = "rwgnk"}\nkernels = "host"',
        'dynamics = {local.mask = "rwgnk", attention = {mask = "rwgnk", num_neighbors = 5}}',
        'dynamics = {local = "none", attention.mask = "grf"}',
        'dynamics.local.num_heads = 4\nkernels = "host"',
    ],
)
def test_equals_the_dense_numpy_interlacer(changes):
    run, params = jitted(changes)
    change = run(params, *inputs())
    config = scenes.changed(CONFIG, changes)
    expected = references.interlacer(params, config, CENTER, *inputs())
    assert np.abs(expected[0]).max() > 0.01
    np.testing.assert_allclose(change.displacement, expected[0], atol=3e-5)
    np.testing.assert_allclose(change.features, expected[1], atol=1e-4)


def test_kinematic_points_are_known_by_identity_and_not_by_order():
    run, params = jitted()
    previous, current, robot = inputs()
    order = np.array([3, 0, 4, 1, 2])
    moved = jax.tree.map(lambda x: x[:, order], robot)
    change = run(params, previous, current, robot)
    embedding = np.asarray(params["tokens"]["point_embedding"])[order]
    with_identity = {**params, "tokens": {**params["tokens"], "point_embedding": embedding}}
    assert_close(run(with_identity, previous, current, moved), change)
    without = run(params, previous, current, moved)
    assert np.abs(without.displacement - change.displacement).max() > 1e-4


def test_walks_hold_no_padding_and_no_token_neighbours_itself():
    graphdef, params = make("dynamics.local.mask.num_hops = 1")
    config = scenes.changed(CONFIG, "dynamics.local.mask.num_hops = 1")
    previous, current, robot = inputs(num_real=13)
    # Coincident particles must not hide behind each other either.
    current.positions[:8] = 0.1

    def build(*clouds):
        module = scenes.apply(graphdef, params)
        _, positions, mask = module.tokens(*clouds)
        plan = config.dynamics.local.plan(config, positions, mask, jax.random.key(0))
        return plan.nodes, mask

    nodes, mask = map(np.asarray, jax.jit(build)(previous, current, robot))
    own = np.arange(len(mask))[:, None]
    assert mask[nodes[mask]].all()
    np.testing.assert_array_equal(nodes[:, :1], own)
    assert (nodes[mask][:, 1:] != own[mask]).all()
    # Padding walks nowhere.
    np.testing.assert_array_equal(nodes[~mask], np.broadcast_to(own[~mask], nodes[~mask].shape))


def test_kinematic_features_show_displacement_exactly_where_the_robot_moves():
    graphdef, params = make()
    robot = scenes.random_robot(0, 3)
    # Point 1 is at t - 2 where it will be at t, point 3 at t - 1.
    positions = robot.positions
    positions[0, 1], positions[1, 3] = positions[2, 1], positions[2, 3]
    features = np.asarray(scenes.apply(graphdef, params).tokens._point_features(robot))
    features = features.reshape(3, scenes.SCENE.num_robot_points, -1)
    shift = positions[2:] - positions
    # In units of 5 cm, the order of the robot's motion per step.
    np.testing.assert_allclose(features[..., -3:], shift / 0.05, rtol=1e-5)
    still = np.zeros((3, scenes.SCENE.num_robot_points), bool)
    still[0, 1] = still[1, 3] = True
    still[2] = True
    np.testing.assert_array_equal((features[..., -3:] == 0).all(-1), still)
    np.testing.assert_array_equal(features[..., -4], robot.gripper)
    # Identity: the same at every time, different for every point.
    np.testing.assert_array_equal(features[0, :, :-4], features[2, :, :-4])
    assert len(np.unique(features[0, :, :-4], axis=0)) == scenes.SCENE.num_robot_points


@pytest.mark.parametrize("num_frequencies", [0, 1, 4])
def test_waves_and_their_derivatives_both_ways_equal_formulas(num_frequencies):
    rng = np.random.default_rng(0)
    x, x_dot = rng.uniform(-1, 1, (2, 50, 3)).astype(np.float32)
    rates = np.pi * 2.0 ** np.arange(num_frequencies)
    angles = rates[None, :, None] * x[:, None].astype(np.float64)
    along = rates[None, :, None] * x_dot[:, None]
    waves = [np.sin(angles).reshape(50, -1), np.cos(angles).reshape(50, -1)]
    expected = np.concatenate([x, *waves], axis=1)
    slopes = [(np.cos(angles) * along).reshape(50, -1), (-np.sin(angles) * along).reshape(50, -1)]
    expected_dot = np.concatenate([x_dot, *slopes], axis=1)

    def features(x):
        return fourier_features(x, num_frequencies)

    found, found_dot = jax.jvp(features, (x,), (x_dot,))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_allclose(found_dot, expected_dot, atol=1e-4)
    bar = rng.normal(size=found.shape).astype(np.float32)
    (x_bar,) = jax.vjp(features, x)[1](bar)
    np.testing.assert_allclose((x_bar * x_dot).sum(), (bar * expected_dot).sum(), rtol=1e-4)
