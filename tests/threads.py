"""Host code with one thread and with all of them."""

from collections.abc import Callable
from typing import Any

import jax
import numba
import numpy as np

from hdvpd.kernels.cores import share_cores


def check_that_threads_change_nothing(run: Callable[[], Any]) -> None:
    """Run twice and compare to the bit.

    By shares of the cores: `numba.set_num_threads` would tell the caller's thread alone, while
    XLA calls from its own.
    """
    results = []
    try:
        for devices in (numba.config.NUMBA_NUM_THREADS, 1):
            share_cores(devices)
            results.append(jax.device_get(run()))
    finally:
        share_cores(1)
    for one, other in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(one, other)
