"""Compiled host form of the nearest points of two clouds to each other.

Points that lie near each other make blocks, in the order of a curve through all of space. A block
of one cloud is compared with those of the other, nearest box first, until none is near enough: with
one in seven if the clouds are 2,048 points of surfaces. Each point's answer is its own, whatever
the number of threads.
"""

from typing import Any, NamedTuple, no_type_check

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from hdvpd.kernels.compiled import compiled_njit, exact_parallel_njit, fast_njit
from hdvpd.kernels.lanes import everywhere
from hdvpd.kernels.z_order import sort_rows

_AXES = 6
_LANES = 16
"""Points of a block."""
_AT_ONCE = 8
"""Blocks that share their working memory."""
_CELLS = 32
_NO_ROW, _DONE = np.iinfo(np.int32).max, np.iinfo(np.int32).max
_ROUNDING = np.float32(0.99999)
"""Less than rounding leaves of a sum of squares."""
_SPREAD = np.array(
    [sum((cell >> bit & 1) << (bit * _AXES) for bit in range(5)) for cell in range(_CELLS)],
    np.uint32,
)
"""The bits of a cell's number along an axis, with room for those of the other axes."""


class _Blocks(NamedTuple):
    """The real points of a cloud; the last block is filled up with its last point.

    Attributes:
      rows: (b, _LANES) which point is in a slot.
      points: (b, _AXES, _LANES) coordinates.
      boxes: (2, _AXES, b) least and greatest coordinates.
    """

    rows: np.ndarray
    points: np.ndarray
    boxes: np.ndarray


@compiled_njit()
@no_type_check
def find(
    first: np.ndarray,
    second: np.ndarray,
    first_mask: np.ndarray,
    second_mask: np.ndarray,
    theirs: np.ndarray,
    ours: np.ndarray,
) -> None:
    """Fill in the rows that `counterparts` returns.

    Args:
      first: (n, _AXES) points.
      second: (m, _AXES).
      first_mask: (n,).
      second_mask: (m,).
      theirs: (n,) rows of the second cloud.
      ours: (m,) rows of the first.
    """
    one, other = _blocks(first, first_mask), _blocks(second, second_mask)
    theirs[:] = 0
    ours[:] = 0
    if len(one.rows) and len(other.rows):
        _search(one, other, theirs, ours)


