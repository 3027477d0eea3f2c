"""Tables of a comparison: sums written out."""

import csv
import io
import itertools
import json
import math

import numpy as np
import pytest

from hdvpd.basics.statistics import crossed_interval
from hdvpd.evaluation import comparison
from hdvpd.evaluation.comparison import ComparedRun
from hdvpd.evaluation.curves import METRICS, Scores, to_json, to_png


def make_run(member, seed, images, **fields):
    """A run whose model scored `images`, axes (episodes views steps 4)."""
    episodes, views, steps, _ = images.shape
    scores = np.full((episodes, 2, views, steps, 4), 0.5)
    scores[:, 0] = images
    return ComparedRun(
        member=member,
        seed=seed,
        scores=Scores(
            name=f"{member}-{seed}",
            cameras=tuple(f"cam{v}" for v in range(views)),
            episodes=tuple(range(episodes)),
            predictors=("model", "copy_last_frame"),
            images=scores,
            depth=np.zeros((episodes, views, steps, 2)),
        ),
        **{
            "parameters": 1000,
            "dynamics_parameters": 400,
            "steps_per_s": (1.0, 2.0, 9.0),
            "particles_per_s": (1e3, 2e3, 9e3),
            "skipped_steps": seed,
            **fields,
        },
    )


@pytest.fixture(scope="module")
def images():
    """Scores by member and seed: 5 episodes, 2 views, 3 steps; nothing moves in episode 1."""
    rng = np.random.default_rng(2)
    values = {name: rng.normal(size=(3, 5, 2, 3, 4)) for name in ("a", "b")}
    values["shifted"] = values["a"] + 0.25
    for own in values.values():
        own[:, 1, :, :, 2:] = np.nan
    return values


@pytest.fixture(scope="module")
def runs(images):
    order = itertools.product(range(3), images)
    return [make_run(name, seed, images[name][seed]) for seed, name in order]


@pytest.fixture(scope="module")
def summary(runs):
    return comparison.summarize_comparison(runs, {"code": "commit 1234"})


def average(values):
    known = [v for v in values if not math.isnan(v)]
    return sum(known) / len(known)


def test_means_are_those_over_everything(summary, images):
    for name, own in images.items():
        entry = summary["members"][name]
        for i, metric in enumerate(METRICS):
            found = entry["average_over_steps"][metric]["mean"]
            assert found == pytest.approx(average(own[..., i].ravel()))
            by_step = [average(own[:, :, :, step, i].ravel()) for step in range(3)]
            assert entry[metric] == pytest.approx(by_step)
    assert summary["copy_last_frame"]["ssim"] == [0.5] * 3
    assert (summary["seeds"], summary["episodes"]) == ([0, 1, 2], [0, 1, 2, 3, 4])


def test_what_two_members_share_is_not_in_their_difference(summary):
    pairs = {(p["first"], p["second"]): p["average_over_steps"] for p in summary["pairs"]}
    assert list(pairs) == [("a", "b"), ("a", "shifted"), ("b", "shifted")]
    for metric in METRICS:
        assert pairs["a", "shifted"][metric]["mean"] == pytest.approx(-0.25)
        assert pairs["a", "shifted"][metric]["ci95"] == pytest.approx(0, abs=1e-12)
        # Adding the same number to every score of one member leaves the interval alone.
        widths = [pairs[pair][metric]["ci95"] for pair in (("b", "shifted"), ("a", "b"))]
        assert widths[0] == pytest.approx(widths[1])
        means = (summary["members"][n]["average_over_steps"][metric]["mean"] for n in "ab")
        one, other = means
        assert pairs["a", "b"][metric]["mean"] == pytest.approx(one - other)


def test_interval_of_a_difference_is_that_of_the_paired_cells(summary, images):
    cells = (images["a"] - images["b"])[..., 0].mean((2, 3))
    mean, ci95 = crossed_interval(cells[..., None])
    found = summary["pairs"][0]["average_over_steps"]["ssim"]
    assert (found["mean"], found["ci95"]) == pytest.approx((mean.item(), ci95.item()))


def test_speed_is_the_median_of_all_windows(images):
    windows = [(1.0, 2.0), (3.0, 4.0, 50.0)]
    runs = [make_run("a", s, images["a"][s], steps_per_s=w) for s, w in enumerate(windows)]
    described = comparison.describe_member(runs)
    assert described["steps_per_s"] == 3.0
    assert (described["parameters"], described["skipped_steps"]) == (1000, 1)
    assert (
        comparison.describe_member([make_run("a", 0, images["a"][0], steps_per_s=())])[
            "steps_per_s"
        ]
        is None
    )


