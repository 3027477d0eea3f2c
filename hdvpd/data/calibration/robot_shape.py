"""Where the robot is, by the shape of its links: base, joints and time to a part of a pixel.

`robot_fit` asks how far kinematic points are from the nearest thing seen: the same for a thick
link as for a thin one that stands nearer to the cameras. Here every seen point near the robot
counts, by its distance from the nearest kinematic point. In the axes of its link that distance
is the same at all times in one direction, whatever the shape: where links turn, it places the
robot. What does not turn is placed by links being round about their points, more or less.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.spatial import KDTree

from hdvpd.basics.types import Float, Int
from hdvpd.data.calibration.robot_depth import RADIUS_M

Place = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""From unknowns (k,) to kinematic points (m, p, 3) at all moments [m], and the axes (m, p, 3, 3) of
the links in which their surroundings stay the same."""

REACH_M = 0.08
"""Seen points farther than this from every kinematic point are not the robot's."""
MARGIN_M = 0.06
"""By how much the robot moves at most while it is fitted."""
POINTS = 400
"""Seen points of each image that are compared at most."""
ROUNDS = 20
SMALL = 2e-4
"""A step that is a smaller share of what the unknowns may be is the last."""
STEP = 1e-5
"""Of the unknowns, for derivatives."""
RADIUS_SPREAD_M = 0.03
"""Of the distance of a point from the surface of its link before anything is seen."""
SHAPE_M = 0.01
"""By how much this differs between directions."""
SCATTER_M, SCATTERS = 0.004, 3
"""Least scatter of distances in a direction [m], and how often it is found anew."""
LEAST_POINTS = 200
"""Seen points without which nothing is said."""
DIRECTIONS = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3), axis=-1).reshape(-1, 3).astype(float)
DIRECTIONS = DIRECTIONS[DIRECTIONS.any(axis=1)]
DIRECTIONS /= np.linalg.norm(DIRECTIONS, axis=1, keepdims=True)
"""In which the shape of a link is told apart, in its axes: 26."""


@dataclass(frozen=True)
class _Seen:
    """Seen points near the robot at all moments.

    Attributes:
      points: in the world [m].
      moment: of each.
    """

    points: Float[np.ndarray, "n 3"]
    moment: Int[np.ndarray, "n"]


def settle(
    place: Place,
    start: Float[np.ndarray, "k"],
    clouds: Sequence[Sequence[Float[np.ndarray, "_ 3"]]],
    usual: Float[np.ndarray, "k"],
) -> tuple[Float[np.ndarray, "k"], Float[np.ndarray, "k"]] | None:
    """Bring a robot that is nearly right to where its links are seen.

    Args:
      place: where the robot is.
      start: unknowns to begin with.
      clouds: what the cameras saw, by moment [m].
      usual: size of the unknowns before anything is seen.

    Returns:
      The unknowns and their standard errors; None if too little is seen near the robot.
    """
    x, error = start, np.zeros(len(start))
    seen = _near(place(x)[0], clouds)
    for _ in range(ROUNDS):
        points, axes = place(x)
        rows = _compare(seen, points, axes)
        if len(rows.distances) < LEAST_POINTS:
            return None
        slopes = [(place(x + STEP * unit)[0] - points) / STEP for unit in np.eye(len(x))]
        step, error = _solve(rows, np.stack(slopes, axis=-1), x, usual)
        x = x + step
        if np.abs(step / usual).max() < SMALL:
            break
    return x, error


