"""Attention with a dense mask, at quadratic cost: the references for small numbers of tokens.

out_i = sum_j M_ij s_ij v_j / sum_j M_ij s_ij with s_ij = exp(q_i . k_j / sqrt(m)) (softmax) or
s_ij = q_i . k_j (linear; q and k are positive features). M multiplies the scores, which is log M
added to the logits. Masks are not negative; `positive_mask` makes them so. A row whose mask removes
every key gives zero, with finite gradients.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.attention.masks.walks import walk_rows
from hdvpd.basics.types import Array, Float
from hdvpd.kernels.walks import Walks


def softmax_attention(
    query: Float[Array, "t m"], key: Float[Array, "t m"], value: Float[Array, "t c"]
) -> Float[Array, "t c"]:
    """Attend by softmax(q . k / sqrt(m))."""
    return masked_softmax_attention(query, key, value, jnp.ones((len(query),) * 2))


def masked_softmax_attention(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    mask: Float[Array, "t t"],
) -> Float[Array, "t c"]:
    """Attend with weights M_ij exp(q_i . k_j / sqrt(m)).

    Args:
      query: queries.
      key: keys.
      value: values.
      mask: M, not negative.
    """
    logits = jnp.where(mask > 0, query @ key.T / np.sqrt(query.shape[1]), -jnp.inf)
    highest = jax.lax.stop_gradient(logits.max(1, keepdims=True))
    return _weighted_mean(mask * jnp.exp(logits - jnp.maximum(highest, -1e30)), value)


def linear_attention(
    query: Float[Array, "t m"], key: Float[Array, "t m"], value: Float[Array, "t c"]
) -> Float[Array, "t c"]:
    """Attend with weights q_i . k_j, as `hdvpd.attention.linear` does at linear cost."""
    return _weighted_mean(query @ key.T, value)


def masked_linear_attention(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    mask: Float[Array, "t t"],
) -> Float[Array, "t c"]:
    """Attend with weights M_ij (q_i . k_j) (arXiv 2410.03462, topologically masked attention).

    Args:
      query: positive features of the queries.
      key: positive features of the keys.
      value: values.
      mask: M, not negative.
    """
    return _weighted_mean(mask * (query @ key.T), value)


def positive_mask(mask: Float[Array, "t t"]) -> Float[Array, "t t"]:
    """Return |M| + 1e-8, the papers' guard for masks whose coefficients may be negative."""
    return jnp.abs(mask) + 1e-8


def feature_matrix(walks: Walks, modulation: Float[Array, "l"]) -> Float[Array, "t t"]:
    """Return the walks' features as a dense matrix, in expectation sum_l f_l W^l.

    Args:
      walks: entries of every token.
      modulation: f, any sign.
    """
    return walk_rows(walks, modulation).dense()


def _weighted_mean(weights: Float[Array, "t t"], value: Float[Array, "t c"]) -> Float[Array, "t c"]:
    total = weights.sum(1, keepdims=True)
    return weights @ value / jnp.where(total > 0, total, 1.0)
