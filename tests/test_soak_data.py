"""The promises of docs/reliability.md on data sets that take minutes to test: `make soak`."""

import json
import multiprocessing
import multiprocessing.process
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import processes
import pytest
import test_importers
import test_simulation

from hdvpd.basics.errors import UserError
from hdvpd.data.importers import FORMATS
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.simulation import bimanual
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset

pytestmark = pytest.mark.soak


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


def test_two_writers_of_one_data_set_never_mix(tmp_path: Path) -> None:
    """Both begin at once with other seeds: one of them writes everything, the other is refused."""
    for number in range(10):
        out = tmp_path / f"{number}"
        words = ["data", "synthetic", "--out", str(out), "--episodes", "3", "--seed"]
        both = [processes.start([*words, str(seed)], 1)[0] for seed in (0, 1)]
        statuses = [status for status, _, _ in processes.finish(both)]
        assert sorted(statuses) == [0, 2]
        seeds = {json.loads(f.read_text())["seed"] for f in out.rglob("episode.json")}
        assert seeds == {statuses.index(0)}
        assert len(Dataset(out).episodes) == 3


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
