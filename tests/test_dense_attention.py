"""The dense references against loops in float64, and what their masks mean."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from hdvpd.attention import linear
from studies.attention import dense


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    query, key = (np.maximum(rng.normal(size=(10, 4)), 0) + 1e-3 for _ in range(2))
    value, mask = rng.normal(size=(10, 3)), rng.random((10, 10)) * (rng.random((10, 10)) < 0.6)
    np.fill_diagonal(mask, 1.0)
    return tuple(np.float32(x) for x in (query, key, value, mask))


def softmax_loop(query, key, value, mask):
    out = np.zeros(value.shape)
    for i in range(len(query)):
        weights = [mask[i, j] * np.exp(query[i] @ key[j] / 2) for j in range(len(key))]
        out[i] = np.average(np.float64(value), axis=0, weights=weights)
    return out


def test_masked_attention_equals_a_loop(inputs):
    query, key, value, mask = inputs
    softmax = dense.masked_softmax_attention(query, key, value, mask)
    np.testing.assert_allclose(softmax, softmax_loop(query, key, value, mask), atol=1e-6)
    np.testing.assert_allclose(
        dense.masked_linear_attention(*inputs), references.masked_attention(*inputs), atol=1e-6
    )


def test_a_mask_of_ones_is_no_mask(inputs):
    query, key, value, mask = inputs
    ones = np.ones_like(mask)
    unmasked = dense.softmax_attention(query, key, value)
    np.testing.assert_allclose(unmasked, softmax_loop(query, key, value, ones), atol=1e-6)
    unmasked = dense.linear_attention(query, key, value)
    np.testing.assert_allclose(
        unmasked, dense.masked_linear_attention(query, key, value, ones), atol=1e-6
    )
    fast = linear.linear_attention(*(x[:, None] for x in (query, key, value)), np.ones(10, bool))
    np.testing.assert_allclose(fast[:, 0], unmasked, atol=1e-6)


def test_the_mask_multiplies_scores_which_is_its_logarithm_on_the_logits(inputs):
    query, key, value, _ = inputs
    mask = np.exp(np.random.default_rng(1).normal(size=(10, 10))).astype(np.float32)
    logits = query @ key.T / 2 + np.log(mask)
    np.testing.assert_allclose(
        dense.masked_softmax_attention(query, key, value, mask),
        jax.nn.softmax(logits, axis=1) @ value,
        atol=1e-6,
    )


@pytest.mark.parametrize("scale", [1.0, 1e3])
def test_a_mask_that_removes_everything_gives_zero_with_finite_gradients(inputs, scale):
    query, key, value, mask = inputs
    mask = mask.copy()
    mask[2] = 0
    for attention in (dense.masked_softmax_attention, dense.masked_linear_attention):
        out, pull = jax.vjp(attention, scale * query, scale * key, value, mask)
        np.testing.assert_array_equal(out[2], 0)
        assert np.isfinite(out).all()
        assert all(np.isfinite(x).all() for x in pull(jnp.ones_like(out)))


def test_positive_mask_is_the_papers_guard():
    mask = np.float32([[1.0, -0.25], [0.0, 2.0]])
    np.testing.assert_allclose(dense.positive_mask(mask), [[1, 0.25], [1e-8, 2]], rtol=1e-6)
