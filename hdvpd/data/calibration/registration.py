"""Where cameras really stand: registration of all their clouds together, over all moments.

Point-to-plane registration by Gauss-Newton with robust weights: every camera's points are laid on
the surfaces that the others see, where they see them. Free may be the pose of a camera, the scale
and offset of its depth, and its focal length. Open3D registers pairs of rigid clouds; here all
pairs of all moments share the unknowns, some of which are no motion, so that only its search of
nearest points is used, or scipy's. float64.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
from scipy.spatial.transform import Rotation

from hdvpd.basics.types import Bool, Float, Int
from hdvpd.data.calibration.clouds import Indexer
from hdvpd.data.calibration.correspondence import UNKNOWNS, Reach, Rows, Track, pair_rows, track
from hdvpd.data.calibration.views import Moment, View

KINDS = {"pose": range(6), "depth scale": range(6, 7), "depth offset": range(7, 8),
         "focal length": range(8, 9)}  # fmt: skip
"""Numbers of a camera's nine unknowns: turn [rad], move [m], and logarithms but for the offset [m],
in the camera's own axes."""
PRIOR = np.array([0.3] * 3 + [0.3] * 3 + [0.5, 0.2, 0.5])
"""Standard deviations of the unknowns before anything is seen: they decide what nothing shows."""
GATES_M = (*np.geomspace(0.25, 0.04, 20).tolist(), 0.04, 0.04, 0.04)
"""Largest distance of a point from its partner, iteration by iteration [m]."""
QUICK_M, LAST_M = (*np.geomspace(0.25, 0.05, 7).tolist(), 0.04), (0.06, 0.05, 0.04, 0.04)
"""The same for a first look, and for cameras that stand nearly right."""
FLOORS = {"plane": 1e-3, "point": 3e-3, "colour": 0.1}
"""Least scatter of each kind of distance: to planes [m], to samples without one [m], and between
colours [standard deviations of the grey value]."""
COARSE = {"plane": 0.05, "point": 0.3, "colour": 6.0}
"""The same as a multiple of the gate: at first everything within reach counts."""
COST_SCALES = {"plane": 0.004, "point": 0.01, "colour": 0.3}
"""Distances of each kind that count as one when fits are compared."""
SMALL_DEG, SMALL_M = 15.0, 0.25
ALIKE = 5.0
"""True errors in the scatter over moments, at most (docs/calibration.md measures it)."""
FAR = 4.0
"""Largest distance in these units."""
COLOURED_M = 0.18
"""Gate below which colours count: they tell in which direction only once they overlap."""


@dataclass(frozen=True)
class Change:
    """What is to be changed of one camera.

    Attributes:
      pose: multiplies the camera-to-world pose from the right.
      depth_scale: true metres per stored metre.
      depth_offset_m: added after that [m].
      focal: true focal length per stored one.
    """

    pose: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    depth_scale: float = 1.0
    depth_offset_m: float = 0.0
    focal: float = 1.0

    def apply(self, view: View) -> View:
        """Return the view with the change."""
        moved = dataclasses.replace(view, camera_to_world=view.camera_to_world @ self.pose)
        if self.depth_scale == 1 and self.depth_offset_m == 0 and self.focal == 1:
            return moved
        depth = self.depth_scale * view.depth_m + self.depth_offset_m
        return dataclasses.replace(
            moved,
            depth_m=np.where((view.depth_m > 0) & (depth > 0), depth, 0.0),
            intrinsics=view.intrinsics
            * np.array([[self.focal, 1, 1], [1, self.focal, 1], [1] * 3]),
        )

    def moved(self, step: Float[np.ndarray, "9"]) -> "Change":
        """Return the change after a step of the unknowns."""
        motion = np.eye(4)
        motion[:3, :3] = Rotation.from_rotvec(step[:3]).as_matrix()
        motion[:3, 3] = step[3:6]
        grown = float(np.exp(step[6]))
        return Change(
            self.pose @ motion,
            self.depth_scale * grown,
            self.depth_offset_m * grown + float(step[7]),
            self.focal * float(np.exp(step[8])),
        )

    @property
    def inner(self) -> tuple[float, float, float]:
        """What is no motion: depth scale, depth offset [m] and focal length."""
        return self.depth_scale, self.depth_offset_m, self.focal

    @property
    def turn_deg(self) -> Float[np.ndarray, "3"]:
        """Rotation vector about the camera's axes [degrees]."""
        return np.rad2deg(Rotation.from_matrix(self.pose[:3, :3]).as_rotvec())


