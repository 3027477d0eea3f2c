"""When was an image taken? The robot's places over time tell, to fractions of a step.

The distance of a kinematic point from the surface around it is that of its place in the link, at
every moment. Where the robot moves, points of another time lie elsewhere: the lag is where the
distances of each point scatter least around their median.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.interpolate
from scipy.special import stdtrit

from hdvpd.basics.types import Float
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.clouds import Indexer, observe
from hdvpd.data.calibration.robot_shape import settle
from hdvpd.data.calibration.views import PATH_REACH, Moment, View, locate, project
from hdvpd.data.kinematics import Skeleton

STEP = 0.25
"""Lags are tried in steps of this [frames]."""
MIN_STEP_M = 0.005
"""A point that moves less than this per frame says nothing about time."""
ALIKE, BETWEEN = 2.0, 0.004
"""True errors of a settled lag in those of the scatter over moments, and the least one [frames]:
links are thicker on one side at all moments, and between frames the robot is interpolated."""
CAP_M = 0.08
"""A distance that differs by more than this is another surface's."""


@dataclass(frozen=True)
class Shift:
    """The time of a camera's images relative to the robot, by where the robot is in them.

    Attributes:
      lag: [frames]; positive means that the images are late.
      error: its standard error over the moments [frames].
      moments: in which enough of the robot moves.
      gain: by how much the distances scatter less than without lag, in standard errors.
      inner: whether the best lag lies inside the search, so that it is one.
      agreement: share of the episodes in which the distances scatter less than without lag.
      settled: whether the shape of the links tells lag and error (`robot_shape`).
      contradicted: whether another camera is proven to be off the other way.
    """

    lag: float
    error: float
    moments: int
    gain: float
    inner: bool
    agreement: float
    settled: bool = False
    contradicted: bool = False

    @property
    def decides(self) -> bool:
        """Whether this says anything at all."""
        return self.inner and self.moments >= limits.MIN_LAG_MOMENTS and self.error < 0.5

    @property
    def proven(self) -> bool:
        """Whether there is a lag that is more than chance."""
        sigmas = -stdtrit(max(self.moments - 1, 1), limits.LAG_CHANCE / 10)
        clear = abs(self.lag) > max(sigmas, 5.0) * self.error
        enough = self.settled or self.gain > 1.5
        return bool(self.likely and clear and enough and not self.contradicted)

    @property
    def likely(self) -> bool:
        """Whether there may be a lag: it is worth a closer look."""
        agreed = self.agreement >= limits.LAG_AGREEMENT
        return bool(self.decides and agreed and abs(self.lag) > limits.LAG_STEPS)


def robot_shift(
    moments: Sequence[Moment], camera: str, index: Indexer, skeleton: Skeleton
) -> Shift | None:
    """Find the time of a camera's images by the robot in them.

    Args:
      moments: what was seen; those without the robot's path say nothing.
      camera: whose images.
      index: makes the nearest-point search.
      skeleton: which links give the robot's points.

    Returns:
      None if the robot moves in too few moments.
    """
    lags = np.arange(-PATH_REACH, PATH_REACH + STEP / 2, STEP)
    seen = [
        (moment, distances, weights)
        for moment in moments
        if moment.path is not None
        and (found := _distances(moment.views[camera], moment.path, lags, index)) is not None
        for distances, weights in [found]
    ]
    if len(seen) < limits.MIN_LAG_MOMENTS:
        return None
    distances = np.stack([d for _, d, _ in seen])
    weights = np.stack([w for _, _, w in seen])
    costs = _scatter(distances, weights)
    best, inner = _vertex(lags, costs.sum(axis=0))
    each = np.array(
        [_vertex(lags, np.delete(costs, k, axis=0).sum(axis=0))[0] for k in range(len(costs))]
    )
    count = len(costs)
    error = float(np.sqrt((count - 1) / count * np.square(each - each.mean()).sum()))
    zero, at = int(np.argmin(np.abs(lags))), int(np.argmin(costs.sum(axis=0)))
    gains = costs[:, zero] - costs[:, at]
    spread = np.std(gains, ddof=1) / np.sqrt(count)
    _, episode = np.unique([moment.episode for moment, _, _ in seen], return_inverse=True)
    agreement = float((np.bincount(episode, gains) > 0).mean())
    gain = float(gains.mean() / max(spread, 1e-12))
    shift = Shift(best, error, count, gain, inner, agreement)
    moved = [moment for moment, _, _ in seen]
    return _settled(shift, moved, camera, index, skeleton) if shift.likely else shift


