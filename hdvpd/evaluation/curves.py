"""From scores per frame to means, intervals, metrics.json, metrics.csv and ssim.png.

The unit of the statistics is the episode: every episode gives one number per camera and rollout
step (several windows of an episode are averaged first), the overall number of an episode is the
mean over cameras, and the interval is Student's over episodes. A score that does not exist
(moving pixels where nothing moves) is NaN and is left out of every mean; JSON holds null.
"""

import io
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from hdvpd.basics import colors
from hdvpd.basics.statistics import masked_mean, student_interval
from hdvpd.basics.tables import Cell, Table
from hdvpd.basics.types import Float
from hdvpd.config import Control
from hdvpd.evaluation.metrics import SSIM_SETTINGS

PREDICTORS = ("model", *get_args(Control))
METRICS = ("ssim", "psnr", "moving_ssim", "moving_psnr")
DEPTH_METRICS = ("depth_abs_rel", "depth_within_1_25")
REFERENCE = "copy_last_frame"
"""What no model can change: the line that several runs share."""

TITLES = {
    "ssim": "SSIM",
    "psnr": "PSNR [dB]",
    "moving_ssim": "SSIM, moving pixels",
    "moving_psnr": "PSNR, moving pixels [dB]",
}
LABELS = {
    "model": "model",
    "static_render": "static render",
    "copy_last_frame": "copy last frame",
    "kinematics_only": "kinematics only",
    "zero_actions": "zero actions",
    "shuffled_actions": "shuffled actions",
}
DIGITS = {"ssim": 3, "psnr": 2, "moving_ssim": 3, "moving_psnr": 2}
STYLES = {
    "model": (colors.BLUE, "-"),
    "static_render": (colors.GREEN, "--"),
    "copy_last_frame": (colors.GRAY, ":"),
    "kinematics_only": (colors.PURPLE, "--"),
    "zero_actions": (colors.ORANGE, "-."),
    "shuffled_actions": (colors.VERMILION, "-."),
}


@dataclass(frozen=True)
class Scores:
    """What one run scored on every held-out episode.

    Attributes:
      name: name of the run.
      cameras: camera names, in the order of the views.
      episodes: numbers of the episodes.
      predictors: which of `PREDICTORS` were scored, in that order, the model first.
      images: `METRICS` of every predictor; NaN where a score does not exist.
      depth: `DEPTH_METRICS` of the model.
      pixels: `PIXEL_METRICS` of every predictor, where they were kept.
      reconstruction: `RECONSTRUCTION_METRICS` of the last observed frame, where they were kept.
      motion: `objects.MOTION_METRICS` of `objects.MOTION_PREDICTORS`, where objects are known.
    """

    name: str
    cameras: tuple[str, ...]
    episodes: tuple[int, ...]
    predictors: tuple[str, ...]
    images: Float[np.ndarray, "episodes predictors views steps 4"]
    depth: Float[np.ndarray, "episodes views steps 2"]
    pixels: Float[np.ndarray, "episodes predictors views steps 5"] | None = None
    reconstruction: Float[np.ndarray, "episodes views 5"] | None = None
    motion: Float[np.ndarray, "episodes 3 steps 4"] | None = None

    @property
    def num_steps(self) -> int:
        """Number of rollout steps."""
        return self.images.shape[3]


def plain_numbers(values: Float[np.ndarray, "steps"]) -> list[float | None]:
    """Return numbers for JSON; None where one does not exist."""
    return [float(v) if np.isfinite(v) else None for v in values]


def _lists(
    scores: Float[np.ndarray, "episodes steps metrics"], names: tuple[str, ...]
) -> dict[str, list[float | None]]:
    mean, ci95 = student_interval(scores)
    lists = {}
    for i, name in enumerate(names):
        lists[name] = plain_numbers(mean[:, i])
        lists[f"{name}_ci95"] = plain_numbers(ci95[:, i])
    return lists


def predictor_lists(scores: Scores, view: int | None) -> dict[str, dict[str, list[float | None]]]:
    """Aggregate over episodes, for one camera or overall.

    Args:
      scores: what a run scored.
      view: index of the camera, or None for the mean over cameras.

    Returns:
      For every predictor the lists over rollout steps, `<name>` and `<name>_ci95`.
    """

    def select(values: Float[np.ndarray, "episodes views ..."]) -> Float[np.ndarray, "..."]:
        return masked_mean(values, 1) if view is None else values[:, view]

    lists = {
        predictor: _lists(select(scores.images[:, i]), METRICS)
        for i, predictor in enumerate(scores.predictors)
    }
    lists["model"] |= _lists(select(scores.depth), DEPTH_METRICS)
    return lists


def step_averages(scores: Scores) -> dict[str, dict[str, dict[str, float | None]]]:
    """Average over all rollout steps, and compare the model with every other predictor.

    Returns:
      For every predictor and metric `mean` and `ci95`; for all but the model also `behind_model`
      and `behind_model_ci95`: by how much the model is better, with the paired interval.
    """
    per_episode = masked_mean(masked_mean(scores.images, 2), 2)
    own = student_interval(per_episode)
    behind = student_interval(per_episode[:, :1] - per_episode)
    kinds = {
        "mean": own.mean,
        "ci95": own.ci95,
        "behind_model": behind.mean,
        "behind_model_ci95": behind.ci95,
    }
    return {
        predictor: {
            metric: {
                kind: plain_numbers(values[i])[j]
                for kind, values in kinds.items()
                if predictor != "model" or not kind.startswith("behind")
            }
            for j, metric in enumerate(METRICS)
        }
        for i, predictor in enumerate(scores.predictors)
    }


