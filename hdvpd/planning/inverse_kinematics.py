"""Inverse kinematics: joints that bring a link to a pose, by damped least squares.

Wampler (1986) and Nakamura & Hanafusa (1986). Jacobians are differences of the forward
kinematics, so that any robot that a data set carries can be moved.
"""

import numpy as np
from scipy.spatial.transform import Rotation

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.data.robot import Robot

_ITERATIONS = 40
_DAMPING = 1e-4
_LARGEST_STEP = 0.3
_ROTATION_WEIGHT = 0.5  # metres per radian: how much a turn counts beside a shift
_DIFFERENCE = 1e-6
_CONVERGED = 1e-4
_LARGEST_ERROR = 0.3  # a goal farther away is approached in parts (Buss & Kim, 2005)


def link_number(robot: Robot, link: str) -> int:
    """Return a link's place in link arrays.

    Raises:
      UserError: the robot has no such link.
    """
    if link not in robot.links:
        raise UserError(f"The robot has no link {link!r}; its links are {', '.join(robot.links)}.")
    return robot.links.index(link)


def solve_pose(
    robot: Robot, link: str, pose: Float[np.ndarray, "4 4"], start: Float[np.ndarray, "j"]
) -> tuple[Float[np.ndarray, "j"], float]:
    """Find joints near a start that bring a link to a pose; the others stay, within limits.

    Args:
      robot: with its limits.
      link: a link of it.
      pose: where it should be in the world [m].
      start: joints to begin from; measured ones may lie beyond their limits.

    Returns:
      The joints within the limits, and how far the link is from the place then [m]; a pose out of
      reach is approached.

    Raises:
      UserError: the robot has no such link.
    """
    number, (low, high) = link_number(robot, link), robot.limits.T
    joints = np.clip(np.asarray(start, np.float64), low, high)  # it may be what is returned
    best, least = joints, np.inf
    moving = np.arange(len(joints))  # after the first round, only those that move the link
    for _ in range(_ITERATIONS):
        moved = np.repeat(joints[None], len(moving) + 1, axis=0)
        moved[np.arange(1, len(moved)), moving] += _DIFFERENCE
        poses = robot.link_poses(moved)[:, number]
        error = _differences(poses[0], pose[None])[0]
        size = float(np.linalg.norm(error))
        if size < least:
            best, least = joints, size
        if size < _CONVERGED:
            break
        error *= min(1.0, _LARGEST_ERROR / size)
        jacobian = _differences(poses[0], poses[1:]).T / _DIFFERENCE
        damped = jacobian @ jacobian.T + _DAMPING * np.eye(6)
        step = np.zeros(len(joints))
        step[moving] = jacobian.T @ np.linalg.solve(damped, error)
        if len(moving) == len(joints):
            moving = np.flatnonzero(np.abs(jacobian).max(axis=0) > 0)
        joints = np.clip(joints + np.clip(step, -_LARGEST_STEP, _LARGEST_STEP), low, high)
    reached = robot.link_poses(best[None])[0, number]
    return best, float(np.linalg.norm(reached[:3, 3] - pose[:3, 3]))


def _differences(
    old: Float[np.ndarray, "4 4"], new: Float[np.ndarray, "k 4 4"]
) -> Float[np.ndarray, "k 6"]:
    """Return shifts and weighted rotation vectors that lead from one pose to others."""
    turns = Rotation.from_matrix(new[:, :3, :3] @ old[:3, :3].T).as_rotvec()
    return np.concatenate([new[:, :3, 3] - old[None, :3, 3], _ROTATION_WEIGHT * turns], axis=1)
