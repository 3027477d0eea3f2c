"""The particles' motion in a plot, in words and in files (`motion_tables.summarize_motion`)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from hdvpd.basics.files import write
from hdvpd.basics.tables import plus_minus
from hdvpd.evaluation.curves import plot_metrics, to_json, to_png
from hdvpd.evaluation.motion_tables import (
    MM,
    MOTION_LABELS,
    MOTION_TITLES,
    describe_motion,
    motion_csv,
    motion_markdown,
)
from hdvpd.evaluation.verdicts import Verdict

_AGAINST = {
    "static_render": "assuming that nothing moves",
    "kinematics_only": "carrying particles along with the robot and nothing else",
}


def write_motion(folder: Path, motions: Mapping[str, Mapping[str, Any]]) -> bytes:
    """Write the motion of one or several runs as motion.json, motion.md, motion.csv and motion.png.

    Raises:
      UserError: the disk is full or not writable.
    """
    plot = to_png(plot_motion(motions))
    pages = [
        f"## {name}\n\n{motion_markdown(motion)}"
        + "".join(f"\n- {verdict.text}" for verdict in judge_motion(motion))
        + "\n"
        for name, motion in motions.items()
    ]
    contents: dict[str, str | bytes] = {
        "motion.json": to_json({"runs": motions}),
        "motion.md": "\n".join(pages),
        "motion.csv": motion_csv(motions),
        "motion.png": plot,
    }
    for name, content in contents.items():
        write(folder / name, content, "Free some space or permit writing there, then try again.")
    return plot


def plot_motion(motions: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Plot every measure of the particles' motion against the rollout step, in millimetres."""
    still = "static_render"  # its error is the true displacement
    figure = plot_metrics(motions, MOTION_TITLES, MOTION_LABELS, still, MM)
    for axes in figure.axes:
        axes.set_ylim(bottom=0)
    figure.suptitle(
        f"Distance from the true place: {describe_motion(next(iter(motions.values())))}"
    )
    return figure


def judge_motion(motion: Mapping[str, Any]) -> list[Verdict]:
    """Compare the model's error on objects with that of no motion and of the kinematics.

    Returns:
      A verdict per control: over all steps, and at which steps it is ahead; none without intervals.
    """
    verdicts = []
    for control, phrase in _AGAINST.items():
        entry = motion[control]
        name = "object_error_m_behind_model"
        difference, ci95 = entry[f"{name}_mean"], entry[f"{name}_mean_ci95"]
        if difference is None or ci95 is None:
            continue
        steps = [
            step
            for step, (mean, half) in enumerate(
                zip(entry[name], entry[f"{name}_ci95"], strict=True)
            )
            if mean is not None and half is not None and mean > half
        ]
        ahead = difference > ci95
        word = "ahead" if ahead else "behind" if difference < -ci95 else "undecided"
        number = plus_minus(-MM * difference, MM * ci95, 1, sign=True)
        where = f"ahead at steps {_ranges(steps)}" if steps else "ahead at no step"
        text = (
            f"On objects, against {phrase}, the model's particles are {word} (error {number} mm); "
            f"{where}."
        )
        verdicts.append(Verdict(ahead, text))
    return verdicts


def _ranges(steps: list[int]) -> str:
    """Write ascending numbers as ranges, such as "0, 2 to 5"."""
    parts: list[list[int]] = []
    for step in steps:
        if parts and step == parts[-1][-1] + 1:
            parts[-1].append(step)
        else:
            parts.append([step])
    return ", ".join(f"{p[0]} to {p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)
