"""What a model in use needs to know of its data besides images: robot, cameras, pace.

A run keeps it in `setup.json`, so that the run folder alone is enough for rollouts of any actions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics import files, sealed
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Camera, Float
from hdvpd.data.arrays import JOINT_POSITIONS, JOINT_TARGETS, camera_array
from hdvpd.data.remote import RemotePath, locate
from hdvpd.data.robot import Robot, read_robot
from hdvpd.data.store import Dataset

SETUP_FILE = "setup.json"
FORMAT, VERSION = "hdvpd-setup", 1


@dataclass(frozen=True)
class Setup:
    """Robot, cameras and pace of a data set.

    Attributes:
      rate_hz: control steps per second.
      joints: names, in the order of joint arrays.
      max_step: the farthest that a joint was ever told to go in one control step of the training
        data, from where it was told to be before or from where it was; infinite where unknown.
      joint_offsets: what the calibration of the data adds to joint values as the robot measures and
        takes them: theirs plus this are those of the data, and of the model. Mostly 0.
      cameras: as they stood in the first frame of the first training episode, by name, for images
        of `sizes`.
      sizes: height and width of each camera's images [px].
      mounts: the link that carries a camera, for those that do not stand still.
      robot: its model, or None where the data have none.
    """

    rate_hz: float
    joints: tuple[str, ...]
    max_step: Float[np.ndarray, "j"]
    joint_offsets: Float[np.ndarray, "j"]
    cameras: Mapping[str, Camera]
    sizes: Mapping[str, tuple[int, int]]
    mounts: Mapping[str, str]
    robot: Robot | None


def describe_setup(dataset: Dataset) -> dict[str, Any]:
    """Collect what `read_setup` reads from a data set.

    Of a mixture, the first data set is described.

    Raises:
      UserError: an array or the robot model is damaged.
    """
    dataset = dataset.sources[0]
    train = dataset.split("train") or dataset.episodes
    robot = read_robot(dataset.path, dataset.corrections.robot)
    cameras = {}
    for name, info in dataset.info.cameras.items():
        keys = ("intrinsics", "camera_to_world")
        values = dataset.read_many(train[0].number, [camera_array(name, k) for k in keys], 0, 1)
        matrices = {k: values[camera_array(name, k)] for k in keys}
        still = {k: (m[0] if m.ndim == 3 else m).tolist() for k, m in matrices.items()}
        cameras[name] = {"height": info.height, "width": info.width, "mount": info.mount, **still}
    return {
        "format": FORMAT,
        "version": VERSION,
        "rate_hz": dataset.rate_hz,
        "joints": list(dataset.robot.joints),
        "max_step": _largest_steps(dataset, [e.number for e in train]).tolist(),
        "joint_offsets": _joint_offsets(dataset),
        "cameras": cameras,
        "robot": None if robot is None else robot.description,
    }


def find_setup(folder: Path, data_path: str | Path) -> Setup | None:
    """Read the setup of a run, or make it from the run's data set, if that is at hand.

    A setup without a robot model is made anew: `hdvpd data robot` may have added one since.

    `data_path` is that of the training, the first where several data sets are mixed.

    Raises:
      UserError: what is there is damaged.
    """
    setup = read_setup(folder)
    if setup is not None and setup.robot is not None:
        return setup
    if setup is not None and isinstance(locate(data_path), RemotePath):
        return setup  # using a model needs no network
    file = locate(data_path) / "dataset.json"
    return parse_setup(describe_setup(Dataset(data_path)), file) if file.is_file() else setup


def keep_setup(folder: Path, dataset: Dataset) -> None:
    """Write the setup of a data set into the folder of a run, unless it is there.

    Raises:
      UserError: an array or the robot model is damaged, or the disk is full or not writable.
    """
    file = folder / SETUP_FILE
    if not file.is_file():
        files.write(
            file,
            sealed.dumps(describe_setup(dataset)),
            "Free space or permit writing there, and start again.",
        )


def read_setup(folder: Path) -> Setup | None:
    """Read the setup that a run keeps, or None if it keeps none.

    Raises:
      UserError: it is damaged.
    """
    file = folder / SETUP_FILE
    if not file.is_file():
        return None
    try:
        raw = sealed.loads(file.read_text(encoding="utf-8"))
        if raw["format"] != FORMAT or raw["version"] != VERSION:
            raise ValueError(f"its format is {raw['format']!r}, version {raw['version']!r}")
        return parse_setup(raw, file)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{file} cannot be read ({error!r}). Delete it: it is then made again from the data "
            "set that the run's config.toml names."
        ) from error


def parse_setup(raw: Mapping[str, Any], file: Path) -> Setup:
    """Read what `describe_setup` returned; `file` is named in messages.

    Raises:
      UserError: the robot model is of another format.
      KeyError: something is missing.
    """
    cameras, joints = raw["cameras"], tuple(raw["joints"])
    return Setup(
        rate_hz=float(raw["rate_hz"]),
        joints=joints,
        max_step=np.array(raw["max_step"], np.float64),
        # Setups of earlier versions have none.
        joint_offsets=np.array(raw.get("joint_offsets", [0.0] * len(joints)), np.float64),
        cameras={
            name: Camera(
                np.array(camera["intrinsics"], np.float32),
                np.array(camera["camera_to_world"], np.float32),
            )
            for name, camera in cameras.items()
        },
        sizes={name: (camera["height"], camera["width"]) for name, camera in cameras.items()},
        mounts={n: camera["mount"] for n, camera in cameras.items() if camera["mount"] != "world"},
        robot=None if raw["robot"] is None else Robot(raw["robot"], file),
    )


def _largest_steps(dataset: Dataset, episodes: list[int]) -> Float[np.ndarray, "j"]:
    """Return how far each joint is told to go at most, from its last target or from where it is.

    A robot that lags is told to go farther from where it is than from one target to the next, and
    a plan begins where the robot is.
    """
    largest = np.zeros(len(dataset.robot.joints))
    for number in episodes:
        values = dataset.read_many(number, [JOINT_POSITIONS, JOINT_TARGETS])
        positions, targets = values[JOINT_POSITIONS], values[JOINT_TARGETS]
        between = np.abs(np.diff(targets, axis=0, prepend=targets[:1]))
        farther = np.fmax(between, np.abs(targets - positions))
        largest = np.fmax(largest, farther.max(axis=0))
    return largest


def _joint_offsets(dataset: Dataset) -> list[float]:
    """Return what is added to joints as recorded: by who reads them, or wrote a corrected copy."""
    names = dataset.robot.joints
    copied = dataset.info.raw.get("source", {}).get("corrections", {})
    written = copied.get("robot", {}).get("joints", {})
    before = np.array([written[name]["offset"] if name in written else 0.0 for name in names])
    return dataset.corrections.joint_values(before, names).tolist()
