"""Weighted directed graphs as padded neighbour lists, and how to make them.

A graph is its matrix W by rows, `SparseRows`: columns are out-neighbours, values are weights, and
the numbers of entries are the out-degrees. An undirected edge is two directed ones. Self-loops and
several edges between two nodes are allowed: W_ij is the sum of the weights of the edges from i to
j.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from hdvpd.errors import UserError
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.neighbors import Neighbors
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.types import Array, Bool, Float, Int, JaxArray, pytree


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

    Args:
      found: neighbour lists of all tokens.
      mask: real tokens.
      kernels: form in which walks and products are computed.

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


def edge_graph(
    num_tokens: int,
    sources: Int[np.ndarray, "edges"],
    targets: Int[np.ndarray, "edges"],
    weights: Float[np.ndarray, "edges"],
    width: int | None = None,
    kernels: Kernels = "auto",
) -> SparseRows:
    """Make a graph of its directed edges, on the host and before tracing.

    Args:
      num_tokens: nodes; those without an edge are isolated.
      sources: node that each edge leaves.
      targets: node that each edge enters.
      weights: W of each edge.
      width: columns of the lists; by default the largest out-degree, at least 1.
      kernels: form in which walks and products are computed.

    Returns:
      The lists, in the order in which the edges are given.

    Raises:
      UserError: there is no node, an edge leaves the graph, a weight is not finite, or `width` is
        too small.
    """
    if num_tokens < 1:
        raise UserError(f"graph: num_tokens = {num_tokens}; a graph has at least one node.")
    ends = np.concatenate([sources, targets])
    if ends.size and not (ends.min() >= 0 and ends.max() < num_tokens):
        raise UserError(
            f"graph: edges join nodes {ends.min()} to {ends.max()}; nodes are 0 to "
            f"{num_tokens - 1}."
        )
    if not np.isfinite(weights).all():
        edge = int(np.flatnonzero(~np.isfinite(weights))[0])
        raise UserError(
            f"graph: edge {sources[edge]} -> {targets[edge]} has weight {weights[edge]}; weights "
            "must be finite."
        )
    degrees = np.bincount(sources, minlength=num_tokens)
    largest = max(int(degrees.max(initial=0)), 1)
    width = largest if width is None else width
    if width < largest:
        raise UserError(f"graph: width = {width} is below the largest out-degree, {largest}.")
    order = np.argsort(sources, kind="stable")
    rows = sources[order]
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(degrees) - degrees, degrees)
    neighbors = np.repeat(np.arange(num_tokens, dtype=np.int32)[:, None], width, axis=1)
    neighbors[rows, columns] = targets[order]
    padded = np.zeros((num_tokens, width), np.float32)
    padded[rows, columns] = weights[order]
    return SparseRows(neighbors, padded, degrees.astype(np.int32), kernels)


def matrix_graph(
    matrix: Float[np.ndarray, "t t"], width: int | None = None, kernels: Kernels = "auto"
) -> SparseRows:
    """Make a graph of a dense W: every entry that is not zero is an edge.

    Args:
      matrix: W_ij, from row to column.
      width: columns of the lists; by default the largest out-degree, at least 1.
      kernels: form in which walks and products are computed.

    Raises:
      UserError: there is no node, an entry is not finite, or `width` is too small.
    """
    sources, targets = np.nonzero(matrix)
    return edge_graph(len(matrix), sources, targets, matrix[sources, targets], width, kernels)


def graph_matrix(graph: SparseRows) -> Float[np.ndarray, "t t"]:
    """Return the dense float64 W of a graph, for small graphs."""
    neighbors, degrees = np.asarray(graph.columns), np.asarray(graph.num_entries)
    rows, columns = np.nonzero(np.arange(neighbors.shape[1])[None] < degrees[:, None])
    matrix = np.zeros((len(neighbors), len(neighbors)))
    weights = np.asarray(graph.values, np.float64)
    np.add.at(matrix, (rows, neighbors[rows, columns]), weights[rows, columns])
    return matrix


def symmetric_weights(adjacency: Float[np.ndarray, "t t"]) -> Float[np.ndarray, "t t"]:
    """Normalise a symmetric adjacency: W_ij = A_ij / sqrt(d_i d_j), d its row sums.

    Args:
      adjacency: not negative; rows of zeros are isolated nodes and stay so.

    Returns:
      W, with eigenvalues in [-1, 1] (arXiv 2410.03462).

    Raises:
      UserError: an entry is negative or not finite, or A is not symmetric.
    """
    if not (np.isfinite(adjacency).all() and (adjacency >= 0).all()):
        raise UserError(
            f"adjacency with entries from {adjacency.min():g} to {adjacency.max():g}: all must be "
            "finite and not negative. Of a Laplacian take the adjacency."
        )
    difference = np.abs(adjacency - adjacency.T)
    if difference.max(initial=0.0) > 1e-6 * adjacency.max(initial=0.0):
        i, j = np.unravel_index(difference.argmax(), difference.shape)
        raise UserError(
            f"adjacency: A[{i}, {j}] = {adjacency[i, j]:g} but A[{j}, {i}] = {adjacency[j, i]:g}; "
            "degrees of both ends need a symmetric matrix, for example (A + A.T) / 2."
        )
    degrees = adjacency.sum(1)
    scale = np.zeros_like(degrees)
    np.divide(1.0, np.sqrt(degrees), out=scale, where=degrees > 0)
    return scale[:, None] * adjacency * scale[None]


def transition_graph(graph: SparseRows, halting: float = 0.0) -> SparseRows:
    """Weigh every edge by the probability that a walker hops along it: W = (1 - p) P, P = D^-1 A.

    On this graph the importance weights of sampled walks cancel, so that every load is 1: walks
    count visits, as random-walk graph-node kernels (arXiv 2107.07999) and the ad-hoc ablation of
    arXiv 2410.03462 do.

    Args:
      graph: its edges, whatever their weights.
      halting: probability p to stop before each hop.
    """
    degrees = jnp.asarray(graph.num_entries)[:, None]
    used = np.arange(graph.columns.shape[1])[None] < degrees
    chance = (1.0 - halting) / jnp.maximum(degrees, 1)
    return dataclasses.replace(graph, values=jnp.where(used, chance, 0.0).astype(jnp.float32))
