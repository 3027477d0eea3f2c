"""Why cameras do not pass: a textbook mistake, an estimated correction, or some episodes alone."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hdvpd.data.calibration.agreement import Evidence, measure
from hdvpd.data.calibration.clouds import Indexer
from hdvpd.data.calibration.diagnosis import Diagnosis, diagnose
from hdvpd.data.calibration.estimate import SCREENED, Estimate, clearly_worse, estimate, some
from hdvpd.data.calibration.registration import Fit, register
from hdvpd.data.calibration.views import Moment

ODD = 1.5
"""An episode that exceeds a limit by this factor, while others pass, differs from them."""
EPISODE_POINTS = 1000
SCREENING_MOMENTS = 4


@dataclass(frozen=True)
class Explanation:
    """What explains that cameras do not pass.

    Attributes:
      odd_episodes: episodes that fail while others pass; then the rest is about them alone.
      diagnosis: the mistakes, or None.
      estimate: the correction of what is left, or None.
      moments: all moments with mistakes undone and correction applied; None if nothing was found.
      evidence: measured of them, or None.
    """

    odd_episodes: tuple[int, ...] = ()
    diagnosis: Diagnosis | None = None
    estimate: Estimate | None = None
    moments: tuple[Moment, ...] | None = None
    evidence: Evidence | None = None


def odd_episodes(moments: Sequence[Moment], index: Indexer) -> tuple[int, ...]:
    """List the episodes that fail by far while others pass."""
    excess = {}
    for number, group in itertools.groupby(moments, key=lambda moment: moment.episode):
        evidence = measure(list(group), index, EPISODE_POINTS)
        judged = [p.excess for p in evidence.pairs if p.status != "unproven"]
        judged += [r.excess for r in evidence.robots.values() if r.status != "unproven"]
        if judged:
            excess[number] = max(judged)
    odd = tuple(number for number, value in excess.items() if value > ODD)
    return odd if any(value <= 1 for value in excess.values()) else ()


def explain(moments: Sequence[Moment], evidence: Evidence, index: Indexer) -> Explanation:
    """Search for what explains that cameras do not pass.

    Args:
      moments: what they saw.
      evidence: of these moments.
      index: makes the nearest-point search.
    """
    odd = odd_episodes(moments, index)
    if odd:
        moments = [moment for moment in moments if moment.episode in odd]
        evidence = measure(moments, index)
    elif all(evidence.status(name) == "pass" for name in moments[0].views):
        return Explanation()
    found = estimate(moments, evidence, index)
    diagnosis = diagnose(some(moments, SCREENING_MOMENTS), index)
    if diagnosis is None and found is None:
        return Explanation(odd)
    if diagnosis is not None:
        mended = diagnosis.repair(moments)
        after = measure(mended, index)
        if found is not None and _better(found.fit, mended, moments, index):
            diagnosis = None
        else:
            found = estimate(mended, after, index)
            if found is None:
                return Explanation(odd, diagnosis, None, tuple(mended), after)
            return Explanation(
                odd, diagnosis, found, tuple(found.fit.apply(mended)), found.evidence
            )
    assert found is not None
    return Explanation(odd, diagnosis, found, tuple(found.fit.apply(moments)), found.evidence)


def _better(fit: Fit, mended: Sequence[Moment], moments: Sequence[Moment], index: Indexer) -> bool:
    """Say whether an estimated correction fits clearly better than undoing mistakes."""
    still: dict[str, tuple[str, ...]] = dict.fromkeys(fit.changes, ())
    first, second = (
        register(some(m, SCREENED), still, index, max_points=300, last=True)
        for m in (fit.apply(moments), mended)
    )
    return clearly_worse(second, first)
