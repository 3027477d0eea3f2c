"""Checks of what an episode holds, frame by frame.

Each names the file, the episode and the first frame at fault, what was found and the remedy.
"""

import abc
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool, Float, Shaped
from hdvpd.data.writer import episode_folder

ROTATION_TOLERANCE = 1e-4
"""Largest entry of R R^T - 1 accepted; a pose rounded to float32 stays below 1e-6."""


class AbstractPlace(abc.ABC):
    """Where checked frames come from: a native episode, or the source of an import."""

    @abc.abstractmethod
    def require(self, good: Bool[np.ndarray, "f"], name: str, found: str, remedy: str) -> None:
        """Pass if every frame is good.

        Args:
          good: verdict per frame.
          name: of the array inside a native episode.
          found: what is wrong with a bad frame.
          remedy: what to do.

        Raises:
          UserError: a frame is bad; the first is named.
        """


@dataclass(frozen=True)
class Place(AbstractPlace):
    """Frames of a native episode.

    Attributes:
      path: the data set.
      episode: number of the episode.
      start: its frame that is row 0 of the checked arrays.
    """

    path: Path
    episode: int
    start: int

    def require(self, good: Bool[np.ndarray, "f"], name: str, found: str, remedy: str) -> None:
        """Pass if every frame is good; the message names the array's file."""
        if good.all():
            return
        frame = self.start + int(np.argmin(good))
        file = episode_folder(self.path, self.episode) / name
        raise UserError(f"{file}: {found} in frame {frame} of episode {self.episode}. {remedy}")


def check_depth(place: AbstractPlace, camera: str, valid: Bool[np.ndarray, "f h w"]) -> None:
    """Require some valid depth in every frame.

    Raises:
      UserError: a frame has none.
    """
    place.require(
        np.asarray(valid.reshape(len(valid), -1).any(axis=1)),
        f"cameras/{camera}/depth",
        "no pixel has valid depth (all zero or NaN)",
        "Depth is planar z in metres, 0 where unknown; record it again or delete the episode.",
    )


def check_intrinsics(
    place: AbstractPlace, camera: str, intrinsics: Float[np.ndarray, "f 3 3"]
) -> None:
    """Require pinhole matrices with positive focal lengths and without skew.

    Raises:
      UserError: a matrix is not finite, has a focal length of 0 or less, or another form.
    """
    name = f"cameras/{camera}/intrinsics"
    focal = intrinsics[:, [0, 1], [0, 1]]
    good = np.isfinite(intrinsics).all(axis=(1, 2)) & (focal > 0).all(axis=1)
    place.require(
        np.asarray(good),
        name,
        f"focal lengths are {focal[np.argmin(good)].tolist()} px, but must be positive,",
        "Store [[fx, 0, cx], [0, fy, cy], [0, 0, 1]] in pixels.",
    )
    expected = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1]]) * intrinsics
    expected[:, 2, 2] = 1.0
    place.require(
        np.asarray((np.abs(intrinsics - expected) < 1e-9).all(axis=(1, 2))),
        name,
        "the matrix is not of the form [[fx, 0, cx], [0, fy, cy], [0, 0, 1]]",
        "Undistort the images and store a pinhole matrix without skew.",
    )


def check_pose(
    place: AbstractPlace, camera: str, camera_to_world: Float[np.ndarray, "f 4 4"]
) -> None:
    """Require rigid camera poses.

    Raises:
      UserError: a rotation is not orthonormal with determinant +1, or the last row not 0 0 0 1.
    """
    remedy = "Store the camera-to-world pose with OpenCV axes: x right, y down, z forward."
    check_rigid(place, f"cameras/{camera}/camera_to_world", camera_to_world, remedy)


def check_rigid(
    place: AbstractPlace, name: str, poses: Float[np.ndarray, "f 4 4"], remedy: str
) -> None:
    """Require rigid poses.

    Raises:
      UserError: a rotation is not orthonormal with determinant +1, or the last row not 0 0 0 1.
    """
    check_finite(place, name, poses)
    rotation = poses[:, :3, :3]
    with np.errstate(over="ignore", invalid="ignore"):  # huge numbers are no rotation either
        product = rotation @ rotation.transpose(0, 2, 1)
    error = np.abs(product - np.eye(3)[None]).max(axis=(1, 2))
    determinant = np.linalg.det(rotation)
    good = (error < ROTATION_TOLERANCE) & (determinant > 0)  # False for NaN
    worst = int(np.argmin(good))
    place.require(
        np.asarray(good),
        name,
        f"the rotation is not orthonormal with determinant +1 (off by {error[worst]:.2g}, "
        f"determinant {determinant[worst]:.3g})",
        remedy,
    )
    good, transposed = (_ends_in_unit(rows) for rows in (poses[:, 3], poses[:, :, 3]))
    found = "the last row is not 0 0 0 1"
    if transposed.all():
        found += ", but the last column is: the matrix is transposed"
    place.require(good, name, found, remedy)


def _ends_in_unit(rows: Float[np.ndarray, "f 4"]) -> Bool[np.ndarray, "f"]:
    return np.asarray(np.abs(rows - np.array([[0.0, 0.0, 0.0, 1.0]])).max(axis=1) < 1e-9)


def check_finite(place: AbstractPlace, name: str, values: Shaped[np.ndarray, "f ..."]) -> None:
    """Require finite values.

    Raises:
      UserError: a value is NaN or infinite.
    """
    place.require(
        np.asarray(np.isfinite(values).reshape(len(values), -1).all(axis=1)),
        name,
        "a value is NaN or infinite",
        "Record it again or delete the episode.",
    )
