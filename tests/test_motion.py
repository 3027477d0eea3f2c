"""Errors of particles' motion on the analytic scene, where the ball goes exactly with the tool.

The model is one in closed form: it moves every particle as the tool moves. So it is right on the
ball, and wrong by the tool's motion on everything that stands still.
"""

import csv
import dataclasses
import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.encoders.particles import subsample, visible_points
from hdvpd.evaluation import motion_tables, objects
from hdvpd.evaluation.rollouts import CompiledModel

STEPS = 3
BOX = ((-0.5, -0.5, -0.05), (0.5, 0.5, 0.5))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Forty episodes, of which 9, 19, 29 and 39 are held out, with 3 windows each."""
    path = tmp_path_factory.mktemp("data") / "scene"
    return write_synthetic_dataset(path, episodes=40, steps=6, height=32, width=40, seed=0)


@pytest.fixture(scope="module")
def config(debug_config):
    data = dataclasses.replace(debug_config.data, height=32, width=40)
    settings = dataclasses.replace(debug_config.eval, num_steps=STEPS)
    return dataclasses.replace(debug_config, data=data, eval=settings)


@jax.jit
def encode(frames, key):
    return jax.vmap(encode_frame)(frames, jax.random.split(key))


def encode_frame(frames, key):
    points, valid = visible_points(frames.depth_m, frames.camera, *BOX, 3.0)
    points = points.reshape(-1, 3)
    return subsample(points, jnp.zeros((len(points), 2)), valid.reshape(-1), 800, key)


def go_with_the_tool(observed, robot, key):
    current = jax.tree.map(lambda x: x[1], observed)
    tool = robot.positions[:, 2]
    motion = tool[2:] - tool[1:2]
    repeated = jax.tree.map(lambda x: jnp.repeat(x[None], len(motion), axis=0), current)
    return dataclasses.replace(repeated, positions=repeated.positions + motion[:, None])


def unused(*arguments):
    raise AssertionError(arguments)


@pytest.fixture(scope="module")
def scores(dataset, config):
    compiled = CompiledModel(encode, go_with_the_tool, unused, unused)
    windows = objects.all_windows(dataset, config, "test")
    return objects.evaluate_motion(compiled, config, dataset, windows)


@pytest.fixture(scope="module")
def tool_motion(dataset):
    """How far the tool goes from the last observed frame, by episode, window and step."""
    motion = []
    for number in (9, 19, 29, 39):
        tool = dataset.read(number, "robot/link_to_world")[:, -1, :3, 3]
        moved = [tool[s + 2 : s + 2 + STEPS] - tool[s + 1] for s in range(3)]
        motion.append(np.linalg.norm(moved, axis=-1))
    return np.array(motion)


def test_every_window_of_every_held_out_episode_is_rolled_out(scores):
    assert scores.episodes == (9, 19, 29, 39)
    assert (scores.windows, scores.tasks) == (12, ("swing",) * 4)
    assert scores.moving_windows == 12


def test_the_model_that_goes_with_the_tool_is_right_on_the_ball_only(scores, tool_motion):
    _, moved, untouched, static = np.moveaxis(scores.values[:, 0], -1, 0)
    np.testing.assert_allclose(moved, 0.0, atol=1e-5)
    np.testing.assert_allclose(untouched, tool_motion.mean(axis=1), atol=1e-5)
    np.testing.assert_allclose(static, tool_motion.mean(axis=1), atol=1e-5)


def test_without_motion_the_error_is_the_true_displacement(scores, tool_motion):
    _, moved, untouched, static = np.moveaxis(scores.values[:, 1], -1, 0)
    np.testing.assert_allclose(moved, tool_motion.mean(axis=1), atol=1e-5)
    np.testing.assert_array_equal(untouched, 0.0)
    np.testing.assert_array_equal(static, 0.0)


def test_all_objects_lie_between_the_moved_and_the_untouched(scores):
    everything, moved, untouched, _ = np.moveaxis(scores.values, -1, 0)
    assert (np.minimum(moved, untouched) <= everything + 1e-9).all()
    assert (everything <= np.maximum(moved, untouched) + 1e-9).all()
    # The ball hangs 10 cm below the tool, so carrying finds it, though not wholly.
    carried = scores.values[:, 2, -1, 1]
    assert (carried < scores.values[:, 1, -1, 1]).all()


def test_means_intervals_and_tables(scores):
    motion = motion_tables.summarize_motion(scores)
    values = scores.values[:, 0, :, 2]
    np.testing.assert_allclose(motion["model"]["untouched_error_m"], values.mean(0))
    assert motion["model"]["untouched_error_m_mean"] == pytest.approx(values.mean())
    behind = motion["static_render"]["moved_error_m_behind_model_mean"]
    assert behind == pytest.approx(scores.values[:, 1, :, 1].mean(), abs=1e-5)
    assert motion["tasks"]["swing"]["model"] == motion["model"]
    text = motion_tables.motion_markdown(motion)
    assert "4 held-out episodes, all 12 windows, 12 of them with a moving object" in text
    rows = list(csv.DictReader(io.StringIO(motion_tables.motion_csv({"run": motion}))))
    assert len(rows) == 2 * 3 * STEPS
    assert float(rows[1]["untouched_error_m"]) == motion["model"]["untouched_error_m"][1]


def test_what_was_not_seen_has_no_number(scores):
    values = np.full_like(scores.values, np.nan)
    motion = motion_tables.summarize_motion(dataclasses.replace(scores, values=values))
    assert motion["model"]["moved_error_m"] == [None] * STEPS
    assert "\u2013" in motion_tables.motion_markdown(motion)
