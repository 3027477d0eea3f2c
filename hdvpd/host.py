"""Compiled host code inside jitted programs.

On CPU the neighbour search and the gather-heavy layers run as compiled host functions (k-d tree,
numba) on XLA's own buffers. Every such function has a plain JAX twin that is the reference and runs
everywhere else. The walk attention has a Pallas twin too, which only an explicit choice runs: it
was never run on a GPU.
"""

import pkgutil
from collections.abc import Sequence
from typing import Any, Literal

import jax
import numpy as np

from hdvpd.ffi import ffi_call

Kernels = Literal["auto", "host", "xla", "pallas"]


def use_host_kernels(kernels: Kernels) -> bool:
    """Whether a fused layer runs host code; auto is host code on CPU, plain JAX elsewhere."""
    if kernels == "auto":
        return jax.default_backend() == "cpu"
    return kernels == "host"


def host_call(
    function: str, results: Sequence[jax.ShapeDtypeStruct], *arguments: Any
) -> list[jax.Array]:
    """Call a pure numpy function that fills in its last arguments from a traced program.

    Works under jit, vmap (one call per element), scan and rematerialisation. It has no derivative:
    callers stop gradients or define their own. Nothing is copied on CPU; where the program runs
    elsewhere, its arguments come to the host and the results go back.

    Args:
      function: its name, as in "package.module:function", imported when first run. It gets the
        arguments (read-only) and the results (not initialised).
      results: shapes and dtypes of what it fills in.
      *arguments: arrays.
    """
    if jax.default_backend() == "cpu":
        return ffi_call(function, results, *arguments)

    def on_host(*arrays: Any) -> tuple[np.ndarray, ...]:
        filled = tuple(np.empty(result.shape, result.dtype) for result in results)
        pkgutil.resolve_name(function)(*(np.asarray(array) for array in arrays), *filled)
        return filled

    return list(jax.pure_callback(on_host, tuple(results), *arguments, vmap_method="sequential"))
