"""Errors of particles' motion on the analytic scene, where the ball goes exactly with the tool.

The model is one in closed form: it moves every particle as the tool moves. So it is right on the
ball, and wrong by the tool's motion on everything that stands still.
"""

import csv
import dataclasses
import io
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import ParticleCloud
from hdvpd.data.shapes import Shape
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.truth import Objects
from hdvpd.encoders.particles import subsample, visible_points
from hdvpd.evaluation import motion_plots, motion_tables, objects
from hdvpd.evaluation.spreading import SpreadModel
from hdvpd.model.compiled import CompiledModel
from hdvpd.training.processes import Team

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
def encode(frames, robot, key):
    del robot
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
    model = SpreadModel((compiled,), (jax.devices()[0],), Team())
    windows = objects.all_windows(dataset, config, "test")
    return objects.evaluate_motion(model, config, dataset, windows)


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
    each = motion["each_episode"]
    assert [own["episode"] for own in each] == list(scores.episodes)
    seen = [own["untouched_error_m"] for own in each]
    np.testing.assert_allclose(seen, values.mean(1))
    text = motion_tables.motion_markdown(motion)
    assert f"| {each[1]['episode']} | swing | " in text
    assert f" | {1e3 * seen[1]:.1f} | " in text
    assert "4 held-out episodes, all 12 windows, 12 of them with a moving object" in text
    rows = list(csv.DictReader(io.StringIO(motion_tables.motion_csv({"run": motion}))))
    assert len(rows) == 2 * 3 * STEPS
    assert float(rows[1]["untouched_error_m"]) == motion["model"]["untouched_error_m"][1]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_places_that_are_not_finite_are_not_left_out_of_the_error(bad):
    mask = np.array([[True, True, False]] * 2)
    on_ball = np.tile(np.float32([0.1, 0, 0]), (2, 3, 1))
    cloud = ParticleCloud(on_ball, np.zeros((2, 3, 0), np.float32), mask)
    robot = scenes.unturned(np.ones((4, 1, 3)))
    poses = np.tile(np.eye(4), (4, 1, 1, 1))
    ball = Objects(("ball",), (Shape("sphere", (0.1,)),), poses)
    predicted = on_ball.copy()
    predicted[:, 2] = bad  # padding
    scores = objects.score_rollout(cloud, predicted, robot, ball)
    np.testing.assert_allclose(scores[0, :, 0], 0, atol=1e-7)
    predicted[1, 0, 0] = bad
    with pytest.raises(UserError, match="step 1 are not finite"):
        objects.score_rollout(cloud, predicted, robot, ball)


def test_what_was_not_seen_has_no_number(scores):
    values = np.full_like(scores.values, np.nan)
    motion = motion_tables.summarize_motion(dataclasses.replace(scores, values=values))
    assert motion["model"]["moved_error_m"] == [None] * STEPS
    assert "\u2013" in motion_tables.motion_markdown(motion)


def test_verdicts_say_where_the_model_is_ahead(scores):
    motion = motion_tables.summarize_motion(scores)
    still, carried = motion_plots.judge_motion(motion)
    # Untouched spheres are dragged along, so against no motion nothing is gained.
    assert "assuming that nothing moves" in still.text
    assert not still.good
    assert "carrying particles" in carried.text
    better = dict(motion["static_render"])
    better |= {"object_error_m_behind_model": [0.02, 0.02, -0.02],
               "object_error_m_behind_model_ci95": [0.01, 0.01, 0.01],
               "object_error_m_behind_model_mean": 0.02,
               "object_error_m_behind_model_mean_ci95": 0.01}  # fmt: skip
    ahead, _ = motion_plots.judge_motion(motion | {"static_render": better})
    assert ahead.good
    assert "error -20.0 \u00b1 10.0 mm" in ahead.text
    assert "ahead at steps 0 to 1." in ahead.text


def test_files_and_plot_hold_the_same_numbers(scores, tmp_path):
    motion = motion_tables.summarize_motion(scores)
    motion_plots.write_motion(tmp_path, {"one": motion, "two": motion})
    kept = json.loads((tmp_path / "motion.json").read_text())["runs"]
    assert kept["two"] == json.loads(json.dumps(motion))
    text = (tmp_path / "motion.md").read_text()
    assert text.count("## ") == 2
    assert motion_plots.judge_motion(motion)[0].text in text
    axes = motion_plots.plot_motion({"one": motion}).axes[1]
    (line,) = (x for x in axes.get_lines() if x.get_label() == "no motion")
    expected = 1000 * np.array(motion["static_render"]["moved_error_m"])
    np.testing.assert_allclose(line.get_ydata(), expected)
    assert (tmp_path / "motion.png").read_bytes()[:4] == b"\x89PNG"
