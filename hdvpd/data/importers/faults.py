"""Faults of a source: where they are, and what to say of a file that cannot be read."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool
from hdvpd.data.checks import AbstractPlace

AGAIN = "Copy or download the file again."
_POINTER = re.compile(rb"version https://git-lfs\.github\.com/spec/v1\n.*\bsize (\d+)\b", re.DOTALL)
_POINTER_BYTES = 1024
"""Git LFS takes nothing larger for one of its pointers."""


class BadEpisodeError(UserError):
    """An episode that cannot be imported: --skip-bad leaves it out."""

    episode: str = ""


@dataclass(frozen=True)
class SourcePlace(AbstractPlace):
    """Where frames come from in the source, for messages."""

    file: Path
    episode: str

    def error(self, found: str, remedy: str = "", frame: int | None = None) -> BadEpisodeError:
        """Return the exception for something wrong in this episode.

        Args:
          found: what is wrong, one sentence without its full stop.
          remedy: what to do, whole sentences.
          frame: of the source, where one is at fault.
        """
        where = f"episode {self.episode}" + ("" if frame is None else f", frame {frame}")
        text = f"{self.file}: {where}: {' '.join(found.split())}. {remedy}"
        error = BadEpisodeError(text.strip())
        error.episode = self.episode
        return error

    def require(self, good: Bool[np.ndarray, "f"], name: str, found: str, remedy: str) -> None:
        """Pass if every frame is good; the message names the first bad one."""
        if not good.all():
            raise self.error(f"{name}: {found.rstrip(',')}", remedy, int(np.argmin(good)))


def reason(error: Exception) -> str:
    """Return what an exception says, on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def diagnosis(file: Path, verdict: str, remedy: str = AGAIN, name: str = "it") -> tuple[str, str]:
    """Say what is wrong with a file that cannot be read, perhaps a Git LFS pointer, and what to do.

    Args:
      file: at fault.
      verdict: what is said of any other file, after its name.
      remedy: what is advised for any other file.
      name: what the message calls the file.
    """
    try:
        with file.open("rb") as stream:
            found = _POINTER.match(stream.read(_POINTER_BYTES))
    except OSError:
        found = None
    if found is None:
        return f"{name} {verdict}", remedy
    return (
        f"{name} is a Git LFS pointer: the {int(found[1]):,} bytes that it stands for were not "
        "downloaded",
        f"Run `git lfs pull` in {file.parent}, or download the files themselves.",
    )


def read_json(file: Path, remedy: str = AGAIN) -> Any:
    """Read a JSON file of a source.

    Raises:
      FileNotFoundError: it is missing.
      UserError: it is damaged.
    """
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        verdict = f"cannot be read as JSON ({reason(error)})"
        raise fault(file, None, *diagnosis(file, verdict, remedy)) from error


def fault(file: Path, place: SourcePlace | None, found: str, remedy: str = AGAIN) -> UserError:
    """Return the exception for something wrong in a file.

    Returns:
      An exception to raise; for an episode a `BadEpisodeError`.
    """
    return UserError(f"{file}: {found}. {remedy}") if place is None else place.error(found, remedy)
