"""Linear attention under any mask that has a fast product (arXiv 2107.07999, Alg. 1)."""

import jax
import jax.numpy as jnp

from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, JaxArray

# Columns are multiplied with M so many numbers at a time, 1 MiB of float32 as a second-level cache
# holds, but never fewer columns than a cache line has numbers. With all columns at once most masks
# are slower from 2^14 tokens on, and their time grows faster than the tokens.
_CHUNK_SIZE = 1 << 18
_COLUMNS = 16


def masked_linear_attention(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    mask: AbstractMask,
) -> Float[JaxArray, "t c"]:
    """Attend with weights M_ij (q_i . k_j) at the cost of m (c + 1) products with M.

    Per feature r: out += q[:, r] * M (k[:, r] * [v, 1]), then the first c columns divided by the
    last. Features are taken in chunks, recomputed in the backward pass, so that memory is bounded
    by a few [t, c + 1] arrays, whatever m is. For several heads use `jax.vmap`.

    Args:
      query: positive features of the queries.
      key: positive features of the keys.
      value: values.
      mask: M, not negative.

    Returns:
      Weighted means of the values; zero for a token whose weights are all zero, or add up to no
      more than the product's rounding errors (`AbstractMask.rounding_error`).

    Raises:
      UserError: the mask is one of another number of tokens.
    """
    if mask.num_tokens != query.shape[0]:
        raise UserError(
            f"{type(mask).__name__} over {mask.num_tokens} tokens for attention among "
            f"{query.shape[0]}: both must have the same number."
        )
    extended = jnp.concatenate([value, jnp.ones((value.shape[0], 1), jnp.float32)], axis=1)
    num_tokens, width = extended.shape
    num_features = query.shape[1]
    columns = max(_COLUMNS, _CHUNK_SIZE // num_tokens)
    chunk = min(num_features, -(-columns // width))

    def attend(
        query: Float[JaxArray, "m t"], key: Float[JaxArray, "m t"]
    ) -> tuple[Float[JaxArray, "t w"], Float[JaxArray, "t"]]:
        # Sums are float32 even of half-precision inputs, which Fourier transforms refuse.
        query, key = (x.astype(extended.dtype) for x in (query, key))
        columns = jnp.einsum("mt,tw->tmw", key, extended).reshape(num_tokens, -1)
        product = (mask @ columns).reshape(num_tokens, -1, width)
        errors = jax.lax.stop_gradient(mask.rounding_error(key.T))
        return jnp.einsum("mt,tmw->tw", query, product), jnp.einsum("mt,tm->t", query, errors)

    def add(sums: tuple[JaxArray, JaxArray], features: tuple[JaxArray, JaxArray]):
        return jax.tree.map(jnp.add, sums, attend(*features)), None

    whole = num_features // chunk * chunk
    features = tuple(jnp.asarray(x).T for x in (query, key))
    chunks = tuple(x[:whole].reshape(-1, chunk, num_tokens) for x in features)
    # Recomputed in the backward pass: the products of all features would have to be kept otherwise.
    body = jax.checkpoint(add, prevent_cse=False)
    start = (jnp.zeros_like(extended), jnp.zeros_like(extended[:, 0]))
    sums, _ = jax.lax.scan(body, start, chunks)
    if whole < num_features:
        rest = jax.checkpoint(attend)(*(x[whole:] for x in features))
        sums = jax.tree.map(jnp.add, sums, rest)
    return normalized(*sums)


def normalized(
    sums: Float[JaxArray, "t w"], errors: Float[JaxArray, "t"] | float = 0.0
) -> Float[JaxArray, "t c"]:
    """Divide weighted sums of values by those of one, which are the last column.

    Args:
      sums: of values and of one; w = c + 1.
      errors: what rounding may have made of the last column.

    Returns:
      Weighted means; zero where the last column is no larger than its errors, with gradient zero.
    """
    normalizer = sums[:, -1]
    # NaN is not empty: it stays loud.
    empty = (jnp.abs(normalizer) <= errors)[:, None]
    return jnp.where(empty, 0.0, sums[:, :-1] / jnp.where(empty, 1.0, normalizer[:, None]))
