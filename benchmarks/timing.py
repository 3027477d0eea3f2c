"""What every benchmark shares: best-of timing, peak memory, fitted exponents, points and data."""

import ctypes
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Batch
from hdvpd.config import Config
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window, stack_windows


def best_of(
    function: Callable[..., Any],
    *arguments: Any,
    repeats: int = 5,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Return the fastest of several calls [s]; the first one, which compiles, does not count."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = clock()
        jax.block_until_ready(function(*arguments))
        times.append(clock() - start)
    return min(times)


def machine_rates(
    repeats: int, clock: Callable[[], float] = time.perf_counter
) -> tuple[float, float]:
    """Return the rate of matrix products [FLOP/s] and the copy bandwidth [bytes/s].

    The best of float32 products of 512, 1,024 and 2,048 rows and columns, on accelerators of 4,096
    and 8,192, and of a copy of 128 MiB, on accelerators of 1 GiB, which no cache holds.
    """
    on_cpu = jax.default_backend() == "cpu"
    product = jax.jit(lambda x: x @ x)
    rates = []
    for size in (512, 1024, 2048) if on_cpu else (4096, 8192):
        matrix = jnp.ones((size, size))
        rates.append(2 * size**3 / best_of(product, matrix, repeats=repeats, clock=clock))
    numbers = jnp.ones((2**25 if on_cpu else 2**28,))
    seconds = best_of(jax.jit(lambda x: -x), numbers, repeats=repeats, clock=clock)
    return max(rates), 2 * numbers.nbytes / seconds


def interleaved(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return each function's fastest time [ms], rounds interleaved so that noise hits all alike."""
    best = dict.fromkeys(functions, float("inf"))
    for round_ in range(repeats + 1):
        for name, function in functions.items():
            start = time.perf_counter()
            jax.block_until_ready(function())
            if round_ > 0:  # the first round compiles
                best[name] = min(best[name], 1e3 * (time.perf_counter() - start))
    return best


def interleaved_cpu(functions: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Return each function's least processor time [ms] over all threads, as `interleaved`.

    On a machine with other work to do it says more than the time on the clock.
    """
    best = dict.fromkeys(functions, float("inf"))
    for round_ in range(repeats + 1):
        for name, function in functions.items():
            start = time.process_time()
            jax.block_until_ready(function())
            if round_ > 0:
                best[name] = min(best[name], 1e3 * (time.process_time() - start))
    return best


def return_freed_memory() -> None:
    """Undo `keep_freed_memory` (glibc): kept memory would hide what a call adds."""
    libc = ctypes.CDLL(None)
    trim_threshold, top_pad, mmap_threshold, mmap_max = -1, -2, -3, -4
    for setting in (
        (trim_threshold, 0),
        (top_pad, 0),
        (mmap_threshold, 1 << 16),
        (mmap_max, 1 << 16),
    ):
        libc.mallopt(*setting)
    libc.malloc_trim(0)


def added_mib(function: Callable[[], object], repeats: int = 3) -> float:
    """Return how much resident memory one call adds at its peak, results included [MiB] (Linux).

    Call the function before, so that nothing is compiled here, and `return_freed_memory`.
    """
    added = []
    for _ in range(repeats):
        time.sleep(0.1)  # buffers of the last call are freed by other threads
        Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM to VmRSS
        before = _status_mib("VmRSS")
        jax.block_until_ready(function())
        added.append(_status_mib("VmHWM") - before)
    return max(added)


def _status_mib(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) / 2**10


def surface(num_points: int) -> np.ndarray:
    """Return points [m] on a wavy square metre in random order, like a scene's visible surfaces."""
    rng = np.random.default_rng(0)
    xy = rng.uniform(size=(num_points, 2))
    z = 0.05 * np.sin(9 * xy[:, 0]) * np.cos(7 * xy[:, 1])
    return np.concatenate([xy, z[:, None]], axis=1).astype(np.float32)


def all_distances(queries: jax.Array, points: jax.Array, k: int) -> jax.Array:
    """Return rows of the k nearest points of every query, by computing all distances in blocks."""

    def nearest(query: jax.Array) -> jax.Array:
        return jax.lax.top_k(-((query - points) ** 2).sum(-1), k)[1]

    return jax.lax.map(nearest, queries, batch_size=max(1, 2**24 // len(points)))


def peak_gib() -> float:
    """Return the largest memory so far [GiB]: of an accelerator's, or this process's resident."""
    held = jax.local_devices()[0].memory_stats()
    if held and "peak_bytes_in_use" in held:
        return held["peak_bytes_in_use"] / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def fitted_exponent(sizes: list[int], values: list[float]) -> float:
    """Return the slope of log value against log size."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def analytic_batch(config: Config) -> tuple[Dataset, Batch]:
    """Return a temporary data set of the analytic scene and one batch of it at config size."""
    length = config.train.horizon + 2
    path = tempfile.mkdtemp(prefix="hdvpd-benchmark-")
    dataset = write_synthetic_dataset(
        f"{path}/analytic",
        episodes=3,
        steps=length,
        height=config.data.height,
        width=config.data.width,
        seed=0,
    )
    index = WindowIndex(dataset, "train", length)
    windows = index.sample(seed=0, step=0, batch_size=config.train.batch_size)
    read = [read_window(dataset, *window, length, config.data) for window in windows]
    return dataset, stack_windows(read)
