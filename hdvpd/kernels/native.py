"""How XLA calls compiled functions without Python.

From Python, a call takes as long as some tens of thousands of numbers do: the interpreter's memory
has left the cache by then, and devices that work side by side wait for each other's turn. Here a
frame of XLA's (`ffi.py`) becomes the arguments of a compiled function by machine code.
"""

import ctypes
import functools
import itertools
import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target
from numba.np import numpy_support
from numba.np.arrayobj import make_array, populate_array

_target: Any = cpu_target
_WORD, _HALF = ir.IntType(64), ir.IntType(32)
_HANDLER = ir.FunctionType(_WORD, [_WORD])
_ENTRIES = 96
"""Entries that are compiled at once."""
# Words of a frame and of a buffer that it points to; see `ffi.py`.
_EXTENSION, _ARGUMENTS, _RESULTS = 1, 9, 14
_KIND, _DATA, _RANK, _SIDES = 2, 3, 4, 5
DTYPES = {
    number: np.dtype(kind)
    for number, kind in {
        1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16,
        8: np.uint32, 9: np.uint64, 10: np.float16, 11: np.float32, 12: np.float64,
        16: ml_dtypes.bfloat16,
    }.items()
}  # fmt: skip
"""By their numbers in XLA."""
_CODES = {dtype: code for code, dtype in DTYPES.items()}
_TABLE = types.Array(types.int64, 2, "C")
_numbers = itertools.count()
_kept: list[Any] = []
"""What machine code holds the address of."""


@dataclass(frozen=True)
class Kind:
    """What a function is given or fills in.

    Attributes:
      dtype: of the numbers.
      rank: 0 for one number.
    """

    dtype: np.dtype
    rank: int

    def __str__(self) -> str:
        return f"{self.dtype}[{self.rank}]"

    def seen_by_numba(self, *, given: bool) -> Any:
        """Return the type: a number if one is given, or an array, read-only if it is given."""
        dtype = numpy_support.from_dtype(self.dtype)
        if given and not self.rank:
            return dtype
        return types.Array(dtype, self.rank, "C", readonly=given)


class Entry:
    """An address for good, and the code to which it leads at the time.

    Attributes:
      address: of code that takes a frame and returns no error or one.
    """

    def __init__(self, code: int):
        self.address, self._slot = next(_entries)
        self._slot.value = code

    def lead_to(self, code: int) -> None:
        """Let later calls go elsewhere."""
        self._slot.value = code


@global_compiler_lock
def _compiled(names: Sequence[str], fill: Callable[[Any], None]) -> list[int]:
    """Return the addresses of functions that are added to a library of machine code."""
    library = _target.target_context.codegen().create_library(names[0])
    fill(library)
    library.finalize()
    _kept.append(library)
    return [library.get_pointer_to_function(name) for name in names]


def _some_entries() -> Iterator[tuple[int, Any]]:
    while True:
        slots = [ctypes.c_void_p() for _ in range(_ENTRIES)]
        names = [f"hdvpd_entry_{next(_numbers)}" for _ in slots]
        text = "".join(
            f"define i64 @{name}(i64 %frame) {{\n"
            f"%code = load ptr, ptr inttoptr (i64 {ctypes.addressof(slot)} to ptr)\n"
            "%found = tail call i64 %code(i64 %frame)\nret i64 %found\n}\n"
            for name, slot in zip(names, slots, strict=True)
        )
        module = llvm.parse_assembly(text)
        addresses = _compiled(names, operator.methodcaller("add_llvm_module", module))
        _kept.append(slots)
        yield from zip(addresses, slots, strict=True)


_entries = _some_entries()


def native(
    function: Any,
    given: Sequence[Kind],
    filled: Sequence[Kind],
    before: Callable[[Any, Any], None],
    otherwise: int,
    table: np.ndarray | None = None,
) -> int | None:
    """Compile a call of a function; return the code's address.

    Args:
      function: of numba's; it has been called with such arguments and has no result of its own.
      given: what it reads.
      filled: what it fills in.
      before: generates code that comes first, from a builder and its module.
      otherwise: address of code that is asked instead, or once more, when a frame holds anything
        else, but for one axis that vmap has put in front, or the function raises.
      table: what the function is given first, if anything, (rows, words) of int64; whoever asks for
        the code keeps it.

    Returns:
      None if the function has not been compiled for such arguments.
    """
    kinds = seen_by_numba(given, filled, table)
    compiled = getattr(function, "overloads", {}).get(kinds)
    if compiled is None:
        return None
    name = f"hdvpd_call_{next(_numbers)}"

    def fill(library: Any) -> None:
        module = library.create_ir_module(name)
        builder = ir.IRBuilder(ir.Function(module, _HANDLER, name).append_basic_block())
        usual, other = (builder.append_basic_block() for _ in range(2))
        (frame,) = builder.function.args
        plain = builder.icmp_unsigned("==", _word(builder, frame, _EXTENSION), _WORD(0))
        builder.cbranch(plain, usual, other)
        builder.position_at_end(usual)
        buffers = _buffers(builder, frame, len(given), len(filled))
        fits = [_fit(builder, buffers, (*given, *filled), axes) for axes in range(2)]
        with builder.if_then(builder.or_(*fits)):
            before(builder, module)
            for axes, fit in enumerate(fits):
                with builder.if_then(fit):
                    count = _side(builder, buffers[-1], 0) if axes else _WORD(1)
                    with cgutils.for_range(builder, count) as loop:
                        place = loop.index if axes else None
                        fine = _call(builder, module, compiled, table, buffers, place)
                        builder.cbranch(fine, again := builder.append_basic_block(), other)
                        builder.position_at_end(again)
                    builder.ret(_WORD(0))
            builder.unreachable()
        builder.branch(other)
        builder.position_at_end(other)
        handler = builder.inttoptr(_WORD(otherwise), _HANDLER.as_pointer())
        builder.ret(builder.call(handler, [frame]))
        library.add_ir_module(module)

    return _compiled([name], fill)[0]


