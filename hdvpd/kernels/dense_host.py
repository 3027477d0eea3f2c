"""Host form of dense layers: blocks of rows that stay in the cache.

What stands before a layer (a LayerNorm) is computed for a block when it is needed, also
backward, and never written to memory as a whole. Gradients of weights are sums over fixed parts of
the rows, in their order, whatever the number of threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, add_rows, clear, copy_rows, fast_njit, parallel_njit
from hdvpd.kernels.host import each
from hdvpd.kernels.small_products import (
    add_product,
    add_product_transposed,
    add_transposed_product,
)

AT_ONCE = 256
"""Rows of a block."""
_PART = 1024
"""Rows of a part at least."""
_MOST_PARTS = 32
_MANY = 2**18
"""More numbers are added up by all threads."""


def forward(*arrays: np.ndarray) -> None:
    """Fill in before(x) kernel + bias + residual.

    Args:
      *arrays: those of `_forward`; there may be further axes in front (`host.each`).
    """
    for x in each((2, 2, 0, 2, 2, 1, 2), *arrays):
        _forward(*x)


def backward(*arrays: np.ndarray) -> None:
    """Fill in the cotangents of x, norm, kernel and bias.

    Args:
      *arrays: those of `_backward`; there may be further axes in front (`host.each`).
    """
    for x in each((2, 2, 0, 2, 2, 2, 2, 2, 1), *arrays):
        _backward(*x)


@fast_njit()
@no_type_check
def parts_of(rows):
    """Return into how many parts rows are cut."""
    return min(max(rows // _PART, 1), _MOST_PARTS)


@parallel_njit()
@no_type_check
def _forward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    residual: np.ndarray,
    kernel: np.ndarray,
    bias: np.ndarray,
    result: np.ndarray,
) -> None:
    """Do what `forward` does.

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
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((AT_ONCE, x.shape[1]), np.float32)
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            block = space[: end - begin]
            prepare(x[begin:end], norm, epsilon, block)
            begin_with(residual[begin:end], bias, result[begin:end])
            add_product(block, kernel, 1, result[begin:end])


@parallel_njit()
@no_type_check
def _backward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    kernel: np.ndarray,
    result_bar: np.ndarray,
    x_bar: np.ndarray,
    norm_bar: np.ndarray,
    kernel_bar: np.ndarray,
    bias_bar: np.ndarray,
) -> None:
    """Do what `backward` does; shapes are those of `_forward`."""
    rows = x.shape[0]
    parts = parts_of(rows)
    kernel_bars = np.empty((parts, kernel.shape[0], kernel.shape[1]), np.float32)
    norm_bars = np.empty((parts, 2, norm.shape[1]), np.float32)
    bias_bars = np.empty((parts, bias_bar.shape[0]), np.float32)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((AT_ONCE, x.shape[1]), np.float32)
        clear(kernel_bars[part])
        clear(norm_bars[part])
        clear(bias_bars[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            block = space[: end - begin]
            prepare(x[begin:end], norm, epsilon, block)
            add_transposed_product(block, result_bar[begin:end], 1, kernel_bars[part])
            add_rows(result_bar[begin:end], bias_bars[part])
            add_product_transposed(result_bar[begin:end], kernel, 0, block)
            undo(x[begin:end], norm, epsilon, block, x_bar[begin:end], norm_bars[part])
    add_all_parts(kernel_bars, kernel_bar)
    add_parts(norm_bars, norm_bar)
    add_parts(bias_bars, bias_bar)


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


@fast_njit()
@no_type_check
def begin_with(residual, bias, result):
    """Fill in residual + bias; (0, n) is no residual."""
    if residual.shape[0]:
        for row in range(result.shape[0]):
            for column in range(result.shape[1]):
                result[row, column] = residual[row, column] + bias[column]
    else:
        for row in range(result.shape[0]):
            for column in range(result.shape[1]):
                result[row, column] = bias[column]


@fast_njit()
@no_type_check
def prepare(x, norm, epsilon, block):
    """Fill a block of rows with what the layer multiplies."""
    columns = x.shape[1]
    if norm.shape[1]:
        for row in range(x.shape[0]):
            mean, factor = _moments(x[row], epsilon)
            for column in range(columns):
                normed = (x[row, column] - mean) * factor
                block[row, column] = normed * norm[0, column] + norm[1, column]
    else:
        copy_rows(x, block)


@fast_njit()
@no_type_check
def undo(x, norm, epsilon, bar, x_bar, norm_bar):
    """Fill in the cotangent of rows from that of a block, which is used up."""
    columns = x.shape[1]
    if norm.shape[1]:
        normed = np.empty(columns, np.float32)
        for row in range(x.shape[0]):
            mean, factor = _moments(x[row], epsilon)
            for column in range(columns):
                normed[column] = (x[row, column] - mean) * factor
            for column in range(columns):
                norm_bar[0, column] += bar[row, column] * normed[column]
            for column in range(columns):
                norm_bar[1, column] += bar[row, column]
            total, along = np.float32(0), np.float32(0)
            for column in range(columns):
                bar[row, column] *= norm[0, column]
            for column in range(columns):
                total += bar[row, column]
                along += bar[row, column] * normed[column]
            total, along = total / np.float32(columns), along / np.float32(columns)
            for column in range(columns):
                inner = bar[row, column] - total - normed[column] * along
                x_bar[row, column] = factor * inner
    else:
        copy_rows(bar, x_bar)


@fast_njit()
@no_type_check
def _moments(row, epsilon):
    """Return mean and 1 / deviation."""
    total = np.float32(0)
    for column in range(row.shape[0]):
        total += row[column]
    mean = total / np.float32(row.shape[0])
    squares = np.float32(0)
    for column in range(row.shape[0]):
        squares += (row[column] - mean) * (row[column] - mean)
    return mean, np.float32(1) / np.sqrt(squares / np.float32(row.shape[0]) + epsilon)


@fast_njit()
@no_type_check
def _add(row, total):
    for column in range(total.shape[0]):
        total[column] += row[column]
