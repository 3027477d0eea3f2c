"""Vector instructions for compiled host code, where numba makes none of a loop."""

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, lower_builtin, models, register_model, type_callable

LANES = 32
"""Numbers that are compared at once."""
COLUMNS = 16
"""Columns that are summed at once."""


@intrinsic
def at_most(typing: Any, numbers: Any, bound: Any) -> Any:
    """Return a bit for each of the first `LANES` numbers of an array: whether it is <= bound.

    A loop that looks at each result in turn waits for a guess of the processor every time.
    """
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, word = ir.VectorType(ir.FloatType(), LANES), ir.IntType(32)
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        left = builder.load(builder.bitcast(array.data, vector.as_pointer()), align=4)
        right = everywhere(builder, arguments[1], LANES)
        return builder.bitcast(builder.fcmp_ordered("<=", left, right), word)

    return types.uint32(numbers, bound), generate


@intrinsic
def lowest_bit(typing: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set; one must be."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int32(bits), generate


@intrinsic
def sum_of_rows(
    typing: Any, weights: Any, w: Any, rows: Any, q: Any, number: Any, source: Any, column: Any,
    total: Any, a: Any,
) -> Any:  # fmt: skip
    """Set total[q, a, c] to the sum over i < number of weights[w, i] source[rows[q, i], c].

    For c of `COLUMNS` columns from a column on: what numba makes of such a loop is no vector code
    below twice or four times as many.
    """
    del typing, w, q, number, column, a

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        weights, w, rows, q, number, source, column, total, a = arguments
        types_ = signature.args

        def place(argument: int, value: Any, *indices: Any) -> Any:
            array_type = types_[argument]
            array = context.make_array(array_type)(context, builder, value)
            return cgutils.get_item_pointer(context, builder, array_type, array, indices)

        def columns(argument: int, value: Any, *indices: Any) -> Any:
            return builder.bitcast(place(argument, value, *indices), vector.as_pointer())

        vector = ir.VectorType(ir.FloatType(), COLUMNS)
        sums = cgutils.alloca_once_value(builder, ir.Constant(vector, [0.0] * COLUMNS))
        with cgutils.for_range(builder, number) as loop:
            row = builder.sext(builder.load(place(2, rows, q, loop.index)), ir.IntType(64))
            values = builder.load(columns(5, source, row, column), align=4)
            weight = everywhere(builder, builder.load(place(0, weights, w, loop.index)), COLUMNS)
            product = builder.fmul(weight, values, flags=("contract",))
            builder.store(builder.fadd(builder.load(sums), product, flags=("contract",)), sums)
        builder.store(builder.load(sums), columns(7, total, q, a, column), align=4)
        return context.get_dummy_value()

    whole = types.int64
    arguments = (weights, whole, rows, whole, whole, source, whole, total, whole)
    return types.none(*arguments), generate


def everywhere(builder: Any, number: Any, lanes: int) -> Any:
    """Generate code for a vector of one number."""
    undefined = ir.Constant(ir.VectorType(number.type, lanes), ir.Undefined)
    first = builder.insert_element(undefined, number, ir.Constant(ir.IntType(32), 0))
    zeros = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [0] * lanes)
    return builder.shuffle_vector(first, undefined, zeros)


# `COLUMNS` numbers as a value of compiled code, which adds, subtracts and multiplies them. --------

_VECTOR = ir.VectorType(ir.FloatType(), COLUMNS)
_ZEROS = ir.Constant(_VECTOR, [0.0] * COLUMNS)
_WORD = ir.IntType(32)
_ALIGNMENT = ir.Constant(_WORD, 4)


class _Columns(types.Type):
    """Type of such a vector."""


_columns = _Columns("columns")


@register_model(_Columns)
class _ColumnsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, _VECTOR)


def _operate(operation: Callable[..., Any], instruction: str) -> None:
    """Let compiled code use an operator between vectors."""

    def choose(context: Any) -> Any:
        del context
        return lambda left, right: _columns if left == right == _columns else None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return getattr(builder, instruction)(*arguments, flags=("contract",))

    type_callable(operation)(choose)
    lower_builtin(operation, _Columns, _Columns)(generate)


_operate(operator.add, "fadd")
_operate(operator.sub, "fsub")
_operate(operator.mul, "fmul")


