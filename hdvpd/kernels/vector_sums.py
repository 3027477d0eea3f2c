"""Sums of vectors' numbers and of products in compiled host code, and vectors made of others.

A sum of one vector's numbers is mostly waiting: for each of its halvings, the one before it.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hdvpd.kernels import lanes
from hdvpd.kernels.vectors import Vector, constant

_WORD = ir.IntType(32)


@intrinsic(prefer_literal=True)
def sums_of_runs(typing: Any, vectors: Any, length: Any) -> Any:
    """Return the sums of runs of so many numbers, of a tuple of vectors one behind the other.

    Each is the sum of its halves' sums, and these likewise, as in `sum_of_lanes`. The length and
    the number of vectors are powers of two.
    """
    del typing
    run, width = constant(length), vectors.dtype.width

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        parts = cgutils.unpack_tuple(builder, arguments[0], vectors.count)
        size = run
        while size > 1:
            if len(parts) == 1:
                parts = [_add_halves(builder, parts[0], None, size)]
            else:
                pairs = zip(parts[::2], parts[1::2], strict=True)
                parts = [_add_halves(builder, *pair, size) for pair in pairs]
            size //= 2
        return parts[0]

    return Vector(vectors.count * width // run)(vectors, length), generate


def _add_halves(builder: Any, one: Any, other: Any | None, run: int) -> Any:
    """Generate code for the sums of the halves of the runs of a vector, or of two."""
    end = one.type.count * (1 if other is None else 2)
    halves = [
        [start + side + place for start in range(0, end, run) for place in range(run // 2)]
        for side in (0, run // 2)
    ]
    parts = [_picked(builder, one, one if other is None else other, half) for half in halves]
    return builder.fadd(*parts, flags=("nsz",))


@intrinsic
def plus_product(typing: Any, total: Any, factor: Any, other: Any) -> Any:
    """Return total + factor * other, rounded once, of vectors or numbers."""
    del typing
    result = next((x for x in (total, factor, other) if isinstance(x, Vector)), types.float32)
    taken = [x if isinstance(x, Vector) else types.float32 for x in (total, factor, other)]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind = context.get_value_type(result)
        total, factor, other = (
            lanes.everywhere(builder, value, kind.count) if has != result else value
            for value, has in zip(arguments, signature.args, strict=True)
        )
        name = f"llvm.fma.v{kind.count}f32" if isinstance(result, Vector) else "llvm.fma.f32"
        fused = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(kind, [kind] * 3), name
        )
        return builder.call(fused, (factor, other, total))

    return result(*taken), generate


@intrinsic(prefer_literal=True)
def repeated(typing: Any, vector: Any, times: Any) -> Any:
    """Return a vector of another's numbers, each so many times in a row."""
    del typing
    places = [place for place in range(vector.width) for _ in range(constant(times))]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return _picked(builder, arguments[0], arguments[0], places)

    return Vector(len(places))(vector, times), generate


@intrinsic
def interleaved(typing: Any, one: Any, other: Any) -> Any:
    """Return a vector of the numbers of two in turn."""
    del typing
    places = [place + side for place in range(one.width) for side in (0, one.width)]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        one, other = arguments
        return _picked(builder, one, other, places)

    return Vector(len(places))(one, other), generate


def _picked(builder: Any, one: Any, other: Any, places: list[int]) -> Any:
    numbers = ir.Constant(ir.VectorType(_WORD, len(places)), places)
    return builder.shuffle_vector(one, other, numbers)
