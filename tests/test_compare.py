"""`hdvpd compare` end to end: two members, two seeds, two steps, stopped once and continued.

The model behind the real commands has a few parameters, so that compiling takes no time; the seeds
and the members still change what it predicts.
"""

import contextlib
import dataclasses
import json
import shutil
import signal
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from hdvpd import model
from hdvpd.__main__ import main as command
from hdvpd.basics.errors import UserError
from hdvpd.basics.files import locked
from hdvpd.basics.layers import Keys, count_parameters
from hdvpd.basics.types import Rendering
from hdvpd.commands import compare_runs
from hdvpd.commands.planned_runs import PlannedRun, plan_runs, with_seed
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import load_config, to_toml
from hdvpd.config.members import member_names, with_member
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import read_window
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.evaluation.curves import Scores
from hdvpd.evaluation.kept_scores import read_scores, scores_to_json
from hdvpd.evaluation.model_card import training_hours
from hdvpd.model import Model
from hdvpd.model.compiled import make_compiler
from hdvpd.training import step
from hdvpd.training.checkpoints import load_model
from hdvpd.training.run_folder import RunFolder
from hdvpd.training.session import Session


class TinyModel(Model):
    """Colours and features from linear maps; the member decides about a bias in the dynamics."""

    def __init__(self, config: Config, scene: SceneSpec, *, rngs: nnx.Rngs):
        width, with_bias = config.model.feature_dim, config.model.dynamics.local is not None
        self.unet = nnx.Linear(3, width, rngs=rngs)
        self.dynamics = nnx.Linear(width, width, use_bias=with_bias, rngs=rngs)
        self.config, self.scene = config, scene

    def rollout(self, previous, current, robot, key):
        features = jnp.asarray(current.features)
        features += self.dynamics(features)
        steps = robot.positions.shape[0] - 2
        cloud = dataclasses.replace(current, features=features)
        return jax.tree.map(lambda x: jnp.stack([x] * steps), cloud)

    def index(self, clouds):
        del clouds

    def render(self, cloud, rays, key, index=None):
        del key, index
        rgb = jax.nn.sigmoid(cloud.features.mean(0)[None, :3] + 0.1 * rays.directions)
        return Rendering(rgb=rgb, depth_m=rays.directions[:, 2], acc=rays.directions[:, 2])

    def loss(self, batch, key, *, scored=False, first_window=0):
        del scored, first_window  # noise is one draw for the batch, and the loss the only one
        colors = batch.frames.rgb.mean((2, 3, 4)) / 255
        features = self.unet(colors[:, 1:2])
        predicted = jax.nn.sigmoid((features + self.dynamics(features))[..., :3])
        noise = 0.1 * jax.random.normal(key, predicted.shape)
        return jnp.square(predicted + noise - colors[:, 2:]).mean((0, 2))


RUNS = ["none-0", "grf-0", "none-1", "grf-1"]
SCENE = SceneSpec(84, (-0.5, -0.75, -0.05), (0.6, 0.75, 0.8))
RESULTS = ("comparison.json", "comparison.md", "members.csv", "pairs.csv", "curves.csv", "runs.csv")


@pytest.fixture(scope="module", autouse=True)
def tiny():
    with pytest.MonkeyPatch.context() as patch:
        for module in (step, model):
            patch.setattr(module, "Model", TinyModel)
        yield


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, debug_config):
    """File of a tiny experiment on twenty episodes, of which 9 and 19 are held out."""
    root = tmp_path_factory.mktemp("compare")
    write_synthetic_dataset(root / "scene", episodes=20, steps=4, height=32, width=40, seed=0)
    config = dataclasses.replace(
        debug_config,
        data=dataclasses.replace(debug_config.data, path=str(root / "scene")),
        model=dataclasses.replace(debug_config.model, num_particles=128),
        train=dataclasses.replace(
            debug_config.train, num_steps=2, log_every=1, checkpoint_every=1, validate_every=0
        ),
    )
    (root / "tiny.toml").write_text(to_toml(config))
    return root / "tiny.toml"


