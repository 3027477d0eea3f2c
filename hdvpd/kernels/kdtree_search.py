"""Exact nearest neighbours by a k-d tree, compiled; the lesser row first in ties."""

from typing import Any, NamedTuple, no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import compiled_njit, exact_parallel_njit
from hdvpd.kernels.kdtree import LEAF, WIDTH, Tree, first_child, leaves_for, nodes_above
from hdvpd.kernels.keys import (
    GREATEST,
    LEAST,
    NO_NUMBER,
    farthest,
    filled,
    greater,
    greatest,
    inserted,
    short,
    square_of,
    store,
    tell,
    with_row,
)
from hdvpd.kernels.lanes import lowest_bit
from hdvpd.kernels.vectors import at_most, everywhere, larger, load, squared_length

# Neighbours that are found at once, few or many.
_FEW, _MANY = 8, 16
# Queries that follow each other: what is known of one helps with the next.
_BLOCK = 128
# Blocks that share their working memory, if there are more than a few times as many; they are from
# all over.
_SHARING, _TURNS = 8, 16
# Levels of 2^31 points and one above the root, and what is kept for each: a list and what ends it.
_LEVELS, _KEPT = 9, WIDTH + 1
# More than rounding takes from a sum of two distances, and from the squares of the smallest [m].
_ROUNDING, _UNDERFLOW = np.float32(1.00001), np.float32(1e-18)


class _Memory(NamedTuple):
    """Working memory of a search.

    Attributes:
      points: keys of a leaf's points, out of which some are taken.
      children: short keys of a node's children, likewise.
      waiting: of each level a list of the children that are still to be visited, and what ends it.
      places: where in `waiting` a level goes on, and the number of its first child.
      told: the last key of each query of a block.
    """

    points: np.ndarray
    children: np.ndarray
    waiting: np.ndarray
    places: np.ndarray
    told: np.ndarray


@compiled_njit(inline="always")
@no_type_check
def _beside(boxes: np.ndarray, row: int, place: np.float32) -> Any:
    """Return how far a place is beside boxes, whose ends along an axis are there and 3 below."""
    low, high = load(boxes, row, 0, WIDTH), load(boxes, row + 3, 0, WIDTH)
    outside = larger(low - place, place - high)
    return larger(everywhere(np.float32(0), WIDTH), outside)  # NaN stays


@compiled_njit(inline="always")
@no_type_check
def _to_boxes(boxes: np.ndarray, node: int, x: np.float32, y: np.float32, z: np.float32) -> Any:
    """Return the squared distances of a place to the boxes of a node's children."""
    row = 6 * node
    dx, dy, dz = _beside(boxes, row, x), _beside(boxes, row + 1, y), _beside(boxes, row + 2, z)
    return squared_length(dx, dy, dz)


@compiled_njit(inline="always")
@no_type_check
def _to_points(points: np.ndarray, leaf: int, x: np.float32, y: np.float32, z: np.float32) -> Any:
    """Return the squared distances of a place to the points of a leaf."""
    row = 3 * leaf
    dx, dy = load(points, row, 0, LEAF) - x, load(points, row + 1, 0, LEAF) - y
    return squared_length(dx, dy, load(points, row + 2, 0, LEAF) - z)


@compiled_njit(inline="always")
@no_type_check
def _with_some(keys: Any, others: Any, chosen: int, memory: np.ndarray) -> Any:
    """Return a list with those of other keys whose bits are set; the last is working memory."""
    store(others, memory, 0)
    while chosen:
        keys = inserted(keys, memory[lowest_bit(chosen)])
        chosen = np.uint32(chosen & (chosen - np.uint32(1)))
    return keys


@compiled_njit(inline="always")
@no_type_check
def _find(
    tree: Tree,
    x: np.float32,
    y: np.float32,
    z: np.float32,
    best: Any,
    limit: int,
    beyond: int,
    memory: _Memory,
) -> Any:
    """Return a list with its keys replaced by those of points that are nearer to (x, y, z).

    The greatest of its keys is `limit`. Points whose keys are not beyond another one are left out.

    Boxes are visited nearest first, and skipped only if all in them is farther than what was found,
    also after rounding: their distance is computed as a point's is, step by step from nothing
    greater.
    """
    boxes, points, rows = tree
    waiting, places = memory.waiting, memory.places
    num_inner = len(boxes) // 6
    of_root = first_child(num_inner, len(rows))
    bound = square_of(limit)
    level, place, first, node = 0, 0, 0, 0
    while True:
        if node < num_inner:
            squares = _to_boxes(boxes, node, x, y, z)
            children, near = filled(np.int32(NO_NUMBER), WIDTH, WIDTH), at_most(squares, bound)
            children = _with_some(children, short(squares), near, memory.children)
            places[level, 0], places[level, 1] = place, first
            level += 1
            place, first = level * _KEPT, of_root + WIDTH * node
            store(children, waiting, place)
        else:
            leaf = node - num_inner
            squares = _to_points(points, leaf, x, y, z)
            found = with_row(squares, rows, leaf)
            near = np.uint32(at_most(squares, bound) & greater(found, beyond))
            best = _with_some(best, found, near, memory.points)
            limit = greatest(best)
            bound = square_of(limit)
        while waiting[place] > (limit >> 32 | WIDTH - 1):
            if level == 0:
                return best
            level -= 1
            place, first = places[level, 0], places[level, 1]
        node = first + (waiting[place] & WIDTH - 1)
        place += 1


