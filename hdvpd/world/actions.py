"""Joint targets that a user gives: read from files, and checked before anything is computed."""

from pathlib import Path

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float
from hdvpd.data.robot import Robot
from hdvpd.data.setup import SETUP_FILE, Setup
from hdvpd.world.state import State

SLACK = 1e-3
"""How far a target may lie beyond a joint's limit, in the joint's unit: recorded ones touch it."""
_ABSURD = 2 * np.pi
"""No joint is measured so far beyond its limits: encoders count a turn too many at most."""
START_M = 0.01
"""How far the robot model may put a point from where the data have it: fingers that a gripper's one
joint stands for are 2 mm off, a base that a calibration moved centimetres."""


def check_joints(robot: Robot, values: Float[Array, "..."], what: str = "joint_targets") -> None:
    """Require rows of joint values.

    Args:
      robot: whose joints they are.
      values: last axis joints.
      what: they are, for messages.

    Raises:
      UserError: another number of joints, no rows, or a value that is not finite.
    """
    if values.ndim not in (2, 3) or values.shape[-1] != len(robot.joints) or not values.size:
        raise UserError(
            f"{what}: shape {tuple(values.shape)} does not fit; the robot has "
            f"{len(robot.joints)} joints ({', '.join(robot.joints)}), so rows of "
            f"{len(robot.joints)} values are expected, one per control step."
        )
    bad = ~np.isfinite(np.asarray(values))
    if bad.any():
        *_, row, column = np.argwhere(bad)[0]
        raise UserError(
            f"{what}: the value of joint {robot.joints[column]!r} in row {row} is NaN or infinite. "
            "Every row needs a finite value for every joint."
        )


def check_measured(robot: Robot, values: Float[Array, "..."], count: int) -> None:
    """Require measured joint values of some time steps, (count, j), called `joints` in messages.

    Sensors go a little beyond limits, and an encoder may have counted a turn more.

    Raises:
      UserError: as `check_joints`, another number of rows, or a value that is in another unit.
    """
    check_joints(robot, values, "joints")
    if values.ndim != 2 or len(values) != count:
        raise UserError(
            f"joints: shape {tuple(values.shape)} does not fit; give a row for each of the {count} "
            "observed steps."
        )
    low, high = np.asarray(robot.limits, np.float64).T
    beyond = np.maximum(low - values, values - high)
    if beyond.max() > _ABSURD:
        row, column = np.unravel_index(beyond.argmax(), beyond.shape)
        raise UserError(
            f"joints: {robot.joints[column]!r} is {values[row, column]:.4g} in row {row}, its "
            f"limits are {low[column]:.4g} to {high[column]:.4g}. Values are in the units of the "
            "training data: degrees are to be converted to radians, millimetres to metres."
        )


def check_actions(robot: Robot, values: Float[Array, "..."], what: str = "joint_targets") -> None:
    """Require joint targets that the robot can take; arguments as in `check_joints`.

    Raises:
      UserError: as `check_joints`, or a target outside its joint's limits.
    """
    check_joints(robot, values, what)
    limits = robot.limits
    rows = np.asarray(values, np.float64)
    shape = (1,) * (rows.ndim - 1) + (-1,)
    low, high = (limits[:, side].reshape(shape) for side in range(2))
    outside = (rows < low - SLACK) | (rows > high + SLACK)
    if outside.any():
        *_, row, column = place = np.argwhere(outside)[0]
        least, most = limits[column]
        raise UserError(
            f"{what}: joint {robot.joints[column]!r} is told to go to "
            f"{rows[tuple(place)]:.4g} {robot.units[column]} in row {row}, but its limits are "
            f"{least:.4g} to {most:.4g}. Keep within them, or give values in the units of the "
            "training data (radians and metres)."
        )


def check_start(robot: Robot, state: State, run: Path) -> None:
    """Require that a robot model has a state's robot where the state's data set has it.

    Joint targets become points by the model, so the robot would jump at the first step else.

    Args:
      robot: that a run keeps.
      state: to start from; one that a model predicts, or of arrays, is of the run's own robot.
      run: its folder, for messages.

    Raises:
      UserError: the data set is of another robot, or has it elsewhere.
    """
    if not state.source or state.joints is None:
        return
    recorded = "What was recorded can be rolled out all the same."
    count = state.joints.shape[-1]
    if count != len(robot.joints):
        raise UserError(
            f"The run {run} is of a robot with {len(robot.joints)} joints, the data set "
            f"{state.source} of one with {count}: give a run that was trained on it. {recorded}"
        )
    placed = robot.points(state.joints[-1:]).positions[0]
    away = float(np.linalg.norm(placed - state.kinematic_points, axis=-1).max())
    if away > START_M:
        raise UserError(
            f"The run {run} has the robot {100 * away:.1f} cm away from where the data set "
            f"{state.source} has it at the same joints, so that joint targets would begin with a "
            "jump. If the data set was calibrated since the training, train again on it, or delete "
            f"{run / SETUP_FILE}: it is then made anew from the data set that the run's "
            "config.toml names. If the robot is another or stands elsewhere, give a run that was "
            f"trained on it. {recorded}"
        )


