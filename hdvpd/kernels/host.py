"""Compiled host functions inside jitted programs."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from hdvpd.kernels.ffi import ffi_call


def host_call(
    function: Callable[..., None], results: Sequence[jax.ShapeDtypeStruct], *arguments: Any
) -> list[jax.Array]:
    """Call a pure numpy function that fills in its last arguments from a traced program.

    Works under jit, vmap (one call per element), scan and rematerialisation. It has no derivative:
    callers stop gradients or define their own. Nothing is copied on CPU; where the program runs
    elsewhere, its arguments come to the host and the results go back.

    Args:
      function: a function of a module. It gets the arguments (read-only; those without axes as
        numbers) and the results (not initialised).
      results: shapes and dtypes of what it fills in.
      *arguments: arrays.
    """
    if jax.default_backend() == "cpu":
        return ffi_call(function, results, *arguments)

    def on_host(*arrays: Any) -> tuple[np.ndarray, ...]:
        filled = tuple(np.empty(result.shape, result.dtype) for result in results)
        function(*(x if np.ndim(x) else x[()] for x in map(np.asarray, arrays)), *filled)
        return filled

    return list(jax.pure_callback(on_host, tuple(results), *arguments, vmap_method="sequential"))


def fill(
    function: Callable[..., None], shapes: Sequence[tuple[int, ...]], *arguments: Any
) -> list[jax.Array]:
    """Call a function whose results, of these shapes, are float32; see `host_call`."""
    results = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return host_call(function, results, *arguments)