def compare_members(experiment, out, *flags):
    words = ["compare", str(experiment), "--members", "none,grf", "--seeds", "2"]
    return command([*words, "--out", str(out), *flags])


@pytest.fixture(scope="module")
def traces():
    """Traces of the loss before and after the interruption."""
    return [0, 0]


@pytest.fixture(scope="module")
def out(tmp_path_factory, experiment, traces):
    """A comparison that was stopped after the first step of its first run and then continued."""
    folder = tmp_path_factory.mktemp("out") / "comparison"
    count_step, loss = Session.count, TinyModel.loss

    def stop_after_one(self, metrics, **times):
        count_step(self, metrics, **times)
        signal.raise_signal(signal.SIGTERM)

    def counted(self, batch, key, **options):
        traces[(folder / "runs" / "none-0" / "checkpoints" / "1").exists()] += 1
        return loss(self, batch, key, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TinyModel, "loss", counted)
        patch.setattr(Session, "count", stop_after_one)
        assert compare_members(experiment, folder) == 128 + signal.SIGTERM
        assert not (folder / "comparison.json").exists()
        patch.setattr(Session, "count", count_step)
        assert compare_members(experiment, folder) == 0
    return folder


def records(file, kind):
    return [r for r in map(json.loads, file.read_text().splitlines()) if r["kind"] == kind]


def test_an_interrupted_run_is_resumed_and_all_are_trained_to_the_end(out):
    starts = {n: records(out / "runs" / n / "timing.jsonl", "start") for n in RUNS}
    assert [[start["step"] for start in starts[name]] for name in RUNS] == [[0, 1], [0], [0], [0]]
    for name in RUNS:
        assert (out / "runs" / name / "checkpoints" / "2").is_dir()
        steps = [r["step"] for r in records(out / "runs" / name / "metrics.jsonl", "train")]
        assert steps == [1, 2]


def test_seeds_of_a_member_share_one_compiled_step(out, traces):
    assert out.is_dir()
    assert traces == [1, len(("none", "grf"))]


def test_the_same_command_repeats_nothing(out, experiment, monkeypatch, capsys):
    def refuse(*arguments, **options):
        raise AssertionError((arguments, options))

    before = {name: (out / name).read_bytes() for name in RESULTS}
    timing = (out / "runs" / "grf-1" / "timing.jsonl").read_bytes()
    monkeypatch.setattr("hdvpd.training.train.main", refuse)
    monkeypatch.setattr(compare_runs, "evaluate_run", refuse)
    assert compare_members(experiment, out) == 0
    assert {name: (out / name).read_bytes() for name in RESULTS} == before
    assert (out / "runs" / "grf-1" / "timing.jsonl").read_bytes() == timing
    printed = capsys.readouterr().out
    assert "none \u2212 grf" in printed
    assert str(out / "ssim.png") in printed


def test_what_was_scored_needs_no_checkpoint(out, experiment, tmp_path, monkeypatch, capsys):
    copy = shutil.copytree(out, tmp_path / "copy")
    for run in (copy / "runs").iterdir():
        shutil.rmtree(run / "checkpoints")
    for name in RESULTS:
        (copy / name).unlink()
    assert compare_members(experiment, copy) == 0
    for name in RESULTS:
        assert (copy / name).read_bytes() == (out / name).read_bytes()
    monkeypatch.setattr("hdvpd.training.train.main", None)  # nothing is trained anew in silence
    message = failing(
        capsys, *("compare", experiment, "--members", "none", "--seeds", 2, "--out", copy),
        *("--eval.moving-threshold", 0.2),
    )  # fmt: skip
    assert "none-0 was scored on other frames" in message
    assert "checkpoint of step 2 is gone" in message
    message = failing(
        capsys, *("compare", experiment, "--members", "none", "--seeds", 2, "--out", copy),
        *("--train.clip-norm", 0.2),
    )  # fmt: skip
    assert "none-0/scores.json is damaged or was made otherwise" in message
    assert "no checkpoint is left" in message


