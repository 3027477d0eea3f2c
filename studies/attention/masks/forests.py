"""Forests, prepared on the host for sums along their paths (`studies.kernels.forests`).

Roots are the centres of the trees, so that there are few levels. Nodes with more than two children
get *joints* between them and their children: nodes without a token, at no distance from the node.
Then the sum over all siblings of a node is what its one sibling sends, and no sum is ever taken
apart again by a subtraction. The nodes lie in *slots*, level after level in chunks of one width:
the mean width of a level, so that slots are at most three times the nodes, whatever the shape.
"""

import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.sparse import csgraph

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool, Float, Int, JaxArray
from hdvpd.kernels.choice import Kernels
from studies.kernels.forests import Forest


def edge_forest(
    num_tokens: int,
    edges: Int[np.ndarray, "edges 2"],
    lengths: Float[np.ndarray, "edges"] | None = None,
    *,
    kernels: Kernels = "auto",
) -> Forest:
    """Prepare a forest from its edges, in O(t log t) before tracing.

    Args:
      num_tokens: nodes; those without an edge are trees of their own.
      edges: the two ends of each edge, in any order.
      lengths: length of each edge, 1 by default.
      kernels: form in which sums along its paths are computed.

    Raises:
      UserError: there is no node, an edge leaves the forest, joins a node to itself, is given twice
        or closes a cycle, or a length is not positive and finite.
    """
    edges = np.asarray(edges, np.int64)
    lengths = np.ones(len(edges)) if lengths is None else np.asarray(lengths, np.float64)
    _check_edges(num_tokens, edges, lengths)
    parents, diameter = _root_at_centers(num_tokens, edges)
    to_parent = np.zeros(num_tokens)
    for child, parent in (edges.T, edges.T[::-1]):
        upward = parents[child] == parent
        to_parent[child[upward]] = lengths[upward]
    binary = _join_children(parents)
    slots, num_chunks, width = _assign_slots(binary)

    num_slots = num_chunks * width
    above, beside = (np.full(num_slots, num_slots, np.int32) for _ in range(2))
    below = np.full((num_slots, 2), num_slots, np.int32)
    nodes = np.flatnonzero(binary >= 0)
    nodes = nodes[np.argsort(binary[nodes], kind="stable")]
    child, parent = slots[nodes], slots[binary[nodes]]
    above[child] = parent
    # The children of a node follow each other: the second is where the parent repeats.
    second = np.flatnonzero(np.diff(parent, prepend=-1) == 0)
    below[parent, 0] = child  # of two, the second
    below[parent[second], 1] = child[second - 1]
    beside[child[second]], beside[child[second - 1]] = child[second - 1], child[second]
    spans = np.zeros(num_slots, np.float32)
    spans[slots[:num_tokens]] = to_parent
    return Forest(
        parents=parents.astype(np.int32),
        lengths=to_parent.astype(np.float32),
        slots=slots[:num_tokens].astype(np.int32),
        above=above.reshape(num_chunks, width),
        below=below.reshape(num_chunks, width, 2),
        beside=beside.reshape(num_chunks, width),
        spans=spans.reshape(num_chunks, width),
        diameter=diameter,
        kernels=kernels,
    )


def distances(forest: Forest) -> tuple[Float[JaxArray, "t t"], Bool[JaxArray, "t t"]]:
    """Return the distance of each pair of tokens, 0 without a path, and whether there is one.

    The path between two nodes has the edges above either that are not above both. O(t^3 log t).
    """
    num_tokens = forest.parents.shape[0]
    nodes = jnp.arange(num_tokens)
    steps = jnp.eye(num_tokens) + (forest.parents[:, None] == nodes[None])
    for _ in range(num_tokens.bit_length()):
        steps = jnp.minimum(steps @ steps, 1.0)
    one_sided = (steps * forest.lengths[None]) @ (1.0 - steps).T
    joined = steps @ steps.T > 0
    return jnp.where(joined, one_sided + one_sided.T, 0.0), joined


def _check_edges(num_tokens: int, edges: np.ndarray, lengths: np.ndarray) -> None:
    if num_tokens < 1:
        raise UserError(f"forest: num_tokens = {num_tokens}; a forest has at least one node.")
    first, second = edges.T
    outside = ((edges < 0) | (edges >= num_tokens)).any(1)
    pairs = edges.min(1) * num_tokens + edges.max(1)
    again = np.ones(len(edges), bool)
    again[np.unique(pairs, return_index=True)[1]] = False
    wrong = {
        f"leaves the nodes 0 to {num_tokens - 1}": outside,
        "joins a node to itself; remove it": first == second,
        "is given twice; keep one": again,
    }
    for problem, found in wrong.items():
        if found.any():
            edge = int(np.flatnonzero(found)[0])
            raise UserError(f"forest: edge {edge}, {first[edge]} - {second[edge]}, {problem}.")
    bad = ~(np.isfinite(lengths) & (lengths > 0))
    if bad.any():
        edge = int(np.flatnonzero(bad)[0])
        raise UserError(
            f"forest: edge {edge}, {first[edge]} - {second[edge]}, has length {lengths[edge]}; "
            "lengths must be positive and finite."
        )