@compiled_njit()
@no_type_check
def _blocks(points: np.ndarray, mask: np.ndarray) -> _Blocks:
    """Return blocks of those (n, _AXES) points that are real and finite."""
    real = np.empty(len(mask), np.int32)
    count = 0
    for row in range(len(mask)):
        finite = mask[row]
        for axis in range(_AXES):
            finite &= np.isfinite(points[row, axis])
        real[count] = row
        count += 1 if finite else 0
    order = np.empty(count, np.int32)
    sort_rows(_along_curve(points, real[:count]), order)
    number = -(-count // _LANES)
    rows = np.empty((number, _LANES), np.int32)
    places = np.empty((number, _AXES, _LANES), np.float32)
    boxes = np.empty((2, _AXES, number), np.float32)
    boxes[0], boxes[1] = np.inf, -np.inf
    for block in range(number):
        for slot in range(_LANES):
            row = real[order[min(block * _LANES + slot, count - 1)]]
            rows[block, slot] = row
            for axis in range(_AXES):
                place = points[row, axis]
                places[block, axis, slot] = place
                boxes[0, axis, block] = min(boxes[0, axis, block], place)
                boxes[1, axis, block] = max(boxes[1, axis, block], place)
    return _Blocks(rows, places, boxes)


@compiled_njit()
@no_type_check
def _along_curve(points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return where rows of (n, _AXES) points lie along Morton's curve, in cells of a box."""
    least = np.full(_AXES, np.inf, np.float32)
    greatest = np.full(_AXES, -np.inf, np.float32)
    for row in rows:
        for axis in range(_AXES):
            least[axis] = min(least[axis], points[row, axis])
            greatest[axis] = max(greatest[axis], points[row, axis])
    last = np.float32(_CELLS - 1)
    scale = last / (greatest - least).max() if len(rows) else last
    keys = np.zeros(len(rows), np.uint32)
    for number in range(len(rows)):
        for axis in range(_AXES):
            cell = (points[rows[number], axis] - least[axis]) * scale
            # One that is no number, in a box without extent, is not less either.
            spread = _SPREAD[np.int32(cell) if cell < last else _CELLS - 1]
            keys[number] |= spread << np.uint32(axis)
    return keys


@exact_parallel_njit()
@no_type_check
def _search(one: _Blocks, other: _Blocks, theirs: np.ndarray, ours: np.ndarray) -> None:
    """Fill in the rows of the nearest points, both ways, for all points in blocks."""
    parts = -(-len(one.rows) // _AT_ONCE)
    for part in prange(parts - (-len(other.rows) // _AT_ONCE)):
        if part < parts:
            _search_part(one, other, part, theirs)
        else:
            _search_part(other, one, part - parts, ours)


@compiled_njit()
@no_type_check
def _search_part(blocks, others, part, found):
    outside = np.empty(len(others.rows), np.float32)
    squared, nearest = np.empty(_LANES, np.float32), np.empty(_LANES, np.int32)
    for block in range(part * _AT_ONCE, min((part + 1) * _AT_ONCE, len(blocks.rows))):
        _measure(blocks.boxes, block, others.boxes, outside)
        _visit(blocks.points, block, others, outside, squared, nearest)
        for slot in range(_LANES):
            found[blocks.rows[block, slot]] = nearest[slot]


@fast_njit()
@no_type_check
def _measure(boxes, block, others, outside):
    """Fill in no more than the squared distances of a block's box to others."""
    for other in range(outside.shape[0]):
        outside[other] = 0
    for axis in range(_AXES):
        least, greatest = boxes[0, axis, block], boxes[1, axis, block]
        for other in range(outside.shape[0]):
            gap = max(others[0, axis, other] - greatest, least - others[1, axis, other])
            gap = max(gap, np.float32(0))
            outside[other] += gap * gap
    for other in range(outside.shape[0]):
        outside[other] *= _ROUNDING


@compiled_njit()
@no_type_check
def _visit(points, block, others, outside, squared, nearest):
    """Fill in the nearest points of a block's points; `outside` is of no use afterwards.

    Squared distances are compared as whole numbers, of which compilers find the least in vectors:
    their bits are in the same order.
    """
    squared[:] = np.inf
    nearest[:] = _NO_ROW
    bounds, farthest = outside.view(np.int32), squared.view(np.int32)
    while True:
        bound = _least(bounds)
        if bound > _greatest(farthest) or bound == _DONE:
            return
        other = 0
        while bounds[other] != bound:
            other += 1
        bounds[other] = _DONE
        _compare(points, block, others.points, others.rows, other, squared, nearest)


@fast_njit()
@no_type_check
def _least(numbers):
    least = numbers[0]
    for place in range(numbers.shape[0]):
        least = min(least, numbers[place])
    return least


@fast_njit()
@no_type_check
def _greatest(numbers):
    greatest = numbers[0]
    for place in range(numbers.shape[0]):
        greatest = max(greatest, numbers[place])
    return greatest


@intrinsic
def _compare(
    typing: Any, points: Any, block: Any, others: Any, rows: Any, other: Any, squared: Any,
    nearest: Any,
) -> Any:  # fmt: skip
    """Replace squared distances and rows of a block's points by those of nearer ones in another.

    Both stay in registers: numba's loops would write and read them for every slot.
    """
    del typing, block, other

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        points, block, others, rows, other, squared, nearest = range(7)
        number, row, whole = ir.FloatType(), ir.IntType(32), ir.IntType(64)

        def place(argument: int, *indices: Any) -> Any:
            kind = signature.args[argument]
            array = context.make_array(kind)(context, builder, arguments[argument])
            return cgutils.get_item_pointer(context, builder, kind, array, list(indices))

        def lanes(argument: int, kind: Any, *indices: Any) -> Any:
            pointer = ir.VectorType(kind, _LANES).as_pointer()
            return builder.bitcast(place(argument, *indices, whole(0)), pointer)

        def spread(argument: int, *indices: Any) -> Any:
            return everywhere(builder, builder.load(place(argument, *indices)), _LANES)

        held = [lanes(squared, number), lanes(nearest, row)]
        best = [cgutils.alloca_once_value(builder, builder.load(x, align=4)) for x in held]
        ours = [
            builder.load(lanes(points, number, arguments[block], whole(axis)), align=4)
            for axis in range(_AXES)
        ]
        with cgutils.for_range(builder, whole(_LANES)) as loop:
            total = ir.VectorType(number, _LANES)(None)
            for axis in range(_AXES):
                theirs = spread(others, arguments[other], whole(axis), loop.index)
                apart = builder.fsub(ours[axis], theirs)
                square = builder.fmul(apart, apart, flags=("contract",))
                total = builder.fadd(total, square, flags=("contract",))
            known = [builder.load(x) for x in best]
            found = total, spread(rows, arguments[other], loop.index)
            lesser = builder.icmp_signed("<", found[1], known[1])
            first = builder.and_(builder.fcmp_ordered("==", found[0], known[0]), lesser)
            nearer = builder.or_(builder.fcmp_ordered("<", found[0], known[0]), first)
            for new, old, x in zip(found, known, best, strict=True):
                builder.store(builder.select(nearer, new, old), x)
        for x, pointer in zip(best, held, strict=True):
            builder.store(builder.load(x), pointer, align=4)
        return context.get_dummy_value()

    index = types.int64
    return types.none(points, index, others, rows, index, squared, nearest), generate
