"""`hdvpd eval` end to end on the analytic scene, with a model that was never trained.

The dynamics starts as the identity, so before training the prediction is the static render and
actions change nothing: two exact statements about the whole chain. A second run has perturbed
parameters, whose prediction must depend on the actions.
"""

import csv
import dataclasses
import functools
import importlib.util
import itertools
import json
import re
import shutil

import jax
import numpy as np
import pytest
from PIL import Image

from hdvpd import eval as evaluation
from hdvpd.__main__ import main as command
from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Camera, ParticleCloud, Rendering
from hdvpd.config import EvalConfig
from hdvpd.config.experiments import apply_overrides
from hdvpd.data.schema import EpisodeInfo
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import read_window
from hdvpd.evaluation import curves, episodes, metrics, rollouts
from hdvpd.evaluation.scoring import WindowScores
from hdvpd.model import Model
from hdvpd.model.compiled import CompiledModel, compile_model
from hdvpd.training.checkpoints import CheckpointStore, load_model
from hdvpd.training.run_folder import RunFolder
from hdvpd.training.session import new_progress
from hdvpd.training.step import create_train_state

STEPS = 2


def few_videos(number: int) -> dict:
    return {"eval": {"num_videos": number, "windows_per_episode": 1}}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Twenty episodes, of which 9 and 19 are held out."""
    path = tmp_path_factory.mktemp("data") / "scene"
    return write_synthetic_dataset(path, episodes=20, steps=4, height=32, width=40, seed=0)


@pytest.fixture(scope="module")
def config(debug_config, dataset):
    """Images are half as large as the data set's."""
    small = {
        "data": {"path": str(dataset.path), "height": 16, "width": 20},
        "model": {"num_particles": 128, "dynamics": {"num_layers": 1}},
    }
    return apply_overrides(debug_config, small)


@pytest.fixture(scope="module")
def untrained(config, dataset):
    """The state with which a training begins."""
    return create_train_state(config, dataset.scene_spec(config.data))[1]


def write_run(folder, config, dataset, state, noise):
    """Save a run of untrained or perturbed parameters as training would."""
    folder.mkdir(parents=True)
    scene = dataset.scene_spec(config.data)
    rng = np.random.default_rng(0)
    params = jax.tree.map(
        lambda x: x + np.asarray(noise * rng.normal(size=x.shape), x.dtype), state.params
    )
    files = RunFolder(folder).describe(config, scene, dataset_identity=dataset.identity())
    CheckpointStore(folder).save(
        3,
        dataclasses.replace(state, params=params),
        progress=new_progress(dataset.identity()),
        files=files,
    )
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory, config, dataset, untrained):
    """The folders of an untrained and of a perturbed run, never written to by a test."""
    root = tmp_path_factory.mktemp("runs")
    return {
        "fresh": write_run(root / "fresh", config, dataset, untrained, 0.0),
        "noisy": write_run(root / "noisy", config, dataset, untrained, 0.1),
    }


@pytest.fixture(scope="module")
def traces():
    """How often jax traced each part of a model."""
    return {"encode": 0, "rollout": 0, "render": 0}


@pytest.fixture(scope="module")
def compared(tmp_path_factory, runs, traces):
    """Both runs evaluated together."""

    def count(name):
        original = getattr(Model, name)

        def counted(*args, **kwargs):
            traces[name] += 1
            return original(*args, **kwargs)

        return counted

    out = tmp_path_factory.mktemp("out") / "both"
    with pytest.MonkeyPatch.context() as patch:
        for name in traces:
            patch.setattr(Model, name, count(name))
        page = lambda clip, run: f"{clip.title} in {run.folder.name}"  # noqa: E731
        evaluation.main(list(runs.values()), out=out, overrides=few_videos(1), scene_page=page)
    return out


@pytest.fixture
def summaries(compared):
    return json.loads((compared / "metrics.json").read_text())["runs"]