@dataclass(frozen=True)
class Fit:
    """A registration.

    Attributes:
      free: what was free, by camera.
      changes: of each camera with anything free.
      errors: standard errors of the nine unknowns of each, from the scatter over moments.
      before_m: median distance of the compared points before [m].
      after_m: and after [m].
      costs: robust distances of all kinds by moment, in units of `COST_SCALES`: to compare fits.
      points: that were compared.
    """

    free: Mapping[str, tuple[str, ...]]
    changes: Mapping[str, Change]
    errors: Mapping[str, Float[np.ndarray, "9"]]
    before_m: float
    after_m: float
    costs: Float[np.ndarray, "m"]
    points: int

    @property
    def small(self) -> bool:
        """Whether no change is as large as those that undo a mistake of conventions."""
        return all(
            np.linalg.norm(change.turn_deg) < SMALL_DEG
            and np.linalg.norm(change.pose[:3, 3]) < SMALL_M
            for change in self.changes.values()
        )

    def apply(self, moments: Sequence[Moment]) -> list[Moment]:
        """Return the moments with the changes."""
        return [changed(moment, self.changes) for moment in moments]


def changed(moment: Moment, changes: Mapping[str, Change]) -> Moment:
    """Return a moment whose cameras are changed."""
    views = {n: changes[n].apply(v) if n in changes else v for n, v in moment.views.items()}
    return dataclasses.replace(moment, views=views)


def register(
    moments: Sequence[Moment],
    free: Mapping[str, tuple[str, ...]],
    index: Indexer,
    *,
    max_points: int = 800,
    gates: Sequence[float] = GATES_M,
    start: Mapping[str, Change] | None = None,
) -> Fit:
    """Register the cameras.

    Args:
      moments: what they saw.
      free: kinds of unknowns by camera (`KINDS`); other cameras stay where they are.
      index: makes the nearest-point search.
      max_points: of each image that are laid on another's surface.
      gates: largest distance of a point from its partner, iteration by iteration [m].
      start: changes to begin with.
    """
    names = list(free)
    changes = {name: (start or {}).get(name, Change()) for name in names}
    mask = free_unknowns(free)
    tracks: dict[str, Track] = {}
    built: dict[str, Change] = {}
    before, error = np.nan, np.zeros(len(mask))
    rows = Compared([], np.zeros(len(moments), int))
    for number, gate in enumerate((*gates, gates[-1])):
        update_tracks(tracks, built, moments, changes, index, max_points)
        reach = Reach(gate, gate < COLOURED_M)
        rows = compare(tracks, names, functools.partial(pair_rows, reach=reach))
        distances = rows.residuals("plane", "point")
        if number == 0:
            before = float(np.median(np.abs(distances))) if len(distances) else np.nan
        if not len(distances):
            break
        if not mask.any():
            break
        step, error = _solve(rows, names, mask, gate)
        if number == len(gates):
            break
        changes = {
            n: changes[n].moved(step[UNKNOWNS * k : UNKNOWNS * (k + 1)])
            for k, n in enumerate(names)
        }
    distances = rows.residuals("plane", "point")
    return Fit(
        free=dict(free),
        changes=changes,
        errors={n: error[UNKNOWNS * k : UNKNOWNS * (k + 1)] for k, n in enumerate(names)},
        before_m=before,
        after_m=float(np.median(np.abs(distances))) if len(distances) else np.nan,
        costs=costs_of(rows),
        points=len(distances),
    )


@dataclass(frozen=True)
class Compared:
    """All rows of an iteration, with the two cameras of each; and samples without a partner."""

    found: Sequence[tuple[str, str, Rows]]
    missed: Int[np.ndarray, "m"]

    def residuals(self, *kinds: str) -> np.ndarray:
        """Return all distances of some kinds."""
        found = [rows.residuals for _, _, rows in self.found if rows.kind in kinds]
        return np.concatenate(found) if found else np.zeros(0)

    def scatter(self, kind: str, least: float) -> float:
        """Return the scatter of a kind of distances, robustly, or the least one."""
        residuals = np.abs(self.residuals(kind))
        return max(1.4826 * float(np.median(residuals)), least) if len(residuals) else least


def update_tracks(
    tracks: dict[str, Track],
    built: dict[str, Change],
    moments: Sequence[Moment],
    changes: Mapping[str, Change],
    index: Indexer,
    max_points: int,
    *,
    between: bool = False,
) -> None:
    """Bring the tracks to the changes; made anew is only what is no motion."""
    for name in moments[0].views:
        change = changes.get(name, Change())
        last = built.get(name)
        if last is None or change.inner != last.inner:
            views = [change.apply(moment.views[name]) for moment in moments]
            stored = change.inner == Change().inner
            kept = index if stored else index.apart()
            tracks[name] = track(views, kept, max_points, between=between)
            built[name] = change
        else:
            tracks[name] = tracks[name].placed(
                tracks[name].poses @ np.linalg.inv(last.pose) @ change.pose
            )
            built[name] = change


