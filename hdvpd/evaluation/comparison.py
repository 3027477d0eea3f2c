"""From the scores of several members' runs to means, intervals, tables and a plot.

Every member has runs of the same seeds, and every run is scored on the same episodes, so a member's
scores form a table of seeds by episodes; those of two members are paired cell by cell. Both a seed
and an episode are draws from a population, and an interval covers both: it says what another
comparison, with other seeds on other episodes of the same kind, may find (`crossed_interval`).
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hdvpd.basics.colors import SERIES
from hdvpd.basics.statistics import crossed_interval, masked_mean
from hdvpd.basics.tables import Cell, Table, bold, plus_minus
from hdvpd.basics.types import Float
from hdvpd.evaluation.compared_motion import compare_motion, compared_motion_tables
from hdvpd.evaluation.curves import (
    LABELS,
    METRICS,
    REFERENCE,
    STYLES,
    TITLES,
    Scores,
    draw_curve,
    plain_numbers,
)

_DIGITS = {"ssim": 4, "psnr": 2, "moving_ssim": 4, "moving_psnr": 2}
_SPEEDS = {"steps_per_s": "steps/s", "particles_per_s": "particles/s"}
_COUNTS = {
    "parameters": "parameters",
    "dynamics_parameters": "of these dynamics",
    "skipped_steps": "skipped steps",
}


@dataclass(frozen=True)
class ComparedRun:
    """One run of a member, trained and evaluated.

    Attributes:
      member: name of the member.
      seed: of the training.
      scores: on the held-out episodes.
      parameters: of the whole model.
      dynamics_parameters: those of the dynamics among them.
      steps_per_s: training steps per second, of every log window; compilation is not in them.
      particles_per_s: predicted particles per second, of every log window.
      skipped_steps: steps whose loss or gradient was not finite.
    """

    member: str
    seed: int
    scores: Scores
    parameters: int
    dynamics_parameters: int
    steps_per_s: tuple[float, ...]
    particles_per_s: tuple[float, ...]
    skipped_steps: int


def group_by_member(runs: Sequence[ComparedRun]) -> dict[str, list[ComparedRun]]:
    """Collect the runs of every member, in the order of the seeds.

    Returns:
      Runs by member, in the order of first appearance.
    """
    members: dict[str, list[ComparedRun]] = {run.member: [] for run in runs}
    for run in sorted(runs, key=lambda run: run.seed):
        members[run.member].append(run)
    return members


def score_table(
    runs: Sequence[ComparedRun], predictor: str
) -> Float[np.ndarray, "seeds episodes steps 4"]:
    """Return what a predictor scored in every run, averaged over cameras.

    Returns:
      `METRICS`; NaN where a score does not exist.
    """
    scores = [(run.scores.images, run.scores.predictors.index(predictor)) for run in runs]
    return np.stack([masked_mean(images[:, index], 1) for images, index in scores])


def describe_scores(values: Float[np.ndarray, "seeds episodes steps 4"]) -> dict[str, Any]:
    """Average scores, or differences of scores, over seeds and episodes.

    Returns:
      The layout of metrics.json: for every metric the lists over rollout steps, `<name>` and
      `<name>_ci95`, and under `average_over_steps` its `mean` and `ci95`.
    """
    described: dict[str, Any] = {}
    average = crossed_interval(masked_mean(values, 2))
    for i, metric in enumerate(METRICS):
        curve = crossed_interval(values[..., i])
        described[metric] = plain_numbers(curve.mean)
        described[f"{metric}_ci95"] = plain_numbers(curve.ci95)
    described["average_over_steps"] = {
        metric: {"mean": mean, "ci95": ci95}
        for metric, mean, ci95 in zip(METRICS, *map(plain_numbers, average), strict=True)
    }
    return described


def describe_member(runs: Sequence[ComparedRun]) -> dict[str, Any]:
    """Describe a member: its scores, its speed and its size.

    Returns:
      Its object in comparison.json. A speed is the median over the log windows of all runs.
    """
    described = describe_scores(score_table(runs, "model"))
    for speed in _SPEEDS:
        windows = [value for run in runs for value in getattr(run, speed)]
        described[speed] = float(np.median(windows)) if windows else None
    return described | {
        "parameters": runs[0].parameters,
        "dynamics_parameters": runs[0].dynamics_parameters,
        "skipped_steps": sum(run.skipped_steps for run in runs),
    }


def summarize_comparison(
    runs: Sequence[ComparedRun], made_from: Mapping[str, str]
) -> dict[str, Any]:
    """Make the object that comparison.json holds.

    Args:
      runs: of all members, the same seeds of each, scored on the same frames.
      made_from: what the reader must know of the runs, as label and value.

    Returns:
      The layout of docs/comparison.md, plain values only.
    """
    members = group_by_member(runs)
    tables = {name: score_table(own, "model") for name, own in members.items()}
    first = next(iter(members.values()))
    return {
        "members": {name: describe_member(own) for name, own in members.items()},
        REFERENCE: describe_scores(score_table(first[:1], REFERENCE)),
        "pairs": [
            {"first": one, "second": other, **describe_scores(tables[one] - tables[other])}
            for one, other in itertools.combinations(tables, 2)
        ],
        "seeds": [run.seed for run in first],
        "episodes": list(first[0].scores.episodes),
        "steps": first[0].scores.num_steps,
        "motion": compare_motion({n: [run.scores for run in own] for n, own in members.items()}),
        "made_from": dict(made_from),
    }


def _difference(entry: Mapping[str, float | None], metric: str) -> str:
    mean, ci95 = entry["mean"], entry["ci95"]
    text = plus_minus(mean, ci95, _DIGITS[metric], sign=True)
    return bold(text) if mean is not None and ci95 is not None and abs(mean) > ci95 else text


def _best(averages: Mapping[str, Mapping[str, Any]], metric: str) -> float | None:
    return max((e[metric]["mean"] for e in averages.values() if e[metric]["mean"] is not None),
               default=None)  # fmt: skip


def _count(value: float | int | None) -> Cell:
    if value is None:
        return None
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.2f}"


def comparison_tables(summary: Mapping[str, Any]) -> tuple[Table, ...]:
    """Lay out what a terminal shows: `image_tables`, and the motion of objects if it is known."""
    motion = summary.get("motion")
    return image_tables(summary) + (compared_motion_tables(motion)[:2] if motion else ())


def image_tables(summary: Mapping[str, Any]) -> tuple[Table, Table, Table, Table]:
    """Lay out scores of images and costs.

    Returns:
      Scores averaged over the rollout steps, with the best of every column bold; what the members
      cost; paired differences, bold where the interval excludes zero; SSIM per step.
    """
    described = {**summary["members"], LABELS[REFERENCE]: summary[REFERENCE]}
    averages = {name: entry["average_over_steps"] for name, entry in described.items()}
    titles = [TITLES[metric] for metric in METRICS]
    extras = {**_SPEEDS, **_COUNTS}
    best = {metric: _best(averages, metric) for metric in METRICS}

    def score(entry: Mapping[str, float | None], metric: str) -> str:
        text = plus_minus(entry["mean"], entry["ci95"], _DIGITS[metric])
        return bold(text) if entry["mean"] is not None and entry["mean"] == best[metric] else text

    members = [[n, *(score(entry[m], m) for m in METRICS)] for n, entry in averages.items()]
    costs = [[n, *(_count(e[key]) for key in extras)] for n, e in summary["members"].items()]
    pairs = [
        [f"{pair['first']} \u2212 {pair['second']}"]
        + [_difference(pair["average_over_steps"][metric], metric) for metric in METRICS]
        for pair in summary["pairs"]
    ]
    steps = [
        [name, *(None if v is None else f"{v:.{_DIGITS['ssim']}f}" for v in entry["ssim"])]
        for name, entry in described.items()
    ]
    return (
        Table(("", *titles), members, title="Scores"),
        Table(("", *extras.values()), costs, title="Costs"),
        Table(("", *titles), pairs, title="Differences"),
        Table(("", *map(str, range(summary["steps"]))), steps, "SSIM against the rollout step"),
    )


def to_markdown(summary: Mapping[str, Any]) -> str:
    """Write all tables of a comparison as a page."""
    seeds, episodes = len(summary["seeds"]), len(summary["episodes"])
    over = "seeds and episodes, both as random effects" if seeds > 1 else "episodes"
    notes = (
        f"Means over {seeds} seed{'s' * (seeds > 1)}, {episodes} held-out "
        f"episode{'s' * (episodes > 1)} and rollout steps 0 to {summary['steps'] - 1}. \u00b1: "
        f"half the 95 % interval over {over}, from three episodes on. The best of a column is "
        "bold.",
        "Speeds are medians over the runs' log windows, without compilation.",
        "Paired by seed and episode; bold where the interval excludes zero. The intervals are "
        "not corrected for the number of pairs.",
        "",
    )
    sections = [
        f"## {table.title}\n\n{note}\n\n{table.markdown()}\n".replace("\n\n\n\n", "\n\n")
        for table, note in zip(image_tables(summary), notes, strict=True)
    ]
    if summary.get("motion"):
        note = "Mean distance of particles from their true place, over all windows; less is better."
        tables = compared_motion_tables(summary["motion"])
        sections += [f"## {t.title}\n\n{note}\n\n{t.markdown()}\n" for t in tables]
    made_from = "".join(f"- {label}: {value}\n" for label, value in summary["made_from"].items())
    return (
        f"# Comparison of {len(summary['members'])} members\n\n{''.join(sections)}"
        f"## Made from\n\n{made_from}"
    )


_SCORE_COLUMNS = tuple(column for m in METRICS for column in (m, f"{m}_ci95"))


def _average_cells(entry: Mapping[str, Any]) -> list[Cell]:
    averages = entry["average_over_steps"]
    return [averages[m][key] for m in METRICS for key in ("mean", "ci95")]


def _step_rows(names: Sequence[str], entry: Mapping[str, Any]) -> Iterator[list[Cell]]:
    yield [*names, "all", *_average_cells(entry)]
    for step in range(len(entry[METRICS[0]])):
        yield [*names, str(step), *(entry[column][step] for column in _SCORE_COLUMNS)]


def members_csv(summary: Mapping[str, Any]) -> str:
    """Write the table of the members, one row each, averaged over the rollout steps."""
    extras = (*_SPEEDS, *_COUNTS)
    rows = (
        [name, *_average_cells(entry), *(entry[key] for key in extras)]
        for name, entry in summary["members"].items()
    )
    return Table(("member", *_SCORE_COLUMNS, *extras), list(rows)).csv()


def curves_csv(summary: Mapping[str, Any]) -> str:
    """Write one row per member and rollout step, "all" for their mean; last the reference."""
    described = {**summary["members"], REFERENCE: summary[REFERENCE]}
    rows = (row for name, entry in described.items() for row in _step_rows([name], entry))
    return Table(("member", "step", *_SCORE_COLUMNS), list(rows)).csv()


def pairs_csv(summary: Mapping[str, Any]) -> str:
    """Write the paired differences, one row per pair and rollout step, "all" for their mean."""
    rows = (
        row
        for pair in summary["pairs"]
        for row in _step_rows([pair["first"], pair["second"]], pair)
    )
    return Table(("first", "second", "step", *_SCORE_COLUMNS), list(rows)).csv()


def runs_csv(runs: Sequence[ComparedRun]) -> str:
    """Write one row per run, averaged over episodes and rollout steps."""
    extras = (*_SPEEDS, *_COUNTS)

    def row(run: ComparedRun) -> list[Cell]:
        entry = describe_member([run])
        means = [entry["average_over_steps"][metric]["mean"] for metric in METRICS]
        return [run.member, run.seed, *means, *(entry[key] for key in extras)]

    return Table(("member", "seed", *METRICS, *extras), [row(run) for run in runs]).csv()


def plot_comparison(summary: Mapping[str, Any]) -> Figure:
    """Plot SSIM against the rollout step, and each member's difference to the first.

    Returns:
      On the left a line per member and copy-last-frame, on the right the paired differences, which
      say more: what episodes and seeds have in common is not in them. Bands are 95 % intervals.
    """
    figure = Figure(figsize=(12, 5), layout="constrained")
    scores, differences = figure.subplots(1, 2)
    first, *_ = summary["members"]
    colors = dict(zip(summary["members"], itertools.cycle(SERIES), strict=False))
    for name, entry in summary["members"].items():
        draw_curve(scores, entry, "ssim", name, colors[name], "-")
    draw_curve(scores, summary[REFERENCE], "ssim", LABELS[REFERENCE], *STYLES[REFERENCE])
    differences.axhline(0, color=colors[first], linewidth=1)
    for pair in summary["pairs"]:
        if pair["first"] == first:
            lists = {"ssim": _negated(pair["ssim"]), "ssim_ci95": pair["ssim_ci95"]}
            name = pair["second"]
            draw_curve(differences, lists, "ssim", name, colors[name], "-")
    scores.set(title="SSIM")
    differences.set(title=f"SSIM minus that of {first}, paired")
    for axes in (scores, differences):
        axes.set(xlabel="rollout step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
    figure.legend(*scores.get_legend_handles_labels(), loc="outside lower center", ncols=6)
    figure.suptitle(
        f"{len(summary['seeds'])} seeds, {len(summary['episodes'])} held-out episodes, mean and "
        "95 % interval over both"
    )
    return figure


def _negated(values: Sequence[float | None]) -> list[float | None]:
    return [None if value is None else -value for value in values]
