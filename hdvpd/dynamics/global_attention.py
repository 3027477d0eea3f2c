"""Global linear attention over all tokens (spec 5.2; Performer with ReLU features)."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.array_typing import Array, Bool, Float, JaxArray
from hdvpd.numerics import relu_features


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
      out_i = phi_q[i]^T (sum_j phi_k[j] v_j^T) / (phi_q[i]^T sum_j phi_k[j]), sums in float32 over
      real tokens and divided by their number, so that 65k terms neither overflow nor lose digits.
    """
    share = mask / jnp.maximum(mask.sum(), 1).astype(jnp.float32)
    key = key * share[:, None, None]
    summary = jnp.einsum("tam,tac->amc", key, value, preferred_element_type=jnp.float32)
    normalizer = jnp.einsum("tam,am->ta", query, key.sum(0))
    # A cloud without any real token gives zero instead of 0 / 0.
    normalizer = jnp.where(normalizer > 0, normalizer, 1.0)
    return jnp.einsum("tam,amc->tac", query, summary) / normalizer[..., None]


class GlobalAttention(nnx.Module):
    """Multi-head linear attention with output projection."""

    def __init__(self, latent_dim: int, num_heads: int, *, rngs: nnx.Rngs):
        self.query_key_value = nnx.Linear(latent_dim, 3 * latent_dim, rngs=rngs)
        self.out = nnx.Linear(latent_dim, latent_dim, rngs=rngs)
        self.num_heads = num_heads

    def __call__(
        self, tokens: Float[JaxArray, "t d"], mask: Bool[Array, "t"]
    ) -> Float[JaxArray, "t d"]:
        """Return the update of every token."""
        num_tokens, latent_dim = tokens.shape
        width = latent_dim // self.num_heads
        projected = self.query_key_value(tokens).reshape(num_tokens, 3, self.num_heads, width)
        query, key, value = projected[:, 0], projected[:, 1], projected[:, 2]
        attended = linear_attention(
            relu_features(query / np.sqrt(width)), relu_features(key), value, mask
        )
        return self.out(jnp.asarray(attended).reshape(num_tokens, latent_dim))