def test_tables_are_made_from_every_run(out, experiment):
    summary = json.loads((out / "comparison.json").read_text())
    assert (summary["seeds"], summary["episodes"], summary["steps"]) == ([0, 1], [9, 19], 2)
    for member in ("none", "grf"):
        folders = [out / "runs" / f"{member}-{seed}" for seed in range(2)]
        scores = [json.loads((folder / "scores.json").read_text()) for folder in folders]
        ssim = np.array([s["images"] for s in scores], float)[:, :, 0, :, :, 0]
        entry = summary["members"][member]
        assert entry["average_over_steps"]["ssim"]["mean"] == pytest.approx(ssim.mean())
        assert not np.array_equal(ssim[0], ssim[1])
        windows = [r for f in folders for r in records(f / "timing.jsonl", "train")]
        rates = [record["steps_per_s"] for record in windows]
        assert entry["steps_per_s"] == pytest.approx(np.median(rates))
        config = load_config(str(experiment)).train
        per_step = config.batch_size * config.horizon * 128
        assert entry["particles_per_s"] == pytest.approx(per_step * np.median(rates), rel=1e-3)
        assert entry["skipped_steps"] == 0
    sizes = {name: entry["parameters"] for name, entry in summary["members"].items()}
    assert sizes["none"] < sizes["grf"]
    assert (out / "ssim.png").stat().st_size > 1000


def test_a_shared_compiled_model_uses_each_models_own_parameters(out):
    models = [load_model(out / "runs" / name)[0] for name in ("none-0", "none-1")]
    dataset = Dataset(models[0].config.data.path)
    window = read_window(dataset, 9, 0, 2, models[0].config.data)
    compiler = make_compiler(models[0])
    shared = [
        compiler(model).encode(window.frames, window.robot, jax.random.key(0)) for model in models
    ]
    first = jax.tree.map(lambda x: x[0], (window.frames, window.robot))
    encode = jax.jit(lambda f, r, k: models[1].encode(f, r, jax.random.split(k)[0]))
    own = encode(*first, jax.random.key(0))
    np.testing.assert_allclose(shared[1].features[0], own.features, atol=1e-5)
    assert not np.allclose(shared[0].features, shared[1].features, atol=1e-3)


def test_what_another_process_trains_and_scores_is_left_to_it(
    out, experiment, tmp_path, monkeypatch, capsys
):
    copy = shutil.copytree(out, tmp_path / "copy")
    shutil.rmtree(copy / "runs" / "none-0" / "checkpoints" / "2")
    for name in ("none-0", "grf-0"):
        (copy / "runs" / name / "scores.json").unlink()
    others = contextlib.ExitStack()
    others.enter_context(RunFolder(copy / "runs" / "none-0").lock())
    others.enter_context(locked(copy / "runs" / "grf-0" / ".lock-scores", "held", "none"))
    looked = []

    def look_again(seconds):  # the other process ends while this one sleeps
        looked.append(capsys.readouterr().out)
        others.close()

    monkeypatch.setattr(compare_runs, "time", types.SimpleNamespace(sleep=look_again))
    assert compare_members(experiment, copy) == 0
    assert len(looked) == 1
    assert "none-0: another process is at it" in looked[0]
    assert "grf-1 is finished" in looked[0]
    assert "none-0 training" not in looked[0]
    for name in ("curves.csv", "pairs.csv"):  # the others hold speeds, too
        assert (copy / name).read_text() == (out / name).read_text()


def test_a_damaged_checkpoint_is_not_a_finished_run(out, experiment, tmp_path):
    folder = shutil.copytree(out / "runs" / "none-0", tmp_path / "none-0")
    config = with_seed(with_member(load_config(str(experiment)), "none"), 0)
    run = PlannedRun("none", config, folder)
    identity = Dataset(config.data.path).identity()
    run.scores.unlink()
    assert compare_runs.is_finished(run, identity)
    (folder / "checkpoints" / "2" / "arrays.json").write_text("{}")
    assert not compare_runs.is_finished(run, identity)