@intrinsic
def in_all_lanes(typing: Any, number: Any) -> Any:
    """Return a vector of one number."""
    del typing, number

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return everywhere(builder, arguments[0], COLUMNS)

    return _columns(types.float32), generate


@intrinsic
def sum_of_lanes(typing: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers, in an order that is fixed when compiled."""
    del typing, vector

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        number = ir.FloatType()
        name = f"llvm.vector.reduce.fadd.v{COLUMNS}f32"
        add = _function(builder, name, number, number, _VECTOR)
        return builder.call(add, (ir.Constant(number, 0.0), arguments[0]), fastmath=("reassoc",))

    return types.float32(_columns), generate


@intrinsic
def where_positive(typing: Any, condition: Any, vector: Any) -> Any:
    """Return a vector with 0 in place of its numbers where those of a condition are not > 0."""
    del typing, condition, vector

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        condition, vector = arguments
        return builder.select(builder.fcmp_ordered(">", condition, _ZEROS), vector, _ZEROS)

    return _columns(_columns, _columns), generate


@intrinsic
def load_columns(typing: Any, rows: Any, row: Any, column: Any, end: Any) -> Any:
    """Return a row's numbers from a column on, with zeros from column `end` on."""
    del typing, row, column, end

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, all_there, there = _columns_at(context, builder, signature.args[0], *arguments)
        found = cgutils.alloca_once(builder, _VECTOR)
        with builder.if_else(all_there) as (whole, part):
            with whole:
                builder.store(builder.load(place, align=4), found)
            with part:
                name = f"llvm.masked.load.v{COLUMNS}f32.p0"
                read = _function(builder, name, _VECTOR, place.type, _WORD, there.type, _VECTOR)
                builder.store(builder.call(read, (place, _ALIGNMENT, there, _ZEROS)), found)
        return builder.load(found)

    return _columns(rows, types.int64, types.int64, types.int64), generate


@intrinsic
def store_columns(typing: Any, vector: Any, rows: Any, row: Any, column: Any, end: Any) -> Any:
    """Set a row's numbers from a column on, up to column `end`."""
    del typing, vector, row, column, end

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, *where = arguments
        place, all_there, there = _columns_at(context, builder, signature.args[1], *where)
        with builder.if_else(all_there) as (whole, part):
            with whole:
                builder.store(vector, place, align=4)
            with part:
                kinds = ir.VoidType(), _VECTOR, place.type, _WORD, there.type
                write = _function(builder, f"llvm.masked.store.v{COLUMNS}f32.p0", *kinds)
                builder.call(write, (vector, place, _ALIGNMENT, there))
        return context.get_dummy_value()

    return types.none(_columns, rows, types.int64, types.int64, types.int64), generate


@intrinsic
def bring_near(typing: Any, rows: Any, row: Any, column: Any) -> Any:
    """Let the processor fetch a cache line, if there is such a place in memory."""
    del typing, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        column = arguments[2]
        place, *_ = _columns_at(context, builder, signature.args[0], *arguments, column)
        kinds = ir.VoidType(), place.type, _WORD, _WORD, _WORD
        to_read, into_all_caches, data = (ir.Constant(_WORD, number) for number in (0, 3, 1))
        ask = _function(builder, "llvm.prefetch.p0", *kinds)
        builder.call(ask, (place, to_read, into_all_caches, data))
        return context.get_dummy_value()

    return types.none(rows, types.int64, types.int64), generate


def _function(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, arguments)
    return cgutils.get_or_insert_function(builder.module, kind, name)


def _columns_at(context: Any, builder: Any, kind: Any, rows: Any, *where: Any) -> Any:
    """Generate code for where columns are, whether all are before the end, and which are."""
    row, column, end = where
    array = context.make_array(kind)(context, builder, rows)
    place = cgutils.get_item_pointer(context, builder, kind, array, (row, column))
    left = builder.trunc(builder.sub(end, column), _WORD)
    all_there = builder.icmp_signed(">=", left, ir.Constant(_WORD, COLUMNS))
    lanes = ir.Constant(ir.VectorType(_WORD, COLUMNS), list(range(COLUMNS)))
    there = builder.icmp_signed("<", lanes, everywhere(builder, left, COLUMNS))
    return builder.bitcast(place, _VECTOR.as_pointer()), all_there, there
