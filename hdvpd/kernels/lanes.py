"""Vector instructions for compiled host code, where numba makes none of a loop."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

COLUMNS = 16
"""Columns that are summed at once."""


@intrinsic
def lowest_bit(typing: Any, bits: Any) -> Any:
    """Return the place of the lowest bit that is set; one must be."""
    del typing, bits

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.cttz(arguments[0], ir.Constant(ir.IntType(1), 1))

    return types.int32(types.uint32), generate


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


def bits_of(builder: Any, answers: Any) -> Any:
    """Generate code for a word of as many bits as a vector has answers, up to 32."""
    width = answers.type.count
    bits = builder.bitcast(answers, ir.IntType(width))
    return bits if width == 32 else builder.zext(bits, ir.IntType(32))
