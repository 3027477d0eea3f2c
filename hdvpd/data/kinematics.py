"""Kinematic points: where the robot is and is told to go, from the poses of its links.

Forward kinematics itself is done once, when a data set is written; what is stored are link poses
at the measured and at the commanded joints. Here they become the points that condition the
dynamics: chosen link origins, then evenly spaced points between the two ends of every segment.
For the two simulated arms that makes 84 points (2 x (7 joint origins + tool centre + 2 fingertips +
4 points on each of 8 segments)). Lengths are metres, world frame.
"""

from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Array, Float, RobotPoints

POINTS_PER_SEGMENT = 4
"""Points strictly between the ends of a segment (a few centimetres apart on an arm)."""


@dataclass(frozen=True)
class Skeleton:
    """Which links become kinematic points, as indices into the links and joints of a robot.

    Attributes:
      points: links whose origins are points, in this order.
      segments: pairs of links; each gives `POINTS_PER_SEGMENT` points between them, after the
        link origins and segment by segment, from the first link towards the second.
      grippers: for every point, interior ones included, the joint that is the opening of its
        arm's gripper, or -1 where the arm has none.
      gripper_units: for every point the unit in which that joint's value is of order one.
    """

    points: tuple[int, ...]
    segments: tuple[tuple[int, int], ...]
    grippers: tuple[int, ...]
    gripper_units: tuple[float, ...]

    @property
    def num_points(self) -> int:
        """Kinematic points per time step, P."""
        return len(self.points) + POINTS_PER_SEGMENT * len(self.segments)

    @property
    def links(self) -> tuple[int, ...]:
        """For every point the link in whose axes its surroundings stay the same.

        That is its own, or the first of its segment.
        """
        first = (a for a, _ in self.segments for _ in range(POINTS_PER_SEGMENT))
        return (*self.points, *first)


def robot_points(
    link_to_world: Float[Array, "*batch l 4 4"],
    joints: Float[Array, "*batch j"],
    skeleton: Skeleton,
) -> RobotPoints:
    """Place the kinematic points of a robot, measured or commanded.

    Args:
      link_to_world: poses of the links [m].
      joints: see `point_grippers`.
      skeleton: which of them become points.
    """
    poses = np.asarray(link_to_world, np.float32)
    return RobotPoints(
        positions=np.asarray(kinematic_points(poses[..., :3, 3], skeleton)),
        axes=poses[..., skeleton.links, :3, :3],
        gripper=np.asarray(point_grippers(np.asarray(joints, np.float32), skeleton)),
    )


def kinematic_points(
    link_positions: Float[Array, "*batch l 3"], skeleton: Skeleton
) -> Float[Array, "*batch p 3"]:
    """Place the kinematic points of a robot whose links are known.

    Returns:
      Positions [m] of link origins, then of the points between them.
    """
    xp = link_positions.__array_namespace__()
    origins = xp.take(link_positions, xp.asarray(skeleton.points, dtype="int32"), axis=-2)
    if not skeleton.segments:
        return origins
    first = xp.asarray([a for a, _ in skeleton.segments], dtype="int32")
    second = xp.asarray([b for _, b in skeleton.segments], dtype="int32")
    start = xp.take(link_positions, first, axis=-2)[..., :, None, :]
    end = xp.take(link_positions, second, axis=-2)[..., :, None, :]
    fractions = xp.arange(1, POINTS_PER_SEGMENT + 1, dtype=start.dtype) / (POINTS_PER_SEGMENT + 1)
    fractions = fractions.astype(start.dtype).reshape((1,) * (start.ndim - 2) + (-1, 1))
    between = start + fractions * (end - start)
    between = between.reshape((*link_positions.shape[:-2], -1, 3))
    return xp.concatenate([origins, between], axis=-2)


def point_grippers(
    joints: Float[Array, "*batch j"], skeleton: Skeleton
) -> Float[Array, "*batch p"]:
    """Return for every kinematic point the opening of its arm's gripper.

    Args:
      joints: joint values, measured or commanded; gripper openings are among them.
      skeleton: which joint is the gripper of which point, and its unit.

    Returns:
      Openings over their unit; 0 for points of an arm without a gripper.
    """
    xp = joints.__array_namespace__()
    padded = xp.concatenate([joints, xp.zeros_like(joints[..., :1])], axis=-1)
    nothing = joints.shape[-1]
    index = [nothing if gripper < 0 else gripper for gripper in skeleton.grippers]
    openings = xp.take(padded, xp.asarray(index, dtype="int32"), axis=-1)
    units = xp.asarray(skeleton.gripper_units, dtype=joints.dtype)
    return openings / units.reshape((1,) * (joints.ndim - 1) + (-1,))
