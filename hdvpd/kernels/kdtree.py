"""A k-d tree of points in space, compiled: exact nearest neighbours, the lesser row first in ties.

Halves are split at the median of their widest axis until a leaf is left, so that the nodes need no
links: the root is 1, the children of i are 2 i and 2 i + 1, and leaves follow all inner nodes.
A leaf's coordinates lie axis by axis, for vector instructions.
"""

from typing import NamedTuple, no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import compiled_njit, exact_parallel_njit
from hdvpd.kernels.lanes import LANES, at_most, lowest_bit

# More make deeper trees dearer than longer leaves, fewer the other way round.
_LEAF = LANES
# Queries that follow each other and share their working memory.
_BLOCK = 128
# At so many blocks threads take turns.
_TURNS = 16
# Keys of a vector.
_KEYS = 8
_LEAST = np.iinfo(np.int64).min
_NO_ROW = 0x7FFFFFFF
# More than rounding takes from a sum of two distances, and from the squares of the smallest [m].
_ROUNDING, _UNDERFLOW = np.float32(1.00001), np.float32(1e-18)


class Tree(NamedTuple):
    """Points in leaves, and boxes around them.

    Attributes:
      boxes: (b, 12) least x, y, z, then greatest, of the first and then the second child of a node;
        of the leaf itself where it is the root.
      points: (l, 3, s) coordinates [m], NaN in empty slots.
      rows: (l, s) which point is in a slot.
    """

    boxes: np.ndarray
    points: np.ndarray
    rows: np.ndarray


@compiled_njit()
@no_type_check
def build(points: np.ndarray, rows: np.ndarray) -> Tree:
    """Return the tree of some rows of (n, 3) points, which are finite float32."""
    num_leaves = 1
    while len(rows) > _LEAF * num_leaves:
        num_leaves *= 2
    order = rows.astype(np.int32)
    width = 1  # nodes of the level that is halved next
    while width < num_leaves:
        for part in range(width):
            start, end = len(rows) * part // width, len(rows) * (part + 1) // width
            middle = len(rows) * (2 * part + 1) // (2 * width)
            _halve(points, order[start:end], middle - start)
        width *= 2
    leaves = np.full((num_leaves, 3, _LEAF), np.nan, np.float32)
    leaf_rows = np.zeros((num_leaves, _LEAF), np.int32)
    extents = np.empty((2 * num_leaves, 6), np.float32)
    extents[:, :3], extents[:, 3:] = np.inf, -np.inf
    for leaf in range(num_leaves):
        start, end = len(rows) * leaf // num_leaves, len(rows) * (leaf + 1) // num_leaves
        extent = extents[num_leaves + leaf]
        for slot in range(end - start):
            leaf_rows[leaf, slot] = order[start + slot]
            for axis in range(3):
                place = points[order[start + slot], axis]
                leaves[leaf, axis, slot] = place
                extent[axis] = min(extent[axis], place)
                extent[3 + axis] = max(extent[3 + axis], place)
    for node in range(num_leaves - 1, 0, -1):
        first, second = extents[2 * node], extents[2 * node + 1]
        for axis in range(3):
            extents[node, axis] = min(first[axis], second[axis])
            extents[node, 3 + axis] = max(first[3 + axis], second[3 + axis])
    return Tree(extents.reshape(num_leaves, 12), leaves, leaf_rows)


@compiled_njit()
@no_type_check
def _halve(points: np.ndarray, order: np.ndarray, middle: int) -> None:
    """Put the rows of the lesser half along the widest axis first, in `order`, `middle` of them."""
    widest, axis, least = np.float32(-1), 0, np.float32(0)
    for candidate in range(3):
        low, high = np.float32(np.inf), np.float32(-np.inf)
        for row in order:
            low, high = min(low, points[row, candidate]), max(high, points[row, candidate])
        if high - low > widest:
            widest, axis, least = high - low, candidate, low
    places = np.empty(len(order), np.float32)
    for number in range(len(order)):
        places[number] = points[order[number], axis] - least
    bits = places.view(np.int32)  # as they count from the least, in the order of the places
    keys = np.empty(len(order), np.int64)  # then by row: all are different
    for number in range(len(order)):
        keys[number] = np.int64(bits[number]) << 32 | np.int64(order[number])
    # Quickselect.
    low, high = 0, len(keys) - 1
    while low < high:
        center = (low + high) // 2
        pivot, keys[center] = keys[center], keys[high]
        split = low
        for number in range(low, high):
            key = keys[number]
            keys[number], keys[split] = keys[split], key
            split += 1 if key < pivot else 0
        keys[high], keys[split] = keys[split], pivot
        if middle <= split:
            high = split - 1
        if middle >= split:
            low = split + 1
    for number in range(len(order)):
        order[number] = np.int32(keys[number] & 0x7FFFFFFF)


@compiled_njit(inline="always")
@no_type_check
def _outside(
    boxes: np.ndarray, node: int, child: int, x: np.float32, y: np.float32, z: np.float32
) -> np.float32:
    """Return the squared distance of a place to the box of a node's child, which begins there."""
    inside = np.float32(0)
    dx = max(max(boxes[node, child] - x, x - boxes[node, child + 3]), inside)
    dy = max(max(boxes[node, child + 1] - y, y - boxes[node, child + 4]), inside)
    dz = max(max(boxes[node, child + 2] - z, z - boxes[node, child + 5]), inside)
    return dx * dx + dy * dy + dz * dz