def test_before_training_the_prediction_is_the_static_render(summaries):
    for metric in curves.METRICS:
        fresh = summaries["fresh"]
        np.testing.assert_allclose(
            np.array(fresh["model"][metric], float),
            np.array(fresh["static_render"][metric], float),
            rtol=1e-5,
        )
        assert fresh["model"][metric] == fresh["shuffled_actions"][metric]
        assert fresh["model"][metric] == fresh["zero_actions"][metric]


def test_measures_of_pixels_and_of_the_reconstruction_are_there(compared, summaries):
    fresh = summaries["fresh"]
    assert fresh["pixels"]["model"] == fresh["pixels"]["static_render"]
    assert fresh["pixels"]["model"]["object_psnr"][0] > 0
    assert 0 < fresh["reconstruction"]["ssim"]["mean"] < 1
    assert fresh["reconstruction"]["depth_error_m"]["mean"] > 0
    motion = fresh["motion"]
    assert motion["model"]["object_error_m"] == motion["static_render"]["object_error_m"]
    # Two held-out episodes of 5 frames, rolled out for 2 steps.
    assert motion["windows"] == 4
    for name in ("pixels.csv", "pixels.png", "motion.md", "motion.csv", "motion.png"):
        assert (compared / name).stat().st_size > 100
    assert "median depth error" in (compared / "metrics.md").read_text()


def test_runs_of_one_name_write_nothing_outside_of_out(tmp_path, runs):
    alike = [shutil.copytree(runs["fresh"], tmp_path / name / "same") for name in "ab"]
    before = [sorted(run.rglob("*")) for run in alike]
    settings = {"num_episodes": 1, "windows_per_episode": 1, "num_steps": 1, "controls": []}
    overrides = {"eval": few_videos(1)["eval"] | settings}
    evaluation.main(alike, out=tmp_path / "out", overrides=overrides)
    assert [sorted(run.rglob("*")) for run in alike] == before
    videos = sorted((tmp_path / "out" / "videos").rglob("*.mp4"))
    assert [video.parent.name for video in videos] == ["0-same", "1-same"]


def test_without_images_the_motion_is_the_same(tmp_path, runs, summaries):
    # There every window is rolled out on its own, here one of two is taken from its images.
    out = tmp_path / "motion"
    evaluation.main([runs["noisy"]], out=out, overrides=few_videos(0), objects_only=True)
    motion = json.loads((out / "motion.json").read_text())["runs"]["noisy"]
    origin = {key: summaries["noisy"][key] for key in ("checkpoint_step", "dataset", "seed")}
    assert motion == origin | summaries["noisy"]["motion"]
    before = (out / "motion.json").read_bytes()
    (out / "metrics.json").write_text("{}")
    again = functools.partial(evaluation.main, [runs["noisy"]], out=out, objects_only=True)
    again(overrides=few_videos(0))
    assert not (out / "previous-1").exists()
    again(overrides={"eval": {"num_episodes": 1}})
    kept = {file.name for file in (out / "previous-1").iterdir()}
    assert kept == {"motion.json", "motion.md", "motion.csv", "motion.png"}
    assert (out / "previous-1" / "motion.json").read_bytes() == before
    assert (out / "motion.json").read_bytes() != before
    assert (out / "metrics.json").read_text() == "{}"


def test_a_model_with_dynamics_differs_from_static_render_and_heeds_the_actions(summaries):
    noisy = summaries["noisy"]
    assert noisy["model"]["psnr"] != noisy["static_render"]["psnr"]
    assert noisy["model"]["psnr"] != noisy["shuffled_actions"]["psnr"]
    assert noisy["model"]["psnr"] != noisy["zero_actions"]["psnr"]
    assert noisy["kinematics_only"]["psnr"] != noisy["static_render"]["psnr"]


