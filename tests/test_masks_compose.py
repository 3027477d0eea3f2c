"""Sums, scalings, Kronecker products and class tokens against the same done to dense matrices."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mask_contract import check_attention, check_gradient, check_mask

from hdvpd.attention.masked import masked_linear_attention
from hdvpd.basics.errors import UserError
from studies.attention import dense
from studies.attention.masks.compose import (
    ClassTokenMask,
    KroneckerMask,
    ScaledMask,
    SumMask,
    padded,
)
from studies.attention.masks.low_rank import LowRankMask
from studies.attention.masks.sequences import CausalMask
from studies.attention.masks.toeplitz import ToeplitzMask

rng = np.random.default_rng(0)
TABLE = rng.uniform(0.1, 1, (3, 5)).astype(np.float32)  # of a grid of 2 x 3
FACTORS = rng.uniform(0.1, 1, (2, 6, 2)).astype(np.float32)
ROWS, COLUMNS = rng.uniform(0.5, 1, (2, 6)).astype(np.float32)
REAL = np.array([True, True, False, True, True, False])

GRID = ToeplitzMask(TABLE)
# What `dense()` gives is checked against definitions in the tests of each mask.
GRID_MATRIX = np.float64(GRID.dense())
LOW_RANK = LowRankMask(*FACTORS)
LOW_RANK_MATRIX = np.float64(FACTORS[0]) @ FACTORS[1].T


def with_class_token(matrix):
    size = len(matrix) + 1
    bordered = np.ones((size, size))
    bordered[1:, 1:] = matrix
    return bordered


CASES = {
    "sum": (SumMask(GRID, LOW_RANK), GRID_MATRIX + LOW_RANK_MATRIX),
    "scaled": (ScaledMask(ROWS, GRID, COLUMNS), np.diag(ROWS) @ GRID_MATRIX @ np.diag(COLUMNS)),
    "padded": (padded(GRID, REAL), GRID_MATRIX * np.outer(REAL, REAL)),
    "Kronecker": (KroneckerMask(CausalMask(3), GRID), np.kron(np.tri(3), GRID_MATRIX)),
    "class token": (ClassTokenMask(GRID), with_class_token(GRID_MATRIX)),
    "class token alone": (ClassTokenMask(CausalMask(1)), np.ones((2, 2))),
    "all": (
        ClassTokenMask(KroneckerMask(SumMask(padded(GRID, REAL), LOW_RANK), CausalMask(2))),
        with_class_token(
            np.kron(GRID_MATRIX * np.outer(REAL, REAL) + LOW_RANK_MATRIX, np.tri(2))
        ),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_product_and_dense_form(case):
    check_mask(*CASES[case])


@pytest.mark.parametrize("case", ["scaled", "Kronecker", "all"])
def test_attention(case):
    check_attention(*CASES[case])


def test_heads_with_a_table_each_a_class_token_and_padding():
    heads, num_tokens = 3, 7
    rng = np.random.default_rng(1)
    tables = rng.uniform(0.1, 1, (heads, *TABLE.shape)).astype(np.float32)
    query, key, value = rng.uniform(0.1, 1, (3, heads, num_tokens, 2)).astype(np.float32)
    real = np.concatenate([[True], REAL])

    @jax.jit
    @jax.vmap
    def attend(table, query, key, value):
        mask = padded(ClassTokenMask(ToeplitzMask(table)), real)
        return masked_linear_attention(query, key, value, mask)

    @jax.vmap
    def attend_densely(table, query, key, value):
        matrix = jnp.pad(ToeplitzMask(table).dense(), ((1, 0), (1, 0)), constant_values=1.0)
        matrix *= np.outer(real, real)
        return dense.masked_linear_attention(query, key, value, matrix)

    got = attend(tables, query, key, value)
    np.testing.assert_allclose(got, attend_densely(tables, query, key, value), atol=1e-5)
    np.testing.assert_array_equal(got[:, ~real], 0)
    # Masks that are made batched pass through vmap too.
    product = jax.vmap(lambda mask, x: mask @ x)(jax.vmap(ToeplitzMask)(tables), query[:, 1:])
    np.testing.assert_allclose(product[2], ToeplitzMask(tables[2]) @ query[2, 1:], atol=1e-6)


def test_gradient_with_respect_to_the_scalings():
    query, key, value, weights = np.random.default_rng(2).uniform(0.2, 1, (4, 6, 2))
    table = np.float64(TABLE)

    def loss(scalings):
        mask = ScaledMask(scalings[0], ToeplitzMask(table), scalings[1])
        return (weights * masked_linear_attention(query, key, value, mask)).sum()

    check_gradient(loss, np.stack([ROWS, COLUMNS]))


def test_attention_does_not_depend_on_the_scale_of_its_rows():
    query, key, value = np.random.default_rng(3).uniform(0.2, 1, (3, 6, 2)).astype(np.float32)
    rows = np.geomspace(1e-12, 1e12, 6).astype(np.float32)
    scaled = ScaledMask(rows, GRID, np.ones(6, np.float32))
    for mask, same in [(scaled, GRID), (SumMask(scaled, scaled), SumMask(GRID, GRID))]:
        np.testing.assert_allclose(
            masked_linear_attention(query, key, value, mask),
            masked_linear_attention(query, key, value, same),
            rtol=1e-5,
        )


def test_rounding_errors_of_a_kronecker_product_give_zero():
    # The second frame's first grid cell sees nobody: what the transforms leave there is no weight.
    table = np.zeros(7, np.float32)
    table[4:] = 1.0  # strictly earlier tokens
    mask = KroneckerMask(CausalMask(2), ToeplitzMask(table))
    features = np.random.default_rng(4).uniform(0.2, 1, (8, 2)).astype(np.float32)
    out = np.asarray(masked_linear_attention(features, features, features, mask))
    np.testing.assert_array_equal((out == 0).all(1), np.arange(8) % 4 == 0)


@pytest.mark.parametrize("make", [
    lambda: SumMask(GRID, CausalMask(5)),
    lambda: ScaledMask(ROWS[:5], GRID, COLUMNS),
    lambda: ScaledMask(ROWS, GRID, COLUMNS[:1]),
])  # fmt: skip
def test_parts_of_different_size_are_refused(make):
    with pytest.raises(UserError, match="both must"):
        make()
