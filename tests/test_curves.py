"""Means, intervals and the layouts of metrics.json, metrics.csv and ssim.png."""

import csv
import io
import json

import numpy as np
import pytest
from PIL import Image
from scipy import stats

from hdvpd.evaluation import curves

STEPS = 5


def make_scores(
    name="demo", episodes=6, seed=0, cameras=("front", "side"), predictors=curves.PREDICTORS
):
    rng = np.random.default_rng(seed)
    shape = (episodes, len(predictors), len(cameras), STEPS)
    images = rng.uniform(size=(*shape, 4))
    depth = rng.uniform(size=(episodes, len(cameras), STEPS, 2))
    numbers = tuple(range(9, 9 + 10 * episodes, 10))
    return curves.Scores(name, tuple(cameras), numbers, predictors, images, depth)


def summarize(scores):
    windows = [{"episode": e, "start": s} for e in scores.episodes for s in (0, 4)]
    return curves.summarize(scores, {"split": "test", "windows": windows})


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
            sample = scores.images[:, i, :, :, j].mean(1)
            half_width = stats.t.ppf(0.975, 5) * stats.sem(sample)
            np.testing.assert_allclose(summary[predictor][f"{metric}_ci95"], half_width)
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
    scores.images[:, scores.predictors.index("shuffled_actions")] = scores.images[:, 0] - 0.1
    entry = summarize(scores)["average_over_steps"]["shuffled_actions"]["psnr"]
    assert entry["ci95"] > 0.01
    assert entry["behind_model"] == pytest.approx(0.1)
    assert entry["behind_model_ci95"] == pytest.approx(0.0, abs=1e-12)


def test_below_three_episodes_there_are_means_without_intervals():
    summary = summarize(make_scores(episodes=2))
    entry = summary["average_over_steps"]["copy_last_frame"]["ssim"]
    assert entry["mean"] is not None
    assert entry["ci95"] is entry["behind_model_ci95"] is None
    assert summary["model"]["psnr_ci95"] == [None] * STEPS
    assert json.loads(curves.to_json(summary)) == summary
    assert curves.to_png(curves.plot_curves({"demo": summary})).startswith(b"\x89PNG")


def test_predictors_that_were_not_scored_are_nowhere():
    scores = make_scores(predictors=("model", "static_render"))
    summary = summarize(scores)
    assert "shuffled_actions" not in summary
    assert list(summary["average_over_steps"]) == ["model", "static_render"]
    rows = list(csv.DictReader(io.StringIO(curves.to_csv({"demo": summary}))))
    assert {row["predictor"] for row in rows} == {"model", "static_render"}
    for names in (("one",), ("one", "two")):
        figure = curves.plot_curves(dict.fromkeys(names, summary))
        assert len(figure.axes[0].get_lines()) == 2


@pytest.mark.parametrize(
    ("starts", "text"),
    [
        ({9: 1}, "1 held-out episode, 1 window"),
        ({9: 3}, "1 held-out episode, 3 windows"),
        ({9: 1, 19: 1}, "2 held-out episodes, 1 window each"),
        ({9: 3, 19: 3}, "2 held-out episodes, 3 windows each"),
        ({9: 3, 19: 1, 29: 2}, "3 held-out episodes, 1 to 3 windows each"),
    ],
)
def test_episodes_and_windows_are_counted_in_words(starts, text):
    windows = [{"episode": e, "start": s} for e, count in starts.items() for s in range(count)]
    assert curves.describe_sample({"windows": windows}) == text


def test_csv_holds_the_numbers_of_the_json():
    summaries = {name: summarize(make_scores(name, seed=i)) for i, name in enumerate("ab")}
    rows = list(csv.DictReader(io.StringIO(curves.to_csv(summaries))))
    assert len(rows) == 2 * len(curves.PREDICTORS) * 3 * STEPS
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
