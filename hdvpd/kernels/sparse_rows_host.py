"""Compiled host form of products with sparse rows.

Each row or slab of columns is written by one thread and summed in a fixed order, so results do not
depend on the number of threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import SLAB, parallel_njit


@parallel_njit()
@no_type_check
def multiply(
    values: np.ndarray,
    columns: np.ndarray,
    num_entries: np.ndarray,
    x: np.ndarray,
    product: np.ndarray,
) -> None:
    """Fill in S x (t, c)."""
    for row in prange(len(columns)):
        product[row] = 0.0
        for entry in range(num_entries[row]):
            value, other = values[row, entry], columns[row, entry]
            for column in range(x.shape[1]):
                product[row, column] += value * x[other, column]


@parallel_njit()
@no_type_check
def multiply_transposed(
    values: np.ndarray,
    columns: np.ndarray,
    num_entries: np.ndarray,
    x: np.ndarray,
    product: np.ndarray,
) -> None:
    """Fill in S^T x (t, c)."""
    num_columns = x.shape[1]
    for slab in prange(-(-num_columns // SLAB)):
        start, end = slab * SLAB, min(num_columns, (slab + 1) * SLAB)
        product[:, start:end] = 0.0
        for row in range(len(columns)):
            for entry in range(num_entries[row]):
                value, other = values[row, entry], columns[row, entry]
                for column in range(start, end):
                    product[other, column] += value * x[row, column]


@parallel_njit()
@no_type_check
def entry_products(
    columns: np.ndarray,
    num_entries: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    products: np.ndarray,
) -> None:
    """Fill in left_i . right_j for every entry (i, j), 0 in unused ones (t, e)."""
    for row in prange(len(columns)):
        products[row] = 0.0
        for entry in range(num_entries[row]):
            other = columns[row, entry]
            total = np.float32(0.0)
            for column in range(left.shape[1]):
                total += left[row, column] * right[other, column]
            products[row, entry] = total
