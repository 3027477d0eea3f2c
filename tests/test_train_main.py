"""Training runs end to end: exact resuming, signals, damage, full disks, changed settings.

Most tests put a model of a few parameters into the real training step, so that a run takes a
second; the real model is trained in `test_the_real_model_resumes_exactly_in_a_new_process`.
"""

import contextlib
import dataclasses
import errno
import json
import logging
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import extras
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes

import hdvpd
from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Batch
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import read_toml, to_toml
from hdvpd.data import loader
from hdvpd.data.loader import Loader
from hdvpd.model import Model
from hdvpd.training import step as step_module
from hdvpd.training import validation
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.run_folder import config_identity
from hdvpd.training.saving import BackgroundSaver
from hdvpd.training.starting import describe_train_state
from hdvpd.training.step import make_train_step, make_validate


@pytest.fixture(scope="module", autouse=True)
def tiny() -> Iterator[None]:
    """Train the tiny model; runs whose settings give the same programs share them."""
    shared: dict[tuple[Any, ...], Any] = {}

    def sharing(make: Callable[..., Any]) -> Callable[..., Any]:
        def make_once(*arguments: Any, **options: Any) -> Any:
            given = (*arguments, *options.items())
            key = (make, *(config_identity(a) if isinstance(a, Config) else a for a in given))
            if key not in shared:
                shared[key] = make(*arguments, **options)
            return shared[key]

        return make_once

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_module, "Model", scenes.TinyModel)
        for module, make in ((hdvpd.train, make_train_step), (validation, make_validate)):
            patch.setattr(module, make.__name__, sharing(make))
        yield


@pytest.fixture(scope="module")
def config(debug_config: Config, synthetic_dataset: Path) -> Config:
    """Six steps; a log window of 4 that checkpoints every 2 and validations every 3 cut across."""
    return dataclasses.replace(
        debug_config,
        data=dataclasses.replace(debug_config.data, path=str(synthetic_dataset)),
        train=dataclasses.replace(
            debug_config.train,
            num_steps=6,
            schedule="piecewise",
            learning_rates=(1e-2, 1e-3),
            boundaries=(3,),
            log_every=4,
            validate_every=3,
            validation_windows=3,
            checkpoint_every=2,
            keep_checkpoints=10,
        ),
    )


TIMING = "timing.jsonl"


def with_train(config: Config, **changes: Any) -> Config:
    return dataclasses.replace(config, train=dataclasses.replace(config.train, **changes))


def train(config: Config, run_dir: Path, **options: Any) -> None:
    hdvpd.train.main(config, run_dir=run_dir, **options)


def records(run_dir: Path, kind: str, file: str = "metrics.jsonl") -> list[dict[str, Any]]:
    lines = (run_dir / file).read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def params(run_dir: Path, step: int, config: Config) -> dict[str, bytes]:
    """The bytes of a whole train state, by name."""
    scene = SceneSpec.from_dict(json.loads((run_dir / "scene.json").read_text()))
    _, like = describe_train_state(config, scene)
    state, _, _ = CheckpointStore(run_dir).restore(step, like)
    leaves, _ = jax.tree.flatten_with_path(state)
    return {jax.tree_util.keystr(path): np.asarray(leaf).tobytes() for path, leaf in leaves}


def assert_same_run(actual: Path, expected: Path, config: Config) -> None:
    """Every byte of the last state (optimiser and counters included) and of the log agree."""
    last = CheckpointStore(expected).steps()[-1]
    assert params(actual, last, config) == params(expected, last, config)
    assert (actual / "metrics.jsonl").read_text() == (expected / "metrics.jsonl").read_text()


