"""What the cameras saw at one instant, by the conventions of `hdvpd.data.pinhole`.

A calibration may be wrong here: a focal length may be negative and a pose no pose, and nothing
raises.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.ndimage

from hdvpd.basics.types import Bool, Float, Int, UInt8
from hdvpd.data.pinhole import pixel_directions

SLOPE_LIMIT = 6.0
"""Depth step to the next pixel, in pixel footprints, beyond which a surface is taken to end. A
surface seen at 80 degrees from its normal steps by 5.7 footprints."""

BEND_FOOTPRINTS = 2.0
"""Bends beyond which a surface is taken to end, in pixel footprints; twice that along diagonals."""
BEND_USUAL = 4.0
"""Bends that an image has anyway, by its noise, in multiples of the median one."""

PATH_REACH = 3
"""Frames before and after a moment at which the robot is known."""


@dataclass(frozen=True)
class View:
    """What one camera saw at one instant, and where it is said to stand.

    Attributes:
      rgb: colours.
      depth_m: planar depth [m]; 0 is invalid.
      intrinsics: pinhole matrix [px].
      camera_to_world: pose with OpenCV axes.
      recorded_size: rows and columns of the image as recorded, if this one is thinned.
    """

    rgb: UInt8[np.ndarray, "h w 3"]
    depth_m: Float[np.ndarray, "h w"]
    intrinsics: Float[np.ndarray, "3 3"]
    camera_to_world: Float[np.ndarray, "4 4"]
    recorded_size: tuple[int, int] | None = None

    @property
    def usable(self) -> bool:
        """Whether points can be computed at all: finite matrices, focal lengths that are not 0."""
        finite = np.isfinite(self.intrinsics).all() and np.isfinite(self.camera_to_world).all()
        return bool(finite and (np.diagonal(self.intrinsics) != 0).all())

    @property
    def pixel_angle(self) -> float:
        """Width of a pixel at unit depth: its footprint is this times the depth."""
        focal = abs(self.intrinsics[0, 0]) + abs(self.intrinsics[1, 1])
        return float(2.0 / max(focal, 1e-9))

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns of the image as recorded."""
        return self.recorded_size or (self.depth_m.shape[0], self.depth_m.shape[1])

    @property
    def thinning(self) -> float:
        """Rows of the image as recorded per row of this one."""
        return self.size[0] / self.depth_m.shape[0]

    @property
    def recorded_intrinsics(self) -> Float[np.ndarray, "3 3"]:
        """Pinhole matrix of the image as recorded [px]."""
        stride = self.size[0] // self.depth_m.shape[0]  # rows that fill no block are fewer
        return self.intrinsics * np.array([[stride], [stride], [1.0]])


@dataclass(frozen=True)
class Moment:
    """All cameras at one instant.

    Attributes:
      episode: number of the episode.
      frame: of the episode.
      views: by camera.
      robot: kinematic points of the robot in the world [m]; None where link poses are unknown.
      links: poses of the links that these points belong to, in the world [m]; None likewise.
      path: the same points from `PATH_REACH` frames before to as many after; None where the
        episode is too short for that.
    """

    episode: int
    frame: int
    views: Mapping[str, View]
    robot: Float[np.ndarray, "p 3"] | None = None
    links: Float[np.ndarray, "l 4 4"] | None = None
    path: Float[np.ndarray, "f p 3"] | None = None


def some(moments: Sequence[Moment], count: int) -> list[Moment]:
    """Choose up to so many moments, evenly spread."""
    at = np.unique(np.linspace(0, len(moments) - 1, min(count, len(moments))).round().astype(int))
    return [moments[k] for k in at]


