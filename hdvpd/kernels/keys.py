"""Short ordered lists of compiled host code, which stay in registers.

A key is the bits of a squared distance, then a number of 31 bits: keys are in the order of the
distances, and where these are the same, in that of the numbers. A short key is of 32 bits, the last
of which are the number. A list in memory is waited for: what was written of it last is read next.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from hdvpd.kernels import lanes

LEAST, GREATEST = -(2**63), 2**63 - 1
"""Less and greater than any key."""
NO_NUMBER = 0x7FFFFFFF
"""Stands in keys of no point; as a short key greater than any."""

_KEY, _WORD, _NUMBER = ir.IntType(64), ir.IntType(32), ir.FloatType()


class _Keys(types.Type):
    def __init__(self, width: int, of: Any = types.int64):
        self.width, self.of = width, of
        super().__init__(name=f"keys of {of} x {width}")


@register_model(_Keys)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, ir.VectorType(ir.IntType(kind.of.bitwidth), kind.width))


@intrinsic
def farthest(typing: Any, square: Any) -> Any:
    """Return the greatest key of a squared distance."""
    del typing, square

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        bits = builder.zext(builder.bitcast(arguments[0], _WORD), _KEY)
        high = builder.shl(bits, ir.Constant(_KEY, 32))
        return builder.or_(high, ir.Constant(_KEY, NO_NUMBER))

    return types.int64(types.float32), generate


@intrinsic
def square_of(typing: Any, key: Any) -> Any:
    """Return the squared distance of a key."""
    del typing, key

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        high = builder.lshr(arguments[0], ir.Constant(_KEY, 32))
        return builder.bitcast(builder.trunc(high, _WORD), _NUMBER)

    return types.float32(types.int64), generate


@intrinsic
def with_row(typing: Any, squares: Any, rows: Any, row: Any) -> Any:
    """Return keys of squared distances and the int32 that a row begins with."""
    del typing, row

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        squares, *where = arguments
        numbers = ir.VectorType(_WORD, signature.return_type.width)
        place = _place(context, builder, numbers, signature.args[1], *where, ir.Constant(_KEY, 0))
        return _keys(builder, squares, builder.load(place, align=4))

    return _Keys(squares.width)(squares, rows, types.int64), generate


@intrinsic
def short(typing: Any, squares: Any) -> Any:
    """Return short keys of squared distances: the number of each is its place.

    For that they lose some of their last bits.
    """
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        width = signature.return_type.width
        numbers = _counted(width)
        bits = builder.bitcast(arguments[0], numbers.type)
        kept = ir.Constant(_WORD, -width)
        return builder.or_(builder.and_(bits, lanes.everywhere(builder, kept, width)), numbers)

    return _Keys(squares.width, types.int32)(squares), generate


@intrinsic
def greater(typing: Any, keys: Any, key: Any) -> Any:
    """Return a bit for each key of a vector: whether it is greater than another."""
    del typing, key

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        keys, key = arguments
        width = signature.args[0].width
        found = builder.icmp_signed(">", keys, lanes.everywhere(builder, key, width))
        return lanes.bits_of(builder, found)

    return types.uint32(keys, types.int64), generate


@intrinsic
def store(typing: Any, keys: Any, array: Any, place: Any) -> Any:
    """Set an array's numbers from a place on."""
    del typing, place

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys, *where = arguments
        builder.store(keys, _place(context, builder, keys.type, signature.args[1], *where), align=8)
        return context.get_dummy_value()

    return types.none(keys, array, types.int64), generate


@intrinsic(prefer_literal=True)
def filled(typing: Any, key: Any, count: Any, width: Any) -> Any:
    """Return a list with room for `width` keys that holds one so many times."""
    del typing, count

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        key, count, _ = arguments
        width = signature.return_type.width
        keys = lanes.everywhere(builder, key, width)
        return builder.select(_last(builder, count, width), keys, _nothing(builder, keys.type))

    of = types.int32 if key == types.int32 else types.int64
    return _Keys(width.literal_value, of)(of, types.int64, width), generate


@intrinsic
def inserted(typing: Any, keys: Any, key: Any) -> Any:
    """Return a list with a key in its place and without the greatest one, which is the last.

    Each becomes the median of itself, the one before it and the new one.
    """
    del typing, key

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        width = signature.return_type.width
        keys, key = arguments[0], lanes.everywhere(builder, arguments[1], width)
        shift = ir.Constant(_counted(width).type, [width, *range(width - 1)])
        before = builder.shuffle_vector(keys, _nothing(builder, keys.type), shift)
        lesser = builder.select(builder.icmp_signed("<", keys, key), keys, key)
        return builder.select(builder.icmp_signed(">", lesser, before), lesser, before)

    return keys(keys, keys.of), generate


