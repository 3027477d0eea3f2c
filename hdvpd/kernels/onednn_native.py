"""Operations that oneDNN has prepared, run by compiled code.

A table has a row for everything that waits to be run: what it is for, and its steps. Python adds
one when all that are for certain arrays are in use, or none is there yet.
"""

import threading
from typing import Any, no_type_check

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hdvpd.basics.machine import usable_cores
from hdvpd.kernels import onednn
from hdvpd.kernels.compiled import compiled_njit
from hdvpd.kernels.ffi import without_python

_ROWS, _AXES = 256, 4
_STEPS, _STEP = 4, 3
# Words of a row: whether it is in use, shapes of three arrays and threads, a stream, what to tell
# where the arrays lie, how many steps there are and these. The first word of all counts the rows.
_SHAPES, _THREADS, _STREAM, _MEMORIES, _COUNT, _FIRST = 1, 13, 14, 15, 18, 19
_WORDS = _FIRST + _STEPS * _STEP

_kept: list[onednn.Prepared] = []
_adding = threading.Lock()

_FUNCTIONS = {
    "dnnl_memory_set_data_handle": types.int32(types.int64, types.int64),
    "dnnl_primitive_execute": types.int32(types.int64, types.int64, types.int32, types.int64),
    "dnnl_stream_wait": types.int32(types.int64),
    "omp_get_max_threads": types.int32(),
}
if onednn.available():
    for _name in _FUNCTIONS:
        llvm.add_symbol(f"hdvpd_{_name}", onednn.address(_name))
_set, _execute, _wait, _threads = (
    types.ExternalFunction(f"hdvpd_{name}", kind) for name, kind in _FUNCTIONS.items()
)


def table() -> np.ndarray:
    """Return a table for operations of one kind, on two arrays of four axes that fill a third."""
    return np.zeros((1 + _ROWS, _WORDS), np.int64)


def run_and_add(
    table: np.ndarray, operation: onednn.Operation, arrays: tuple[np.ndarray, ...]
) -> None:
    """Run what `run` has not found, and let it find that from now on, where it is asked first.

    There are no more for the same arrays than there are cores, and none in a table that is full.
    """
    prepared = operation.take()
    prepared(arrays)
    key = np.array([*(side for x in arrays for side in x.shape), onednn.threads()])
    with _adding:
        row = table[0, 0] + 1
        known = (table[1:row, _SHAPES:_STREAM] == key).all(1).sum()
        if row == len(table) or known == usable_cores() or not without_python():
            operation.leave(prepared)
            return
        _kept.append(prepared)
        words = table[row]
        words[_SHAPES:_STREAM], words[_STREAM] = key, prepared.stream.value
        words[_MEMORIES:_COUNT] = [memory.value for memory in prepared.given]
        words[_COUNT] = len(prepared.steps)
        for number, (primitive, _, count, passed) in enumerate(prepared.steps):
            place = onednn.place_of(passed)
            words[_FIRST + _STEP * number :][:_STEP] = primitive.value, count, place
        table[0, 0] = row  # complete


@intrinsic
def _exchange(typing: Any, table: Any, row: Any, word: Any) -> Any:
    """Set whether a row is in use, and return whether it was."""
    del typing

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        table_type = signature.args[0]
        array = context.make_array(table_type)(context, builder, arguments[0])
        indices = arguments[1], ir.Constant(arguments[1].type, 0)
        place = cgutils.get_item_pointer(context, builder, table_type, array, indices)
        return builder.atomic_rmw("xchg", place, arguments[2], "acq_rel")

    return types.int64(table, types.int64, types.int64), generate


@compiled_njit()
@no_type_check
def run(table: np.ndarray, one: np.ndarray, other: np.ndarray, result: np.ndarray) -> None:
    """Fill in the result by what waits in a table.

    Raises:
      LookupError: there is nothing for these arrays, or the library refuses.
    """
    threads = _threads()
    for row in range(1, table[0, 0] + 1):
        if not _is_for(table, row, one, other, result, threads) or _exchange(table, row, 1):
            continue
        refused = _set(table[row, _MEMORIES], np.int64(one.ctypes.data))
        refused |= _set(table[row, _MEMORIES + 1], np.int64(other.ctypes.data))
        refused |= _set(table[row, _MEMORIES + 2], np.int64(result.ctypes.data))
        stream = table[row, _STREAM]
        for step in range(table[row, _COUNT]):
            first = _FIRST + _STEP * step
            count, place = np.int32(table[row, first + 1]), table[row, first + 2]
            refused |= _execute(table[row, first], stream, count, place)
        refused |= _wait(stream)
        _exchange(table, row, 0)
        if refused:
            break
        return
    raise LookupError


@compiled_njit()
@no_type_check
def _is_for(table, row, one, other, result, threads):
    same = table[row, _THREADS] == threads
    for axis in range(_AXES):
        place = _SHAPES + axis
        same &= table[row, place] == one.shape[axis]
        same &= table[row, place + _AXES] == other.shape[axis]
        same &= table[row, place + 2 * _AXES] == result.shape[axis]
    return same
