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
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.machine import usable_cores
from hdvpd.kernels.cores import give_share, take_share
from hdvpd.kernels.native import DTYPES, Entry, Kind, native, seen_by_numba

Call = Callable[[], None]
Answer = queue.SimpleQueue[str | None]

_FEW_CORES = 4
_VERSION = (0, 3)
_METADATA = 1
_INTERNAL_ERROR = 13


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
    function: Callable[..., None], results: Sequence[jax.ShapeDtypeStruct], *arguments: Any
) -> list[jax.Array]:
    """Call a function that fills arrays in place from a traced program, on CPU.

    Works under jit, vmap (one call per element), scan and rematerialisation. It has no derivative.
    The function runs while XLA waits and may not call jax. One that numba has compiled is called
    without Python from its second time on, on few cores.

    Args:
      function: a pure function of a module, perhaps `with_native`, which gets numpy views of the
        arguments (read-only; those without axes as numbers) and of the results (not initialised),
        in this order.
      results: shapes and dtypes to fill.
      *arguments: arrays.

    Raises:
      ValueError: another function of the same module and name was called before.
      XlaRuntimeError: the function raised; the message holds its traceback.
    """
    given = [Kind(np.dtype(jnp.result_type(x)), np.ndim(x)) for x in arguments]
    filled = [Kind(np.dtype(x.dtype), len(x.shape)) for x in results]
    name = _register(function, given, filled)
    call = jax.ffi.ffi_call(name, tuple(results), vmap_method="expand_dims")
    return list(call(*arguments))


def with_native(
    compiled: Any, table: np.ndarray
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator for a function that is called where a compiled one raises.

    Args:
      compiled: of numba's; it is given the table, then what the function is given.
      table: (rows, words) of int64.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        function.__dict__["native"] = compiled, table
        return function

    return decorate


class HostFunction:
    """A function for arrays of certain types, as XLA knows it by a name.

    Attributes:
      compiled: whether there is code of numba's that can be called without Python.
    """

    def __init__(self, name: str, function: Any, given: Sequence[Kind], filled: Sequence[Kind]):
        self.function, self.given, self.filled = function, given, filled
        self._handler = _Handler(functools.partial(_handle, self))
        self._in_python = ctypes.cast(self._handler, ctypes.c_void_p).value or 0
        self._entry = Entry(self._in_python)
        self._native, self._table = getattr(function, "native", (function, None))
        self.compiled = hasattr(self._native, "overloads")
        self._for_numba = self.compiled and without_python()
        capsule = jax.ffi.pycapsule(_Handler(self._entry.address))
        jax.ffi.register_ffi_target(name, capsule, platform="cpu")

    def __call__(self, *arrays: np.ndarray) -> None:
        """Call the function for each element of the axes that vmap has put in front."""
        ranks = [kind.rank for kind in (*self.given, *self.filled)]
        for x in each(ranks, len(self.given), *arrays):
            self.function(*x)
        if self._for_numba:
            if self._table is not None:
                self._native.compile(seen_by_numba(self.given, self.filled, self._table))
            code = native(
                self._native, self.given, self.filled, give_share, self._in_python, self._table
            )
            if code is not None:  # of no element at all nothing has been compiled
                self._for_numba = False
                self._entry.lead_to(code)


def each(ranks: Sequence[int], num_given: int, *arrays: np.ndarray) -> Iterator[list[Any]]:
    """Yield views for every place along the axes that vmap's "expand_dims" has put in front.

    Args:
      ranks: of every array without those axes.
      num_given: arrays that are read; of these, what has no axes is a number.
      *arrays: the last one has all those axes in full, others may have them of length 1.
    """
    numbers = [rank == 0 and i < num_given for i, rank in enumerate(ranks)]
    for place in np.ndindex(arrays[-1].shape[: arrays[-1].ndim - ranks[-1]]):
        views = [x[_within(place, x.shape)] for x in arrays]
        yield [x[()] if number else x for x, number in zip(views, numbers, strict=True)]


def _within(place: tuple[int, ...], shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return where an array has what belongs to a place; `...` keeps it an array."""
    return (*(min(i, n - 1) for i, n in zip(place, shape, strict=False)), ...)


# They have to stay alive: XLA holds the addresses of their handlers.
_REGISTERED: dict[str, HostFunction] = {}
_FUNCTIONS: dict[str, Callable[..., None]] = {}
_REGISTERING = threading.Lock()


def _register(function: Any, given: Sequence[Kind], filled: Sequence[Kind]) -> str:
    """Make a function known to XLA, once, and return the name under which it is.

    Programs and the compilation cache hold the name: it must stand for one function only, and for
    the same one in every process. Threads may trace programs that call it at the same time.
    """
    function_name = f"{function.__module__}.{function.__qualname__}"
    kinds = "->".join(",".join(map(str, kinds)) for kinds in (given, filled))
    name = f"{function_name}({kinds})"
    with _REGISTERING:
        if _FUNCTIONS.setdefault(function_name, function) is not function:
            raise ValueError(f"two functions {function_name}: programs could call either.")
        if name not in _REGISTERED:
            _REGISTERED[name] = HostFunction(name, function, given, filled)
    return name


def known(name: str) -> HostFunction | None:
    """Return the function that programs call by this name; None if it is none of ours."""
    return _REGISTERED.get(name)


_KEPT = threading.local()


def _keep_thread() -> None:
    """Let Python keep what it knows of the calling thread of XLA's until the next call.

    It would forget it with each return, and map, clear and unmap memory for the frames of every
    call, of which the process's other threads have to be told: a tenth of the demo's step.
    """
    if not hasattr(_KEPT, "state"):
        _KEPT.state = ctypes.pythonapi.PyGILState_Ensure()  # and never released


def _handle(function: HostFunction, frame: Any) -> int | None:
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


def without_python() -> bool:
    """Whether compiled code is called by XLA's own threads, and without Python if it can be."""
    return usable_cores() <= _FEW_CORES


def call_alone(call: Call) -> str | None:
    """Call, on many cores and outside the main thread in one that is kept; return what went wrong.

    On few cores OpenMP's workers are few, and to hand a call over would cost more than they do.
    """
    # Signals interrupt the main thread, which must not leave XLA's buffers to another.
    in_main_thread = threading.get_ident() == threading.main_thread().ident
    return _run(call) if in_main_thread or without_python() else _run_in_kept_thread(call)


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
    kind = DTYPES[dtype & 0xFFFFFFFF]  # the word's other half is padding
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
