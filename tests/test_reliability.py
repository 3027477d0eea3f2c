"""What happens when something outside the program fails: disks, files, data, clocks, neighbours."""

import dataclasses
import itertools
import json
import logging
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from test_checkpoints import FILES, make_state

from hdvpd.basics.errors import UserError
from hdvpd.config import Config, DataConfig
from hdvpd.data import arrays, loader
from hdvpd.data.loader import Loader
from hdvpd.data.robot import read_robot
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.preflight import try_checkpoint, try_parts, wants_preflight
from hdvpd.training.processes import Team
from hdvpd.training.reporting import Reporter
from hdvpd.training.run_folder import RunFolder


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reliability") / "scene"
    write_synthetic_dataset(path, episodes=4, steps=6, height=12, width=16, seed=2)
    return path


def open_loader(path: Path, **settings: object) -> Loader:
    dataset = Dataset(path)
    config = DataConfig(height=12, width=16, num_workers=2, prefetch=2, **settings)  # type: ignore[arg-type]
    index = WindowIndex(dataset, "train", 4)
    return Loader(dataset, index, config, batch_size=2, seed=7)


def everything(path: Path) -> dict[tuple[int, str], bytes]:
    """Read all values of a data set, and what its JSON files say."""
    dataset = Dataset(path)
    robot = read_robot(path)
    said = [dataset.identity(), robot and robot.description, list(map(repr, dataset.episodes))]
    return {(-1, ""): repr(said).encode()} | {
        (episode.number, name): dataset.read(episode.number, name).tobytes()
        for episode in dataset.episodes
        for name in arrays.names_of(dataset.info)
        if not arrays.spec_of(name).optional or dataset.has_array(episode.number, name)
    }


