"""Reading HDF5 files that others wrote: every fault becomes a message, and no link leads outside.

h5py is imported when it is needed; it comes with the extra `import`.
"""

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.data.importers.faults import (
    AGAIN,
    SourcePlace,
    diagnosis,
    fault,
    reason,
)

MAX_BLOCK_BYTES = 2**26
"""Read at once where chunks of the file span many rows."""


@contextlib.contextmanager
def open_hdf5(file: Path, place: SourcePlace | None = None) -> Iterator[Any]:
    """Open an HDF5 file for reading, without locks, which read-only disks refuse.

    Raises:
      UserError: h5py is not installed, or the file is missing, empty, truncated or no HDF5; for an
        episode a `BadEpisodeError`.
    """
    try:
        import h5py
    except ImportError as error:
        raise UserError(
            f"Reading HDF5 files needs h5py, which is not installed: {how_to_install('import')}."
        ) from error
    try:
        stream = h5py.File(file, "r", locking=False)
    except OSError as error:
        wrong = diagnosis(file, f"is damaged or no HDF5 file ({reason(error)})")
        raise fault(file, place, *wrong) from error
    with stream:
        yield stream


class Node:
    """A group of an HDF5 file, as part of an episode."""

    def __init__(self, place: SourcePlace, group: Any) -> None:
        """Wrap an h5py group."""
        self.place, self._group = place, group

    def names(self, path: str = "") -> tuple[str, ...]:
        """List what a group holds, in the order of the file; nothing if there is no such group.

        Raises:
          BadEpisodeError: there is an array in its place.
        """
        if not path:
            return tuple(self._group)
        return self.group(path).names() if path in self else ()

    def __contains__(self, path: str) -> bool:
        """Say whether there is a group or array."""
        try:
            return path in self._group
        except (KeyError, ValueError, RuntimeError):
            return False

    def group(self, path: str) -> "Node":
        """Return a group inside this one.

        Raises:
          BadEpisodeError: there is none, or an array in its place.
        """
        if path not in self:
            raise self.place.error(f"the group '{path}' is missing", _REMEDY)
        found = self._get(path)
        if hasattr(found, "shape"):
            raise self.place.error(f"'{path}' is an array, expected a group", _REMEDY)
        return Node(self.place, found)

    def attribute(self, name: str) -> Any:
        """Return an attribute, text decoded, or None."""
        try:
            value = self._group.attrs.get(name)
        except (OSError, RuntimeError, ValueError) as error:
            raise self.place.error(f"attribute '{name}' is damaged ({reason(error)})") from error
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

    def json_attribute(self, name: str) -> Any:
        """Return a decoded JSON attribute, or None if there is none.

        Raises:
          BadEpisodeError: it is no JSON.
        """
        text = self.attribute(name)
        if text is None:
            return None
        try:
            return json.loads(text)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.place.error(f"attribute '{name}' is no JSON ({error})") from error

    def shape(self, path: str) -> tuple[int, ...]:
        """Return the shape of an array.

        Raises:
          BadEpisodeError: there is no such array.
        """
        return tuple(self._array(path).shape)

    def dtype(self, path: str) -> np.dtype:
        """Return the type of an array's values."""
        return self._array(path).dtype

    def read(self, path: str, shape: tuple[int | None, ...]) -> np.ndarray:
        """Read a whole array of numbers as float64; None in its shape stands for any length.

        Raises:
          BadEpisodeError: it is missing, damaged, of another shape or no numbers.
        """
        array = self._array(path)
        self.check_shape(path, shape)
        if array.dtype.kind not in "biuf":
            raise self.place.error(f"'{path}' has type {array.dtype}, expected numbers", _REMEDY)
        return np.asarray(self._values(array, path, slice(None), None), np.float64)

    def check_shape(self, path: str, shape: tuple[int | None, ...]) -> None:
        """Require a shape; None stands for any length.

        Raises:
          BadEpisodeError: it has another.
        """
        found = self.shape(path)
        agrees = len(found) == len(shape) and all(
            n in (None, m) for n, m in zip(shape, found, strict=True)
        )
        if not agrees:
            expected = "(" + ", ".join("any" if n is None else str(n) for n in shape) + ")"
            raise self.place.error(f"'{path}' has shape {found}, expected {expected}", _REMEDY)

    def rows(self, path: str, rows: Sequence[int]) -> Iterator[np.ndarray]:
        """Read chosen, ascending rows of an array one after the other.

        Rows of one chunk are read together, so that it is decompressed once, unless they are larger
        than `MAX_BLOCK_BYTES`.

        Raises:
          BadEpisodeError: a row is damaged.
        """
        array = self._array(path)
        row_bytes = max(array.dtype.itemsize * math.prod(array.shape[1:]), 1)
        chunk = min((array.chunks or (1,))[0], max(MAX_BLOCK_BYTES // row_bytes, 1))
        for _, block in itertools.groupby(rows, lambda row: row // chunk):
            wanted = list(block)
            first = wanted[0]
            values = self._values(array, path, slice(first, wanted[-1] + 1), first)
            yield from (values[row - first] for row in wanted)

    def _array(self, path: str) -> Any:
        if path not in self:
            raise self.place.error(f"the array '{path}' is missing", _REMEDY)
        found = self._get(path)
        if not hasattr(found, "shape"):
            raise self.place.error(f"'{path}' is a group, expected an array", _REMEDY)
        if found.shape is None:  # HDF5's null dataspace
            raise self.place.error(f"'{path}' holds no values", _REMEDY)
        if found.external or found.is_virtual:
            raise self.place.error(
                f"'{path}' keeps its values in another file", "Copy it with h5repack first."
            )
        return found

    def _get(self, path: str) -> Any:
        import h5py

        try:
            for part in itertools.accumulate(path.split("/"), lambda a, b: f"{a}/{b}"):
                if isinstance(self._group.get(part, getlink=True), h5py.ExternalLink):
                    raise self.place.error(
                        f"'{part}' is a link to another file", "Copy it with h5repack first."
                    )
            return self._group[path]
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            raise self.place.error(f"'{path}' is damaged ({reason(error)})", AGAIN) from error

    def _values(self, array: Any, path: str, index: Any, frame: int | None) -> np.ndarray:
        try:
            return array[index]
        except (OSError, RuntimeError, ValueError, KeyError, TypeError, MemoryError) as error:
            raise self.place.error(
                f"'{path}' is damaged ({reason(error)})", AGAIN, frame
            ) from error


_REMEDY = "docs/importing.md shows the layout that is expected."