def _near(
    points: Float[np.ndarray, "m p 3"], clouds: Sequence[Sequence[Float[np.ndarray, "_ 3"]]]
) -> _Seen:
    """Collect what is seen near the robot's points."""
    found, moments = [np.zeros((0, 3))], [np.zeros(0, np.int64)]
    for m, row in enumerate(clouds):
        tree = KDTree(points[m])
        for cloud in row:
            away, _ = tree.query(cloud, distance_upper_bound=REACH_M + MARGIN_M)
            near = cloud[np.isfinite(away)]
            near = near[:: -(-len(near) // POINTS) or 1]
            found.append(near)
            moments.append(np.full(len(near), m))
    return _Seen(np.concatenate(found), np.concatenate(moments))


@dataclass(frozen=True)
class _Rows:
    """Distances of seen points from the nearest kinematic points.

    Attributes:
      distances: [m].
      toward: unit vectors from the kinematic point to the seen one, in the world.
      point: number of the kinematic point.
      direction: number of the direction in the axes of its link.
      moment: of each.
    """

    distances: Float[np.ndarray, "n"]
    toward: Float[np.ndarray, "n 3"]
    point: Int[np.ndarray, "n"]
    direction: Int[np.ndarray, "n"]
    moment: Int[np.ndarray, "n"]


def _compare(
    seen: _Seen, points: Float[np.ndarray, "m p 3"], axes: Float[np.ndarray, "m p 3 3"]
) -> _Rows:
    nearest = np.zeros(len(seen.points), np.int64)
    away = np.full(len(seen.points), np.inf)
    for m in range(len(points)):
        mine = seen.moment == m
        if mine.any():
            found = KDTree(points[m]).query(seen.points[mine], distance_upper_bound=REACH_M)
            away[mine], nearest[mine] = found
    near = np.isfinite(away) & (away > 1e-6)
    point, moment, distances = nearest[near], seen.moment[near], away[near]
    toward = (seen.points[near] - points[moment, point]) / distances[:, None]
    own = np.einsum("nij,ni->nj", axes[moment, point], toward)
    direction = np.argmax(own @ DIRECTIONS.T, axis=1)
    return _Rows(distances, toward, point, direction, moment)


def _solve(
    rows: _Rows,
    slopes: Float[np.ndarray, "m p 3 k"],
    x: Float[np.ndarray, "k"],
    usual: Float[np.ndarray, "k"],
) -> tuple[Float[np.ndarray, "k"], Float[np.ndarray, "k"]]:
    """Return the step of the unknowns, whose kinematic points move by `slopes`, and its errors.

    Unknown too are the usual distance of each point, and by how much it differs in each direction;
    the latter are eliminated, as each distance has one.
    """
    used, column = np.unique(rows.point, return_inverse=True)
    radii = np.array([np.median(rows.distances[rows.point == p]) for p in used])
    group = column * len(DIRECTIONS) + rows.direction
    groups = len(used) * len(DIRECTIONS)
    off = rows.distances - radii[column]
    weights, total, own = _shapes(off, group, groups)
    known, size = len(x), len(x) + len(used)
    jacobian = np.zeros((len(off), size))
    moving = slopes[rows.moment, rows.point]
    jacobian[:, :known] = -np.einsum("ni,nik->nk", rows.toward, moving)
    jacobian[np.arange(len(off)), known + column] = -1.0
    weighted = weights[:, None] * jacobian
    shared = np.stack([np.bincount(group, weighted[:, k], groups) for k in range(size)], axis=1)
    hessian = jacobian.T @ weighted - (shared / total[:, None]).T @ shared
    loose = np.concatenate([usual, np.full(len(used), RADIUS_SPREAD_M)]) ** -2.0
    inverse = np.linalg.inv(hessian + np.diag(loose))
    count = int(rows.moment.max()) + 1
    residual = (off - own[group])[:, None] * weighted
    each = np.stack([np.bincount(rows.moment, residual[:, k], count) for k in range(size)], axis=1)
    pull = loose * np.concatenate([x, radii - RADIUS_M])
    step = -inverse @ (each.sum(axis=0) + pull)
    each = each - each.mean(axis=0)
    spread = inverse @ (each.T @ each) @ inverse * count / max(count - 1, 1)
    error = np.sqrt(np.maximum(np.diag(spread), 0.25 * np.diag(inverse)))
    return step[:known], error[:known]


def _shapes(
    off: Float[np.ndarray, "n"], group: Int[np.ndarray, "n"], groups: int
) -> tuple[Float[np.ndarray, "n"], Float[np.ndarray, "g"], Float[np.ndarray, "g"]]:
    """Return robust weights, and by direction their sum and how much distances differ there."""
    own, scale = np.zeros(groups), SCATTER_M
    weights, total = np.ones(len(off)), np.full(groups, SHAPE_M**-2.0)
    for _ in range(SCATTERS):
        left = off - own[group]
        scale = max(SCATTER_M, 1.4826 * float(np.median(np.abs(left))))
        share = np.maximum(1 - np.square(left / (4.685 * scale)), 0.0)
        weights = np.square(share) / scale**2
        total = np.bincount(group, weights, groups) + SHAPE_M**-2.0
        own = np.bincount(group, weights * off, groups) / total
    return weights, total, own
