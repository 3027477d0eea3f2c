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
      averaged over the rollout steps, with intervals over seeds and episodes, and the error of all
      objects at every step; under `pairs` the paired differences. Nothing where objects are not
      known.
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


def _table(runs: Sequence[Scores], predictor: str) -> Float[np.ndarray, "seeds episodes steps 4"]:
    """Return what a predictor scored in every run."""
    number = MOTION_PREDICTORS.index(predictor)
    return np.stack([run.motion[:, number] for run in runs if run.motion is not None])


def _describe(values: Float[np.ndarray, "seeds episodes steps 4"]) -> dict[str, Any]:
    means = _estimates(masked_mean(values, 2))
    steps = _estimates(values[..., MOTION_METRICS.index("object_error_m")])
    return {**dict(zip(MOTION_METRICS, means, strict=True)), "object_error_m_steps": steps}


def _estimates(values: Float[np.ndarray, "seeds episodes k"]) -> list[dict[str, float | None]]:
    estimate = crossed_interval(values)
    pairs = zip(plain_numbers(estimate.mean), plain_numbers(estimate.ci95), strict=True)
    return [{"mean": mean, "ci95": ci95} for mean, ci95 in pairs]


def compared_motion_tables(motion: Mapping[str, Any]) -> tuple[Table, ...]:
    """Lay out the errors of members and controls, and the paired differences, in millimetres.

    Returns:
      Errors averaged over the rollout steps, their differences, errors of all objects at every
      step, their differences; a difference is bold where its interval excludes zero.
    """
    controls = {MOTION_LABELS[name]: entry for name, entry in motion["controls"].items()}
    rows = {**motion["members"], **controls}
    pairs = {f"{pair['first']} \u2212 {pair['second']}": pair for pair in motion["pairs"]}
    head = ("", *MOTION_TITLES.values())
    steps = range(len(next(iter(rows.values()))["object_error_m_steps"]))
    step_head = (MOTION_TITLES["object_error_m"], *(f"step {step}" for step in steps))

    def means(entry: Mapping[str, Any]) -> list[Mapping[str, float | None]]:
        return [entry[metric] for metric in MOTION_METRICS]

    def by_step(entry: Mapping[str, Any]) -> list[Mapping[str, float | None]]:
        return entry["object_error_m_steps"]

    def lines(entries: Mapping[str, Any], of: Any, *, difference: bool) -> list[list[Cell]]:
        return [
            [name, *(_cell(estimate, difference=difference) for estimate in of(entry))]
            for name, entry in entries.items()
        ]

    return (
        Table(head, lines(rows, means, difference=False), "Motion of objects"),
        Table(head, lines(pairs, means, difference=True), "Motion, differences"),
        Table(step_head, lines(rows, by_step, difference=False), "Motion against the rollout step"),
        Table(
            step_head,
            lines(pairs, by_step, difference=True),
            "Motion against the rollout step, differences",
        ),
    )


def _cell(entry: Mapping[str, float | None], *, difference: bool) -> str:
    mean, ci95 = (None if x is None else MM * x for x in (entry["mean"], entry["ci95"]))
    text = plus_minus(mean, ci95, 1, sign=difference)
    clear = difference and mean is not None and ci95 is not None and abs(mean) > ci95
    return bold(text) if clear else text