def agreeing(shifts: Mapping[str, Shift | None]) -> dict[str, Shift | None]:
    """Mark the lags of cameras of which some are late and some early.

    One robot is before all cameras: a wrong geometry, such as a mirror image, looks like that.
    """
    proven = {name: shift for name, shift in shifts.items() if shift is not None and shift.proven}
    if len({shift.lag > 0 for shift in proven.values()}) < 2:
        return dict(shifts)
    marked = {n: dataclasses.replace(s, contradicted=True) for n, s in proven.items()}
    return {**shifts, **marked}


def _settled(
    shift: Shift, moments: Sequence[Moment], camera: str, index: Indexer, skeleton: Skeleton
) -> Shift:
    """Return a lag as all that is seen of the robot tells it; the same one if that is far away."""
    known = [m for m in moments if m.path is not None and m.links is not None]
    clouds = [[s.points] if (s := observe(m.views[camera], index)) else [] for m in known]
    axes = np.stack([m.links[skeleton.links, :3, :3] for m in known if m.links is not None])
    splines = [between_frames(m.path) for m in known if m.path is not None]

    def place(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.stack([spline(-x[0]) for spline in splines]), axes

    found = settle(place, np.array([shift.lag]), clouds, np.ones(1))
    if found is None or abs(found[0][0] - shift.lag) > STEP:
        return shift
    (lag,), (error,) = found
    error = float(np.hypot(ALIKE * error, BETWEEN))
    return dataclasses.replace(shift, lag=float(lag), error=error, settled=True)


def between_frames(path: Float[np.ndarray, "f p 3"]) -> scipy.interpolate.BSpline:
    """Return where the points are between the frames.

    Quintic: a cubic one cuts the corners of what turns by half a radian per frame, and a lag with
    them, by a hundredth of a frame.
    """
    times = np.arange(-PATH_REACH, PATH_REACH + 1)
    return scipy.interpolate.make_interp_spline(times, path, k=5)


def _distances(
    view: View, path: Float[np.ndarray, "f p 3"], lags: np.ndarray, index: Indexer
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return distances from the seen surface by lag and point, and how fast each point moves."""
    surface = observe(view, index)
    speed = np.linalg.norm(path[PATH_REACH + 1] - path[PATH_REACH - 1], axis=-1) / 2
    if surface is None or (speed > MIN_STEP_M).sum() < 1:
        return None
    # An image that is late by a lag shows where the robot was that long ago.
    points = between_frames(path)(-lags).reshape(-1, 3)
    pixels, depth = project(points, view)
    row, column, inside = locate(pixels, view)
    front = surface.front[row, column]
    visible = inside & (depth < front + limits.LINK_DEPTH_M)
    shape = (len(lags), path.shape[1])
    distance = np.full(len(points), CAP_M)
    if visible.any():
        distance[visible] = surface.search(points[visible])[0]
    always = inside.reshape(shape).all(axis=0) & visible.reshape(shape).any(axis=0)
    weights = np.where(always & (speed > MIN_STEP_M), speed, 0.0)
    return (distance.reshape(shape), weights) if weights.any() else None


def _scatter(
    distances: Float[np.ndarray, "m l p"], weights: Float[np.ndarray, "m p"]
) -> Float[np.ndarray, "m l"]:
    """Return by moment and lag how much distances differ from the median of their point."""
    used = np.where((weights > 0)[:, None], distances, np.nan)
    known = (weights > 0).any(axis=0)
    place = np.zeros(distances.shape[1:])
    place[:, known] = np.nanmedian(used[..., known], axis=0)
    off = np.minimum(np.abs(distances - place), CAP_M)
    return (off**2 * weights[:, None]).sum(axis=-1)


def _vertex(lags: np.ndarray, costs: np.ndarray) -> tuple[float, bool]:
    """Return where a parabola through the costs around the least is lowest, and if it is inside."""
    at = int(np.argmin(costs))
    reach = 2
    if not reach <= at < len(lags) - reach:
        return float(lags[at]), False
    near = slice(at - reach, at + reach + 1)
    a, b, _ = np.polyfit(lags[near] - lags[at], costs[near], 2)
    offset = float(np.clip(-b / (2 * a), -STEP, STEP)) if a > 0 else 0.0
    return float(lags[at]) + offset, True
