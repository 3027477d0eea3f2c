"""Decoding pictures that others wrote, from files or from bytes."""

import io
import re
from pathlib import Path

import numpy as np
from PIL import Image

from hdvpd.basics.types import Shaped, UInt8
from hdvpd.data.importers.base import Channels
from hdvpd.data.importers.faults import SourcePlace, diagnosis, reason

_DAMAGED = (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError, MemoryError)
"""What Pillow raises; truncated files give OSError, broken PNG headers SyntaxError."""


def decode(
    source: Path | bytes, place: SourcePlace, frame: int, size: tuple[int, int] | None, name: str
) -> np.ndarray:
    """Decode a picture.

    Args:
      source: a file, or an encoded picture.
      place: the episode.
      frame: of the source.
      size: height and width it must have [px]; None leaves it open.
      name: of the picture, for messages.

    Returns:
      Pixels as stored: (h w 3) colours, or (h w) of any type.

    Raises:
      BadEpisodeError: it is missing, damaged, or of another size.
    """
    try:
        with Image.open(io.BytesIO(source) if isinstance(source, bytes) else source) as picture:
            found = (picture.height, picture.width)
            if size is not None and found != size:
                raise place.error(
                    f"{name} is {found[0]}x{found[1]}, the others of this camera are "
                    f"{size[0]}x{size[1]}",
                    "All images of a camera have one size.",
                    frame,
                )
            if picture.mode in ("P", "RGBA"):
                return np.asarray(picture.convert("RGB"))
            return np.asarray(picture)
    except FileNotFoundError as error:
        raise place.error(f"{name} is missing", "Record or copy it again.", frame) from error
    except _DAMAGED as error:
        found, remedy = f"{name} is damaged ({reason(error)})", "Copy it again."
        if isinstance(source, Path):
            found, remedy = diagnosis(source, f"is damaged ({reason(error)})", remedy, name)
        raise place.error(found, remedy, frame) from error


def numbered(
    place: SourcePlace, folder: Path, name: re.Pattern[str], frames: int, rows: str, remedy: str
) -> list[Path]:
    """List the pictures of a folder, one per frame.

    Args:
      place: the episode.
      folder: inside it.
      name: matches the names of pictures; its first group is the number of the frame, from 0.
      frames: of the episode.
      rows: what counts them, for messages.
      remedy: what to do if the numbers differ, one sentence.

    Raises:
      BadEpisodeError: the folder or a picture is missing, a frame has two, or there are too many.
    """
    shown = folder.relative_to(place.file)
    if not folder.is_dir():
        raise place.error(f"the folder {shown} is missing")
    found: dict[int, Path] = {}
    for file in sorted(folder.iterdir()):
        if match := name.fullmatch(file.name):
            frame = int(match[1])
            other = found.setdefault(frame, file)
            if other != file:
                text = f"{shown} has two pictures for it, {other.name} and {file.name}"
                raise place.error(text, "Remove the one that does not belong to it.", frame)
    missing = next((frame for frame in range(frames) if frame not in found), None)
    if missing is not None:
        raise place.error(
            f"{shown} has no picture for it (it has {len(found)}, and there are {frames} {rows})",
            remedy,
            missing,
        )
    if len(found) > frames:
        text = f"{shown} has {len(found)} pictures, and there are only {frames} {rows}"
        raise place.error(text, remedy, frames)
    return [found[frame] for frame in range(frames)]


def decode_rgb(
    source: Path | bytes,
    place: SourcePlace,
    frame: int,
    size: tuple[int, int] | None,
    name: str,
) -> UInt8[np.ndarray, "h w 3"]:
    """Decode a colour picture; arguments and errors as of `decode`."""
    return require_rgb(decode(source, place, frame, size, name), place, frame, name)


def decode_depth(
    source: Path | bytes, place: SourcePlace, frame: int, size: tuple[int, int] | None, name: str
) -> Shaped[np.ndarray, "h w"]:
    """Decode a picture of depth; arguments and errors as of `decode`."""
    pixels = decode(source, place, frame, size, name)
    if pixels.ndim != 2 or pixels.dtype == np.uint8:
        raise place.error(
            f"{name} holds {pixels.dtype} of shape {pixels.shape}, expected one channel of 16 or "
            "32 bits",
            "An 8-bit picture of depth is for people; store the depth itself.",
            frame,
        )
    return pixels


def require_rgb(
    pixels: np.ndarray, place: SourcePlace, frame: int, name: str
) -> UInt8[np.ndarray, "h w 3"]:
    """Require 8-bit colours.

    Raises:
      BadEpisodeError: the picture has another type or number of channels.
    """
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[-1] != 3:
        raise place.error(
            f"{name} holds {pixels.dtype} of shape {pixels.shape}, expected 8-bit RGB",
            "Store colours with three channels.",
            frame,
        )
    return pixels


def in_rgb_order(
    pixels: UInt8[np.ndarray, "h w 3"], channels: Channels
) -> UInt8[np.ndarray, "h w 3"]:
    """Put channels into the order red, green, blue; a view."""
    return pixels[..., ::-1] if channels == "bgr" else pixels
