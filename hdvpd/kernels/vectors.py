"""Vectors of float32 as values of compiled host code.

numba makes vectors of long loops only, and what one loop computes goes through memory to the next.
Here some numbers of a row, their count a constant, are one value, which stays in registers:
`+ - * /` take it, also with a number. Operations on it compile faster than loops, too.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import (
    intrinsic,
    lower_builtin,
    models,
    register_model,
    type_callable,
)

from hdvpd.kernels import lanes

_NUMBER, _WORD = ir.FloatType(), ir.IntType(32)
_ALIGNMENT = ir.Constant(_WORD, 4)
# Of a b + c d either product could be fused with the sum, as the compiler happens to find it: only
# where there is one product may it be. Without any flag an operation would get a function's.
_CONTRACT, _NO_SIGN = ("contract",), ("nsz",)
# Of what 2^x is beside a whole number, but for its last one, 1.
_POWERS = (
    1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
    2.402264791363012e-1, 6.931472028550421e-1,
)  # fmt: skip


class Vector(types.Type):
    """So many numbers of float32 as one value of compiled code."""

    def __init__(self, width: int):
        self.width = width
        super().__init__(name=f"float32 x {width}")


@register_model(Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, ir.VectorType(_NUMBER, kind.width))


@intrinsic(prefer_literal=True)
def everywhere(typing: Any, number: Any, width: Any) -> Any:
    """Return a vector of one number."""
    del typing, number

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        return lanes.everywhere(builder, arguments[0], signature.return_type.width)

    return Vector(constant(width))(types.float32, width), generate


@intrinsic(prefer_literal=True)
def load(typing: Any, rows: Any, row: Any, column: Any, width: Any) -> Any:
    """Return so many numbers of a row from a column on."""
    del typing, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        *where, _ = arguments
        kind = ir.VectorType(_NUMBER, signature.return_type.width)
        return builder.load(_place(context, builder, kind, signature.args[0], *where), align=4)

    places = types.int64, types.int64
    return Vector(constant(width))(_of_float32(rows), *places, width), generate


@intrinsic(prefer_literal=True)
def load_before(typing: Any, end: Any, rows: Any, row: Any, column: Any, width: Any) -> Any:
    """Return so many numbers of a row from a column on, with zeros from column `end` on."""
    del typing, end, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        end, *where, _ = arguments
        width = signature.return_type.width
        kind = ir.VectorType(_NUMBER, width)
        place = _place(context, builder, kind, signature.args[1], *where)
        all_there, there = _before(builder, end, where[-1], width)
        found = cgutils.alloca_once(builder, kind)
        with builder.if_else(all_there) as (whole, part):
            with whole:
                builder.store(builder.load(place, align=4), found)
            with part:
                name, zeros = f"llvm.masked.load.v{width}f32.p0", _repeated(0.0, kind)
                read = _function(builder, name, kind, place.type, _WORD, there.type, kind)
                builder.store(builder.call(read, (place, _ALIGNMENT, there, zeros)), found)
        return builder.load(found)

    arguments = types.int64, _of_float32(rows), types.int64, types.int64, width
    return Vector(constant(width))(*arguments), generate


@intrinsic
def store(typing: Any, vector: Any, rows: Any, row: Any, column: Any) -> Any:
    """Set a row's numbers from a column on."""
    del typing, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        vector, *where = arguments
        place = _place(context, builder, vector.type, signature.args[1], *where)
        builder.store(vector, place, align=4)
        return context.get_dummy_value()

    return types.none(vector, _of_float32(rows), types.int64, types.int64), generate


@intrinsic
def store_before(typing: Any, end: Any, vector: Any, rows: Any, row: Any, column: Any) -> Any:
    """Set a row's numbers from a column on, up to column `end`."""
    del typing, end, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        end, vector, *where = arguments
        kind, width = vector.type, signature.args[1].width
        place = _place(context, builder, kind, signature.args[2], *where)
        all_there, there = _before(builder, end, where[-1], width)
        with builder.if_else(all_there) as (whole, part):
            with whole:
                builder.store(vector, place, align=4)
            with part:
                kinds = ir.VoidType(), kind, place.type, _WORD, there.type
                write = _function(builder, f"llvm.masked.store.v{width}f32.p0", *kinds)
                builder.call(write, (vector, place, _ALIGNMENT, there))
        return context.get_dummy_value()

    places = types.int64, types.int64
    return types.none(types.int64, vector, _of_float32(rows), *places), generate