@intrinsic
def greatest(typing: Any, keys: Any) -> Any:
    """Return the last key of a list."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        last = ir.Constant(_WORD, signature.args[0].width - 1)
        return builder.extract_element(arguments[0], last)

    return types.int64(keys), generate


@intrinsic
def tell(
    typing: Any, keys: Any, count: Any, limit: Any, numbers: Any, distances: Any, row: Any,
    column: Any,
) -> Any:  # fmt: skip
    """Set so many of a row's numbers and distances from a column on to those of a list.

    A key beyond a limit, without a distance or of no point gives 0 and infinity.
    """
    del typing, count, limit, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        keys, count, limit, *arrays, row, column = arguments
        width = signature.args[0].width
        there = _last(builder, count, width)
        column = builder.add(column, builder.sub(count, ir.Constant(_KEY, width)))
        told = _told(builder, keys, lanes.everywhere(builder, limit, width))
        for kind, array, values, name in zip(
            signature.args[3:5], arrays, told, ("i32", "f32"), strict=True
        ):
            place = _place(context, builder, values.type, kind, array, row, column)
            kinds = ir.VoidType(), (values.type, place.type, _WORD, there.type)
            name = f"llvm.masked.store.v{width}{name}.p0"
            write = cgutils.get_or_insert_function(builder.module, ir.FunctionType(*kinds), name)
            builder.call(write, (values, place, ir.Constant(_WORD, 4), there))
        return context.get_dummy_value()

    whole = types.int64
    arguments = keys, whole, types.float32, numbers, distances, whole, whole
    return types.none(*arguments), generate


def _told(builder: Any, keys: Any, limit: Any) -> tuple[Any, Any]:
    """Generate code for the numbers and the distances of keys within a limit."""
    width = limit.type.count
    none = lanes.everywhere(builder, ir.Constant(_WORD, NO_NUMBER), width)
    numbers = builder.and_(builder.trunc(keys, none.type), none)
    high = builder.lshr(keys, lanes.everywhere(builder, ir.Constant(_KEY, 32), width))
    squares = builder.bitcast(builder.trunc(high, none.type), limit.type)
    root = ir.FunctionType(limit.type, [limit.type])
    root = cgutils.get_or_insert_function(builder.module, root, f"llvm.sqrt.v{width}f32")
    distances = builder.call(root, [squares])
    infinite = ir.Constant(limit.type, [float("inf")] * width)
    kept = builder.icmp_signed("!=", numbers, none)
    kept = builder.and_(kept, builder.fcmp_ordered("<=", distances, limit))
    kept = builder.and_(kept, builder.fcmp_ordered("<", distances, infinite))
    zeros = ir.Constant(none.type, [0] * width)
    return builder.select(kept, numbers, zeros), builder.select(kept, distances, infinite)


def _keys(builder: Any, squares: Any, numbers: Any) -> Any:
    width = squares.type.count
    kind = ir.VectorType(_KEY, width)
    bits = builder.zext(builder.bitcast(squares, numbers.type), kind)
    high = builder.shl(bits, ir.Constant(kind, [32] * width))
    return builder.or_(high, builder.zext(numbers, kind))


def _counted(width: int) -> Any:
    return ir.Constant(ir.VectorType(_WORD, width), list(range(width)))


def _last(builder: Any, count: Any, width: int) -> Any:
    """Generate code for which places of a list are its last ones: before them it has none."""
    first = builder.trunc(builder.sub(ir.Constant(_KEY, width), count), _WORD)
    return builder.icmp_signed(">=", _counted(width), lanes.everywhere(builder, first, width))


def _nothing(builder: Any, kind: Any) -> Any:
    least = ir.Constant(kind.element, -(1 << kind.element.width - 1))
    return lanes.everywhere(builder, least, kind.count)


def _place(context: Any, builder: Any, kind: Any, array: Any, value: Any, *where: Any) -> Any:
    """Generate code for where such a value lies in an array."""
    made = context.make_array(array)(context, builder, value)
    pointer = cgutils.get_item_pointer(context, builder, array, made, where)
    return builder.bitcast(pointer, kind.as_pointer())