@compiled_njit(inline="always")
@no_type_check
def _answer(
    tree: Tree,
    queries: np.ndarray,
    reach: np.ndarray,
    start: int,
    end: int,
    width: int,
    memory: _Memory,
    indices: np.ndarray,
    distances: np.ndarray,
) -> None:
    """Fill in the nearest points of a block of queries: as many as a list holds, then the next."""
    tree = Tree(tree.boxes.reshape(-1, WIDTH), tree.points.reshape(-1, LEAF), tree.rows)
    keys, told = memory.points, memory.told
    for query in range(_BLOCK):
        told[query] = LEAST
    # Beyond the reach by more than rounding: distances themselves are compared when told.
    most = farthest(reach[0] * reach[0] * _ROUNDING)
    num_found = indices.shape[1]
    for column in range(0, num_found, width):
        count = min(width, num_found - column)
        before_x, before_y, before_z = np.float32(0), np.float32(0), np.float32(0)
        radius = np.float32(np.inf)
        for query in range(start, end):
            x, y, z = queries[query, 0], queries[query, 1], queries[query, 2]
            best, limit = filled(most, count, width), reach[0]
            if np.isfinite(x) and np.isfinite(y) and np.isfinite(z):
                dx, dy, dz = x - before_x, y - before_y, z - before_z
                bound = radius + np.sqrt(dx * dx + dy * dy + dz * dz) + _UNDERFLOW
                bound = min(farthest(bound * bound * _ROUNDING), most)
                best, beyond = filled(bound, count, width), told[query - start]
                best = _find(tree, x, y, z, best, bound, beyond, memory)
                before_x, before_y, before_z = x, y, z
                last = greatest(best)
                radius = np.sqrt(square_of(last))
                told[query - start] = last if last & NO_NUMBER != NO_NUMBER else GREATEST
                store(best, keys, 0)
                if column == 0 and np.sqrt(square_of(keys[width - count])) > reach[1]:
                    told[query - start], limit = GREATEST, np.float32(-1)
            tell(best, count, limit, indices, distances, query, column)


@compiled_njit()
@no_type_check
def _answer_few(
    tree: Tree, queries: np.ndarray, reach: np.ndarray, start: int, end: int, memory: _Memory,
    indices: np.ndarray, distances: np.ndarray,
) -> None:  # fmt: skip
    _answer(tree, queries, reach, start, end, _FEW, memory, indices, distances)


@compiled_njit()
@no_type_check
def _answer_many(
    tree: Tree, queries: np.ndarray, reach: np.ndarray, start: int, end: int, memory: _Memory,
    indices: np.ndarray, distances: np.ndarray,
) -> None:  # fmt: skip
    _answer(tree, queries, reach, start, end, _MANY, memory, indices, distances)


@compiled_njit()
@no_type_check
def _memory() -> _Memory:
    return _Memory(
        np.empty(LEAF, np.int64),
        np.empty(WIDTH, np.int32),
        np.full(_LEVELS * _KEPT, NO_NUMBER, np.int32),
        np.empty((_LEVELS, 2), np.int64),
        np.empty(_BLOCK, np.int64),
    )


@exact_parallel_njit()
@no_type_check
def nearest(
    boxes: np.ndarray,
    leaves: np.ndarray,
    leaf_rows: np.ndarray,
    count: np.ndarray,
    queries: np.ndarray,
    reach: np.ndarray,
    indices: np.ndarray,
    distances: np.ndarray,
) -> None:
    """Fill in each query's nearest points, and 0 and infinity where there are too few.

    As many points as are asked for lie as near to a query as to the one before, but for the way
    between the two: with that bound it begins. Of points as near, the lesser row is nearer.

    Args:
      boxes: from `kdtree.build`.
      leaves: likewise.
      leaf_rows: likewise.
      count: likewise.
      queries: (q, 3) [m].
      reach: greatest distance of a point, and that of a query's nearest one, beyond which the query
        finds nothing, as one that is no number does.
      indices: (q, k) get rows of points.
      distances: (q, k) [m].
    """
    if not indices.size:
        return
    num_leaves = leaves_for(count[0])
    num_inner = nodes_above(num_leaves)
    tree = Tree(boxes[:num_inner], leaves[:num_leaves], leaf_rows[:num_leaves])
    num_queries = len(queries)
    blocks = -(-num_queries // _BLOCK)
    turns = max(_TURNS, blocks // _SHARING)
    # What follows each other costs alike, as the rays of a row of pixels do: a thread's blocks are
    # from all over.
    for turn in prange(turns):
        memory = _memory()
        for block in range(turn, blocks, turns):
            start, end = block * _BLOCK, min(num_queries, (block + 1) * _BLOCK)
            if indices.shape[1] <= _FEW:
                _answer_few(tree, queries, reach, start, end, memory, indices, distances)
            else:
                _answer_many(tree, queries, reach, start, end, memory, indices, distances)
