"""What a run reports: the reproducible log, timing, progress, event files, signals."""

import dataclasses
import importlib
import io
import json
import mmap
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import extras
import imageio.v3 as imageio
import numpy as np
import pytest
import scenes
from rich.console import Console

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Batch, Camera, RgbdFrames
from hdvpd.config import Config
from hdvpd.training import reporting
from hdvpd.training.metrics_log import MetricsLog, average
from hdvpd.training.reporting import Reporter, format_duration, memory_mib, save_first_batch

HEADER = {"kind": "run", "seed": 0}


def step_metrics(step: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(step)
    loss, grad_norm = rng.uniform(size=2).astype(np.float32)
    return {
        "loss": np.asarray(loss),
        "grad_norm": np.asarray(grad_norm),
        "learning_rate": np.asarray(np.float32(0.1 / step)),
        "nonfinite": np.asarray(np.int32(0)),
    }


def write_log(path: Path, start: int, end: int, window: list, *, log_every: int) -> list:
    """Log the steps start + 1 .. end, as the training loop does; return the open window."""
    log = MetricsLog(path, HEADER, step=start, window=window)
    for step in range(start + 1, end + 1):
        log.add(step, step_metrics(step))
        if step % log_every == 0:
            log.write_train(step)
    window = list(log.window)
    if window:
        log.write_train(end, end_of_run=True)
    log.sync()
    log.close()
    return window


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_records_are_means_over_the_window(tmp_path: Path) -> None:
    write_log(tmp_path / "log", 0, 6, [], log_every=3)
    first, second = read(tmp_path / "log")[1:]
    for record, steps in ((first, (1, 2, 3)), (second, (4, 5, 6))):
        for name in ("loss", "grad_norm"):
            expected = np.mean([np.float64(step_metrics(s)[name]) for s in steps])
            assert record[name] == pytest.approx(expected, rel=1e-15)
        assert record["learning_rate"] == step_metrics(steps[-1])["learning_rate"]
        assert record["nonfinite"] == 0


def test_skipped_steps_do_not_enter_the_means() -> None:
    window = [
        {"loss": 1.0, "nonfinite": 0, "nonfinite_in_row": 0},
        {"loss": None, "nonfinite": 1, "nonfinite_in_row": 1},
        {"loss": 2.0, "nonfinite": 0, "nonfinite_in_row": 0},
        {"loss": None, "nonfinite": 1, "nonfinite_in_row": 1},
    ]
    assert average(window) == {"loss": 1.5, "nonfinite": 2, "nonfinite_in_row": 1}
    assert average(window[1:2]) == {"loss": None, "nonfinite": 1, "nonfinite_in_row": 1}


def test_a_full_disk_is_said_once_and_closing_says_no_more(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = MetricsLog(tmp_path / "log", HEADER)
    report = Reporter(tmp_path, config, start_step=0, console=console(terminal=False))
    for owner in (log, report):
        owner.close()
        monkeypatch.setattr(owner, "_file", Path("/dev/full").open("a"))  # noqa: SIM115
    log.add(1, step_metrics(1))
    for write in (lambda: log.write_train(1), lambda: report.write_timing("end")):
        with pytest.raises(UserError, match="No space left on device"):
            write()
    log.close()
    report.close()


def test_a_damaged_first_line_is_written_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    write_log(path, 0, 4, [], log_every=2)
    header, *others = path.read_text().splitlines()
    path.write_text("\n".join([header[:-9], *others]) + "\n")
    MetricsLog(path, HEADER, step=4).close()
    assert path.read_text().splitlines() == [header, *others]


def test_a_skipped_step_is_on_disk_at_once(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "log", HEADER)
    log.add(1, {"loss": np.float32(np.nan), "nonfinite": np.int32(1)}, [(3, 2)])
    assert read(tmp_path / "log")[1:] == [{"kind": "skipped", "step": 1, "windows": [[3, 2]]}]
    log.close()


@pytest.mark.parametrize("stop", range(1, 10))
def test_a_log_in_two_parts_has_the_bytes_of_the_whole(tmp_path: Path, stop: int) -> None:
    write_log(tmp_path / "whole", 0, 10, [], log_every=4)
    window = write_log(tmp_path / "parts", 0, stop, [], log_every=4)
    # A checkpoint carries the window through JSON.
    window = json.loads(json.dumps(window, allow_nan=False))
    write_log(tmp_path / "parts", stop, 10, window, log_every=4)
    assert (tmp_path / "parts").read_bytes() == (tmp_path / "whole").read_bytes()


def test_resuming_keeps_the_header_and_drops_half_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(
        '{"kind": "run", "seed": 7}\n{"kind": "validation", "step": 2, "loss": 1.0}\n'
        '{"kind": "train", "step": 3, "loss": 1.0}\n{"kind": "tra'
    )
    log = MetricsLog(path, HEADER, step=2)
    assert log.has_validation(2)
    assert not log.has_validation(3)
    log.close()
    assert read(path) == [
        {"kind": "run", "seed": 7},
        {"kind": "validation", "step": 2, "loss": 1.0},
    ]


@pytest.fixture
def config(debug_config: Config) -> Config:
    return dataclasses.replace(
        debug_config,
        train=dataclasses.replace(
            debug_config.train, num_steps=100, log_every=4, batch_size=2, horizon=3
        ),
    )


def console(*, terminal: bool, width: int = 200) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, highlight=False)


def text_of(screen: Console) -> str:
    assert isinstance(screen.file, io.StringIO)
    return screen.file.getvalue()


def report_steps(path: Path, config: Config, screen: Console) -> None:
    """Four steps of 0.5 s, each with 0.1 s of waiting."""
    reporter = Reporter(path, config, start_step=0, console=screen)
    for step in range(1, 5):
        reporter.count_step(step, 0.25, seconds=0.5, data_wait_s=0.1)
    reporter.show_train(4, {"kind": "train", "step": 4, "loss": 0.25})
    reporter.close()


def test_rates_are_those_of_the_window(tmp_path: Path, config: Config) -> None:
    report_steps(tmp_path, config, console(terminal=False))
    start, record = read(tmp_path / "timing.jsonl")
    assert start["kind"] == "start"
    particles = 2 * 3 * config.model.num_particles
    assert record["steps_per_s"] == 2.0
    assert record["particles_per_s"] == 2.0 * particles
    assert record["data_wait_share"] == 0.2


def test_without_a_terminal_progress_is_plain_lines(tmp_path: Path, config: Config) -> None:
    screen = console(terminal=False)
    report_steps(tmp_path, config, screen)
    expected = (
        "step 4/100  loss 0.25000  2.00 steps/s  6.1k particles/s  data wait 20%  ETA 0:00:48\n"
    )
    assert text_of(screen) == expected


def test_no_color_gives_the_same_plain_lines_in_a_terminal(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    screen = console(terminal=True)
    report_steps(tmp_path, config, screen)
    assert "\x1b" not in text_of(screen)
    assert text_of(screen).startswith("step 4/100  loss 0.25000  2.00 steps/s")


@pytest.mark.parametrize("width", [80, 200])
def test_a_terminal_gets_a_bar_with_everything_in_it(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    screen = console(terminal=True, width=width)
    report_steps(tmp_path, config, screen)
    text = text_of(screen)
    assert "\x1b[" in text
    words = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).split()
    for word in ("4/100", "0.25000", "2.00", "6.1k", "particles/s", "20%", "0:00:48"):
        assert word in words


@pytest.mark.parametrize("terminal", [False, True])
def test_compiling_is_announced_and_its_end_too(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(reporting, "_HEARTBEAT_S", 0.01)
    screen = console(terminal=terminal)
    reporter = Reporter(tmp_path, config, start_step=0, console=screen)
    with reporter.compiling("the step"):
        while "compiling the step" not in text_of(screen) or (
            not terminal and "so far" not in text_of(screen)
        ):
            time.sleep(0.01)
    reporter.close()
    assert "compiled the step in " in text_of(screen)
    assert read(tmp_path / "timing.jsonl")[-1]["what"] == "the step"


def test_tensorboard_is_optional_and_its_lack_explained(
    tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    Reporter(tmp_path, config, start_step=0).close()
    wanted = dataclasses.replace(config, train=dataclasses.replace(config.train, tensorboard=True))
    with pytest.raises(UserError, match=r"tensorboardX.*-e '\.\[tensorboard\]'"):
        Reporter(tmp_path, wanted, start_step=0)


def test_tensorboard_gets_the_records(tmp_path: Path, config: Config) -> None:
    extras.needed("tensorboardX")
    wanted = dataclasses.replace(config, train=dataclasses.replace(config.train, tensorboard=True))
    reporter = Reporter(tmp_path, wanted, start_step=0, console=console(terminal=False))
    record = {"kind": "train", "step": 3, "loss": 0.5, "grad_norm": None}
    reporter.count_step(3, 0.5, seconds=1.0, data_wait_s=0.0)
    reporter.show_train(3, record)
    reporter.close()
    (file,) = (tmp_path / "tb").iterdir()
    data = file.read_bytes()
    assert b"train/loss" in data
    assert b"grad_norm" not in data
    assert np.float32(0.5).tobytes() in data


def test_memory_counts_what_is_allocated() -> None:
    before = memory_mib()
    # Pages of its own: what numpy gets may be memory that was freed before.
    block = mmap.mmap(-1, 64 * 2**20)
    np.frombuffer(block, np.uint8)[:] = 1
    after = memory_mib()
    assert after["rss_mib"] - before["rss_mib"] == pytest.approx(64, abs=16)
    assert after["peak_rss_mib"] >= after["rss_mib"] - 1
    del block


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0:00:00"), (59.6, "0:01:00"), (3599.0, "0:59:59"), (360000.0, "100:00:00")],
)
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_the_first_batch_is_a_picture_of_windows_by_frames(tmp_path: Path) -> None:
    rgb = np.random.default_rng(0).integers(0, 255, (2, 3, 2, 4, 5, 3), np.uint8)
    camera = Camera(np.zeros((2, 3, 2, 3, 3), np.float32), np.zeros((2, 3, 2, 4, 4), np.float32))
    batch = Batch(
        frames=RgbdFrames(rgb, np.ones(rgb.shape[:-1], np.float32), camera),
        robot=scenes.unturned(np.zeros((2, 3, 1, 3))),
        episode=np.zeros(2, np.int32),
        start=np.zeros(2, np.int32),
    )
    save_first_batch(tmp_path / "batch.png", batch)
    picture = imageio.imread(tmp_path / "batch.png")
    assert picture.shape == (2 * 2 * 4, 3 * 5, 3)
    window, frame, view = 1, 2, 0
    np.testing.assert_array_equal(picture[8:12, 10:15], rgb[window, frame, view])


WAITER = """
import hashlib, time
from hdvpd.training.interrupts import StopSignals
with StopSignals() as stop:
    print("ready", flush=True)
    while stop.received is None:
        time.sleep(0.01)
    print("noted", flush=True)
    # Minutes in C without the lock, like a compilation: Python's own handlers do not run.
    hashlib.pbkdf2_hmac("sha256", b"", b"", 10**9)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_stops_at_once(number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITER], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == b"noted\n"
        assert process.poll() is None
        process.send_signal(number)
        try:
            _, message = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert f"{number.name}: saving after the current step".encode() in message


def test_signals_are_given_back() -> None:
    from hdvpd.training.interrupts import StopSignals

    # Whoever starts the tests in the background may have them ignore Ctrl-C.
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with StopSignals() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert stop.received == signal.SIGINT
            assert stop.exit_status == 130
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, inherited)