@intrinsic
def before(typing: Any, end: Any, vector: Any, column: Any) -> Any:
    """Return a vector of numbers from a column on, with zeros from column `end` on."""
    del typing, end, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        end, vector, column = arguments
        _, there = _before(builder, end, column, signature.return_type.width)
        return builder.select(there, vector, _repeated(0.0, vector.type))

    return vector(types.int64, vector, types.int64), generate


@intrinsic
def bring_near(typing: Any, rows: Any, row: Any, column: Any) -> Any:
    """Let the processor fetch a cache line, if there is such a place in memory."""
    del typing, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place = _place(context, builder, _NUMBER, signature.args[0], *arguments)
        kinds = ir.VoidType(), place.type, _WORD, _WORD, _WORD
        to_read, into_all_caches, data = (ir.Constant(_WORD, number) for number in (0, 3, 1))
        ask = _function(builder, "llvm.prefetch.p0", *kinds)
        builder.call(ask, (place, to_read, into_all_caches, data))
        return context.get_dummy_value()

    return types.none(rows, types.int64, types.int64), generate


@intrinsic
def sum_of_lanes(typing: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers, of which there are a power of two: of its halves' sum.

    In an order that stands here: what compilers make of a sum in any order depends on how often
    they went over the code, and numba keeps code that they went over once more than what it runs.
    """
    del typing
    if vector.width & (vector.width - 1):
        raise TypingError("the width of a vector that is summed is a power of two.")

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        (sums,) = arguments
        while (half := sums.type.count // 2) > 0:
            parts = [_part(builder, sums, first, half) for first in (0, half)]
            sums = builder.fadd(*parts, flags=_NO_SIGN)
        return builder.extract_element(sums, ir.Constant(_WORD, 0))

    return types.float32(vector), generate


@intrinsic
def root(typing: Any, vector: Any) -> Any:
    """Return the square roots of a vector's numbers."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        kind, name = arguments[0].type, f"llvm.sqrt.v{signature.args[0].width}f32"
        return builder.call(_function(builder, name, kind, kind), arguments)

    return vector(vector), generate


@intrinsic
def squared_length(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """Return x x + y y + z z of vectors, each step rounded by itself as numba rounds numbers."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        x, y, z = (builder.fmul(side, side) for side in arguments)
        return builder.fadd(builder.fadd(x, y), z)

    return x(x, y, z), generate


@intrinsic
def where_positive(typing: Any, condition: Any, vector: Any) -> Any:
    """Return a vector with 0 in place of its numbers where those of a condition are not > 0."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        condition, vector = arguments
        zeros = _repeated(0.0, vector.type)
        return builder.select(builder.fcmp_ordered(">", condition, zeros), vector, zeros)

    return vector(condition, vector), generate


@intrinsic
def at_most(typing: Any, vector: Any, bound: Any) -> Any:
    """Return a bit for each of up to 32 numbers of a vector: whether it is <= bound.

    A loop that looks at each result in turn waits for a guess of the processor every time.
    """
    del typing, bound

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        vector, bound = arguments
        bound = lanes.everywhere(builder, bound, signature.args[0].width)
        return lanes.bits_of(builder, builder.fcmp_ordered("<=", vector, bound))

    return types.uint32(vector, types.float32), generate


@intrinsic
def larger(typing: Any, one: Any, other: Any) -> Any:
    """Return the larger number of two vectors in each place."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return builder.select(builder.fcmp_ordered(">", *arguments), *arguments)

    return one(one, other), generate


@intrinsic
def within(typing: Any, vector: Any, bound: Any) -> Any:
    """Return a vector, or number, that is brought to -bound and bound from outside."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        number, most = arguments
        kind = signature.return_type
        for sign, side in (("<", most), (">", builder.fneg(most))):
            vector = isinstance(kind, Vector)
            end = lanes.everywhere(builder, side, kind.width) if vector else side
            # What is no number stays so.
            number = builder.select(builder.fcmp_ordered(sign, end, number), end, number)
        return number

    return vector(vector, types.float32), generate


@intrinsic
def power_of_two(typing: Any, vector: Any) -> Any:
    """Return 2^x of numbers between -126 and 126.

    As Cephes computes it: a polynomial for what is beside a whole number, which is added to the
    polynomial's exponent.
    """
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        (number,) = arguments
        kind, width = number.type, signature.return_type.width
        # Floats of this size are whole, and their lowest bits are those of the whole number. With
        # flags of its own an operation gets none of a function's, which would leave this out.
        shift = _repeated(1.5 * 2**23, kind)
        shifted = builder.fadd(number, shift, flags=_CONTRACT)
        whole = builder.fsub(shifted, shift, flags=_CONTRACT)
        rest = builder.fsub(number, whole, flags=_CONTRACT)
        series = _repeated(_POWERS[0], kind)
        for coefficient in (*_POWERS[1:], 1.0):
            product = builder.fmul(series, rest, flags=_CONTRACT)
            series = builder.fadd(product, _repeated(coefficient, kind), flags=_CONTRACT)
        bits = ir.VectorType(_WORD, width)
        exponent = builder.shl(builder.bitcast(shifted, bits), ir.Constant(bits, [23] * width))
        return builder.bitcast(builder.add(builder.bitcast(series, bits), exponent), kind)

    return vector(vector), generate


def constant(width: Any) -> int:
    """Return the number of a literal type."""
    if not isinstance(width, types.IntegerLiteral):
        raise TypingError("a vector's width is a constant.")
    return width.literal_value


def _of_float32(array: Any) -> Any:
    if array.dtype != types.float32:
        raise TypingError(f"vectors are of float32, not of {array}.")
    return array


def _part(builder: Any, vector: Any, first: int, width: int) -> Any:
    places = ir.Constant(ir.VectorType(_WORD, width), list(range(first, first + width)))
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), places)