def whitened(rgb, depth_m, scene, far, camera):
    """Colours in float64, white where there is no particle, written out pixel by pixel."""
    height, width = depth_m.shape
    image = rgb.astype(np.float64) / 255
    for i, j in np.ndindex(height, width):
        z = float(depth_m[i, j])
        fx, fy = camera.intrinsics[0, 0], camera.intrinsics[1, 1]
        cx, cy = camera.intrinsics[0, 2], camera.intrinsics[1, 2]
        local = np.array([(j + 0.5 - cx) / fx, (i + 0.5 - cy) / fy, 1.0]) * z
        point = camera.camera_to_world[:3, :3].astype(float) @ local
        point = point + camera.camera_to_world[:3, 3]
        inside = np.all((point >= scene.workspace_min) & (point <= scene.workspace_max))
        if not (z > 0 and inside and np.linalg.norm(local) <= far):
            image[i, j] = 1.0
    return image


def test_copying_the_last_frame_is_scored_exactly(summaries, dataset, config):
    scene = dataset.scene_spec(config.data)
    values = np.empty((2, 2, STEPS, 4))
    for (e, number), view in itertools.product(enumerate((9, 19)), range(2)):
        frames = read_window(dataset, number, 0, 2 + STEPS, config.data).frames
        images = [
            whitened(
                frames.rgb[f, view],
                frames.depth_m[f, view],
                scene,
                config.render.far,
                Camera(
                    intrinsics=frames.camera.intrinsics[f, view],
                    camera_to_world=frames.camera.camera_to_world[f, view],
                ),
            )
            for f in range(1, 2 + STEPS)
        ]
        for step in range(STEPS):
            last, truth = images[0], images[1 + step]
            moving = metrics.moving_pixels(truth, last, 0.1)
            values[e, view, step] = metrics.score_frame(last, truth, moving)
    assert np.isfinite(values).all()
    for i, metric in enumerate(curves.METRICS):
        found = summaries["fresh"]["copy_last_frame"]
        np.testing.assert_allclose(found[metric], values[..., i].mean((0, 1)), atol=1e-5)
        for view, camera in enumerate(dataset.cameras):
            by_camera = summaries["fresh"]["cameras"][camera]["copy_last_frame"][metric]
            np.testing.assert_allclose(by_camera, values[:, view, :, i].mean(0), atol=1e-5)


def test_scores_agree_with_the_written_pictures(compared):
    with (compared / "episodes.csv").open() as file:
        rows = [r for r in csv.DictReader(file) if r["run"] == "noisy" and r["episode"] == "9"]
    folder = compared / "frames" / "noisy" / "episode-0009"
    for row in rows:
        if row["predictor"] != "model":
            continue
        stem = f"{row['camera']}-step-{int(row['step']):02d}"
        truth, prediction = (
            np.asarray(Image.open(folder / f"{stem}-{kind}.png")) / 255
            for kind in ("truth", "prediction")
        )
        # Rounding to 256 levels moves SSIM a little.
        assert metrics.ssim(prediction, truth) == pytest.approx(float(row["ssim"]), abs=0.01)
        assert metrics.psnr(prediction, truth) == pytest.approx(float(row["psnr"]), abs=0.05)


def test_the_report_leads_to_a_page_in_three_dimensions(compared):
    report = compared / "report" / "index.html"
    ways = re.findall(r'href="(\S+)">The first rollout in three dimensions', report.read_text())
    pages = [(report.parent / way).resolve().read_text() for way in ways]
    assert [page.split(" in ")[1] for page in pages] == ["fresh", "noisy"]
    assert all(page.startswith("episode 9") for page in pages)


def test_every_part_is_traced_once(compared, traces):
    # Although there are two runs, two episodes, two cameras, two steps, and other plans.
    assert (compared / "metrics.json").is_file()
    assert traces == {"encode": 1, "rollout": 1, "render": 1}


@pytest.fixture
def run_copy(tmp_path, runs):
    return shutil.copytree(runs["noisy"], tmp_path / "runs" / "noisy")