def test_a_flipped_byte_in_any_file_of_a_data_set_is_named_or_changes_no_value(
    pristine: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(pristine, tmp_path / "scene"))
    good = everything(path)
    others = {"000001", "000002", "000003"}
    files = sorted(f for f in path.rglob("*") if f.is_file() and not others & {*f.parts})
    assert {"dataset.json", "episode.json", "zarr.json", "robot.json"} < {f.name for f in files}
    refused = 0
    for file, content in ((f, f.read_bytes()) for f in files):
        places = {0, len(content) // 3, len(content) // 2, len(content) - 1}
        for place in places:
            file.write_bytes(flipped(content, place))
            values, refusal = read_or_refuse(path)
            named = "000000" if "000000" in file.parts else file.name
            assert named in refusal if refusal else values == good, (file, place)
            refused += bool(refusal)
        file.write_bytes(content)
    assert refused > 3 * len(files)
    assert everything(path) == good


def test_a_changed_number_in_a_json_file_is_refused_and_a_users_own_is_not(
    pristine: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(pristine, tmp_path / "scene"))
    file = path / "episodes" / "000001" / "episode.json"
    text = file.read_text()
    file.write_text(text.replace('"split": "train"', '"split": "test"'))
    with pytest.raises(UserError, match=r"episode\.json .*content has changed.*sha256"):
        Dataset(path)
    content = json.loads(file.read_text())
    del content["sha256"]
    file.write_text(json.dumps(content))
    assert Dataset(path).episode(1).split == "test"


def flipped(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def read_or_refuse(path: Path) -> tuple[dict, str]:
    """Return all values, or the message; anything but that message is an error of the test."""
    try:
        return everything(path), ""
    except UserError as error:
        return {}, str(error)


def test_a_disk_that_does_not_answer_ends_the_wait_with_a_message(
    pristine: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    never, seen = threading.Event(), []

    def hang(*arguments: object) -> None:
        seen.append(arguments)
        never.wait(60)

    monkeypatch.setattr(loader, "read_window", hang)
    monkeypatch.setattr(loader, "_REMINDER_S", 0.05)
    monkeypatch.setattr(loader, "_CLOSING_S", 0.1)
    with (
        caplog.at_level(logging.WARNING, "hdvpd"),
        pytest.raises(UserError, match=r"data of step 1 \(episode \d+ from frame \d+.*patience_s"),
    ):
        next(open_loader(pristine, patience_s=0.3))
    assert "waiting for the data of step 1" in caplog.text
    assert seen
    never.set()


def test_a_slow_disk_changes_nothing_but_the_waiting(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_loader(pristine) as quick:
        expected = list(itertools.islice(quick, 3))
    read = loader.read_window

    def slowly(*arguments):
        time.sleep(0.05)
        return read(*arguments)

    monkeypatch.setattr(loader, "read_window", slowly)
    monkeypatch.setattr(loader, "_REMINDER_S", 0.01)
    with open_loader(pristine) as slow:
        for (step, batch), (number, other) in zip(slow, expected, strict=False):
            assert step == number
            np.testing.assert_array_equal(batch.frames.rgb, other.frames.rgb)
            if step == 2:
                break


def test_an_error_of_a_reading_thread_is_raised_as_it_is(
    pristine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise TimeoutError("of the disk, not of the wait")

    monkeypatch.setattr(loader, "read_window", fail)
    with pytest.raises(TimeoutError, match="of the disk"):
        next(open_loader(pristine))


def test_a_process_ends_although_a_reading_thread_hangs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", HANGING], capture_output=True, timeout=60)
    assert done.returncode == 3, done.stderr


HANGING = """
import sys, threading
from hdvpd.data import loader
loader._CLOSING_S = 0.1
class Hanging:
    def read(self, windows):
        threading.Event().wait()
    def close(self):
        pass
readers = loader._Readers(1, Hanging)
readers.submit([])
readers.close()
sys.exit(3)
"""


def test_a_data_set_that_goes_away_under_a_job_is_named(pristine: Path, tmp_path: Path) -> None:
    path = Path(shutil.copytree(pristine, tmp_path / "scene"))
    with open_loader(path) as loading:
        next(loading)
        path.rename(tmp_path / "elsewhere")
        with pytest.raises(UserError, match=re.escape(str(path))):
            list(itertools.islice(loading, 100))


def test_a_data_set_that_is_overwritten_under_a_job_is_named(
    pristine: Path, tmp_path: Path
) -> None:
    path = Path(shutil.copytree(pristine, tmp_path / "scene"))
    with open_loader(path) as loading:
        next(loading)
        for file in path.rglob("c.*"):
            content = bytearray(file.read_bytes())
            content[: len(content) // 2] = bytes(len(content) // 2)
            file.write_bytes(content)
        with pytest.raises(UserError, match=re.escape(str(path))):
            list(itertools.islice(loading, 100))


def test_a_clock_that_goes_backwards_spoils_no_rate(
    tmp_path: Path, debug_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    backwards = itertools.count(2e9, -1000.0)
    monkeypatch.setattr(time, "time", lambda: next(backwards))
    reporter = Reporter(tmp_path, debug_config, start_step=0)
    with reporter.timed("validation", step=1):
        pass
    reporter.count_step(1, 0.5, seconds=0.5, data_wait_s=0.1)
    reporter.show_train(1, {"kind": "train", "step": 1, "loss": 0.5})
    reporter.close()
    _, validation, train = map(json.loads, (tmp_path / "timing.jsonl").read_text().splitlines())
    assert validation["seconds"] >= 0
    assert train["steps_per_s"] == 2.0


LOCKER = """
import sys, time
from pathlib import Path
from hdvpd.training.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).lock():
    print("locked", flush=True)
    time.sleep(60)
"""


def test_another_process_that_trains_in_the_folder_is_refused_until_it_dies(
    tmp_path: Path,
) -> None:
    run = tmp_path / "a run\nwith <b>names</b> é"
    process = subprocess.Popen([sys.executable, "-c", LOCKER, str(run)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout:
        assert process.stdout.readline() == b"locked\n"
        with pytest.raises(UserError, match="Another process is training"), RunFolder(run).lock():
            pass
        process.kill()
        process.wait()
        with RunFolder(run).lock():
            pass


def test_a_read_only_disk_is_one_message(read_only: Path) -> None:
    with pytest.raises(UserError, match="Read-only file system"):
        CheckpointStore(read_only).save(1, make_state(1), progress={}, files=FILES)
    with pytest.raises(UserError, match="Read-only file system"), RunFolder(read_only / "r").lock():
        pass
    with pytest.raises(UserError, match=r"Read-only file system.*--out"):
        write_synthetic_dataset(read_only / "d", episodes=1, steps=6, height=12, width=16, seed=2)


def test_a_preflight_reports_every_part_and_leaves_nothing(
    tmp_path: Path, debug_config: Config, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    parts = {name: lambda n=name: calls.append(n) for name in ("training step", "validation")}
    reporter = Reporter(tmp_path, debug_config, start_step=0)
    try_parts(parts, reporter, debug_config.train, 0)
    try_checkpoint(tmp_path, make_state(0), reporter, debug_config.train, 0, Team())
    reporter.close()
    assert calls == ["training step"] * 2 + ["validation"] * 2
    said = capsys.readouterr().out
    for words in ("training step", "validation", "MiB at the peak", "checkpoint written and read"):
        assert words in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["timing.jsonl"]


def test_a_preflight_refuses_a_disk_too_small_for_the_runs_checkpoints(
    tmp_path: Path, debug_config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=20_000))
    reporter = Reporter(tmp_path, debug_config, start_step=0)
    with pytest.raises(
        UserError, match=r"checkpoints will need .* MiB more \(4 of .*preflight off"
    ):
        try_checkpoint(tmp_path, make_state(0), reporter, debug_config.train, 0, Team())
    reporter.close()


@pytest.mark.parametrize(
    ("preflight", "steps", "wanted"),
    [("auto", 1000, False), ("auto", 1001, True), ("on", 1, True), ("off", 10**6, False)],
)
def test_a_preflight_is_for_long_runs(
    debug_config: Config, preflight: str, steps: int, wanted: bool
) -> None:
    train = dataclasses.replace(debug_config.train, preflight=preflight, num_steps=steps)
    assert wants_preflight(train, 0) is wanted
