"""Writing a native data set so that nothing half-written is ever visible.

An episode is written aside, flushed to disk and renamed; readers only see six-digit folders. The
arrays are zarr v3 through TensorStore with a checksum per chunk: without it a flipped bit decodes
to wrong pixels silently. Frames of an image are chunks of a shard, written at once because every
write rewrites the shard; TensorStore's threads compress one shard while the next is filled.
"""

import contextlib
import fcntl
import functools
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorstore

from hdvpd.basics import files, sealed
from hdvpd.basics.errors import UserError
from hdvpd.data import arrays as declared
from hdvpd.data.remote import require_local

MAX_SHARD_FRAMES = 64
"""Two shards of every image are in memory while an episode is streamed."""
_ZSTD = {"name": "zstd", "configuration": {"level": -1}}
"""Colours come out as small as with level 1 and are read faster."""
FREE_SPACE = "Free space or permit writing there"
INCOMPLETE = "incomplete.json"
"""Lies in a data set while an import is under way or after it failed; readers refuse it."""


def episode_folder(path: Path, number: int) -> Path:
    """Return the folder of an episode."""
    return path / "episodes" / f"{number:06d}"


def make_dataset(path: Path) -> None:
    """Make the folder of a data set, where it is not there yet.

    Raises:
      UserError: the disk is full or not writable, or the path is of a remote store.
    """
    require_local(path)
    with files.explain_write_errors(path, f"{FREE_SPACE}, or choose another --out."):
        (path / "episodes").mkdir(parents=True, exist_ok=True)


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Keep every other process from writing a data set; readers need no lock.

    What a killed process left of a JSON file aside is removed first.

    Args:
      path: of the data set; made if it is not there, and removed again if it stays empty.

    Raises:
      FolderInUseError: another process writes it.
      UserError: it is a file or in a remote store, or the disk is full or not writable.
    """
    refusal = (
        f"Another process is writing the data set {path}. Wait for it, stop it, or choose another "
        "--out."
    )
    require_local(path)
    if path.is_file():
        raise UserError(f"{path} is a file; choose another --out, or remove it.")
    with files.locked(path / files.LOCK, refusal, f"{FREE_SPACE}, or choose another --out."):
        for left in path.glob(".partial-*.json-*"):
            left.unlink()
        yield


def is_in_use(path: Path, own: Collection[str] = ()) -> bool:
    """Say whether a folder holds anything beside what is `own`, or is no folder."""
    if not path.is_dir():
        return path.exists()
    return bool({entry.name for entry in path.iterdir()} - {files.LOCK, *own})


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file with its digest, all of it or nothing.

    Args:
      file: its final place; an earlier version is replaced.
      value: plain values; the same value always gives the same bytes.

    Raises:
      UserError: the disk is full or not writable.
    """
    files.write(file, sealed.dumps(value), f"{FREE_SPACE}, and run the same command again.")


def write_episode(
    path: Path, number: int, meta: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
) -> None:
    """Add one episode to a data set, all of it or nothing.

    Args:
      path: the data set; its dataset.json exists.
      number: of the episode; an episode that another process finished meanwhile is kept.
      meta: content of episode.json.
      arrays: by path inside the episode (docs/data-format.md).

    Raises:
      UserError: the disk is full or not writable.
    """
    with new_episode(path, number, meta) as episode:
        episode.write(arrays)