def test_one_run_is_evaluated_into_its_own_folder(run_copy, dataset, summaries, capsys):
    assert command(["eval", str(run_copy), "--steps", "1", "--eval.num-episodes", "1"]) == 0
    folder = run_copy / "eval"
    summary = json.loads((folder / "metrics.json").read_text())
    assert (summary["steps"], summary["episodes"]) == (1, 1)
    assert [(w["episode"], w["start"]) for w in summary["windows"]] == [(9, 0), (9, 1), (9, 2)]
    assert all(w["loan"]["episode"] != 9 for w in summary["windows"])
    assert (summary["joint_targets_source"], summary["moving_cameras"]) == ("commanded", [])
    assert summary["links_source"] == dataset.robot.name
    assert len(summary["model"]["ssim"]) == 1
    assert summary["model"]["depth_abs_rel"][0] > 0
    video = folder / "videos" / "episode-0009.mp4"
    report = run_copy / "report" / "index.html"
    picture = folder / "frames" / "episode-0009" / "step-00.png"
    for path in (video, video.with_suffix(".jpg"), folder / "ssim.png", picture):
        assert path.stat().st_size > 100
    scene = folder / "scenes" / "episode-0009.html"
    assert scene.is_file() == bool(importlib.util.find_spec("viser"))
    page = report.read_text()
    assert ("../eval/scenes/episode-0009.html" in page) == scene.is_file()
    assert "data:video/mp4;base64," in page
    printed = capsys.readouterr().out
    assert all(str(path) in printed for path in (video, folder / "ssim.png", report))
    few = "1 held-out episode, 3 windows: too few"
    assert all(few in text for text in (printed, page, (folder / "metrics.md").read_text()))
    assert "recorded commands" in page
    assert not list(folder.glob(".partial-*"))

    # A longer rollout does not overwrite these results, and alone a run scores as in company.
    old = (folder / "metrics.json").read_bytes()
    evaluation.main([run_copy], overrides=few_videos(0))
    kept = folder / "previous-1"
    assert (kept / "metrics.json").read_bytes() == old
    assert (kept / "videos" / "episode-0009.mp4").is_file()
    assert (kept / "report.html").read_text() == page
    assert sealed.loads((folder / "metrics.json").read_text()) == summaries["noisy"]


def moving_camera(steps, views, moved):
    poses = np.broadcast_to(np.eye(4, dtype=np.float32), (steps, views, 4, 4)).copy()
    if moved:
        poses[:, :, 0, 3] = np.arange(steps)[:, None]
    return Camera(
        intrinsics=np.broadcast_to(np.eye(3, dtype=np.float32), (steps, views, 3, 3)),
        camera_to_world=poses,
    )


def unused(*arguments):
    raise AssertionError(arguments)


# What was seen is the resting cloud, before the cameras as they are at first or a metre beside.
@pytest.mark.parametrize(
    ("moved", "beside", "images"),
    [(False, None, 10), (True, None, 16), (False, 0, 10), (False, 1, 12), (True, 0, 18)],
)
def test_all_clouds_are_rendered_in_one_call_and_what_rests_once(moved, beside, images):
    calls = []

    def render(clouds, camera):
        calls.append(camera)
        # A picture that tells cloud and camera.
        x = clouds.positions[:, None, :1, 0] + camera.camera_to_world[:, :, 0, 3:]
        x = np.broadcast_to(x[..., None], (*x.shape[:2], 3, 4))
        return Rendering(rgb=np.stack([x] * 3, axis=-1), depth_m=x, acc=x)

    def clouds(*batch):
        return ParticleCloud(
            positions=np.zeros((*batch, 5, 3), np.float32),
            features=np.zeros((*batch, 5, 2), np.float32),
            mask=np.ones((*batch, 5), bool),
        )

    moving, resting = clouds(4), clouds()
    moving.positions[:] = np.arange(10, 14)[:, None, None]
    resting.positions[:] = 100
    compiled = CompiledModel(unused, unused, render, unused)
    camera = moving_camera(4, 2, moved)
    seen = None
    if beside is not None:
        before = jax.tree.map(lambda x: np.array(x[0]), camera)
        before.camera_to_world[:, 0, 3] += beside
        seen = resting, before
    rgb, depth_m = rollouts.render_clouds(
        compiled, {"model": moving}, {"static": resting}, camera, seen
    )
    (rendered,) = calls
    assert np.prod(rendered.intrinsics.shape[:2]) == images
    times = np.arange(4) if moved else np.zeros(4)
    np.testing.assert_array_equal(rgb["model"][:, 1, 2, 3, 0], np.arange(10, 14) + times)
    np.testing.assert_array_equal(depth_m["static"][:, 0, 1, 2], 100 + times)
    if seen is not None:
        np.testing.assert_array_equal(depth_m[rollouts.RECONSTRUCTION][0, 0, 1, 2], 100 + beside)
    assert all(x.shape == (4, 2, 3, 4, 3) for x in rgb.values())


