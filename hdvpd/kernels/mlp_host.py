"""Host form of a transformer's MLP: norm, two dense layers with GELU between them, residual.

All of it is done for a block of rows while that stays in the cache: what is between the layers is
several times as wide as the rows, and is never in memory as a whole. The backward pass computes it
again. Sums are made as in `dense_host.py`.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, add_rows, clear, fast_njit, parallel_njit
from hdvpd.kernels.dense_host import (
    AT_ONCE,
    add_all_parts,
    begin_with,
    parts_of,
    prepare,
    undo,
)
from hdvpd.kernels.gelu import gelu, gelu_and_slope
from hdvpd.kernels.host import each
from hdvpd.kernels.small_products import (
    add_product,
    add_product_transposed,
    add_transposed_product,
)


def forward(*arrays: np.ndarray) -> None:
    """Fill in x + GELU(LayerNorm(x) kernel_in + bias_in) kernel_out + bias_out.

    Args:
      *arrays: those of `_forward`; there may be further axes in front (`host.each`).
    """
    for x in each((2, 2, 0, 2, 1, 2, 1, 2), *arrays):
        _forward(*x)


def backward(*arrays: np.ndarray) -> None:
    """Fill in the cotangents of x, norm, kernels and biases.

    Args:
      *arrays: those of `_backward`; there may be further axes in front (`host.each`).
    """
    for x in each((2, 2, 0, 2, 1, 2, 2, 2, 2, 2, 1, 2, 1), *arrays):
        _backward(*x)


@parallel_njit()
@no_type_check
def _forward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    kernel_in: np.ndarray,
    bias_in: np.ndarray,
    kernel_out: np.ndarray,
    bias_out: np.ndarray,
    result: np.ndarray,
) -> None:
    """Do what `forward` does.

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
    for part in prange(parts):
        last = (part + 1) * rows // parts
        normed_space = np.empty((AT_ONCE, width), np.float32)
        hidden_space = np.empty((AT_ONCE, inner), np.float32)
        nothing = np.empty((0, inner), np.float32)
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            normed, hidden = normed_space[: end - begin], hidden_space[: end - begin]
            prepare(x[begin:end], norm, epsilon, normed)
            begin_with(nothing, bias_in, hidden)
            add_product(normed, kernel_in, 1, hidden)
            _bend(hidden)
            begin_with(x[begin:end], bias_out, result[begin:end])
            add_product(hidden, kernel_out, 1, result[begin:end])


@parallel_njit()
@no_type_check
def _backward(
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
    """Do what `backward` does; shapes are those of `_forward`."""
    rows, width, inner = x.shape[0], x.shape[1], bias_in.shape[0]
    parts = parts_of(rows)
    norm_bars = np.empty((parts, 2, width), np.float32)
    kernel_in_bars = np.empty((parts, width, inner), np.float32)
    bias_in_bars = np.empty((parts, inner), np.float32)
    kernel_out_bars = np.empty((parts, inner, width), np.float32)
    bias_out_bars = np.empty((parts, width), np.float32)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        normed_space = np.empty((AT_ONCE, width), np.float32)
        spaces = np.empty((3, AT_ONCE, inner), np.float32)
        nothing = np.empty((0, inner), np.float32)
        clear(norm_bars[part])
        clear(kernel_in_bars[part])
        clear(bias_in_bars[part])
        clear(kernel_out_bars[part])
        clear(bias_out_bars[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            normed, bar = normed_space[: end - begin], result_bar[begin:end]
            hidden, slope = spaces[0, : end - begin], spaces[1, : end - begin]
            hidden_bar = spaces[2, : end - begin]
            prepare(x[begin:end], norm, epsilon, normed)
            begin_with(nothing, bias_in, hidden)
            add_product(normed, kernel_in, 1, hidden)
            _bend_with_slope(hidden, slope)
            add_transposed_product(hidden, bar, 1, kernel_out_bars[part])
            add_rows(bar, bias_out_bars[part])
            add_product_transposed(bar, kernel_out, 0, hidden_bar)
            _scale(slope, hidden_bar)
            add_transposed_product(normed, hidden_bar, 1, kernel_in_bars[part])
            add_rows(hidden_bar, bias_in_bars[part])
            add_product_transposed(hidden_bar, kernel_in, 0, normed)
            undo(x[begin:end], norm, epsilon, normed, x_bar[begin:end], norm_bars[part])
            _add(bar, x_bar[begin:end])
    add_parts(norm_bars, norm_bar)
    add_all_parts(kernel_in_bars, kernel_in_bar)
    add_parts(bias_in_bars, bias_in_bar)
    add_all_parts(kernel_out_bars, kernel_out_bar)
    add_parts(bias_out_bars, bias_out_bar)


@fast_njit()
@no_type_check
def _bend(rows):
    """Replace numbers by their GELU."""
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            rows[row, column] = gelu(rows[row, column])


@fast_njit()
@no_type_check
def _bend_with_slope(rows, slope):
    """Replace numbers by their GELU, and fill in its derivative."""
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            bent, its_slope = gelu_and_slope(rows[row, column])
            rows[row, column] = bent
            slope[row, column] = its_slope


@fast_njit()
@no_type_check
def _scale(factors, rows):
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            rows[row, column] *= factors[row, column]


@fast_njit()
@no_type_check
def _add(rows, sums):
    for row in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            sums[row, column] += rows[row, column]
