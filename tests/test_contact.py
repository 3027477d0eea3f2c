"""What particles know of touching: explanations of the last step, edges to kinematic points."""

import dataclasses
import functools

import jax
import numpy as np
import scenes
from flax import nnx

from hdvpd.basics.types import ParticleCloud
from hdvpd.dynamics.contact import PointEdges, explanations, went_along
from hdvpd.dynamics.tokens import ReadOut

told = jax.jit(explanations)
weigh = jax.jit(functools.partial(went_along, colors=True))


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


def test_evidence_tells_who_went_along_from_who_stood():
    """Two surfaces of other colours in reach of a robot that moved 4 cm: one went, one stood."""
    rng = np.random.default_rng(0)
    surface = np.stack([*rng.uniform(0, 0.1, (2, 200)), np.zeros(200)], -1)
    went, stood = surface[:100], surface[100:] + [[0.0, 0.0, 0.02]]
    colors = np.repeat([[2.0, -2.0, 0.0], [-2.0, 2.0, 0.0]], 100, axis=0)
    motion = np.asarray([0.04, 0.0, 0.0])
    # Sampled anew at the two times, as encoded clouds are.
    shift = rng.normal(0, 0.002, (200, 3))
    before = cloud_of(np.concatenate([went, stood]) + shift, colors)
    now = cloud_of(np.concatenate([went + motion, stood]), colors)
    back = np.repeat(-motion[None], 200, axis=0).astype(np.float32)
    evidence = np.asarray(weigh(now, before, back))
    assert (evidence[:100] > 0).mean() > 0.95
    assert (evidence[100:] < 0).mean() > 0.95


def test_without_motion_or_counterparts_there_is_no_evidence():
    cloud = scenes.random_cloud(0, 30, 4)
    still = np.zeros((30, 3), np.float32)
    np.testing.assert_allclose(weigh(cloud, cloud, still), 0.0, atol=1e-7)
    empty = dataclasses.replace(cloud, mask=np.zeros(30, bool))
    for pair in ((cloud, empty), (empty, cloud), (empty, empty)):
        np.testing.assert_allclose(weigh(*pair, still + 0.1)[~pair[0].mask], 0.0, atol=1e-7)
        assert np.isfinite(np.asarray(weigh(*pair, still + 0.1))).all()


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
        change = read_out(tokens, there, there, robot)
        for x in jax.tree.leaves(change):
            assert (np.abs(np.asarray(x)).max() > 1e-4) == moves


def test_what_went_along_with_the_robot_goes_along_again_before_anything_is_learned():
    """The robot moves 4 cm per step past two surfaces: one went with it, one stood."""
    settings = {"carry": True, "contact": True, "colors": True, "lasting_features": True}
    config = scenes.tiny_config(model=settings).model
    read_out = ReadOut(config, rngs=nnx.Rngs(0))
    step = np.asarray([0.04, 0.0, 0.0])
    rng = np.random.default_rng(0)
    went, stood = rng.uniform(0, 0.06, (2, 30, 3)) * [1, 1, 0] + [[[0, 0, 0.03]], [[0, 0, 0.08]]]
    colors = np.repeat([[2.0, -2.0, 0.0], [-2.0, 2.0, 0.0]], 30, axis=0)
    features = np.pad(colors, ((0, 0), (0, config.feature_dim - 3)))
    previous = cloud_of(np.concatenate([went - step, stood]), features)
    current = cloud_of(np.concatenate([went, stood]), features)
    points = np.asarray([[0.03, 0.03, 0.05], [0.03, 0.03, 0.15]])
    robot = dataclasses.replace(
        scenes.random_robot(1, 3, 2),
        positions=np.float32(points[None] + step * np.arange(-1, 2)[:, None, None]),
    )
    tokens = np.zeros((60, config.latent_dim), np.float32)
    change = jax.jit(lambda *x: read_out(*x))(tokens, previous, current, robot)
    moved = np.asarray(change.displacement)[:, 0]
    assert moved[:30].min() > 0.03
    assert moved[30:].max() < 0.01
    np.testing.assert_array_equal(change.features, 0)
