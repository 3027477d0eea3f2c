"""`python -m studies executions`: what the plans that models rank truly lead to.

The simulator and the geometry of the robot's path need no model, so that one folder serves the
`ranking` of every model.
"""

import dataclasses
from pathlib import Path

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.data.robot import Robot
from hdvpd.planning.trials import Outcome, Trial, propose, simulated_robot
from studies.model_settings import ExecutionSettings
from studies.resumable import Entry, Kept, chosen_starts, draw_start, tasks_of

EXTENT = ("tasks", "starts")
"""Settings that say how much is executed, not what."""


def main(out: Path, settings: ExecutionSettings) -> None:
    """Write settings.toml and starts.jsonl, a line per start, into `out`.

    Raises:
      UserError: `out` holds executions of other plans, or the simulator is missing.
    """
    kept = open_executions(out, settings)
    for start, task in chosen_starts(settings.starts, tasks_of(settings.tasks)):
        entry = executed(kept, task, start, settings)
        best = min(entry["true"][-1])
        print(f"{task} {start}: best of {len(entry['possible'])} plans {best:.3f} m", flush=True)


def open_executions(out: Path, settings: ExecutionSettings) -> Kept:
    """Open the executions of a study's plans.

    Raises:
      UserError: those of other plans lie there.
    """
    names = [field.name for field in dataclasses.fields(ExecutionSettings)]
    own = ExecutionSettings(**{name: getattr(settings, name) for name in names})
    return Kept(out, own, EXTENT)


def executed(kept: Kept, task: str, start: int, settings: ExecutionSettings) -> Entry:
    """Return what the plans of a start lead to; what is not known yet is executed.

    Returns:
      `possible`, the numbers of the plans that can be executed (in the others the arms touch); of
      these: `true`, the cost by step and plan [m], and by plan what geometry says: `tool path`, how
      near the tool comes to the object, and `tool end`, how far it ends from the block's goal or,
      where a can is to be lifted, minus how far it ends above where it was [m].

    Raises:
      UserError: hardly a plan can be executed.
    """
    key = {"task": task, "start": start}
    if known := kept.find(key):
        return known[0]
    trial, outcome, rng = draw_start(task, start, settings.seed)
    robot = simulated_robot()
    targets = propose(trial, robot, settings.plans, settings.horizon, rng)
    poses = [trial.execute(plan) for plan in targets]
    possible = [k for k, moved in enumerate(poses) if moved is not None]
    if len(possible) < 3:
        raise UserError(f"{task} {start}: the arms touch in nearly all plans; use another --seed.")
    places = np.stack([moved[:, :3, 3] for moved in poses if moved is not None])
    entry = key | {
        "possible": possible,
        "true": outcome.cost(trial.object_to_world[:3, 3], places).T.tolist(),
        **_geometry(robot, trial, outcome, targets[possible]),
    }
    kept.add(entry)
    return entry


def _geometry(
    robot: Robot, trial: Trial, outcome: Outcome, targets: Float[np.ndarray, "k s j"]
) -> dict[str, list[float]]:
    poses = robot.link_poses(targets)[:, :, robot.links.index(trial.arm)]
    tool = poses[..., :3, 3].astype(np.float64)
    now = robot.link_poses(trial.command[None].astype(np.float64))[0, robot.links.index(trial.arm)]
    return {
        "tool path": np.linalg.norm(tool - trial.object_to_world[:3, 3], axis=-1).min(1).tolist(),
        "tool end": outcome.cost(now[:3, 3].astype(np.float64), tool[:, -1]).tolist(),
    }
