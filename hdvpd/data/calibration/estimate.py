"""Which correction explains that cameras disagree, how large it is, and what cannot be told apart.

Every camera that may be wrong is registered with one kind of unknown free at a time. The simplest
explanation that none fits clearly better is kept; others that fit as well are named beside it.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.agreement import Evidence, measure
from hdvpd.data.calibration.clouds import Indexer
from hdvpd.data.calibration.refinement import FEW_POINTS, refine
from hdvpd.data.calibration.registration import (
    KINDS,
    LAST_M,
    QUICK_M,
    Change,
    Fit,
    changed,
    register,
)
from hdvpd.data.calibration.robot_depth import misfit
from hdvpd.data.calibration.signals import clearly_more
from hdvpd.data.calibration.sliding import slid
from hdvpd.data.calibration.views import Moment, coarse, some

SINGLE_KINDS = ("depth scale", "focal length", "depth offset")
"""Of one number; poses have six."""
NUMBER_M = (0.25, 0.18, 0.12, 0.08, 0.05, 0.04)
"""Gates of their registration [m]."""
NEAR_M = (0.05, 0.04)
"""Gates of what is registered before it is refined [m]."""
SCREENING_POINTS, FULL_POINTS = 300, 500
SCREENED, COMPARED, FULL = 4, 8, 16
"""Moments on which explanations are fitted, on which those of different kinds are compared, and on
which the chosen one is estimated."""
AFTER_POINTS = 1500
"""Points of an image by which it is judged whether a correction helps."""
MENDED = 0.8
"""Share of the cost that may be left by a number that explains anything."""
GLANCED, NEARLY = 1, 1.3
"""Moments in which this is seen first, and what may be left in multiples of what a pose leaves."""
COARSE_PIXELS = 1200
"""Least pixels of the thinned images on which explanations are compared."""
NEAR_SPACINGS = 1.5
CLEAR = 0.03
"""Difference of mean cost below which fits are equally good."""
ROBOT_MOMENTS, ROBOT_M = 16, 0.001
"""Moments in which the robot tells which camera is wrong, and the least mean difference [m]."""
MAX_SETS = 4
"""Sets of cameras that are tried at most."""


@dataclass(frozen=True)
class Estimate:
    """A correction of the cameras' calibration.

    Attributes:
      fit: what is to be changed.
      alternatives: other explanations that fit as well.
      evidence: with it applied, over all moments.
    """

    fit: Fit
    alternatives: tuple[Fit, ...]
    evidence: Evidence

    @property
    def cameras(self) -> tuple[str, ...]:
        """Which are corrected."""
        return tuple(self.fit.changes)


def estimate(moments: Sequence[Moment], evidence: Evidence, index: Indexer) -> Estimate | None:
    """Estimate what makes disagreeing cameras agree.

    Returns:
      None if nothing disagrees, the cameras do not see each other, or no correction makes every
      blamed camera pass without making anything worse.
    """
    if not any(pair.status == "fail" for pair in evidence.pairs):
        return None
    fine = some(moments, SCREENED)
    few = coarse(fine, COARSE_PIXELS)
    found = _among(few, moments, evidence, index)
    thinned = any(few[0].views[name] is not view for name, view in fine[0].views.items())
    if found is None and thinned:
        found = _among(fine, moments, evidence, index)
    return found


def _among(
    few: Sequence[Moment], moments: Sequence[Moment], evidence: Evidence, index: Indexer
) -> Estimate | None:
    """Compare explanations on a few moments, and estimate the best on more of all moments."""
    usable = _candidates(few, [s for s in evidence.blamed if s][:MAX_SETS], index)
    if not usable:
        return None
    usable = _by_robot(usable, some(moments, ROBOT_MOMENTS), index)
    spacing = max(p.spacing_m for p in evidence.pairs if p.status != "unproven")
    # Where only samples are compared, they are up to their spacing apart.
    gates = np.maximum(NEAR_M, NEAR_SPACINGS * spacing).tolist()
    more = some(moments, FULL)
    for fit in (equal := _equal(usable, some(moments, COMPARED), index))[:2]:
        near = register(
            more[::2], fit.free, index, max_points=FULL_POINTS, gates=gates, start=fit.changes
        )
        full = refine(more, near, index)
        after = measure(full.apply(moments), index, AFTER_POINTS)
        if _helps(evidence, after, full):
            others = (f for f in equal if f is not fit and _freedom(f) == _freedom(fit))
            return Estimate(full, tuple(others), after)
    return None


def _equal(fits: Sequence[Fit], moments: Sequence[Moment], index: Indexer) -> list[Fit]:
    """Keep the fits that none beats, the simplest first.

    Explanations of different kinds are told apart between pixels only: a camera that is moved along
    its axis looks much like one whose depth is scaled.
    """

    def unbeaten(among: Sequence[Fit]) -> list[Fit]:
        best = min(among, key=lambda fit: float(fit.costs.mean()))
        return sorted((f for f in among if not clearly_worse(f, best)), key=_freedom)

    first = unbeaten(fits)
    if len({_freedom(fit) for fit in first}) == 1:
        return first
    return unbeaten([refine(moments, fit, index, FEW_POINTS) for fit in first])


def _candidates(
    moments: Sequence[Moment], sets: Sequence[frozenset[str]], index: Indexer
) -> list[Fit]:
    """Fit every explanation: one number of one camera, or the poses of a set of them."""
    tried: list[Fit] = []
    poses: dict[str, Fit] = {}
    for cameras in sets:
        if len(cameras) == 1:
            (name,) = cameras
            seen = [other for other in poses if moments[0].views.keys() == {name, other}]
            found = _exchanged(poses[seen[0]], moments, name) if seen else None
            poses[name] = found or _pose(moments, (name,), index)
            tried += [*_numbers(moments, name, index, poses[name]), poses[name]]
        else:
            tried.append(_pose(moments, sorted(cameras), index))
    return [fit for fit in tried if fit.points and np.isfinite(fit.costs).all()]


def _numbers(moments: Sequence[Moment], name: str, index: Indexer, pose: Fit) -> list[Fit]:
    """Fit one number of a camera, if all of them together may explain as much as a pose."""
    few, points = moments[:GLANCED], SCREENING_POINTS
    still: Mapping[str, tuple[str, ...]] = {name: ()}
    first = register(few, still, index, max_points=points, gates=(0.04,))
    most = min(MENDED * first.costs.mean(), NEARLY * pose.costs.mean())

    def glance(*kinds: str) -> Fit | None:
        look = register(few, {name: kinds}, index, max_points=points, gates=NUMBER_M)
        return look if look.points and not look.costs.mean() > most else None

    if glance(*SINGLE_KINDS) is None:
        return []
    looks = [look for kind in SINGLE_KINDS if (look := glance(kind)) is not None]
    return [
        register(moments, look.free, index, max_points=points, gates=LAST_M, start=look.changes)
        for look in looks
    ]


def _pose(moments: Sequence[Moment], cameras: Sequence[str], index: Indexer) -> Fit:
    """Fit poses: planes from far away first, then along them, then edges."""
    free: Mapping[str, tuple[str, ...]] = dict.fromkeys(cameras, ("pose",))
    fit = register(moments, free, index, max_points=SCREENING_POINTS, gates=QUICK_M)
    for name in cameras:
        mended = [changed(m, {n: c for n, c in fit.changes.items() if n != name}) for m in moments]
        for change in slid(mended, name, fit.changes[name], index):
            other = register(
                moments, free, index, max_points=SCREENING_POINTS, gates=LAST_M,
                start={**fit.changes, name: change},
            )  # fmt: skip
            if other.points and other.costs.mean() < fit.costs.mean():
                fit = other
    return fit


def _exchanged(fit: Fit, moments: Sequence[Moment], camera: str) -> Fit | None:
    """Return the same fit of two cameras as a change of the other one; None if that is none."""
    (moved,) = fit.changes
    found = []
    for moment in moments:
        own, other = (moment.views[name].camera_to_world for name in (camera, moved))
        found.append(np.linalg.inv(own) @ other @ np.linalg.inv(fit.changes[moved].pose)
                     @ np.linalg.inv(other) @ own)  # fmt: skip
    if not np.allclose(found, found[0], atol=1e-6):
        return None
    return dataclasses.replace(
        fit,
        free={camera: fit.free[moved]},
        changes={camera: Change(found[0])},
        errors={camera: fit.errors[moved]},
    )


def _freedom(fit: Fit) -> int:
    return sum(len(KINDS[kind]) for kinds in fit.free.values() for kind in kinds)


def clearly_worse(fit: Fit, best: Fit) -> bool:
    """Say whether a fit is worse in most moments and by more than they scatter."""
    return clearly_more(fit.costs, best.costs, CLEAR * max(float(best.costs.mean()), 1.0))


def _helps(before: Evidence, after: Evidence, fit: Fit) -> bool:
    """Whether every blamed camera passes afterwards, nothing is worse and the fit is known."""
    blamed = set().union(*before.blamed)
    worse = any(
        b.status == "pass" and a.status != "pass"
        for b, a in zip(before.pairs, after.pairs, strict=True)
    ) or any(
        robot.status == "pass" and after.robots[name].status == "fail"
        for name, robot in before.robots.items()
    )
    mended = all(after.status(name) == "pass" for name in blamed)
    known = all(
        np.isfinite(change.pose).all() and 0.2 < change.depth_scale < 5 and 0.2 < change.focal < 5
        for change in fit.changes.values()
    )
    # Beside the right place planes meet again, but edges do not.
    settled = all(
        pair.p95_m <= max(limits.SETTLED_M, limits.SETTLED_SPACINGS * pair.spacing_m)
        for pair in after.pairs
        if pair.status != "unproven" and set(pair.cameras) & set(fit.changes)
    )
    return mended and known and settled and not worse


def _by_robot(fits: Sequence[Fit], moments: Sequence[Moment], index: Indexer) -> list[Fit]:
    """Keep the fits under which the robot is where the cameras see it, where that can be told.

    Two cameras that disagree are mended by moving either; but only one of them stood right with
    respect to the robot.
    """
    if len(moments) < 3 or any(
        m.robot is None or len(m.robot) < limits.MIN_SKELETON for m in moments
    ):
        return list(fits)
    groups: dict[tuple[str, ...], Fit] = {}
    for fit in sorted(fits, key=lambda f: float(f.costs.mean())):
        groups.setdefault(tuple(fit.changes), fit)
    off = {cameras: misfit(fit.apply(moments), index) for cameras, fit in groups.items()}
    best = min(off, key=lambda cameras: float(off[cameras].mean()))
    worse = {cameras for cameras, values in off.items() if clearly_more(values, off[best], ROBOT_M)}
    return [fit for fit in fits if tuple(fit.changes) not in worse]


def describe_fit(fit: Fit) -> list[str]:
    """Say what is to be changed of each camera, with its uncertainty."""
    return [
        f"{name}: {describe_change(change, fit.errors[name], fit.free[name])}"
        for name, change in fit.changes.items()
    ]


def describe_change(
    change: Change, errors: Float[np.ndarray, "9"], kinds: Sequence[str] = tuple(KINDS)
) -> str:
    """Say what a change does, with the standard errors of its nine unknowns."""
    parts = []
    if "pose" in kinds:
        turn, move = change.turn_deg, 100 * change.pose[:3, 3]
        axis = "xyz"[int(np.argmax(np.abs(turn)))]
        size, error = np.linalg.norm(turn), np.rad2deg(np.linalg.norm(errors[:3]))
        parts.append(
            f"turned by {size:.2f} +- {error:.2f} degrees (mostly about its {axis} axis: "
            f"{_listed(turn, 2)})"
        )
        error = 100 * np.linalg.norm(errors[3:6])
        parts.append(f"moved by {np.linalg.norm(move):.2f} +- {error:.2f} cm ({_listed(move, 2)})")
    if "depth scale" in kinds:
        parts.append(f"depth times {change.depth_scale:.4f} +- {errors[6]:.4f}")
    if "depth offset" in kinds:
        parts.append(f"depth plus {1e3 * change.depth_offset_m:.1f} +- {1e3 * errors[7]:.1f} mm")
    if "focal length" in kinds:
        parts.append(f"focal length times {change.focal:.4f} +- {errors[8]:.4f}")
    return ", ".join(parts)


def _listed(values: np.ndarray, digits: int) -> str:
    return ", ".join(f"{value:+.{digits}f}" for value in values)
