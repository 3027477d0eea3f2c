"""Means, intervals, tables and a plot of the measures of pixels, and of the reconstruction."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from hdvpd.basics.statistics import masked_mean, student_interval
from hdvpd.basics.tables import Cell, Table, plus_minus
from hdvpd.evaluation.curves import LABELS, Scores, plain_numbers, plot_metrics
from hdvpd.evaluation.pixels import PIXEL_METRICS, RECONSTRUCTION_METRICS

PIXEL_TITLES = {
    "object_psnr": "PSNR, objects [dB]",
    "object_color_error": "colour error, objects",
    "robot_psnr": "PSNR, moving robot [dB]",
    "rest_psnr": "PSNR, what else moves [dB]",
    "sharpness": "sharpness",
}
RECONSTRUCTION_TITLES = {
    "ssim": "SSIM",
    "psnr": "PSNR [dB]",
    "object_psnr": "PSNR, objects [dB]",
    "sharpness": "sharpness",
    "depth_error_m": "median depth error [mm]",
}
_DIGITS = {"ssim": 3, "sharpness": 3, "object_color_error": 1, "depth_error_m": 1}
_MM = 1000.0
_PLOTTED = ("object_psnr", "robot_psnr", "rest_psnr", "sharpness")


def summarize_pixels(scores: Scores) -> dict[str, Any]:
    """Make the entries `pixels` and `reconstruction` of metrics.json.

    Returns:
      The layout of docs/evaluation.md, plain values only; nothing if they were not kept.
    """
    if scores.pixels is None or scores.reconstruction is None:
        return {}
    values = masked_mean(scores.pixels, 2)  # over cameras
    pixels = {}
    for i, predictor in enumerate(scores.predictors):
        entry: dict[str, Any] = {}
        steps, mean = (student_interval(x) for x in (values[:, i], masked_mean(values[:, i], 1)))
        for j, metric in enumerate(PIXEL_METRICS):
            entry[metric] = plain_numbers(steps.mean[:, j])
            entry[f"{metric}_ci95"] = plain_numbers(steps.ci95[:, j])
            entry[f"{metric}_mean"] = plain_numbers(mean.mean)[j]
            entry[f"{metric}_mean_ci95"] = plain_numbers(mean.ci95)[j]
        pixels[predictor] = entry
    observed = student_interval(masked_mean(scores.reconstruction, 1))
    pairs = zip(plain_numbers(observed.mean), plain_numbers(observed.ci95), strict=True)
    reconstruction = {
        metric: {"mean": mean, "ci95": ci95}
        for metric, (mean, ci95) in zip(RECONSTRUCTION_METRICS, pairs, strict=True)
    }
    return {"pixels": pixels, "reconstruction": reconstruction}


def pixel_table(summary: Mapping[str, Any]) -> Table:
    """Lay out the measures of pixels, means over all rollout steps."""
    rows: list[list[Cell]] = [
        [
            LABELS[predictor],
            *(
                plus_minus(e[f"{m}_mean"], e[f"{m}_mean_ci95"], _DIGITS.get(m, 2))
                for m in PIXEL_METRICS
            ),
        ]
        for predictor, e in summary["pixels"].items()
    ]
    return Table(("", *PIXEL_TITLES.values()), rows)


def reconstruction_table(summary: Mapping[str, Any]) -> Table:
    """Lay out how well the last observed frame is rendered from its own particles."""

    def cell(metric: str) -> str:
        entry = summary["reconstruction"][metric]
        unit = _MM if metric.endswith("_m") else 1.0
        mean, ci95 = (None if x is None else unit * x for x in (entry["mean"], entry["ci95"]))
        return plus_minus(mean, ci95, _DIGITS.get(metric, 2))

    row = ["last observed frame, rendered", *map(cell, RECONSTRUCTION_METRICS)]
    return Table(("", *RECONSTRUCTION_TITLES.values()), [row])


def pixels_csv(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Write one row per run, predictor and step."""
    columns = [column for m in PIXEL_METRICS for column in (m, f"{m}_ci95")]
    rows: list[list[Cell]] = [
        [run, predictor, step, *(lists[column][step] for column in columns)]
        for run, summary in summaries.items()
        for predictor, lists in summary["pixels"].items()
        for step in range(summary["steps"])
    ]
    return Table(("run", "predictor", "step", *columns), rows).csv()


def plot_pixels(summaries: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Plot the measures of pixels of every run, by name."""
    pixels = {name: summary["pixels"] for name, summary in summaries.items()}
    return plot_metrics(pixels, {metric: PIXEL_TITLES[metric] for metric in _PLOTTED})