class Listed(Dataset):
    """A data set of which only lengths and splits exist."""

    def __init__(self, lengths, splits):
        self.path = self.title = "data/listed"
        self.episodes = tuple(
            EpisodeInfo(n, length, "push", split)
            for n, (length, split) in enumerate(zip(lengths, splits, strict=True))
        )
        self._by_number = {e.number: e for e in self.episodes}


def settings(**values):
    return EvalConfig(controls=("static_render", "copy_last_frame"), **values)


def test_windows_are_spread_over_every_episode_and_short_ones_have_fewer():
    listed = Listed([9, 17, 6, 7], ["train", "test", "test", "test"])
    windows = episodes.select_windows(listed, settings(num_steps=4))
    starts = [(w.episode, w.start) for w in windows]
    assert starts == [(1, 0), (1, 4), (1, 8), (2, 0), (3, 0), (3, 1)]
    one = episodes.select_windows(listed, settings(num_steps=4, windows_per_episode=1))
    assert [(w.episode, w.start) for w in one] == [(1, 0), (2, 0), (3, 0)]


def test_an_episode_too_short_for_the_rollout_stops_the_evaluation():
    listed = Listed([30, 21, 30], ["test", "test", "test"])
    with pytest.raises(UserError, match=r"episode 1 .* has 21 frames.*need 26.*--steps 19"):
        episodes.select_windows(listed, settings(num_steps=24))
    windows = episodes.select_windows(listed, settings(num_steps=24, skip_short=True))
    assert [w.episode for w in windows] == [0, 0, 0, 2, 2, 2]


def test_episodes_are_averaged_over_their_windows():
    ones, nan = np.ones((2, 2, 3, 4)), np.full((2, 2, 3, 4), np.nan)
    depth, pixels, seen = np.zeros((2, 3, 2)), np.zeros((2, 2, 3, 5)), np.zeros((2, 5))

    def window(images, by):
        return WindowScores(images, pixels + by, depth + by, seen + by)

    scored = {5: [window(ones, 0), window(3 * ones, 1)], 7: [window(nan, 0), window(ones, 0)]}
    predictors = ("model", "zero_actions")
    scores = episodes.collect_scores("demo", ("a", "b"), predictors, scored)
    assert scores.episodes == (5, 7)
    np.testing.assert_array_equal(scores.images[0], 2 * ones)
    np.testing.assert_array_equal(scores.images[1], ones)
    for name in ("depth", "pixels", "reconstruction"):
        np.testing.assert_array_equal(getattr(scores, name)[0], 0.5)
        np.testing.assert_array_equal(getattr(scores, name)[1], 0.0)


def failing(capsys, *words):
    assert command(["eval", *map(str, words)]) == 2
    message = capsys.readouterr().err
    assert "Traceback" not in message
    return message


def test_a_missing_run_is_named_with_a_remedy(tmp_path, capsys):
    message = failing(capsys, tmp_path / "nothing")
    assert "nothing is no run folder" in message
    assert "hdvpd train" in message


def test_a_run_without_checkpoint_is_refused(tmp_path, runs, capsys):
    (tmp_path / "empty").mkdir()
    shutil.copy(runs["noisy"] / "config.toml", tmp_path / "empty")
    assert "no checkpoints/" in failing(capsys, tmp_path / "empty")
    assert "no checkpoint of step 99" in failing(capsys, runs["noisy"], "--step", 99)
    assert not (tmp_path / "empty" / "eval").exists()


def test_missing_data_is_named_and_can_be_replaced(run_copy, tmp_path, capsys):
    message = failing(capsys, run_copy, "--data.path", tmp_path / "gone")
    assert "There is no data set at" in message
    assert "--data.path" in message


