"""Chunks of rows that are computed one after another equal rows that are computed at once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hdvpd.kernels.derivatives import by_chunks

SIZE, CHUNKS = 3, 4


def scene():
    rows = jax.random.normal(jax.random.key(0), (SIZE * CHUNKS, 2))
    return jnp.asarray([0.5, -1.2]), jnp.asarray(0.7), rows


def in_chunks(count, moving, closed_over, rows):
    def function(number, rows, moving):
        some = jax.lax.dynamic_slice_in_dim(rows, number * SIZE, SIZE)
        return jnp.sin(closed_over * some * moving[None])

    return by_chunks(function, SIZE * CHUNKS, count, (moving,), rows)


def at_once(count, moving, closed_over, rows):
    computed = jnp.arange(len(rows)) < SIZE * count
    return jnp.where(computed[:, None], jnp.sin(closed_over * rows * moving[None]), 0.0)


@pytest.mark.parametrize("count", range(CHUNKS + 1))
def test_values_and_gradients_are_those_of_all_rows_at_once(count):
    *moving, rows = scene()
    bar = jnp.cos(jnp.arange(2.0 * len(rows))).reshape(rows.shape)
    found, expected = (
        jax.jit(jax.value_and_grad(lambda *x, f=f: jnp.sum(bar * f(*x)), (1, 2)))(
            jnp.int32(count), *moving, rows
        )
        for f in (in_chunks, at_once)
    )
    np.testing.assert_allclose(
        in_chunks(jnp.int32(count), *moving, rows), at_once(count, *moving, rows), atol=1e-6
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), found, expected)


def test_rows_of_chunks_beyond_are_not_computed():
    *moving, rows = scene()
    found = in_chunks(jnp.int32(2), *moving, rows.at[2 * SIZE :].set(jnp.nan))
    assert np.isfinite(found).all()
