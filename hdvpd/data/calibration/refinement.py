"""Where cameras stand to a small part of a pixel: the last step of a registration.

Nearest samples are a pixel apart and their normals are differences across two pixels; what is
learnt from them is biased by a part of a pixel. Here points are laid on the surface between the
pixels of the other image: inverse depth is linear in the image of a plane. What curves away counts
almost to its outline: of small things two cameras see no more in common, and nothing but these and
what is painted says that a camera slides along a table. float64.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from hdvpd.basics.types import Bool, Float, Int
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.clouds import Indexer, Scan
from hdvpd.data.calibration.correspondence import (
    UNKNOWNS,
    Falls,
    Rows,
    Track,
    colour_rows,
    distance_rows,
    fall,
)
from hdvpd.data.calibration.registration import (
    Change,
    Compared,
    Fit,
    compare,
    costs_of,
    free_unknowns,
    solve,
    update_tracks,
)
from hdvpd.data.calibration.views import Moment

GATES_M = (0.03, 0.02, *[0.015] * 13)
"""Largest distance of a point from the surface, iteration by iteration [m]."""
COARSE_M = (0.008, 0.0057, 0.004, 0.0028, 0.002, 0.0014, 0.001)
"""Least scatter of distances, iteration by iteration [m]: without noise things that stand a few
millimetres beside where they are seen would count as nothing, and the camera would stay there."""
SIGMAS = 4.0
"""The same in the scatter of the distances, where that is more."""
SMALL = 1e-4
"""A step of this many radians and metres is the last."""
FLOORS = {"plane": 5e-4, "colour": 0.3}
"""Least scatter of distances [m] and of grey values [standard deviations]."""
SHARES = {"colour": 0.25}
"""Of the weight: the edges of what is painted fall on the same pixels at all moments, if camera and
scene stand still, and are no new evidence; the noise of depth is another at each."""
COST_SCALES = {"plane": 0.002, "colour": 0.2}
POINTS, FEW_POINTS = 4000, 1000
"""Of each image: to say where a camera stands, and to compare explanations."""
LAST_ROUNDS = 2
"""Iterations with all of these points at most: what few points found is nearly right."""
PLACE_M = 0.1
"""What lies within a cube of this side is seen with one common error [m]."""
ALIKE = 3.0
"""True errors in the scatter over places (docs/calibration.md measures it)."""


def refine(moments: Sequence[Moment], fit: Fit, index: Indexer, max_points: int = POINTS) -> Fit:
    """Bring what a registration found to a part of a pixel, and say how well it is known.

    Args:
      moments: what was seen.
      fit: is nearly right.
      index: keeps what was made of the images.
      max_points: of each image that are laid on another's surface.

    Returns:
      The fit with other changes; its errors are from the scatter over places in the world, its
      costs from distances between pixels. The same fit if cameras share too little for that.
    """
    if max_points > FEW_POINTS:
        fit = refine(moments[::2], fit, index, FEW_POINTS)  # most of the way costs little
    names = list(fit.free)
    changes = dict(fit.changes)
    mask = free_unknowns(fit.free)
    tracks: dict[str, Track] = {}
    built: dict[str, Change] = {}
    error = np.zeros(len(mask))
    rows = Compared([], np.zeros(len(moments), int))
    last = max_points > FEW_POINTS
    gates = GATES_M[-LAST_ROUNDS:] if last else GATES_M
    coarse = () if last else COARSE_M
    for gate, least in itertools.zip_longest(gates, coarse, fillvalue=0.0):
        update_tracks(tracks, built, moments, changes, index, max_points, between=True)
        # What cuts the noise off leaves the camera where it is.
        widest = max(gate, SIGMAS * rows.scatter("plane", 0.0))
        rows = compare(tracks, names, functools.partial(between_pixels, gate=widest))
        if len(rows.residuals("plane")) < limits.MIN_SHARED_POINTS:
            return fit
        if not mask.any():
            break
        step, error = _solve(rows, tracks, names, mask, least)
        changes = {
            n: changes[n].moved(step[UNKNOWNS * k : UNKNOWNS * (k + 1)])
            for k, n in enumerate(names)
        }
        if not least and np.abs(step).max() < SMALL:
            break
    distances = np.abs(rows.residuals("plane"))
    return dataclasses.replace(
        fit,
        changes=changes,
        errors={n: error[UNKNOWNS * k : UNKNOWNS * (k + 1)] for k, n in enumerate(names)},
        after_m=float(np.median(distances)),
        costs=costs_of(rows, COST_SCALES),
        points=len(distances),
    )


def _solve(
    rows: Compared,
    tracks: Mapping[str, Track],
    names: Sequence[str],
    mask: Bool[np.ndarray, "u"],
    least: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return Gauss-Newton step and standard errors; distances scatter by `least` or more."""
    scales = {kind: rows.scatter(kind, floor) for kind, floor in FLOORS.items()}
    scales["plane"] = max(scales["plane"], least)
    places = []
    for _, b, r in rows.found:
        poses = tracks[b].poses[r.moment]
        places.append(np.einsum("nij,nj->ni", poses[:, :3, :3], r.points) + poses[:, :3, 3])
    cubes = np.floor(np.concatenate(places) / PLACE_M).astype(np.int64)
    size = np.ptp(cubes, axis=0) + 1
    _, groups = np.unique(
        np.ravel_multi_index(tuple((cubes - cubes.min(axis=0)).T), tuple(size)), return_inverse=True
    )
    ends = np.cumsum([len(found) for found in places])[:-1]
    step, error = solve(
        rows, names, mask, scales, np.split(groups, ends), int(groups.max()) + 1, SHARES
    )
    return step, ALIKE * error


