"""Linear attention under a mask against the dense form, in chunks and at its edges."""

import jax
import numpy as np
import pytest
from mask_contract import check_attention

from hdvpd.attention import masked
from hdvpd.attention.masks.sequences import PaddingMask


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_attention_equals_the_dense_form_whatever_the_chunk(monkeypatch, chunk):
    monkeypatch.setattr(masked, "_CHUNK_SIZE", chunk * 6 * 4)
    monkeypatch.setattr(masked, "_COLUMNS", 1)
    check_attention(PaddingMask(np.ones(6, bool)), np.ones((6, 6)))


def test_a_mask_that_removes_everything_gives_zero_with_finite_gradients():
    features = np.ones((3, 2), np.float32)
    out, pull = jax.vjp(
        lambda *x: masked.masked_linear_attention(*x, PaddingMask(np.zeros(3, bool))),
        features, features, features,
    )  # fmt: skip
    np.testing.assert_array_equal(out, 0)
    assert all(np.isfinite(x).all() for x in pull(out))
