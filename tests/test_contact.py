"""What particles know of touching: explanations of the last step, edges to kinematic points."""

import dataclasses
import functools

import jax
import numpy as np
import scenes
from flax import nnx

from hdvpd.basics.types import ParticleCloud
from hdvpd.dynamics.body import Boxes
from hdvpd.dynamics.contact import PointEdges, explanations
from hdvpd.dynamics.rollout import rollout
from hdvpd.dynamics.tokens import ReadOut

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
    graphdef, params = scenes.random_params(lambda: ReadOut(config, scenes.SCENE, rngs=nnx.Rngs(0)))
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


def read_out_of(config, num_points, half_m):
    """A read-out of a robot whose boxes are known, each a cube."""
    scene = dataclasses.replace(scenes.SCENE, num_robot_points=num_points)
    made = ReadOut(config, scene, rngs=nnx.Rngs(0))
    assert made.identity is not None
    half = np.full((num_points, 3), half_m, np.float32)
    made.identity.body.learn(Boxes(-half, half))
    return made


def test_what_is_on_the_robot_goes_along_with_it_before_anything_is_learned():
    """The robot moves 15 cm per step past two surfaces: one is its own, one 6 cm below it."""
    settings = {"carry": True, "contact": True, "colors": True, "lasting_features": True}
    config = scenes.tiny_config(model=settings).model
    step = np.asarray([0.15, 0.0, 0.0])
    rng = np.random.default_rng(0)
    own, other = rng.uniform(0, 0.06, (2, 30, 3)) * [1, 1, 0] + [[[0, 0, 0.08]], [[0, 0, 0.02]]]
    colors = np.repeat([[2.0, -2.0, 0.0], [-2.0, 2.0, 0.0]], 30, axis=0)
    features = np.pad(colors, ((0, 0), (0, config.feature_dim - 3)))
    current = cloud_of(np.concatenate([own, other]), features)
    points = np.asarray([[0.03, 0.03, 0.1], [0.03, 0.03, 0.15]])
    robot = scenes.unturned(points[None] + step * np.arange(-1, 2)[:, None, None])
    tokens = np.zeros((60, config.latent_dim), np.float32)
    read_out = read_out_of(config, 2, 0.04)
    change = jax.jit(lambda *x: read_out(*x))(tokens, current, robot)
    moved = np.asarray(change.displacement)
    # Wholly: only what is learned is bounded.
    np.testing.assert_allclose(moved[:30], np.tile(step, (30, 1)), atol=1e-6)
    np.testing.assert_array_equal(moved[30:], 0)
    np.testing.assert_array_equal(change.features, 0)


def test_what_a_closed_hand_comes_to_goes_along_as_a_whole_before_anything_is_learned():
    """A plate of 12 cm, 2 cm above a table, that a finger of 2 cm comes into by 3 cm."""
    settings = {"carry": True, "contact": True, "colors": True, "lasting_features": True, "up": "z"}
    config = scenes.tiny_config(model=settings).model
    ticks = np.arange(0, 0.121, 0.015)
    square = np.stack([*np.meshgrid(ticks, ticks), np.zeros((9, 9))], axis=-1).reshape(-1, 3)
    colors = np.repeat([[3.0, -3.0, -3.0], [1.0, 1.0, 1.0]], 81, axis=0)
    features = np.pad(colors, ((0, 0), (0, config.feature_dim - 3)))
    cloud = cloud_of(np.concatenate([square + [[0, 0, 0.02]], square]), features)
    way = np.asarray([[-0.07, 0.06, 0.02], [-0.03, 0.06, 0.02], [0.02, 0.06, 0.02]])
    robot = scenes.unturned(way[:, None], 0.1)
    tokens = np.zeros((162, config.latent_dim), np.float32)
    read_out = read_out_of(config, 1, 0.01)
    moved = np.asarray(jax.jit(lambda *x: read_out(*x))(tokens, cloud, robot).displacement)
    # In touch 3 mm and .15 of the neighbours' 3 cm before the finger's face.
    np.testing.assert_allclose(moved[:81, 0], 0.03 + 0.003 + 0.15 * 0.03, atol=2e-3)
    np.testing.assert_allclose(moved[:81, 1:], 0, atol=1e-6)
    np.testing.assert_array_equal(moved[81:], 0)


