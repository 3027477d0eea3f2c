"""Means, intervals and tables of the particles' motion (`objects.MotionScores`)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from hdvpd.basics.statistics import masked_mean, student_interval
from hdvpd.basics.tables import Cell, Table, plus_minus
from hdvpd.basics.types import Float
from hdvpd.evaluation.curves import plain_numbers
from hdvpd.evaluation.objects import MOTION_METRICS, MOTION_PREDICTORS, MotionScores

MOTION_TITLES = {
    "object_error_m": "all objects [mm]",
    "moved_error_m": "moved objects [mm]",
    "untouched_error_m": "untouched objects [mm]",
    "static_jump_m": "what stands still [mm]",
}
# The error of no motion is the true displacement.
MOTION_LABELS = {
    "model": "model",
    "static_render": "no motion",
    "kinematics_only": "kinematics only",
}
MM = 1000.0
"""Millimetres per metre: lengths are stored in metres and shown in millimetres."""


def summarize_motion(scores: MotionScores) -> dict[str, Any]:
    """Make the object `motion` of metrics.json.

    Returns:
      The layout of docs/evaluation.md, plain values only; lengths in metres.
    """
    tasks = {}
    for task in dict.fromkeys(scores.tasks):
        rows = [own == task for own in scores.tasks]
        tasks[task] = {"episodes": sum(rows)} | _predictors(scores.values[rows])
    return {
        "windows": scores.windows,
        "moving_windows": scores.moving_windows,
        "episode_numbers": list(scores.episodes),
        **_predictors(scores.values),
        "tasks": tasks,
        "each_episode": _each_episode(scores),
    }


def _each_episode(scores: MotionScores) -> list[dict[str, Any]]:
    """Return the model's mean over the steps of every episode: it says which to look at."""
    means = masked_mean(scores.values[:, 0], 1)
    return [
        {"episode": episode, "task": task}
        | dict(zip(MOTION_METRICS, plain_numbers(own), strict=True))
        for episode, task, own in zip(scores.episodes, scores.tasks, means, strict=True)
    ]


def _predictors(values: Float[np.ndarray, "episodes predictors steps 4"]) -> dict[str, Any]:
    """Return lists over the steps and means over them for every predictor."""
    entries: dict[str, Any] = {}
    behind = values - values[:, :1]
    for i, predictor in enumerate(MOTION_PREDICTORS):
        entry: dict[str, Any] = {}
        for j, metric in enumerate(MOTION_METRICS):
            kinds = {"": values[:, i, :, j]}
            if predictor != "model":
                kinds["_behind_model"] = behind[:, i, :, j]
            for kind, own in kinds.items():
                entry |= _estimates(f"{metric}{kind}", own)
        entries[predictor] = entry
    return entries


def _estimates(name: str, values: Float[np.ndarray, "episodes steps"]) -> dict[str, Any]:
    """Return mean and interval of every step, and of the mean over the steps."""
    steps = student_interval(values)
    mean = student_interval(masked_mean(values, 1)[:, None])
    return {
        name: plain_numbers(steps.mean),
        f"{name}_ci95": plain_numbers(steps.ci95),
        f"{name}_mean": plain_numbers(mean.mean)[0],
        f"{name}_mean_ci95": plain_numbers(mean.ci95)[0],
    }


def motion_table(motion: Mapping[str, Any], title: str = "") -> Table:
    """Lay out the means over all rollout steps."""
    rows = [
        [MOTION_LABELS[p], *(_cell(motion[p], f"{m}_mean") for m in MOTION_METRICS)]
        for p in MOTION_PREDICTORS
    ]
    return Table(("", *MOTION_TITLES.values()), rows, title)


def motion_step_table(motion: Mapping[str, Any], metric: str, title: str = "") -> Table:
    """Lay out one measure at every rollout step."""
    steps = range(len(motion["model"][metric]))
    rows = [
        [MOTION_LABELS[p], *(_cell(motion[p], metric, step) for step in steps)]
        for p in MOTION_PREDICTORS
    ]
    return Table((MOTION_TITLES[metric], *(f"step {step}" for step in steps)), rows, title)


def _cell(entry: Mapping[str, Any], name: str, step: int | None = None) -> Cell:
    mean, ci95 = entry[name], entry[f"{name}_ci95"]
    if step is not None:
        mean, ci95 = mean[step], ci95[step]
    return _millimetres(mean, ci95)


def _millimetres(mean: float | None, ci95: float | None = None) -> Cell:
    return plus_minus(None if mean is None else MM * mean, None if ci95 is None else MM * ci95, 1)


def describe_motion(motion: Mapping[str, Any]) -> str:
    """Say what the tables' numbers are."""
    return (
        f"{len(motion['episode_numbers'])} held-out episodes, all {motion['windows']} windows, "
        f"{motion['moving_windows']} of them with a moving object"
    )


def motion_tables(motion: Mapping[str, Any]) -> list[Table]:
    """List the tables of a run: means, errors per step, of every task, and of every episode."""
    title = f"Distance of particles from their true place, {describe_motion(motion)}"
    tables = [motion_table(motion, title)]
    tables += [motion_step_table(motion, metric) for metric in MOTION_METRICS]
    for task, own in motion["tasks"].items():
        title = f"{task}, {own['episodes']} episode{'s' * (own['episodes'] != 1)}"
        tables.append(motion_step_table(own, "object_error_m", title))
    return [*tables, _episode_table(motion)]


def _episode_table(motion: Mapping[str, Any]) -> Table:
    rows = [
        [
            str(own["episode"]),
            own["task"],
            *(_millimetres(own[metric]) for metric in MOTION_METRICS),
        ]
        for own in motion["each_episode"]
    ]
    title = "every episode, model, mean over the steps"
    return Table(("episode", "task", *MOTION_TITLES.values()), rows, title)


def motion_markdown(motion: Mapping[str, Any]) -> str:
    """Write all tables of a run in Markdown."""
    return "\n".join(
        (f"{table.title}\n\n" if table.title else "") + table.markdown()
        for table in motion_tables(motion)
    )


def motion_csv(motions: Mapping[str, Mapping[str, Any]]) -> str:
    """Write one row per run, task ("all" for every task), predictor and step.

    Returns:
      The table, in metres; empty cells where a number does not exist.
    """
    columns = [column for m in MOTION_METRICS for column in (m, f"{m}_ci95")]
    rows: list[list[Cell]] = []
    for run, motion in motions.items():
        for task, own in {"all": motion, **motion["tasks"]}.items():
            for predictor in MOTION_PREDICTORS:
                lists = own[predictor]
                for step in range(len(lists[columns[0]])):
                    cells = [lists[column][step] for column in columns]
                    rows.append([run, task, predictor, step, *cells])
    return Table(("run", "task", "predictor", "step", *columns), rows).csv()
