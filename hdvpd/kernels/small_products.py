"""Products of small blocks inside compiled host code, each by the thread that asks.

A library's product takes memory and gives it back in every call: those of a step of the demo did
so 19,000 times, and threads of two devices waited for each other. A tile of the result here is a
few rows of vectors that stay in registers while all their products are added up.
"""

from collections.abc import Callable
from typing import Any, no_type_check

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import cfunc, config, types
from numba.core import cgutils
from numba.extending import intrinsic

from hdvpd.kernels.compiled import aligned, fast_njit, inlined_njit
from hdvpd.kernels.lanes import everywhere

_settings: Any = config
_NUMBER, _WORD, _HALF = ir.FloatType(), ir.IntType(64), ir.IntType(32)
_SIZE, _PLACES = 4, 9
_KIND = types.void(*[types.int64] * 9)


def _wide() -> bool:
    """Whether code is generated for a processor with 32 registers of 16 numbers."""
    if _settings.CPU_FEATURES is not None:
        return "+avx512f" in _settings.CPU_FEATURES
    return _settings.CPU_NAME is None and llvm.get_host_cpu_features().get("avx512f", False)


def _strip(height: int, width: int) -> Callable[..., None]:
    """Return a function for compiled code that computes so many columns of a product.

    Args:
      height: rows of a tile.
      width: columns.
    """
    kind = ir.VectorType(_NUMBER, width)

    @intrinsic
    def strip(typing: Any, places: Any, left: Any, add: Any) -> Any:
        del typing, places, left, add

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            del signature
            together, left, add = arguments
            places = cgutils.unpack_tuple(builder, together, _PLACES)
            whole = builder.icmp_signed(">=", left, _WORD(width))
            with builder.if_else(whole) as (all_there, some):
                with all_there:
                    _fill_strip(builder, kind, height, places, add, None)
                with some:
                    numbered = ir.Constant(ir.VectorType(_HALF, width), list(range(width)))
                    ends = everywhere(builder, builder.trunc(left, _HALF), width)
                    there = builder.icmp_signed("<", numbered, ends)
                    _fill_strip(builder, kind, height, places, add, there)
            return context.get_dummy_value()

        places = types.UniTuple(types.int64, _PLACES)
        return types.none(places, types.int64, types.boolean), generate

    return strip


def _fill_strip(builder: Any, kind: Any, height: int, places: Any, add: Any, there: Any) -> None:
    """Generate code for a strip of which all columns are there, or some: by tiles, then by rows.

    Sums of one row alone wait for each other, so that rows that are left are filled by twos.
    """
    a, a_row, a_inner, b, b_inner, result, result_row, rows, inner = places
    filled: Any = _WORD(0)
    for count in (height, 2, 1):
        tiles = builder.sdiv(builder.sub(rows, filled), _WORD(count))
        with cgutils.for_range(builder, tiles) as loop:
            row = builder.add(filled, builder.mul(loop.index, _WORD(count)))
            here = builder.add(a, builder.mul(row, a_row)), a_row, a_inner, b, b_inner
            target = builder.add(result, builder.mul(row, result_row)), result_row
            _fill_tile(builder, kind, count, (*here, *target, inner), add, there)
        filled = builder.add(filled, builder.mul(tiles, _WORD(count)))


def _fill_tile(builder: Any, kind: Any, rows: int, places: Any, add: Any, there: Any) -> None:
    """Generate code for a tile of which all columns are there, or some."""
    a, a_row, a_inner, b, b_inner, result, result_row, inner = places
    sums = [cgutils.alloca_once(builder, kind) for _ in range(rows)]
    targets = [_pointer(builder, kind, result, (result_row, _WORD(row))) for row in range(rows)]
    for target, total in zip(targets, sums, strict=True):
        builder.store(ir.Constant(kind, [0.0] * kind.count), total)
        with builder.if_then(add):
            builder.store(_load(builder, target, there), total)
    multiply = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.v{kind.count}f32"
    )
    with cgutils.for_range(builder, inner) as loop:
        values = _load(builder, _pointer(builder, kind, b, (b_inner, loop.index)), there)
        for row, total in enumerate(sums):
            steps = (a_row, _WORD(row)), (a_inner, loop.index)
            factor = builder.load(_pointer(builder, _NUMBER, a, *steps))
            factors = everywhere(builder, factor, kind.count)
            builder.store(builder.call(multiply, [factors, values, builder.load(total)]), total)
    for target, total in zip(targets, sums, strict=True):
        _store(builder, builder.load(total), target, there)


