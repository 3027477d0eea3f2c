"""Host form of dense layers: blocks of rows that stay in the cache.

What stands before a layer (a LayerNorm) is computed for a block when it is needed, also
backward, and never written to memory as a whole. Gradients of weights are sums over fixed parts of
the rows, in their order, whatever the number of threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, aligned, clear, copy_rows, fast_njit, parallel_njit
from hdvpd.kernels.rows_host import add_rows, add_to, normalize, undo_normalize
from hdvpd.kernels.small_products import (
    add_transposed_product,
    product,
    transposed,
)

AT_ONCE = 256
"""Rows of a block."""
_PART = 1024
"""Rows of a part at least."""
_MOST_PARTS = 32
_MANY = 2**18
"""More numbers are added up by all threads."""


@fast_njit()
@no_type_check
def parts_of(rows):
    """Return into how many parts rows are cut."""
    return min(max(rows // _PART, 1), _MOST_PARTS)


@parallel_njit()
@no_type_check
def forward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    residual: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    result: np.ndarray,
) -> None:
    """Fill in before(x) kernel + bias + residual.

    Args:
      x: (t, k) rows.
      norm: (2, k) scale and offset of the LayerNorm; (2, 0) for none.
      epsilon: added to the variance.
      residual: (t, n), or (0, n) for none.
      kernel: (k, n).
      bias: (n,).
      result: (t, n).
    """
    rows = x.shape[0]
    parts = parts_of(rows)
    inner_kernel, inner_bias = scaled(norm, kernel), shifted(norm, kernel, bias)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        whole, factors = aligned((AT_ONCE, x.shape[1])), np.empty(AT_ONCE, np.float32)
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            space, coming = whole[: end - begin], result[begin:end]
            block = prepare(x[begin:end], norm, epsilon, space, factors, coming)
            product(block, inner_kernel, result[begin:end])
            add_to(result[begin:end], residual[begin:end], inner_bias)


@parallel_njit()
@no_type_check
def backward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    kernel: np.ndarray,
    result_bar: np.ndarray,
    beside_bar: np.ndarray,
    x_bar: np.ndarray,
    norm_bar: np.ndarray,
    kernel_bar: np.ndarray,
    bias_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of x, norm, kernel and bias; shapes are as in `forward`.

    `beside_bar`, (t, k) or (0, k), is what x gets elsewhere; with a norm it is added here.
    """
    rows = x.shape[0]
    parts = parts_of(rows)
    back = transposed(scaled(norm, kernel))
    kernel_bars = aligned((parts, kernel.shape[0], kernel.shape[1]))
    bias_bars = aligned((parts, 1, bias_bar.shape[0]))
    for part in prange(parts):
        last = (part + 1) * rows // parts
        whole, factors = aligned((AT_ONCE, x.shape[1])), np.empty(AT_ONCE, np.float32)
        clear(kernel_bars[part])
        clear(bias_bars[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            space, coming = whole[: end - begin], x[end:]
            block = prepare(x[begin:end], norm, epsilon, space, factors, coming)
            add_transposed_product(block, result_bar[begin:end], kernel_bars[part])
            add_rows(result_bar[begin:end], bias_bars[part])
            product(result_bar[begin:end], back, x_bar[begin:end])
            undo(norm, block, factors, beside_bar[begin:end], x_bar[begin:end])
    add_all_parts(kernel_bars, kernel_bar)
    add_parts(bias_bars, bias_bar)
    to_norm(norm, kernel, bias_bar, kernel_bar, norm_bar)


@parallel_njit()
@no_type_check
def add_all_parts(parts: np.ndarray, total: np.ndarray) -> None:
    """Fill in the sum of (parts, k, n) along the first axis, by all threads if it is large."""
    if parts.size > _MANY:
        for row in prange(total.shape[0]):
            clear(total[row])
            for part in range(parts.shape[0]):
                _add(parts[part, row], total[row])
    else:
        add_parts(parts, total)


# A norm's scale and offset are those of the layer's kernel and bias: what is done for every row is
# less, and the sums over rows of which their gradients are made are those for kernel and bias.


@fast_njit()
@no_type_check
def scaled(norm, kernel):
    """Return the kernel for rows normed without scale."""
    result = aligned(kernel.shape)
    for row in range(kernel.shape[0]):
        factor = norm[0, row] if norm.shape[1] else np.float32(1)
        for column in range(kernel.shape[1]):
            result[row, column] = factor * kernel[row, column]
    return result


@fast_njit()
@no_type_check
def shifted(norm, kernel, bias):
    """Return the bias, (1, n), for rows normed without offset."""
    result = aligned((1, bias.shape[0]))
    copy_rows(bias.reshape(1, -1), result)
    for row in range(norm.shape[1]):
        for column in range(bias.shape[0]):
            result[0, column] += norm[1, row] * kernel[row, column]
    return result


@fast_njit()
@no_type_check
def to_norm(norm, kernel, bias_bar, kernel_bar, norm_bar):
    """Turn the cotangent of `scaled` into the kernel's, and fill in the norm's.

    Args:
      norm: as of `forward`.
      kernel: likewise.
      bias_bar: cotangent of bias, and of `shifted`.
      kernel_bar: cotangent of `scaled`.
      norm_bar: gets that of the norm.
    """
    for row in range(norm.shape[1]):
        scale_bar, offset_bar = np.float32(0), np.float32(0)
        for column in range(kernel.shape[1]):
            scale_bar += kernel[row, column] * kernel_bar[row, column]
            offset_bar += kernel[row, column] * bias_bar[column]
        norm_bar[0, row], norm_bar[1, row] = scale_bar, offset_bar
        for column in range(kernel.shape[1]):
            inner = norm[0, row] * kernel_bar[row, column]
            kernel_bar[row, column] = inner + norm[1, row] * bias_bar[column]


@fast_njit()
@no_type_check
def prepare(x, norm, epsilon, space, factors, coming):
    """Return rows that are to be multiplied: x itself, or its normed rows, which get the space.

    See `normalize` for the other arguments.
    """
    if norm.shape[1]:
        normalize(x, epsilon, space, factors, coming)
        return space
    return x


@fast_njit()
@no_type_check
def undo(norm, block, factors, beside_bar, bar):
    """Turn cotangents of what `prepare` returns into those of x, with what it gets elsewhere."""
    if norm.shape[1]:
        undo_normalize(block, factors, beside_bar, bar)


@fast_njit()
@no_type_check
def _add(row, total):
    for column in range(total.shape[0]):
        total[column] += row[column]
