"""Means, bootstrap intervals and the layouts of metrics.json, metrics.csv and ssim.png."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image

from hdvpd.evaluation import curves

STEPS = 5


def make_scores(name="demo", episodes=6, seed=0, cameras=("front", "side")):
    rng = np.random.default_rng(seed)
    shape = (episodes, 4, len(cameras), STEPS)
    images = rng.uniform(size=(*shape, 4))
    depth = rng.uniform(size=(episodes, len(cameras), STEPS, 2))
    numbers = tuple(range(9, 9 + 10 * episodes, 10))
    return curves.Scores(name, tuple(cameras), numbers, images, depth)


def summarize(scores, seed=0):
    return curves.summarize(scores, num_bootstrap=400, seed=seed, settings={"split": "test"})


def test_interval_of_constant_data_has_no_width():
    counts = curves.bootstrap_counts(7, 500, 0)
    curve = curves.mean_and_interval(np.full((7, 3), 0.3), counts)
    np.testing.assert_allclose(curve.mean, 0.3, atol=1e-15)
    np.testing.assert_allclose(curve.ci95, 0.0, atol=1e-15)


def test_interval_of_many_normal_episodes_is_the_normal_one():
    num_episodes = 400
    values = np.random.default_rng(1).normal(scale=2.0, size=(num_episodes, 1))
    counts = curves.bootstrap_counts(num_episodes, 4000, 0)
    curve = curves.mean_and_interval(values, counts)
    expected = 1.96 * values.std() / np.sqrt(num_episodes)
    # Percentiles of 4,000 resamples have a relative error of about 3 %; four of these.
    assert curve.ci95[0] == pytest.approx(expected, rel=0.12)


def test_interval_of_two_episodes_is_their_distance():
    # Half of all resamples take one episode twice, so both ends are the episodes themselves.
    counts = curves.bootstrap_counts(2, 1000, 0)
    curve = curves.mean_and_interval(np.array([[1.0], [3.0]]), counts)
    assert curve.mean[0] == 2.0
    assert curve.ci95[0] == 1.0


def test_resamples_draw_every_episode_equally_often():
    counts = curves.bootstrap_counts(5, 4000, 3)
    assert (counts.sum(axis=1) == 5).all()
    # Each column is binomial(5, 1/5): standard error of its mean sqrt(0.8 / 4000) = 0.014.
    np.testing.assert_allclose(counts.mean(axis=0), 1.0, atol=0.06)
    np.testing.assert_array_equal(counts, curves.bootstrap_counts(5, 4000, 3))


def test_missing_scores_are_left_out_of_mean_and_interval():
    counts = curves.bootstrap_counts(3, 300, 0)
    values = np.array([[1.0, np.nan], [np.nan, np.nan], [3.0, np.nan]])
    curve = curves.mean_and_interval(values, counts)
    assert curve.mean[0] == 2.0
    assert curve.ci95[0] == 1.0
    assert np.isnan(curve.mean[1])
    assert np.isnan(curve.ci95[1])


def test_json_has_the_declared_layout():
    scores = make_scores()
    summary = json.loads(curves.to_json(summarize(scores)))
    assert {*curves.PREDICTORS, "steps", "episodes", "cameras", "ssim_settings"} <= set(summary)
    assert summary["steps"] == STEPS
    assert summary["episodes"] == 6
    assert list(summary["cameras"]) == ["front", "side"]
    assert summary["split"] == "test"
    for i, predictor in enumerate(curves.PREDICTORS):
        for j, metric in enumerate(curves.METRICS):
            overall = summary[predictor][metric]
            np.testing.assert_allclose(overall, scores.images[:, i, :, :, j].mean((0, 1)))
            assert len(summary[predictor][f"{metric}_ci95"]) == STEPS
            for view, camera in enumerate(scores.cameras):
                expected = scores.images[:, i, view, :, j].mean(0)
                np.testing.assert_allclose(summary["cameras"][camera][predictor][metric], expected)
                np.testing.assert_allclose(summary[predictor]["cameras"][camera][metric], expected)
    np.testing.assert_allclose(summary["model"]["depth_abs_rel"], scores.depth[..., 0].mean((0, 1)))


def test_missing_scores_become_null_and_empty_cells():
    scores = make_scores()
    scores.images[:, :, :, 0, 2] = np.nan
    summary = json.loads(curves.to_json(summarize(scores)))
    assert summary["model"]["moving_ssim"][0] is None
    assert summary["model"]["moving_ssim_ci95"][0] is None
    assert summary["model"]["moving_ssim"][1] is not None
    rows = list(csv.DictReader(io.StringIO(curves.to_csv({"demo": summary}))))
    assert rows[0]["step"] == "0"
    assert rows[0]["moving_ssim"] == ""


def test_overall_number_averages_cameras_within_an_episode_first():
    scores = make_scores(episodes=2)
    scores.images[0, 0, :, 0, 2] = [0.2, np.nan]
    scores.images[1, 0, :, 0, 2] = [0.4, 0.8]
    assert summarize(scores)["model"]["moving_ssim"][0] == pytest.approx((0.2 + 0.6) / 2)


def test_averages_over_steps_compare_with_the_model():
    scores = make_scores()
    averages = summarize(scores)["average_over_steps"]
    static = scores.images[:, 1, :, :, 0].mean()
    assert averages["static_render"]["ssim"]["mean"] == pytest.approx(static)
    behind = scores.images[:, 0, :, :, 0].mean() - static
    assert averages["static_render"]["ssim"]["behind_model"] == pytest.approx(behind)


def test_differences_are_paired_over_episodes():
    scores = make_scores()
    scores.images[:, 3] = scores.images[:, 0] - 0.1
    entry = summarize(scores)["average_over_steps"]["shuffled_actions"]["psnr"]
    assert entry["ci95"] > 0.01
    assert entry["behind_model"] == pytest.approx(0.1)
    assert entry["behind_model_ci95"] == pytest.approx(0.0, abs=1e-12)


def test_csv_holds_the_numbers_of_the_json():
    summaries = {name: summarize(make_scores(name, seed=i)) for i, name in enumerate("ab")}
    rows = list(csv.DictReader(io.StringIO(curves.to_csv(summaries))))
    assert len(rows) == 2 * 4 * 3 * STEPS
    for row in rows:
        lists = summaries[row["run"]][row["predictor"]]
        if row["camera"] != "all":
            lists = lists["cameras"][row["camera"]]
        for column in ("ssim", "psnr_ci95", "moving_psnr"):
            assert float(row[column]) == lists[column][int(row["step"])]
        assert (row["depth_abs_rel"] != "") == (row["predictor"] == "model")


def test_episodes_csv_reproduces_the_means():
    scores = make_scores()
    rows = list(csv.DictReader(io.StringIO(curves.episodes_csv([scores]))))
    chosen = [
        float(r["ssim"]) for r in rows if r["predictor"] == "static_render" and r["step"] == "2"
    ]
    assert len(chosen) == 6 * 2
    assert np.mean(chosen) == pytest.approx(summarize(scores)["static_render"]["ssim"][2])


def test_text_and_plot_are_the_same_twice():
    first, second = summarize(make_scores()), summarize(make_scores())
    assert curves.to_json(first) == curves.to_json(second)
    plots = [curves.to_png(curves.plot_curves({"demo": s})) for s in (first, second)]
    assert plots[0] == plots[1]


@pytest.mark.parametrize("names", [("one",), ("one", "two", "three")])
def test_plot_has_a_line_per_predictor_or_per_run(names):
    summaries = {name: summarize(make_scores(name, seed=i)) for i, name in enumerate(names)}
    figure = curves.plot_curves(summaries)
    labels = {line.get_label(): line for line in figure.axes[0].get_lines()}
    if len(names) == 1:
        assert set(labels) == set(curves.LABELS.values())
        line = labels["shuffled actions"]
        expected = summaries["one"]["shuffled_actions"]["ssim"]
    else:
        assert set(labels) == {*names, "copy last frame"}
        line, expected = labels["two"], summaries["two"]["model"]["ssim"]
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), expected)
    image = Image.open(io.BytesIO(curves.to_png(figure)))
    assert image.format == "PNG"


def test_plot_survives_missing_scores():
    scores = make_scores()
    scores.images[:, :, :, :, 2:] = np.nan
    assert curves.to_png(curves.plot_curves({"demo": summarize(scores)})).startswith(b"\x89PNG")
