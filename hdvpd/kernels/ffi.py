"""Python functions as XLA custom calls on CPU that read and write XLA's own buffers.

jax.pure_callback copies every argument on the way in and every result on the way out. A handler of
XLA's typed FFI copies nothing, and ctypes makes one from a Python function without a compiler. The
structures below are the beginnings of those in jaxlib/include/xla/ffi/api/c_api.h at version 0.3;
XLA promises to keep a version working for at least twelve months (same file).
"""

import ctypes
import functools
import os
import queue
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import jax
import ml_dtypes
import numpy as np

from hdvpd.basics.machine import usable_cores
from hdvpd.kernels.cores import take_share

Call = Callable[[], None]
Answer = queue.SimpleQueue[str | None]

_FEW_CORES = 4
_VERSION = (0, 3)
_METADATA = 1
_INTERNAL_ERROR = 13
_DTYPES = {
    number: np.dtype(kind)
    for number, kind in {
        1: np.bool_, 2: np.int8, 3: np.int16, 4: np.int32, 5: np.int64, 6: np.uint8, 7: np.uint16,
        8: np.uint32, 9: np.uint64, 10: np.float16, 11: np.float32, 12: np.float64,
        16: ml_dtypes.bfloat16,
    }.items()
}  # fmt: skip


class _Struct(ctypes.Structure):
    """The header that most structures of the interface share."""

    _fields_ = (("struct_size", ctypes.c_size_t), ("extension", ctypes.c_void_p))


class _Buffers(_Struct):
    _fields_ = (
        ("size", ctypes.c_int64),
        ("types", ctypes.c_void_p),
        ("buffers", ctypes.c_void_p),
    )


class _Version(_Struct):
    _fields_ = (("major", ctypes.c_int), ("minor", ctypes.c_int))


class _Metadata(ctypes.Structure):
    _fields_ = (("struct_size", ctypes.c_size_t), ("version", _Version))


class _Extension(ctypes.Structure):
    _fields_ = (
        ("struct_size", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("metadata", ctypes.POINTER(_Metadata)),
    )


class _Error(_Struct):
    _fields_ = (("message", ctypes.c_char_p), ("code", ctypes.c_int))


class _Api(_Struct):
    _fields_ = (
        ("version", _Version),
        ("internal", ctypes.c_void_p),
        ("create_error", ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Error))),
    )


class _Frame(_Struct):
    _fields_ = (
        ("api", ctypes.POINTER(_Api)),
        ("context", ctypes.c_void_p),
        ("stage", ctypes.c_int),
        ("arguments", _Buffers),
        ("results", _Buffers),
    )


_Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.POINTER(_Frame))


def ffi_call(
    function: Callable[..., None],
    results: Sequence[jax.ShapeDtypeStruct],
    *arguments: Any,
    vmap_method: str = "sequential",
) -> list[jax.Array]:
    """Call a function that fills arrays in place from a traced program, on CPU.

    Works under jit, vmap (by default one call per element), scan and rematerialisation. It has no
    derivative. The function runs while XLA waits and may not call jax.

    Args:
      function: a pure function of a module, which gets numpy views of the arguments (read-only)
        and of the results (not initialised), in this order.
      results: shapes and dtypes to fill.
      *arguments: arrays.
      vmap_method: of `jax.ffi.ffi_call`: what the function gets under vmap.

    Raises:
      ValueError: another function of the same module and name was called before.
      XlaRuntimeError: the function raised; the message holds its traceback.
    """
    call = jax.ffi.ffi_call(_register(function), tuple(results), vmap_method=vmap_method)
    return list(call(*arguments))


# Functions and their handlers, which have to stay alive: XLA holds their addresses.
_REGISTERED: dict[str, tuple[Callable[..., None], Any]] = {}
_REGISTERING = threading.Lock()


def _register(function: Any) -> str:
    """Make a function known to XLA, once, and return the name under which it is.

    Programs and the compilation cache hold the name: it must stand for one function only, and for
    the same one in every process. Threads may trace programs that call it at the same time.
    """
    name = f"{function.__module__}.{function.__qualname__}"
    with _REGISTERING:
        if name not in _REGISTERED:
            handler = _Handler(functools.partial(_handle, function))
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(handler), platform="cpu")
            _REGISTERED[name] = function, handler
    if _REGISTERED[name][0] is not function:
        raise ValueError(f"two functions {name}: compiled programs could call either.")
    return name


