"""Linear attention under any mask that has a fast product (arXiv 2107.07999, Alg. 1)."""

import jax
import jax.numpy as jnp

from hdvpd.array_typing import Array, Float, JaxArray
from hdvpd.attention.masks.base import AbstractMask

# Numbers in the columns that are multiplied at once: 64 MiB of float32.
_CHUNK_SIZE = 1 << 24


def masked_linear_attention(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    mask: AbstractMask,
) -> Float[JaxArray, "t c"]:
    """Attend with weights M_ij (q_i . k_j) at the cost of m (c + 1) products with M.

    Per feature r: out += q[:, r] * M (k[:, r] * [v, 1]), then the first c columns divided by the
    last. Features are taken in chunks, recomputed in the backward pass, so that memory is bounded
    by 64 MiB and a few [t, c + 1] arrays, whatever m is. For several heads use `jax.vmap`.

    Args:
      query: positive features of the queries.
      key: positive features of the keys.
      value: values.
      mask: M, not negative.

    Returns:
      Weighted means of the values; zero for a token whose weights are all zero, or no larger than
      the product's rounding errors (`AbstractMask.noise`).
    """
    # Sums are float32 even of half-precision inputs.
    extended = jnp.concatenate([value, jnp.ones((value.shape[0], 1), jnp.float32)], axis=1)
    num_tokens, width = extended.shape
    num_features = query.shape[1]
    chunk = min(num_features, max(1, _CHUNK_SIZE // max(1, num_tokens * width)))

    def attend(
        query: Float[JaxArray, "m t"], key: Float[JaxArray, "m t"]
    ) -> Float[JaxArray, "t w"]:
        columns = jnp.einsum("mt,tw->tmw", key, extended).reshape(num_tokens, -1)
        product = (mask @ columns).reshape(num_tokens, -1, width)
        return jnp.einsum("mt,tmw->tw", query, product)

    def add(total: JaxArray, features: tuple[JaxArray, JaxArray]) -> tuple[JaxArray, None]:
        return total + attend(*features), None

    whole = num_features // chunk * chunk
    features = tuple(jnp.asarray(x).T for x in (query, key))
    chunks = tuple(x[:whole].reshape(-1, chunk, num_tokens) for x in features)
    # Recomputed in the backward pass: the products of all features would have to be kept otherwise.
    body = jax.checkpoint(add, prevent_cse=False)
    total, _ = jax.lax.scan(body, jnp.zeros_like(extended), chunks)
    if whole < num_features:
        total += jax.checkpoint(attend)(*(x[whole:] for x in features))
    normalizer = total[:, -1:]
    floor = mask.noise * jnp.abs(jax.lax.stop_gradient(normalizer)).max(initial=0.0)
    # NaN is not below the floor: it stays loud.
    empty = jnp.abs(normalizer) <= floor
    return jnp.where(empty, 0.0, total[:, :-1] / jnp.where(empty, 1.0, normalizer))
