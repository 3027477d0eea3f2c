"""How to make graphs of edges and of matrices, on the host and before tracing."""

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, Int
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.sparse_rows import SparseRows


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