def failing(capsys, *words):
    assert command([str(word) for word in words]) == 2
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    return message


def test_runs_on_other_data_are_refused(out, experiment, tmp_path, capsys):
    write_synthetic_dataset(tmp_path / "other", episodes=10, steps=4, height=32, width=40, seed=1)
    words = ("compare", experiment, "--members", "none", "--out", out)
    message = failing(capsys, *words, "--data.path", tmp_path / "other")
    assert "none-0 was trained on the data set with identity" in message
    message = failing(capsys, *words, "--render.eval-num-samples", 7)
    assert "none-0 was trained with render.eval_num_samples = " in message
    assert "this command says 7" in message
    message = failing(capsys, *words, "--train.num-rays", 8)
    assert "none-0 was trained with train.num_rays = 32" in message


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        (("--members", "grff"), ["no member 'grff'", "did you mean 'grf'?"]),
        (("--members", "transformer"), ["no member 'transformer'", *member_names()]),
        (("--members", "grf,grf"), ["name members once each"]),
        (("--seeds", 0), ["--seeds 0", "positive"]),
        (("--data.path", "/nowhere"), ["There is no data set at /nowhere"]),
    ],
)
def test_a_mistake_is_found_before_anything_is_trained(flags, parts, tmp_path, capsys):
    flags = flags if "--members" in flags else ("--members", "grf", *flags)
    message = failing(capsys, "compare", "debug", "--out", tmp_path / "out", *flags)
    for part in parts:
        assert part in message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "key",
    ["eval.num-steps=1,2", "render.far=2.0,2.4", "data.path=ONE,OTHER",
     "data.workspace-max=[0.2,0.5,0.5],[0.5,0.5,0.5]"],
)  # fmt: skip
def test_what_cannot_be_paired_is_refused_before_anything_is_trained(
    key, experiment, synthetic_dataset, tmp_path, capsys
):
    write_synthetic_dataset(tmp_path / "other", episodes=10, steps=4, height=32, width=40, seed=1)
    varied = key.replace("ONE", str(synthetic_dataset)).replace("OTHER", str(tmp_path / "other"))
    words = ["compare", experiment, "--vary", varied, "--out", tmp_path / "out"]
    if "workspace" in key:
        words += ["--data.workspace-min", "-0.5", "-0.5", "-0.05"]
        words += ["--data.workspace-max", "0.5", "0.5", "0.5"]
    assert "would be scored on different frames" in failing(capsys, *words)
    assert not (tmp_path / "out").exists()


def test_seeds_start_at_the_experiments_and_members_take_turns(debug_config, tmp_path):
    train = dataclasses.replace(debug_config.train, seed=5)
    config = dataclasses.replace(debug_config, train=train)
    runs = plan_runs(config, ["none", "grf"], 2, tmp_path)
    assert [run.name for run in runs] == ["none-5", "grf-5", "none-6", "grf-6"]
    assert [run.config.train.seed for run in runs] == [5, 5, 6, 6]
    dynamics = [run.config.model.dynamics for run in runs]
    assert all(isinstance(settings, InterlacerSettings) for settings in dynamics)
    assert [settings.local is None for settings in dynamics] == [True, False] * 2


def test_a_member_can_be_a_file(debug_config, tmp_path):
    file = tmp_path / "short.toml"
    file.write_text("[model.dynamics]\nnum_layers = 1\n")
    (run,) = plan_runs(debug_config, [str(file)], 1, tmp_path / "runs")
    assert (run.name, run.config.model.dynamics.num_layers) == ("short-0", 1)
    for twice in (["grf", str(tmp_path / "grf.toml")], [str(file)] * 2):
        with pytest.raises(UserError, match="once each"):
            plan_runs(debug_config, twice, 1, tmp_path / "runs")
    file.write_text("[model]\nnum_layers = 1\n")
    with pytest.raises(UserError, match=r"short.toml.*earlier version, model.dynamics.num_layers"):
        plan_runs(debug_config, [str(file)], 1, tmp_path / "runs")


