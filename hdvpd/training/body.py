"""Learn the robot's body, a box about every kinematic point, from points that are its own."""

import itertools

import numpy as np
from scipy.spatial import KDTree

from hdvpd.basics.types import Array, Float, Int
from hdvpd.dynamics.body import Boxes

_NEAREST = 8
"""Kinematic points of which one may have a surface point in its box."""
_VOXEL_M = 0.005
"""Size of the places of a link at which points are counted."""
_AGAIN = 0.05
"""Share of the frames in which a place is seen, at least; once and again is chance."""
_AS_OFTEN = 0.5
"""A point belongs to the nearest link in whose axes it is at least so often seen at one place as in
those of the link in which it is most often."""
_OUTSIDE = 0.007
"""Share of the points that may lie outside at either side of a box."""
_ENOUGH = 1 / 4
"""A box needs this many times the points of the mean."""
_RIGID_M, _RIGID = 4e-3, 4e-2
"""Points whose places and axes vary by less than this, seen from each other, are of one link."""


def fit_boxes(
    positions: Float[Array, "n 3"],
    frame: Int[Array, "n"],
    points: Float[Array, "f p 3"],
    axes: Float[Array, "f p 3 3"],
) -> Boxes:
    """Return the boxes of all kinematic points; those of points with too little surface are empty.

    Seen from its own link a surface is at one place in all frames, seen from others at many: so
    fingers that slide in a hand are told from the hand, although they are nearer to its points.

    Args:
      positions: of the robot's surface [m].
      frame: which frame each is of, ascending.
      points: kinematic points of every frame [m].
      axes: of their links, in columns.
    """
    positions, points, axes = (np.asarray(x, np.float64) for x in (positions, points, axes))
    low, high = np.zeros((2, points.shape[1], 3), np.float32)
    if not len(positions):
        return Boxes(low, high)
    nearest = _nearest(positions, frame, points)
    link = links_of(points, axes)[nearest]
    seen = _seen_again(_in_axes(positions, frame, link, points, axes), link)
    often = seen >= _AS_OFTEN * seen.max(axis=1, keepdims=True)
    chosen = np.argmax(often, axis=1)[:, None]
    owner = np.take_along_axis(nearest, chosen, axis=1)
    again = np.take_along_axis(seen, chosen, axis=1)[:, 0] >= _AGAIN * len(points)
    local = _in_axes(positions, frame, owner, points, axes)[:, 0]
    for number in range(points.shape[1]):
        own = local[again & (owner[:, 0] == number)]
        if len(own) >= _ENOUGH * len(positions) / points.shape[1]:
            low[number], high[number] = np.quantile(own, [_OUTSIDE, 1 - _OUTSIDE], axis=0)
    return Boxes(low, high)


def links_of(points: Float[Array, "f p 3"], axes: Float[Array, "f p 3 3"]) -> Int[np.ndarray, "p"]:
    """Return for every kinematic point the first one that never moves as seen from it.

    Args:
      points: in all frames [m].
      axes: of their links, in columns.
    """
    points, axes = np.asarray(points), np.asarray(axes)
    link = np.arange(points.shape[1])
    for number in range(points.shape[1]):
        own = axes[:, number]
        place = np.einsum("fba,fpb->fpa", own, points - points[:, number, None])
        turn = np.einsum("fba,fpbc->fpac", own, axes)
        fixed = np.ptp(place, axis=0).max(-1) < _RIGID_M
        fixed &= np.ptp(turn, axis=0).max((-1, -2)) < _RIGID
        link[number] = link[np.flatnonzero(fixed)[0]]
    return link


def _nearest(
    positions: Float[np.ndarray, "n 3"], frame: Int[Array, "n"], points: Float[np.ndarray, "f p 3"]
) -> Int[np.ndarray, "n k"]:
    """Return the nearest kinematic points of every position, nearest first."""
    ends = np.searchsorted(frame, np.arange(len(points) + 1))
    parts = []
    for number, (start, end) in enumerate(itertools.pairwise(ends)):
        count = min(_NEAREST, points.shape[1])
        near = KDTree(points[number]).query(positions[start:end], k=count)[1]
        parts.append(np.asarray(near).reshape(-1, count))
    return np.concatenate(parts)


def _in_axes(
    positions: Float[np.ndarray, "n 3"],
    frame: Int[Array, "n"],
    chosen: Int[np.ndarray, "n k"],
    points: Float[np.ndarray, "f p 3"],
    axes: Float[np.ndarray, "f p 3 3"],
) -> Float[np.ndarray, "n k 3"]:
    """Return positions in the axes of chosen kinematic points, from these."""
    at = np.asarray(frame)[:, None], chosen
    return np.einsum("nkba,nkb->nka", axes[at], positions[:, None] - points[at])


def _seen_again(
    local: Float[np.ndarray, "n k 3"], link: Int[np.ndarray, "n k"]
) -> Int[np.ndarray, "n k"]:
    """Return how many positions are at the same place of each of the links, counted once a link."""
    voxel = np.floor(local / _VOXEL_M).astype(np.int64) + 512
    place = ((link * 1024 + voxel[..., 0]) * 1024 + voxel[..., 1]) * 1024 + voxel[..., 2]
    once = np.ones(link.shape, bool)
    for k in range(1, link.shape[1]):
        once[:, k] = (link[:, :k] != link[:, k, None]).all(axis=1)
    places, counts = np.unique(place[once], return_counts=True)
    return counts[np.searchsorted(places, place)]
