"""What every benchmark shares: best-of timing, peak memory, fitted exponents and a data set."""

import resource
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from hdvpd.config import Config
from hdvpd.data.store import Dataset
from hdvpd.data.synthetic import write_synthetic_dataset
from hdvpd.data.windows import WindowIndex, read_window, stack_windows
from hdvpd.types import Batch


def best_of(function: Callable[..., Any], *arguments: Any, repeats: int = 5) -> float:
    """Return the fastest of several calls [s]; the first one, which compiles, does not count."""
    jax.block_until_ready(function(*arguments))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(function(*arguments))
        times.append(time.perf_counter() - start)
    return min(times)


def peak_gib() -> float:
    """Return the largest resident memory of this process so far [GiB]."""
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
