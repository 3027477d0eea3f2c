"""Do the cameras agree with each other, and with the robot?

Between two cameras the points of one are compared with the surface that the other sees. Points that
the other cannot see because something hides them are left out; points that float in front of what
it sees cannot exist and are counted. With a robot, its kinematic points must lie inside something.
"""

import dataclasses
import enum
import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from hdvpd.basics.types import Bool, Float, Int
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.clouds import Indexer, Surface, observe, surface_distance
from hdvpd.data.calibration.views import Moment, locate, project

Status = Literal["pass", "fail", "unproven"]


class RobotPoint(enum.IntEnum):
    """What an image says about a kinematic point."""

    OUTSIDE = 0
    """Not in the image, or no valid depth there."""
    HIDDEN = 1
    """Something much nearer hides it."""
    COVERED = 2
    """A surface lies about a link's radius around it."""
    DETACHED = 3
    """It floats in front of what the camera sees, away from every surface."""


@dataclass(frozen=True)
class SharedPoints:
    """Points of one view that another view can judge.

    Attributes:
      points: of the first view, inside the second image, not hidden there [m].
      distances: from the surface that the second view saw [m].
      in_front: whether the second view looked through the point.
      footprints: width of a recorded pixel of the second view there [m].
      candidates: points inside the second image, hidden ones included.
    """

    points: Float[np.ndarray, "n 3"]
    distances: Float[np.ndarray, "n"]
    in_front: Bool[np.ndarray, "n"]
    footprints: Float[np.ndarray, "n"]
    candidates: int


@dataclass(frozen=True)
class PairEvidence:
    """Cross-view agreement of two cameras, both ways, over all moments.

    Attributes:
      cameras: their names.
      candidates: points of one inside the image of the other.
      shared: those not hidden there.
      median_m: median distance of the shared points from the other's surface [m]; NaN without any.
      p95_m: its 95th percentile [m].
      in_front: share of the shared points that the other camera looked through.
      footprint_m: width of a recorded pixel at the depth of the shared points, median [m].
      spacing_m: the same for a pixel of the thinned images that were compared [m].
      drift_m: how far registration would move one camera's points as seen by the other, if that is
        clearly a better place [m]; 0 if it is not, or was not asked.
    """

    cameras: tuple[str, str]
    candidates: int
    shared: int
    median_m: float
    p95_m: float
    in_front: float
    footprint_m: float
    spacing_m: float
    drift_m: float = 0.0

    @property
    def median_limit_m(self) -> float:
        """Largest median that passes [m]."""
        return max(limits.MEDIAN_M, limits.MEDIAN_FOOTPRINTS * self.footprint_m)

    @property
    def p95_limit_m(self) -> float:
        """Largest 95th percentile that passes [m]."""
        return max(limits.P95_M, limits.P95_SPACINGS * self.spacing_m)

    @property
    def drift_limit_m(self) -> float:
        """Largest drift that passes [m]."""
        return max(limits.DRIFT_M, limits.DRIFT_SPACINGS * self.spacing_m)

    @property
    def excess(self) -> float:
        """Largest of the four numbers relative to its limit; above 1 fails."""
        return max(
            self.median_m / self.median_limit_m,
            self.p95_m / self.p95_limit_m,
            self.in_front / limits.FRONT_SHARE,
            self.drift_m / self.drift_limit_m,
        )

    @property
    def status(self) -> Status:
        """Whether the cameras agree, or share too little to say."""
        enough = max(limits.MIN_SHARED_POINTS, limits.MIN_SHARED_SHARE * self.candidates)
        if self.shared < enough:
            return "unproven"
        return "pass" if self.excess <= 1 else "fail"


@dataclass(frozen=True)
class RobotEvidence:
    """Agreement of one camera with the robot's kinematic points, over all moments.

    Attributes:
      camera: its name.
      inside: points inside the image, over valid depth.
      judged: those not hidden by something much nearer.
      median_m: median distance of the judged points from the seen surface [m]; NaN without any.
      p95_m: its 95th percentile [m].
      detached: share of the judged points that float away from every surface.
    """

    camera: str
    inside: int
    judged: int
    median_m: float
    p95_m: float
    detached: float

    @property
    def excess(self) -> float:
        """Larger of the two numbers relative to its limit; above 1 fails."""
        return max(self.detached / limits.DETACHED_SHARE, self.median_m / limits.ROBOT_MEDIAN_M)

    @property
    def status(self) -> Status:
        """Whether the image shows the robot where it is, or too little of it to say."""
        enough = max(limits.MIN_ROBOT_POINTS, limits.MIN_ROBOT_SHARE * self.inside)
        if self.judged < enough:
            return "unproven"
        return "pass" if self.excess <= 1 else "fail"


