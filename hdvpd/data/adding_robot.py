"""`hdvpd data robot`: give a data set that was written without one the model of its robot."""

from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.data import writer
from hdvpd.data.arrays import JOINT_POSITIONS, LINKS
from hdvpd.data.corrections import Corrections
from hdvpd.data.importers.robot_model import Joint, RobotModel, read_robot_file
from hdvpd.data.importers.sidecar import read_sidecar
from hdvpd.data.remote import require_local
from hdvpd.data.robot import ROBOT_FILE, Robot, describe_robot, read_robot
from hdvpd.data.store import Dataset

TOLERANCE_M = 2e-3
"""How far a link may lie from where the data have it: fingers of a simulated gripper lag a little
behind each other, and only one of them is recorded."""
_CHECKED_EPISODES = 20


def add_robot(path: Path, robot: Path | None, calibration: Path | None = None) -> tuple[str, ...]:
    """Write `robot.json` into a data set, replacing one that is there.

    Args:
      path: the data set.
      robot: URDF or MJCF; None for data that hdvpd itself simulated.
      calibration: calibration file whose 'joints' name the model's; None if names are the same.

    Returns:
      What was done and how well the model fits, for people.

    Raises:
      UserError: the model does not fit the data; nothing is written then.
    """
    require_local(path)
    dataset = Dataset(path, corrections=Corrections())  # robot.json is corrected when it is read
    if robot is None:
        description, report = _simulated(dataset), ()
    else:
        description, report = _from_file(dataset, robot, calibration)
    fitted = Robot(description, robot or path / ROBOT_FILE)
    error, where = largest_error(dataset, fitted)
    if error > TOLERANCE_M:
        raise UserError(
            f"{fitted.source}: the model puts link {where} {1e3 * error:.1f} mm away from its "
            f"stored pose; at most {1e3 * TOLERANCE_M:g} mm are accepted. Is it the model of this "
            "robot, and are its joints named as those of the data are?"
        )
    writer.write_json(path / ROBOT_FILE, description)
    fit = f"links lie within {1e3 * error:.2f} mm of their stored poses"
    return (*report, f"{path / ROBOT_FILE} is written; {fit}")


def largest_error(dataset: Dataset, robot: Robot) -> tuple[float, str]:
    """Compare stored link poses with those of a robot model at the measured joints.

    Args:
      dataset: some of its episodes are read, evenly spread.
      robot: with the joints and links of the data set.

    Returns:
      The largest distance of a link [m], and which link in which episode and frame.
    """
    numbers = np.linspace(0, len(dataset.episodes) - 1, _CHECKED_EPISODES).astype(int)
    worst = (0.0, "")
    for number in dict.fromkeys(dataset.episodes[k].number for k in numbers):
        values = dataset.read_many(number, [JOINT_POSITIONS, LINKS])
        placed = robot.link_poses(values[JOINT_POSITIONS])
        away = np.linalg.norm(placed[..., :3, 3] - values[LINKS][..., :3, 3], axis=-1)
        frame, link = np.unravel_index(np.argmax(away), away.shape)
        if away[frame, link] >= worst[0]:
            name = f"{robot.links[link]!r} in frame {frame} of episode {number}"
            worst = float(away[frame, link]), name
    return worst


def misfits(dataset: Dataset) -> list[str]:
    """Warn if the robot model that a data set carries does not fit all of its episodes.

    It is that of the first one; a source may have moved the robot's base since.

    Returns:
      A line for people, or none.
    """
    robot = read_robot(dataset.path, dataset.corrections.robot)
    if robot is None:
        return []
    error, where = largest_error(dataset, robot)
    if error <= TOLERANCE_M:
        return []
    return [
        f"warning: {ROBOT_FILE} puts link {where} {1e3 * error:.0f} mm away from its stored pose: "
        "rollouts of other actions than recorded ones will be wrong there.\n"
    ]


def _simulated(dataset: Dataset) -> dict[str, Any]:
    from hdvpd.data.simulation import bimanual, synthetic

    command = str(dataset.info.raw.get("source", {}).get("command", ""))
    if command.startswith("hdvpd data simulate"):
        return bimanual.robot()
    if command == "write_synthetic_dataset":
        return synthetic.robot()
    raise UserError(
        f"{dataset.path} was not simulated by hdvpd, so the model of its robot is not known: give "
        "a URDF or MJCF with --robot FILE."
    )


def _from_file(
    dataset: Dataset, file: Path, calibration: Path | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Match a model with joints and links of the data; the root's pose follows from the links."""
    raw = dataset.info.raw["robot"]
    drives = {}
    if calibration is not None:
        drives = {joint.name: joint.drives for joint in read_sidecar(calibration).joints or ()}
    joints = [
        Joint(j["name"], j.get("unit", "rad"), j.get("arm", ""), drives.get(j["name"], {}))
        for j in raw["joints"]
    ]
    model = RobotModel(read_robot_file(file), file, joints)
    at_root = Robot(describe_robot(raw, model.text, model.moves()), file)
    first = dataset.episodes[0].number
    values = dataset.read_many(first, [JOINT_POSITIONS, LINKS], 0, 1)
    placed = at_root.link_poses(values[JOINT_POSITIONS])[0]
    # The link nearest to the root: a wrong joint then shows in the links that follow it.
    base = values[LINKS][0, 0].astype(np.float64) @ np.linalg.inv(placed[0])
    if np.abs(base - np.eye(4)).max() < 1e-5:  # what float32 makes of the identity
        base = np.eye(4)
    return describe_robot(raw, model.text, model.moves(), base), model.report
