"""Toeplitz masks on grids against their definition, scipy's product and shortest paths."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mask_contract import check_attention, check_gradient, check_mask
from scipy.linalg import matmul_toeplitz
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import shortest_path

from hdvpd.attention.masked import masked_linear_attention
from hdvpd.basics.errors import UserError
from studies.attention.masks.compose import ScaledMask
from studies.attention.masks.toeplitz import ToeplitzMask, distance_table


def random_table(*grid):
    sizes = [2 * cells - 1 for cells in grid]
    return np.random.default_rng(len(grid)).uniform(0.2, 1, sizes).astype(np.float32)


def block_toeplitz(table, grid):
    cells = list(np.ndindex(*grid))
    return np.array([
        [table[tuple(a - b + n - 1 for a, b, n in zip(one, other, grid, strict=True))]
         for other in cells] for one in cells
    ], np.float64)  # fmt: skip


# Transforms of even and odd length: 1; 13 -> 15; 5 and 9; 7 -> 8, 1 and 5.
@pytest.mark.parametrize("grid", [(1,), (7,), (3, 5), (4, 1, 3)])
def test_product_and_dense_form(grid):
    table = random_table(*grid)
    mask = ToeplitzMask(table)
    assert mask.grid == grid
    check_mask(mask, block_toeplitz(table, grid))


def test_attention():
    table = random_table(3, 4)
    check_attention(ToeplitzMask(table), block_toeplitz(table, (3, 4)))


def test_long_sequence_in_float32_equals_scipy_in_float64():
    rng = np.random.default_rng(0)
    table = rng.random((1 << 17) - 1).astype(np.float32)
    x = rng.normal(size=(1 << 16, 2)).astype(np.float32)
    got = jax.jit(lambda mask, x: mask @ x)(ToeplitzMask(table), x)
    middle = (1 << 16) - 1
    exact = np.float64(table)
    expected = matmul_toeplitz((exact[middle:], exact[middle::-1]), np.float64(x))
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_symmetric_table_gives_a_symmetric_mask():
    table = random_table(3, 4)
    mask = ToeplitzMask(table + table[::-1, ::-1])
    np.testing.assert_array_equal(mask.dense(), mask.dense().T)
    x, y = np.random.default_rng(0).normal(size=(2, 12, 1)).astype(np.float32)
    np.testing.assert_allclose((y * (mask @ x)).sum(), (x * (mask @ y)).sum(), rtol=1e-5)


def test_function_of_the_distance():
    grid = (3, 1, 4)
    cells = np.array(list(np.ndindex(*grid)))
    joined = np.abs(cells[:, None] - cells[None]).sum(2) == 1
    values = jnp.array([3.0, -1.0, 2.0, 0.5, 4.0, 7.0])
    mask = ToeplitzMask(distance_table(lambda distance: values[distance.astype(int)], grid))
    distances = shortest_path(csr_matrix(joined), unweighted=True).astype(int)
    np.testing.assert_array_equal(mask.dense(), values[distances])


def test_gradient_with_respect_to_the_table():
    rng = np.random.default_rng(4)
    query, key, value, weights = rng.random((4, 6, 2))

    def loss(table):
        return (weights * masked_linear_attention(query, key, value, ToeplitzMask(table))).sum()

    check_gradient(loss, random_table(2, 3))


@jax.jit
def attention_and_gradient(mask, query, key, value):
    out, pull_back = jax.vjp(lambda value: masked_linear_attention(query, key, value, mask), value)
    return out, pull_back(out)[0]


def check_zero_or_right(table, seen, rows):
    """Few tokens are seen; the sums of all others fall from large to far below rounding errors."""
    rng = np.random.default_rng(5)
    num_tokens = len(seen)
    query, key, value = rng.uniform(0.1, 1, (3, num_tokens, 2)).astype(np.float32)
    rows, seen = np.asarray(rows, np.float32), np.asarray(seen, np.float32)
    mask = ScaledMask(rows, ToeplitzMask(table), seen)
    got, gradient = attention_and_gradient(mask, query, key, value)
    positions = np.arange(num_tokens)
    exact = np.float64(table)[positions[:, None] - positions + num_tokens - 1] * seen
    scores = exact * (np.float64(query) @ key.T)
    total = scores.sum(1, keepdims=True)
    expected = scores @ value / np.where(total > 0, total, 1.0)
    zero = (np.asarray(got) == 0).all(1)
    np.testing.assert_allclose(got[~zero], expected[~zero], atol=0.05)
    assert np.isfinite(gradient).all()
    # What is well above rounding errors counts.
    assert not zero[total[:, 0] > 1e-3 * total.max()].any()
    return zero


@pytest.mark.parametrize("rows", [np.ones(400), np.geomspace(1e-9, 1e9, 400)])
def test_sums_lost_in_rounding_errors_give_zero_and_others_are_right(rows):
    table = distance_table(lambda distance: jnp.exp(-(distance**2) / 50), (400,))
    zero = check_zero_or_right(table, np.arange(400) < 20, rows)
    assert 0.5 < zero.mean() < 1.0


def test_one_visible_token_among_many_is_seen_by_all():
    check_zero_or_right(np.ones(799, np.float32), np.arange(400) == 7, np.ones(400))


def test_rounding_errors_of_a_product_that_is_zero_give_zero():
    table = np.zeros(799, np.float32)
    table[399 + 300 :] = 1.0  # token i sees tokens j <= i - 300, of which none is real
    assert check_zero_or_right(table, np.arange(400) >= 100, np.ones(400)).all()


@pytest.mark.parametrize("shape", [(), (4,), (3, 0), (2, 5)])
def test_table_that_fits_no_grid_is_refused(shape):
    with pytest.raises(UserError, match="every axis must list the offsets"):
        ToeplitzMask(np.ones(shape, np.float32))


@pytest.mark.parametrize("grid", [(), (3, 0)])
def test_empty_grid_is_refused(grid):
    with pytest.raises(UserError, match="at least one axis"):
        distance_table(lambda distance: distance, grid)


def test_attention_among_another_number_of_tokens_is_refused():
    features = np.ones((5, 2), np.float32)
    with pytest.raises(UserError, match=r"over 4 tokens .* 5"):
        masked_linear_attention(features, features, features, ToeplitzMask(random_table(2, 2)))
