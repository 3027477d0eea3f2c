"""Measures of pixels and of the reconstruction: means, tables, plot and page."""

import csv
import dataclasses
import io
import json

import numpy as np
import pytest
from summaries import make_summary

from hdvpd.evaluation import curves, pixel_tables, report
from hdvpd.evaluation.curves import Scores
from hdvpd.evaluation.motion_tables import summarize_motion
from hdvpd.evaluation.objects import MotionScores
from hdvpd.evaluation.pixels import PIXEL_METRICS

EPISODES, STEPS = 4, 3


@pytest.fixture(scope="module")
def scores():
    rng = np.random.default_rng(0)
    predictors = ("model", "static_render", "copy_last_frame")
    shape = (EPISODES, len(predictors), 2, STEPS)
    pixels = rng.uniform(size=(*shape, 5))
    pixels[0, :, :, 1, 0] = np.nan  # no object is seen at this step
    return Scores(
        name="run",
        cameras=("front", "side"),
        episodes=tuple(range(EPISODES)),
        predictors=predictors,
        images=rng.uniform(size=(*shape, 4)),
        depth=rng.uniform(size=(EPISODES, 2, STEPS, 2)),
        pixels=pixels,
        reconstruction=rng.uniform(size=(EPISODES, 2, 5)),
    )


def test_means_over_cameras_and_episodes(scores):
    summary = pixel_tables.summarize_pixels(scores)
    lists = summary["pixels"]["static_render"]
    for j, metric in enumerate(PIXEL_METRICS[1:], 1):
        values = scores.pixels[:, 1, :, :, j]
        np.testing.assert_allclose(lists[metric], values.mean(axis=(0, 1)))
        assert lists[f"{metric}_mean"] == pytest.approx(values.mean())
    # An episode without objects at a step does not count at that step.
    seen = scores.pixels[1:, 1, :, 1, 0]
    assert lists["object_psnr"][1] == pytest.approx(seen.mean())
    entry = summary["reconstruction"]["depth_error_m"]
    assert entry["mean"] == pytest.approx(scores.reconstruction[..., 4].mean())
    assert entry["ci95"] > 0
    json.dumps(summary, allow_nan=False)
    bare = dataclasses.replace(scores, pixels=None)
    assert pixel_tables.summarize_pixels(bare) == {}


def test_tables_csv_and_plot_hold_them(scores):
    summary = curves.summarize(scores, pixel_tables.summarize_pixels(scores))
    entry = summary["pixels"]["model"]
    text = pixel_tables.pixel_table(summary).markdown()
    assert f"{entry['robot_psnr_mean']:.2f} \u00b1 {entry['robot_psnr_mean_ci95']:.2f}" in text
    depth = summary["reconstruction"]["depth_error_m"]
    shown = f"{1000 * depth['mean']:.1f} \u00b1 {1000 * depth['ci95']:.1f}"
    assert shown in pixel_tables.reconstruction_table(summary).markdown()
    rows = list(csv.DictReader(io.StringIO(pixel_tables.pixels_csv({"run": summary}))))
    assert len(rows) == 3 * STEPS
    assert float(rows[0]["sharpness"]) == entry["sharpness"][0]
    for names in (["one"], ["one", "two"]):
        figure = pixel_tables.plot_pixels(dict.fromkeys(names, summary))
        labels = figure.axes[0].get_legend_handles_labels()[1]
        expected = ["model", "static render"] if len(names) == 1 else names
        assert labels == [*expected, "copy last frame"]


def test_the_page_shows_pixels_and_motion(scores):
    values = np.random.default_rng(1).uniform(0.01, 0.02, size=(EPISODES, 3, STEPS, 4))
    motion = MotionScores((1, 2, 3, 4), ("push", "can") * 2, 9, 7, values)
    summary = make_summary() | pixel_tables.summarize_pixels(scores)
    summary |= {"motion": summarize_motion(motion)}
    run = report.RunReport("demo", summary, "", {}, ())
    page = report.render_report([run], [b"one", b"two"])
    for part in ("Motion of objects", "all 9 windows", "push, 2 episodes", "PSNR, moving robot",
                 "last observed frame, rendered", "On objects, against"):  # fmt: skip
        assert part in page
    assert page.count("data:image/png;base64,") == 2
