"""Gradients written by hand, for forms that jax cannot differentiate or would at a higher cost."""

import functools
from collections.abc import Callable, Hashable
from typing import Any

import jax


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