def _repeated(number: float, kind: Any) -> Any:
    return ir.Constant(kind, [float(np.float32(number))] * kind.count)


def _function(builder: Any, name: str, result: Any, *arguments: Any) -> Any:
    kind = ir.FunctionType(result, arguments)
    return cgutils.get_or_insert_function(builder.module, kind, name)


def _place(
    context: Any, builder: Any, kind: Any, array: Any, rows: Any, row: Any, column: Any
) -> Any:
    """Generate code for where such a value lies in an array's row from a column on."""
    made = context.make_array(array)(context, builder, rows)
    pointer = cgutils.get_item_pointer(context, builder, array, made, (row, column))
    return builder.bitcast(pointer, kind.as_pointer())


def _before(builder: Any, end: Any, column: Any, width: int) -> tuple[Any, Any]:
    """Generate code for whether all columns are before the end, and for which are."""
    left = builder.trunc(builder.sub(end, column), _WORD)
    all_there = builder.icmp_signed(">=", left, ir.Constant(_WORD, width))
    numbered = ir.Constant(ir.VectorType(_WORD, width), list(range(width)))
    return all_there, builder.icmp_signed("<", numbered, lanes.everywhere(builder, left, width))


def _define(operation: Callable[..., Any], instruction: str) -> None:
    """Let an operator take vectors, or a vector and a number."""

    def choose(context: Any) -> Any:
        del context

        def result(left: Any, right: Any) -> Any:
            vectors = {kind for kind in (left, right) if isinstance(kind, Vector)}
            others = {kind for kind in (left, right) if not isinstance(kind, Vector)}
            return vectors.pop() if len(vectors) == 1 and others <= {types.float32} else None

        return result

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        both = [
            value
            if isinstance(kind, Vector)
            else lanes.everywhere(builder, value, signature.return_type.width)
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        return getattr(builder, instruction)(*both, flags=_NO_SIGN)

    type_callable(operation)(choose)
    for pair in ((Vector, Vector), (Vector, types.float32), (types.float32, Vector)):
        lower_builtin(operation, *pair)(generate)


for _operation, _instruction in (
    (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):  # fmt: skip
    _define(_operation, _instruction)
