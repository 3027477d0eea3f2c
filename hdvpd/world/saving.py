"""Particles as files: npz for everything, PLY for programs that show point clouds."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics import files
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool, Float, UInt8

REMEDY = "Free space or permit writing there, and save again."
FORMAT, VERSION = "hdvpd-particles", 2


def write_npz(file: Path, kind: str, arrays: dict[str, np.ndarray], facts: dict[str, Any]) -> None:
    """Write named arrays and plain values, all of it or nothing.

    Args:
      file: its final place.
      kind: what it holds, "state" or "future".
      arrays: by name.
      facts: plain values that belong to them.

    Raises:
      UserError: the disk is full or not writable, or the folder does not exist.
    """
    buffer = io.BytesIO()
    about = {"format": FORMAT, "version": VERSION, "kind": kind, **facts}
    np.savez_compressed(buffer, about=np.array(json.dumps(about)), **arrays)  # pyright: ignore[reportArgumentType]
    files.write(file, buffer.getvalue(), REMEDY)


def read_npz(file: Path, kind: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Read what `write_npz` wrote.

    Returns:
      Arrays by name, and the plain values.

    Raises:
      UserError: it is missing, damaged, or holds something else.
    """
    try:
        with np.load(file, allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
        facts = json.loads(str(arrays.pop("about")))
        found = facts["format"], facts["version"], facts["kind"]
    except Exception as error:  # zipfile, zlib, numpy and json have no common error
        raise UserError(f"{file} cannot be read as particles of hdvpd ({error}).") from error
    if found != (FORMAT, VERSION, kind):
        raise UserError(f"{file} holds {found}; expected {(FORMAT, VERSION, kind)}. Save it again.")
    return arrays, facts


def write_ply(
    file: Path,
    positions: Float[np.ndarray, "n 3"],
    colors: UInt8[np.ndarray, "n 3"],
    mask: Bool[np.ndarray, "n"],
) -> None:
    """Write the real particles as a binary PLY point cloud with colours.

    Args:
      file: its final place.
      positions: of particles [m].
      colors: likewise.
      mask: which are real.

    Raises:
      UserError: the disk is full or not writable, or the folder does not exist.
    """
    vertex = np.dtype([("place", "<f4", 3), ("color", "u1", 3)])
    rows = np.empty(int(mask.sum()), vertex)
    rows["place"], rows["color"] = positions[mask], colors[mask]
    properties = [f"property float {axis}" for axis in "xyz"]
    properties += [f"property uchar {color}" for color in ("red", "green", "blue")]
    head = ["ply", "format binary_little_endian 1.0", "comment metres, world frame, by hdvpd"]
    head += [f"element vertex {len(rows)}", *properties, "end_header"]
    files.write(file, ("\n".join(head) + "\n").encode() + rows.tobytes(), REMEDY)


def require_suffix(file: Path) -> str:
    """Return `.npz` or `.ply`.

    Raises:
      UserError: the name ends in something else.
    """
    if file.suffix not in (".npz", ".ply"):
        raise UserError(f"{file}: particles are saved as .npz or .ply; name the file so.")
    return file.suffix