def test_a_step_searches_once_for_what_tokens_and_read_out_ask():
    """Graph, surroundings, counterparts both ways, points of two slices, boxes and hands at t.

    Beside the surroundings and the boxes of the last observed cloud, by which the robot is told.
    """
    settings = {"carry": True, "contact": True, "colors": True, "knn": "kdtree", "up": "z"}
    config = scenes.tiny_config(model=settings).model
    graphdef, params = scenes.random_params(
        lambda: config.dynamics.make(config, scenes.SCENE, rngs=nnx.Rngs(0))
    )
    clouds = [scenes.random_cloud(seed, 48, config.feature_dim) for seed in (0, 1)]

    @jax.jit
    def steps(previous, current, robot):
        dynamics = scenes.apply(graphdef, params)
        step = dynamics.begin(dynamics.know(current, robot, jax.random.key(1)))
        return rollout(step, previous, current, robot, jax.random.key(0))

    text = steps.lower(*clouds, scenes.random_robot(2, 4)).compile().as_text()
    assert text.count('custom_call_target="hdvpd.kernels.kdtree_search.nearest(') == 8 + 2


def test_who_is_the_robot_is_said_once_in_a_rollout():
    """What was on the robot goes along with it, also where the plan has taken the robot away."""
    settings = {"carry": True, "contact": True, "colors": True, "displacement_unit": 1e-6}
    config = scenes.tiny_config(model=settings).model
    graphdef, params = scenes.random_params(
        lambda: config.dynamics.make(config, scenes.SCENE, rngs=nnx.Rngs(0))
    )
    dynamics = scenes.apply(graphdef, params)
    identity = dynamics.read_out.identity
    half = np.full((scenes.SCENE.num_robot_points, 3), 0.02, np.float32)
    identity.body.learn(Boxes(-half, half))
    for last in (identity.mlp.out.kernel, identity.mlp.out.bias):
        last[...] = 0.0 * last[...]
    robot = scenes.random_robot(2, 4)
    robot.gripper[:] = 1.0
    cloud = scenes.random_cloud(0, 48, config.feature_dim)
    cloud = dataclasses.replace(cloud, positions=np.resize(robot.positions[1], (48, 3)))

    @jax.jit
    def compared(cloud, robot):
        own = dynamics.know(cloud, robot, jax.random.key(1))
        later = jax.tree.map(lambda x: x[1:], robot)
        step = dynamics.begin(own)
        key = jax.random.key(0)
        return (
            step(cloud, cloud, later, key).displacement,
            dynamics(cloud, cloud, later, key, own).displacement,
            dynamics(cloud, cloud, later, key).displacement,
        )

    begun, known, anew = map(np.asarray, compared(cloud, robot))
    np.testing.assert_array_equal(begun, known)
    assert np.abs(begun).max() > 0.02
    assert np.abs(anew).max() < 1e-4


def test_training_cannot_overrule_what_geometry_shows():
    """However large the weights: what stood still beside a moving robot stays."""
    settings = {"carry": True, "contact": True, "colors": True, "displacement_unit": 1e-6}
    config = scenes.tiny_config(model=settings).model
    read_out = read_out_of(config, 1, 0.001)
    bias = read_out.mlp.out.bias
    assert bias is not None
    bias[...] = bias[...] + 1e3
    cloud = scenes.random_cloud(0, 60, config.feature_dim)
    cloud = dataclasses.replace(cloud, positions=np.float32(cloud.positions * 0.05))
    way = np.asarray([[-0.05, 0, 0.1], [0, 0, 0.1], [0.05, 0, 0.1]])
    robot = dataclasses.replace(
        scenes.random_robot(1, 3, 1),
        positions=np.float32(way[:, None]),
        gripper=np.ones((3, 1), np.float32),
    )
    tokens = np.zeros((60, config.latent_dim), np.float32)
    change = jax.jit(lambda *x: read_out(*x))(tokens, cloud, robot)
    assert np.abs(np.asarray(change.displacement)).max() < 5e-3