def coarse(moments: Sequence[Moment], least: int) -> list[Moment]:
    """Thin the views of moments by three, where as many pixels as the least remain."""

    def smaller(view: View) -> View:
        found = thin(view, view.depth_m.size // 4)
        return found if found.depth_m.size >= least else view

    return [
        dataclasses.replace(m, views={name: smaller(view) for name, view in m.views.items()})
        for m in moments
    ]


def thin(view: View, max_pixels: int) -> View:
    """Keep the middle pixel of every block, so that an image has at most `max_pixels`.

    Blocks have odd sides: then the kept pixel centres are those of an image resized by their side,
    and dividing the intrinsics by it is exact.
    """
    height, width = view.depth_m.shape
    stride = 1
    while (height // stride) * (width // stride) > max_pixels:
        stride += 2
    if stride == 1:
        return view
    rows, columns = (slice(stride // 2, stride * (n // stride), stride) for n in (height, width))
    scale = np.array([[1.0 / stride], [1.0 / stride], [1.0]])
    return View(
        view.rgb[rows, columns],
        view.depth_m[rows, columns],
        view.intrinsics * scale,
        view.camera_to_world,
        view.size,
    )


def world_points(view: View) -> Float[np.ndarray, "h w 3"]:
    """Lift every pixel to the world [m]; an invalid one lands on the camera's centre."""
    directions = pixel_directions(view.intrinsics, view.depth_m.shape)
    points = directions * view.depth_m[..., None]
    return points @ view.camera_to_world[:3, :3].T + view.camera_to_world[:3, 3]


def project(
    points: Float[np.ndarray, "n 3"], view: View
) -> tuple[Float[np.ndarray, "n 2"], Float[np.ndarray, "n"]]:
    """Project world points.

    Returns:
      (x, y) in pixels, NaN behind the camera, and planar depth [m].
    """
    local = (points - view.camera_to_world[:3, 3]) @ view.camera_to_world[:3, :3]
    depth = local[:, 2]
    safe = np.where(depth > 1e-9, depth, np.nan)[:, None]
    focal = np.diagonal(view.intrinsics)[:2]
    return local[:, :2] / safe * focal + view.intrinsics[:2, 2], depth


def locate(
    pixels: Float[np.ndarray, "n 2"], view: View
) -> tuple[Int[np.ndarray, "n"], Int[np.ndarray, "n"], Bool[np.ndarray, "n"]]:
    """Find the pixel that holds each position.

    Args:
      pixels: (x, y); NaN is nowhere.
      view: the camera.

    Returns:
      Row, column (0 for positions outside), and whether the position is inside the image.
    """
    height, width = view.depth_m.shape
    x, y = pixels[:, 0], pixels[:, 1]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    row, column = (np.where(inside, value, 0.0).astype(np.int64) for value in (y, x))
    return row, column, inside


def nearest_around(depth_m: Float[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
    """Return the least valid depth [m] of the 3x3 pixels around each, inf where there is none."""
    known = np.where(depth_m > 0, depth_m, np.inf)
    return scipy.ndimage.minimum_filter(known, size=3, mode="constant", cval=np.inf)


def silhouettes(view: View) -> Bool[np.ndarray, "h w"]:
    """Say for every pixel whether a surface ends within the 3x3 pixels around it."""
    known = np.where(view.depth_m > 0, view.depth_m, -np.inf)
    farthest = scipy.ndimage.maximum_filter(known, size=3, mode="constant", cval=-np.inf)
    nearest = nearest_around(view.depth_m)
    # Across three pixels the steps of a steep surface add up.
    with np.errstate(invalid="ignore"):
        return farthest - nearest > 2 * SLOPE_LIMIT * view.pixel_angle * nearest


def continuing(view: View) -> Bool[np.ndarray, "h w"]:
    """Say for every pixel whether the surface goes on to all of the 3x3 pixels around it.

    Planes are linear in inverse depth, so that its second differences, as depth, are what a surface
    bends: it ends where they exceed a footprint, and what the noise of the image makes likely.
    """
    depth = view.depth_m
    found = np.zeros(depth.shape, bool)
    if min(depth.shape) < 3:
        return found
    middle = depth[1:-1, 1:-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = 1.0 / depth
        around = (
            (inverse[1:-1, 2:], inverse[1:-1, :-2]),
            (inverse[2:, 1:-1], inverse[:-2, 1:-1]),
            (inverse[2:, 2:], inverse[:-2, :-2]),
            (inverse[2:, :-2], inverse[:-2, 2:]),
        )
        bends = [np.abs(a + b - 2 / middle) * middle**2 for a, b in around]
    known = np.isfinite(bends).all(axis=0)
    if not known.any():
        return found
    usual = float(np.median(np.stack(bends)[:, known]))
    # A curve bends by the square of the distance, noise does not.
    most = BEND_FOOTPRINTS * view.pixel_angle * middle * np.array([1, 1, 2, 2])[:, None, None]
    limit = np.maximum(most, BEND_USUAL * usual)
    found[1:-1, 1:-1] = known & (np.stack(bends) <= limit).all(axis=0)
    return found


def whole(view: View) -> Bool[np.ndarray, "h w"]:
    """Say for every pixel whether it, the next right and below, and theirs are one surface.

    A surface goes on from a pixel to the next if it bends little at either of the two: what curves
    away from the camera is whole almost to its outline, and a step is not.
    """
    depth = view.depth_m
    found = np.zeros(depth.shape, bool)
    if min(depth.shape) < 3:
        return found
    bends = np.full((2, *depth.shape), np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(depth > 0, 1.0 / depth, np.nan)
        bends[0, 1:-1] = np.abs(inverse[2:] + inverse[:-2] - 2 * inverse[1:-1])
        bends[1, :, 1:-1] = np.abs(inverse[:, 2:] + inverse[:, :-2] - 2 * inverse[:, 1:-1])
    bends *= depth**2
    if not np.isfinite(bends).any():
        return found
    most = BEND_FOOTPRINTS * view.pixel_angle * depth
    down, right = bends <= np.maximum(most, BEND_USUAL * float(np.nanmedian(bends)))
    seen = depth > 0
    down = (down[:-1] | down[1:]) & seen[:-1] & seen[1:]
    right = (right[:, :-1] | right[:, 1:]) & seen[:, :-1] & seen[:, 1:]
    found[:-1, :-1] = down[:, :-1] & down[:, 1:] & right[:-1] & right[1:]
    return found


def surface_normals(view: View, points: Float[np.ndarray, "h w 3"]) -> Float[np.ndarray, "h w 3"]:
    """Return unit normals of the seen surface from the neighbouring pixels.

    Returns:
      Normals of either sign; 0 where a neighbour is missing or the surface ends (`SLOPE_LIMIT`).
    """
    normals = np.zeros_like(points)
    depth = view.depth_m
    if min(depth.shape) < 3:
        return normals
    middle = depth[1:-1, 1:-1]
    around = np.stack([depth[1:-1, 2:], depth[1:-1, :-2], depth[2:, 1:-1], depth[:-2, 1:-1]])
    limit = SLOPE_LIMIT * view.pixel_angle * middle
    smooth = (middle > 0) & ((around > 0) & (np.abs(around - middle) <= limit)).all(axis=0)
    across = points[1:-1, 2:] - points[1:-1, :-2]
    along = points[2:, 1:-1] - points[:-2, 1:-1]
    normal = np.cross(across, along)
    length = np.linalg.norm(normal, axis=-1)
    good = smooth & (length > 0)
    normals[1:-1, 1:-1] = np.where(
        good[..., None], normal / np.where(good, length, 1.0)[..., None], 0.0
    )
    return normals
