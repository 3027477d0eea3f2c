"""Gradients written by hand, for forms that jax cannot differentiate or would at a higher cost."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Int


def differentiable(
    forward: Callable[[Any, Any, Any], tuple[Any, Any]],
    backward: Callable[[Any, Any, Any, Any, Any], Any],
) -> Callable[[Hashable, Any, Any], Any]:
    """Make an operation of its two passes, for reverse mode.

    Args:
      forward: of (settings, moving, fixed), returns the result and what to save for the backward
        pass besides these arguments.
      backward: of (settings, moving, fixed, saved, cotangent of the result), returns the
        cotangents of `moving`.

    Returns:
      The operation, a function of (settings, moving, fixed): hashable settings, then two pytrees of
      arrays. No gradient flows to `fixed`, such as indices.
    """

    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def operation(settings, moving, fixed):
        return forward(settings, moving, fixed)[0]

    def run_forward(settings, moving, fixed):
        result, saved = forward(settings, moving, fixed)
        return result, (moving, fixed, saved)

    def run_backward(settings, residuals, result_bar):
        moving, fixed, saved = residuals
        return backward(settings, moving, fixed, saved, result_bar), None

    operation.defvjp(run_forward, run_backward)
    return operation


def by_chunks(
    function: Callable[..., Any],
    num_rows: int,
    count: Int[Array, ""],
    moving: tuple[Any, ...],
    fixed: Any,
) -> jax.Array:
    """Compute the first chunks of an array's rows, one after another; the others are 0.

    Every chunk is computed again for its gradient, for which nothing is kept. Reverse mode only.

    Args:
      function: of (number of a chunk, fixed, *moving), returns its rows (r, n). What else it is
        made of gets a gradient as well.
      num_rows: of all chunks.
      count: how many are computed.
      moving: arrays.
      fixed: pytree of arrays, to which no gradient flows.

    Returns:
      (num_rows, n).
    """
    part = jax.eval_shape(function, count, fixed, *moving)
    function, others = jax.closure_convert(function, count, fixed, *moving)
    shape, size = (num_rows, *part.shape[1:]), part.shape[0]

    def forward(_: None, moving: Any, fixed: Any) -> tuple[jax.Array, None]:
        def write(number: jax.Array, rows: jax.Array) -> jax.Array:
            part = function(number, fixed[0], *moving)
            return jax.lax.dynamic_update_slice_in_dim(rows, part, number * size, axis=0)

        return jax.lax.fori_loop(0, fixed[1], write, jnp.zeros(shape, part.dtype)), None

    def backward(_: None, moving: Any, fixed: Any, __: None, rows_bar: jax.Array) -> Any:
        def add(number: jax.Array, bars: Any) -> Any:
            pull = jax.vjp(lambda *moving: function(number, fixed[0], *moving), *moving)[1]
            bar = jax.lax.dynamic_slice_in_dim(rows_bar, number * size, size)
            return jax.tree.map(jnp.add, bars, pull(bar))

        return jax.lax.fori_loop(0, fixed[1], add, jax.tree.map(jnp.zeros_like, moving))

    return differentiable(forward, backward)(None, (*moving, *others), (fixed, count))
