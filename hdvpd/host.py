"""Compiled host code inside jitted programs.

XLA's CPU gathers and scatters run at about 1 GB/s on one thread, so on CPU the neighbour search and
the two gather-heavy layers run as compiled host functions (k-d tree, numba) behind a callback.
Every such function has a plain JAX twin that is the reference and runs everywhere else.
"""

from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np

Kernels = Literal["auto", "host", "xla"]


def use_host_kernels(kernels: Kernels) -> bool:
    """Resolve the choice of fused layers: host code on CPU, plain JAX elsewhere."""
    if kernels == "auto":
        return jax.default_backend() == "cpu"
    return kernels == "host"


def host_call(
    function: Callable[..., Sequence[np.ndarray]],
    results: Sequence[jax.ShapeDtypeStruct],
    *arguments: Any,
) -> list[jax.Array]:
    """Call a pure numpy function from a traced program.

    Works under jit, vmap (one call per element), scan and rematerialisation. It has no derivative:
    callers stop gradients or define their own.

    Args:
      function: takes and returns numpy arrays; must be pure.
      results: shapes and dtypes of what it returns.
      *arguments: arrays.
    """

    def on_host(*arrays: Any) -> tuple[np.ndarray, ...]:
        return tuple(function(*(np.asarray(array) for array in arrays)))

    return list(jax.pure_callback(on_host, tuple(results), *arguments, vmap_method="sequential"))