def _pointer(builder: Any, kind: Any, address: Any, *steps: tuple[Any, Any]) -> Any:
    for size, count in steps:
        address = builder.add(address, builder.mul(size, count))
    return builder.inttoptr(address, kind.as_pointer())


def _load(builder: Any, place: Any, there: Any) -> Any:
    if there is None:
        return builder.load(place, align=_SIZE)
    kind = place.type.pointee
    signature = ir.FunctionType(kind, [place.type, _HALF, there.type, kind])
    name = f"llvm.masked.load.v{kind.count}f32.p0"
    read = cgutils.get_or_insert_function(builder.module, signature, name)
    nothing = ir.Constant(kind, [0.0] * kind.count)
    return builder.call(read, [place, _HALF(_SIZE), there, nothing])


def _store(builder: Any, values: Any, place: Any, there: Any) -> None:
    if there is None:
        builder.store(values, place, align=_SIZE)
        return
    signature = ir.FunctionType(ir.VoidType(), [values.type, place.type, _HALF, there.type])
    name = f"llvm.masked.store.v{values.type.count}f32.p0"
    write = cgutils.get_or_insert_function(builder.module, signature, name)
    builder.call(write, [values, place, _HALF(_SIZE), there])


# Rows and columns of a tile, as many as registers hold: each sum waits for the one before it, so
# several have to be on their way.
_SHAPES = ((6, 64), (12, 32), (16, 16)) if _wide() else ((6, 16), (6, 16), (6, 16))
_wide_strip, _middle_strip, _narrow_strip = (_strip(*shape) for shape in _SHAPES)
# Rows of two blocks of which a strip's products are added up at once: they stay in the first cache.
_AT_ONCE = 128
_WIDE, _MIDDLE, _NARROW = (width for _, width in _SHAPES)


@inlined_njit()
@no_type_check
def _fill(a, b, result, steps, rows, columns, inner, add):
    """Fill in columns, as many at once as a strip has; see `_fill_strip`."""
    a_row, a_inner, b_inner, result_row = steps
    column = 0
    while column < columns:
        left, place = columns - column, column * _SIZE
        places = a, a_row, a_inner, b + place, b_inner, result + place, result_row, rows, inner
        if left >= _WIDE:
            _wide_strip(places, left, add)
            column += _WIDE
        elif left > _NARROW:
            _middle_strip(places, left, add)
            column += _MIDDLE
        else:
            _narrow_strip(places, left, add)
            column += _NARROW


@cfunc(_KIND, cache=True, error_model="numpy")
@no_type_check
def _set_product(a, b, result, a_step, b_step, result_step, rows, columns, inner):
    _fill(a, b, result, (a_step, _SIZE, b_step, result_step), rows, columns, inner, False)


@cfunc(_KIND, cache=True, error_model="numpy")
@no_type_check
def _add_transposed(a, b, result, a_step, b_step, result_step, rows, columns, inner):
    steps = _SIZE, a_step, b_step, result_step
    for first in range(0, inner, _AT_ONCE):
        count, here, there = min(_AT_ONCE, inner - first), a + first * a_step, b + first * b_step
        _fill(here, there, result, steps, rows, columns, count, True)


# By their names: what calls them would else be compiled with copies, for a second or more.
llvm.add_symbol("hdvpd_set_product", _set_product.address)
llvm.add_symbol("hdvpd_add_transposed", _add_transposed.address)
_call_set_product = types.ExternalFunction("hdvpd_set_product", _KIND)
_call_add_transposed = types.ExternalFunction("hdvpd_add_transposed", _KIND)


@fast_njit()
@no_type_check
def product(a, b, result):
    """Set result to a b. Rows must be without gaps, and may lie apart."""
    _call_set_product(*_places(a, b, result), result.shape[0], result.shape[1], len(b))


@fast_njit()
@no_type_check
def add_transposed_product(a, b, result):
    """Add a^T b to the result; see `product`."""
    _call_add_transposed(*_places(a, b, result), result.shape[0], result.shape[1], len(b))


@inlined_njit()
@no_type_check
def _places(a, b, result):
    """Return addresses, and bytes between rows."""
    places = np.int64(a.ctypes.data), np.int64(b.ctypes.data), np.int64(result.ctypes.data)
    return *places, a.strides[0], b.strides[0], result.strides[0]


@fast_njit()
@no_type_check
def transposed(matrix):
    """Return the transpose, for products with the rows of a matrix."""
    result = aligned((matrix.shape[1], matrix.shape[0]))
    for row in range(result.shape[0]):
        for column in range(result.shape[1]):
            result[row, column] = matrix[column, row]
    return result