def known(name: str) -> Callable[..., None] | None:
    """Return the function that programs call by this name; None if it is none of ours."""
    return _REGISTERED.get(name, (None, None))[0]


_KEPT = threading.local()


def _keep_thread() -> None:
    """Let Python keep what it knows of the calling thread of XLA's until the next call.

    It would forget it with each return, and map, clear and unmap memory for the frames of every
    call, of which the process's other threads have to be told: a tenth of the demo's step.
    """
    if not hasattr(_KEPT, "state"):
        _KEPT.state = ctypes.pythonapi.PyGILState_Ensure()  # and never released


def _handle(function: Callable[..., None], frame: Any) -> int | None:
    """Answer XLA's question for our version, or run the function; return no error or one."""
    _keep_thread()
    frame = frame.contents
    if frame.extension:
        extension = _Extension.from_address(frame.extension)
        if extension.type == _METADATA:
            version = extension.metadata.contents.version
            version.major, version.minor = _VERSION
            return None

    def call() -> None:
        function(
            *_views(frame.arguments, writeable=False),
            *_views(frame.results, writeable=True),
        )

    found = call_alone(call)
    if found is None:
        return None
    error = _Error(ctypes.sizeof(_Error), None, found.encode(), _INTERNAL_ERROR)
    return frame.api.contents.create_error(ctypes.byref(error))


def call_alone(call: Call) -> str | None:
    """Call, on many cores and outside the main thread in one that is kept; return what went wrong.

    On few cores OpenMP's workers are few, and to hand a call over would cost more than they do.
    """
    # Signals interrupt the main thread, which must not leave XLA's buffers to another.
    in_main_thread = threading.get_ident() == threading.main_thread().ident
    few = usable_cores() <= _FEW_CORES
    return _run(call) if in_main_thread or few else _run_in_kept_thread(call)


def _run(call: Call) -> str | None:
    """Call; return what went wrong, because no exception may pass through C."""
    try:
        take_share()
        call()
    except BaseException:
        return traceback.format_exc()
    return None


_IDLE: list[queue.SimpleQueue[tuple[Call, Answer]]] = []
"""What waiting threads listen to; the last one that began to wait works next."""
os.register_at_fork(after_in_child=_IDLE.clear)  # threads are not forked


def _run_in_kept_thread(call: Call) -> str | None:
    """Call in a thread that is kept; there are as few as have ever worked at once.

    XLA calls from any of its many threads, and OpenMP gives every thread that ever began a parallel
    loop workers of its own for good: long runs collected them, with many cores by thousands.
    """
    try:
        todo = _IDLE.pop()
    except IndexError:
        todo = queue.SimpleQueue()
        thread = threading.Thread(target=_serve, args=(todo,), daemon=True, name="hdvpd-kernels")
        found = _run(thread.start)
        if found is not None:
            return found
    answer: Answer = queue.SimpleQueue()
    todo.put((call, answer))
    found = answer.get()
    _IDLE.append(todo)
    return found


def _serve(todo: queue.SimpleQueue[tuple[Call, Answer]]) -> None:
    while True:
        call, answer = todo.get()
        answer.put(_run(call))
        del call  # it holds views of XLA's buffers


# All memory as one buffer, out of which views are cut: a step has hundreds of calls, and ctypes
# would make several objects for each of their arrays.
_START = 4096
_MEMORY = memoryview((ctypes.c_byte * 2**62).from_address(_START)).cast("B")
_READ_ONLY = _MEMORY.toreadonly()
_WORDS = _MEMORY.cast("q")


def _views(buffers: _Buffers, *, writeable: bool) -> list[np.ndarray]:
    """Return arrays on a list of buffers; writeable or not is part of their type for numba."""
    memory = _MEMORY if writeable else _READ_ONLY
    return [_view(at, memory) for at in _words(buffers.buffers, buffers.size)]


def _view(address: int, memory: memoryview) -> np.ndarray:
    _size, _extension, dtype, data, rank, dims = _words(address, 6)
    kind = _DTYPES[dtype & 0xFFFFFFFF]  # the word's other half is padding
    shape = _words(dims, rank)
    if data < _START:  # nothing has no address
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, memory, data - _START)


def _words(address: int | None, count: int) -> list[int]:
    """Return the numbers of 64 bits that lie somewhere."""
    if not count:
        return []
    first = ((address or 0) - _START) // 8
    return _WORDS[first : first + count].tolist()
