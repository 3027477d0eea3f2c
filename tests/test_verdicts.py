"""An evaluation in words: who is ahead of whom, and when nothing can be said."""

import pytest
from summaries import make_summary

from hdvpd.evaluation import curves, verdicts


def verdict_on(control, summary):
    return verdicts.judge(summary)[summary["predictors"].index(control) - 1]


def test_every_control_is_judged():
    found = verdicts.judge(make_summary())
    assert len(found) == len(curves.PREDICTORS) - 1
    assert all(verdict.good for verdict in found)
    assert all("ahead in SSIM (+" in verdict.text for verdict in found)


def test_a_lost_comparison_is_said():
    verdict = verdict_on("copy_last_frame", make_summary({"copy_last_frame": -0.1}))
    assert not verdict.good
    assert "Against copying the last frame, the model is behind in SSIM (-0." in verdict.text
    assert "behind in moving-pixel PSNR (-0.1" in verdict.text
    assert verdict.text.endswith(" dB).")


@pytest.mark.parametrize("ahead", [0.0, -0.1])
@pytest.mark.parametrize("control", ["shuffled_actions", "zero_actions"])
def test_actions_that_change_nothing_are_doubted(control, ahead):
    verdict = verdict_on(control, make_summary({control: ahead}, noise=0.0))
    assert not verdict.good
    assert "do not show that it uses its actions" in verdict.text


def test_one_metric_is_enough_to_doubt_the_actions():
    summary = make_summary()
    summary["average_over_steps"]["shuffled_actions"]["moving_psnr"]["behind_model"] = -0.01
    verdict = verdict_on("shuffled_actions", summary)
    assert not verdict.good
    assert "ahead in SSIM" in verdict.text
    assert "undecided in moving-pixel PSNR" in verdict.text
    assert "do not show" in verdict.text


def test_within_the_interval_nothing_is_decided():
    verdict = verdict_on("static_render", make_summary({"static_render": 0.001}, noise=0.05))
    assert not verdict.good
    assert verdict.text.count("undecided in") == 2


def test_without_moving_pixels_only_ssim_is_compared():
    summary = make_summary()
    for control in curves.PREDICTORS[1:]:
        entry = summary["average_over_steps"][control]["moving_psnr"]
        entry["behind_model"] = entry["behind_model_ci95"] = None
    verdict = verdict_on("shuffled_actions", summary)
    assert verdict.good
    assert "moving" not in verdict.text


@pytest.mark.parametrize(("episodes", "words"), [(1, "1 held-out episode,"), (2, "2 held-out")])
def test_too_few_episodes_are_not_judged(episodes, words):
    summary = make_summary(episodes=episodes)
    (verdict,) = verdicts.judge(summary)
    assert not verdict.good
    assert verdict.text.startswith(words)
    assert "Both need 3 held-out episodes" in verdict.text
    page = verdicts.to_markdown({"demo": summary})
    assert "\u00b1" not in page.replace(verdict.text, "")


def test_the_best_of_a_column_is_bold_and_equals_share():
    summary = make_summary({"copy_last_frame": -0.1, "zero_actions": -0.1}, noise=0.0)
    rows = {row[0]: row[1:] for row in verdicts.average_table(summary).rows}
    for name, cells in rows.items():
        bold = name in ("copy last frame", "zero actions")
        assert [cell.startswith("**") for cell in cells] == [bold] * 4
    assert verdicts.best({"a": 0.7004, "b": 0.6996, "c": None}, 3) == {"a", "b"}
    assert verdicts.best({"a": None}, 3) == set()


def test_markdown_holds_table_sample_and_verdicts():
    summary = make_summary()
    page = verdicts.to_markdown({"first": summary, "second": summary})
    assert page.count("## ") == 2
    assert "6 held-out episodes, 1 window each, mean over rollout steps 0 to 2" in page
    entry = summary["average_over_steps"]["static_render"]["psnr"]
    assert f"{entry['mean']:.2f} \u00b1 {entry['ci95']:.2f}" in page
    assert all(f"- {verdict.text}\n" in page for verdict in verdicts.judge(summary))


def test_the_printed_table_fits_a_terminal(capsys):
    verdicts.average_table(make_summary()).print()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    # No label and no number is wrapped: two lines of head, a rule, a line per predictor.
    assert len(lines) == 3 + len(curves.PREDICTORS)
