"""Linear attention to earlier tokens, in blocks: what a causal mask costs at its cheapest."""

import jax
import jax.numpy as jnp

from hdvpd.attention.masked import normalized
from hdvpd.basics.types import Array, Float, JaxArray

# Rows of the triangle that is formed at once: a block costs as much inside as across.
_BLOCK = 128


def causal_attention(
    query: Float[Array, "t m"], key: Float[Array, "t m"], value: Float[Array, "t c"]
) -> Float[JaxArray, "t c"]:
    """Attend with weights q_i . k_j to tokens j <= i (arXiv 2107.07999, 2009.14794, App. B).

    Equal to `masked_linear_attention` under a `CausalMask`, without its [t, m c] products: from
    block to block goes S = sum_j k_j [v_j, 1]^T, and the triangle of scores inside is added.

    Args:
      query: positive features of the queries.
      key: positive features of the keys.
      value: values.

    Returns:
      Weighted means of the values; zero for a token whose weights are all zero.
    """
    num_tokens = value.shape[0]
    # Sums are float32 even of half-precision inputs.
    extended = jnp.concatenate([value, jnp.ones((num_tokens, 1), jnp.float32)], axis=1)

    def in_blocks(rows: Float[Array, "t d"]) -> Float[JaxArray, "blocks block d"]:
        rows = jnp.pad(rows, ((0, -num_tokens % _BLOCK), (0, 0)))
        return rows.reshape(-1, _BLOCK, rows.shape[1])

    def attend(state: Float[JaxArray, "m w"], block: tuple[JaxArray, JaxArray, JaxArray]):
        query, key, extended = (x.astype(state.dtype) for x in block)
        inside = jnp.tril(query @ key.T) @ extended
        return state + key.T @ extended, query @ state + inside

    start = jnp.zeros((key.shape[1], extended.shape[1]), extended.dtype)
    blocks = tuple(in_blocks(x) for x in (query, key, extended))
    # Recomputed in the backward pass: scores of all blocks would have to be kept otherwise.
    _, sums = jax.lax.scan(jax.checkpoint(attend, prevent_cse=False), start, blocks)
    return normalized(sums.reshape(-1, sums.shape[2])[:num_tokens])
