"""Writing files so that a reader finds the old content or the new one, never half of either."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from hdvpd.errors import UserError


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
