"""Which correction explains that cameras disagree, how large it is, and what cannot be told apart.

Every camera that may be wrong is registered with one kind of unknown free at a time. The simplest
explanation that none fits clearly better is kept; others that fit as well are named beside it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.stats

from hdvpd.data.calibration import limits
from hdvpd.data.calibration.agreement import Evidence, measure
from hdvpd.data.calibration.clouds import Indexer, observe
from hdvpd.data.calibration.registration import KINDS, Change, Fit, register
from hdvpd.data.calibration.views import Moment, locate, project
from hdvpd.types import Float

SINGLE_KINDS = ("depth scale", "focal length", "depth offset", "pose")
"""From few unknowns to many."""
SCREENED, FULL = 4, 8
"""Moments on which explanations are compared, and on which the chosen one is estimated."""
CLEAR = 0.03
"""Difference of mean cost below which fits are equally good."""
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

    Args:
      moments: what they saw.
      evidence: of all these moments as they are.
      index: makes the nearest-point search.

    Returns:
      None if nothing disagrees, the cameras do not see each other, or no correction makes every
      blamed camera pass without making anything worse.
    """
    if not any(pair.status == "fail" for pair in evidence.pairs):
        return None
    few = some(moments, SCREENED)
    tried: list[Fit] = []
    for cameras in [s for s in evidence.blamed if s][:MAX_SETS]:
        kinds = SINGLE_KINDS if len(cameras) == 1 else ("pose",)
        free = [dict.fromkeys(sorted(cameras), (kind,)) for kind in kinds]
        tried += [register(few, f, index, max_points=300, quick=True) for f in free]
    usable = [fit for fit in tried if fit.points and np.isfinite(fit.costs).all()]
    if not usable:
        return None
    usable = _by_robot(usable, few, index)
    best = min(usable, key=lambda fit: float(fit.costs.mean()))
    equal = sorted((f for f in usable if not clearly_worse(f, best)), key=_freedom)
    chosen = equal[0]
    more = some(moments, FULL)
    for fit in (chosen, *equal[1:2]):
        full = register(more, fit.free, index, max_points=600, start=fit.changes)
        if any("pose" in kinds for kinds in fit.free.values()):
            # Along surfaces the quick look may have stopped beside the best place.
            slow = register(more, fit.free, index, max_points=600)
            full = min(full, slow, key=lambda f: float(f.costs.mean()))
        after = measure(full.apply(moments), index)
        if _helps(evidence, after, full):
            others = (f for f in equal if f is not fit and _freedom(f) == _freedom(fit))
            return Estimate(full, tuple(others), after)
    return None


def some(moments: Sequence[Moment], count: int) -> list[Moment]:
    """Choose up to so many moments, evenly spread."""
    at = np.unique(np.linspace(0, len(moments) - 1, min(count, len(moments))).round().astype(int))
    return [moments[k] for k in at]


def _freedom(fit: Fit) -> int:
    return sum(len(KINDS[kind]) for kinds in fit.free.values() for kind in kinds)


def clearly_worse(fit: Fit, best: Fit) -> bool:
    """Say whether a fit is worse in most moments and by more than they scatter."""
    differences = fit.costs - best.costs
    if not np.isfinite(differences).all():
        return not np.isfinite(fit.costs).all()
    if differences.mean() < CLEAR * max(best.costs.mean(), 1.0):
        return False
    count = len(differences)
    if count < 2:
        return True
    error = max(differences.std(ddof=1) / np.sqrt(count), 1e-9)
    return bool(differences.mean() / error > scipy.stats.t.isf(0.01, count - 1))


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
    if any(m.robot is None or len(m.robot) < limits.MIN_SKELETON for m in moments):
        return list(fits)
    scatter = {id(fit): robot_scatter(fit.apply(moments), index) for fit in fits}
    groups: dict[tuple[str, ...], Fit] = {}
    for fit in sorted(fits, key=lambda f: float(f.costs.mean())):
        groups.setdefault(tuple(fit.changes), fit)
    best = min(groups.values(), key=lambda f: float(np.mean(scatter[id(f)])))
    if not len(scatter[id(best)]):
        return list(fits)
    worse = {
        cameras for cameras, fit in groups.items() if _farther(scatter[id(fit)], scatter[id(best)])
    }
    return [fit for fit in fits if tuple(fit.changes) not in worse]


def _farther(other: Float[np.ndarray, "n"], best: Float[np.ndarray, "n"]) -> bool:
    if len(other) != len(best) or len(best) < 3:
        return False
    differences = other - best
    error = max(differences.std(ddof=1) / np.sqrt(len(best)), 1e-9)
    clear = differences.mean() / error > scipy.stats.t.isf(0.01, len(best) - 1)
    return bool(clear and differences.mean() > 0.001)


def robot_scatter(moments: Sequence[Moment], index: Indexer) -> Float[np.ndarray, "n"]:
    """Return how much distances of the robot's points from what is seen scatter, by view [m].

    A point has the same distance from the surface of its link at every moment and in every camera,
    if all stand right.
    """
    rows = []
    for moment in moments:
        for view in moment.views.values():
            surface = observe(view, index)
            away = np.full(len(moment.robot if moment.robot is not None else ()), np.nan)
            if surface is not None and moment.robot is not None:
                pixels, depth = project(moment.robot, view)
                row, column, inside = locate(pixels, view)
                near = inside & (depth < surface.front[row, column] + limits.LINK_DEPTH_M)
                if near.any():
                    away[near] = np.minimum(surface.search(moment.robot[near])[0], 0.15)
            rows.append(away)
    if not rows or not np.isfinite(np.stack(rows)).any():
        return np.zeros(0)
    distances = np.stack(rows)
    known = np.isfinite(distances).any(axis=0)
    place = np.full(distances.shape[1], np.nan)
    place[known] = np.nanmedian(distances[:, known], axis=0)
    off = np.abs(distances - place)
    return np.nan_to_num(off).sum(axis=1) / np.maximum(np.isfinite(off).sum(axis=1), 1)


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
