"""Vector instructions against numpy."""

import numpy as np
import pytest
from numba import njit

from hdvpd.kernels.lanes import COLUMNS, lowest_bit, sum_of_rows


@njit
def place_of(bits):
    return lowest_bit(bits)


@njit
def summed(weights, w, rows, q, number, source, column, total, a):
    sum_of_rows(weights, w, rows, q, number, source, column, total, a)


@pytest.mark.parametrize("place", [0, 1, 17, 31])
def test_the_lowest_bit_is_found(place):
    higher = 0xFFFFFFFF << place & 0xFFFFFFFF
    assert place_of(np.uint32(1 << place)) == place
    assert place_of(np.uint32(higher)) == place


@pytest.mark.parametrize("number", [0, 1, 5])
def test_rows_are_summed_and_nothing_beside_them_is_written(number):
    rng = np.random.default_rng(1)
    weights, source = (rng.normal(size=s).astype(np.float32) for s in ((4, 5), (9, COLUMNS + 3)))
    rows = rng.integers(0, 9, (2, 5)).astype(np.int32)
    total = np.full((2, 3, COLUMNS + 4), 7.0, np.float32)
    summed(weights, 2, rows, 1, number, source, 1, total, 2)
    expected = np.full_like(total, 7.0)
    picked = np.float64(source[rows[1, :number], 1 : 1 + COLUMNS])
    expected[1, 2, 1 : 1 + COLUMNS] = np.float64(weights[2, :number]) @ picked
    np.testing.assert_allclose(total, expected, rtol=1e-5, atol=1e-6)
