"""The motion of objects in a comparison: of every member, over seeds and episodes."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hdvpd.basics.statistics import crossed_interval, masked_mean
from hdvpd.basics.tables import Cell, Table, bold, plus_minus
from hdvpd.basics.types import Float
from hdvpd.evaluation.curves import Scores, plain_numbers
from hdvpd.evaluation.motion_tables import MM, MOTION_LABELS, MOTION_TITLES
from hdvpd.evaluation.objects import MOTION_METRICS, MOTION_PREDICTORS


def compare_motion(scores: Mapping[str, Sequence[Scores]]) -> dict[str, Any]:
    """Compare members by the motion of particles.

    Args:
      scores: by member, one per seed, of the same seeds and episodes.

    Returns:
      The object `motion` of comparison.json: under `members` and `controls` the measures of each,
      averaged over the rollout steps, with intervals over seeds and episodes; under `pairs` the
      paired differences. Nothing where objects are not known.
    """
    if any(own.motion is None for runs in scores.values() for own in runs):
        return {}
    tables = {name: _table(runs, "model") for name, runs in scores.items()}
    first = next(iter(scores.values()))
    return {
        "members": {name: _describe(table) for name, table in tables.items()},
        "controls": {
            control: _describe(_table(first[:1], control)) for control in MOTION_PREDICTORS[1:]
        },
        "pairs": [
            {"first": one, "second": other, **_describe(tables[one] - tables[other])}
            for one, other in itertools.combinations(tables, 2)
        ],
    }


def _table(runs: Sequence[Scores], predictor: str) -> Float[np.ndarray, "seeds episodes 4"]:
    """Return what a predictor scored in every run, averaged over the rollout steps."""
    number = MOTION_PREDICTORS.index(predictor)
    values = [run.motion[:, number] for run in runs if run.motion is not None]
    return masked_mean(np.stack(values), 2)


def _describe(values: Float[np.ndarray, "seeds episodes 4"]) -> dict[str, Any]:
    estimate = crossed_interval(values)
    pairs = zip(plain_numbers(estimate.mean), plain_numbers(estimate.ci95), strict=True)
    return {
        metric: {"mean": mean, "ci95": ci95}
        for metric, (mean, ci95) in zip(MOTION_METRICS, pairs, strict=True)
    }


def compared_motion_tables(motion: Mapping[str, Any]) -> tuple[Table, Table]:
    """Lay out the errors of members and controls, and the paired differences, in millimetres.

    Returns:
      Both tables; a difference is bold where its interval excludes zero.
    """
    controls = {MOTION_LABELS[name]: entry for name, entry in motion["controls"].items()}
    rows: list[list[Cell]] = [
        [name, *(_cell(entry[metric]) for metric in MOTION_METRICS)]
        for name, entry in {**motion["members"], **controls}.items()
    ]
    pairs: list[list[Cell]] = [
        [
            f"{pair['first']} \u2212 {pair['second']}",
            *(_cell(pair[metric], difference=True) for metric in MOTION_METRICS),
        ]
        for pair in motion["pairs"]
    ]
    head = ("", *MOTION_TITLES.values())
    return Table(head, rows, "Motion of objects"), Table(head, pairs, "Motion, differences")


def _cell(entry: Mapping[str, float | None], *, difference: bool = False) -> str:
    mean, ci95 = (None if x is None else MM * x for x in (entry["mean"], entry["ci95"]))
    text = plus_minus(mean, ci95, 1, sign=difference)
    clear = difference and mean is not None and ci95 is not None and abs(mean) > ci95
    return bold(text) if clear else text