def _root_at_centers(num_tokens: int, edges: np.ndarray) -> tuple[np.ndarray, int]:
    """Return parents in trees rooted at their centres, and the largest diameter.

    The node farthest from any node is one end of a longest path, and the node farthest from that
    end is the other; the centre is the node nearest to both.
    """
    adjacency = sparse.csr_array(
        (np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(num_tokens, num_tokens)
    )
    trees = csgraph.connected_components(adjacency, directed=False)[1]
    hops, parents = _walk_from(np.unique(trees, return_index=True)[1], edges, num_tokens)
    first, second = edges.T
    closing = (parents[first] != second) & (parents[second] != first)
    if closing.any():
        edge = int(np.flatnonzero(closing)[0])
        raise UserError(
            f"forest: edge {edge}, {first[edge]} - {second[edge]}, closes a cycle; remove it, or "
            "take a spanning tree."
        )
    from_one, _ = _walk_from(_largest(hops, trees), edges, num_tokens)
    from_other, _ = _walk_from(_largest(from_one, trees), edges, num_tokens)
    centers = _largest(-np.maximum(from_one, from_other), trees)
    return _walk_from(centers, edges, num_tokens)[1], int(from_one.max())


def _joined(starts: np.ndarray, edges: np.ndarray, num_nodes: int) -> sparse.csr_array:
    """Return the forest with one more node that joins all starts: one search serves all trees."""
    rows = np.concatenate([edges[:, 0], np.full(len(starts), num_nodes)])
    columns = np.concatenate([edges[:, 1], starts])
    return sparse.csr_array(
        (np.ones(len(rows)), (rows, columns)), shape=(num_nodes + 1, num_nodes + 1)
    )


def _walk_from(
    starts: np.ndarray, edges: np.ndarray, num_nodes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return hops from the start of each tree, and parents on the way, -1 at the starts."""
    joined = _joined(starts, edges, num_nodes)
    hops, parents = csgraph.dijkstra(
        joined, directed=False, indices=num_nodes, return_predecessors=True, unweighted=True
    )
    hops, parents = hops[:-1].astype(np.int64) - 1, parents[:-1].astype(np.int64)
    return hops, np.where(parents == num_nodes, -1, parents)


def _largest(values: np.ndarray, trees: np.ndarray) -> np.ndarray:
    """Return the node of each tree that has the largest value."""
    order = np.lexsort((values, trees))
    return order[np.flatnonzero(np.diff(trees[order], append=-1))]


def _join_children(parents: np.ndarray) -> np.ndarray:
    """Return parents of the nodes and of joints after them, such that none has three children.

    Neighbours among the children of a node are joined in pairs until two are left, so that the tree
    grows deeper by the logarithm of its largest degree only.
    """
    children = np.flatnonzero(parents >= 0)
    while True:
        counts = np.bincount(parents[children], minlength=len(parents))
        children = children[counts[parents[children]] > 2]
        if not len(children):
            return parents
        children = children[np.argsort(parents[children], kind="stable")]
        common = parents[children]
        rank = np.arange(len(children)) - np.searchsorted(common, common)
        odd = np.flatnonzero(rank % 2)
        joints = len(parents) + np.arange(len(odd))
        parents = np.concatenate([parents, common[odd]])
        parents[children[odd - 1]] = parents[children[odd]] = joints
        alone = (rank % 2 == 0) & (rank + 1 == counts[common])
        children = np.concatenate([children[alone], joints])


def _assign_slots(parents: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Return the slot of each node, the number of chunks and their width."""
    nodes = np.flatnonzero(parents >= 0)
    edges = np.stack([nodes, parents[nodes]], axis=1)
    roots = np.flatnonzero(parents < 0)
    level, _ = _walk_from(roots, edges, len(parents))
    sizes = np.bincount(level)
    width = -(-len(parents) // len(sizes))
    chunks = -(-sizes // width)
    # Level by level, and in each in the order of the parents: near slots then have near relatives.
    order = csgraph.breadth_first_order(
        _joined(roots, edges, len(parents)), len(parents), directed=False, return_predecessors=False
    )[1:]
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    slots = width * (np.cumsum(chunks) - chunks)[level] + rank
    return slots, int(chunks.sum()), width
