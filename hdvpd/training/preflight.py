"""Every part of a long run tried before it begins, so that it does not fail after hours.

A training step, a validation, a rollout with a rendered image, and a checkpoint written and read
back; each twice, so that compilation is not in the times. Nothing of it stays, and a run with it
computes the same as one without. What is reported: seconds of each part, memory at its peak against
what there is, and the disk that the run's checkpoints need.
"""

import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax

from hdvpd.basics.errors import UserError
from hdvpd.basics.machine import main_memory
from hdvpd.config import TrainConfig
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.metrics_log import ELSEWHERE
from hdvpd.training.processes import Team
from hdvpd.training.reporting import Reporter, format_duration, memory_mib
from hdvpd.training.spread_checkpoints import SpreadStore

LONG_RUN = 1000
"""Steps beyond which a preflight pays."""


def wants_preflight(train: TrainConfig, step: int) -> bool:
    """Whether a run that stands at a step is to be tried out first."""
    long = train.num_steps - step > LONG_RUN
    return train.preflight == "on" or (train.preflight == "auto" and long)


def try_parts(
    parts: Mapping[str, Callable[[], Any]], report: Reporter, train: TrainConfig, step: int
) -> None:
    """Try the parts of a run, and say how long they take and what memory they need.

    Args:
      parts: each does its work once and returns arrays, by name; the first is a training step.
      report: tells the user, and keeps a record in `timing.jsonl`.
      train: of the run.
      step: steps done.

    Raises:
      UserError: a part needs more memory than there is.
    """
    seconds = {}
    report.say(f"preflight  trying {', '.join(parts)}: once to compile, once to measure")
    for name, part in parts.items():
        _try(name, part)
        begin = time.perf_counter()
        _try(name, part)
        seconds[name] = round(time.perf_counter() - begin, 3)
    used, there = peak_and_available_mib()
    report.write_timing("preflight", parts=seconds, peak_mib=used, available_mib=there)
    first = next(iter(seconds.values()))
    left = format_duration(first * (train.num_steps - step))
    times = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
    report.say(f"preflight  {times}; {train.num_steps - step} steps take about {left}")
    report.say(f"preflight  memory {used:.0f} MiB at the peak, of {there:.0f} MiB")


def try_checkpoint(
    run: Path,
    state: Any,
    report: Reporter,
    train: TrainConfig,
    existing: int,
    team: Team,
) -> None:
    """Write a checkpoint and read it back, and say what disk the run's checkpoints need.

    Args:
      run: the run folder.
      state: the train state.
      report: tells the user, and keeps a record in `timing.jsonl`.
      train: of the run.
      existing: checkpoints that the run has already.
      team: the processes over which the state is spread; all must call.

    Raises:
      UserError: the disk does not hold them, or not what was written.
    """
    scratch = CheckpointStore(run / ".preflight")
    store = SpreadStore(scratch, team) if team.count > 1 else scratch

    def clear() -> None:
        if team.primary:
            shutil.rmtree(run / ".preflight", ignore_errors=True)

    team.together(clear)
    begin = time.perf_counter()
    try:
        folder = store.save(0, state, progress={})
        store.verify(0, state)
        seconds = round(time.perf_counter() - begin, 3)
        size = team.together(lambda: _size_mib(folder))
    finally:
        clear()
    # The kept ones, and the one being written before the oldest goes.
    count = max(train.keep_checkpoints + 1 - existing, 1)
    free = shutil.disk_usage(run).free / 2**20
    report.write_timing(
        "preflight_checkpoint", seconds=seconds, mib=round(size, 3), free_mib=round(free, 1)
    )
    report.say(
        f"preflight  checkpoint written and read in {seconds:.2f} s; {count} more of {size:.1f} "
        f"MiB need {count * size:.1f} MiB of {free:.0f} MiB free"
    )
    team.together(lambda: _require_space(run, size, count, train))


def _size_mib(folder: Path) -> float:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) / 2**20


def _require_space(run: Path, size: float, count: int, train: TrainConfig) -> None:
    free = shutil.disk_usage(run).free / 2**20
    if count * size > free:
        raise UserError(
            f"The disk of {run} has {free:.1f} MiB free, but the run's checkpoints will need "
            f"{count * size:.1f} MiB more ({count} of {size:.1f} MiB: train.keep_checkpoints = "
            f"{train.keep_checkpoints}, and the one being written). Free some space, keep fewer, "
            f"choose {ELSEWHERE}, or leave this check out with --train.preflight off."
        )


def peak_and_available_mib() -> tuple[float, float]:
    """Return the memory used at the peak and what there is: of the accelerator, else of the host.

    Returns:
      Both in MiB; on a host the smaller of the machine's and its container's memory.
    """
    device = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in device:
        peak = device.get("peak_bytes_in_use", 0)
        return round(peak / 2**20, 1), round(device["bytes_limit"] / 2**20, 1)
    return memory_mib()["peak_rss_mib"], round(main_memory() / 2**20, 1)


def _try(name: str, part: Callable[[], Any]) -> None:
    try:
        jax.block_until_ready(part())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise UserError(
            f"The {name} needs more memory than there is ({str(error).splitlines()[0]}). Raise "
            "train.accumulate, or lower train.batch_size, model.num_particles or the images' size."
        ) from error
