"""How a surface goes on between the pixels of an image: slopes and bends of its inverse depth.

On planes slopes are wide averages: those of a noisy table would otherwise seem to hold a camera
that slides along it. On what curves they are narrow ones, and beside its outline those between the
nearest pixels.
"""

import numpy as np
import scipy.ndimage

from hdvpd.basics.types import Bool, Float

NARROW_PX, WIDE_PX = 1.2, 4.0
"""Widths of the averages."""
FLAT = 3.0
"""A slope that differs from the wide average by less than this many times the usual scatter of
both is that of a plane."""


def inverse_depth(
    depth_m: Float[np.ndarray, "h w"],
    smooth: Bool[np.ndarray, "h w"],
    cells: Bool[np.ndarray, "h w"],
) -> tuple[Float[np.ndarray, "h w"], ...]:
    """Return the inverse of a depth image and how it goes on.

    Args:
      depth_m: 0 is invalid.
      smooth: where the surface goes on to all pixels around (`views.continuing`).
      cells: where it goes on to the next pixels right and below (`views.whole`).

    Returns:
      Inverse depth [1/m], its slopes per row and per column, which mean something at the corners of
      cells, and its second differences likewise, 0 where it is not smooth.
    """
    with np.errstate(divide="ignore"):
        inverse = 1.0 / depth_m
    single = [_of_cells(inverse, cells, axis) for axis in (0, 1)]
    narrow, wide = (
        [averaged(_central(inverse, axis), smooth, width) for axis in (0, 1)]
        for width in (NARROW_PX, WIDE_PX)
    )
    plane = np.ones(depth_m.shape, bool)
    for mine, slopes in ((smooth, narrow), (~smooth, single)):
        for slope, usual in zip(slopes, wide, strict=True):
            off = np.abs(slope - usual)
            scatter = 1.4826 * np.median(off[smooth]) if smooth.any() else 0.0
            plane &= ~mine | (off <= FLAT * scatter)
    slopes = (
        np.where(plane, w, np.where(smooth, n, s))
        for n, w, s in zip(narrow, wide, single, strict=True)
    )
    bends = (averaged(_bend(inverse, axis), smooth, NARROW_PX) for axis in (0, 1))
    return inverse, *slopes, *(np.where(smooth, bend, 0.0) for bend in bends)


def averaged(
    image: Float[np.ndarray, "h w"], mask: Bool[np.ndarray, "h w"], width: float
) -> Float[np.ndarray, "h w"]:
    """Return the mean over the pixels of a mask near each, with Gaussian weights."""
    share = scipy.ndimage.gaussian_filter(mask.astype(np.float64), width)
    total = scipy.ndimage.gaussian_filter(np.where(mask, image, 0.0), width)
    return total / np.maximum(share, 1e-6)


def corners(cells: Bool[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    """Say which pixels belong to any cell."""
    right = cells | np.roll(cells, 1, 1)
    return right | np.roll(right, 1, 0)


def _central(image: Float[np.ndarray, "h w"], axis: int) -> Float[np.ndarray, "h w"]:
    with np.errstate(invalid="ignore"):
        return (np.roll(image, -1, axis) - np.roll(image, 1, axis)) / 2


def _bend(image: Float[np.ndarray, "h w"], axis: int) -> Float[np.ndarray, "h w"]:
    with np.errstate(invalid="ignore"):
        return np.roll(image, -1, axis) + np.roll(image, 1, axis) - 2 * image


def _of_cells(
    image: Float[np.ndarray, "h w"], cells: Bool[np.ndarray, "h w"], axis: int
) -> Float[np.ndarray, "h w"]:
    """Return at each pixel the mean slope of the cells of which it is a corner."""
    with np.errstate(invalid="ignore"):
        step = np.roll(image, -1, axis) - image
        step = (step + np.roll(step, -1, 1 - axis)) / 2
    total, number = np.where(cells, step, 0.0), cells.astype(np.float64)
    for k in (0, 1):
        total, number = total + np.roll(total, 1, k), number + np.roll(number, 1, k)
    return total / np.maximum(number, 1.0)