def test_members_differ_in_the_dynamics_only():
    config, shared = load_config("compare"), []
    for member in member_names():
        own = with_seed(with_member(config, member), 0)
        assert dataclasses.replace(own, model=config.model) == config
        model = nnx.eval_shape(lambda own=own: Model(own, SCENE, rngs=Keys(0)))
        total, dynamics = (count_parameters(part) for part in (model, model.dynamics))
        shared.append(total - dynamics)
        assert 0 < dynamics < total
    assert len(set(shared)) == 1


def test_scores_are_read_back_only_for_the_same_frames(tmp_path):
    rng = np.random.default_rng(0)
    images = rng.normal(size=(2, 2, 2, 3, 4))
    images[0, 1] = np.nan
    predictors = ("model", "copy_last_frame")
    scores = Scores("run", ("a", "b"), (9, 19), predictors, images, rng.normal(size=(2, 2, 3, 2)))
    file = tmp_path / "scores.json"
    assert read_scores(file, {"seed": 0}) is None
    file.write_text(scores_to_json(scores, {"seed": 0}))
    back = read_scores(file, {"seed": 0})
    assert back is not None
    np.testing.assert_array_equal(back.images, images)
    np.testing.assert_array_equal(back.depth, scores.depth)
    assert (back.name, back.cameras, back.episodes) == ("run", ("a", "b"), (9, 19))
    assert back.predictors == predictors
    assert read_scores(file, {"seed": 1}) is None
    assert read_scores(file, {"seed": 0, "steps": 2}) is None
    assert read_scores(file, {}) is not None
    file.write_text(file.read_text()[:-50])
    assert read_scores(file, {"seed": 0}) is None


def test_a_line_cut_off_by_a_crash_costs_only_itself(tmp_path):
    file = tmp_path / "timing.jsonl"
    whole = '{"kind": "train", "steps_per_s": %s}\n'
    file.write_text(whole % 1.5 + '{"kind": "tra' + whole % 2 + whole % 2.5 + '{"kind": "start"}\n')
    assert RunFolder(tmp_path).numbers("timing.jsonl", "train", "steps_per_s") == (1.5, 2.5)
    assert RunFolder(tmp_path).numbers("metrics.jsonl", "train", "steps_per_s") == ()


def test_a_flipped_bit_in_a_log_costs_only_its_line(tmp_path):
    file = tmp_path / "timing.jsonl"
    line = b'{"kind": "train", "step": 4, "steps_per_s": 2.5}\n'
    for bit in range(8 * (len(line) - 1)):
        flipped = bytearray(line)
        flipped[bit // 8] ^= 1 << bit % 8
        file.write_bytes(line + flipped + line)
        found = RunFolder(tmp_path).numbers("timing.jsonl", "train", "steps_per_s")
        assert found[0] == found[-1] == 2.5
        assert len(found) in (2, 3)
        assert training_hours(tmp_path) >= 0


def test_windows_do_not_depend_on_controls_that_are_not_scored(synthetic_dataset, debug_config):
    config = dataclasses.replace(
        debug_config,
        data=dataclasses.replace(debug_config.data, path=str(synthetic_dataset)),
        eval=dataclasses.replace(debug_config.eval, num_steps=2),
    )
    few = dataclasses.replace(config.eval, controls=("copy_last_frame",))
    runs = [
        PlannedRun(name, dataclasses.replace(config, eval=settings), Path(name))
        for name, settings in {"all": config.eval, "few": few}.items()
    ]
    frames = compare_runs.frames_of(runs)
    assert "shuffled_actions" in config.eval.controls
    assert frames["all"] == frames["few"]