@pytest.fixture(scope="module")
def whole(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run; tests read it, or copy it first."""
    path = tmp_path_factory.mktemp("runs") / "whole"
    train(config, path)
    return path


@pytest.fixture
def copy(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def test_a_run_learns_and_logs(whole: Path, config: Config) -> None:
    (header,) = records(whole, "run")
    assert header["seed"] == config.train.seed
    assert header["versions"]["jax"] == jax.__version__
    assert [r["step"] for r in records(whole, "train")] == [4, 6]
    assert [r["step"] for r in records(whole, "validation")] == [0, 3, 6]
    assert CheckpointStore(whole).steps() == [0, 2, 4, 6]
    losses = [r["loss"] for r in records(whole, "validation")]
    assert losses[0] > losses[1] > losses[2]
    assert read_toml(whole / "config.toml") == config
    assert "jax==" in (whole / "env.txt").read_text()
    assert (whole / "first_batch.png").stat().st_size > 0
    for name in ("scene.json", "dataset.json", "git.txt"):
        assert (whole / name).is_file()


def test_two_runs_write_the_same_log(whole: Path, config: Config, tmp_path: Path) -> None:
    train(config, tmp_path / "again")
    assert_same_run(tmp_path / "again", whole, config)
    train(with_train(config, seed=1), tmp_path / "other")
    assert records(tmp_path / "other", "train") != records(whole, "train")


def test_the_log_does_not_know_when_or_where(whole: Path, config: Config) -> None:
    text = (whole / "metrics.jsonl").read_text()
    for secret in (str(whole), config.data.path, socket.gethostname(), "time", "second"):
        assert secret not in text


def test_timing_is_reported(whole: Path, config: Config) -> None:
    first, _ = records(whole, "train", "timing.jsonl")
    assert first["steps_per_s"] > 0
    assert 0 <= first["data_wait_share"] <= 1
    particles = config.train.batch_size * config.train.horizon * config.model.num_particles
    assert first["particles_per_s"] == pytest.approx(first["steps_per_s"] * particles, rel=0.01)
    assert first["peak_rss_mib"] >= 10
    assert len(records(whole, "checkpoint", "timing.jsonl")) == 4
    assert [r["what"] for r in records(whole, "compile", "timing.jsonl")] == [
        "the training step and the validation",
    ]


def test_validation_always_sees_the_same(config: Config, tmp_path: Path) -> None:
    still = with_train(config, learning_rates=(0.0, 0.0))
    train(still, tmp_path / "run")
    first, *others = [r["loss"] for r in records(tmp_path / "run", "validation")]
    assert others == [first, first]


@pytest.mark.parametrize("stop", [2, 3, 5])
def test_a_run_in_two_parts_equals_the_whole(
    whole: Path, config: Config, tmp_path: Path, stop: int
) -> None:
    train(with_train(config, num_steps=stop), tmp_path / "parts")
    train(config, tmp_path / "parts", resume="auto")
    assert_same_run(tmp_path / "parts", whole, config)


def test_an_average_of_parameters_is_resumed_and_is_what_a_model_is_made_of(
    config: Config, tmp_path: Path
) -> None:
    config = with_train(config, ema_decay=0.2)
    train(config, tmp_path / "whole")
    train(with_train(config, num_steps=3), tmp_path / "parts")
    train(config, tmp_path / "parts", resume="auto")
    assert_same_run(tmp_path / "parts", tmp_path / "whole", config)
    saved = params(tmp_path / "whole", 6, config)
    averages = {k: v for k, v in saved.items() if k.startswith(".params")}
    iterates = {k.replace(".iterate", ".params", 1): v for k, v in saved.items() if ".iterate" in k}
    assert averages.keys() == iterates.keys()
    assert averages != iterates
    scene = SceneSpec.from_dict(json.loads((tmp_path / "whole" / "scene.json").read_text()))
    like = describe_train_state(config, scene)[1].params
    read = CheckpointStore(tmp_path / "whole").restore_params(6, like)
    assert [np.asarray(x).tobytes() for x in jax.tree.leaves(read)] == list(averages.values())


def test_runs_of_several_seeds_can_share_one_step(config: Config, tmp_path: Path) -> None:
    made: dict[str, Any] = {}

    def share(config: Config, graphdef: Any) -> Any:
        return made.setdefault("step", make_train_step(config, graphdef))

    other = with_train(config, seed=7)
    train(config, tmp_path / "first", make_step=share)
    train(other, tmp_path / "shared", make_step=share)
    train(other, tmp_path / "own")
    assert_same_run(tmp_path / "shared", tmp_path / "own", other)
    assert records(tmp_path / "shared", "train") != records(tmp_path / "first", "train")


def test_resuming_reads_the_windows_that_were_not_read(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, list[int], list[int]]] = []
    read_next = Loader.__next__

    def watch(loader: Loader) -> tuple[int, Batch]:
        step, batch = read_next(loader)
        seen.append((step, np.asarray(batch.episode).tolist(), np.asarray(batch.start).tolist()))
        return step, batch

    monkeypatch.setattr(Loader, "__next__", watch)
    long = with_train(config, num_steps=30, checkpoint_every=7)
    train(long, tmp_path / "whole")
    expected, seen[:] = list(seen), []
    train(with_train(long, num_steps=11), tmp_path / "parts")
    train(dataclasses.replace(long, data=dataclasses.replace(long.data, num_workers=4)),
          tmp_path / "parts", resume="auto")  # fmt: skip
    assert len(expected) == 30
    assert seen == expected


def test_resuming_from_an_earlier_step_repeats_the_rest(
    whole: Path, copy: Path, config: Config, tmp_path: Path
) -> None:
    train(config, tmp_path / "elsewhere", resume=str(copy), step=2)
    assert_same_run(copy, whole, config)
    assert not (tmp_path / "elsewhere").exists()
    names = {p.name for p in (copy / "checkpoints").iterdir()}
    assert names == {"0", "2", "4", "6", "4.aside", "6.aside"}


def test_resuming_a_finished_run_by_name_changes_nothing(
    whole: Path, copy: Path, config: Config
) -> None:
    train(config, copy.parent / "other", resume=copy.name)
    assert_same_run(copy, whole, config)
    assert not (copy.parent / "other").exists()


def test_resume_auto_starts_what_does_not_exist(
    whole: Path, config: Config, tmp_path: Path
) -> None:
    train(config, tmp_path / "new", resume="auto")
    assert_same_run(tmp_path / "new", whole, config)


def at_step(step: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something after the batch of this step has been read, before it is used."""
    read = hdvpd.train.device_batches

    def device_batches(batches: Loader, count: int, *rest: Any):
        for number, batch in enumerate(read(batches, count, *rest), start=1):
            if number == step:
                act()
            yield batch

    monkeypatch.setattr(hdvpd.train, "device_batches", device_batches)


@pytest.mark.parametrize(
    ("number", "status", "step"),
    [
        (signal.SIGTERM, 143, 1),
        (signal.SIGINT, 130, 3),
        (signal.SIGTERM, 143, 4),
        (signal.SIGTERM, 143, 6),
    ],
)
def test_a_signal_saves_within_a_step_and_loses_nothing(
    whole: Path, config: Config, tmp_path: Path, step: int, number: int, status: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        at_step(step, lambda: send(number), patch)
        with pytest.raises(SystemExit) as stop:
            train(config, tmp_path / "run")
    assert stop.value.code == status
    # The batch of a step is read while the step before it runs.
    assert CheckpointStore(tmp_path / "run").steps()[-1] == max(step - 1, 0)
    train(config, tmp_path / "run", resume="auto")
    assert_same_run(tmp_path / "run", whole, config)


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def test_a_signal_ends_the_wait_for_data_that_do_not_come_and_loses_nothing(
    whole: Path, config: Config, tmp_path: Path
) -> None:
    """The disk falls silent after the third step; without a signal the wait ends in an error."""
    # With one batch read ahead, the fifth is asked for only after the third was used.
    patient = dataclasses.replace(
        config, data=dataclasses.replace(config.data, patience_s=30.0, prefetch=1)
    )
    answers, read, silent = threading.Event(), loader.read_window, []

    def read_or_hang(dataset: Any, episode: int, start: int, *rest: Any) -> Any:
        if silent:
            answers.wait(600)
        return read(dataset, episode, start, *rest)

    def fall_silent() -> None:
        silent.append(True)
        threading.Timer(1.0, lambda: send(signal.SIGTERM)).start()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader, "read_window", read_or_hang)
        patch.setattr(loader, "_CLOSING_S", 0.1)
        at_step(3, fall_silent, patch)
        with pytest.raises(SystemExit) as stop:
            train(patient, tmp_path / "run")
    answers.set()
    assert stop.value.code == 143
    assert CheckpointStore(tmp_path / "run").steps()[-1] >= 3
    train(config, tmp_path / "run", resume="auto")
    assert_same_run(tmp_path / "run", whole, config)


def test_a_validation_lost_to_a_signal_is_made_up_for(
    whole: Path, config: Config, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        at_step(4, lambda: send(signal.SIGTERM), patch)
        with pytest.raises(SystemExit):
            train(config, tmp_path / "run")
    assert CheckpointStore(tmp_path / "run").steps()[-1] == 3
    assert [r["step"] for r in records(tmp_path / "run", "validation")] == [0]
    train(config, tmp_path / "run", resume="auto")
    assert [r["step"] for r in records(tmp_path / "run", "validation")] == [0, 3, 6]


def test_records_after_the_checkpoint_are_cut_off(
    whole: Path, config: Config, tmp_path: Path
) -> None:
    train(with_train(config, num_steps=3), tmp_path / "run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "3")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 400, "loss": 1}\n{"kind": "train", "ste')
    train(config, tmp_path / "run", resume="auto")
    assert_same_run(tmp_path / "run", whole, config)


def test_a_damaged_checkpoint_costs_only_its_steps(
    whole: Path, config: Config, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = tmp_path / "run"
    train(with_train(config, num_steps=4), run)
    file = next(p for p in (run / "checkpoints" / "4").rglob("d/*") if p.is_file())
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(UserError, match="4 is damaged"):
        train(config, run, resume="auto", step=4)
    with caplog.at_level(logging.WARNING, "hdvpd"):
        train(config, run, resume="auto")
    assert "taking the one before it" in caplog.text
    assert_same_run(run, whole, config)
    assert (run / "checkpoints" / "4.aside").is_dir()


def test_a_full_disk_stops_the_run_and_loses_nothing(
    whole: Path, config: Config, tmp_path: Path
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:

        def fill() -> None:
            wait_until(lambda: 2 in CheckpointStore(tmp_path / "run").steps())
            patch.setattr(os, "posix_fallocate", fail)

        at_step(4, fill, patch)
        with pytest.raises(UserError, match=r"checkpoints/4: No space left.*--resume"):
            train(config, tmp_path / "run")
    assert CheckpointStore(tmp_path / "run").steps() == [0, 2]
    train(config, tmp_path / "run", resume="auto")
    assert_same_run(tmp_path / "run", whole, config)


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Wait for another thread or process; what never comes fails the test."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_training_goes_on_while_a_checkpoint_is_written(
    whole: Path, config: Config, tmp_path: Path
) -> None:
    # The save of step 2 ends only after step 3 has been computed: were it waited for, none would.
    save, computed = CheckpointStore.save, threading.Event()

    def save_late(store: CheckpointStore, step: int, *rest: Any, **named: Any) -> Path:
        if step == 2:
            assert computed.wait(60)
        return save(store, step, *rest, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "save", save_late)
        at_step(4, computed.set, patch)
        train(config, tmp_path / "run")
    assert_same_run(tmp_path / "run", whole, config)
    waited = {r["step"]: r["waited_s"] for r in records(tmp_path / "run", "checkpoint", TIMING)}
    assert list(waited) == [0, 2, 4, 6]


def test_a_second_save_waits_for_the_first(tmp_path: Path) -> None:
    let_go, begun = threading.Event(), []

    class Slow(CheckpointStore):
        def save(self, step: int, state: Any, **_: Any) -> Path:
            begun.append(step)
            assert let_go.wait(60)
            return tmp_path

    saver = BackgroundSaver(Slow(tmp_path))
    assert saver.save(1, {}, progress={}, files={}) is None
    threading.Timer(0.2, let_go.set).start()
    assert saver.finished() is None
    first = saver.save(2, {}, progress={}, files={})
    assert first is not None
    assert first.step == 1
    last = saver.finished(wait=True)
    assert last is not None
    assert (last.step, begun) == (2, [1, 2])
    assert saver.close() is None


def poison(steps: set[int], monkeypatch: pytest.MonkeyPatch, value: float = np.nan) -> None:
    """Replace the depth in the batches of these steps by NaN, or by infinity."""
    read = hdvpd.train.device_batches

    def device_batches(batches: Loader, count: int, *rest: Any):
        for number, batch in enumerate(read(batches, count, *rest), start=1):
            depth_m = jnp.full_like(batch.frames.depth_m, value)
            frames = dataclasses.replace(batch.frames, depth_m=depth_m)
            yield dataclasses.replace(batch, frames=frames) if number in steps else batch

    monkeypatch.setattr(hdvpd.train, "device_batches", device_batches)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_non_finite_steps_are_skipped_and_visible(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str], value: float,
) -> None:  # fmt: skip
    poison({1, 4, 5}, monkeypatch, value)
    train(with_train(config, max_nonfinite=3, num_steps=8), tmp_path / "run")
    skipped = records(tmp_path / "run", "skipped")
    assert [r["step"] for r in skipped] == [1, 4, 5]
    windows = hdvpd.train.open_data(config).windows
    for record in skipped:
        drawn = windows.sample(config.train.seed, record["step"] - 1, config.train.batch_size)
        assert [tuple(window) for window in record["windows"]] == drawn
    first, second = records(tmp_path / "run", "train")
    assert (first["nonfinite"], second["nonfinite"]) == (2, 1)
    assert np.isfinite([first["loss"], first["grad_norm"], second["loss"]]).all()
    assert (
        "step 4: loss or gradient is not finite, step skipped (episode " in capsys.readouterr().out
    )
    saved = [params(tmp_path / "run", step, config) for step in (2, 4, 6)]
    weights = [{k: v for k, v in state.items() if "params" in k} for state in saved]
    assert weights[0] != weights[1] != weights[2]


@pytest.mark.parametrize("limit", [1, 2])
def test_too_many_skipped_steps_in_a_row_end_the_run(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    poison({3, 4, 5}, monkeypatch)
    with pytest.raises(UserError, match=f"not finite in {limit} steps in a row"):
        train(with_train(config, max_nonfinite=limit), tmp_path / "run")
    assert len(records(tmp_path / "run", "skipped")) == limit
    assert CheckpointStore(tmp_path / "run").sound_step() == 2


def test_an_existing_run_is_not_written_over(whole: Path, config: Config) -> None:
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    with pytest.raises(UserError, match=r"already exists.*--resume auto.*--name"):
        train(config, whole)
    assert {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()} == before


def test_a_path_below_which_nothing_can_be_saved_is_refused(config: Config, tmp_path: Path) -> None:
    folder = tmp_path / "rate[0.1]" / "run"
    with pytest.raises(UserError, match=r"rate\[0\.1\].*checkpoints cannot be saved.*--name"):
        train(config, folder)
    assert not folder.parent.exists()


def test_a_run_that_cannot_start_leaves_no_folder(config: Config, tmp_path: Path) -> None:
    missing = dataclasses.replace(config, data=dataclasses.replace(config.data, path="nowhere"))
    for wrong in (missing, with_train(config, horizon=50)):
        with pytest.raises(UserError):
            train(wrong, tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_without_tensorboard_no_folder_is_taken(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UserError, match="tensorboardX"):
        train(with_train(config, tensorboard=True), tmp_path / "run")
    train(config, tmp_path / "run")


def test_a_start_that_saved_nothing_leaves_nothing_in_the_log(
    whole: Path, config: Config, tmp_path: Path
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "save", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train(with_train(config, seed=3), tmp_path / "run")
    train(config, tmp_path / "run", resume="auto")
    assert_same_run(tmp_path / "run", whole, config)


def test_unknown_runs_and_steps_are_named(whole: Path, config: Config, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no run to resume at 'typo'.*whole"):
        train(config, whole, resume="typo")
    with pytest.raises(UserError, match=r"no checkpoint of step 5; it has \[0, 2, 4, 6\]"):
        train(config, whole, resume="auto", step=5)
    with pytest.raises(UserError, match=r"--step 5 chooses a checkpoint.*--resume"):
        train(config, tmp_path / "new", step=5)


def test_a_changed_setting_is_refused_by_name(whole: Path, config: Config) -> None:
    with pytest.raises(UserError, match=r"train.clip_norm = 0.01, but this command says 0.5"):
        train(with_train(config, clip_norm=0.5), whole, resume="auto")
    other = dataclasses.replace(config, model=dataclasses.replace(config.model, latent_dim=64))
    with pytest.raises(UserError, match=r"model.latent_dim = 32, but this command says 64"):
        train(other, whole, resume="auto")
    assert CheckpointStore(whole).sound_step() == 6


def test_fewer_steps_than_were_done_are_refused(whole: Path, config: Config) -> None:
    with pytest.raises(UserError, match=r"has done 6 steps, more than train.num_steps = 4"):
        train(with_train(config, num_steps=4), whole, resume="auto")
    assert CheckpointStore(whole).sound_step() == 6


def test_the_length_of_a_cosine_schedule_cannot_change(config: Config, tmp_path: Path) -> None:
    cosine = with_train(config, schedule="cosine", num_steps=2)
    train(cosine, tmp_path / "run")
    with pytest.raises(UserError, match=r"train.num_steps = 2.*cosine"):
        train(with_train(cosine, num_steps=4), tmp_path / "run", resume="auto")


def test_data_may_move_but_not_change(
    whole: Path, config: Config, tmp_path: Path, synthetic_dataset: Path
) -> None:
    def with_path(path: Path) -> Config:
        return dataclasses.replace(config, data=dataclasses.replace(config.data, path=str(path)))

    parts = tmp_path / "parts"
    train(with_train(config, num_steps=3), parts)
    shutil.copytree(synthetic_dataset, tmp_path / "moved")
    file = tmp_path / "moved" / "dataset.json"
    original = file.read_text()
    file.write_text(sealed.dumps(json.loads(original) | {"rate_hz": 4.0}))
    with pytest.raises(UserError, match="data set with identity"):
        train(with_path(tmp_path / "moved"), parts, resume="auto")
    file.write_text(original)
    train(with_path(tmp_path / "moved"), parts, resume="auto")
    assert_same_run(parts, whole, config)


def test_one_process_at_a_time(
    whole: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def train_again() -> None:
        with pytest.raises(UserError, match="Another process is training in"):
            train(config, tmp_path / "run", resume="auto")
        tried.append(True)

    tried: list[bool] = []
    at_step(2, train_again, monkeypatch)
    train(config, tmp_path / "run")
    assert tried
    assert_same_run(tmp_path / "run", whole, config)


def test_training_opens_no_connection(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def inet_sockets() -> int:
        tables = (Path("/proc/self/net") / name for name in ("tcp", "tcp6", "udp", "udp6"))
        lines = [line for t in tables if t.is_file() for line in t.read_text().splitlines()[1:]]
        known = {line.split()[9] for line in lines}
        links = []
        for entry in Path("/proc/self/fd").iterdir():
            with contextlib.suppress(OSError):  # that of the listing itself is closed by now
                links.append(os.readlink(entry))
        return sum(link.removeprefix("socket:[").removesuffix("]") in known for link in links)

    before, during = inet_sockets(), []
    at_step(2, lambda: during.append(inet_sockets()), monkeypatch)
    train(config, tmp_path / "run")
    assert during == [before]
    with socket.create_server(("127.0.0.1", 0)):
        assert inet_sockets() == before + 1  # such a socket is seen


def events(run: Path) -> dict[tuple[str, int], float]:
    """What TensorBoard shows: later files hide what earlier ones say from their first step on."""
    event_pb2: Any = extras.needed("tensorboardX.proto.event_pb2")
    shown: dict[tuple[str, int], float] = {}
    for file in sorted((run / "tb").iterdir(), key=lambda f: (f.stat().st_mtime_ns, f.name)):
        data, place = file.read_bytes(), 0
        while place < len(data):
            (size,) = struct.unpack("<Q", data[place : place + 8])
            event = event_pb2.Event.FromString(data[place + 12 : place + 12 + size])
            place += size + 16
            if event.HasField("session_log"):
                shown = {key: value for key, value in shown.items() if key[1] < event.step}
            for value in event.summary.value:
                shown[value.tag, event.step] = value.simple_value
    return shown


def test_event_files_continue_where_the_run_does(config: Config, tmp_path: Path) -> None:
    extras.needed("tensorboardX")
    logged = with_train(config, tensorboard=True)
    train(logged, tmp_path / "whole")
    train(with_train(logged, num_steps=3), tmp_path / "parts")
    train(logged, tmp_path / "parts", resume="auto")
    expected = events(tmp_path / "whole")
    assert ("validation/loss", 3) in expected
    assert events(tmp_path / "parts") == expected


def test_the_step_transfers_nothing_implicitly(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def device_batches(loader: Loader, count: int, *rest: Any):
        for _ in range(count):
            yield next(loader)[1]

    monkeypatch.setattr(hdvpd.train, "device_batches", device_batches)
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"):
        train(config, tmp_path / "run")


def test_the_real_model_resumes_exactly(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool
) -> None:
    monkeypatch.setattr(step_module, "Model", Model)
    dynamics = dataclasses.replace(config.model.dynamics, num_layers=1)
    model = dataclasses.replace(config.model, dynamics=dynamics, unet_channels=(8,))
    config = with_train(config, num_steps=4, validate_every=0, horizon=1)
    config = dataclasses.replace(config, model=model)
    whole, copy = tmp_path / "whole", tmp_path / "copy"
    train(config, whole)
    assert records(whole, "train")[0]["loss_step_0"] > 0
    weights = [params(whole, step, config) for step in (0, 2, 4)]
    assert weights[0] != weights[1] != weights[2]
    shutil.copytree(whole, copy)
    if long:
        resume_in_new_process(config, copy)
    else:
        train(with_train(config, preflight="on"), copy, resume="auto", step=2)
        (tried,) = records(copy, "preflight", TIMING)
        assert list(tried["parts"]) == ["training step", "rollout with an image"]
        assert 0 < tried["peak_mib"] < tried["available_mib"]
    assert (copy / "checkpoints" / "4.aside").is_dir()
    assert_same_run(copy, whole, config)


def resume_in_new_process(config: Config, path: Path) -> None:
    file = path.parent / "mine.toml"
    file.write_text(to_toml(config))
    command = [sys.executable, "-m", "hdvpd", "train", str(file), "--resume", str(path)]
    done = subprocess.run([*command, "--step", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compiled the training step in" in done.stdout


RESUME = """
import sys
from pathlib import Path
import hdvpd
from hdvpd.training import step
from hdvpd.config.experiments import read_toml
from scenes import TinyModel
step.Model = TinyModel
hdvpd.train.main(read_toml(sys.argv[1]), run_dir=Path(sys.argv[2]), resume="auto", step=2)
"""


def test_a_new_process_continues_exactly(whole: Path, copy: Path, config: Config) -> None:
    arguments = [str(whole / "config.toml"), str(copy)]
    done = subprocess.run(
        [sys.executable, "-c", RESUME, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)},
    )
    assert done.returncode == 0, done.stderr
    assert (copy / "checkpoints" / "4.aside").is_dir()
    assert_same_run(copy, whole, config)
