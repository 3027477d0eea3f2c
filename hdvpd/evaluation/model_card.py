"""The card of a trained model: what made it, what it scored, and what it cannot do."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.basics.tables import Cell, Table
from hdvpd.config import Config
from hdvpd.config.experiments import flatten
from hdvpd.data.remote import locate
from hdvpd.evaluation.motion_tables import describe_motion, motion_table
from hdvpd.evaluation.verdicts import average_table, explain_table
from hdvpd.training.metrics_log import read_records
from hdvpd.training.run_folder import RunFolder

_LIMITS = """\
- It knows the robot, the cameras' places, the workspace and the kinds of objects of its data set,
  and nothing else: other scenes need a training of their own.
- By default it predicts one future: of what is uncertain the likeliest, by its rules of contact, or
  a blur of all.
- Its numbers are of held-out episodes of the same simulation, not of a real robot.
- Parameters are stored in half precision; the numbers are those of the run that was packed."""


def write_card(run_dir: Path, config: Config, file: str, step: int, identity: str) -> str:
    """Write the card of a run's model.

    Args:
      run_dir: the run folder; its data set should be there, and it should be evaluated.
      config: of the checkpoint.
      file: name of the packed model.
      step: the checkpoint that was packed.
      identity: of the data set that it was trained on.

    Raises:
      UserError: the run was not evaluated at this step on this data set.
    """
    summary = read_summary(run_dir / "eval" / "metrics.json", step, identity)
    dataset = _dataset(locate(config.data.paths[0]))
    facts = {
        "data": f"`{dataset.get('source', {}).get('command', 'unknown')}`",
        "licence of the data": str(dataset.get("licence", "unknown")),
        "training": f"`{training_command(run_dir)}`",
        "code": RunFolder(run_dir).code(),
        "steps": f"{step:,} of {config.train.num_steps:,}",
        "hours of training": f"{training_hours(run_dir):.2f}",
        "particles": f"{config.model.num_particles:,}",
        "images": f"{config.data.height}x{config.data.width} px",
        "licence of the model": "Apache-2.0, as hdvpd",
    }
    lines = "".join(f"- {label}: {value}\n" for label, value in facts.items())
    return (
        f"# {file}\n\n{lines}\n## Numbers\n\n{_numbers(summary)}\n## Limits\n\n{_LIMITS}\n\n"
        f"## Departures from the paper\n\n{departures(config)}"
    )


def read_summary(file: Path, step: int, dataset: str) -> Mapping[str, Any]:
    """Read the metrics.json of an evaluated run.

    Args:
      file: of the evaluation.
      step: of the checkpoint that it must be of.
      dataset: identity of the data set, that of the training.

    Raises:
      UserError: it is missing, unreadable, of several runs, another checkpoint or other data.
    """
    try:
        summary = sealed.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{file} cannot be read ({error}): a model card states measured numbers. Evaluate the "
            f"run first, `hdvpd eval {file.parent.parent}`."
        ) from error
    if summary.get("checkpoint_step") != step:
        raise UserError(
            f"{file} is of checkpoint {summary.get('checkpoint_step')}, but {step} is packed. "
            f"Evaluate it first, `hdvpd eval {file.parent.parent} --step {step}`."
        )
    if summary.get("dataset") != dataset:
        raise UserError(
            f"{file} is of the data set with identity {summary.get('dataset')}, but the run was "
            f"trained on {dataset}. Evaluate it on its own first, `hdvpd eval "
            f"{file.parent.parent}`."
        )
    return summary


def training_command(run_dir: Path) -> str:
    """Return the command that trained a run, as its env.txt has it."""
    file = run_dir / "env.txt"
    for line in file.read_text(errors="replace").splitlines() if file.is_file() else []:
        if line.startswith("command: "):
            words = line.removeprefix("command: ").split()
            return " ".join(["hdvpd", *words[1:]])
    return "unknown"


def training_hours(run_dir: Path) -> float:
    """Return the time that a run's steps took, without compilation and interruptions [h]."""
    seconds, before = 0.0, 0
    for record in read_records(run_dir / "timing.jsonl"):
        step, speed = record.get("step", before), record.get("steps_per_s")
        if record["kind"] == "start":
            before = step
        if record["kind"] == "train" and isinstance(speed, int | float) and speed > 0:
            seconds += (step - before) / speed
            before = step
    return seconds / 3600


def departures(config: Config) -> str:
    """List every value that differs from the paper's, which are the defaults, as Markdown."""
    own, paper = flatten(config), flatten(Config())
    rows: list[list[Cell]] = [
        [f"`{key}`", str(value), str(paper.get(key, "absent"))]
        for key, value in own.items()
        if key.split(".")[0] in ("model", "render", "train") and value != paper.get(key)
    ]
    return Table(("setting", "here", "paper or default"), rows).markdown()


def _numbers(summary: Mapping[str, Any]) -> str:
    text = f"{explain_table(summary)}.\n\n{average_table(summary).markdown()}"
    motion = summary.get("motion")
    if motion is None:
        return text
    head = f"Distance of particles from where they should be, {describe_motion(motion)}."
    return f"{text}\n{head}\n\n{motion_table(motion).markdown()}"


def _dataset(path: Path) -> Mapping[str, Any]:
    try:
        return json.loads((path / "dataset.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, UserError):
        return {}
