"""Which of the usual mistakes explains the evidence.

The search applies every repair, to all cameras and to each alone, measures again, and keeps the one
under which cameras begin to agree.
"""

import dataclasses
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from hdvpd.data.calibration.agreement import Evidence, PairEvidence, measure
from hdvpd.data.calibration.clouds import Indexer
from hdvpd.data.calibration.mistakes import Mistake, hypotheses
from hdvpd.data.calibration.views import Moment, coarse

SCREENING_POINTS = 1500
MAX_MISTAKES = 3
GLANCE_POINTS = 250
"""Points of an image by which explanations are told from those that are none."""
GLANCE_PIXELS = 700
GLANCED, HALF = 6, 0.5
"""Explanations that are measured after that, and the share of the excess that may be left there."""


@dataclass(frozen=True)
class Diagnosis:
    """What explains the evidence.

    Attributes:
      mistakes: to undo, in this order.
      alternatives: names of other mistakes under which as many cameras pass, no better.
    """

    mistakes: tuple[Mistake, ...]
    alternatives: tuple[str, ...]

    def repair(self, moments: Sequence[Moment]) -> list[Moment]:
        """Return the moments without the mistakes."""
        return _without(self.mistakes, moments)


def diagnose(
    moments: Sequence[Moment],
    index: Indexer,
    *,
    among: frozenset[str] = frozenset(),
) -> Diagnosis | None:
    """Search for mistakes that explain why cameras do not pass.

    Up to `MAX_MISTAKES` are undone one after the other, each because more cameras pass without it;
    if no single one helps, two at once are tried on all cameras.

    Args:
      moments: what the cameras saw; a few are enough.
      index: makes the nearest-point search.
      among: names of the mistakes that are tried, one at a time; empty means all.

    Returns:
      The mistakes; None if none was found, or none is needed.
    """
    current = measure(moments, index, SCREENING_POINTS)
    found: list[Mistake] = []
    others: list[str] = []
    while len(found) < MAX_MISTAKES and _passing(current) < len(moments[0].views):
        step = _best_step(moments, current, index, among)
        if step is None:
            break
        mistakes, current, alternatives = step
        moments = _without(mistakes, moments)
        found += mistakes
        others += alternatives
    return Diagnosis(tuple(found), tuple(others)) if found else None


def _best_step(
    moments: Sequence[Moment],
    current: Evidence,
    index: Indexer,
    among: frozenset[str],
) -> tuple[tuple[Mistake, ...], Evidence, list[str]] | None:
    singles = [
        (mistake,) for mistake in hypotheses(moments[0].views) if not among or mistake.name in among
    ]
    everywhere = [
        mistake for (mistake,) in singles if len(mistake.cameras) == len(moments[0].views)
    ]
    pairs = [pair for pair in itertools.combinations(everywhere, 2) if pair[0].name != pair[1].name]
    for options in (singles,) if among else (singles, pairs):
        if not options:
            continue
        likely = _likeliest(options, moments, index, better=bool(among))
        tried = [
            (option, measure(_without(option, moments), index, SCREENING_POINTS))
            for option in likely
        ]
        better = [
            (option, evidence)
            for option, evidence in tried
            if _passing(evidence) > _passing(current)
            and not _parts(current, evidence)
            and _mends(option, current, evidence)
        ]
        if better:
            best, evidence = max(better, key=lambda trial: _rank(trial[1]))
            equal = [o for o, e in better if _rank(e)[:2] == _rank(evidence)[:2]]
            names = dict.fromkeys(" and ".join(m.name for m in option) for option in equal)
            names.pop(" and ".join(m.name for m in best), None)
            return best, evidence, list(names)
    return None


def _likeliest(
    options: Sequence[tuple[Mistake, ...]],
    moments: Sequence[Moment],
    index: Indexer,
    *,
    better: bool,
) -> list[tuple[Mistake, ...]]:
    """Choose the explanations worth measuring, in their order, by few points of few moments.

    Args:
      options: to choose from.
      moments: what the cameras saw.
      index: makes the nearest-point search.
      better: whether only those are after which more cameras pass, or half of the excess is left.
    """
    count = 2 if len(options[0]) == 1 else 1
    few = coarse(moments[:: max(len(moments) // 2, 1)][:count], GLANCE_PIXELS)
    own = index.apart()

    def glance(option: tuple[Mistake, ...]) -> Evidence:
        return measure(_without(option, few), own, GLANCE_POINTS)

    found = [glance(option) for option in options]
    best = sorted(range(len(options)), key=lambda k: _rank(found[k]), reverse=True)[:GLANCED]
    if better:
        stored = glance(())
        passing, most = _passing(stored), HALF * stored.excess
        best = [k for k in best if _passing(found[k]) > passing or found[k].excess < most]
    return [options[k] for k in sorted(best)]


def _parts(before: Evidence, after: Evidence) -> bool:
    """Say whether cameras that agreed no longer do: no explanation, whatever else it improves."""
    agreed = {p.cameras for p in before.pairs if _agrees(p)}
    return any(p.cameras in agreed and not _agrees(p) for p in after.pairs)


def _mends(option: Sequence[Mistake], before: Evidence, after: Evidence) -> bool:
    """Say whether a repaired camera itself passes: one that looks elsewhere contradicts nobody."""
    cameras = {camera for mistake in option for camera in mistake.cameras}
    return any(before.status(c) != "pass" and after.status(c) == "pass" for c in cameras)


def _agrees(pair: PairEvidence) -> bool:
    return pair.status != "unproven" and pair.median_m <= pair.median_limit_m


def _rank(evidence: Evidence) -> tuple[int, int, float]:
    cameras = _cameras(evidence)
    failing = sum(evidence.status(camera) == "fail" for camera in cameras)
    # Rounded, so that of equally good explanations the first listed, which is the commonest, wins.
    return _passing(evidence), -failing, -round(evidence.excess, 2)


def _passing(evidence: Evidence) -> int:
    return sum(evidence.status(camera) == "pass" for camera in _cameras(evidence))


def _cameras(evidence: Evidence) -> set[str]:
    return {c for pair in evidence.pairs for c in pair.cameras} | set(evidence.robots)


def _without(mistakes: Sequence[Mistake], moments: Sequence[Moment]) -> list[Moment]:
    for mistake in mistakes:
        moments = [dataclasses.replace(m, views=mistake.repair(m.views)) for m in moments]
    return list(moments)
