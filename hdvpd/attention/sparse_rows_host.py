"""Compiled host code of products with sparse rows (numba).

Twins of the loops of `sparse_rows` in plain JAX. Each row or slab of columns is written by one
thread and summed in a fixed order, so results do not depend on the number of threads.

`no_type_check` keeps the tests' shape checker from wrapping what numba has to compile.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import parallel_njit

# Columns of a slab: a cache line of float32.
_SLAB = 16


@parallel_njit()
@no_type_check
def multiply(
    features: np.ndarray,
    nodes: np.ndarray,
    num_entries: np.ndarray,
    x: np.ndarray,
    product: np.ndarray,
) -> None:
    """Fill in Phi x (t, c)."""
    for row in prange(len(nodes)):
        product[row] = 0.0
        for entry in range(num_entries[row]):
            feature, node = features[row, entry], nodes[row, entry]
            for column in range(x.shape[1]):
                product[row, column] += feature * x[node, column]


@parallel_njit()
@no_type_check
def multiply_transposed(
    features: np.ndarray,
    nodes: np.ndarray,
    num_entries: np.ndarray,
    x: np.ndarray,
    product: np.ndarray,
) -> None:
    """Fill in Phi^T x (t, c)."""
    num_columns = x.shape[1]
    for slab in prange(-(-num_columns // _SLAB)):
        start, end = slab * _SLAB, min(num_columns, (slab + 1) * _SLAB)
        product[:, start:end] = 0.0
        for row in range(len(nodes)):
            for entry in range(num_entries[row]):
                feature, node = features[row, entry], nodes[row, entry]
                for column in range(start, end):
                    product[node, column] += feature * x[row, column]


@parallel_njit()
@no_type_check
def entry_products(
    nodes: np.ndarray,
    num_entries: np.ndarray,
    left: np.ndarray,
    right: np.ndarray,
    products: np.ndarray,
) -> None:
    """Fill in left_i . right_j for every entry (i, j), 0 in unused ones (t, e)."""
    for row in prange(len(nodes)):
        products[row] = 0.0
        for entry in range(num_entries[row]):
            node = nodes[row, entry]
            total = np.float32(0.0)
            for column in range(left.shape[1]):
                total += left[row, column] * right[node, column]
            products[row, entry] = total
