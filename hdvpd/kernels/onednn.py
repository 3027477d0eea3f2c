"""oneDNN, called through ctypes: operations on numpy arrays, prepared once per set of shapes.

The package `onednn-cpu-gomp` brings the library for Linux on x86-64; its threads are those of
numba's compiled loops. Declarations and numbers follow oneapi/dnnl/dnnl.h at version 3, whose
interface all releases of that version keep.
"""

import ctypes
import functools
import importlib.metadata
from collections.abc import Sequence
from typing import Any

import numpy as np

PACKAGE = "onednn-cpu-gomp"
"""What brings the library."""

Handle = ctypes.c_void_p
"""Of something that the library made."""

_MAX_AXES = 12
_CPU, _FLOAT32, _ANY_LAYOUT, _IN_ORDER, _OWN_SCRATCHPAD = 1, 3, 1, 1, 1
_SCRATCHPAD, _SCRATCHPAD_LAYOUT = 80, 136

# Of every kind of argument its number, and that of the question how an operation wants it.
SOURCE, WEIGHTS, RESULT = (1, 129), (33, 131), (17, 133)
SOURCE_BAR, WEIGHTS_BAR, RESULT_BAR = (129, 130), (161, 132), (145, 134)


class _Argument(ctypes.Structure):
    _fields_ = (("number", ctypes.c_int), ("memory", Handle))


@functools.cache
def available() -> bool:
    """Whether oneDNN is installed and can be loaded."""
    return _load() is not None


def take_threads(count: int) -> None:
    """Let what the calling thread prepares and calls from now on take so many threads."""
    if available():
        # The library finds it in the OpenMP that it is linked with.
        _load().omp_set_num_threads(count)


def threads() -> int:
    """Return how many threads what the calling thread prepares now would take."""
    return _load().omp_get_max_threads()


def address(name: str) -> int:
    """Return where a function of the library lies."""
    return ctypes.cast(getattr(_load(), name), Handle).value or 0


def layout(shape: Sequence[int], strides: Sequence[int] | None = None) -> Handle:
    """Describe an array of float32.

    Args:
      shape: its axes, in the order in which an operation counts them.
      strides: in elements; None leaves the order in memory to the operation.
    """
    if strides is None:
        name, order = "dnnl_memory_desc_create_with_tag", _ANY_LAYOUT
    else:
        name, order = "dnnl_memory_desc_create_with_strides", dims(strides)
    return make(name, len(shape), dims(shape), _FLOAT32, order)


def describe(name: str, *arguments: Any) -> Handle:
    """Describe an operation.

    Args:
      name: of the function of the library that does.
      *arguments: its arguments after the engine and before the attributes.
    """
    return make(name, _engine(), *arguments, _attributes())


def dims(values: Sequence[int]) -> Any:
    """Return one number per axis, as the library takes them."""
    return (ctypes.c_int64 * _MAX_AXES)(*values)


def make(name: str, *arguments: Any) -> Handle:
    """Call a function of the library that makes something.

    Raises:
      RuntimeError: the library refuses.
    """
    made = Handle()
    _call(name, ctypes.byref(made), *arguments)
    return made