@contextlib.contextmanager
def new_episode(path: Path, number: int, meta: Mapping[str, Any]) -> Iterator["EpisodeWriter"]:
    """Add one episode to a data set piece by piece, all of it or nothing.

    Arguments as in `write_episode`; `meta` is read when the block ends, so it may be completed
    inside.

    Yields:
      What takes the arrays. The episode appears when the block ends; an exception leaves nothing.

    Raises:
      UserError: the disk is full or not writable.
    """
    final = episode_folder(path, number)
    aside = final.with_name(f".partial-{number:06d}-{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    remedy = (
        f"{FREE_SPACE}, or choose another --out; finished episodes are kept and the same command "
        "continues."
    )
    # Around what writes, and nothing else: what fails inside the caller's block is not the disk's.
    explained = functools.partial(files.explain_write_errors, f"episode {number} of {path}", remedy)
    try:
        with explained():
            aside.mkdir(parents=True)
        with _locked(aside):
            episode = EpisodeWriter(aside, explained)
            try:
                yield episode
            finally:
                episode.finish()
            with explained():
                files.replace(aside / "episode.json", sealed.dumps(meta))
                for folder, _, _ in os.walk(aside):
                    files.sync(Path(folder))
                if not final.exists():
                    aside.rename(final)
                    files.sync(final.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


class EpisodeWriter:
    """Takes the arrays of an episode that is being written.

    Memory stays bounded when images come a shard at a time: `create`, then `write_frames`.
    """

    def __init__(
        self, folder: Path, explained: Callable[[], contextlib.AbstractContextManager[None]]
    ) -> None:
        self._folder, self._explained = folder, explained
        self._growing: dict[str, tensorstore.TensorStore] = {}
        self._writing: list[tensorstore.WriteFutures] = []

    def write(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Write whole arrays, by path inside the episode.

        Raises:
          UserError: the disk is full or not writable.
        """
        with self._explained():
            opening = {n: self._open(n, a.shape, a.dtype) for n, a in arrays.items()}
            # All at once: most of the time goes into flushing, which overlaps.
            writing = [
                store.result().write(np.ascontiguousarray(arrays[name]))
                for name, store in opening.items()
            ]
            for future in writing:
                future.result()

    def create(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> None:
        """Begin an array that comes in pieces.

        Raises:
          UserError: the disk is full or not writable.
        """
        with self._explained():
            self._growing[name] = self._open(name, shape, np.dtype(dtype)).result()

    def write_frames(self, start: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Begin to write the next frames of arrays begun with `create`, and end the ones before.

        Args:
          start: first frame; a multiple of `MAX_SHARD_FRAMES`, or every shard is written twice.
          arrays: frames by path inside the episode; left alone until the next call has returned.

        Raises:
          UserError: the disk is full or not writable.
        """
        self.finish()
        with self._explained():
            self._writing = [
                self._growing[name][start : start + len(values)].write(np.ascontiguousarray(values))
                for name, values in arrays.items()
            ]

    def finish(self) -> None:
        """Wait until everything is written.

        Raises:
          UserError: the disk is full or not writable.
        """
        with self._explained():
            for future in self._writing:
                future.result()
        self._writing = []

    def _open(self, name: str, shape: tuple[int, ...], dtype: np.dtype) -> tensorstore.Future:
        spec = {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": str(self._folder / name)},
            "metadata": _metadata(shape, dtype, name),
            # A frame of zeros is a frame; by default it would not be stored and read as missing.
            "store_data_equal_to_fill_value": True,
        }
        return tensorstore.open(spec, create=True, delete_existing=True)


def finished_episodes(path: Path) -> list[int]:
    """List the numbers of the episodes that are complete, ascending."""
    folder = path / "episodes"
    if not folder.is_dir():
        return []
    return sorted(int(e.name) for e in folder.iterdir() if re.fullmatch(r"\d{6}", e.name))


def clear_partial_episodes(path: Path) -> None:
    """Remove what killed writers left behind; episodes of live writers stay."""
    for entry in (path / "episodes").glob(".partial-*"):
        if entry.is_dir() and not _is_locked(entry):
            shutil.rmtree(entry, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold a lock that ends with this process, however it ends; a pid may be reused or a zombie."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some network disks have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _is_locked(folder: Path) -> bool:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _metadata(shape: tuple[int, ...], dtype: np.dtype, name: str) -> dict[str, Any]:
    spec = declared.spec_of(name)
    order = {} if dtype.itemsize == 1 else {"configuration": {"endian": "little"}}
    codecs: list[dict[str, Any]] = [
        {"name": "bytes", **order},
        _lz4(dtype.itemsize) if spec.codec == "lz4" else _ZSTD,
        {"name": "crc32c"},
    ]
    chunk = list(shape)
    if spec.chunk_frames:
        frame = {"chunk_shape": [1, *chunk[1:]], "codecs": codecs}
        codecs = [{"name": "sharding_indexed", "configuration": frame}]
        chunk[0] = min(chunk[0], MAX_SHARD_FRAMES)
    metadata = {
        "shape": list(shape),
        "data_type": dtype.name,
        "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk}},
        # Chunks beside zarr.json: a folder per dimension would have to be flushed one by one.
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}},
        "codecs": codecs,
    }
    if spec.chunk_frames:
        metadata["dimension_names"] = list(spec.dimensions)
    return metadata


def _lz4(itemsize: int) -> dict[str, Any]:
    options = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "typesize": itemsize}
    return {"name": "blosc", "configuration": {**options, "blocksize": 0}}
