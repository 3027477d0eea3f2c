"""Reading pickles of strangers: nothing but numpy arrays and empty stand-ins is ever built.

A pickle is a program that may call anything it can name. Here it can name six functions of numpy,
one text encoder, and classes of the packages whose recordings are wanted; each of those classes
becomes an empty one that only takes attributes. Any other name ends the reading.
"""

import importlib
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

_NUMPY = {
    ("numpy", "ndarray"), ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"), ("numpy._core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"), ("numpy._core.numeric", "_frombuffer"),
}  # fmt: skip
_BROKEN = (
    EOFError, AttributeError, ImportError, IndexError, KeyError, TypeError, ValueError,
    OverflowError, MemoryError, RecursionError, OSError,
)  # fmt: skip
"""What unpickling a damaged file raises beside UnpicklingError."""


class UnsafePickleError(Exception):
    """A pickle is damaged, or names something that it may not."""


class StandIn:
    """An object of a foreign class: its attributes, and nothing of its behaviour."""


def read_pickle(file: Path, package: str) -> Any:
    """Read a pickle without running anything of it; classes of `package` become stand-ins.

    Returns:
      Plain values, numpy arrays and `StandIn`s.

    Raises:
      UnsafePickleError: it is damaged, or names anything else; nothing of it was run.
    """
    try:
        with file.open("rb") as stream:
            return _Unpickler(stream, package).load()
    except pickle.UnpicklingError as error:
        raise UnsafePickleError(str(error) or "it is truncated") from error
    except _BROKEN as error:
        raise UnsafePickleError(f"{type(error).__name__}: {error}") from error


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: Any, package: str) -> None:
        super().__init__(stream)
        self._package = package
        # Made anew for every file, so that no pickle can change what another one gets.
        self._classes: dict[tuple[str, str], type] = {}

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        key = (module_name, global_name)
        if key in _NUMPY:
            return _numpy(global_name)
        if key == ("_codecs", "encode"):
            return _encode
        if module_name == self._package or module_name.startswith(f"{self._package}."):
            return self._classes.setdefault(key, type(global_name, (StandIn,), {}))
        raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which is not allowed")


def _numpy(name: str) -> Callable[..., Any]:
    if name in ("ndarray", "dtype"):
        return getattr(np, name)
    if name == "_frombuffer":
        return _frombuffer
    return getattr(importlib.import_module("numpy._core.multiarray"), name)


def _frombuffer(buffer: Any, dtype: Any, shape: Any, order: Any) -> np.ndarray:
    return np.frombuffer(buffer, dtype=dtype).reshape(shape, order=order)


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes text as {encoding!r}, which is not allowed")
    return text.encode("latin1")
