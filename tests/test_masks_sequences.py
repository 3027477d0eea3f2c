"""Masks of sequences against their definitions, and causal attention against the generic form."""

import jax
import numpy as np
import pytest
from mask_contract import check_attention, check_mask

from hdvpd.attention.masked import masked_linear_attention
from hdvpd.basics.errors import UserError
from studies.attention import causal
from studies.attention.masks.sequences import CausalMask, PaddingMask, SegmentMask


@pytest.mark.parametrize("real", [[True], [True, False, True, True], [False, False]])
def test_padding(real):
    real = np.array(real)
    check_mask(PaddingMask(real), np.outer(real, real).astype(float))


@pytest.mark.parametrize("length", [1, 6, 257])
def test_causal(length):
    check_mask(CausalMask(length), np.tri(length))


def test_long_prefix_sums_keep_their_relative_accuracy():
    x = np.random.default_rng(0).random((1 << 16, 2)).astype(np.float32)
    # A block whose sum swamps the float32 digits of the earlier ones.
    x[40_000:40_100] = 1e9
    np.testing.assert_allclose(
        jax.jit(lambda x: CausalMask(1 << 16) @ x)(x), np.cumsum(np.float64(x), 0), rtol=2e-6
    )


@pytest.mark.parametrize("segments", [[3], [-1], [7, -1, 1000, 7, -1, 0, 1000, 7]])
def test_segments(segments):
    segments = np.array(segments, np.int32)
    same = np.equal.outer(segments, segments) & (segments >= 0)
    check_mask(SegmentMask(segments), same.astype(float))


@pytest.mark.parametrize("make", [
    lambda: CausalMask(0), lambda: PaddingMask(np.zeros(0, bool)),
    lambda: SegmentMask(np.zeros(0, np.int32)),
])  # fmt: skip
def test_a_mask_without_tokens_is_refused(make):
    with pytest.raises(UserError, match="over no tokens"):
        make()


def test_attention_in_segments():
    segments = np.array([4, 2, 4, 2, 2], np.int32)
    check_attention(SegmentMask(segments), np.equal.outer(segments, segments).astype(float))


def test_blockwise_causal_attention_equals_the_generic_form(monkeypatch):
    monkeypatch.setattr(causal, "_BLOCK", 4)
    rng = np.random.default_rng(2)
    query, key = (rng.random((10, 3)).astype(np.float32) for _ in range(2))
    value, cotangent = (rng.normal(size=(10, 2)).astype(np.float32) for _ in range(2))
    key[0] = 0.0  # token 0 has nothing to see
    got, pull = jax.vjp(causal.causal_attention, query, key, value)
    expected, pull_generic = jax.vjp(
        lambda *x: masked_linear_attention(*x, CausalMask(10)), query, key, value
    )
    scores = np.tri(10) * (np.float64(query) @ key.T)
    oracle = scores[1:] @ value / scores[1:].sum(1, keepdims=True)
    np.testing.assert_allclose(got, np.concatenate([np.zeros((1, 2)), oracle]), atol=1e-6)
    np.testing.assert_allclose(got, expected, atol=1e-6)
    for a, b in zip(pull(cotangent), pull_generic(cotangent), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_causal_attention_at_65k_tokens_in_float32():
    rng = np.random.default_rng(3)
    query, key, value = (rng.random((1 << 16, 2)).astype(np.float32) for _ in range(3))
    got = jax.jit(causal.causal_attention)(query, key, value)
    query, key, value = (np.float64(x) for x in (query, key, value))
    weights = np.cumsum(key, 0)
    sums = np.cumsum(key[:, :, None] * value[:, None], 0)
    expected = np.einsum("tm,tmc->tc", query, sums) / np.einsum("tm,tm->t", query, weights)[:, None]
    np.testing.assert_allclose(got, expected, rtol=1e-5)
