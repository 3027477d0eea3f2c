"""Weighted directed graphs as padded neighbour lists.

A graph is its matrix W by rows, `SparseRows`: columns are out-neighbours, values are weights, and
the numbers of entries are the out-degrees. An undirected edge is two directed ones. Self-loops and
several edges between two nodes are allowed: W_ij is the sum of the weights of the edges from i to
j.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Bool, Float, JaxArray, pytree
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.neighbors import Neighbors
from hdvpd.kernels.sparse_rows import SparseRows


@pytree
class SymmetricPart:
    """(W + W^T) / 2 of a directed graph, for masks that need a symmetric matrix.

    It is never stored: a node may have any number of neighbours in it.

    Attributes:
      graph: W.
    """

    graph: SparseRows

    @property
    def num_rows(self) -> int:
        """Rows and columns of the matrix."""
        return self.graph.num_rows

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return (W x + W^T x) / 2."""
        return 0.5 * (self.graph @ x + self.graph.transposed_product(x))

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return the matrix, for small graphs."""
        matrix = self.graph.dense()
        return 0.5 * (matrix + matrix.T)


def neighbor_graph(
    found: Neighbors, mask: Bool[Array, "t"], kernels: Kernels = "auto"
) -> SparseRows:
    """Join every real token to its nearest neighbours, k edges of weight 1/k.

    The walk graph of arXiv 2410.03462, App. C.3.

    Returns:
      A graph in which a missing neighbour is the token itself (the walker waits), so that W stays
      row-stochastic where fewer than k neighbours exist. Padding has loops only: it is nobody's
      neighbour and reads nobody.
    """
    num_tokens, k = found.indices.shape
    own = jnp.arange(num_tokens, dtype=jnp.int32)[:, None]
    return SparseRows(
        columns=jnp.where(found.found & mask[:, None], found.indices, own),
        values=jnp.full((num_tokens, k), 1.0 / k, jnp.float32),
        num_entries=jnp.full((num_tokens,), k, jnp.int32),
        kernels=kernels,
    )


def transition_graph(graph: SparseRows, halting: float = 0.0) -> SparseRows:
    """Weigh every edge by the probability that a walker hops along it: W = (1 - p) P, P = D^-1 A.

    On this graph the importance weights of sampled walks cancel, so that every load is 1: walks
    count visits, as random-walk graph-node kernels (arXiv 2107.07999) and the ad-hoc ablation of
    arXiv 2410.03462 do.
    """
    degrees = jnp.asarray(graph.num_entries)[:, None]
    used = np.arange(graph.columns.shape[1])[None] < degrees
    chance = (1.0 - halting) / jnp.maximum(degrees, 1)
    return dataclasses.replace(graph, values=jnp.where(used, chance, 0.0).astype(jnp.float32))
