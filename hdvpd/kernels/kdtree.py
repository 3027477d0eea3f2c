"""A k-d tree of points in space, compiled.

Halves are split at the median of their widest axis until a leaf is left; then what is halved four
times is one node, whose sixteen children are looked at at once: a level waits for the one above.
Nodes need no links: the root is 0, all others follow level by level, inner nodes before leaves.
Coordinates of a leaf's points, and of a node's children's boxes, lie axis by axis, for vectors.
"""

from typing import NamedTuple, no_type_check

import jax
import numpy as np

from hdvpd.kernels.compiled import compiled_njit

# More make shorter leaves dearer than fewer nodes, fewer the other way round.
LEAF = 32
"""Slots of a leaf."""
WIDTH = 16
"""Children of a node."""


class Tree(NamedTuple):
    """Points in leaves, and boxes around them.

    Attributes:
      boxes: (b, 6, c) least x, y, z, then greatest, of a node's children; NaN where there are none.
      points: (l, 3, s) coordinates [m], NaN in empty slots.
      rows: (l, s) which point is in a slot.
    """

    boxes: np.ndarray
    points: np.ndarray
    rows: np.ndarray


def arrays(num_points: int) -> list[jax.ShapeDtypeStruct]:
    """Return shapes and dtypes of what `build` fills in for so many points."""
    num_leaves = leaves_for(num_points)
    num_inner = nodes_above(num_leaves)
    return [
        jax.ShapeDtypeStruct((num_inner, 6, WIDTH), np.float32),
        jax.ShapeDtypeStruct((num_leaves, 3, LEAF), np.float32),
        jax.ShapeDtypeStruct((num_leaves, LEAF), np.int32),
        jax.ShapeDtypeStruct((1,), np.int32),
    ]


@compiled_njit()
@no_type_check
def leaves_for(num_points: int) -> int:
    """Return how many leaves so many points have."""
    num_leaves = 1
    while num_points > LEAF * num_leaves:
        num_leaves *= 2
    return num_leaves


@compiled_njit()
@no_type_check
def nodes_above(num_leaves: int) -> int:
    """Return how many nodes there are above so many leaves."""
    level = (num_leaves + WIDTH - 1) // WIDTH
    num_inner = 1
    while level > 1:
        num_inner += level
        level = (level + WIDTH - 1) // WIDTH
    return num_inner


@compiled_njit()
@no_type_check
def build(
    points: np.ndarray,
    mask: np.ndarray,
    boxes: np.ndarray,
    leaves: np.ndarray,
    leaf_rows: np.ndarray,
    count: np.ndarray,
) -> None:
    """Fill in a tree of points; see `Tree`, and `arrays` for how much there may be of it.

    Args:
      points: (n, 3) [m]; those that are in the tree are finite.
      mask: (n,) which are.
      boxes: get the children of nodes.
      leaves: get the points of leaves.
      leaf_rows: get their rows.
      count: (1,) gets how many there are.
    """
    order, num_points = np.empty(len(mask), np.int32), 0
    for row in range(len(mask)):
        if mask[row]:
            order[num_points] = row
            num_points += 1
    count[0], num_leaves = num_points, leaves_for(num_points)
    places, keys = np.empty(num_points, np.float32), np.empty(num_points, np.int64)
    width = 1  # nodes of the level that is halved next
    while width < num_leaves:
        for part in range(width):
            start, end = num_points * part // width, num_points * (part + 1) // width
            middle = num_points * (2 * part + 1) // (2 * width)
            here = slice(start, end)
            _halve(points, order[here], middle - start, places[here], keys[here])
        width *= 2
    extents = np.empty((num_leaves, 6), np.float32)
    for leaf in range(num_leaves):
        start, end = num_points * leaf // num_leaves, num_points * (leaf + 1) // num_leaves
        extent = extents[leaf]
        extent[:3], extent[3:] = np.inf, -np.inf
        for slot in range(LEAF):
            here = start + slot < end
            row = order[start + slot] if here else np.int32(0)
            leaf_rows[leaf, slot] = row
            for axis in range(3):
                place = points[row, axis] if here else np.float32(np.nan)
                leaves[leaf, axis, slot] = place
                if here:
                    extent[axis] = min(extent[axis], place)
                    extent[3 + axis] = max(extent[3 + axis], place)
    _fill_boxes(extents, boxes[: nodes_above(num_leaves)])


@compiled_njit(inline="always")
@no_type_check
def first_child(num_inner: int, num_leaves: int) -> int:
    """Return the number of node 0's first child; the first one of node i has 16 i more.

    It is less than 1 where the root has fewer children than others have: these are its last ones.
    """
    return num_leaves - (WIDTH - 1) * num_inner


@compiled_njit()
@no_type_check
def _fill_boxes(extents: np.ndarray, boxes: np.ndarray) -> None:
    """Fill in the boxes of the inner nodes from the extents of the leaves."""
    num_leaves, num_inner = len(extents), len(boxes)
    first = first_child(num_inner, num_leaves)
    for node in range(num_inner):
        for side in range(6):
            for child in range(WIDTH):
                boxes[node, side, child] = np.nan
    for node in range(num_inner + num_leaves - 1, 0, -1):
        parent, child = (node - first) // WIDTH, (node - first) % WIDTH
        for side in range(6):
            if node >= num_inner:
                boxes[parent, side, child] = extents[node - num_inner, side]
            else:
                end = np.float32(np.inf if side < 3 else -np.inf)
                for other in boxes[node, side]:  # NaN is neither less nor greater
                    end = other if (other < end if side < 3 else other > end) else end
                boxes[parent, side, child] = end


@compiled_njit()
@no_type_check
def _halve(points, order, middle, places, keys):
    """Put the rows of the lesser half along the widest axis first, in `order`, `middle` of them.

    The last two are working memory, as long as `order`.
    """
    widest, axis, least = np.float32(-1), 0, np.float32(0)
    for candidate in range(3):
        low, high = np.float32(np.inf), np.float32(-np.inf)
        for row in order:
            low, high = min(low, points[row, candidate]), max(high, points[row, candidate])
        if high - low > widest:
            widest, axis, least = high - low, candidate, low
    for number in range(len(order)):
        places[number] = points[order[number], axis] - least
    bits = places.view(np.int32)  # as they count from the least, in the order of the places
    for number in range(len(order)):  # then by row: all are different
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
