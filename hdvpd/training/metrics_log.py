"""`metrics.jsonl`: what a run computed, and nothing of when or where.

One JSON object per line. The first has `kind` "run": seed, versions, kind of device, identities of
data set and configuration. "train" records average over the steps since the last one, "validation"
records hold the loss on held-out windows, and "skipped" records name every step whose loss or
gradient was not finite, with episode and first frame of its windows. There is no clock value, path
or host name, so on a CPU the same configuration and seed give the same bytes, and so does a run
that was interrupted and resumed.
"""

import contextlib
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hdvpd.basics import files

Record = dict[str, Any]
StepMetrics = dict[str, float | None]

METRICS_FILE = "metrics.jsonl"
"""Its name in a run folder; every trained run has one."""
REMEDY = (
    "Everything written before it is intact. Free some space or permit writing there, then "
    "continue the run with --resume (a comparison: with the same command)."
)
"""What to do when a file of a run cannot be written."""
ELSEWHERE = "another folder for the run (--name or --runs-dir; --out of a comparison)"
"""Where a run can go that cannot be where it is, for messages: the flags of all that trains."""

_MEANS = ("train", "validation")
_LAST = ("learning_rate", "nonfinite_in_row")


class MetricsLog:
    """Appends records to `metrics.jsonl` and averages over the log window.

    Attributes:
      window: metrics of the steps not yet in a record; a checkpoint carries them.
      resumed: records of the very step from which the run resumes.
    """

    def __init__(
        self, path: Path, header: Record, *, step: int = 0, window: Sequence[StepMetrics] = ()
    ) -> None:
        """Start the file, or cut it back to the step from which the run resumes.

        Args:
          path: of the file.
          header: the first record of a new file.
          step: records after this step are dropped, as they will be computed again; 0 starts anew.
          window: metrics of steps before it that are not in a record.

        Raises:
          UserError: the disk is full or not writable.
        """
        self.path = path
        self.window = list(window)
        old = read_records(path) if step else []
        kept = [record for record in old if _belongs(record, step)]
        if not any(record["kind"] == header["kind"] for record in kept):
            kept = [header, *kept]  # the first one, or in place of one that was damaged
        self._validated = {r["step"] for r in kept if r["kind"] == "validation"}
        self.resumed = [r for r in kept if r.get("step") == step and r["kind"] in _MEANS]
        files.write(path, "".join(_line(record) for record in kept), REMEDY)
        with files.explain_write_errors(path, REMEDY):
            self._file = path.open("a")

    def add(
        self, step: int, metrics: Mapping[str, Any], windows: Sequence[tuple[int | str, ...]] = ()
    ) -> None:
        """Take up one step's metrics; a skipped step is on disk at once, with what it had read.

        Args:
          step: steps done.
          metrics: scalars by name; `nonfinite` is 1 for a skipped step.
          windows: episode and first frame of the windows of its batch, after the data set where
            several are mixed.
        """
        values = {name: _finite(value) for name, value in metrics.items()}
        self.window.append(values)
        if values.get("nonfinite"):
            read = [list(window) for window in windows]
            self._write({"kind": "skipped", "step": step, "windows": read})

    def write_train(self, step: int, *, end_of_run: bool = False) -> Record:
        """Write the window's means and empty it.

        Args:
          step: steps done.
          end_of_run: the window is cut short by the run's end; resuming drops this record.
        """
        record = {"kind": "train", "step": step, **average(self.window)}
        self.window = []
        self._write(_marked(record, end_of_run))
        return record

    def write_validation(
        self, step: int, metrics: Mapping[str, float], *, end_of_run: bool = False
    ) -> Record:
        """Write the metrics of the held-out windows; arguments as in `write_train`."""
        values = {name: _finite(value) for name, value in metrics.items()}
        record = {"kind": "validation", "step": step, **values}
        self._validated.add(step)
        self._write(_marked(record, end_of_run))
        return record

    def has_validation(self, step: int) -> bool:
        """Say whether the validation after this step is in the file."""
        return step in self._validated

    def sync(self) -> None:
        """Flush to disk, so that a checkpoint never knows more than the log."""
        with files.explain_write_errors(self.path, REMEDY):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file; what the disk refused was said when it did."""
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, record: Record) -> None:
        with files.explain_write_errors(self.path, REMEDY):
            self._file.write(_line(record))
            self._file.flush()


def average(window: Sequence[StepMetrics]) -> StepMetrics:
    """Average metrics over steps.

    Args:
      window: metrics of each step; None stands for a value that was not finite.

    Returns:
      Means over the finite values, or None without one; the number of skipped steps as
      `nonfinite`; of the learning rate and the count of skipped steps in a row, the last.
    """
    names = list(window[0]) if window else []
    averaged: StepMetrics = {}
    for name in names:
        values = [metrics[name] for metrics in window]
        finite = [value for value in values if value is not None]
        if name in _LAST:
            averaged[name] = values[-1]
        elif name == "nonfinite":
            averaged[name] = sum(finite)
        else:
            averaged[name] = math.fsum(finite) / len(finite) if finite else None
    return averaged


def read_records(path: Path) -> list[Record]:
    """Read `metrics.jsonl` or `timing.jsonl`, of whose lines a killed process may leave half.

    Returns:
      The records that are whole, each with its kind, and a number wherever there is a step; what is
      left out is warned of. Nothing if there is no such file.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().splitlines(keepends=True)
    records = [record for record in map(_record, lines) if record is not None]
    broken = len(lines) - len(records) - (bool(lines) and not lines[-1].endswith(b"\n"))
    if broken > 0:
        logging.getLogger("hdvpd").warning(
            "%s has %d line%s that cannot be read; left out.", path, broken, "s" * (broken > 1)
        )
    return records


def _record(line: bytes) -> Record | None:
    """Return the record of a line, or None if it is not what this module writes."""
    try:
        record = json.loads(line)
        whole = isinstance(record["kind"], str) and isinstance(record.get("step", 0), int)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return record if whole else None


def _belongs(record: Record, step: int) -> bool:
    if record["kind"] == "run":
        return True
    return "step" in record and record["step"] <= step and "end_of_run" not in record


def _marked(record: Record, end_of_run: bool) -> Record:
    return {**record, "end_of_run": True} if end_of_run else record


def _finite(value: Any) -> float | int | None:
    number = value.item() if hasattr(value, "item") else value
    return number if math.isfinite(number) else None


def _line(record: Record) -> str:
    return json.dumps(record, allow_nan=False) + "\n"
