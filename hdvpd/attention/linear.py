"""Linear attention without a mask (arXiv 2006.16236; Performer, arXiv 2009.14794)."""

from typing import Any

import jax.numpy as jnp

from hdvpd.basics.types import Array, Bool, Float


def linear_attention(
    query: Float[Array, "t a m"],
    key: Float[Array, "t a m"],
    value: Float[Array, "t a c"],
    mask: Bool[Array, "t"],
) -> Float[Array, "t a c"]:
    """Attend to every real token at linear cost, separately per head a.

    Args:
      query: positive features of the queries.
      key: positive features of the keys.
      value: values.
      mask: real tokens; others are neither keys nor values.

    Returns:
      out_i = phi_q[i]^T (sum_j phi_k[j] v_j^T) / (phi_q[i]^T sum_j phi_k[j]), sums over real
      tokens and divided by their number, so that 65k terms do not overflow; in float32 or the
      inputs' precision, whichever is higher, so that they lose no digits either.
    """
    sums = jnp.promote_types(jnp.result_type(key, value), jnp.float32)
    share = mask / jnp.maximum(mask.sum(), 1).astype(sums)
    # Head by head: products of two plain matrices, for which XLA's code for CPUs is better than for
    # batched ones whose batch axis lies in the middle (docs/lab-book.md).
    heads = (
        _attend_head(query[:, head], key[:, head] * share[:, None], value[:, head], sums)
        for head in range(query.shape[1])
    )
    return jnp.stack([*heads], axis=1)


def _attend_head(
    query: Float[Array, "t m"], key: Float[Array, "t m"], value: Float[Array, "t c"], sums: Any
) -> Float[Array, "t c"]:
    summary = jnp.matmul(key.T, value, preferred_element_type=sums)
    normalizer = query @ key.sum(0)
    # A cloud without any real token gives zero instead of 0 / 0.
    normalizer = jnp.where(normalizer > 0, normalizer, 1.0)
    return (query @ summary) / normalizer[:, None]