@compiled_njit(inline="always")
@no_type_check
def _find(
    boxes: np.ndarray,
    points: np.ndarray,
    rows: np.ndarray,
    x: np.float32,
    y: np.float32,
    z: np.float32,
    best: np.ndarray,
    squared: np.ndarray,
    bits: np.ndarray,
    waiting: np.ndarray,
    outside: np.ndarray,
) -> None:
    """Replace keys of `best`, in order, by those of points that are nearer to (x, y, z).

    A key is the bits of a squared distance, then the row: as numbers keys are as their distances,
    and all are different. A box is skipped only if all in it is farther than what was found, also
    after rounding: its distance is computed as a point's is, step by step from nothing greater.

    The last four are working memory: (_LEAF + 1,) squared distances and their bits, where the last
    place makes a number of the bits in a key; the nodes that are still to be visited, and the
    squared distances of their boxes.
    """
    bits[_LEAF] = best[0] >> 32
    bound = squared[_LEAF]
    node, distance, num_waiting = 1, np.float32(0), 0
    while True:
        while node < len(rows) and distance <= bound:
            first, second = _outside(boxes, node, 0, x, y, z), _outside(boxes, node, 6, x, y, z)
            node *= 2
            other = node + 1
            if second < first:
                node, other, first, second = other, node, second, first
            distance = first
            waiting[num_waiting], outside[num_waiting] = other, second
            num_waiting += 1 if second <= bound else 0
        if distance <= bound:
            leaf = node - len(rows)
            for slot in range(_LEAF):
                dx, dy = points[leaf, 0, slot] - x, points[leaf, 1, slot] - y
                dz = points[leaf, 2, slot] - z
                squared[slot] = dx * dx + dy * dy + dz * dz
            near = at_most(squared, bound)
            while near:
                place = np.int64(lowest_bit(near))
                near = np.uint32(near & (near - np.uint32(1)))
                key = np.int64(bits[place]) << 32 | np.int64(rows[leaf, place])
                if key < best[0]:
                    _insert(best, key)
                    bits[_LEAF] = best[0] >> 32
                    bound = squared[_LEAF]
        if num_waiting == 0:
            return
        num_waiting -= 1
        node, distance = waiting[num_waiting], outside[num_waiting]


@compiled_njit(inline="always")
@no_type_check
def _insert(best: np.ndarray, key: int) -> None:
    """Put a key in its place and drop the first one, the greatest.

    Written so that no step waits for another: key i becomes the median of itself, its successor
    and the new key. The last of `best` is less than any key.
    """
    for block in range(0, len(best) - 1, _KEYS):
        for place in range(_KEYS):
            lesser, after = best[block + place], best[block + place + 1]
            lesser = lesser if lesser < key else key
            best[block + place] = lesser if lesser > after else after


@compiled_njit(inline="always")
@no_type_check
def _farthest(squared_m: np.float32, number: np.ndarray, bits: np.ndarray) -> np.int64:
    """Return the greatest key of a squared distance; the last two are working memory."""
    number[0] = squared_m
    return np.int64(bits[0]) << 32 | np.int64(_NO_ROW)


@exact_parallel_njit()
@no_type_check
def nearest(
    tree: Tree, queries: np.ndarray, reach: np.ndarray, indices: np.ndarray, distances: np.ndarray
) -> None:
    """Fill in each query's nearest points, and 0 and infinity where there are too few.

    As many points as are asked for lie as near to a query as to the one before, but for the way
    between the two: with that bound it begins.

    `reach` holds the greatest distance of a point, and that of a query's nearest one, beyond which
    the query finds nothing, as one that is no number does.
    """
    boxes, points, rows = tree
    num_queries, num_found = indices.shape
    # What follows each other costs alike, as the rays of a row of pixels do: a thread's blocks are
    # from all over.
    rounds = -(-num_queries // (_BLOCK * _TURNS))
    for number in prange(rounds * _TURNS):
        block = number % rounds * _TURNS + number // rounds
        # The greatest key first. What fills the last vector, and ends it, is less than any key.
        best = np.empty(-(-num_found // _KEYS) * _KEYS + 1, np.int64)
        best[num_found:] = _LEAST
        squared = np.empty(_LEAF + 1, np.float32)
        waiting, outside = np.empty(64, np.int64), np.empty(64, np.float32)
        bits = squared.view(np.int32)
        # Beyond the reach by more than rounding: distances themselves are compared below.
        beyond = _farthest(reach[0] * reach[0] * _ROUNDING, squared, bits)
        before = np.zeros(3, np.float32)
        farthest = np.float32(np.inf)
        for query in range(block * _BLOCK, min(num_queries, (block + 1) * _BLOCK)):
            x, y, z = queries[query, 0], queries[query, 1], queries[query, 2]
            best[:num_found] = beyond
            if np.isfinite(x) and np.isfinite(y) and np.isfinite(z):
                dx, dy, dz = x - before[0], y - before[1], z - before[2]
                bound = farthest + np.sqrt(dx * dx + dy * dy + dz * dz) + _UNDERFLOW
                bound = _farthest(bound * bound * _ROUNDING, squared, bits)
                best[:num_found] = min(bound, beyond)
                _find(boxes, points, rows, x, y, z, best, squared, bits, waiting, outside)
                before[0], before[1], before[2] = x, y, z
                bits[0] = best[0] >> 32
                farthest = np.sqrt(squared[0])
            limit = reach[0]
            for place in range(num_found):
                key = best[num_found - 1 - place]
                bits[0] = key >> 32
                distance = np.sqrt(squared[0])
                if place == 0 and distance > reach[1]:
                    limit = np.float32(-1)
                if key & _NO_ROW != _NO_ROW and distance <= limit and distance < np.inf:
                    indices[query, place] = key & _NO_ROW
                    distances[query, place] = distance
                else:
                    indices[query, place] = 0
                    distances[query, place] = np.inf
