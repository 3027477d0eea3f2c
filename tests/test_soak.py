"""The promises of docs/reliability.md that take minutes to test: `make soak`."""

import dataclasses
import json
import multiprocessing
import multiprocessing.process
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import processes
import pytest
import test_importers
import test_simulation
from test_checkpoints import assert_same, make_state
from test_processes import assert_same_losses, losses, wait_for_checkpoint, with_train

from hdvpd.config import Config
from hdvpd.data.importers import FORMATS
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.simulation import bimanual
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.errors import UserError
from hdvpd.training.checkpoints import CheckpointStore

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("soak") / "data"
    write_synthetic_dataset(path, episodes=10, steps=6, height=32, width=40, seed=0)
    return path


@pytest.fixture(scope="module")
def config(debug_config: Config, dataset: Path) -> Config:
    data = dataclasses.replace(debug_config.data, path=str(dataset))
    train = dataclasses.replace(
        debug_config.train, num_steps=6, batch_size=4, log_every=1, validate_every=3,
        validation_windows=3, checkpoint_every=3, keep_checkpoints=10,
    )  # fmt: skip
    return dataclasses.replace(debug_config, data=data, train=train)


@pytest.mark.parametrize("model", ["TinyModel", "Model"])
def test_a_long_run_is_flat(config: Config, tmp_path: Path, model: str) -> None:
    """Resident memory grows by less than 8 MiB per 1,000 steps; files and threads do not grow."""
    bound_mib = 8.0
    long = with_train(
        config, num_steps=2000, batch_size=2, log_every=50, validate_every=200,
        validation_windows=2, checkpoint_every=200, keep_checkpoints=2,
    )  # fmt: skip
    (done,) = processes.finish(
        processes.start_training(long, tmp_path / "run", 1, model=model), seconds=1500
    )
    assert done[0] == 0, done
    lines = map(json.loads, (tmp_path / "run" / "timing.jsonl").read_text().splitlines())
    rows = [r for r in lines if r["kind"] == "train" and r["step"] > 500]
    steps = np.array([r["step"] for r in rows])
    slope_mib, _ = 1000 * np.polyfit(steps, [r["rss_mib"] for r in rows], 1)
    print(f"resident memory: {slope_mib:+.2f} MiB per 1,000 steps (bound {bound_mib})")
    assert slope_mib < bound_mib
    for name in ("open_files", "threads"):
        counts = [r[name] for r in rows]
        print(f"{name}: {min(counts)} to {max(counts)}")
        # A save under way holds a dozen files, so not the largest counts.
        early, late = np.array_split(counts, 2)
        assert np.median(late) <= np.median(early) + 2


def test_four_processes_train_as_one_does(config: Config, tmp_path: Path) -> None:
    for count in (1, 4):
        done = processes.finish(processes.start_training(config, tmp_path / f"{count}", count))
        assert [status for status, _, _ in done] == [0] * count, done
    assert_same_losses(tmp_path / "4", tmp_path / "1")


def test_a_signal_to_one_process_stops_all(config: Config, tmp_path: Path) -> None:
    endless = with_train(config, num_steps=10**6, checkpoint_every=5, preflight="off")
    run = tmp_path / "run"
    with processes.running(endless, run, 2) as started:
        wait_for_checkpoint(run, 5, started)
        started[1].send_signal(signal.SIGTERM)
        done = processes.finish(started)
    assert [status for status, _, _ in done] == [143, 143], done
    last = CheckpointStore(run).sound_step()
    assert max(step for kind, step in losses(run) if kind == "train") == last


def test_a_refusal_in_one_process_ends_all(config: Config, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("precious")
    done = processes.finish(processes.start_training(config, tmp_path / "run", 2), seconds=120)
    assert [status for status, _, _ in done] == [2, 2], done
    assert "already exists" in done[0][2]


def content(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def complete_after_kills(
    write: Callable[..., object], out: Path, whole: Path, *arguments: object, **settings: object
) -> None:
    """Write a data set whole; then another that is killed twenty times, completed, and equal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([write.__module__])

    def begin(path: Path) -> multiprocessing.process.BaseProcess:
        process = context.Process(target=write, args=(*arguments, path), kwargs=settings)
        process.start()
        return process

    begin(whole.with_name("warm")).join()  # starts the server
    started = time.monotonic()
    process = begin(whole)
    process.join()
    assert process.exitcode == 0
    whole_s, killed = time.monotonic() - started, 0
    for number in range(20):
        process = begin(out)
        process.join(random.Random(number).uniform(0.1, whole_s))
        killed += process.is_alive()
        process.kill()
        process.join()
        try:
            Dataset(out).check_arrays()
            shutil.rmtree(out)
        except UserError:  # what is unfinished is refused
            pass
    assert killed > 5
    process = begin(out)
    process.join()
    assert process.exitcode == 0
    assert content(out) == content(whole)


def write_toy(path: Path) -> None:
    write_synthetic_dataset(path, episodes=20, steps=12, height=48, width=64, seed=0)


def write_simulated(path: Path) -> None:
    bimanual.simulate(path, **test_simulation.ARGUMENTS, workers=1)


def test_a_toy_data_set_killed_twenty_times_ends_as_one_never_killed(tmp_path: Path) -> None:
    complete_after_kills(write_toy, tmp_path / "out", tmp_path / "whole")


@test_simulation.needs_rendering
def test_a_simulation_killed_twenty_times_ends_as_one_never_killed(tmp_path: Path) -> None:
    complete_after_kills(write_simulated, tmp_path / "out", tmp_path / "whole")


@pytest.mark.parametrize("name", FORMATS)
def test_an_import_killed_twenty_times_ends_as_one_never_killed(name: str, tmp_path: Path) -> None:
    source, options = test_importers.write_source(name, tmp_path)
    complete_after_kills(
        import_dataset, tmp_path / "out", tmp_path / "whole", name, source, **options
    )


SAVE = """
import sys
from pathlib import Path
from test_checkpoints import make_state, FILES
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.saving import BackgroundSaver
store = CheckpointStore(Path(sys.argv[1]), keep=2)
store.clean()
saver, step = BackgroundSaver(store), max(store.steps(), default=0)
while True:
    step += 1
    saver.save(step, make_state(step), progress={"next_batch": step}, files=FILES)
"""


def test_fifty_kills_while_saving_leave_a_sound_checkpoint_each_time(tmp_path: Path) -> None:
    store, newest = CheckpointStore(tmp_path, keep=2), 0
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(processes.paths())}
    for number in range(50):
        process = subprocess.Popen([sys.executable, "-c", SAVE, str(tmp_path)], env=environment)
        deadline = time.monotonic() + 120
        while max(store.steps(), default=0) <= newest:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(random.Random(number).uniform(0.0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        state, step, _ = store.restore(None, like=make_state(0))
        assert step == store.steps()[-1] > newest
        assert_same(state, make_state(step))
        newest = step


def test_a_disk_that_fills_while_data_are_written_keeps_what_is_finished(small_disk: Path) -> None:
    with pytest.raises(UserError, match="No space left on device"):
        write_synthetic_dataset(
            small_disk / "out", episodes=200, steps=40, height=96, width=128, seed=0
        )
    assert not list((small_disk / "out" / "episodes").glob(".partial-*"))
    kept = Dataset(small_disk / "out")
    kept.check_arrays()
    for episode in kept.episodes:
        assert kept.read(episode.number, "robot/joint_positions").shape[0] == episode.length
