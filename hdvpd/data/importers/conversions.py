"""Conversions to the native conventions (docs/conventions.md): poses, time and depth."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.spatial.transform import Rotation

from hdvpd.basics.types import Bool, Float, Int
from hdvpd.data.pinhole import AXES, invert_pose

Direction = Literal["camera-to-world", "world-to-camera"]

MAX_OFFSET = 0.25
"""How far the nearest frame may be from a control step, as a share of the step."""

MIN_PLAUSIBLE_M = 0.02
MAX_PLAUSIBLE_M = 20.0


@dataclass(frozen=True)
class PoseReading:
    """What a recorded pose of a camera means.

    Attributes:
      direction: which frame it maps to which.
      axes: of the camera, a key of `AXES`.
    """

    direction: Direction
    axes: str = "opencv"

    def __str__(self) -> str:
        """Name it for people and for dataset.json."""
        return f"{self.direction} with {self.axes} axes"

    def camera_to_world(
        self, pose: Float[np.ndarray, "*batch 4 4"]
    ) -> Float[np.ndarray, "*batch 4 4"]:
        """Convert recorded poses to the native convention."""
        return (pose if self.direction == "camera-to-world" else invert_pose(pose)) @ AXES[
            self.axes
        ]


def pose_from_quaternion(
    values: Float[np.ndarray, "*batch 7"], order: Literal["wxyz", "xyzw"]
) -> Float[np.ndarray, "*batch 4 4"]:
    """Build poses from positions and quaternions.

    Args:
      values: x, y, z [m], then the quaternion; its length does not matter.
      order: of the quaternion's components.

    Returns:
      4x4 poses; not finite where a quaternion is zero or not finite.
    """
    quaternion = values[..., 3:].reshape(-1, 4).astype(np.float64)
    known = np.isfinite(quaternion).all(axis=1) & quaternion.any(axis=1)
    rotation = np.full((len(quaternion), 3, 3), np.nan)
    rotation[known] = Rotation.from_quat(
        quaternion[known], scalar_first=order == "wxyz"
    ).as_matrix()
    pose = np.zeros((*values.shape[:-1], 4, 4))
    pose[..., :3, :3] = rotation.reshape(*values.shape[:-1], 3, 3)
    pose[..., :3, 3] = values[..., :3]
    pose[..., 3, 3] = 1.0
    return pose


def nearest_rows(
    time_s: Float[np.ndarray, "f"], step_s: float
) -> tuple[Int[np.ndarray, "t"], Float[np.ndarray, "t"]]:
    """Pick the recorded frame nearest to every control step; nothing is blended.

    Args:
      time_s: strictly increasing time stamps [s].
      step_s: control step [s]; steps are counted from the first frame.

    Returns:
      Rows, and how far each lies from its step [s].
    """
    # A last step that lies a little beyond the last frame still has one near enough.
    steps = int(np.floor((time_s[-1] - time_s[0]) / step_s + MAX_OFFSET)) + 1
    grid = time_s[0] + step_s * np.arange(steps)
    if len(time_s) == 1:
        return np.zeros(steps, np.int64), time_s - grid
    after = np.clip(np.searchsorted(time_s, grid), 1, len(time_s) - 1)
    rows = np.where(time_s[after] - grid < grid - time_s[after - 1], after, after - 1)
    return rows.astype(np.int64), time_s[rows] - grid


def commanded_rows(rows: Int[np.ndarray, "t"]) -> Int[np.ndarray, "t"]:
    """Say which recorded command leads to the next control step.

    Row r of a recording is commanded from its frame r to r + 1. What holds at the end of a control
    step, the last command before the next picked frame, is the native target.

    Returns:
      Rows of the commands; the last repeats the one before.
    """
    if len(rows) == 1:
        return rows
    following = rows[1:] - 1
    return np.concatenate([following, following[-1:]])


def next_rows(rows: Int[np.ndarray, "t"]) -> Int[np.ndarray, "t"]:
    """Say which picked frame follows each, the last itself: it stands in for missing commands."""
    if len(rows) == 1:
        return rows
    return np.concatenate([rows[1:], rows[-1:]])


def metric_depth(depth: np.ndarray, unit_m: float) -> Float[np.ndarray, "h w"]:
    """Convert stored depth to metres with 0 for every invalid pixel.

    Args:
      depth: as stored, of any number type.
      unit_m: metres per stored unit.

    Returns:
      float32; NaN, infinite and negative values became 0.
    """
    with np.errstate(over="ignore"):  # infinite is invalid
        depth_m = depth.astype(np.float32)
    if unit_m != 1.0:
        depth_m *= np.float32(unit_m)
    return np.where(valid_depth(depth_m), depth_m, np.float32(0))


def depth_of_codes(
    near_m: float, far_m: float, shift_m: float, *, logarithmic: bool
) -> Float[np.ndarray, "n"]:
    """Tabulate the depth of every 12-bit code of quantised depth, as LeRobot's videos hold it.

    Logarithmic codes are evenly spaced in ln(depth + shift), linear ones in depth. LeRobot decodes
    code 0 as the nearest depth; here it is invalid, because pixels without depth get it.

    Args:
      near_m: depth of code 0 [m].
      far_m: depth of the last code [m].
      shift_m: added before the logarithm [m]; unused by linear codes.
      logarithmic: whether codes are.

    Returns:
      Depth by code [m], float32; 0 for code 0.
    """
    share = np.arange(4096) / 4095
    if logarithmic:
        low, high = np.log(near_m + shift_m), np.log(far_m + shift_m)
        depth = np.exp(low + share * (high - low)) - shift_m
    else:
        depth = near_m + share * (far_m - near_m)
    depth = np.clip(depth, near_m, far_m)
    depth[0] = 0.0
    return depth.astype(np.float32)


def valid_depth(depth_m: Float[np.ndarray, "*batch"]) -> Bool[np.ndarray, "*batch"]:
    """Say where depth is known: finite and positive."""
    with np.errstate(invalid="ignore"):
        return np.isfinite(depth_m) & (depth_m > 0)


def implausible_depth(depth_m: Float[np.ndarray, "h w"]) -> str:
    """Recognise depth of a wrong unit, and OpenGL buffers, in one image of a manipulation scene.

    Args:
      depth_m: metres, or so the source says; 0 is invalid.

    Returns:
      What is wrong and the remedy; empty if nothing is.
    """
    known = depth_m[depth_m > 0]
    if not known.size:
        return ""
    low, high = float(known.min()), float(known.max())
    if high <= 1.0 and low > 0.9:
        return (
            f"all depth lies between {low:.4f} and 1: this is an OpenGL depth buffer, not "
            "metres. Convert it with z = near / (1 - d * (1 - near / far)), where near and far "
            "are znear * extent and zfar * extent of the simulator's model"
        )
    if low >= MIN_PLAUSIBLE_M and high <= MAX_PLAUSIBLE_M:  # and so the median, which is slow
        return ""
    median = float(np.median(known))
    if median > MAX_PLAUSIBLE_M:
        return (
            f"the median depth is {median:.4g} m, farther than any table-top scene. If the source "
            "stores millimetres, give --depth-unit-m 0.001"
        )
    if median < MIN_PLAUSIBLE_M:
        return (
            f"the median depth is {median:.4g} m, nearer than any table-top scene. If the source "
            "stores metres, give --depth-unit-m 1"
        )
    return ""
