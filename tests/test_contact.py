"""What particles know of touching: explanations of the last step, edges to kinematic points."""

import dataclasses
import functools

import jax
import numpy as np
import scenes
from flax import nnx

from hdvpd.dynamics.contact import PointEdges, explanations
from hdvpd.dynamics.tokens import ReadOut
from hdvpd.types import ParticleCloud

told = jax.jit(explanations)


def cloud_of(positions, features):
    return ParticleCloud(
        positions=np.asarray(positions, np.float32),
        features=np.asarray(features, np.float32),
        mask=np.ones(len(positions), bool),
    )


def test_standing_still_and_going_along_explain_what_they_should():
    """Of three particles in reach of a robot that moved 4 cm, one stood, one went along."""
    features = np.arange(9.0).reshape(3, 3)
    before = cloud_of([[0.0, 0, 0], [0.3, 0, 0], [0.6, 0, 0]], features)
    now = cloud_of([[0.0, 0, 0], [0.34, 0, 0], [0.6, 0.02, 0]], features)
    back = np.asarray([[-0.04, 0, 0]] * 3, np.float32)
    seen = np.asarray(told(now, before, back))
    stood, went = seen[:, :4], seen[:, 4:8]
    np.testing.assert_allclose(stood[:, 0], [0, 0.8, 0.4], atol=1e-5)
    np.testing.assert_allclose(went[:, 0], [0.8, 0, np.hypot(2, 4) / 5], atol=1e-5)
    np.testing.assert_allclose(stood[:, 1:], 0, atol=1e-6)
    np.testing.assert_allclose(seen[:, 8:], back / 0.05, rtol=1e-6)


def test_other_features_at_the_same_place_do_not_explain():
    before, now = cloud_of([[0.0, 0, 0]], [[1.0, 0.5]]), cloud_of([[0.0, 0, 0]], [[1.5, 0.5]])
    seen = np.asarray(told(now, before, np.zeros((1, 3), np.float32)))
    np.testing.assert_allclose(seen[0, :3], [0, np.tanh(0.5), 0], atol=1e-6)


def test_explanations_are_finite_without_anything_to_compare_with():
    cloud = scenes.random_cloud(0, 5, 3, 0)
    seen = np.asarray(told(cloud, cloud, np.zeros((5, 3), np.float32)))
    np.testing.assert_allclose(seen[:, [0, 4]], 1.0)
    assert np.isfinite(seen).all()


@functools.cache
def edges():
    graphdef, params = scenes.random_params(lambda: PointEdges(8, 4, rngs=nnx.Rngs(0)))
    return jax.jit(lambda *x: scenes.apply(graphdef, params)(*x), static_argnums=2)


def test_edges_see_offsets_to_the_nearest_points_only():
    cloud, robot = scenes.random_cloud(0, 6, 3), scenes.random_robot(1, 3)
    identity = np.random.default_rng(2).normal(size=(robot.positions.shape[1], 4))
    identity = identity.astype(np.float32)
    result = edges()(cloud, robot, 1, identity)
    shift = np.asarray([[0.3, -0.2, 0.5]], np.float32)
    moved = jax.tree.map(np.copy, (cloud, robot))
    moved[0].positions[:] += shift
    moved[1].positions[:] += shift[None]
    np.testing.assert_allclose(edges()(*moved, 1, identity), result, atol=1e-4)
    # Of five points one is the farthest from each particle, and is not looked at.
    apart = np.linalg.norm(cloud.positions[:, None] - robot.positions[1][None], axis=-1)
    farthest = apart.argmax(1)
    other = identity.copy()
    other[farthest[0]] += 1.0
    changed = np.abs(np.asarray(edges()(cloud, robot, 1, other)) - result).max(1) > 1e-4
    np.testing.assert_array_equal(changed, farthest != farthest[0])


def test_what_the_robot_does_not_reach_stays_as_it_is():
    """Whatever is learned: neither places nor features change there."""
    config = scenes.tiny_config(model={"carry": True, "contact": True}).model
    graphdef, params = scenes.random_params(lambda: ReadOut(config, rngs=nnx.Rngs(0)))
    read_out = jax.jit(lambda *x: scenes.apply(graphdef, params)(*x))
    cloud, robot = scenes.random_cloud(0, 6, config.feature_dim), scenes.random_robot(1, 3)
    tokens = np.random.default_rng(2).normal(size=(6, config.latent_dim)).astype(np.float32)
    far = robot.positions.max((0, 1)) + np.asarray([[0.5, 0.0, 0.0]], np.float32)
    near = robot.positions[1, :1]
    for place, moves in ((far, False), (near, True)):
        there = dataclasses.replace(cloud, positions=np.repeat(place, 6, 0))
        change = read_out(tokens, there, robot)
        for x in jax.tree.leaves(change):
            assert (np.abs(np.asarray(x)).max() > 1e-4) == moves
