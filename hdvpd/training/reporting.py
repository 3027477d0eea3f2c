"""What a run tells its user: progress, timing, pictures and event files.

Everything here depends on the clock or the machine and may differ between two equal runs; what
must not is in `hdvpd.training.metrics_log`. `timing.jsonl` has a "train" record per log window
(`steps_per_s`, `particles_per_s`, `data_wait_share`, resident and device memory in MiB, open files
and threads) and a record per start, compilation, validation and checkpoint with its `seconds`.

A particle is counted once per predicted frame: particles/s = steps/s * batch * horizon * N. The
data-wait share is the part of a step's time in which the loop stood waiting for the loader.
"""

import contextlib
import importlib
import json
import os
import resource
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import imageio.v3 as imageio
import jax
import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from hdvpd.basics import files
from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.basics.types import Batch
from hdvpd.config import Config
from hdvpd.training.metrics_log import REMEDY

_HEARTBEAT_S = 30.0


class Reporter:
    """Shows progress and writes `timing.jsonl` and, by option, TensorBoard event files.

    Args:
      path: the run folder.
      config: of the run.
      start_step: steps done before this start.
      console: where to write; by default standard output.
    """

    def __init__(
        self, path: Path, config: Config, *, start_step: int, console: Console | None = None
    ) -> None:
        """Open the files.

        Raises:
          UserError: TensorBoard is wanted but not installed, or the disk is not writable.
        """
        train = config.train
        particles = train.cloud_size or config.model.num_particles
        self._particles = train.batch_size * train.horizon * particles
        self._num_steps = train.num_steps
        self._recent: deque[tuple[float, float]] = deque(maxlen=train.log_every)
        self._console = console or Console(highlight=False, markup=False, soft_wrap=True)
        self._events = _open_events(path / "tb", start_step) if train.tensorboard else None
        self._path = path / "timing.jsonl"
        with files.explain_write_errors(self._path, REMEDY):
            self._file = self._path.open("a")
        self._bar = _create_bar(self._console) if _is_live(self._console) else None
        self._task = None
        self.write_timing("start", step=start_step)

    def close(self) -> None:
        """Close display and files."""
        if self._bar is not None and self._task is not None:
            self._bar.stop()
        if self._events is not None:
            self._events.close()
        with contextlib.suppress(OSError):  # said when the disk refused it
            self._file.close()

    def say(self, text: str) -> None:
        """Print a line, above the bar if there is one."""
        self._console.print(text)

    @contextlib.contextmanager
    def timed(self, kind: str, **fields: Any) -> Iterator[None]:
        """Write how long a block took to `timing.jsonl`."""
        begin = time.perf_counter()
        yield
        self.write_timing(kind, **fields, seconds=round(time.perf_counter() - begin, 3))

    @contextlib.contextmanager
    def compiling(self, what: str) -> Iterator[None]:
        """Tell the user why nothing moves, for how long, and when it is over."""
        begin = time.perf_counter()
        notice = _live_notice if self._bar is not None else _plain_notice
        with self.timed("compile", what=what), notice(self._console, f"compiling {what}"):
            yield
        self.say(f"compiled {what} in {time.perf_counter() - begin:.1f} s")

    def count_step(self, step: int, loss: float, *, seconds: float, data_wait_s: float) -> None:
        """Take up one step's duration and move the bar."""
        self._recent.append((seconds, data_wait_s))
        if self._bar is None:
            return
        if self._task is None:
            self._task = self._bar.add_task("", total=self._num_steps, text="")
            self._bar.start()
        self._bar.update(self._task, completed=step, text=self._summary(step, loss))

    def show_train(self, step: int, record: Mapping[str, Any]) -> None:
        """Report a log window: a line without a terminal, timing, and event files."""
        self.write_timing("train", step=step, **self._rates(), **memory_mib(), **held())
        self._write_events(record, "train")
        if self._bar is None:
            loss = record.get("loss")
            summary = self._summary(step, float("nan") if loss is None else loss)
            self.say(f"step {step}/{self._num_steps}  {summary}")

    def show_validation(self, step: int, record: Mapping[str, Any]) -> None:
        """Report a validation."""
        self._write_events(record, "validation")
        loss = record["loss"]
        self.say(f"step {step}: validation loss {'not finite' if loss is None else f'{loss:.5f}'}")

    def repeat(self, record: Mapping[str, Any]) -> None:
        """Write a record of the step from which the run resumes to the new event file.

        TensorBoard hides everything from this step on in the files of earlier starts.
        """
        self._write_events(record, record["kind"])

    def write_timing(self, kind: str, **fields: Any) -> None:
        """Append a record to `timing.jsonl`, with the time of day."""
        with files.explain_write_errors(self._path, REMEDY):
            record = {"kind": kind, **fields, "time": round(time.time(), 3)}
            self._file.write(json.dumps(record) + "\n")
            self._file.flush()

    def _rates(self) -> dict[str, float]:
        seconds = sum(duration for duration, _ in self._recent)
        waited = sum(wait for _, wait in self._recent)
        steps_per_s = len(self._recent) / max(seconds, 1e-9)
        return {
            "steps_per_s": round(steps_per_s, 4),
            "particles_per_s": round(steps_per_s * self._particles, 1),
            "data_wait_share": round(min(waited / max(seconds, 1e-9), 1.0), 4),
        }

    def _summary(self, step: int, loss: float) -> str:
        rates = self._rates()
        left = (self._num_steps - step) / max(rates["steps_per_s"], 1e-9)
        return (
            f"loss {loss:.5f}  {rates['steps_per_s']:.2f} steps/s  "
            f"{_with_prefix(rates['particles_per_s'])} particles/s  "
            f"data wait {rates['data_wait_share']:.0%}  ETA {format_duration(left)}"
        )

    def _write_events(self, record: Mapping[str, Any], group: str) -> None:
        if self._events is not None:
            for name, value in record.items():
                if name not in ("kind", "step") and value is not None:
                    self._events.add_scalar(f"{group}/{name}", value, record["step"])
            self._events.flush()


