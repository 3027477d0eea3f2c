"""The walk graph of the GRF layer: where walkers of every token are after each hop.

On a directed graph in which every token has exactly k out-neighbours of weight 1/k, the block rule
of repelling walks puts exactly k^h (W^l)_ij of k^h walkers on node j after l <= h hops (spec 5.2,
checked there). So 27 repelling walkers over 3 hops on 3-neighbour lists need no random numbers:
they are the 1 + 3 + 9 + 27 = 40 prefixes, entry e holding node and hop. Several prefixes often end
on one node; merging them leaves about 12 distinct entries on surfaces.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.array_typing import Array, Float, Int, pytree
from hdvpd.host import host_call
from hdvpd.neighbors import Neighbors


@pytree
class WalkGraph:
    """Sparse rows of the walk features, one row of e entries per token.

    Attributes:
      nodes: token on which an entry's walkers stand.
      shares: (W^l)_ij of the entry per hop l; zero in unused entries. Row sums over entries are 1
        for every hop, because W is row-stochastic.
      num_entries: entries in use per token; the others repeat the token itself with zero share.
      incoming: entries (row * e + column) ordered by node, for the transposed product; empty in
        the unmerged form.
      incoming_offsets: first position in `incoming` of each node, and the end; empty likewise.
    """

    nodes: Int[Array, "*batch t e"]
    shares: Float[Array, "*batch t e l"]
    num_entries: Int[Array, "*batch t"]
    incoming: Int[Array, "*batch a"]
    incoming_offsets: Int[Array, "*batch o"]


def out_neighbors(found: Neighbors) -> Int[Array, "*batch t k"]:
    """Return k out-neighbours per token; a missing one becomes the token itself (the walker waits).

    So every row keeps k entries of weight 1/k and W stays row-stochastic, also where fewer than
    k tokens exist.
    """
    own = jnp.arange(found.indices.shape[-2], dtype=jnp.int32)[:, None]
    return jnp.where(found.found, found.indices, own)


def enumerate_walks(neighbors: Int[Array, "t k"], num_hops: int) -> WalkGraph:
    """List every walk prefix of 0..num_hops hops as an entry of its own (plain JAX).

    Args:
      neighbors: out-neighbours of every token.
      num_hops: hops of every walk.

    Returns:
      sum_l k^l entries per token, unmerged.
    """
    num_tokens, k = neighbors.shape
    levels = [jnp.arange(num_tokens, dtype=jnp.int32)[:, None]]
    for _ in range(num_hops):
        levels.append(neighbors[levels[-1]].reshape(num_tokens, -1))
    hop = np.repeat(np.arange(num_hops + 1), [level.shape[1] for level in levels])
    shares = np.eye(num_hops + 1, dtype=np.float32)[hop] / np.float32(k) ** hop[:, None]
    nodes = jnp.concatenate(levels, axis=1)
    return WalkGraph(
        nodes=nodes,
        shares=jnp.broadcast_to(jnp.asarray(shares)[None], (*nodes.shape, num_hops + 1)),
        num_entries=jnp.full((num_tokens,), nodes.shape[1], jnp.int32),
        incoming=jnp.zeros((0,), jnp.int32),
        incoming_offsets=jnp.zeros((0,), jnp.int32),
    )


def merge_walks(neighbors: Int[Array, "t k"], num_hops: int) -> WalkGraph:
    """Return the same rows as `enumerate_walks` with equal nodes merged (compiled host code).

    The entries' order by node comes with it, so that the transposed product needs no scatter and
    its result does not depend on the number of threads.
    """
    num_tokens, k = neighbors.shape
    width = sum(k**hop for hop in range(num_hops + 1))

    def on_host(neighbors: np.ndarray) -> tuple[np.ndarray, ...]:
        from hdvpd.dynamics import walks_host

        return walks_host.merge(np.ascontiguousarray(neighbors), num_hops, width)

    results = (
        jax.ShapeDtypeStruct((num_tokens, width), np.int32),
        jax.ShapeDtypeStruct((num_tokens, width, num_hops + 1), np.float32),
        jax.ShapeDtypeStruct((num_tokens,), np.int32),
        jax.ShapeDtypeStruct((num_tokens * width,), np.int32),
        jax.ShapeDtypeStruct((num_tokens + 1,), np.int32),
    )
    return WalkGraph(*host_call(on_host, results, neighbors))
