"""Images at another size.

Intrinsics follow by scaling their rows (docs/conventions.md), so the centre of a new pixel must
show what the old image has exactly there: neither function moves anything by part of a pixel.
"""

import functools

import numpy as np
import scipy.sparse
from PIL import Image

from hdvpd.basics.types import Float, Int, UInt8


def resize_rgb(
    rgb: UInt8[np.ndarray, "f h w 3"], height: int, width: int
) -> UInt8[np.ndarray, "f i j 3"]:
    """Resize colour images: shrinking averages over the area of each new pixel.

    Old pixels that a new one covers in part count by that part. An axis that grows is interpolated
    linearly.

    Returns:
      The images at the new size, unchanged if they have it already.
    """
    old_height, old_width = rgb.shape[1:3]
    if (old_height, old_width) == (height, width):
        return rgb
    shrunk = [_average(frame, min(height, old_height), min(width, old_width)) for frame in rgb]
    if height <= old_height and width <= old_width:
        return np.stack(shrunk)
    grown = (Image.fromarray(f).resize((width, height), Image.Resampling.BILINEAR) for f in shrunk)
    return np.stack([np.asarray(frame) for frame in grown])


def _average(frame: UInt8[np.ndarray, "h w 3"], height: int, width: int) -> np.ndarray:
    old_height, old_width = frame.shape[:2]
    rows = _shares(old_height, height) @ frame.reshape(old_height, -1).astype(np.float32)
    columns = rows.reshape(height, old_width, 3).swapaxes(0, 1).reshape(old_width, -1)
    mean = (_shares(old_width, width) @ columns).reshape(width, height, 3).swapaxes(0, 1)
    return (mean + np.float32(0.5)).astype(np.uint8)


@functools.lru_cache(maxsize=32)
def _shares(old: int, new: int) -> scipy.sparse.csr_array:
    """Return how much of each new pixel every old one covers, along one axis that shrinks."""
    ends = np.linspace(0, old, new + 1)
    cuts = np.union1d(ends, np.arange(old + 1))
    middles = (cuts[1:] + cuts[:-1]) / 2  # of pieces that lie in one new and in one old pixel
    row = np.searchsorted(ends, middles) - 1
    share = (np.diff(cuts) * new / old).astype(np.float32)
    return scipy.sparse.csr_array((share, (row, middles.astype(np.int64))), shape=(new, old))


def resize_depth(
    depth_m: Float[np.ndarray, "f h w"], height: int, width: int
) -> Float[np.ndarray, "f i j"]:
    """Resize depth images by the nearest pixel, moved along its surface to the new centre.

    The nearest centre is up to half an old pixel away, which on an oblique surface is a wrong
    depth. Inverse depth is linear in the pixel on a plane, so the value follows the slope between
    the pixel and its neighbours: the smaller of the two slopes along each axis, none where they
    differ in sign or depth is 0, unknown. So planes stay exact, and at an edge the value follows
    its own side: surfaces are never blended.

    Returns:
      The images at the new size [m], unchanged if they have it already.
    """
    old_height, old_width = depth_m.shape[1:3]
    if (old_height, old_width) == (height, width):
        return depth_m
    row, down = _nearest(old_height, height)
    column, right = _nearest(old_width, width)
    nearest = _taken(depth_m, row, column)
    change = down[:, None] * _slope(
        nearest,
        _taken(depth_m, np.maximum(row - 1, 0), column),
        _taken(depth_m, np.minimum(row + 1, old_height - 1), column),
    ) + right * _slope(
        nearest,
        _taken(depth_m, row, np.maximum(column - 1, 0)),
        _taken(depth_m, row, np.minimum(column + 1, old_width - 1)),
    )
    return (nearest / (1 + nearest * change)).astype(depth_m.dtype)


def _nearest(old: int, new: int) -> tuple[Int[np.ndarray, "n"], Float[np.ndarray, "n"]]:
    """Return the old pixel that holds each new centre, and how far beyond its own that is [px]."""
    centres = (np.arange(new) + 0.5) * old / new
    index = centres.astype(np.int64)
    return index, (centres - index - 0.5).astype(np.float32)


def _taken(images: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    return images[:, rows[:, None], columns[None, :]]


def _slope(here: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the smaller slope of inverse depth [1/m per pixel]: minmod, as of shock schemes."""
    with np.errstate(divide="ignore", invalid="ignore"):  # unknown depth gives no number
        first, second = 1 / here - 1 / before, 1 / after - 1 / here
        smaller = np.where(np.abs(first) < np.abs(second), first, second)
        known = np.isfinite(first) & np.isfinite(second)
        return np.where(known & (first * second > 0), smaller, np.float32(0))