def table(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_tables_hold_the_numbers_of_the_summary(summary, runs, images):
    assert json.loads(to_json(summary)) == summary
    members = table(comparison.members_csv(summary))
    assert [row["member"] for row in members] == ["a", "b", "shifted"]
    averages = summary["members"]["b"]["average_over_steps"]
    assert float(members[1]["moving_psnr"]) == averages["moving_psnr"]["mean"]
    assert float(members[1]["moving_psnr_ci95"]) == averages["moving_psnr"]["ci95"]
    assert (members[1]["parameters"], members[1]["skipped_steps"]) == ("1000", "3")
    curves = table(comparison.curves_csv(summary))
    assert [row["step"] for row in curves] == ["all", "0", "1", "2"] * 4
    assert float(curves[2]["ssim"]) == summary["members"]["a"]["ssim"][1]
    pairs = table(comparison.pairs_csv(summary))
    assert [(row["first"], row["second"]) for row in pairs[::4]] == [
        ("a", "b"), ("a", "shifted"), ("b", "shifted"),
    ]  # fmt: skip
    by_run = table(comparison.runs_csv(runs))
    assert float(by_run[4]["ssim"]) == pytest.approx(images["b"][1, ..., 0].mean())
    assert (by_run[4]["member"], by_run[4]["seed"]) == ("b", "1")


def test_page_marks_the_best_scores_and_clear_differences(summary):
    page = comparison.to_markdown(summary)
    lines = {line.split(" | ")[0].strip("| "): line for line in reversed(page.splitlines())}
    rows = {name: lines[name] for name in ("a", "b", "shifted", "copy last frame")}
    for column, metric in enumerate(METRICS, 2):
        means = [e["average_over_steps"][metric]["mean"] for e in summary["members"].values()]
        bold = [row.split("|")[column].strip().startswith("**") for row in rows.values()]
        assert bold.index(True) == int(np.argmax([*means, 0.5]))
        assert sum(bold) == 1
    rows = lines
    assert rows["a \u2212 shifted"].count("**") == 2 * len(METRICS)
    entries = summary["pairs"][0]["average_over_steps"].values()
    clear = sum(abs(entry["mean"]) > entry["ci95"] for entry in entries)
    assert rows["a \u2212 b"].count("**") == 2 * clear < 2 * len(METRICS)
    mean = summary["members"]["a"]["average_over_steps"]["ssim"]
    assert f" {mean['mean']:.4f} \u00b1 {mean['ci95']:.4f}" in page
    assert "| 2.00 | 2,000 | 1,000 | 400 | 3 |" in page
    assert "over seeds and episodes" in page
    assert "- code: commit 1234" in page


def test_one_seed_says_nothing_of_seeds_and_two_episodes_have_no_interval(images):
    runs = [make_run(name, 0, images[name][0]) for name in ("a", "b")]
    page = comparison.to_markdown(comparison.summarize_comparison(runs, {}))
    assert "1 seed, 5 held-out episodes" in page
    assert "half the 95 % interval over episodes, from three" in page
    few = [make_run(name, s, images[name][s][:2]) for s in range(3) for name in ("a", "b")]
    summary = comparison.summarize_comparison(few, {})
    assert summary["pairs"][0]["average_over_steps"]["ssim"]["ci95"] is None
    table = comparison.comparison_tables(summary)[2].markdown()
    assert "\u00b1" not in table
    assert "**" not in table


def test_every_table_fits_a_terminal(summary, capsys):
    for table in comparison.comparison_tables(summary):
        table.print()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert "a \u2212 shifted" in printed


def test_a_score_that_exists_nowhere_is_a_dash(images):
    still = images["a"].copy()
    still[..., 2:] = np.nan
    runs = [make_run(name, s, still[s]) for s in range(2) for name in ("a", "b")]
    summary = comparison.summarize_comparison(runs, {})
    assert summary["members"]["a"]["average_over_steps"]["moving_ssim"]["mean"] is None
    assert "\u2013 | \u2013 |" in comparison.to_markdown(summary)
    assert table(comparison.members_csv(summary))[0]["moving_ssim"] == ""
    to_json(summary)


def test_plot_has_a_line_per_member_and_the_differences_to_the_first(summary):
    figure = comparison.plot_comparison(summary)
    scores, differences = figure.axes
    lines = {line.get_label(): line for line in scores.get_lines()}
    assert list(lines) == ["a", "b", "shifted", "copy last frame"]
    np.testing.assert_allclose(np.asarray(lines["b"].get_ydata()), summary["members"]["b"]["ssim"])
    drawn = {line.get_label(): line for line in differences.get_lines()}
    np.testing.assert_allclose(np.asarray(drawn["shifted"].get_ydata()), [0.25] * 3)
    assert to_png(figure)[:4] == b"\x89PNG"