def test_more_steps_than_frames_are_refused(run_copy, capsys):
    message = failing(capsys, run_copy, "--steps", 24)
    assert "episode 9" in message
    assert "5 frames" in message
    assert "--steps 3 or less" in message


@pytest.mark.parametrize(("length", "remedy"), [(4, "--steps 2 or less"), (2, "Leave such")])
def test_the_shortest_episode_says_what_to_ask_for(synthetic_dataset, monkeypatch, length, remedy):
    dataset = Dataset(synthetic_dataset)
    episode = dataset.episode(9)
    short = [dataclasses.replace(episode, length=frames) for frames in (5, length, 6)]
    monkeypatch.setattr(dataset, "split", lambda name: short)
    with pytest.raises(UserError, match=rf"has {length} frames.* {remedy}"):
        episodes.select_windows(dataset, settings(num_steps=24))


def test_a_trained_model_cannot_be_asked_to_be_another(run_copy):
    with pytest.raises(UserError, match=r"dynamics.num_layers = 3 .* trained with 1.*--data.path"):
        evaluation.main([run_copy], overrides={"model": {"dynamics": {"num_layers": 3}}})
    with pytest.raises(UserError, match=r"model.dynamics.local.kind = 'mp' .*with 'attention'"):
        evaluation.main([run_copy], overrides={"model": {"dynamics": {"local": "mp"}}})


def test_a_data_set_of_another_robot_is_refused(run_copy, dataset, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(dataset.path, other)
    info = sealed.loads((other / "dataset.json").read_text())
    info["workspace"]["max"][2] += 0.25
    (other / "dataset.json").write_text(json.dumps(info))
    message = failing(capsys, run_copy, "--data.path", other)
    assert "trained for" in message
    assert str(other) in message


def test_several_runs_need_a_place_and_the_same_frames(
    runs, tmp_path, config, dataset, untrained, capsys
):
    pair = list(runs.values())
    assert "--out DIR" in failing(capsys, *pair)
    assert "named twice" in failing(capsys, pair[0], pair[0], "--out", tmp_path / "out")
    render = dataclasses.replace(config.render, far=1.5)
    short_sighted = dataclasses.replace(config, render=render)
    other = write_run(tmp_path / "short-sighted", short_sighted, dataset, untrained, 0.1)
    message = failing(capsys, pair[0], other, "--out", tmp_path / "out", "--eval.num-episodes", 1)
    assert "far is 2.0 and 1.5" in message
    assert not (tmp_path / "out").exists()


def test_runs_of_the_same_name_are_told_apart(runs, tmp_path):
    twin = shutil.copytree(runs["noisy"], tmp_path / "noisy")
    assert list(evaluation.find_runs([runs["fresh"], twin])) == ["fresh", "noisy"]
    names = list(evaluation.find_runs([runs["noisy"], twin]))
    assert names == [runs["noisy"].as_posix(), twin.as_posix()]


def test_an_unwritable_place_is_named_and_keeps_what_was_there(run_copy, capsys):
    (run_copy / "eval").write_text("mine")
    message = failing(capsys, run_copy)
    assert f"Could not write {run_copy / 'eval'}" in message
    assert (run_copy / "eval").read_text() == "mine"


def test_a_prediction_that_is_not_finite_is_not_silently_left_out(runs, dataset, config):
    model, *_ = load_model(runs["noisy"])
    compiled = compile_model(model)
    size = config.data.height, config.data.width

    def render(clouds, camera):
        shape = (*camera.intrinsics.shape[:2], *size)
        return Rendering(
            rgb=np.full((*shape, 3), np.nan, np.float32),
            depth_m=np.ones(shape, np.float32),
            acc=np.ones(shape, np.float32),
        )

    broken = dataclasses.replace(compiled, render=render)
    batch = read_window(dataset, 9, 0, 2 + STEPS, config.data)
    with pytest.raises(UserError, match="rollout step 0 in episode 9"):
        rollouts.evaluate_window(broken, batch, None, controls=(), seed=0, moving_threshold=0.1)
