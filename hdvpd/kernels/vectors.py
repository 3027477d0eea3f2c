"""Vectors of 32 numbers of float32 as values of compiled host code.

numba makes vectors of long loops only, and what one loop computes goes through memory to the next.
Here a row of 32 numbers is one value, which stays in registers: `+ - * /` take it, also with a
number. Operations on it compile faster than loops, too.
"""

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.core.typing.templates import ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

from hdvpd.kernels import lanes

WIDTH = 32
"""Numbers of a vector."""

_KIND = ir.VectorType(ir.FloatType(), WIDTH)
_CONTRACT, _ANY_ORDER = ("contract",), ("reassoc", "contract")
# Of what 2^x is beside a whole number, but for its last one, 1.
_POWERS = (
    1.535336188319500e-4, 1.339887440266574e-3, 9.618437357674640e-3, 5.550332471162809e-2,
    2.402264791363012e-1, 6.931472028550421e-1,
)  # fmt: skip


class _Vector(types.Type):
    def __init__(self):
        super().__init__(name=f"float32 x {WIDTH}")


_VECTOR = _Vector()


@register_model(_Vector)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any):
        super().__init__(manager, kind, _KIND)


@intrinsic
def load(typing: Any, array: Any, row: Any, column: Any) -> Any:
    """Return the `WIDTH` numbers of a row from a column on, which lie beside each other."""
    del typing, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = _place(context, builder, signature.args[0], *arguments)
        return builder.load(pointer, align=4)

    return _VECTOR(_of_float32(array), types.int64, types.int64), generate


@intrinsic
def store(typing: Any, vector: Any, array: Any, row: Any, column: Any) -> Any:
    """Set the `WIDTH` numbers of a row from a column on."""
    del typing, row, column

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        value, *place = arguments
        builder.store(value, _place(context, builder, signature.args[1], *place), align=4)
        return context.get_dummy_value()

    return types.none(vector, _of_float32(array), types.int64, types.int64), generate


@intrinsic
def everywhere(typing: Any, number: Any) -> Any:
    """Return a vector of one number."""
    del typing, number

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return lanes.everywhere(builder, arguments[0], WIDTH)

    return _VECTOR(types.float32), generate


@intrinsic
def total(typing: Any, vector: Any) -> Any:
    """Return the sum of a vector's numbers, in any order that is fixed when compiled."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        kind = ir.FunctionType(ir.FloatType(), (ir.FloatType(), _KIND))
        name = f"llvm.vector.reduce.fadd.v{WIDTH}f32"
        add = cgutils.get_or_insert_function(builder.module, kind, name)
        zero = ir.Constant(ir.FloatType(), 0.0)
        return builder.call(add, (zero, arguments[0]), fastmath=_ANY_ORDER)

    return types.float32(vector), generate


@intrinsic
def root(typing: Any, vector: Any) -> Any:
    """Return the square roots of a vector's numbers."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        kind = ir.FunctionType(_KIND, (_KIND,))
        name = f"llvm.sqrt.v{WIDTH}f32"
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), arguments)

    return vector(vector), generate


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
    """Return a vector whose numbers are brought to -bound and bound from outside."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        number, most = arguments
        for sign, side in (("<", most), (">", builder.fneg(most))):
            end = lanes.everywhere(builder, side, WIDTH)
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
        del context, signature
        (number,) = arguments
        # Floats of this size are whole, and their lowest bits are those of the whole number. With
        # flags of its own an operation gets none of a function's, which would leave this out.
        shift = _constant(1.5 * 2**23)
        shifted = builder.fadd(number, shift, flags=_CONTRACT)
        whole = builder.fsub(shifted, shift, flags=_CONTRACT)
        rest = builder.fsub(number, whole, flags=_CONTRACT)
        series = _constant(_POWERS[0])
        for coefficient in (*_POWERS[1:], 1.0):
            product = builder.fmul(series, rest, flags=_CONTRACT)
            series = builder.fadd(product, _constant(coefficient), flags=_CONTRACT)
        bits = ir.VectorType(ir.IntType(32), WIDTH)
        exponent = builder.shl(builder.bitcast(shifted, bits), ir.Constant(bits, [23] * WIDTH))
        return builder.bitcast(builder.add(builder.bitcast(series, bits), exponent), _KIND)

    return vector(vector), generate


def _of_float32(array: Any) -> Any:
    if array.dtype != types.float32:
        raise TypingError(f"vectors are of float32, not of {array}.")
    return array


def _constant(number: float) -> Any:
    return ir.Constant(_KIND, [float(np.float32(number))] * WIDTH)


def _place(context: Any, builder: Any, kind: Any, array: Any, *indices: Any) -> Any:
    """Generate code for where a row of an array begins, or is from a column on."""
    made = context.make_array(kind)(context, builder, array)
    pointer = cgutils.get_item_pointer(context, builder, kind, made, indices)
    return builder.bitcast(pointer, _KIND.as_pointer())


def _define(operation: Callable[..., Any], instruction: str) -> None:
    """Let an operator take vectors, or a vector and a number."""
    pairs = [(_VECTOR, _VECTOR), (_VECTOR, types.float32), (types.float32, _VECTOR)]
    cases = [signature(_VECTOR, *pair) for pair in pairs]
    register: Any = infer_global(operation)
    register(type("Operator", (ConcreteTemplate,), {"cases": cases}))

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context
        both = [
            value if kind is _VECTOR else lanes.everywhere(builder, value, WIDTH)
            for kind, value in zip(signature.args, arguments, strict=True)
        ]
        return getattr(builder, instruction)(*both, flags=_CONTRACT)

    for pair in pairs:
        lower_builtin(operation, *pair)(generate)


for _operation, _instruction in (
    (operator.add, "fadd"), (operator.sub, "fsub"), (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):  # fmt: skip
    _define(_operation, _instruction)