def compare(
    tracks: Mapping[str, Track],
    free: Sequence[str],
    rows_of: Callable[[Track, Track], tuple[Iterable[Rows], Int[np.ndarray, "m"]]],
) -> Compared:
    """Compare every camera with every other, as long as one of the two may change.

    Args:
      tracks: of all cameras.
      free: cameras that may change.
      rows_of: from source and target to rows, and samples without a partner by moment.
    """
    found: list[tuple[str, str, Rows]] = []
    missed = np.zeros(len(next(iter(tracks.values())).scans), int)
    for a, b in itertools.permutations(tracks, 2):
        if a in free or b in free:
            rows, without = rows_of(tracks[a], tracks[b])
            found += [(a, b, r) for r in rows]
            missed += without
    return Compared(found, missed)


def costs_of(
    rows: Compared, scales: Mapping[str, float] = MappingProxyType(COST_SCALES)
) -> Float[np.ndarray, "m"]:
    """Return the robust mean distance by moment; samples without a partner count as far."""
    count = len(rows.missed)
    total = np.zeros(count)
    for kind, scale in scales.items():
        mine = [r for _, _, r in rows.found if r.kind == kind and len(r.residuals)]
        if not mine:
            continue
        moment = np.concatenate([r.moment for r in mine])
        values = np.minimum(np.abs(rows.residuals(kind)) / scale, FAR)
        sums, number = np.bincount(moment, values, count), np.bincount(moment, minlength=count)
        if kind == "plane":
            sums, number = sums + FAR * rows.missed, number + rows.missed
        total += sums / np.maximum(number, 1)
    return total


def free_unknowns(free: Mapping[str, tuple[str, ...]]) -> Bool[np.ndarray, "u"]:
    """Say which of the cameras' unknowns, one camera after the other, are free."""
    mask = np.zeros((len(free), UNKNOWNS), bool)
    for camera, kinds in zip(mask, free.values(), strict=True):
        for kind in kinds:
            camera[list(KINDS[kind])] = True
    return mask.ravel()


def _solve(
    rows: Compared, names: Sequence[str], mask: np.ndarray, gate: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Gauss-Newton step and the standard errors, 0 where nothing is free."""
    scales = {}
    for kind, least in FLOORS.items():
        floor = max(least, COARSE[kind] * (gate - GATES_M[-1]))
        scales[kind] = rows.scatter(kind, floor)
    moments = [r.moment for _, _, r in rows.found]
    step, error = solve(rows, names, mask, scales, moments, len(rows.missed))
    # What stands still is seen at the same pixels at all moments: they are not independent.
    return step, ALIKE * error


def solve(
    rows: Compared,
    names: Sequence[str],
    mask: Bool[np.ndarray, "u"],
    scales: Mapping[str, float],
    groups: Sequence[Int[np.ndarray, "_"]],
    count: int,
    shares: Mapping[str, float] = MappingProxyType({}),
) -> tuple[Float[np.ndarray, "u"], Float[np.ndarray, "u"]]:
    """Return the Gauss-Newton step, and standard errors from the scatter over groups of rows.

    Args:
      rows: linearised distances.
      names: cameras with unknowns.
      mask: which of these are free.
      scales: of each kind of distance, beyond which it loses weight (Tukey).
      groups: of each row, for each of the rows' parts; groups are independent of each other.
      count: number of groups.
      shares: of the weight that each kind keeps, where that is less.
    """
    size = len(mask)
    hessian, gradients = np.zeros((size, size)), np.zeros((count, size))
    for (a, b, r), group in zip(rows.found, groups, strict=True):
        share = 1 - np.square(r.residuals / (4.685 * scales[r.kind]))
        weights = shares.get(r.kind, 1.0) * np.square(np.maximum(share, 0.0)) / scales[r.kind] ** 2
        parts = [(names.index(n) * UNKNOWNS, p) for n, p in ((a, r.source), (b, r.target))
                 if n in names]  # fmt: skip
        for k, first in parts:
            weighted = weights[:, None] * first
            for j, second in parts:
                hessian[k : k + UNKNOWNS, j : j + UNKNOWNS] += weighted.T @ second
            weighted *= r.residuals[:, None]
            for column in np.flatnonzero(mask[k : k + UNKNOWNS]):
                gradients[:, k + column] += np.bincount(group, weighted[:, column], count)
    total = gradients.sum(axis=0)
    prior = np.diag(1 / np.square(np.tile(PRIOR, len(names))))
    inverse = np.linalg.inv((hessian + prior)[np.ix_(mask, mask)])
    step, error = np.zeros(size), np.zeros(size)
    step[mask] = -inverse @ total[mask]
    each = gradients[:, mask] - total[mask] / count
    spread = inverse @ (each.T @ each) @ inverse * count / max(count - 1, 1)
    error[mask] = np.sqrt(np.maximum(np.diag(spread), np.diag(inverse) * 0.05))
    return step, error
