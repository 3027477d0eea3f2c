"""The report: self-contained, complete, and honest about the control."""

import base64
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from hdvpd.evaluation import curves, report

STEPS = 3


def make_summary(ahead_of_shuffled=0.1, ahead_of_static=0.1, *, noise=0.01, episodes=6):
    """A summary in which the model is ahead of two predictors by a known amount."""
    rng = np.random.default_rng(0)
    images = np.empty((episodes, 4, 2, STEPS, 4))
    images[:, 0] = rng.uniform(0.4, 0.6, size=(episodes, 2, STEPS, 4))
    for i, behind in ((1, ahead_of_static), (2, 0.05), (3, ahead_of_shuffled)):
        images[:, i] = images[:, 0] - behind + noise * rng.normal(size=(episodes, 1, 1, 1))
    depth = rng.uniform(size=(episodes, 2, STEPS, 2))
    scores = curves.Scores("demo", ("front", "side"), tuple(range(episodes)), images, depth)
    settings = {"moving_threshold": 0.1, "checkpoint_step": 700}
    return curves.summarize(scores, num_bootstrap=200, seed=0, settings=settings)


def make_run(name="demo", summary=None):
    return report.RunReport(
        name=name,
        summary=summary or make_summary(),
        config_toml="[data]\npath = 'a <b> & c'\n",
        facts={"checkpoint": "step 700 of 700"},
        videos=(("episode 9, push", b"not really an mp4"),),
    )


class Page(HTMLParser):
    """Collects what a browser would load, what is bold, and whether tags are balanced."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.sources, self.bold, self.cells, self.open, self.text = [], [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.sources += [value for key, value in attrs if key in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "strong" in self.open:
            self.bold.append(data)
        if self.open and self.open[-1] == "td":
            self.cells.append(data.strip())


def test_the_page_is_self_contained_and_well_formed():
    text = report.render_report([make_run()], b"PNG bytes")
    page = Page(text)
    assert page.open == []
    assert len(page.sources) == 2
    assert all(source.startswith("data:") for source in page.sources)
    assert "url(" not in text
    assert not re.search(r"https?://", text)


def test_curve_and_videos_are_embedded_unchanged():
    page = Page(report.render_report([make_run()], b"PNG bytes"))
    found = [base64.b64decode(source.partition("base64,")[2]) for source in page.sources]
    assert found == [b"PNG bytes", b"not really an mp4"]


def test_the_table_holds_every_predictors_means_and_intervals():
    summary = make_summary()
    page = Page(report.render_report([make_run(summary=summary)], b""))
    for predictor in curves.PREDICTORS:
        entry = summary["average_over_steps"][predictor]["ssim"]
        assert f"{entry['mean']:.3f}" in page.cells
        assert f"± {entry['ci95']:.3f}" in page.text
        for metric in curves.METRICS:
            digits = 2 if "psnr" in metric else 3
            assert f"{summary[predictor][metric][STEPS - 1]:.{digits}f}" in page.cells


def test_configuration_and_settings_are_shown_escaped():
    text = report.render_report([make_run()], b"")
    assert "a &lt;b&gt; &amp; c" in text
    page = Page(text)
    assert "path = 'a <b> & c'" in page.text
    assert "11\u00d711" in page.text
    assert "step 700 of 700" in page.text


def test_a_working_control_is_not_bold():
    verdict = report.control_verdict(make_summary(0.1))
    assert verdict.good
    assert "clearly lower" in verdict.text
    assert Page(report.render_report([make_run()], b"")).bold == []


@pytest.mark.parametrize("behind", [0.0, -0.1])
def test_a_control_that_does_not_score_lower_is_said_in_bold(behind):
    summary = make_summary(behind, noise=0.0)
    assert not report.control_verdict(summary).good
    page = Page(report.render_report([make_run(summary=summary)], b""))
    assert any("control does not score lower than the model" in text for text in page.bold)


def test_one_metric_is_enough_to_doubt_the_control():
    summary = make_summary(0.1)
    entry = summary["average_over_steps"]["shuffled_actions"]["moving_psnr"]
    entry["behind_model"] = -0.01
    verdict = report.control_verdict(summary)
    assert not verdict.good
    assert "does not score lower" in verdict.text


def test_a_control_within_the_interval_is_not_called_clear():
    summary = make_summary(0.001, noise=0.05)
    entry = summary["average_over_steps"]["shuffled_actions"]
    for metric in ("ssim", "moving_psnr"):
        entry[metric]["behind_model"] = 0.5 * entry[metric]["behind_model_ci95"]
    verdict = report.control_verdict(summary)
    assert not verdict.good
    assert "not clearly" in verdict.text


@pytest.mark.parametrize(
    ("ahead", "word"), [(0.1, "beats the static"), (-0.1, "does not beat the static")]
)
def test_static_render_is_compared_in_words(ahead, word):
    verdict = report.static_verdict(make_summary(ahead_of_static=ahead))
    assert word in verdict.text
    assert verdict.good == (ahead > 0)


def test_without_moving_pixels_only_ssim_is_compared():
    summary = make_summary()
    for predictor in curves.PREDICTORS[1:]:
        entry = summary["average_over_steps"][predictor]["moving_psnr"]
        entry["behind_model"] = entry["behind_model_ci95"] = None
    assert "moving" not in report.control_verdict(summary).text
    assert report.control_verdict(summary).good


def test_one_episode_is_named_as_too_few():
    page = Page(report.render_report([make_run(summary=make_summary(episodes=1))], b""))
    assert any("Only one episode" in text for text in page.bold)


def test_several_runs_share_a_page():
    page = Page(report.render_report([make_run("first"), make_run("second")], b""))
    assert page.open == []
    assert "hdvpd: first, second" in page.text
    assert len(page.sources) == 3
