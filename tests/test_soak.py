"""The promises of docs/reliability.md on training that take minutes to test: `make soak`."""

import dataclasses
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import processes
import pytest
from scipy.stats import theilslopes
from test_checkpoints import assert_same, make_state
from test_processes import assert_same_losses, losses, six_steps, wait_for_checkpoint, with_train

from hdvpd.config import Config
from hdvpd.config.experiments import to_toml
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.training.checkpoints import CheckpointStore

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def config(debug_config: Config, synthetic_dataset: Path) -> Config:
    return six_steps(debug_config, synthetic_dataset)


@pytest.mark.parametrize("model", ["TinyModel", "Model"])
def test_a_long_run_is_flat(
    config: Config,
    tmp_path: Path,
    model: str,
    record_property: Callable[[str, str], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Resident memory grows by less than 8 MiB per 1,000 steps; files and threads do not grow."""
    bound_mib = 8.0
    monkeypatch.setenv("XLA_FLAGS", "")  # compiled as a user's: the steps are most of the time here
    long = with_train(
        config, num_steps=2000, batch_size=2, log_every=50, validate_every=200,
        validation_windows=2, checkpoint_every=200, keep_checkpoints=2,
        preflight="auto" if model == "Model" else "off",  # the linear model rolls nothing out
    )  # fmt: skip
    (done,) = processes.finish(
        processes.start_training(long, tmp_path / "run", 1, model=model), seconds=1500
    )
    assert done[0] == 0, done
    lines = map(json.loads, (tmp_path / "run" / "timing.jsonl").read_text().splitlines())
    rows = [r for r in lines if r["kind"] == "train" and r["step"] > 500]
    steps = np.array([r["step"] for r in rows])
    memory_mib = [r["rss_mib"] for r in rows]
    # The median of the slopes between any two: buffers that are freed in another order for once
    # take memory for good, which is no leak.
    slope_mib = 1000 * theilslopes(memory_mib, steps)[0]
    measured = (
        f"resident memory {min(memory_mib):.0f} to {max(memory_mib):.0f} MiB, {slope_mib:+.2f} "
        f"per 1,000 steps (bound {bound_mib:g})"
    )
    record_property("measured", measured)
    assert slope_mib < bound_mib, measured
    for name in ("open_files", "threads"):
        counts = [r[name] for r in rows]
        slope, _ = 1000 * np.polyfit(steps, counts, 1)
        # A save under way holds a dozen files, so not the largest counts.
        early, late = map(np.median, np.array_split(counts, 2))
        measured = (
            f"{name} {min(counts)} to {max(counts)}, {slope:+.2f} per 1,000 steps, median of the "
            f"first half {early:g}, of the second {late:g} (bound {early + 2:g})"
        )
        record_property("measured", measured)
        assert late <= early + 2, measured


def test_four_processes_train_as_one_does(config: Config, tmp_path: Path) -> None:
    for count in (1, 4):
        done = processes.finish(processes.start_training(config, tmp_path / f"{count}", count))
        assert [status for status, _, _ in done] == [0] * count, processes.told(done)
    assert_same_losses(tmp_path / "4", tmp_path / "1")


SPREAD = """
import sys
options = dict(zip(sys.argv[2::2], sys.argv[3::2]))
if options:
    from hdvpd.training.processes import join
    numbers = map(int, (options["--num-processes"], options["--process-id"]))
    join(options["--coordinator"], *numbers)
import test_spread
test_spread.compare_with_one_device()
print("compared", test_spread.mesh().size)
sys.exit()
"""


def test_a_process_that_compiles_host_code_trains_as_one_that_loads_it(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every loss has the same bits: numba stores loops that it optimised once more than those it
    goes on with."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "host"))
    monkeypatch.setenv("XLA_FLAGS", "")
    # Enough rows for dense layers as host code.
    larger = dataclasses.replace(
        with_train(config, num_steps=3, batch_size=1, preflight="off"),
        model=dataclasses.replace(config.model, num_particles=2048, latent_dim=64),
    )
    for name in ("compiles", "loads"):
        started = processes.start_training(larger, tmp_path / name, 1, model="Model")
        (done,) = processes.finish(started, seconds=900)
        assert done[0] == 0, done
    found = losses(tmp_path / "compiles")
    assert len(found) > 3
    assert found == losses(tmp_path / "loads")
    kernels = {file.name.split(".")[0] for file in (tmp_path / "host").rglob("*.nbc")}
    assert {"dense_host", "mlp_host", "walk_attention_host", "linear_attention_host"} <= kernels


@pytest.mark.parametrize(("count", "devices"), [(1, 8), (2, 4), (4, 1)])
def test_particles_on_devices_of_several_processes_change_as_on_one(
    count: int, devices: int
) -> None:
    done = processes.finish(processes.start([], count, devices=devices, before=SPREAD))
    assert [status for status, _, _ in done] == [0] * count, processes.told(done)
    assert all(out.endswith(f"compared {count * devices}\n") for _, out, _ in done), done


def test_a_signal_to_one_process_stops_all(config: Config, tmp_path: Path) -> None:
    endless = with_train(config, num_steps=10**6, checkpoint_every=5, preflight="off")
    run = tmp_path / "run"
    with processes.running(endless, run, 2) as started:
        wait_for_checkpoint(run, 5, started)
        started[1].send_signal(signal.SIGTERM)
        done = processes.finish(started)
    assert [status for status, _, _ in done] == [143, 143], processes.told(done)
    last = CheckpointStore(run).sound_step()
    assert max(step for kind, step in losses(run) if kind == "train") == last


def test_a_run_killed_at_any_moment_ends_as_one_never_killed(
    config: Config, tmp_path: Path
) -> None:
    """Also between a save and the validation of its step: each validation is there, once."""
    config = with_train(config, num_steps=200, batch_size=2, validate_every=2, checkpoint_every=2)
    (done,) = processes.finish(processes.start_training(config, tmp_path / "whole", 1))
    assert done[0] == 0, done
    run = tmp_path / "run"
    for number in range(10):
        before = max(CheckpointStore(run).steps(), default=-1)
        with processes.running(config, run, 1, "--resume", "auto") as started:
            wait_for_checkpoint(run, before + 1, started)
            time.sleep(random.Random(number).uniform(0.0, 0.5))
            assert started[0].poll() is None  # it was killed, it did not end
            started[0].kill()
    (done,) = processes.finish(processes.start_training(config, run, 1, "--resume", "auto"))
    assert done[0] == 0, done
    log = "metrics.jsonl"
    assert (run / log).read_bytes() == (tmp_path / "whole" / log).read_bytes()


def test_processes_killed_while_all_save_lose_nothing_that_is_saved(
    config: Config, tmp_path: Path
) -> None:
    """Two processes write each its part of a state; now one is killed at any moment, now the other.

    Two go on, or one alone, from the last whole checkpoint; the losses are those of one device.
    """
    config = with_train(
        config, num_steps=200, validate_every=0, checkpoint_every=2, shard_state=True,
        preflight="off",
    )  # fmt: skip
    for name, count in (("alone", 1), ("run", 2)):
        first = with_train(config, num_steps=200 if count == 1 else 2)
        done = processes.finish(processes.start_training(first, tmp_path / name, count))
        assert [status for status, _, _ in done] == [0] * count, processes.told(done)
    run = tmp_path / "run"
    for number in range(8):
        before, count = CheckpointStore(run).sound_step(), 1 if number % 4 == 3 else 2
        with processes.running(config, run, count, "--resume", "auto") as started:
            wait_for_checkpoint(run, before + 1, started)
            time.sleep(random.Random(number).uniform(0.0, 0.5))
            begun, killed = time.monotonic(), started[number % count]
            assert killed.poll() is None
            killed.kill()
            done = processes.finish(started, seconds=100)
        seconds = time.monotonic() - begun
        for status, _, errors in done[: number % count] + done[number % count + 1 :]:
            print(f"process {number % count} lost: the other ended with {status}, {seconds:.1f} s")
            processes.assert_told_of_loss(status, errors)
    done = processes.finish(processes.start_training(config, run, 2, "--resume", "auto"))
    assert [status for status, _, _ in done] == [0, 0], processes.told(done)
    assert_same_losses(run, tmp_path / "alone")


def test_two_commands_share_a_comparison(tmp_path: Path, debug_config: Config) -> None:
    """Every run is trained and scored once, whoever does it, and both print the same tables."""
    write_synthetic_dataset(tmp_path / "scene", episodes=20, steps=4, height=32, width=40, seed=0)
    config = with_train(debug_config, num_steps=2, log_every=1, checkpoint_every=1)
    data = dataclasses.replace(config.data, path=str(tmp_path / "scene"))
    config = dataclasses.replace(with_train(config, validate_every=0), data=data)
    (tmp_path / "tiny.toml").write_text(to_toml(config))
    words = ["compare", str(tmp_path / "tiny.toml"), "--members", "none,grf", "--seeds", "3"]
    both = [
        processes.start([*words, "--out", str(tmp_path / "out")], 1, before=COMPARE)[0]
        for _ in range(2)
    ]
    done = processes.finish(both)
    assert [status for status, _, _ in done] == [0, 0], processes.told(done)
    for run in (tmp_path / "out" / "runs").iterdir():
        steps = [step for kind, step in losses(run) if kind == "train"]
        assert steps == [1, 2], run
    (alone,) = processes.finish(
        processes.start([*words, "--out", str(tmp_path / "alone")], 1, before=COMPARE)
    )
    assert alone[0] == 0, alone
    shared, expected = (tmp_path / name / "curves.csv" for name in ("out", "alone"))
    assert shared.read_text() == expected.read_text()


COMPARE = """
import test_compare
import hdvpd.model
from hdvpd.training import step
step.Model = hdvpd.model.Model = test_compare.TinyModel
"""


def test_a_refusal_in_one_process_ends_all(config: Config, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("precious")
    done = processes.finish(processes.start_training(config, tmp_path / "run", 2), seconds=120)
    assert [status for status, _, _ in done] == [2, 2], processes.told(done)
    assert "already exists" in done[0][2]


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
