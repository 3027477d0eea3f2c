"""How deep the robot's points lie inside what is seen: the same at all times, if all stand right.

A point of a link that moves about lies inside something that moves: what is seen at the same place
at most moments is no link of it, though a table is as deep above everything that moves below it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Bool, Float, Int
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.clouds import Indexer, Surface, observe
from hdvpd.data.calibration.views import Moment, View, locate, project

CAP_M = 0.08
"""Distances that differ by more are another surface's; points that nothing shows count as this."""
RADIUS_M, RADIUS_SPREAD_M = 0.045, 0.02
"""Distance of a point from the surface of its link before anything is seen."""
STILL_M, STILL_FOOTPRINTS = 0.02, 2.0
"""What is less before the usual depth of its pixel stands still [m, widths of a pixel]."""
ABOUT_M = 0.15
"""A point that moves by more than this, in all, is not usually at the same place."""


@dataclass(frozen=True)
class Seen:
    """What a camera saw at a moment.

    Attributes:
      surface: of it.
      still: which of its samples are seen there at most moments; None where that is not known.
    """

    surface: Surface
    still: Bool[np.ndarray, "n"] | None


def look(moments: Sequence[Moment], index: Indexer) -> list[list[Seen]]:
    """Return what the cameras saw, by moment."""
    usual = {name: _usual([m.views[name] for m in moments]) for name in moments[0].views}
    found = []
    for moment in moments:
        row = []
        for name, view in moment.views.items():
            surface, far = observe(view, index), usual[name]
            if surface is not None:
                row.append(Seen(surface, None if far is None else _still(surface, far)))
        found.append(row)
    return found


def _usual(views: Sequence[View]) -> Float[np.ndarray, "h w"] | None:
    """Return the median depth of every pixel of a camera that stands still, NaN without any."""
    poses = np.stack([view.camera_to_world for view in views])
    if len(views) < limits.MIN_LAG_MOMENTS or not np.allclose(poses, poses[0], equal_nan=True):
        return None
    depth = np.stack([view.depth_m for view in views])
    known = np.ma.masked_array(depth, depth <= 0)
    return np.ma.filled(np.ma.median(known, axis=0).astype(np.float64), np.nan)


def _still(surface: Surface, usual_m: Float[np.ndarray, "h w"]) -> Bool[np.ndarray, "n"]:
    own = surface.own
    depth, usual = surface.view.depth_m[own.valid], usual_m[own.valid]
    return ~(depth < usual - np.maximum(STILL_M, STILL_FOOTPRINTS * own.footprints))


def depths(
    points: Float[np.ndarray, "m p 3"], seen: Sequence[Sequence[Seen]]
) -> tuple[Float[np.ndarray, "m c p"], Float[np.ndarray, "m c p 3"]]:
    """Return how deep points lie inside what is seen, negative in the air, and the gradients.

    Returns:
      Distances [m], NaN where nothing is known, and their directions.
    """
    cameras = max(len(row) for row in seen)
    away = np.full((len(points), cameras, points.shape[1]), np.nan)
    directions = np.zeros((*away.shape, 3))
    moving = np.linalg.norm(np.ptp(points, axis=0), axis=-1) > ABOUT_M
    for m, row in enumerate(seen):
        for c, what in enumerate(row):
            away[m, c], directions[m, c], nearest = _signed(points[m], what.surface)
            if what.still is not None:
                away[m, c, moving & (nearest >= 0) & what.still[nearest]] = np.nan
    return away, directions


def misfit(moments: Sequence[Moment], index: Indexer) -> Float[np.ndarray, "m"]:
    """Return by moment how much the depths of the robot's points in what is seen differ [m].

    A point is equally deep inside its link at every moment and in every camera, if all stand right.
    """
    rows = []
    for moment in moments:
        seen = [observe(view, index) for view in moment.views.values()]
        points = np.zeros((0, 3)) if moment.robot is None else moment.robot
        nothing = np.full(len(points), np.nan)
        rows.append([nothing if s is None else _signed(points, s)[0] for s in seen])
    return differences(np.array(rows))


def differences(away: Float[np.ndarray, "m c p"]) -> Float[np.ndarray, "m"]:
    """Return by moment how much distances differ from the typical ones of their points [m]."""
    off = np.minimum(np.abs(away - typical(away)), CAP_M)
    return np.where(np.isfinite(off), off, CAP_M).mean(axis=(1, 2))


def typical(away: Float[np.ndarray, "m c p"]) -> Float[np.ndarray, "p"]:
    """Return the typical distance of each point from the surface of its link [m]."""
    known = np.isfinite(away).any(axis=(0, 1))
    radii = np.full(away.shape[-1], RADIUS_M)
    radii[known] = np.nanmedian(away[..., known], axis=(0, 1))
    return np.clip(radii, 0.0, RADIUS_M + 3 * RADIUS_SPREAD_M)


def _signed(
    points: Float[np.ndarray, "p 3"], surface: Surface
) -> tuple[np.ndarray, np.ndarray, Int[np.ndarray, "p"]]:
    """Return depths, gradients and the nearest samples, -1 where nothing is known."""
    pixels, depth = project(points, surface.view)
    row, column, inside = locate(pixels, surface.view)
    front, seen = surface.front[row, column], surface.view.depth_m[row, column]
    known = inside & (depth < front + limits.LINK_DEPTH_M)
    away, directions = np.full(len(points), np.nan), np.zeros((len(points), 3))
    samples = np.full(len(points), -1)
    if known.any():
        distance, nearest = surface.search(points[known])
        there = seen[known] > 0
        behind = np.where(there, depth[known] > seen[known], depth[known] > front[known])
        sign = np.where(behind, 1.0, -1.0)
        offset = points[known] - surface.points[nearest]
        away[known], samples[known] = sign * distance, nearest
        directions[known] = sign[:, None] * offset / np.maximum(distance, 1e-6)[:, None]
    return away, directions, samples
