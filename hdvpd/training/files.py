"""Writing files so that a reader finds the old content or the new one, never half of either."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hdvpd.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Replace a file's content in one step: write aside, flush to disk, rename.

    Raises:
      UserError: the disk is full or not writable; the old content is intact.
    """
    aside = path.with_name(f".{path.name}-{os.getpid()}")
    with explain_write_errors(path):
        try:
            aside.write_text(text)
            sync(aside)
            aside.replace(path)
            sync(path.parent)
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
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn a full or read-only disk into one message; any other error passes.

    Args:
      path: what is being written.

    Raises:
      UserError: writing failed for a reason outside the program.
    """
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        reason = _reason(error)
        if reason is None:
            raise
        raise UserError(
            f"Could not write {path}: {reason}. Everything written before it is intact. Free some "
            "space or permit writing there, then continue the run with --resume."
        ) from error


def _reason(error: Exception) -> str | None:
    """Say why the system refused to write, or None for an error of another kind."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    # Orbax passes on TensorStore's errors, which carry the errno only in their text.
    _, found, number = str(error).partition("os_error_code='")
    return os.strerror(int(number.partition("'")[0])) if found else None