def seen_by_numba(
    given: Sequence[Kind], filled: Sequence[Kind], table: np.ndarray | None = None
) -> tuple[Any, ...]:
    """Return the types of a function's arguments."""
    first = () if table is None else (_TABLE,)
    kinds = (x.seen_by_numba(given=True) for x in given)
    return *first, *kinds, *(x.seen_by_numba(given=False) for x in filled)


def _call(
    builder: Any,
    module: Any,
    compiled: Any,
    table: np.ndarray | None,
    buffers: Sequence[Any],
    place: Any,
) -> Any:
    """Generate a call of numba's code with what buffers hold, and whether nothing was raised.

    With a place it is what they hold there along an axis that vmap has put in front.
    """
    context, convention = _target.target_context, _target.target_context.call_conv
    result, kinds = compiled.fndesc.restype, compiled.signature.args
    # By its symbol, which is in memory: linked, it would be compiled once more.
    callee = cgutils.get_or_insert_function(
        module, convention.get_function_type(result, kinds), compiled.fndesc.llvm_func_name
    )
    values = [] if table is None else [_array(context, builder, _TABLE, *_whole(table))]
    values += [
        _value(context, builder, buffer, kind, place)
        for buffer, kind in zip(buffers, kinds[len(values) :], strict=True)
    ]
    status, _ = convention.call_function(builder, callee, result, kinds, values)
    return status.is_ok


def _buffers(builder: Any, frame: Any, num_given: int, num_filled: int) -> list[Any]:
    """Generate code for the addresses of a frame's buffers."""
    lists = (_ARGUMENTS, num_given), (_RESULTS, num_filled)
    return [
        _word(builder, _word(builder, frame, first), place)
        for first, count in lists
        for place in range(count)
    ]


def _fit(builder: Any, buffers: Sequence[Any], kinds: Sequence[Kind], axes: int) -> Any:
    """Generate code for whether buffers are of these kinds, with so many axes in front."""
    fit = ir.Constant(ir.IntType(1), 1)
    for buffer, kind in zip(buffers, kinds, strict=True):
        code = builder.trunc(_word(builder, buffer, _KIND), _HALF)  # the other half is padding
        rank = _word(builder, buffer, _RANK)
        fit = builder.and_(fit, builder.icmp_unsigned("==", code, _HALF(_CODES[kind.dtype])))
        fit = builder.and_(fit, builder.icmp_unsigned("==", rank, _WORD(kind.rank + axes)))
    return fit


def _side(builder: Any, buffer: Any, axis: int) -> Any:
    """Generate code for the length of an axis."""
    return _word(builder, _word(builder, buffer, _SIDES), axis)


def _word(builder: Any, address: Any, place: int) -> Any:
    """Generate code for a word of those at an address."""
    place = builder.add(address, _WORD(8 * place))
    return builder.load(builder.inttoptr(place, _WORD.as_pointer()))


def _value(context: Any, builder: Any, buffer: Any, kind: Any, place: Any) -> Any:
    """Generate code for what a buffer holds, or for a place's part of it, as numba sees it."""
    data = _word(builder, buffer, _DATA)
    # Nothing has no address; its place is not read, but functions of libraries may refuse 0.
    data = builder.select(builder.icmp_unsigned("==", data, _WORD(0)), buffer, data)
    dtype = getattr(kind, "dtype", kind)
    axes = range(getattr(kind, "ndim", 0))
    shape = [_side(builder, buffer, axis + (place is not None)) for axis in axes]
    if place is not None:  # an axis of length 1 stands for all places
        size = _WORD(context.get_abi_sizeof(context.get_data_type(dtype)))
        step = functools.reduce(builder.mul, shape, size)
        alone = builder.icmp_unsigned("==", _side(builder, buffer, 0), _WORD(1))
        data = builder.add(data, builder.select(alone, _WORD(0), builder.mul(place, step)))
    if isinstance(kind, types.Array):
        return _array(context, builder, kind, data, shape)
    pointer = builder.inttoptr(data, context.get_data_type(dtype).as_pointer())
    return context.unpack_value(builder, dtype, pointer)


def _whole(table: np.ndarray) -> tuple[Any, list[Any]]:
    """Return where a table lies, and its shape."""
    return _WORD(table.ctypes.data), [_WORD(side) for side in table.shape]


def _array(context: Any, builder: Any, kind: Any, data: Any, shape: Sequence[Any]) -> Any:
    """Generate code for an array of numba's."""
    element = context.get_data_type(kind.dtype)
    size = context.get_abi_sizeof(element)
    strides, step = [], _WORD(size)
    for side in reversed(shape):
        strides.insert(0, step)
        step = builder.mul(step, side)
    array = make_array(kind)(context, builder)
    pointer = builder.inttoptr(data, element.as_pointer())
    populate_array(array, pointer, shape, strides, size, None)
    return array._getvalue()
