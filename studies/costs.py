"""What a call costs: its fastest time, its memory, and how both grow."""

import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

_SECONDS = 0.05


class Seconds(NamedTuple):
    """Fastest of several calls: by the clock, and of processor time over all threads.

    Processor time hardly counts what else runs on the machine.
    """

    wall: float
    cpu: float


def fastest(calls: Sequence[Callable[[], Any]], rounds: int) -> list[Seconds]:
    """Time calls in rounds that take turns, so that noise hits all alike.

    A round repeats each call for `_SECONDS`, as processor time of other threads is counted in
    ticks of milliseconds. One round before them, which compiles and warms up, does not count.
    """
    best = [Seconds(np.inf, np.inf)] * len(calls)
    repeats = [1] * len(calls)
    for round_ in range(1 + rounds):
        for index, call in enumerate(calls):
            jax.block_until_ready(call())
            wall, cpu = time.perf_counter(), time.process_time()
            for _ in range(repeats[index]):
                jax.block_until_ready(call())
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            if round_ > 0:
                spent = Seconds(wall / repeats[index], cpu / repeats[index])
                best[index] = Seconds(*map(min, best[index], spent))
            else:
                repeats[index] = math.ceil(_SECONDS / wall)
    return best


def compiled_bytes(compiled: jax.stages.Compiled) -> int:
    """Return what one call of a compiled program holds in memory: arguments, temporaries, results.

    From XLA's plan of its buffers, so exact and without noise. Scratch memory of library calls,
    such as a vector per thread in a Fourier transform, is not in it.
    """
    memory: Any = compiled.memory_analysis()
    return memory.argument_size_in_bytes + memory.temp_size_in_bytes + memory.output_size_in_bytes


def peak_resident_bytes() -> int:
    """Return the largest resident memory of this process so far (Linux).

    Not `getrusage`, which in a new process starts at what the one that made it had.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def fitted_slope(x: Any, y: Any) -> float:
    """Return the exponent b of the least-squares fit y = a x^b."""
    x, y = (np.log(np.asarray(values, np.float64)) for values in (x, y))
    return float(np.polyfit(x, y, 1)[0])
