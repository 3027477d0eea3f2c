"""Compiled host functions inside jitted programs."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from hdvpd.kernels.ffi import ffi_call


def host_call(
    function: Callable[..., None],
    results: Sequence[jax.ShapeDtypeStruct],
    *arguments: Any,
    vmap_method: str = "sequential",
) -> list[jax.Array]:
    """Call a pure numpy function that fills in its last arguments from a traced program.

    Works under jit, vmap (by default one call per element), scan and rematerialisation. It has no
    derivative: callers stop gradients or define their own. Nothing is copied on CPU; where the
    program runs elsewhere, its arguments come to the host and the results go back.

    Args:
      function: a function of a module. It gets the arguments (read-only) and the results (not
        initialised).
      results: shapes and dtypes of what it fills in.
      *arguments: arrays.
      vmap_method: of `jax.pure_callback`: what the function gets under vmap.
    """
    if jax.default_backend() == "cpu":
        return ffi_call(function, results, *arguments, vmap_method=vmap_method)

    def on_host(*arrays: Any) -> tuple[np.ndarray, ...]:
        filled = tuple(np.empty(result.shape, result.dtype) for result in results)
        function(*(np.asarray(array) for array in arrays), *filled)
        return filled

    return list(jax.pure_callback(on_host, tuple(results), *arguments, vmap_method=vmap_method))


def fill_each(
    function: Callable[..., None], shapes: Sequence[tuple[int, ...]], *arguments: Any
) -> list[jax.Array]:
    """Call a function that goes through what vmap maps by itself, by `each`; see `host_call`.

    Args:
      function: as of `host_call`; under vmap its arguments have further axes in front.
      shapes: of its results, in float32.
      *arguments: arrays.
    """
    results = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]
    return host_call(function, results, *arguments, vmap_method="expand_dims")


def each(ranks: int | Sequence[int], *arrays: np.ndarray) -> Iterator[list[np.ndarray]]:
    """Yield views for every place along the axes that vmap's "expand_dims" has put in front.

    Args:
      ranks: of every array without those axes.
      *arrays: the last one has all those axes in full, others may have them of length 1.
    """
    if isinstance(ranks, int):
        ranks = [ranks] * len(arrays)
    before = [x.ndim - rank for x, rank in zip(arrays, ranks, strict=True)]
    if not before[-1]:  # the same as below, sooner; also numbers, or numba would compile twice
        yield [x if x.ndim else x[()] for x in arrays]
        return
    for place in np.ndindex(arrays[-1].shape[: before[-1]]):
        yield [
            x[tuple(min(i, n - 1) for i, n in zip(place, x.shape[:axes], strict=True))]
            for x, axes in zip(arrays, before, strict=True)
        ]
