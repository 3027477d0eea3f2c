"""Where along its surfaces a camera stands: a search of what planes leave open.

Registration lays planes on planes from far away, but it slides along them only as far as the next
edge. Here whole shifts along the main surface, and turns about its normal, are tried at once: each
is judged by how far depth and grey values differ where points fall.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.spatial.transform import Rotation

from hdvpd.basics.types import Float
from hdvpd.data.calibration.clouds import Indexer, Scan
from hdvpd.data.calibration.registration import Change
from hdvpd.data.calibration.views import Moment

SHIFTS_M = np.linspace(-0.09, 0.09, 7)
TURNS_M = np.array([-0.03, 0.0, 0.03])
"""Turns about the normal, by how far they move what lies at a typical distance from the middle."""
POINTS = 150
DEPTH_M = 0.03
"""Difference of depth that counts as much as any larger one."""
SHADES = 1.5
"""Difference of grey values that does [standard deviations]."""
SHADE_WEIGHT = 0.5
LEAST_SEEN = 0.3
"""Share of the points that must fall into the other image."""


def slid(
    moments: Sequence[Moment], camera: str, change: Change, index: Indexer, count: int = 2
) -> list[Change]:
    """Find the likeliest places of a camera along its surfaces.

    Args:
      moments: what was seen.
      camera: that may stand elsewhere.
      change: after which its planes lie on those of the others.
      index: makes the nearest-point search.
      count: of changes that are returned at most.

    Returns:
      The likeliest changes, best first; none if no place is better than that of `change`.
    """
    scans = [_scans(moment, {camera: change}, index) for moment in moments]
    own = [found[camera] for found in scans if camera in found]
    if not own:
        return []
    steps, still = _steps(own)
    costs = np.zeros(len(steps))
    compared = 0
    for moment, found in zip(moments, scans, strict=True):
        if camera not in found:
            continue
        pose = moment.views[camera].camera_to_world @ change.pose @ steps
        for other, scan in found.items():
            if other != camera:
                there = np.linalg.inv(moment.views[other].camera_to_world) @ pose
                costs += _cost(found[camera], scan, there)
                costs += _cost(scan, found[camera], np.linalg.inv(there))
                compared += 2
    best = [int(k) for k in np.argsort(costs)[:count] if costs[k] < costs[still] - 1e-3 * compared]
    return [dataclasses.replace(change, pose=change.pose @ steps[k]) for k in best]


def _scans(moment: Moment, changes: Mapping[str, Change], index: Indexer) -> dict[str, Scan]:
    views = {n: changes[n].apply(v) if n in changes else v for n, v in moment.views.items()}
    return {n: index.scan(v) for n, v in views.items() if v.usable and (v.depth_m > 0).any()}


def _steps(scans: Sequence[Scan]) -> tuple[Float[np.ndarray, "c 4 4"], int]:
    """Return motions of the camera in its own axes, and which of them is none."""
    points = np.concatenate([scan.points[:: max(len(scan.points) // 500, 1)] for scan in scans])
    normals = np.concatenate([scan.normals[:: max(len(scan.points) // 500, 1)] for scan in scans])
    middle = np.median(points, axis=0)
    reach = float(np.median(np.linalg.norm(points - middle, axis=1)))
    _, axes = np.linalg.eigh(normals.T @ normals)
    motions = []
    for first, second, turn in itertools.product(SHIFTS_M, SHIFTS_M, TURNS_M):
        motion = np.eye(4)
        angle = turn / max(reach, 1e-3)
        motion[:3, :3] = Rotation.from_rotvec(angle * axes[:, 2]).as_matrix()
        motion[:3, 3] = middle - motion[:3, :3] @ middle
        motion[:3, 3] += first * axes[:, 0] + second * axes[:, 1]
        motions.append(motion)
    return np.stack(motions), len(motions) // 2


def _cost(source: Scan, target: Scan, poses: Float[np.ndarray, "c 4 4"]) -> Float[np.ndarray, "c"]:
    """Return by pose of the source in the target's axes how far depth and grey values differ."""
    step = -(-len(source.points) // POINTS)
    own, shades = source.points[step // 2 :: step], source.shades[step // 2 :: step]
    points = own @ np.swapaxes(poses[:, :3, :3], 1, 2) + poses[:, None, :3, 3]
    depth, matrix = points[..., 2], target.view.intrinsics
    height, width = target.view.depth_m.shape
    safe = np.where(depth > 1e-6, depth, np.nan)
    x = points[..., 0] / safe * matrix[0, 0] + matrix[0, 2]
    y = points[..., 1] / safe * matrix[1, 1] + matrix[1, 2]
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    column, row = (np.where(inside, v, 0).astype(np.int64) for v in (x, y))
    seen, grey = target.view.depth_m[row, column], target.gradients[0]
    off = np.where(seen > 0, np.minimum(np.abs(depth - seen) / DEPTH_M, 1.0), 1.0)
    number = np.maximum(inside.sum(axis=1), 1)
    there = grey[row, column]
    level = (inside * (there - shades)).sum(axis=1) / number
    spread = max(SHADES * float(shades.std()), 1e-2)
    off += SHADE_WEIGHT * np.minimum(np.abs(there - shades - level[:, None]) / spread, 1.0)
    mean = (inside * off).sum(axis=1) / number
    return np.where(number < LEAST_SEEN * len(own), 1.0 + SHADE_WEIGHT, mean)
