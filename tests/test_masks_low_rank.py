"""Low-rank masks against the product of their factors."""

import numpy as np
import pytest
from mask_contract import check_attention, check_gradient, check_mask

from hdvpd.attention.masked import masked_linear_attention
from hdvpd.basics.errors import UserError
from studies.attention.masks.low_rank import LowRankMask


@pytest.mark.parametrize(("num_tokens", "rank"), [(1, 1), (6, 2), (3, 5)])
def test_product_and_dense_form(num_tokens, rank):
    left, right = np.random.default_rng(0).normal(size=(2, num_tokens, rank)).astype(np.float32)
    check_mask(LowRankMask(left, right), np.float64(left) @ right.T)


def test_attention():
    left, right = np.random.default_rng(1).random((2, 5, 2)).astype(np.float32)
    check_attention(LowRankMask(left, right), np.float64(left) @ right.T)


def test_gradient_with_respect_to_the_factors():
    rng = np.random.default_rng(2)
    query, key, value, weights = rng.uniform(0.2, 1, (4, 4, 2))

    def loss(factors):
        out = masked_linear_attention(query, key, value, LowRankMask(factors[0], factors[1]))
        return (weights * out).sum()

    check_gradient(loss, rng.uniform(0.2, 1, (2, 4, 2)))


def test_factors_without_tokens_are_refused():
    with pytest.raises(UserError, match="over no tokens"):
        LowRankMask(np.zeros((0, 2), np.float32), np.zeros((0, 2), np.float32))


def test_factors_of_different_shape_are_refused():
    with pytest.raises(UserError, match="both must be"):
        LowRankMask(np.ones((4, 2), np.float32), np.ones((4, 3), np.float32))
