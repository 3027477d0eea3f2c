"""Studies that take long: what is known is kept line by line, and a stopped study goes on there."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.errors import UserError
from hdvpd.planning.trials import (
    TASKS,
    Outcome,
    Trial,
    begin_trial,
    draw_outcome,
    require_simulated,
)
from hdvpd.world.base import World
from studies.outputs import make_folder, write_settings

# Seeds of episodes count from 0; starts of plans are drawn far from them.
_SEED = 10_000

Entry = dict[str, Any]


def tasks_of(names: str) -> list[str]:
    """Return the tasks that are named, separated by commas.

    Raises:
      UserError: there is no such task.
    """
    tasks = names.split(",")
    unknown = [task for task in tasks if task not in TASKS]
    if unknown:
        raise UserError(f"--tasks {unknown[0]}: plans are made for {', '.join(TASKS)}.")
    return tasks


class Kept:
    """Entries of a study, in a file to which each is added as soon as it is known.

    Attributes:
      entries: all that are known.
    """

    def __init__(self, out: Path, settings: Any) -> None:
        """Open a new or a stopped study.

        Raises:
          UserError: `out` cannot be a folder, or holds a study with other settings.
        """
        make_folder(out)
        _require_same(out / "settings.toml", settings)
        self._file = out / "starts.jsonl"
        self.entries: list[Entry] = read_entries(self._file)

    def __contains__(self, key: Entry) -> bool:
        """Say whether an entry with these values is known."""
        return any(key.items() <= entry.items() for entry in self.entries)

    def add(self, entry: Entry) -> None:
        """Keep one more."""
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        self.entries.append(entry)


def read_entries(file: Path) -> list[Entry]:
    """Read the entries that a study kept; half a line, as a crash leaves it, does not count."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def _require_same(file: Path, settings: Any) -> None:
    """Write the settings, or refuse to go on with a study that was begun with others."""
    before = file.read_text() if file.exists() else None
    aside = file.with_suffix(".new")
    write_settings(aside, settings)
    if before is not None and aside.read_text() != before:
        aside.unlink()
        raise UserError(f"{file} was written by a study with other settings; give another --out.")
    aside.replace(file)


def draw_start(
    world: World, task: str, start: int, seed: int
) -> tuple[Trial, Outcome, np.random.Generator]:
    """Simulate a start and draw its goal.

    Args:
      world: whose image size is taken, and whose robot must be that of the simulator.
      task: push or can.
      start: its number.
      seed: of the study.

    Returns:
      The start, what counts, and a generator for plans.

    Raises:
      UserError: the run has no robot model, or another robot's; MuJoCo is missing.
    """
    robot, number = world.robot, TASKS.index(task)
    trial = begin_trial(task, world.size, [_SEED + seed, number, start])
    require_simulated(world, trial)
    rng = np.random.default_rng([seed, number, start])
    tool = robot.link_poses(trial.command[None].astype(np.float64))[0, robot.links.index(trial.arm)]
    return trial, draw_outcome(trial, tool[:3, 3], rng), rng


def chosen_starts(starts: int, tasks: Sequence[str]) -> list[tuple[int, str]]:
    """Return starts and tasks in the order in which a study goes through them."""
    return [(start, task) for start in range(starts) for task in tasks]
