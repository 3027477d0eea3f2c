"""Windows changed at random: what stays together, how much changes, and that scores see none."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import scenes
from scipy.spatial.transform import Rotation

from hdvpd.basics.geometry import project, unproject
from hdvpd.basics.layers import Keys
from hdvpd.basics.types import RgbdFrames
from hdvpd.config import SceneSpec
from hdvpd.config.training import AugmentConfig
from hdvpd.model import Model
from hdvpd.model.augmentation import augmented, mirrored

HEIGHT, WIDTH = 12, 16
SCENE = SceneSpec(5, (-0.3, -0.6, -0.1), (0.9, 0.4, 0.8))  # its middle is not the origin
MIDDLE = np.array([0.3, -0.1, 0.35])


@pytest.fixture(scope="module")
def batch():
    """Two windows of two observed and two predicted frames."""
    windows = scenes.make_batch(2, 4, HEIGHT, WIDTH)
    robots = [scenes.random_robot(seed, 4) for seed in range(2)]
    return dataclasses.replace(windows, robot=jax.tree.map(lambda *x: np.stack(x), *robots))


@functools.cache
def change(**settings):
    """Return jitted `augmented` of (batch, keys)."""
    config = AugmentConfig(**settings)
    return jax.jit(lambda batch, keys: augmented(batch, config, SCENE, keys))


def many(batch, count, **settings):
    """Return what `count` keys make of the first window, whose images are four pixels."""
    small = jax.tree.map(lambda x: np.repeat(x[:1], count, axis=0), batch)
    frames = RgbdFrames(
        rgb=np.full((count, 4, 2, 2, 2, 3), 100, np.uint8),
        depth_m=small.frames.depth_m[..., :2, :2],
        camera=small.frames.camera,
    )
    small = dataclasses.replace(small, frames=frames)
    return small, change(**settings)(small, jax.random.split(jax.random.key(0), count))


def test_by_default_nothing_changes(batch):
    assert augmented(batch, AugmentConfig(), SCENE, jax.random.split(jax.random.key(0))) is batch


def test_colours_of_a_window_have_one_gain_per_channel(batch, key):
    after = change(colors=0.2)(batch, jax.random.split(key))
    before, rgb = np.float64(batch.frames.rgb), np.float64(after.frames.rgb)
    assert after.frames.rgb.dtype == np.uint8
    gains = []
    for b in range(2):
        clear = (rgb[b] < 255) & (before[b] > 40)
        least = np.where(clear, (rgb[b] - 0.5) / np.maximum(before[b], 1), 0).max((0, 1, 2, 3))
        most = np.where(clear, (rgb[b] + 0.5) / np.maximum(before[b], 1), 9).min((0, 1, 2, 3))
        # One gain explains every pixel of every frame and view.
        assert (least <= most + 1e-6).all()
        gains.append((least + most) / 2)
    assert np.abs(gains[0] - gains[1]).min() > 1e-3
    for name in ("depth_m", "camera"):
        jax.tree.map(
            np.testing.assert_array_equal, getattr(after.frames, name), getattr(batch.frames, name)
        )
    jax.tree.map(np.testing.assert_array_equal, after.robot, batch.robot)


def test_gains_are_as_far_from_one_as_asked(batch):
    _, after = many(batch, 2000, colors=0.2)
    gain = np.log(np.float64(after.frames.rgb)[:, 0, 0, 0, 0] / 100)
    # Five standard errors, and rounding to a two-hundredth.
    assert np.abs(gain.mean(0)).max() < 5 * 0.2 / np.sqrt(2000) + 1e-3
    np.testing.assert_allclose(gain.std(0), 0.2, rtol=5 / np.sqrt(2 * 2000) + 1e-3)
    assert np.abs(np.corrcoef(gain.T)[np.triu_indices(3, 1)]).max() < 5 / np.sqrt(2000)


def test_cameras_are_displaced_as_far_as_asked_and_in_all_frames_alike(batch):
    before, after = many(batch, 1000, camera_shift=0.01, camera_turn=0.02)
    old, new = (np.float64(x.frames.camera.camera_to_world) for x in (before, after))
    np.testing.assert_array_equal(new[..., 3, :], old[..., 3, :])
    shift = new[..., :3, 3] - old[..., :3, 3]
    turn = np.swapaxes(old[..., :3, :3], -1, -2) @ new[..., :3, :3]
    np.testing.assert_allclose(turn @ np.swapaxes(turn, -1, -2), np.eye(3) + 0 * turn, atol=1e-6)
    for x in (shift, turn):
        np.testing.assert_allclose(x, np.broadcast_to(x[:, :1], x.shape), atol=1e-6)
    angles = Rotation.from_matrix(turn[:, 0].reshape(-1, 3, 3)).as_rotvec().reshape(1000, 2, 3)
    for drawn, spread in ((shift[:, 0], 0.01), (angles, 0.02)):
        np.testing.assert_allclose(drawn.std(0), spread, rtol=5 / np.sqrt(2 * 1000))
        assert np.abs(drawn.mean(0)).max() < 5 * spread / np.sqrt(1000)
        # Every view by itself.
        assert abs(np.corrcoef(drawn[:, 0, 0], drawn[:, 1, 0])[0, 1]) < 5 / np.sqrt(1000)


def test_large_turns_are_those_of_scipy(batch):
    before, after = many(batch, 50, camera_turn=2.0)
    old, new = (np.float64(x.frames.camera.camera_to_world[:, 0]) for x in (before, after))
    turn = np.swapaxes(old[..., :3, :3], -1, -2) @ new[..., :3, :3]
    keys = jax.random.split(jax.random.key(0), 50)
    drawn = np.stack([
        2.0 * jax.random.normal(jax.random.split(jax.random.split(k, 3)[1])[1], (2, 3))
        for k in keys
    ])  # fmt: skip
    expected = Rotation.from_rotvec(np.float64(drawn).reshape(-1, 3)).as_matrix()
    np.testing.assert_allclose(turn.reshape(-1, 3, 3), expected, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
def test_a_mirrored_scene_has_its_points_mirrored(batch, axis):
    frames, robot = jax.jit(mirrored, static_argnums=(2, 3))(batch.frames, batch.robot, axis, SCENE)
    reversal = np.where(np.arange(3) == axis, -1.0, 1.0)

    def reflected(points):
        return MIDDLE + reversal * (points - MIDDLE)

    here = np.asarray(unproject(batch.frames.depth_m, batch.frames.camera))
    there = np.asarray(unproject(frames.depth_m, frames.camera))
    np.testing.assert_allclose(there[..., ::-1, :], reflected(here), atol=1e-5)
    np.testing.assert_array_equal(frames.rgb[..., ::-1, :], batch.frames.rgb)
    np.testing.assert_allclose(robot.positions, reflected(batch.robot.positions), atol=1e-6)
    for rotation in (frames.camera.camera_to_world[..., :3, :3], robot.axes):
        np.testing.assert_allclose(np.linalg.det(rotation), 1.0, atol=1e-5)
    # What goes along with a link goes along with it in the mirror.
    turn = np.asarray(batch.robot.axes)[:, 1] @ np.swapaxes(batch.robot.axes[:, 0], -1, -2)
    turned = np.asarray(robot.axes)[:, 1] @ np.swapaxes(np.asarray(robot.axes)[:, 0], -1, -2)
    np.testing.assert_allclose(turned, reversal[:, None] * turn * reversal, atol=1e-5)


def test_a_mirrored_camera_sees_what_a_camera_there_would_see(batch):
    """Ray-traced: a ball at the mirrored place, seen from the mirrored place."""
    one = jax.tree.map(lambda x: x[0, 0, 0], batch.frames)
    frames, _ = mirrored(one, jax.tree.map(lambda x: x[0, 0], batch.robot), 1, scenes.SCENE)
    rgb, depth = scenes.trace(frames.camera, HEIGHT, WIDTH, np.array([-0.2, 0.0, 0.12]))
    np.testing.assert_allclose(frames.depth_m, depth, atol=1e-5)
    ball = rgb[..., 0] > 220
    assert ball.sum() > 5
    np.testing.assert_array_equal(np.asarray(frames.rgb)[ball], rgb[ball])


def test_the_mirror_of_a_mirror_is_the_scene(batch):
    once = mirrored(batch.frames, batch.robot, 0, SCENE)
    twice = mirrored(*once, 0, SCENE)
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), twice, (batch.frames, batch.robot)
    )


def test_every_other_window_is_mirrored(batch):
    before, after = many(batch, 1000, mirror="y")
    mirror = mirrored(before.frames, before.robot, 1, SCENE)
    flipped = np.asarray(after.robot.positions != before.robot.positions).any((1, 2, 3))
    assert abs(flipped.mean() - 0.5) < 5 * 0.5 / np.sqrt(1000)
    for part, other, same in zip(
        jax.tree.leaves((after.frames, after.robot)),
        jax.tree.leaves(mirror),
        jax.tree.leaves((before.frames, before.robot)),
        strict=True,
    ):
        np.testing.assert_allclose(part[flipped], other[flipped], atol=1e-6)
        np.testing.assert_array_equal(part[~flipped], same[~flipped])


def test_robot_points_stay_on_their_pixels_in_the_mirror():
    windows = scenes.make_batch(1, 2, 2, WIDTH)
    robot = scenes.random_robot(0, 1, 200)
    one = jax.tree.map(lambda x: x[0, 0, 0], windows.frames)
    frames, mirror = mirrored(one, jax.tree.map(lambda x: x[0], robot), 1, SCENE)
    old, depth = project(robot.positions[0], one.camera)
    new, same = project(mirror.positions, frames.camera)
    np.testing.assert_allclose(same, depth, atol=1e-4)
    np.testing.assert_allclose(new[:, 0], WIDTH - old[:, 0], rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(new[:, 1], old[:, 1], rtol=1e-3, atol=1e-3)


def test_training_sees_other_windows_and_scores_do_not(batch, key):
    augment = {"colors": 0.2, "camera_shift": 0.01, "camera_turn": 0.01, "mirror": "y"}
    configs = scenes.tiny_config(), scenes.tiny_config(train={"augment": augment})
    _, params = scenes.random_params(lambda: Model(configs[0], scenes.SCENE, rngs=Keys(0)))
    models = [
        scenes.apply(
            scenes.random_params(lambda c=c: Model(c, scenes.SCENE, rngs=Keys(0)))[0], params
        )
        for c in configs
    ]

    @jax.jit
    def losses(batch, key, first):
        trained = [m.loss(batch, key, first_window=first) for m in models]
        return trained, [m.loss(batch, key, scored=True, first_window=first) for m in models]

    with jax.debug_key_reuse(False):
        trained, scored = losses(batch, key, 0)
        swapped = jax.tree.map(lambda x: x[::-1], batch)
        elsewhere, _ = losses(swapped, key, 0)
    np.testing.assert_array_equal(*scored)
    assert np.abs(trained[0] - trained[1]).min() > 1e-4
    assert np.isfinite(trained[1]).all()
    # What a window becomes is a function of its place.
    assert np.abs(trained[1] - elsewhere[1]).min() > 1e-6
