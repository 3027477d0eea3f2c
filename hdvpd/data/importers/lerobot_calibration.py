"""Calibration from columns of a LeRobot data set, for which it has no standard.

Recognised by name: `<cam>_camera_intrinsics` of 4 (fx, fy, cx, cy) or 9 values, and a pose of 12
or 16. `extrinsics` may mean either direction and other axes: the side-car says what, or the
pictures of the first episode (readings.py).
"""

from collections.abc import Callable

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data import pinhole
from hdvpd.data.importers import base, conversions
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.lerobot_info import Info

_REMEDY = "Give the camera with --calibration."


def recorded_view(
    place: SourcePlace,
    info: Info,
    camera: str,
    size: tuple[int, int],
    numbers: Callable[[str], Float[np.ndarray, "f c"]],
    extrinsics: conversions.PoseReading | None,
) -> tuple[base.View, str]:
    """Read the calibration of a camera from its columns.

    Returns:
      The camera, and what was taken, for people.

    Raises:
      BadEpisodeError: a column has another shape, or nobody says what its pose means.
    """
    found = info.calibration_columns(camera)
    assert found is not None
    intrinsics_key, pose_key, named = found
    reading = named or extrinsics
    if reading is None:
        raise place.error(f"nothing says what the pose in {pose_key} means", _REMEDY)
    intrinsics = _intrinsics(place, intrinsics_key, numbers(intrinsics_key))
    pose = _pose(place, pose_key, numbers(pose_key))
    view = base.View(size, intrinsics, reading.camera_to_world(pose))
    return view, f"from {intrinsics_key} and {pose_key}, {reading}"


def _intrinsics(place: SourcePlace, key: str, values: np.ndarray) -> np.ndarray:
    if values.shape[1] == 9:
        return values.reshape(-1, 3, 3)
    if values.shape[1] != 4:
        raise place.error(
            f"{key} has {values.shape[1]} values, expected 9, or fx, fy, cx, cy", _REMEDY
        )
    matrix = np.tile(np.eye(3), (len(values), 1, 1))
    matrix[:, 0, 0], matrix[:, 1, 1] = values[:, 0], values[:, 1]
    matrix[:, :2, 2] = values[:, 2:]
    return matrix


def _pose(place: SourcePlace, key: str, values: np.ndarray) -> np.ndarray:
    if values.shape[1] not in (12, 16):
        raise place.error(
            f"{key} has {values.shape[1]} values, expected a 3x4 or 4x4 pose", _REMEDY
        )
    return pinhole.homogeneous(values.reshape(len(values), -1, 4))