def summarize(scores: Scores, settings: dict[str, Any]) -> dict[str, Any]:
    """Make the object that metrics.json holds for one run.

    Args:
      scores: what the run scored.
      settings: further entries that say how the numbers were made.

    Returns:
      The layout of docs/evaluation.md, plain values only.
    """
    summary: dict[str, Any] = dict(predictor_lists(scores, None))
    cameras = {name: predictor_lists(scores, view) for view, name in enumerate(scores.cameras)}
    for predictor in scores.predictors:
        summary[predictor]["cameras"] = {name: cameras[name][predictor] for name in cameras}
    return summary | {
        "predictors": list(scores.predictors),
        "steps": scores.num_steps,
        "episodes": len(scores.episodes),
        "cameras": cameras,
        "ssim_settings": SSIM_SETTINGS,
        "average_over_steps": step_averages(scores),
        "episode_numbers": list(scores.episodes),
        **settings,
    }


def describe_sample(summary: Mapping[str, Any]) -> str:
    """Say on how many episodes and windows numbers rest.

    Returns:
      For instance "6 held-out episodes, 3 windows each".
    """
    counts = sorted(Counter(window["episode"] for window in summary["windows"]).values())
    episodes = f"{len(counts)} held-out episode{'s' * (len(counts) != 1)}"
    few, many = counts[0], counts[-1]
    windows = f"{few} to {many} windows" if few < many else f"{few} window{'s' * (few != 1)}"
    return f"{episodes}, {windows}{' each' * (len(counts) != 1)}"


def to_json(value: Mapping[str, Any]) -> str:
    """Write strict JSON (no NaN), the same text for the same numbers."""
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def to_csv(summaries: dict[str, dict[str, Any]]) -> str:
    """Write one row per run, predictor, camera ("all" for the mean over cameras) and step."""
    columns = [column for m in (*METRICS, *DEPTH_METRICS) for column in (m, f"{m}_ci95")]

    def rows() -> Iterator[list[Cell]]:
        for run, summary in summaries.items():
            for predictor in summary["predictors"]:
                tables = {"all": summary[predictor], **summary[predictor]["cameras"]}
                for camera, lists in tables.items():
                    for step in range(summary["steps"]):
                        cells = [lists[c][step] if c in lists else None for c in columns]
                        yield [run, predictor, camera, step, *cells]

    return Table(("run", "predictor", "camera", "step", *columns), list(rows())).csv()


def episodes_csv(all_scores: list[Scores]) -> str:
    """Write what every episode scored, so that any other statistic can be made from it.

    Returns:
      One row per run, predictor, episode, camera and step.
    """
    head = ("run", "predictor", "episode", "camera", "step", *METRICS)
    rows = [
        [scores.name, predictor, episode, camera, step,
         *plain_numbers(scores.images[e, i, view, step])]
        for scores in all_scores
        for i, predictor in enumerate(scores.predictors)
        for e, episode in enumerate(scores.episodes)
        for view, camera in enumerate(scores.cameras)
        for step in range(scores.num_steps)
    ]  # fmt: skip
    return Table(head, rows).csv()


def draw_curve(
    axes: Axes,
    lists: Mapping[str, Any],
    metric: str,
    label: str,
    color: str,
    line: str,
    scale: float = 1.0,
) -> None:
    """Draw means and intervals over the rollout steps, times a scale."""
    # Matplotlib leaves NaN out of lines and bands; None it cannot convert.
    mean, ci95 = (scale * np.array(lists[key], np.float64) for key in (metric, f"{metric}_ci95"))
    steps = np.arange(len(mean))
    axes.plot(steps, mean, line, color=color, label=label, marker="o", markersize=3)
    axes.fill_between(steps, mean - ci95, mean + ci95, color=color, alpha=0.15, linewidth=0)


def plot_metrics(
    runs: Mapping[str, Mapping[str, Any]],
    titles: Mapping[str, str],
    labels: Mapping[str, str] = LABELS,
    reference: str = REFERENCE,
    scale: float = 1.0,
) -> Figure:
    """Plot four metrics against the rollout step, with 95 % intervals as bands.

    Args:
      runs: for every run by name, lists over the steps by predictor.
      titles: of the metrics.
      labels: of the predictors, in this order.
      reference: what no run can change.
      scale: of all numbers.

    Returns:
      For one run a line per predictor; for several a line per run, that is of its model, and the
      reference.
    """
    figure = Figure(figsize=(10, 7), layout="constrained")
    first = next(iter(runs.values()))
    shown = [p for p in labels if p in first and (len(runs) == 1 or p == reference)]
    for axes, metric in zip(figure.subplots(2, 2).flat, titles, strict=True):
        if len(runs) > 1:
            for (name, run), color in zip(runs.items(), itertools.cycle(colors.SERIES)):
                draw_curve(axes, run["model"], metric, name, color, "-", scale)
        for predictor in shown:
            style = STYLES[predictor]
            draw_curve(axes, first[predictor], metric, labels[predictor], *style, scale)
        axes.set(title=titles[metric], xlabel="rollout step")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.25)
    lines = figure.axes[0].get_legend_handles_labels()
    figure.legend(*lines, loc="outside lower center", ncols=4)
    return figure


def plot_curves(summaries: dict[str, dict[str, Any]]) -> Figure:
    """Plot `METRICS` of every run, by name, from `summarize`'s object."""
    figure = plot_metrics(summaries, TITLES)
    names = ", ".join(summaries) if len(summaries) < 4 else f"{len(summaries)} runs"
    sample = describe_sample(next(iter(summaries.values())))
    figure.suptitle(f"{names}: {sample}, mean and 95 % interval")
    return figure


def to_png(figure: Figure) -> bytes:
    """Encode a figure, the same bytes for the same figure."""
    data = io.BytesIO()
    figure.savefig(data, format="png", dpi=130, metadata={"Software": None})
    return data.getvalue()
