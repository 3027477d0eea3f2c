"""What an evaluation says, in one table and a few sentences: for terminal, metrics.md and page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hdvpd.basics.statistics import MIN_SAMPLES
from hdvpd.basics.tables import Table, bold, plus_minus
from hdvpd.evaluation.curves import DIGITS, LABELS, METRICS, TITLES, describe_sample

_AGAINST = {
    "static_render": "rendering the observed particles unmoved",
    "copy_last_frame": "copying the last frame",
    "kinematics_only": "carrying the particles along with the robot and nothing else",
    "zero_actions": "itself told that the robot stands still",
    "shuffled_actions": "itself under the plan of another episode",
}
_DOUBTS = {
    "kinematics_only": "These numbers do not show that it learned any other motion.",
    "zero_actions": "These numbers do not show that it uses its actions.",
    "shuffled_actions": "These numbers do not show that it uses its actions.",
}
_JUDGED = {"ssim": "SSIM", "moving_psnr": "moving-pixel PSNR"}


@dataclass(frozen=True)
class Verdict:
    """One comparison in words.

    Attributes:
      good: whether the model is ahead in everything, beyond the intervals.
      text: the sentence.
    """

    good: bool
    text: str


def judge(summary: Mapping[str, Any]) -> list[Verdict]:
    """Compare the model with every control, on SSIM and on moving-pixel PSNR over all steps.

    Returns:
      A verdict per control: the model is ahead or behind where the paired difference exceeds its
      interval. Below `statistics.MIN_SAMPLES` episodes one that says why there is none.
    """
    if summary["episodes"] < MIN_SAMPLES:
        text = (
            f"{describe_sample(summary)}: too few to say how far chance goes, so there is no "
            f"\u00b1 and no verdict. Both need {MIN_SAMPLES} held-out episodes; windows of one "
            "episode are too alike to count as several."
        )
        return [Verdict(False, text)]
    return [_compare(summary, control) for control in summary["predictors"] if control != "model"]


def _compare(summary: Mapping[str, Any], control: str) -> Verdict:
    phrases, clear = [], []
    for metric, name in _JUDGED.items():
        entry = summary["average_over_steps"][control][metric]
        difference, ci95 = entry["behind_model"], entry["behind_model_ci95"]
        if difference is None or ci95 is None:
            continue
        clear.append(difference > ci95)
        word = "ahead" if difference > ci95 else "behind" if difference < -ci95 else "undecided"
        unit = " dB" if "psnr" in metric else ""
        number = plus_minus(difference, ci95, DIGITS[metric], sign=True)
        phrases.append(f"{word} in {name} ({number}{unit})")
    text = f"Against {_AGAINST[control]}, the model is {' and '.join(phrases)}."
    doubt = "" if all(clear) else _DOUBTS.get(control, "")
    return Verdict(all(clear), f"{text} {doubt}".strip())


def best(means: Mapping[str, float | None], digits: int) -> set[str]:
    """Return the names with the highest mean, as it is shown; all of them if equal."""
    shown = {name: round(mean, digits) for name, mean in means.items() if mean is not None}
    return {name for name, mean in shown.items() if mean == max(shown.values())}


def average_table(summary: Mapping[str, Any], title: str = "") -> Table:
    """Lay out the means over all rollout steps, the best of every column bold."""
    averages = summary["average_over_steps"]
    columns = [
        (m, {p: (averages[p][m]["mean"], averages[p][m]["ci95"]) for p in summary["predictors"]})
        for m in METRICS
    ]
    return _scores(("", *(TITLES[metric] for metric in METRICS)), columns, title)


def step_table(summary: Mapping[str, Any], lists: Mapping[str, Any], metric: str) -> Table:
    """Lay out a metric at every rollout step, overall or of a camera, the best of each bold."""
    steps = range(summary["steps"])
    columns = [
        (metric, {p: _at(lists[p], metric, step) for p in summary["predictors"]}) for step in steps
    ]
    return _scores((TITLES[metric], *_names(steps)), columns)


def depth_table(summary: Mapping[str, Any]) -> Table:
    """Lay out the errors of the model's depth at every rollout step."""
    steps = range(summary["steps"])
    rows = [
        [label, *(plus_minus(*_at(summary["model"], key, step), 3) for step in steps)]
        for key, label in (
            ("depth_abs_rel", "absolute relative error"),
            ("depth_within_1_25", "share within a factor of 1.25"),
        )
    ]
    return Table(("Depth of the model", *_names(steps)), rows)


def _at(lists: Mapping[str, Any], metric: str, step: int) -> tuple[float | None, float | None]:
    return lists[metric][step], lists[f"{metric}_ci95"][step]


def _names(steps: range) -> list[str]:
    return [f"step {step}" for step in steps]


def _scores(
    head: Sequence[str], columns: Sequence[tuple[str, Mapping[str, Any]]], title: str = ""
) -> Table:
    """Lay out a row per predictor; each column is its metric, and mean and width by predictor."""
    rows: dict[str, list[str]] = {predictor: [LABELS[predictor]] for predictor in columns[0][1]}
    for metric, values in columns:
        winners = best({p: mean for p, (mean, _) in values.items()}, DIGITS[metric])
        for predictor, (mean, ci95) in values.items():
            text = plus_minus(mean, ci95, DIGITS[metric])
            rows[predictor].append(bold(text) if predictor in winners else text)
    return Table(head, list(rows.values()), title)


def explain_table(summary: Mapping[str, Any]) -> str:
    """Say what the table's numbers are: of which episodes and steps, and what is beside them."""
    text = f"{describe_sample(summary)}, mean over rollout steps 0 to {summary['steps'] - 1}"
    if summary["episodes"] < MIN_SAMPLES:
        return text
    return f"{text}, \u00b1 half of Student's 95 % interval over episodes"


def to_markdown(summaries: Mapping[str, Mapping[str, Any]]) -> str:
    """Write the table and the verdicts of every run, to be pasted elsewhere."""
    return "\n".join(
        f"## {name}, checkpoint {summary['checkpoint_step']}\n\n"
        f"{explain_table(summary)}. The best of a column is bold.\n\n"
        f"{average_table(summary).markdown()}\n"
        + "".join(f"- {verdict.text}\n" for verdict in judge(summary))
        for name, summary in summaries.items()
    )
