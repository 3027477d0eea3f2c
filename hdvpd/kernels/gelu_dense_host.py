"""Host form of a dense layer with GELU behind it, for a block of rows while it is in the cache.

The backward pass computes again what GELU got. Sums are made as in `dense_host.py`.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, aligned, clear, copy_rows, parallel_njit
from hdvpd.kernels.dense_host import AT_ONCE, add_all_parts, parts_of
from hdvpd.kernels.rows_host import bend, bend_and_undo
from hdvpd.kernels.small_products import (
    add_transposed_product,
    product,
    transposed,
)


@parallel_njit()
@no_type_check
def forward(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray, result: np.ndarray) -> None:
    """Fill in GELU(x kernel + bias).

    Args:
      x: (t, k) rows.
      kernel: (k, n).
      bias: (n,).
      result: (t, n).
    """
    rows = x.shape[0]
    parts = parts_of(rows)
    row_of_bias = bias.reshape(1, -1)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            product(x[begin:end], kernel, result[begin:end])
            bend(result[begin:end], row_of_bias)


@parallel_njit()
@no_type_check
def backward(
    x: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    result_bar: np.ndarray,
    x_bar: np.ndarray,
    kernel_bar: np.ndarray,
    bias_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of x, kernel and bias; shapes are as in `forward`."""
    rows, inner = x.shape[0], bias.shape[0]
    parts = parts_of(rows)
    row_of_bias, back = bias.reshape(1, -1), transposed(kernel)
    kernel_bars = aligned((parts, kernel.shape[0], inner))
    bias_bars = aligned((parts, 1, inner))
    for part in prange(parts):
        last = (part + 1) * rows // parts
        spaces = aligned((2, AT_ONCE, inner))
        clear(kernel_bars[part])
        clear(bias_bars[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            bent, bar = spaces[0, : end - begin], spaces[1, : end - begin]
            product(x[begin:end], kernel, bent)
            copy_rows(result_bar[begin:end], bar)
            bend_and_undo(bent, row_of_bias, bar, bias_bars[part])
            add_transposed_product(x[begin:end], bar, kernel_bars[part])
            product(bar, back, x_bar[begin:end])
    add_all_parts(kernel_bars, kernel_bar)
    add_parts(bias_bars, bias_bar)
