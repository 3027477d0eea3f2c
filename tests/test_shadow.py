"""The robot's shadow: what keeps the light, what that does to colours, and finding the lamp."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx

import hdvpd.training.shadow
from hdvpd.basics.color_features import color_features
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import ParticleCloud
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_robot, read_window
from hdvpd.dynamics.shadow import Lamp, Shadow, light_blocked
from hdvpd.model import Model
from hdvpd.training.shadow import Changes, fit, learn_shadow, look_at


def f32(x):
    return np.asarray(x, np.float32)


OVERHEAD = Lamp(f32([0, 0, 3]), np.log(f32([0.05])), np.array(0.7, np.float32))
POINT = f32([[[0, 0, 0.4]]])


def test_a_ball_keeps_the_light_from_what_is_behind_it():
    """Its whole light on the axis, the share of exp(-1) at its radius, half at its own height."""
    places = f32([[0, 0, 0], [0, 0, 0.4], [0, 0, 0.6], [0.4, 0, 0]])
    blocked = np.asarray(light_blocked(OVERHEAD, places, POINT))
    np.testing.assert_allclose(blocked, [0.99, 0.495, 0.0, 0.0], atol=1e-3)
    # The way from x at the table to the lamp passes the ball at d with sin = d / 2.6 = x / |way|.
    beside = 0.05
    x = 3 * np.tan(np.arcsin(beside / 2.6))
    edge = light_blocked(OVERHEAD, f32([[x, 0, 0]]), POINT)
    np.testing.assert_allclose(edge, 0.99 * np.exp(-1), rtol=1e-3)


@pytest.mark.parametrize("kernels", ["xla", "host"])
def test_light_is_what_every_point_lets_pass_in_float64(kernels):
    rng = np.random.default_rng(0)
    places, points = rng.uniform(-0.5, 0.5, (2, 40, 3))
    lamp = Lamp(np.asarray([1.0, -2.0, 2.0]), np.log(rng.uniform(0.02, 0.2, 40)), np.ones(()))
    passed = np.ones(40)
    for n, place in enumerate(places):
        way = (lamp.position - place) / np.linalg.norm(lamp.position - place)
        for point, log_radius in zip(points, np.asarray(lamp.log_radii), strict=True):
            ahead = way @ (point - place)
            beside = np.linalg.norm(point - place - ahead * way)
            ball = np.exp(-((beside / np.exp(log_radius)) ** 4))
            passed[n] *= 1 - 0.99 * ball / (1 + np.exp(-ahead / 0.02))
    found = light_blocked(*jax.tree.map(np.float32, (lamp, places, points[None])), kernels)
    np.testing.assert_allclose(found, 1 - passed, atol=2e-5)
    assert 0.1 < np.mean(passed) < 0.9


@pytest.mark.parametrize("count", [1, 150, 0])
def test_gradients_of_host_code_are_those_of_plain_jax(count):
    """Of the lamp and all radii, under vmap, with places for which nothing keeps the light."""
    rng = np.random.default_rng(1)
    places, points = rng.uniform(-0.5, 0.5, (3, count, 3)), rng.uniform(-0.5, 0.5, (3, 40, 3))
    places[2] += 50.0
    weights = f32(rng.normal(size=(3, count)))
    lamp = Lamp(f32([1.0, -2.0, 2.0]), f32(np.log(rng.uniform(0.02, 0.2, 40))), np.ones(()))

    def gradients(kernels):
        def total(lamp, places, points, weights):
            return weights @ light_blocked(lamp, places, points[None], kernels)

        every = jax.vmap(jax.grad(total), (None, 0, 0, 0))
        return jax.jit(every)(lamp, f32(places), f32(points), weights)

    for host, plain in zip(*map(jax.tree.leaves, map(gradients, ("host", "xla"))), strict=True):
        np.testing.assert_allclose(host, plain, rtol=1e-3, atol=1e-4)


def shaded(lamp, cloud, before, after):
    """Colours after a step in which the robot goes from one place to another."""
    shadow = Shadow(dataclasses.replace(scenes.SCENE, num_robot_points=before.shape[0]))
    shadow.learn(lamp)
    robot = scenes.unturned(np.stack([before, before, after]))
    change = shadow(cloud, robot, jnp.zeros_like(cloud.positions))
    return cloud.features.at[:, :3].add(change)


def test_the_shadow_comes_and_goes_and_leaves_colours_as_they_were():
    rgb = f32([[0.8, 0.4, 0.2], [0.5, 0.5, 0.5]])
    places = jnp.asarray(f32([[0, 0, 0], [0.3, 0, 0]]))
    cloud = ParticleCloud(places, jnp.asarray(color_features(rgb)), np.ones(2, bool))
    there, away = POINT[0], POINT[0] + f32([9, 0, 0])
    darker = shaded(OVERHEAD, cloud, away, there)
    np.testing.assert_allclose(
        jax.nn.sigmoid(darker), rgb * np.exp([[-0.7 * 0.99], [0.0]]), rtol=1e-3
    )
    back = shaded(OVERHEAD, dataclasses.replace(cloud, features=darker), there, away)
    np.testing.assert_allclose(back, cloud.features, atol=1e-5)
    still = shaded(OVERHEAD, cloud, there, there)
    np.testing.assert_array_equal(still, cloud.features)


@pytest.mark.parametrize("kernels", ["xla", "host"])
def test_gradients_are_finite_where_points_coincide(kernels):
    """A particle in a kinematic point, in the lamp, and white and black ones."""
    places = jnp.asarray(f32([[0, 0, 0.4], [0, 0, 3], [0, 0, 0]]))
    cloud = ParticleCloud(
        places, jnp.asarray([[0.0] * 3, [99.0] * 3, [-99.0] * 3]), np.ones(3, bool)
    )

    def brightness(lamp):
        return shaded(lamp, cloud, POINT[0] + 0.02, POINT[0]).sum()

    gradient = jax.grad(lambda lamp: light_blocked(lamp, places, POINT, kernels).sum())(OVERHEAD)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(gradient))
    assert np.isfinite(brightness(OVERHEAD))


def test_the_gradient_pulls_the_lamp_to_where_it_is(key):
    """Through the module, as in training: a lamp that stands beside the true one comes nearer."""
    rng = np.random.default_rng(0)
    places = jnp.asarray(f32(np.append(rng.uniform(-0.3, 0.3, (200, 2)), np.zeros((200, 1)), 1)))
    cloud = ParticleCloud(places, jnp.zeros((200, 3)), np.ones(200, bool))
    away = POINT[0] + f32([9, 0, 0])
    truth = shaded(OVERHEAD, cloud, away, POINT[0])

    def loss(position):
        lamp = dataclasses.replace(OVERHEAD, position=position)
        return jnp.mean((shaded(lamp, cloud, away, POINT[0]) - truth) ** 2)

    gradient = jax.grad(loss)(jnp.asarray([0.1, 0.0, 3.0]))
    assert gradient[0] > 0
    assert abs(gradient[1]) < 0.2 * gradient[0]


def recorded(lamp, rng, noise=0.05):
    """Changes that a lamp makes on a table below an arm of five points, with one in ten wrong."""
    arm = f32([[0.0, 0.0, 0.1 * i] for i in range(5)])
    start, end = (
        arm + np.append(rng.uniform(-0.3, 0.3, (20, 2)), np.full((20, 1), 0.1), 1)[:, None]
        for _ in range(2)
    )
    places = np.append(rng.uniform(-0.5, 0.5, (6000, 2)), np.zeros((6000, 1)), 1)
    pair = rng.integers(0, 20, 6000)
    points = f32(np.stack([start, end], axis=1))
    dark = [light_blocked(lamp, f32(places), points[pair, k]) for k in range(2)]
    brighter = -float(lamp.darkness) * (dark[1] - dark[0]) + rng.normal(scale=noise, size=6000)
    brighter = np.where(rng.uniform(size=6000) < 0.1, rng.normal(size=6000), brighter)
    return Changes(f32(places), f32(brighter), np.asarray(pair, np.int32), points)


@pytest.fixture(scope="module")
def fitted():
    return jax.jit(fit)


def test_the_lamp_is_found(fitted, key):
    radii = np.log(np.full(5, 0.08, np.float32))
    truth = Lamp(f32([1.6, -1.2, 2.2]), radii, np.array(0.6, np.float32))
    begin = Shadow(dataclasses.replace(scenes.SCENE, num_robot_points=5)).lamp
    found, explained = fitted(begin, recorded(truth, np.random.default_rng(0)), key)
    ways = [x / np.linalg.norm(x) for x in (truth.position, np.asarray(found.position))]
    assert np.degrees(np.arccos(ways[0] @ ways[1])) < 2
    np.testing.assert_allclose(found.darkness, truth.darkness, rtol=0.1)
    np.testing.assert_allclose(np.exp(found.log_radii), 0.08, rtol=0.15)
    assert explained > 0.3


def test_noise_explains_nothing(fitted, key):
    nothing = Lamp(f32([0, 0, 3]), np.zeros(5, np.float32), np.array(0, np.float32))
    begin = Shadow(dataclasses.replace(scenes.SCENE, num_robot_points=5)).lamp
    _, explained = fitted(begin, recorded(nothing, np.random.default_rng(0)), key)
    assert explained < 0.05


def shadow_config(path):
    return scenes.tiny_config(model={"colors": True, "shadow": True}, data={"path": str(path)})


def test_only_what_stood_still_before_cameras_that_stand_still_is_compared(synthetic_dataset):
    dataset = Dataset(synthetic_dataset)
    config = shadow_config(synthetic_dataset)
    length = 2 + config.train.horizon
    windows = WindowIndex(dataset, "train", length).sample(0, 0, 4)
    changes = look_at(config, dataset.scene_spec(config.data), dataset, windows, length)
    assert len(changes.positions) > 100
    assert changes.points.shape[:2] == (4, 2)
    assert np.abs(changes.brighter).max() < np.log(1.02 / 0.02)
    again = look_at(config, dataset.scene_spec(config.data), dataset, windows, length)
    jax.tree.map(np.testing.assert_array_equal, changes, again)


def test_images_show_where_the_robot_was_and_not_where_it_was_told_to_be(
    synthetic_dataset, monkeypatch
):
    dataset = Dataset(synthetic_dataset)
    config = shadow_config(synthetic_dataset)
    length = 2 + config.train.horizon
    windows = WindowIndex(dataset, "train", length).sample(0, 0, 4)

    def read_commands_ahead(*arguments):
        batch = read_window(*arguments)
        batch.robot.positions[2:] += 1.0
        return batch

    monkeypatch.setattr(hdvpd.training.shadow, "read_window", read_commands_ahead)
    changes = look_at(config, dataset.scene_spec(config.data), dataset, windows, length)
    for (episode, start), points in zip(windows, changes.points, strict=True):
        for frame, seen in zip((start + 1, start + length - 1), points, strict=True):
            measured = read_robot(dataset, episode, frame - 1, 2).positions[1]
            np.testing.assert_allclose(seen, measured, atol=1e-6)


def test_a_training_begins_with_the_lamp_or_without_a_shadow(
    synthetic_dataset, capsys, monkeypatch
):
    """Nothing else of the model changes; a model without `model.shadow` has nothing to learn."""
    monkeypatch.setattr(hdvpd.training.shadow, "_PAIRS", 8)
    monkeypatch.setattr(hdvpd.training.shadow, "_STEPS", 10)
    dataset = Dataset(synthetic_dataset)
    config = shadow_config(synthetic_dataset)
    model = Model(config, dataset.scene_spec(config.data), rngs=nnx.Rngs(0))
    before = nnx.to_pure_dict(nnx.state(model))
    learn_shadow(model, config, dataset)
    told = capsys.readouterr().out
    after = nnx.to_pure_dict(nnx.state(model))
    changed = jax.tree.map(lambda x, y: bool((x != y).any()), before, after)
    lamp = changed["dynamics"]["read_out"].pop("shadow")
    assert not any(jax.tree.leaves(changed))
    assert any(jax.tree.leaves(lamp)) == ("explains" in told)
    assert told.startswith("shadow")
    plain = scenes.tiny_config()
    learn_shadow(Model(plain, scenes.SCENE, rngs=nnx.Rngs(0)), plain, dataset)
    assert not capsys.readouterr().out


def test_a_shadow_needs_colors():
    with pytest.raises(UserError, match=r"model\.shadow.*colors"):
        scenes.tiny_config(model={"shadow": True})
