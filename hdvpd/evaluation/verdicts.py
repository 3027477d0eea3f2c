"""What an evaluation says, in one table and a few sentences: for terminal, metrics.md and page."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdvpd.evaluation.curves import DIGITS, LABELS, METRICS, TITLES, describe_sample
from hdvpd.reporting.statistics import MIN_SAMPLES
from hdvpd.reporting.tables import Table, bold, plus_minus

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
    columns = {m: {p: averages[p][m]["mean"] for p in summary["predictors"]} for m in METRICS}
    winners = {metric: best(means, DIGITS[metric]) for metric, means in columns.items()}

    def cell(predictor: str, metric: str) -> str:
        entry = averages[predictor][metric]
        text = plus_minus(entry["mean"], entry["ci95"], DIGITS[metric])
        return bold(text) if predictor in winners[metric] else text

    rows = [[LABELS[p], *(cell(p, metric) for metric in METRICS)] for p in summary["predictors"]]
    return Table(("", *(TITLES[metric] for metric in METRICS)), rows, title)


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
