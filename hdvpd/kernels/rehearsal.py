"""Compiled host code made ready while XLA compiles the programs that call it."""

import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from jax.extend.mlir import ir
from jax.stages import Lowered

from hdvpd.kernels.ffi import HostFunction, call_alone, known

_DTYPES: dict[str, Any] = {
    "i1": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64,
    "ui8": np.uint8, "ui16": np.uint16, "ui32": np.uint32, "ui64": np.uint64,
    "bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32, "f64": np.float64,
}  # fmt: skip

_rehearsed: set[str] = set()
_choosing = threading.Lock()


def rehearsals(program: Lowered) -> list[Callable[[], object]]:
    """Return calls of the host functions of a program that compile what they run.

    numba compiles a function for the types of its first arguments: half a minute for a training
    step's functions, which nothing else waits for as long as XLA compiles. They are called with
    arrays of the program's shapes in which nothing is real: not a number, nothing marked, row 0.
    What goes wrong is told when the program calls them.

    Args:
      program: traced, not yet being compiled.

    Returns:
      Those that no program before had.
    """
    found: list[Callable[[], object]] = []

    def see(op: Any) -> Any:
        if op.name == "stablehlo.custom_call":
            name = ir.StringAttr(op.attributes["call_target_name"]).value
            function = known(name)
            if function is not None:
                given = [_shape(x) for x in op.operands]
                filled = [_shape(x) for x in op.results]
                if _is_new(name):
                    found.append(lambda: call_alone(lambda: _rehearse(function, given, filled)))
        return ir.WalkResult.ADVANCE

    module: Any = program.compiler_ir("stablehlo")
    module.operation.walk(see)
    return found


def _is_new(name: str) -> bool:
    with _choosing:
        new = name not in _rehearsed
        _rehearsed.add(name)
        return new


def _shape(value: Any) -> tuple[tuple[int, ...], Any]:
    tensor = ir.RankedTensorType(value.type)
    return tuple(tensor.shape), _DTYPES[str(tensor.element_type)]


def _rehearse(function: HostFunction, given: list[Any], filled: list[Any]) -> None:
    arguments = [_nothing(*x) for x in given]
    for array in arguments:
        array.flags.writeable = False
    function(*arguments, *(np.empty(*x) for x in filled))


def _nothing(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    inexact = not np.issubdtype(dtype, np.integer) and dtype != np.bool_
    return np.full(shape, np.nan if inexact else 0, dtype)
