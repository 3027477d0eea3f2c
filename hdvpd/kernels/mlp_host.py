"""Host form of a transformer's MLP: norm, two dense layers with GELU between them, residual.

All of it is done for a block of rows while that stays in the cache: what is between the layers is
several times as wide as the rows, and is never in memory as a whole. The backward pass computes it
again. Sums are made as in `dense_host.py`.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, aligned, clear, parallel_njit
from hdvpd.kernels.dense_host import AT_ONCE, add_all_parts, parts_of, scaled, shifted, to_norm
from hdvpd.kernels.rows_host import (
    add_rows,
    add_to,
    bend,
    bend_and_undo,
    normalize,
    undo_normalize,
)
from hdvpd.kernels.small_products import (
    add_transposed_product,
    product,
    transposed,
)


@parallel_njit()
@no_type_check
def forward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    kernel_in: np.ndarray,
    bias_in: np.ndarray,
    kernel_out: np.ndarray,
    bias_out: np.ndarray,
    result: np.ndarray,
) -> None:
    """Fill in x + GELU(LayerNorm(x) kernel_in + bias_in) kernel_out + bias_out.

    Args:
      x: (t, d) rows.
      norm: (2, d) scale and offset of the LayerNorm.
      epsilon: added to the variance.
      kernel_in: (d, h).
      bias_in: (h,).
      kernel_out: (h, d).
      bias_out: (d,).
      result: (t, d).
    """
    rows, width, inner = x.shape[0], x.shape[1], bias_in.shape[0]
    parts = parts_of(rows)
    inner_kernel, inner_bias = scaled(norm, kernel_in), shifted(norm, kernel_in, bias_in)
    outer_bias = bias_out.reshape(1, -1)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        normed_space = aligned((AT_ONCE, width))
        hidden_space = aligned((AT_ONCE, inner))
        factors = np.empty(AT_ONCE, np.float32)
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            normed, hidden = normed_space[: end - begin], hidden_space[: end - begin]
            normalize(x[begin:end], epsilon, normed, factors, result[begin:end])
            product(normed, inner_kernel, hidden)
            bend(hidden, inner_bias)
            product(hidden, kernel_out, result[begin:end])
            add_to(result[begin:end], x[begin:end], outer_bias)


@parallel_njit()
@no_type_check
def backward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    kernel_in: np.ndarray,
    bias_in: np.ndarray,
    kernel_out: np.ndarray,
    result_bar: np.ndarray,
    x_bar: np.ndarray,
    norm_bar: np.ndarray,
    kernel_in_bar: np.ndarray,
    bias_in_bar: np.ndarray,
    kernel_out_bar: np.ndarray,
    bias_out_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of x, norm, kernels and biases; shapes are as in `forward`."""
    rows, width, inner = x.shape[0], x.shape[1], bias_in.shape[0]
    parts = parts_of(rows)
    inner_kernel, inner_bias = scaled(norm, kernel_in), shifted(norm, kernel_in, bias_in)
    back, inner_back = transposed(kernel_out), transposed(inner_kernel)
    kernel_in_bars = aligned((parts, width, inner))
    bias_in_bars = aligned((parts, 1, inner))
    kernel_out_bars = aligned((parts, inner, width))
    bias_out_bars = aligned((parts, 1, width))
    for part in prange(parts):
        last = (part + 1) * rows // parts
        normed_space = aligned((AT_ONCE, width))
        spaces = aligned((2, AT_ONCE, inner))
        factors = np.empty(AT_ONCE, np.float32)
        clear(kernel_in_bars[part])
        clear(bias_in_bars[part])
        clear(kernel_out_bars[part])
        clear(bias_out_bars[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            normed, bar = normed_space[: end - begin], result_bar[begin:end]
            hidden, hidden_bar = spaces[0, : end - begin], spaces[1, : end - begin]
            normalize(x[begin:end], epsilon, normed, factors, bar)
            product(normed, inner_kernel, hidden)
            product(bar, back, hidden_bar)
            bend_and_undo(hidden, inner_bias, hidden_bar, bias_in_bars[part])
            add_transposed_product(hidden, bar, kernel_out_bars[part])
            add_rows(bar, bias_out_bars[part])
            add_transposed_product(normed, hidden_bar, kernel_in_bars[part])
            product(hidden_bar, inner_back, x_bar[begin:end])
            undo_normalize(normed, factors, bar, x_bar[begin:end])
    add_all_parts(kernel_in_bars, kernel_in_bar)
    add_parts(bias_in_bars, bias_in_bar)
    to_norm(norm, kernel_in, bias_in_bar, kernel_in_bar, norm_bar)
    add_all_parts(kernel_out_bars, kernel_out_bar)
    add_parts(bias_out_bars, bias_out_bar)
