"""Writing so that a reader finds the old content or the new one, and two writers never mix.

A file is written aside, flushed and renamed. A folder that one process at a time may write is
locked (`locked`); the system frees the lock of a process however it ends.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from hdvpd.basics.errors import UserError

LOCK = ".lock"
"""Lies in a folder while a process writes there."""

_TRIES, _PAUSE_S = 50, 0.01
"""How often a lock is tried that others make and remove at the same time."""


class FolderInUseError(UserError):
    """Another process writes in a folder."""


def write(file: Path, content: str | bytes, remedy: str) -> None:
    """Replace a file's content in one step, as `replace` does.

    Args:
      file: its final place.
      content: text is stored as UTF-8.
      remedy: what to do if the system refuses, whole sentences.

    Raises:
      UserError: the disk is full or not writable; the old content is intact.
    """
    with explain_write_errors(file, remedy):
        replace(file, content)


def replace(file: Path, content: str | bytes) -> None:
    """Write aside, flush to disk, rename.

    Args:
      file: its final place; its folder exists.
      content: text is stored as UTF-8.

    Raises:
      OSError: the system refuses; the old content is intact.
    """
    aside = file.with_name(f".partial-{file.name}-{os.getpid()}")
    try:
        aside.write_bytes(content.encode() if isinstance(content, str) else content)
        sync(aside)
        aside.replace(file)
        sync(file.parent)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def sync(path: Path) -> None:
    """Flush a file or a folder's entries to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def locked(file: Path, refusal: str, remedy: str) -> Iterator[None]:
    """Keep every other process out of what is to be written.

    Where a file system has no locks (some network disks), nothing is kept out.

    Args:
      file: is locked, and removed at the end; its folder is made if it is not there, and removed
        again if it stays empty.
      refusal: what another process does there and what to do, whole sentences.
      remedy: what to do if the folder cannot be made.

    Raises:
      FolderInUseError: another process holds the lock.
      UserError: the folder cannot be made or written.
    """
    is_new = not file.parent.exists()
    with explain_write_errors(file.parent, remedy):
        held = _take_lock(file)
    if held is None:
        raise FolderInUseError(refusal)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # before it is released: `_take_lock` looks for that
            file.unlink()
            if is_new:
                file.parent.rmdir()
        held.close()


def _take_lock(file: Path) -> IO[str] | None:
    """Return the open, locked file; None if another process holds it."""
    for left in reversed(range(_TRIES)):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            held = file.open("w")
        except FileNotFoundError:  # who held it has just removed the empty folder
            if not left:  # or it is a folder that takes no files, as /proc is
                raise
            time.sleep(_PAUSE_S)
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.close()
            return None
        except OSError:
            return held
        # Who held it may have removed it between our opening and our locking.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(held.fileno()), file.stat()):
                return held
        held.close()
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(file))


@contextlib.contextmanager
def explain_write_errors(what: Path | str, remedy: str) -> Iterator[None]:
    """Turn a full or read-only disk into one message; any other error passes.

    Raises:
      UserError: writing failed for a reason outside the program.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise UserError(f"Could not write {what}: {reason}. {remedy}") from error


def _reason(error: Exception) -> str | None:
    """Say why the system refused to write, or None for an error of another kind."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # TensorStore's errors, which Orbax passes on, carry the errno only in their text.
    _, found, number = str(error).partition("os_error_code='")
    return os.strerror(int(number.partition("'")[0])) if found else None