class Prepared:
    """The steps of an operation, and the memory between them, for one call at a time.

    Attributes:
      stream: in which they run.
      given: what is told where arrays lie.
      steps: arguments of the library's function that runs one.
    """

    def __init__(
        self, primitive: Handle, arguments: list[tuple[int, Handle, Handle]], scratchpad: Handle
    ):
        self.stream = make("dnnl_stream_create", _engine(), _IN_ORDER)
        self._kept: list[np.ndarray] = []
        self.given: list[Handle] = []
        before, after, passed = [], [], [(_SCRATCHPAD, self._own_memory(scratchpad))]
        for number, given, wanted in arguments:
            memory = make("dnnl_memory_create", given, _engine(), None)
            self.given.append(memory)
            if not _load().dnnl_memory_desc_equal(given, wanted):
                own = self._own_memory(wanted)
                if len(self.given) < len(arguments):
                    before.append(_copy(given, wanted, memory, own))
                else:
                    after.append(_copy(wanted, given, own, memory))
                memory = own
            passed.append((number, memory))
        steps = *before, (primitive, _arguments(passed)), *after
        self.steps = [(primitive, self.stream, len(x), x) for primitive, x in steps]
        # Looked up here, for what Python does between two calls takes as long as a small operation.
        self._set, self._execute, self._wait = (
            getattr(_load(), f"dnnl_{name}")
            for name in ("memory_set_data_handle", "primitive_execute", "stream_wait")
        )

    def __call__(self, arrays: Sequence[np.ndarray]) -> None:
        """Run the steps.

        Raises:
          RuntimeError: the library refuses.
        """
        refused = 0
        for memory, array in zip(self.given, arrays, strict=True):
            place, _ = array.__array_interface__["data"]
            refused |= self._set(memory, Handle(place))
        for step in self.steps:
            refused |= self._execute(*step)
        refused |= self._wait(self.stream)
        if refused:
            raise RuntimeError("oneDNN refuses to run an operation that it has prepared.")

    def _own_memory(self, wanted: Handle) -> Handle:
        self._kept.append(np.empty(_load().dnnl_memory_desc_get_size(wanted), np.uint8))
        return make("dnnl_memory_create", wanted, _engine(), Handle(self._kept[-1].ctypes.data))


class Operation:
    """An operation on arrays of fixed layouts.

    Where it wants an array in another order, it copies it first, or the result at last.
    """

    def __init__(self, description: Handle, arguments: Sequence[tuple[tuple[int, int], Handle]]):
        """Prepare.

        Args:
          description: from `describe`.
          arguments: kind and layout of every array; the last one is the result.
        """
        self._primitive = make("dnnl_primitive_create", description)
        self._arguments = [
            (number, given, _asked(description, question))
            for (number, question), given in arguments
        ]
        self._scratchpad = _asked(description, _SCRATCHPAD_LAYOUT)
        # Several threads may be in it at once. Each takes memory that no other has, and leaves it.
        self._idle: list[Prepared] = []

    def __call__(self, *arrays: np.ndarray) -> None:
        """Fill in the last array from the others."""
        prepared = self.take()
        prepared(arrays)
        self.leave(prepared)

    def take(self) -> Prepared:
        """Return what is ready for one call at a time, and is the caller's now."""
        try:
            return self._idle.pop()
        except IndexError:
            return Prepared(self._primitive, self._arguments, self._scratchpad)

    def leave(self, prepared: Prepared) -> None:
        """Let later calls take it."""
        self._idle.append(prepared)


def _copy(source: Handle, target: Handle, memory: Handle, copied: Handle) -> tuple[Handle, Any]:
    description = make(
        "dnnl_reorder_primitive_desc_create", source, _engine(), target, _engine(), None
    )
    arguments = _arguments([(SOURCE[0], memory), (RESULT[0], copied)])
    return make("dnnl_primitive_create", description), arguments


def _arguments(passed: list[tuple[int, Handle]]) -> Any:
    return (_Argument * len(passed))(*passed)


def place_of(passed: Any) -> int:
    """Return where what is passed to a step lies."""
    return ctypes.addressof(passed)


def _asked(description: Handle, question: int) -> Handle:
    return Handle(_load().dnnl_primitive_desc_query_md(description, question, 0))


def _call(name: str, *arguments: Any) -> None:
    status = getattr(_load(), name)(*arguments)
    if status:
        raise RuntimeError(f"{name} of oneDNN refuses with status {status}.")


@functools.cache
def _load() -> Any:
    try:
        files = importlib.metadata.files(PACKAGE) or []
        path = next(str(file.locate()) for file in files if file.name == "libdnnl.so.3")
        found = ctypes.CDLL(path)
    except (importlib.metadata.PackageNotFoundError, StopIteration, OSError):
        return None
    found.dnnl_primitive_desc_query_md.restype = Handle
    found.dnnl_memory_desc_get_size.restype = ctypes.c_size_t
    return found


@functools.cache
def _engine() -> Handle:
    return make("dnnl_engine_create", _CPU, ctypes.c_size_t(0))


@functools.cache
def _attributes() -> Handle:
    made = make("dnnl_primitive_attr_create")
    _call("dnnl_primitive_attr_set_scratchpad_mode", made, _OWN_SCRATCHPAD)
    return made
