"""How far the robot gets on the way to its commands: closed forms, recordings, rollouts."""

import dataclasses

import jax
import numpy as np
import scenes
from flax import nnx
from scipy.spatial.transform import Rotation

from hdvpd.data.store import Dataset
from hdvpd.dynamics.tracking import tracked
from hdvpd.model import Model
from hdvpd.training import tracking
from hdvpd.training.tracking import fit, learn_tracking

SHARES = np.asarray([0.8, 0.5], np.float32)


def moving(num_times=8):
    """Two points that go and turn evenly: 2 cm and 10 degrees a step."""
    times = np.arange(num_times)
    places = 0.02 * times[:, None, None] * np.asarray([[1.0, 0, 0], [0, 1.0, 0]])
    turns = Rotation.from_euler("z", 10 * times[:, None], degrees=True).as_matrix()
    axes = np.repeat(turns[:, None], 2, axis=1).astype(np.float32)
    return dataclasses.replace(scenes.unturned(places, 0.3), axes=axes)


def test_a_robot_stays_behind_by_what_a_servo_of_first_order_does():
    """Of steps v it is behind by v (1 - k) / k in the end, and by v (1 - k) after the first."""
    robot = moving(30)
    found = jax.jit(tracked)(robot, SHARES)
    behind = (robot.positions - np.asarray(found.positions))[..., [0, 1], [0, 1]]
    np.testing.assert_array_equal(found.positions[:2], robot.positions[:2])
    np.testing.assert_allclose(behind[2], 0.02 * (1 - SHARES), rtol=1e-4)
    np.testing.assert_allclose(behind[-1], 0.02 * (1 - SHARES) / SHARES, rtol=1e-3)
    np.testing.assert_array_equal(found.gripper, robot.gripper)


def test_axes_stay_orthonormal_and_turn_alike():
    found = np.asarray(jax.jit(tracked)(moving(30), SHARES).axes)
    np.testing.assert_allclose(
        np.einsum("fpij,fpik->fpjk", found, found), np.tile(np.eye(3), (30, 2, 1, 1)), atol=1e-5
    )
    behind = np.rad2deg(np.arctan2(found[-1, :, 1, 0], found[-1, :, 0, 0])) % 360
    np.testing.assert_allclose((290 - behind) % 360, [2.5, 10.0], atol=0.1)


def test_a_share_of_one_reaches_every_command():
    robot = scenes.random_robot(0, 5)
    found = tracked(robot, np.ones(5, np.float32))
    np.testing.assert_allclose(found.positions, robot.positions, atol=1e-6)
    np.testing.assert_allclose(found.axes, robot.axes, atol=1e-5)


def test_the_fit_finds_the_share_and_says_nothing_of_what_stands_still():
    rng = np.random.default_rng(0)
    before, way = rng.normal(0, 0.05, (2, 100, 3, 3))
    way[:, 2] = 0
    after = before + np.asarray([0.9, 0.6, 1.0])[:, None] * way
    after[:, :2] += rng.normal(0, 1e-3, (100, 2, 3))
    share = fit(np.stack([before, after], axis=1), before + way)
    np.testing.assert_allclose(share, [0.9, 0.6, 1.0], atol=0.01)


def test_a_rollout_follows_commands_as_recordings_do(synthetic_dataset, monkeypatch, capsys):
    """Every robot point of the analytic scene goes 70 % of its way; particles on it go as far."""
    recorded = tracking.read_robot

    def lagging(dataset, episode, start, length):
        robot = recorded(dataset, episode, start, length)
        if length == 2:  # what came of the command
            before, command = (
                recorded(dataset, episode, start - 1, 3).positions[k] for k in (1, 2)
            )
            robot.positions[1] = before + 0.7 * (command - before)
        return robot

    monkeypatch.setattr(tracking, "read_robot", lagging)
    settings = {"carry": True, "contact": True, "colors": True, "lasting_features": True}
    dataset = Dataset(synthetic_dataset)
    shares, moved = [], []
    for on in (False, True):
        config = scenes.tiny_config(model=settings | {"tracking": on})
        scene = dataset.scene_spec(config.data)
        model = Model(config, scene, rngs=nnx.Rngs(0))
        learn_tracking(model, config, dataset)
        shares.append(None if model.tracking is None else np.asarray(model.tracking.share[...]))
        robot = recorded(dataset, 0, 0, 4)
        cloud = scenes.random_cloud(0, 48, config.model.feature_dim)
        cloud = dataclasses.replace(cloud, positions=np.resize(robot.positions[1], (48, 3)))
        roll = jax.jit(lambda *x, model=model: model.rollout(*x, jax.random.key(0)).positions)
        moved.append(np.asarray(roll(cloud, cloud, robot))[0] - cloud.positions)
    assert shares[0] is None
    assert "ahead of the robot" in capsys.readouterr().out
    way = np.linalg.norm(robot.positions[2] - robot.positions[1], axis=1)
    np.testing.assert_allclose(shares[1][way > 0.01], 0.7, atol=0.02)
    far = np.linalg.norm(moved[0], axis=1) > 0.01
    assert far.any()
    np.testing.assert_allclose(
        np.linalg.norm(moved[1], axis=1)[far] / np.linalg.norm(moved[0], axis=1)[far], 0.7, atol=0.1
    )