def memory_mib() -> dict[str, float]:
    """Measure resident memory now and at its peak, and the device's where it tells.

    Returns:
      `rss`, `peak_rss` and, on accelerators, `device` and `peak_device` [MiB].
    """
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sizes = {
        "rss_mib": pages * os.sysconf("SC_PAGE_SIZE") / 2**20,
        "peak_rss_mib": peak_kib / 2**10,
    }
    device = jax.local_devices()[0].memory_stats() or {}
    for name, key in (("device_mib", "bytes_in_use"), ("peak_device_mib", "peak_bytes_in_use")):
        if key in device:
            sizes[name] = device[key] / 2**20
    return {name: round(size, 1) for name, size in sizes.items()}


def held() -> dict[str, int]:
    """Count what a long run must not gather: open files and threads of this process."""
    counts = {"open_files": "/proc/self/fd", "threads": "/proc/self/task"}
    return {name: len(os.listdir(folder)) for name, folder in counts.items()}


def format_duration(seconds: float) -> str:
    """Write a duration as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02d}:{second:02d}"


def save_first_batch(path: Path, batch: Batch) -> None:
    """Write four windows of a batch as one picture: a row per window and view, frames across."""
    rgb = np.asarray(batch.frames.rgb)[:4]
    windows, frames, views, height, width, _ = rgb.shape
    rows = rgb.transpose(0, 2, 3, 1, 4, 5).reshape(windows * views * height, frames * width, 3)
    with files.explain_write_errors(path, REMEDY):
        imageio.imwrite(path, rows)


def _with_prefix(value: float) -> str:
    for size, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.1f}{prefix}"
    return f"{value:.0f}"


def _is_live(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal and not os.environ.get("NO_COLOR")


def _create_bar(console: Console) -> Progress:
    return Progress(
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        BarColumn(bar_width=10),
        # In a narrow terminal the rest goes to a second line; by default it would be cut off.
        TextColumn("{task.fields[text]}", table_column=Column(no_wrap=False, overflow="fold")),
        console=console,
        refresh_per_second=4,
    )


@contextlib.contextmanager
def _live_notice(console: Console, text: str) -> Iterator[None]:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        progress.add_task(text, total=None)
        yield


@contextlib.contextmanager
def _plain_notice(console: Console, text: str) -> Iterator[None]:
    console.print(f"{text} ...")
    done = threading.Event()
    begin = time.perf_counter()

    def remind() -> None:
        while not done.wait(_HEARTBEAT_S):
            console.print(f"{text}: {time.perf_counter() - begin:.0f} s so far")

    reminder = threading.Thread(target=remind, daemon=True, name="compile-notice")
    reminder.start()
    try:
        yield
    finally:
        done.set()
        reminder.join()


def _open_events(path: Path, start_step: int) -> Any:
    """Open TensorBoard's writer; on resuming, its viewer hides what comes after the step."""
    try:
        tensorboard = importlib.import_module("tensorboardX")
    except ImportError as error:
        raise UserError(
            "train.tensorboard = true needs tensorboardX, which is not installed: "
            f"{how_to_install('tensorboard')}, or leave the option out (metrics.jsonl is always "
            "written)."
        ) from error
    # Names hold whole seconds: a run that is continued within one would write over its own file.
    suffix = f".{start_step}"
    return tensorboard.SummaryWriter(
        str(path), purge_step=start_step or None, filename_suffix=suffix
    )
