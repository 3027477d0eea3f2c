"""Studies that take long: what is known is kept line by line, and a stopped study goes on there."""

import dataclasses
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.files import write
from hdvpd.planning.trials import (
    TASKS,
    Outcome,
    Trial,
    begin_trial,
    draw_outcome,
    simulated_robot,
)
from hdvpd.training.checkpoint_folder import DIGEST
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.world.base import World
from studies.outputs import make_folder, write_settings

# Seeds of episodes count from 0; starts of plans are drawn far from them.
_SEED = 10_000
SIZE = (96, 128)
"""Height and width of the images that controls see [px]: the demo's."""

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

    def __init__(
        self, out: Path, settings: Any, extent: Sequence[str] = (), world: World | None = None
    ) -> None:
        """Open a new or a stopped study.

        Args:
          out: its folder.
          settings: all that is set.
          extent: names of settings that only say how much is done, so that they may change.
          world: the model that is studied, if any.

        Raises:
          UserError: `out` cannot be a folder, or holds a study with other settings or of another
            checkpoint.
        """
        make_folder(out)
        require_same(out / "settings.toml", settings, extent)
        if world is not None:
            _require_same_checkpoint(out / "checkpoint.json", world)
        self._file = out / "starts.jsonl"
        self.entries: list[Entry] = read_entries(self._file)

    def __contains__(self, key: Entry) -> bool:
        """Say whether an entry with these values is known."""
        return bool(self.find(key))

    def find(self, key: Entry) -> list[Entry]:
        """Return the entries with these values."""
        return [entry for entry in self.entries if key.items() <= entry.items()]

    def add(self, entry: Entry) -> None:
        """Keep one more."""
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")
        self.entries.append(entry)


def read_entries(file: Path) -> list[Entry]:
    """Read the entries that a study kept; half a line, as a crash leaves it, is cut off."""
    text = file.read_text() if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        file.write_text(whole)
    return [json.loads(line) for line in whole.splitlines()]


def borrowed_entries(folder: Path, settings: Any, extent: Sequence[str]) -> list[Entry]:
    """Read the entries of another study; none where no folder is named (`Path("")`).

    Args:
      folder: of the other study.
      settings: of this one.
      extent: names of settings in which they may differ.

    Raises:
      UserError: there is no such study, or its settings are others.
    """
    if folder == Path():
        return []
    file = folder / "settings.toml"
    if not file.is_file():
        raise UserError(f"{folder} holds no study: it has no settings.toml.")
    _refuse_others(file, settings, extent, "name another folder")
    return read_entries(folder / "starts.jsonl")


def require_same(file: Path, settings: Any, extent: Sequence[str]) -> None:
    """Write the settings, or refuse to go on with a study that was begun with others.

    Args:
      file: `settings.toml` of the study.
      settings: all that is set.
      extent: names of settings that only say how much is done, so that they may change.

    Raises:
      UserError: another setting is not what it was.
    """
    if file.exists():
        _refuse_others(file, settings, extent, "give another --out")
    aside = file.with_suffix(".new")
    write_settings(aside, settings)
    aside.replace(file)


def _refuse_others(file: Path, settings: Any, extent: Sequence[str], remedy: str) -> None:
    old, new = tomllib.loads(file.read_text()), dataclasses.asdict(settings)
    for key in new.keys() - set(extent):
        if old.get(key) != new[key]:
            raise UserError(
                f"{file} was written by a study with other settings ({key} was {old.get(key)}, is "
                f"{new[key]}); {remedy}."
            )


def _require_same_checkpoint(file: Path, world: World) -> None:
    """A run of the same name may have been trained again, or further, since the study was begun."""
    now = (CheckpointStore(world.folder).path / str(world.step) / DIGEST).read_text()
    if not file.exists():
        write(file, now, "Free some space, or give another --out.")
    elif file.read_text() != now:
        raise UserError(
            f"{file.parent} holds a study of another checkpoint than step {world.step} of "
            f"{world.folder}; give another --out."
        )


def draw_start(
    task: str, start: int, seed: int, size: tuple[int, int] = SIZE
) -> tuple[Trial, Outcome, np.random.Generator]:
    """Simulate a start and draw its goal.

    Args:
      task: push or can.
      start: its number.
      seed: of the study.
      size: height and width of the images [px]; nothing else depends on it.

    Returns:
      The start, what counts, and a generator for plans.

    Raises:
      UserError: MuJoCo is missing.
    """
    robot, number = simulated_robot(), TASKS.index(task)
    trial = begin_trial(task, size, [_SEED + seed, number, start])
    rng = np.random.default_rng([seed, number, start])
    tool = robot.link_poses(trial.command[None].astype(np.float64))[0, robot.links.index(trial.arm)]
    return trial, draw_outcome(trial, tool[:3, 3], rng), rng


def chosen_starts(starts: int, tasks: Sequence[str]) -> list[tuple[int, str]]:
    """Return starts and tasks in the order in which a study goes through them."""
    return [(start, task) for start in range(starts) for task in tasks]
