"""One mask of every kind, at any size, with the graph it is over: for pictures and measurements.

Sizes are numbers of tokens, powers of two for hypercubes. Nodes of irregular graphs are numbered in
Z order, as the particles of the encoder are: neighbours are near each other in memory.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree

from hdvpd.attention.graphs import transition_graph
from hdvpd.attention.masks.base import AbstractMask
from hdvpd.attention.masks.rwgnk import rwgnk_mask
from hdvpd.attention.masks.walks import SparseMask, WalkMask, walk_rows
from hdvpd.attention.sampled_walks import sample_walks
from hdvpd.basics.types import Float, Int
from hdvpd.encoders.particles import z_order
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks, exact_walks, merged
from studies.attention.graphs import edge_graph
from studies.attention.masks.compose import ClassTokenMask, KroneckerMask
from studies.attention.masks.diffusion import diffusion_mask
from studies.attention.masks.forests import edge_forest
from studies.attention.masks.hypercube import hypercube_mask
from studies.attention.masks.low_rank import LowRankMask
from studies.attention.masks.sequences import CausalMask, PaddingMask, SegmentMask
from studies.attention.masks.series import PowerSeriesMask
from studies.attention.masks.toeplitz import ToeplitzMask, distance_table
from studies.attention.masks.trees import ExponentialForestMask, TreeMask, tree_mask
from studies.attention.power_series import exponential

Edges = Int[np.ndarray, "edges 2"]
Points = Float[np.ndarray, "t 2"]


class Example(NamedTuple):
    """A mask and the graph it is over.

    Attributes:
      mask: M.
      edges: pairs of tokens that the graph joins.
      points: where to draw the tokens; none leaves it to a layout of the graph.
    """

    mask: AbstractMask
    edges: Edges
    points: Points | None = None


class Kind(NamedTuple):
    """A kind of mask.

    Attributes:
      topology: what M depends on.
      cost: of a product, in the number of tokens N.
      make: of the number of tokens and a generator.
    """

    topology: str
    cost: str
    make: Callable[[int, np.random.Generator], Example]


# Graphs -------------------------------------------------------------------------------------------


def grid_shape(num_tokens: int) -> tuple[int, int]:
    """Return rows and columns of the grid of so many cells that is nearest to a square."""
    rows = math.isqrt(num_tokens)
    while num_tokens % rows:
        rows -= 1
    return rows, num_tokens // rows


def _sequence(num_tokens: int) -> tuple[Edges, Points]:
    nodes = np.arange(num_tokens)
    angles = np.pi * (1.25 - 1.5 * nodes / max(1, num_tokens - 1))
    return (
        np.stack([nodes[:-1], nodes[1:]], axis=1),
        np.stack([np.cos(angles), np.sin(angles)], axis=1),
    )


def _grid(rows: int, columns: int) -> tuple[Edges, Points]:
    cells = np.arange(rows * columns).reshape(rows, columns)
    along, down = (
        np.stack([one.ravel(), other.ravel()], axis=1)
        for one, other in ((cells[:, :-1], cells[:, 1:]), (cells[:-1], cells[1:]))
    )
    row, column = np.divmod(cells.ravel(), columns)
    return np.concatenate([along, down]), np.stack([column, -row], axis=1).astype(float)


def _streets(num_tokens: int, rng: np.random.Generator) -> tuple[SparseRows, Edges, Points]:
    """Return street crossings, a grid without a fifth of its edges; W_ij = 1 / sqrt(d_i d_j)."""
    edges, points = _grid(*grid_shape(num_tokens))
    edges = edges[rng.random(len(edges)) < 0.8]
    edges, points = _in_z_order(edges, points + rng.uniform(-0.3, 0.3, points.shape))
    sources, targets = np.concatenate([edges, edges[:, ::-1]]).T
    degrees = np.bincount(sources, minlength=num_tokens)
    weights = 1 / np.sqrt(degrees[sources] * degrees[targets])
    return edge_graph(num_tokens, sources, targets, weights), edges, points


def _neighbors(num_tokens: int, rng: np.random.Generator) -> tuple[SparseRows, Edges, Points]:
    """Return points on a plane, from each an edge of weight 1/3 to its three nearest."""
    edges, points = _grid(*grid_shape(num_tokens))
    _, points = _in_z_order(edges, points + rng.uniform(-0.6, 0.6, points.shape))
    found = np.asarray(KDTree(points).query(points, min(4, num_tokens))[1])[:, 1:]
    edges = np.stack([np.repeat(np.arange(num_tokens), found.shape[1]), found.ravel()], axis=1)
    graph = edge_graph(num_tokens, edges[:, 0], edges[:, 1], np.full(len(edges), 1 / 3))
    return graph, edges, points


def _in_z_order(edges: Edges, points: Points) -> tuple[Edges, Points]:
    flat = np.pad(points, ((0, 0), (0, 1))).astype(np.float32)
    order = np.asarray(z_order(flat, np.ones(len(points), bool)))
    return np.argsort(order)[edges], points[order]


def _random_trees(num_tokens: int, num_trees: int, rng: np.random.Generator) -> Edges:
    """Return trees of equal size in which every node hangs from a random earlier one."""
    size = -(-num_tokens // num_trees)
    node = np.arange(num_tokens)
    first = node // size * size
    parents = first + (rng.random(num_tokens) * (node - first)).astype(int)
    return np.stack([node, parents], axis=1)[node > first]


# Masks --------------------------------------------------------------------------------------------


def _padding(num_tokens: int, rng: np.random.Generator) -> Example:
    del rng
    return Example(PaddingMask(np.arange(num_tokens) < 0.75 * num_tokens), *_sequence(num_tokens))


def _causal(num_tokens: int, rng: np.random.Generator) -> Example:
    del rng
    return Example(CausalMask(num_tokens), *_sequence(num_tokens))


def _segments(num_tokens: int, rng: np.random.Generator) -> Example:
    segments = np.cumsum(rng.random(num_tokens) < 0.1)
    return Example(SegmentMask(segments), *_sequence(num_tokens))


def _low_rank(num_tokens: int, rng: np.random.Generator) -> Example:
    points = rng.random((num_tokens, 2))
    centers = np.array([[0.2, 0.2], [0.2, 0.8], [0.8, 0.2], [0.8, 0.8]])
    distances = np.linalg.norm(points[:, None] - centers[None], axis=2)
    belonging = np.exp(-((distances / 0.3) ** 2)).astype(np.float32)
    return Example(LowRankMask(belonging, belonging), np.zeros((0, 2), int), points)


def _relative_position(num_tokens: int, rng: np.random.Generator) -> Example:
    del rng
    offsets = np.arange(1 - num_tokens, num_tokens)
    table = np.exp(-np.abs(offsets) / 6) * np.where(offsets < 0, 0.4, 1.0)
    return Example(ToeplitzMask(table.astype(np.float32)), *_sequence(num_tokens))


def _grid_mask(rows: int, columns: int) -> ToeplitzMask:
    return ToeplitzMask(distance_table(lambda distance: jnp.exp(-distance / 2), (rows, columns)))


def _grid_distance(num_tokens: int, rng: np.random.Generator) -> Example:
    del rng
    shape = grid_shape(num_tokens)
    return Example(_grid_mask(*shape), *_grid(*shape))


def _class_token(num_tokens: int, rng: np.random.Generator) -> Example:
    del rng
    shape = grid_shape(num_tokens)
    edges, points = _grid(*shape)
    to_class = np.stack([np.zeros(num_tokens, int), 1 + np.arange(num_tokens)], axis=1)
    above = np.mean(points, 0, keepdims=True) + [[0, np.ptp(points[:, 1])]]
    return Example(
        ClassTokenMask(_grid_mask(*shape)),
        np.concatenate([to_class, 1 + edges]),
        np.concatenate([above, points]),
    )


def _frames(num_tokens: int, rng: np.random.Generator) -> Example:
    del rng
    num_frames = grid_shape(num_tokens)[0]
    shape = grid_shape(num_tokens // num_frames)
    edges, points = _grid(*shape)
    frames = np.arange(num_frames)[:, None, None]
    places = np.stack(np.divmod(np.arange(num_frames), 3)[::-1], axis=1)[:, None]
    return Example(
        KroneckerMask(CausalMask(num_frames), _grid_mask(*shape)),
        (edges + frames * len(points)).reshape(-1, 2),
        (points + places * [shape[1] + 1.0, -shape[0] - 1.0]).reshape(-1, 2),
    )


def _exponential_forest(num_tokens: int, rng: np.random.Generator) -> Example:
    edges = _random_trees(num_tokens, 3, rng)
    forest = edge_forest(num_tokens, edges, rng.uniform(0.3, 1.5, len(edges)))
    return Example(ExponentialForestMask(forest, -0.7, 0.0), edges)


def _rings(diameter: int) -> Float[np.ndarray, "f"]:
    """Return an f of tree distances that is no exponential: only even distances count."""
    distance = np.arange(diameter + 1)
    return (np.exp(-distance / 8) * (distance % 2 == 0)).astype(np.float32)


def tree_example(edges: Edges, *, by_levels: bool = False) -> Example:
    """Return a mask of the distance in one tree, by blocks or by level arrays."""
    forest = edge_forest(len(edges) + 1, edges)
    values = _rings(forest.diameter)
    return Example(TreeMask(forest, values) if by_levels else tree_mask(forest, values), edges)


def _tree_distance(num_tokens: int, rng: np.random.Generator) -> Example:
    return tree_example(_random_trees(num_tokens, 1, rng))


def _hypercube(num_tokens: int, rng: np.random.Generator) -> Example:
    del rng
    corners, bits = np.arange(num_tokens), np.arange(num_tokens.bit_length() - 1)
    flipped = corners[:, None] ^ (1 << bits)[None]
    edges = np.stack([np.repeat(corners, len(bits)), flipped.ravel()], axis=1)
    angles = np.pi * bits / max(1, len(bits))
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    points = (corners[:, None] >> bits[None] & 1) @ directions
    return Example(hypercube_mask(num_tokens, 0.4), edges[edges[:, 0] < edges[:, 1]], points)


def _diffusion(num_tokens: int, rng: np.random.Generator) -> Example:
    graph, edges, points = _streets(num_tokens, rng)
    ones = dataclasses.replace(graph, values=np.sign(graph.values))
    return Example(diffusion_mask(ones, 2.0), edges, points)


def _power_series(num_tokens: int, rng: np.random.Generator) -> Example:
    graph, edges, points = _streets(num_tokens, rng)
    coefficients = exponential(9, time=2.0).mask.astype(np.float32)
    return Example(PowerSeriesMask(graph, coefficients), edges, points)


def sampled_walks(graph: SparseRows, rng: np.random.Generator) -> Walks:
    """Return walks as in Fig. 3 of arXiv 2410.03462: 4 walkers a token, p = 0.5, here 9 terms."""
    key = jax.random.key(int(rng.integers(1 << 31)))
    return jax.jit(lambda key: sample_walks(graph, 4, 8, key, halting=0.5))(key)


def _walks(num_tokens: int, rng: np.random.Generator) -> Example:
    graph, edges, points = _streets(num_tokens, rng)
    modulation = exponential(9, time=2.0).modulation.astype(np.float32)
    rows = walk_rows(sampled_walks(graph, rng), modulation)
    return Example(WalkMask(rows, rows), edges, points)


def neighbor_walks(num_tokens: int, rng: np.random.Generator) -> tuple[Walks, Edges, Points]:
    """Return all walks of at most three hops to three neighbours, as in the Interlacer."""
    graph, edges, points = _neighbors(num_tokens, rng)
    return merged(exact_walks(graph, 3)), edges, points


def _one_sided_walks(num_tokens: int, rng: np.random.Generator) -> Example:
    walks, *drawing = neighbor_walks(num_tokens, rng)
    rows = walk_rows(walks, np.exp(-0.5 * np.arange(4, dtype=np.float32)))
    return Example(SparseMask(rows), *drawing)


def _visits(num_tokens: int, rng: np.random.Generator) -> Example:
    graph, edges, points = _streets(num_tokens, rng)
    walks = sampled_walks(transition_graph(graph, 0.5), rng)
    return Example(rwgnk_mask(merged(walks), jnp.float32(0.8)), edges, points)


KINDS: dict[str, Kind] = {
    "padding": Kind("order", "N", _padding),
    "causal": Kind("order", "N", _causal),
    "segments": Kind("order", "N", _segments),
    "low rank": Kind("none", "N", _low_rank),
    "relative position": Kind("order", "N log N", _relative_position),
    "grid distance": Kind("grid", "N log N", _grid_distance),
    "class token and grid": Kind("grid", "N log N", _class_token),
    "frames of grids": Kind("order and grid", "N log N", _frames),
    "exponential on a forest": Kind("forest", "N", _exponential_forest),
    "distance in a tree": Kind("tree", "N log^2 N", _tree_distance),
    "hypercube heat": Kind("hypercube", "N log N", _hypercube),
    "graph diffusion": Kind("graph", "N", _diffusion),
    "power series": Kind("graph", "N", _power_series),
    "GRF symmetric": Kind("graph", "N", _walks),
    "GRF one-sided": Kind("graph", "N", _one_sided_walks),
    "RWGNK": Kind("graph", "N", _visits),
}
"""Every kind of mask by name. "Order" is that of a sequence."""