@dataclass(frozen=True)
class Comparison:
    """What one moment says.

    Attributes:
      cameras: their names.
      thinning: rows of an image as recorded per row of the compared one, at most.
      shared: points of either camera that the other can judge, by pair.
      robot: states and distances of the robot's points by camera; None where they are unknown.
    """

    cameras: tuple[str, ...]
    thinning: float
    shared: Mapping[tuple[str, str], tuple[SharedPoints, SharedPoints]]
    robot: Mapping[str, tuple[Int[np.ndarray, "p"], Float[np.ndarray, "p"]]] | None


@dataclass(frozen=True)
class Evidence:
    """Everything measured of a calibration.

    Attributes:
      pairs: of cameras.
      robots: by camera; empty where link poses are unknown.
      moments: what each moment says.
    """

    pairs: tuple[PairEvidence, ...]
    robots: Mapping[str, RobotEvidence]
    moments: Sequence[Comparison] = dataclasses.field(default=(), repr=False)

    def of(self, numbers: Sequence[int]) -> "Evidence":
        """Return what some of the moments say: all that was measured but drift."""
        return _summed([self.moments[k] for k in numbers])

    @functools.cached_property
    def blamed(self) -> tuple[frozenset[str], ...]:
        """The smallest sets of cameras without which everything agrees.

        Cameras that contradict the robot are in each. Several sets mean that it cannot be decided
        which of them is wrong; the robot's passing decides nothing, because it is coarser than a
        second camera. One empty set means that nothing disagrees.
        """
        wrong = {name for name, robot in self.robots.items() if robot.status == "fail"}
        failing = [set(p.cameras) for p in self.pairs if p.status == "fail"]
        open_pairs = [pair for pair in failing if not pair & wrong]
        suspects = sorted(set().union(*open_pairs))
        for size in range(len(suspects) + 1):
            sets = [
                frozenset(wrong | set(chosen))
                for chosen in itertools.combinations(suspects, size)
                if all(pair & set(chosen) for pair in open_pairs)
            ]
            if sets:
                most = max(self._agreeing_without(s) for s in sets)
                return tuple(s for s in sets if self._agreeing_without(s) == most)
        return ()

    def _agreeing_without(self, cameras: frozenset[str]) -> int:
        return sum(p.status == "pass" and not cameras & set(p.cameras) for p in self.pairs)

    def status(self, camera: str) -> Status:
        """Judge one camera.

        A camera passes with at least one proof and no blame (`blamed`).
        """
        if any(camera in cameras for cameras in self.blamed):
            return "fail"
        return "pass" if self._proofs(camera) else "unproven"

    def _proofs(self, camera: str) -> int:
        robot = self.robots.get(camera)
        agreeing = sum(p.status == "pass" for p in self.pairs if camera in p.cameras)
        return agreeing + (robot is not None and robot.status == "pass")

    @property
    def excess(self) -> float:
        """Mean of what was measured relative to its limit: smaller is better."""
        measured = [e for e in (*self.pairs, *self.robots.values()) if e.status != "unproven"]
        return float(np.mean([min(e.excess, 100.0) for e in measured])) if measured else 100.0


def measure(moments: Sequence[Moment], index: Indexer, max_points: int = 4000) -> Evidence:
    """Measure the agreement of all cameras with each other and with the robot.

    Args:
      moments: what they saw; every moment has the same cameras.
      index: makes the nearest-point search.
      max_points: of each image that are compared with each other camera, evenly spread.
    """
    return _summed([_compare(moment, index, max_points) for moment in moments])


def _compare(moment: Moment, index: Indexer, max_points: int) -> Comparison:
    surfaces = {name: observe(view, index) for name, view in moment.views.items()}
    seen = {name: surface for name, surface in surfaces.items() if surface is not None}
    shared = {
        (a, b): (
            shared_points(seen[a], seen[b], max_points),
            shared_points(seen[b], seen[a], max_points),
        )
        for a, b in itertools.combinations(seen, 2)
    }
    robot = moment.robot
    return Comparison(
        cameras=tuple(moment.views),
        thinning=max(view.thinning for view in moment.views.values()),
        shared=shared,
        robot=None if robot is None else {n: robot_points(robot, s) for n, s in seen.items()},
    )