def between_pixels(
    source: Track, target: Track, gate: float
) -> tuple[list[Rows], Int[np.ndarray, "m"]]:
    """Compare the samples of one camera with the surface between the pixels of another.

    Args:
      source: whose samples.
      target: whose surface.
      gate: largest distance [m].

    Returns:
      Rows of distances and of grey values, and how many samples by moment fall on a surface that
      goes on there and are farther from it.
    """
    falls, relative = fall(source, target)
    implicit, slopes = np.full(len(source.own), np.nan), np.zeros((len(source.own), 3))
    for k, scan in enumerate(target.scans):
        at = falls.ends[k] + np.flatnonzero(falls.inside[falls.ends[k] : falls.ends[k + 1]])
        if scan is not None and len(at):
            implicit[at], slopes[at] = _surface(scan, falls, at)
    steep = np.linalg.norm(slopes, axis=1)
    off = implicit / np.maximum(steep, 1e-9)
    off /= (noise := _noise(source.own[:, 2], falls.points[:, 2]))
    count = len(target.scans)
    known = np.isfinite(off)
    # Points farther behind the surface are hidden by it.
    near = known & (np.abs(off) < gate)
    missed = np.bincount(source.moment[known & ~near & (off < limits.BEHIND_M)], minlength=count)
    own, points, moment = source.own[near], falls.points[near], source.moment[near]
    if not len(own):
        return [], missed
    normals = slopes[near] / steep[near, None]
    partner = points - (off * noise)[near, None] * normals
    turn = relative[moment, :3, :3]
    some = (own, points, partner, turn, moment)
    rows = [distance_rows("plane", normals / noise[near, None], *some)]
    images = [None if scan is None else scan.texture for scan in target.scans]
    painted = near & np.isfinite(source.shades) & (falls.look(lambda scan: scan.smooth, 0.0) > 0)
    some = (values[painted[near]] for values in some)
    rows += colour_rows(falls.pixels[painted], source.shades[painted], target, images, *some)
    return rows, missed


def _noise(own: Float[np.ndarray, "n"], seen: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """Return how much more noise distances have than typical ones: depth has it by its square."""
    farther = np.maximum(own, seen)
    return np.square(farther / np.median(farther)) if len(farther) else farther


def _surface(
    scan: Scan, falls: Falls, at: Int[np.ndarray, "n"]
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "n 3"]]:
    """Return how much less the inverse depth of points is than that seen there, and its gradient.

    Args:
      scan: what sees the surface.
      falls: where points fall.
      at: the points, all inside the image.

    Returns:
      Both, positive behind the surface; NaN where no surface goes on between the pixels around.
    """
    height, width = scan.view.depth_m.shape
    inverse, down, right, bend_down, bend_right = (image.ravel() for image in scan.inverse)
    x, y = falls.pixels[at].T - 0.5
    column = np.clip(np.floor(x).astype(np.int64), 0, width - 2)
    row = np.clip(np.floor(y).astype(np.int64), 0, height - 2)
    a, b, first = x - column, y - row, row * width + column
    top_left, top_right = inverse[first], inverse[first + 1]
    low_left, low_right = inverse[first + width], inverse[first + width + 1]
    with np.errstate(invalid="ignore"):
        top, low = top_left + a * (top_right - top_left), low_left + a * (low_right - low_left)
        seen = top + b * (low - top)
    nearest = falls.row[at] * width + falls.column[at]
    # Chords of what is curved lie inside it.
    seen -= 0.5 * (a * (1 - a) * bend_right[nearest] + b * (1 - b) * bend_down[nearest])
    px, py, depth = falls.points[at].T
    focal = np.diagonal(scan.view.intrinsics)[:2]
    right, down = right[nearest] * focal[0] / depth, down[nearest] * focal[1] / depth
    slopes = np.stack([right, down, 1 / depth**2 - (right * px + down * py) / depth], axis=1)
    return np.where(scan.cells.ravel()[first], seen - 1 / depth, np.nan), slopes
