"""Several data sets as one: which windows are drawn, what fits, what logs and resuming say."""

import collections
import csv
import dataclasses
import json
import pickle
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import scenes
from data_tools import edit_json, replace_array
from small_runs import write_run

import hdvpd
from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.config import Config, DataConfig
from hdvpd.config.experiments import load_config, read_toml, to_toml
from hdvpd.config.reading import read
from hdvpd.data.inspect import inspect_all
from hdvpd.data.metadata import read_json
from hdvpd.data.mixture import Mixture, open_dataset
from hdvpd.data.setup import describe_setup
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, describe_windows, read_robot, read_window
from hdvpd.evaluation.controls import lend_plans
from hdvpd.evaluation.episodes import select_windows
from hdvpd.training import step as step_module
from hdvpd.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of the same robot: fewer, longer episodes, images of another size."""
    path = tmp_path_factory.mktemp("mixture") / "other"
    write_synthetic_dataset(path, episodes=3, steps=8, height=24, width=32, seed=5)
    return path


@pytest.fixture
def both(synthetic_dataset: Path, other: Path) -> DataConfig:
    return DataConfig(path=(str(synthetic_dataset), str(other)), height=16, width=20)


@pytest.fixture
def changed(other: Path, tmp_path: Path) -> Path:
    """A copy to be changed."""
    return Path(shutil.copytree(other, tmp_path / "changed"))


def test_episodes_of_all_are_read_under_numbers_of_their_own(both, synthetic_dataset, other):
    mixed, config = open_dataset(both), dataclasses.replace(both, path=str(other))
    first, second = Dataset(synthetic_dataset), Dataset(other)
    assert [e.number for e in mixed.episodes] == [*range(10), 1_000_000, 1_000_001, 1_000_002]
    assert mixed.episode_title(1_000_002) == f"2 of {other}"
    window = read_window(mixed, 1_000_001, 2, 4, both)
    expected = read_window(second, 1, 2, 4, config)
    assert window.episode == 1_000_001
    jax.tree.map(np.testing.assert_array_equal, window.frames, expected.frames)
    jax.tree.map(np.testing.assert_array_equal, window.robot, expected.robot)
    robot = read_robot(mixed, 1_000_001, 2, 4)
    jax.tree.map(np.testing.assert_array_equal, robot, expected.robot)
    same = read_window(first, 3, 1, 4, config)
    jax.tree.map(np.testing.assert_array_equal, read_window(mixed, 3, 1, 4, both), same)
    assert mixed.identity() == f"{first.identity()}+{second.identity()}"
    assert describe_setup(mixed) == describe_setup(first)
    with pytest.raises(UserError, match=r"no episode 2000000; .* 0 to 9, 1000000 to 1000002\."):
        mixed.read(2_000_000, "time_s")


def test_a_mixture_crosses_processes(both):
    mixed = pickle.loads(pickle.dumps(open_dataset(both)))
    np.testing.assert_array_equal(
        mixed.read(1_000_001, "time_s"), mixed.sources[1].read(1, "time_s")
    )


def test_without_weights_every_window_is_as_likely_as_any_other(both):
    index = WindowIndex(open_dataset(both), "train", 4)
    assert len(index) == 8 * 4 + 1 * 6
    drawn = [index.sample(3, step, 2) for step in range(len(index) // 2)]
    assert len({window for batch in drawn for window in batch}) == len(index)


@pytest.mark.parametrize(("weights", "share"), [((1.0, 3.0), 0.75), ((2.0, 1.0), 0.333)])
def test_weights_share_the_draws_out_exactly(both, weights, share):
    index = WindowIndex(open_dataset(both), "train", 4, weights)
    drawn = [window for step in range(500) for window in index.sample(7, step, 4)]
    second = [window for window in drawn if window[0] >= 1_000_000]
    assert len(second) == round(1000 * share) * 2  # of two rounds of a thousand
    # Each data set is visited in passes: after every pass all of its windows are equally often.
    counts = collections.Counter(second)
    assert len(counts) == 6
    assert max(counts.values()) - min(counts.values()) <= 1
    first = collections.Counter(window for window in drawn if window[0] < 1_000_000)
    assert len(first) == 32
    assert max(first.values()) - min(first.values()) <= 1
    # Shuffled: a run of one data set is never long.
    assert 3 < sum(a[0] < 1_000_000 for a in drawn[:40]) < 37


def test_the_draws_are_a_function_of_seed_and_step(both):
    def draws(seed: int, steps: range) -> list:
        index = WindowIndex(open_dataset(both), "train", 4, (1.0, 1.0))
        return [index.sample(seed, step, 3) for step in steps]

    assert draws(1, range(300, 340)) == draws(1, range(340))[300:]
    assert draws(1, range(20)) != draws(2, range(20))


def test_favoured_windows_keep_their_share_within_each_data_set(both):
    index = WindowIndex(open_dataset(both), "train", 4, (1.0, 1.0))
    index.favour([0, 1, 32], 0.5)  # two of the first data set and one of the second
    drawn = [window for step in range(500) for window in index.sample(0, step, 2)]
    counts = collections.Counter(drawn)
    assert counts[index[32]] > 250
    assert counts[index[0]] + counts[index[1]] > 250
    assert len(counts) == len(index)


@pytest.mark.parametrize(
    ("weights", "part"),
    [((1.0,), "has 1 numbers"), ((1.0, 1e-5), "less than one of 1000")],
)
def test_weights_that_cannot_be_are_named(both, weights, part):
    with pytest.raises(UserError, match=part):
        WindowIndex(open_dataset(both), "train", 4, weights)


def test_weight_on_a_data_set_without_windows_is_named(both, synthetic_dataset):
    with pytest.raises(UserError, match=rf"draws from {synthetic_dataset}, .* window of 8 frames"):
        WindowIndex(open_dataset(both), "train", 8, (1.0, 1.0))


def test_what_does_not_fit_is_named_with_its_remedy(both, other, changed, synthetic_dataset):
    description = read_json(changed / "dataset.json")

    def refused(**changes: object) -> str:
        edit_json(changed / "dataset.json", **(description | changes))
        with pytest.raises(UserError) as caught:
            open_dataset(dataclasses.replace(both, path=(str(synthetic_dataset), str(changed))))
        assert str(synthetic_dataset) in str(caught.value)
        assert str(changed) in str(caught.value)
        return str(caught.value)

    (name, camera), *_ = description["cameras"].items()
    assert "--step." in refused(rate_hz=5.0)
    assert "data.cameras" in refused(cameras={name: camera})
    box = {"min": [-9, -9, -9], "max": [0.1, 9, 9]}
    message = refused(workspace=box)
    assert "--data.workspace-min -9 -9 -9" in message
    robot = description["robot"]
    assert "robot.skeleton" in refused(
        robot=robot | {"skeleton": {"points": [robot["links"][0]["name"]]}}
    )
    with pytest.raises(UserError, match="twice"):
        open_dataset(dataclasses.replace(both, path=(str(other), str(other))))
    # With a workspace for all, and cameras that all have, the same data sets can be mixed.
    edit_json(changed / "dataset.json", **(description | {"workspace": box}))
    low, high = (-1.0, -1.0, -1.0), (1.0, 1.0, 1.0)
    paths = (str(synthetic_dataset), str(changed))
    one = dataclasses.replace(both, path=paths, workspace_min=low, workspace_max=high)
    assert open_dataset(one).scene_spec(one).workspace_min == low


def test_a_data_set_is_not_mixed_with_itself_under_another_name(both, changed, monkeypatch):
    link = changed.with_name("link")
    link.symlink_to(changed)
    monkeypatch.chdir(changed.parent)
    for name in ("changed", "./link", str(link), f"{changed}/../changed"):
        with pytest.raises(UserError, match="twice") as caught:
            open_dataset(dataclasses.replace(both, path=(both.paths[0], str(changed), name)))
        assert str(changed) in str(caught.value)
        assert str(Path(name)) in str(caught.value)
        assert "data.weights" in str(caught.value)
    # A copy is another data set.
    open_dataset(dataclasses.replace(both, path=(both.paths[1], str(changed))))


def test_cameras_of_other_names_are_matched_by_their_place(both, changed, synthetic_dataset):
    description = read_json(changed / "dataset.json")
    for number, name in enumerate(list(description["cameras"])):
        renamed = {f"view{number}": description["cameras"].pop(name)}
        description["cameras"] |= renamed
        for episode in (changed / "episodes").iterdir():
            (episode / "cameras" / name).rename(episode / "cameras" / f"view{number}")
    edit_json(changed / "dataset.json", **description)
    config = dataclasses.replace(both, path=(str(synthetic_dataset), str(changed)))
    mixed = open_dataset(config)
    assert mixed.cameras == ("cam0", "cam1")
    window = read_window(mixed, 1_000_000, 0, 4, config)
    np.testing.assert_array_equal(
        window.frames.camera.camera_to_world[0, 1],
        mixed.read(1_000_000, "cameras/view1/camera_to_world").astype(np.float32),
    )


def test_plans_are_lent_within_a_data_set(both):
    mixed = open_dataset(both)
    loans = lend_plans(mixed, [(9, 0), (1_000_002, 1)], "test", 4)
    assert loans[0].episode < 1_000_000 <= loans[1].episode


def test_evaluation_takes_the_held_out_episodes_of_all_or_of_one(both, other):
    settings = dataclasses.replace(load_config("debug").eval, num_steps=2, controls=())
    windows = select_windows(open_dataset(both), settings)
    assert sorted({window.episode for window in windows}) == [9, 1_000_002]
    alone = dataclasses.replace(both, path=str(other))
    assert {w.episode for w in select_windows(open_dataset(alone), settings)} == {2}


def test_a_run_on_several_is_evaluated_on_the_held_out_episodes_of_all(
    synthetic_dataset, other, tmp_path
):
    run, out = write_run(tmp_path / "run", synthetic_dataset, other), tmp_path / "out"
    few = ["--steps", "2", "--eval.num-videos", "0"]
    assert main(["eval", str(run), *few, "--out", str(out)]) == 0
    summary = json.loads((out / "metrics.json").read_text())
    assert summary["episode_numbers"] == [9, 1_000_002]
    assert np.isfinite(summary["model"]["ssim"]).all()
    # Alone, the first is scored as in company: draws follow the episodes' numbers.
    with (out / "episodes.csv").open() as file:
        together = list(csv.DictReader(file))
    words = ["--data.path", str(synthetic_dataset), "--out", str(tmp_path / "one")]
    assert main(["eval", str(run), *few, *words]) == 0
    with (tmp_path / "one" / "episodes.csv").open() as file:
        alone = list(csv.DictReader(file))
    assert len(alone) == len(together) // 2
    assert all(row in together for row in alone)


def test_one_path_stays_a_text_in_files_and_several_are_a_list():
    one, two = DataConfig(path="a"), DataConfig(path=("a", "b"), weights=(1.0, 2.5))
    assert (one.paths, two.paths) == (("a",), ("a", "b"))
    for data in (one, two):
        text = to_toml(Config(data=data))
        assert ('path = "a"' in text) == (data is one)
    tables = {"data": {"path": ["a", "b"], "weights": [1, 2.5]}}
    assert read(tables, source="x.toml").data == two
    for wrong in ([], "", [1], [["a"]]):
        with pytest.raises(UserError, match=r"data\.path"):
            read({"data": {"path": wrong}}, source="x.toml")
    with pytest.raises(UserError, match="positive"):
        read({"data": {"weights": [1, 0]}}, source="x.toml")


@pytest.fixture(scope="module")
def config(debug_config: Config, synthetic_dataset: Path, other: Path) -> Config:
    paths = (str(synthetic_dataset), str(other))
    return dataclasses.replace(
        debug_config,
        data=dataclasses.replace(debug_config.data, path=paths, weights=(1.0, 2.0)),
        train=dataclasses.replace(
            debug_config.train, num_steps=4, log_every=2, validate_every=4, schedule="piecewise",
            learning_rates=(1e-2, 1e-3), boundaries=(3,), checkpoint_every=4,
        ),
    )  # fmt: skip


def train(config: Config, folder: Path, **options: object) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "Model", scenes.TinyModel)
        hdvpd.train.main(config, run_dir=folder, **options)


def with_train(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def test_a_mixed_training_resumes_exactly_and_only_on_the_same_data(
    config, tmp_path, changed, synthetic_dataset
):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(config, whole)
    train(with_train(config, num_steps=2), parts)
    assert RunFolder(parts).config().data == config.data
    edit_json(changed / "dataset.json", licence="another")
    for paths, part in (
        ((str(synthetic_dataset), str(changed)), rf"data\.path = '{changed}' has"),
        ((config.data.paths[1], config.data.paths[0]), r"data set with identity"),
        (config.data.paths[0], r"2 data sets, but data\.path = .* names 1"),
    ):
        data = dataclasses.replace(config.data, path=paths, weights=())
        with pytest.raises(UserError, match=r"data\.weights = \(1\.0, 2\.0\)"):
            train(dataclasses.replace(config, data=data), parts, resume="auto")
        weights = (1.0, 2.0) if isinstance(paths, tuple) else ()
        if weights:
            data = dataclasses.replace(data, weights=weights)
            with pytest.raises(UserError, match=part):
                train(dataclasses.replace(config, data=data), parts, resume="auto")
    train(config, parts, resume="auto")
    assert (parts / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    assert read_toml(parts / "config.toml") == config


def test_a_skipped_step_names_the_data_sets_of_its_windows(config, tmp_path, capsys, monkeypatch):
    source = Path(shutil.copytree(config.data.paths[1], tmp_path / "odd"))
    bright = np.full((9, 24, 32), np.nextafter(np.float32(3e38), np.float32(0)), np.float32)
    replace_array(source, 0, "cameras/cam0/depth", bright)
    data = dataclasses.replace(config.data, path=(config.data.paths[0], str(source)))
    train(with_train(dataclasses.replace(config, data=data), validate_every=0), tmp_path / "run")
    lines = map(json.loads, (tmp_path / "run/metrics.jsonl").read_text().splitlines())
    skipped = [record for record in lines if record["kind"] == "skipped"]
    assert skipped
    named = {tuple(window[:2]) for record in skipped for window in record["windows"]}
    assert (str(source), 0) in named
    assert f"episode 0 of {source} from frame" in capsys.readouterr().out
    assert describe_windows([("a", 3, 1), (4, 2)]) == "episode 3 of a from frame 1, " \
        "episode 4 from frame 2"  # fmt: skip


def test_inspecting_several_says_whether_they_mix(synthetic_dataset, changed, tmp_path, capsys):
    paths = [str(synthetic_dataset), str(changed)]
    inspect_all(paths, tmp_path / "sheets")
    out = capsys.readouterr().out
    assert "A training can mix them" in out
    sheets = sorted(f.parent.name for f in (tmp_path / "sheets").rglob("contact_sheet.png"))
    assert sheets == ["1-synthetic", "2-changed"]
    edit_json(changed / "dataset.json", rate_hz=5.0)
    inspect_all(paths, tmp_path / "sheets")
    assert "Not to be mixed" in capsys.readouterr().out


def test_a_mixture_of_one_kind_is_a_dataset(both):
    assert isinstance(open_dataset(both), Mixture)
    assert type(open_dataset(dataclasses.replace(both, path=(both.paths[0],)))) is Dataset