def too_fast(setup: Setup, start: Float[Array, "j"], values: Float[Array, "*batch j"]) -> str:
    """Say whether targets ask for faster motion than any in the training data.

    Args:
      setup: holds how far joints were told to go in one control step.
      start: joints where the rollout starts.
      values: joint targets, axes (s) or (b s).

    Returns:
      One sentence with the numbers, or nothing if all is slow enough.
    """
    rows = np.asarray(values, np.float64)
    before = np.broadcast_to(np.asarray(start, np.float64), (*rows.shape[:-2], 1, rows.shape[-1]))
    steps = np.abs(np.diff(np.concatenate([before, rows], axis=-2), axis=-2))
    largest = steps.reshape(-1, rows.shape[-1]).max(axis=0)
    known = setup.max_step + SLACK
    beyond = np.where(np.isfinite(known), largest / known, 0.0)
    worst = int(np.argmax(beyond))
    if beyond[worst] <= 1:
        return ""
    return (
        f"joint {setup.joints[worst]!r} is told to move {largest[worst]:.3g} in one control step "
        f"of {1 / setup.rate_hz:g} s; the most in the training data is "
        f"{setup.max_step[worst]:.3g}, so the prediction is an extrapolation."
    )


def read_actions(file: Path, robot: Robot, steps: int | None = None) -> Float[np.ndarray, "s j"]:
    """Read joint targets from a file.

    Args:
      file: `.npy` with an array (s, j), or `.csv` with a column per joint. A first line of names
        may be there; it must then name the joints of the robot, in any order.
      robot: whose joints they are.
      steps: how many of the rows; None takes all.

    Returns:
      Targets in the order of the robot's joints, checked as by `check_actions`.

    Raises:
      UserError: the file cannot be read, or does not fit the robot.
    """
    if not file.is_file():
        raise UserError(f"--actions {file}: there is no such file.")
    if file.suffix == ".npy":
        values = _read_npy(file)
    elif file.suffix == ".csv":
        values = _read_csv(file, robot)
    else:
        raise UserError(
            f"--actions {file}: expected a .npy or .csv file, or the number of an episode."
        )
    check_actions(robot, values, what=str(file))
    if steps is not None and not 0 < steps <= len(values):
        raise UserError(
            f"{file} has {len(values)} rows, but --steps asks for {steps}; give more rows, or "
            "another number of steps."
        )
    return values[:steps]


def _read_npy(file: Path) -> np.ndarray:
    try:
        with file.open("rb") as stream:
            values = np.load(stream, allow_pickle=False)
    except Exception as error:  # numpy lets pass what zip files and its own parser raise
        raise UserError(f"{file} cannot be read as a .npy array ({error}).") from error
    if not isinstance(values, np.ndarray) or values.dtype.kind not in "fiu" or values.ndim != 2:
        found = getattr(values, "shape", "several arrays")
        raise UserError(f"{file} holds {found}; expected one array of numbers, (steps, joints).")
    return values.astype(np.float32)


def _read_csv(file: Path, robot: Robot) -> np.ndarray:
    try:
        lines = [line for line in file.read_text(encoding="utf-8-sig").splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as text ({error}).") from error
    cells = [[cell.strip() for cell in line.split(",")] for line in lines]
    order = list(range(len(robot.joints)))
    if cells and not _is_number(cells[0][0]):
        names = cells.pop(0)
        if sorted(names) != sorted(robot.joints):
            wrong = next((n for n in names if n not in robot.joints), None)
            twice = next((n for n in robot.joints if names.count(n) > 1), None)
            missing = next((n for n in robot.joints if n not in names), None)
            which = f"{missing!r} is missing"
            if wrong is not None:
                which = f"{wrong!r} is no joint"
            elif twice is not None:
                which = f"{twice!r} is there {names.count(twice)} times"
            raise UserError(
                f"{file}: the first line should name every joint of the robot once: {which}. They "
                f"are {', '.join(robot.joints)}."
            )
        order = [names.index(name) for name in robot.joints]
    rows = []
    for number, row in enumerate(cells):
        if len(row) != len(robot.joints) or not all(map(_is_number, row)):
            raise UserError(
                f"{file}: row {number} has {len(row)} values ({', '.join(row)[:60]}); expected "
                f"{len(robot.joints)} numbers, one per joint ({', '.join(robot.joints)})."
            )
        rows.append([float(row[k]) for k in order])
    if not rows:
        raise UserError(f"{file} holds no row of joint targets.")
    return np.array(rows, np.float32)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
