"""Products of sparse rows, in blocks and by host code, against the dense matrix; derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hdvpd.kernels import sparse_rows
from hdvpd.kernels.sparse_rows import SparseRows, multiply, multiply_transposed


@pytest.mark.parametrize("rows_per_block", [1, 3, 11])
def test_products_in_blocks_are_those_with_the_dense_matrix(monkeypatch, rows_per_block):
    # Sizes of no other test: programs already compiled would keep their blocks.
    columns = rows_per_block + 1
    monkeypatch.setattr(sparse_rows, "_BLOCK_SIZE", rows_per_block * columns)
    _check_products("xla", 11, columns)


@pytest.mark.parametrize(("num_tokens", "columns"), [(1, 1), (13, 7), (40, 37)])
def test_host_products_are_those_with_the_dense_matrix(num_tokens, columns):
    _check_products("host", num_tokens, columns)


def test_host_products_of_several_heads():
    rng = np.random.default_rng(1)
    nodes = rng.integers(0, 6, (6, 3)).astype(np.int32)
    counts = np.full(6, 3, np.int32)
    values = rng.normal(size=(2, 6, 3)).astype(np.float32)
    x = rng.normal(size=(2, 6, 4)).astype(np.float32)
    for product in (multiply, multiply_transposed):

        def of_head(values, x, product=product):
            return product(SparseRows(nodes, values, counts, "host"), x)

        together = jax.vmap(of_head)(values, x)
        apart = [of_head(*head) for head in zip(values, x, strict=True)]
        np.testing.assert_array_equal(together, np.stack(apart))


def _check_products(kernels, num_tokens, columns):
    width = 5
    rng = np.random.default_rng(0)
    nodes = rng.integers(0, num_tokens, (num_tokens, width)).astype(np.int32)
    num_entries = rng.integers(0, width + 1, num_tokens).astype(np.int32)
    used = np.arange(width) < num_entries[:, None]
    features = np.where(used, rng.normal(size=nodes.shape), 0).astype(np.float32)
    x, out_bar = rng.normal(size=(2, num_tokens, columns)).astype(np.float32)

    def dense(features):
        rows = np.repeat(np.arange(num_tokens)[:, None], width, axis=1)
        return jnp.zeros((num_tokens, num_tokens)).at[rows, nodes].add(features)

    def rows_of(features):
        return SparseRows(nodes, features, num_entries, kernels)

    np.testing.assert_allclose(rows_of(features).dense(), dense(features))
    products = (
        (multiply, lambda features, x: dense(features) @ x),
        (multiply_transposed, lambda features, x: dense(features).T @ x),
    )
    for product, expected in products:
        got, pull = jax.vjp(lambda f, x, p=product: p(rows_of(f), x), features, x)
        wanted, pull_dense = jax.vjp(expected, features, x)
        np.testing.assert_allclose(got, wanted, atol=1e-5)
        (features_bar, x_bar), (wanted_features, wanted_x) = pull(out_bar), pull_dense(out_bar)
        np.testing.assert_allclose(np.where(used, features_bar, 0),
                                   np.where(used, wanted_features, 0), atol=1e-5)  # fmt: skip
        np.testing.assert_allclose(x_bar, wanted_x, atol=1e-5)
