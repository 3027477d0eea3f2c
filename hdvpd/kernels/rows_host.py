"""What host code does with a block of rows beside products, in vectors.

The columns of a row, some tens to hundreds, are too few for fast code of numba's loops.
"""

from typing import no_type_check

import numpy as np

from hdvpd.kernels.compiled import SLAB, fast_njit
from hdvpd.kernels.gelu import gelu, gelu_and_slope
from hdvpd.kernels.vector_sums import plus_product
from hdvpd.kernels.vectors import (
    before,
    bring_near,
    everywhere,
    load_before,
    store_before,
    sum_of_lanes,
)

_WIDTH = 32
"""Columns of a vector: a processor's widest have as many or half of them."""
_NOTHING, _ONE = np.float32(0), np.float32(1)


@fast_njit()
@no_type_check
def add_to(rows, residual, bias):
    """Add a residual and a bias, (1, n), to rows; (0, n) is no residual.

    After a product, not before: the product is what brings the rows' memory near fastest.
    """
    columns, some = rows.shape[1], residual.shape[0] > 0
    for row in range(rows.shape[0]):
        for column in range(0, columns, _WIDTH):
            sums = load_before(columns, rows, row, column, _WIDTH)
            sums = sums + load_before(columns, bias, 0, column, _WIDTH)
            if some:
                sums = sums + load_before(columns, residual, row, column, _WIDTH)
            store_before(columns, sums, rows, row, column)


@fast_njit()
@no_type_check
def add_rows(rows, total):
    """Add all rows to a total, of shape (1, n)."""
    columns = rows.shape[1]
    for column in range(0, columns, _WIDTH):
        sums = load_before(columns, total, 0, column, _WIDTH)
        for row in range(rows.shape[0]):
            sums = sums + load_before(columns, rows, row, column, _WIDTH)
        store_before(columns, sums, total, 0, column)


@fast_njit()
@no_type_check
def normalize(x, epsilon, normed, factors, coming):
    """Fill in rows of mean 0 and variance 1, and what each is multiplied by for it.

    Args:
      x: (t, k).
      epsilon: added to the variance.
      normed: (t, k).
      factors: (t,) or more.
      coming: (t, n) rows that are needed next; the processor is told to fetch them.
    """
    columns = x.shape[1]
    count = np.float32(columns)
    for row in range(x.shape[0]):
        announce(coming, row, 0, coming.shape[1])
        sums = everywhere(_NOTHING, _WIDTH)
        for column in range(0, columns, _WIDTH):
            sums = sums + load_before(columns, x, row, column, _WIDTH)
        mean = sum_of_lanes(sums) / count
        squares = everywhere(_NOTHING, _WIDTH)
        for column in range(0, columns, _WIDTH):
            beside = load_before(columns, x, row, column, _WIDTH) - mean
            beside = before(columns, beside, column)
            squares = plus_product(squares, beside, beside)
        factor = _ONE / np.sqrt(sum_of_lanes(squares) / count + epsilon)
        factors[row] = factor
        for column in range(0, columns, _WIDTH):
            beside = load_before(columns, x, row, column, _WIDTH) - mean
            store_before(columns, beside * factor, normed, row, column)


@fast_njit()
@no_type_check
def undo_normalize(normed, factors, residual_bar, bar):
    """Turn cotangents of normed rows into those of the rows before, and add others to them.

    Args:
      normed: (t, k) from `normalize`.
      factors: likewise.
      residual_bar: (t, k) what is added; (0, k) for nothing.
      bar: (t, k).
    """
    columns, some = bar.shape[1], residual_bar.shape[0] > 0
    count = np.float32(columns)
    for row in range(bar.shape[0]):
        sums = products = everywhere(_NOTHING, _WIDTH)
        for column in range(0, columns, _WIDTH):
            here = load_before(columns, bar, row, column, _WIDTH)
            sums = sums + here
            there = load_before(columns, normed, row, column, _WIDTH)
            products = plus_product(products, here, there)
        mean, along = sum_of_lanes(sums) / count, sum_of_lanes(products) / count
        for column in range(0, columns, _WIDTH):
            here = load_before(columns, bar, row, column, _WIDTH) - mean
            here = plus_product(here, -along, load_before(columns, normed, row, column, _WIDTH))
            here = here * factors[row]
            if some:
                here = here + load_before(columns, residual_bar, row, column, _WIDTH)
            store_before(columns, here, bar, row, column)


@fast_njit()
@no_type_check
def bend(rows, bias):
    """Replace rows by GELU of rows + bias, of shape (1, n)."""
    columns = rows.shape[1]
    for row in range(rows.shape[0]):
        for column in range(0, columns, _WIDTH):
            here = load_before(columns, rows, row, column, _WIDTH)
            bent = gelu(here + load_before(columns, bias, 0, column, _WIDTH))
            store_before(columns, bent, rows, row, column)


@fast_njit()
@no_type_check
def bend_and_undo(rows, bias, bar, total):
    """Do what `bend` does, turn cotangents of its result into those of rows; add them to a total.

    Args:
      rows: (t, n).
      bias: (1, n).
      bar: (t, n).
      total: (1, n).
    """
    columns = rows.shape[1]
    for row in range(rows.shape[0]):
        for column in range(0, columns, _WIDTH):
            here = load_before(columns, rows, row, column, _WIDTH)
            bent, slope = gelu_and_slope(here + load_before(columns, bias, 0, column, _WIDTH))
            store_before(columns, bent, rows, row, column)
            here = slope * load_before(columns, bar, row, column, _WIDTH)
            store_before(columns, here, bar, row, column)
            sums = load_before(columns, total, 0, column, _WIDTH)
            store_before(columns, sums + here, total, 0, column)


@fast_njit()
@no_type_check
def announce(rows, row, first, end):
    """Let the processor fetch a row's columns; there need not be such a row."""
    for column in range(first, end, SLAB):
        bring_near(rows, row, column)
