"""Products of small blocks, of any shape, against float64."""

import itertools

import numpy as np
import pytest

from hdvpd.kernels.compiled import fast_njit
from hdvpd.kernels.small_products import add_transposed_product, product, transposed

# Rows, and columns, below, at and beyond those of every tile.
SIZES = 0, 1, 5, 6, 12, 13, 63, 65
COLUMNS = 0, 1, 3, 15, 16, 17, 32, 33, 64, 67, 131


@fast_njit()
def set_part(a, b, result, begin, end, column):
    """Multiply parts of longer rows into a part of longer rows."""
    product(a[begin:end, :5], b, result[begin:end, column:])


def drawn(*shape):
    return np.random.default_rng(shape).normal(size=shape).astype(np.float32)


def close(found, expected, inner):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=3e-6 * max(inner, 1) ** 0.5)


@pytest.mark.parametrize("inner", [0, 1, 7, 64])
def test_products_are_those_of_numpy(inner):
    for rows, columns in itertools.product(SIZES, COLUMNS):
        a, b = drawn(rows, inner), drawn(inner, columns)
        result = np.full((rows, columns), np.nan, np.float32)
        product(a, b, result)
        close(result, a.astype(np.float64) @ b, inner)
        other = drawn(rows, columns)
        total = drawn(inner, columns)
        expected = total + a.T.astype(np.float64) @ other
        add_transposed_product(a, other, total)
        close(total, expected, rows)


def test_what_is_beside_a_part_stays():
    a, b, result = drawn(20, 9), drawn(5, 4), drawn(20, 11)
    before = result.copy()
    set_part(a, b, result, 3, 17, 7)
    before[3:17, 7:] = a[3:17, :5] @ b
    close(result, before, 5)
    np.testing.assert_array_equal(result[:, :7], before[:, :7])


def test_what_is_no_number_stays_in_its_row():
    a, b = drawn(30, 8), drawn(8, 70)
    a[4, 2], a[11, 0] = np.nan, np.inf
    result = np.empty((30, 70), np.float32)
    product(a, b, result)
    assert np.isnan(result[4]).all()
    assert np.isinf(result[11]).all()
    assert np.isfinite(np.delete(result, [4, 11], axis=0)).all()


def test_a_transpose_is_numpys():
    matrix = drawn(7, 13)
    np.testing.assert_array_equal(transposed(matrix), matrix.T)
