"""Why cameras do not pass: a textbook mistake, an estimated correction, or some episodes alone."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from hdvpd.data.calibration.agreement import Evidence, measure
from hdvpd.data.calibration.clouds import Indexer
from hdvpd.data.calibration.diagnosis import Diagnosis, diagnose
from hdvpd.data.calibration.estimate import SCREENED, Estimate, clearly_worse, estimate
from hdvpd.data.calibration.mistakes import LIKE_CORRECTIONS
from hdvpd.data.calibration.registration import LAST_M, Fit, register
from hdvpd.data.calibration.robot_fit import Arm, RobotFit, fit_robot
from hdvpd.data.calibration.views import Moment, some

ODD = 1.5
"""An episode that exceeds a limit by this factor, while others pass, differs from them."""
FARTHER = 4.0
"""And by this factor more than any that passes."""
SCREENING_MOMENTS = 4


@dataclass(frozen=True)
class Explanation:
    """What explains that cameras do not pass.

    Attributes:
      odd_episodes: episodes that fail while others pass; then the rest is about them alone.
      odd_cameras: cameras that may be wrong in them.
      diagnosis: the mistakes, or None.
      estimate: the correction of what is left, or None.
      moments: all moments with mistakes undone and correction applied; None if nothing was found.
      evidence: measured of them, or None.
      robot: what would lay the robot where cameras that agree see it, best first; the others
        explain as much. It is part of `moments` only where the robot contradicts the cameras.
    """

    odd_episodes: tuple[int, ...] = ()
    odd_cameras: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    estimate: Estimate | None = None
    moments: tuple[Moment, ...] | None = None
    evidence: Evidence | None = None
    robot: tuple[RobotFit, ...] = ()


def odd_episodes(moments: Sequence[Moment], evidence: Evidence) -> tuple[int, ...]:
    """List the episodes that fail by far while others pass."""
    excess = {}
    for number in dict.fromkeys(moment.episode for moment in moments):
        mine = evidence.of(_moments_of((number,), moments))
        judged = [p.excess for p in mine.pairs if p.status != "unproven"]
        judged += [r.excess for r in mine.robots.values() if r.status != "unproven"]
        if judged:
            excess[number] = max(judged)
    passing = [value for value in excess.values() if value <= 1]
    if not passing:
        return ()
    return tuple(n for n, value in excess.items() if value > max(ODD, FARTHER * max(passing)))


def _moments_of(episodes: Sequence[int], moments: Sequence[Moment]) -> list[int]:
    return [k for k, moment in enumerate(moments) if moment.episode in episodes]


def explain(
    moments: Sequence[Moment],
    evidence: Evidence,
    index: Indexer,
    arm: Arm | None = None,
    *,
    late: bool = False,
) -> Explanation:
    """Search for what explains that cameras do not pass.

    Args:
      moments: what they saw.
      evidence: of these moments (`measure`).
      index: makes the nearest-point search.
      arm: the robot, if it has a model.
      late: whether images of a camera are proven to be of another time: then moving things differ.
    """
    failing = any(evidence.status(name) != "pass" for name in moments[0].views)
    odd = odd_episodes(moments, evidence) if failing and not late else ()
    if odd:
        chosen = _moments_of(odd, moments)
        moments, evidence = [moments[k] for k in chosen], evidence.of(chosen)
    found = _of_cameras(moments, evidence, index) if failing else Explanation()
    if odd:
        blamed = sorted(set().union(*evidence.blamed))
        found = dataclasses.replace(found, odd_episodes=odd, odd_cameras=tuple(blamed))
    agree = not any(pair.status == "fail" for pair in evidence.pairs)
    if arm is None or not agree or found.evidence is not None:
        return found
    fits = fit_robot(moments, arm, index, far=failing)
    if not fits:
        return found
    for fit in fits:
        moved = fit.apply(moments, arm.info)
        after = measure(moved, index)
        if failing and all(after.status(name) == "pass" for name in moments[0].views):
            others = tuple(other for other in fits if other is not fit)
            return dataclasses.replace(
                found, moments=tuple(moved), evidence=after, robot=(fit, *others)
            )
    return dataclasses.replace(found, robot=fits)


def _of_cameras(moments: Sequence[Moment], evidence: Evidence, index: Indexer) -> Explanation:
    found = estimate(moments, evidence, index)
    among = LIKE_CORRECTIONS if found is not None and found.fit.small else frozenset()
    diagnosis = diagnose(some(moments, SCREENING_MOMENTS), index, among=among)
    if diagnosis is None and found is None:
        return Explanation()
    if diagnosis is not None:
        mended = diagnosis.repair(moments)
        after = measure(mended, index)
        if found is not None and _better(found.fit, mended, moments, index):
            diagnosis = None
        else:
            found = estimate(mended, after, index)
            if found is not None:
                return Explanation(
                    diagnosis=diagnosis,
                    estimate=found,
                    moments=tuple(found.fit.apply(mended)),
                    evidence=found.evidence,
                )
            # What helped in a few moments may not in all.
            helps = any(after.status(n) == "pass" != evidence.status(n) for n in moments[0].views)
            if not helps:
                return Explanation()
            return Explanation(diagnosis=diagnosis, moments=tuple(mended), evidence=after)
    assert found is not None
    return Explanation(
        estimate=found, moments=tuple(found.fit.apply(moments)), evidence=found.evidence
    )


def _better(fit: Fit, mended: Sequence[Moment], moments: Sequence[Moment], index: Indexer) -> bool:
    """Say whether an estimated correction fits clearly better than undoing mistakes."""
    still: dict[str, tuple[str, ...]] = dict.fromkeys(fit.changes, ())
    first, second = (
        register(some(m, SCREENED), still, index, max_points=300, gates=LAST_M)
        for m in (fit.apply(moments), mended)
    )
    return clearly_worse(second, first)
