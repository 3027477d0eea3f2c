"""The report: self-contained, complete, and honest about what was not shown."""

import base64
import re
from html.parser import HTMLParser

from summaries import STEPS, make_summary

from hdvpd.evaluation import curves, report
from hdvpd.evaluation.verdicts import judge


def make_run(name="demo", summary=None):
    return report.RunReport(
        name=name,
        summary=summary or make_summary(),
        config_toml="[data]\npath = 'a <b> & c'\n",
        facts={"checkpoint": "step 700 of 700"},
        videos=(report.Video("episode 9, push", b"not really an mp4", b"nor a JPEG"),),
    )


class Page(HTMLParser):
    """Collects what a browser would load, what is bold, and whether tags are balanced."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self, text):
        super().__init__()
        self.sources, self.bold, self.cells, self.open, self.text = [], [], [], [], ""
        self.best, self.row = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.sources += [value for key, value in attrs if key in ("src", "href", "poster")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data
        if "strong" in self.open:
            self.bold.append(data)
        if self.open and self.open[-1] == "th":
            self.row = data
        if "td" in self.open and self.open[-1] != "small":
            self.cells.append(data.strip())
            if self.open[-1] == "b":
                self.best.append((self.row, data))


def test_the_page_is_self_contained_and_well_formed():
    text = report.render_report([make_run()], [b"PNG bytes"])
    page = Page(text)
    assert page.open == []
    assert len(page.sources) == 3
    assert all(source.startswith("data:") for source in page.sources)
    assert "url(" not in text
    assert not re.search(r"https?://", text)


def test_curve_and_videos_are_embedded_unchanged():
    page = Page(report.render_report([make_run()], [b"PNG bytes"]))
    found = [base64.b64decode(source.partition("base64,")[2]) for source in page.sources]
    assert found == [b"PNG bytes", b"nor a JPEG", b"not really an mp4"]
    assert page.sources[1].startswith("data:image/jpeg;")


def test_the_table_holds_every_predictors_means_and_intervals():
    summary = make_summary()
    page = Page(report.render_report([make_run(summary=summary)], [b""]))
    for predictor in curves.PREDICTORS:
        entry = summary["average_over_steps"][predictor]["ssim"]
        assert f"{entry['mean']:.3f}" in page.cells
        assert f"± {entry['ci95']:.3f}" in page.text
        for metric in curves.METRICS:
            digits = 2 if "psnr" in metric else 3
            assert f"{summary[predictor][metric][STEPS - 1]:.{digits}f}" in page.cells


def test_configuration_and_settings_are_shown_escaped():
    text = report.render_report([make_run()], [b""])
    assert "a &lt;b&gt; &amp; c" in text
    page = Page(text)
    assert "path = 'a <b> & c'" in page.text
    assert "11\u00d711" in page.text
    assert "step 700 of 700" in page.text


def test_verdicts_stand_on_the_page_and_failures_in_bold():
    summary = make_summary({"copy_last_frame": -0.1})
    page = Page(report.render_report([make_run(summary=summary)], [b""]))
    verdicts = judge(summary)
    assert [verdict.good for verdict in verdicts].count(False) == 1
    assert all(verdict.text in page.text for verdict in verdicts)
    assert page.bold == [verdict.text for verdict in verdicts if not verdict.good]


def test_the_best_of_a_column_is_bold_whoever_it_is():
    summary = make_summary({"copy_last_frame": -0.1})
    page = Page(report.render_report([make_run(summary=summary)], [b""]))
    best = summary["average_over_steps"]["copy_last_frame"]["ssim"]["mean"]
    assert page.best[0] == ("copy last frame", f"{best:.3f}")
    assert {row for row, _ in page.best} == {"copy last frame"}


def test_two_episodes_have_no_interval_and_the_page_says_why():
    page = Page(report.render_report([make_run(summary=make_summary(episodes=2))], [b""]))
    (text,) = page.bold
    assert "2 held-out episodes, 1 window each: too few" in text
    assert "\u00b1" not in page.text.replace(text, "")


def test_several_runs_share_a_page():
    page = Page(report.render_report([make_run("first"), make_run("second")], [b""]))
    assert page.open == []
    assert "hdvpd: first, second" in page.text
    assert len(page.sources) == 5