def _summed(moments: Sequence[Comparison]) -> Evidence:
    cameras, thinning = moments[0].cameras, max(moment.thinning for moment in moments)
    pairs = {
        pair: [points for moment in moments for points in moment.shared.get(pair, ())]
        for pair in itertools.combinations(cameras, 2)
    }
    robots = [moment.robot for moment in moments if moment.robot is not None]
    return Evidence(
        tuple(_pair_evidence(pair, found, thinning) for pair, found in pairs.items()),
        {
            name: _robot_evidence(name, [robot[name] for robot in robots if name in robot])
            for name in (cameras if robots else ())
        },
        moments,
    )


def shared_points(source: Surface, target: Surface, max_points: int) -> SharedPoints:
    """Find the points of one view that another should see, and how far they are from what it saw.

    Returns:
      The unhidden points inside the target's image where it has valid depth.
    """
    points = source.every(-(-len(source.own.points) // max_points))
    pixels, depth = project(points, target.view)
    row, column, inside = locate(pixels, target.view)
    seen = target.view.depth_m[row, column]
    inside &= seen > 0
    shared = inside & (depth <= seen + limits.BEHIND_M)
    beside = target.silhouettes[row, column]
    shared &= ~beside | (depth <= target.front[row, column] + limits.SILHOUETTE_M)
    margin = np.maximum(limits.FRONT_M, 2 * target.view.pixel_angle * seen)
    in_front = depth < target.front[row, column] - margin
    return SharedPoints(
        points=points[shared],
        distances=surface_distance(points[shared], target),
        in_front=in_front[shared],
        footprints=depth[shared] * target.view.pixel_angle / target.view.thinning,
        candidates=int(inside.sum()),
    )


def robot_points(
    robot: Float[np.ndarray, "p 3"], surface: Surface
) -> tuple[Int[np.ndarray, "p"], Float[np.ndarray, "p"]]:
    """Judge the robot's kinematic points in one view.

    Returns:
      A `RobotPoint` and the distance from the nearest seen point [m] (NaN outside), per point.
    """
    pixels, depth = project(robot, surface.view)
    row, column, inside = locate(pixels, surface.view)
    front = surface.front[row, column]
    inside &= np.isfinite(front)
    distance = np.full(len(robot), np.nan)
    if inside.any():
        distance[inside] = surface.search(robot[inside])[0]
    floating = depth < front - limits.FRONT_M
    skeleton = len(robot) >= limits.MIN_SKELETON
    radius = limits.LINK_RADIUS_M if skeleton else limits.TOOL_RADIUS_M
    states = np.full(len(robot), int(RobotPoint.COVERED))
    states[floating & (distance > radius)] = int(RobotPoint.DETACHED)
    states[depth > front + limits.LINK_DEPTH_M] = int(RobotPoint.HIDDEN)
    states[~inside] = int(RobotPoint.OUTSIDE)
    return states, distance


def _pair_evidence(
    cameras: tuple[str, str], found: Sequence[SharedPoints], thinning: float
) -> PairEvidence:
    distances = np.concatenate([f.distances for f in found]) if found else np.zeros(0)
    in_front = np.concatenate([f.in_front for f in found]) if found else np.zeros(0, bool)
    footprints = np.concatenate([f.footprints for f in found]) if found else np.zeros(0)
    footprint = _percentile(footprints, 50.0)
    return PairEvidence(
        cameras=cameras,
        candidates=sum(f.candidates for f in found),
        shared=len(distances),
        median_m=_percentile(distances, 50.0),
        p95_m=_percentile(distances, 95.0),
        in_front=float(in_front.mean()) if len(in_front) else float("nan"),
        footprint_m=footprint,
        spacing_m=footprint * thinning,
    )


def _robot_evidence(camera: str, found: Sequence[tuple[np.ndarray, np.ndarray]]) -> RobotEvidence:
    states = np.concatenate([s for s, _ in found]) if found else np.zeros(0, int)
    distances = np.concatenate([d for _, d in found]) if found else np.zeros(0)
    judged = np.isin(states, (RobotPoint.COVERED, RobotPoint.DETACHED))
    detached = states[judged] == RobotPoint.DETACHED
    return RobotEvidence(
        camera=camera,
        inside=int((states != RobotPoint.OUTSIDE).sum()),
        judged=int(judged.sum()),
        median_m=_percentile(distances[judged], 50.0),
        p95_m=_percentile(distances[judged], 95.0),
        detached=float(detached.mean()) if judged.any() else float("nan"),
    )


def _percentile(values: np.ndarray, q: float) -> float:
    return float(np.percentile(values, q)) if len(values) else float("nan")


def as_plain(evidence: PairEvidence | RobotEvidence) -> dict[str, object]:
    """Return numbers, verdict included, as JSON values; NaN becomes None."""
    plain = dataclasses.asdict(evidence) | {"status": evidence.status}
    return {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in plain.items()}
