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
      function: a function of a module. It gets the arguments (read-only) and the results (not
        initialised).
      results: shapes and dtypes of what it fills in.
      *arguments: arrays.
    """
    if jax.default_backend() == "cpu":
        return ffi_call(function, results, *arguments)

    def on_host(*arrays: Any) -> tuple[np.ndarray, ...]:
        filled = tuple(np.empty(result.shape, result.dtype) for result in results)
        function(*(np.asarray(array) for array in arrays), *filled)
        return filled

    return list(jax.pure_callback(on_host, tuple(results), *arguments, vmap_method="sequential"))
