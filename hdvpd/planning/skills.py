"""Spaces of plans about one object: push it, or grasp and lift it.

A plan is a way of the tool, which keeps its orientation, with an opening of the gripper: a few
numbers that mean something, so that few candidates suffice. Any robot with a tool link can push;
one whose gripper is a joint can grasp.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.config.settings import Count, require
from hdvpd.planning.inverse_kinematics import link_number
from hdvpd.planning.limits import AmountOrZero, Corner
from hdvpd.planning.spaces import AbstractSpace, follow, present_joints
from hdvpd.world.state import State

REACH_STEPS = 2
"""Control steps until the tool stands where it meets the object."""
STANDOFF_M = 0.13
"""Distance between tool and object's centre at which a push begins."""


class Way(NamedTuple):
    """Where a tool is to be, linear in between.

    Attributes:
      times: control steps from now; the first is 0.
      places: of the tool at these [m].
      openings: of the gripper at these, in its joint's unit, or None where it stays.
    """

    times: Sequence[float]
    places: Sequence[Float[np.ndarray, "3"]]
    openings: Sequence[float] | None


@dataclass(frozen=True)
class AbstractSkill(AbstractSpace):
    """Plans about an object; a candidate has one knot, whose variables describe the way.

    Attributes:
      link: of the robot, its tool centre.
      centre: of the object now [m].
    """

    knots: Count = 1
    link: str = ""
    centre: Corner = (0.0, 0.0, 0.0)

    def check(self) -> None:
        """Require one knot, and steps enough to come to the object and act on it."""
        require(self.knots == 1, "knots", self.knots, "leave it out, a skill has one knot")
        least = REACH_STEPS + 2
        require(
            self.horizon >= least, "horizon", self.horizon, f"use {least} or more control steps"
        )

    @abstractmethod
    def way(self, tool: Float[np.ndarray, "3"], variables: Float[np.ndarray, "d"]) -> Way:
        """Return the way that variables in [-1, 1] describe, from where the tool is [m]."""

    @property
    def gripper(self) -> str:
        """Name of the joint that opens the gripper; empty if the skill leaves it alone."""
        return ""

    def joint_targets(
        self, state: State, candidates: Float[np.ndarray, "k q d"]
    ) -> Float[np.ndarray, "k s j"]:
        """Solve the inverse kinematics along each way; what is out of reach is approached."""
        return self.targets_from(present_joints(state), candidates)

    def targets_from(
        self, joints: Float[np.ndarray, "j"], candidates: Float[np.ndarray, "k q d"]
    ) -> Float[np.ndarray, "k s j"]:
        """Do the same from given joints."""
        joints = np.asarray(joints, np.float64)
        pose = self.robot.link_poses(joints[None])[0, link_number(self.robot, self.link)]
        column = self._gripper_column()
        steps, plans = np.arange(1, self.horizon + 1), []
        for candidate in candidates:
            way = self.way(pose[:3, 3], candidate[0])
            axes = np.transpose(way.places)
            path = np.stack([np.interp(steps, way.times, axis) for axis in axes], axis=1)
            plan = follow(self.robot, self.link, pose, path, joints)
            if column is not None and way.openings is not None:
                low, high = self.robot.limits[column]
                plan[:, column] = np.clip(np.interp(steps, way.times, way.openings), low, high)
            plans.append(plan)
        return np.stack(plans)

    def _gripper_column(self) -> int | None:
        if not self.gripper:
            return None
        if self.gripper not in self.robot.joints:
            raise UserError(
                f"The robot has no joint {self.gripper!r} to grasp with; it has "
                f"{', '.join(self.robot.joints)}."
            )
        return self.robot.joints.index(self.gripper)


@dataclass(frozen=True)
class Push(AbstractSkill):
    """Pushes: the tool comes before the object and goes straight on, at the height it has.

    The variables are the direction (up to 1 rad from that of tool to object), how far beside the
    centre the tool passes (up to 7 cm) and how far it goes (6 to 26 cm).
    """

    @property
    def variables(self) -> int:
        """Direction, offset and length."""
        return 3

    def way(self, tool: Float[np.ndarray, "3"], variables: Float[np.ndarray, "d"]) -> Way:
        """Return the way of one push."""
        centre, (angle, aside, length) = np.asarray(self.centre)[:2], variables
        towards = centre - tool[:2]
        distance = float(np.linalg.norm(towards))
        direction = turned(towards, float(angle))
        across = 0.07 * aside * np.array([-direction[1], direction[0]])
        # A push under way goes on; it does not draw back first.
        begin = centre - min(STANDOFF_M, max(distance, 1e-3)) * direction + across
        end = begin + (0.16 + 0.1 * length) * direction
        places = [tool, np.r_[begin, tool[2]], np.r_[end, tool[2]]]
        return Way([0.0, REACH_STEPS, float(self.horizon)], places, None)


@dataclass(frozen=True)
class Grasp(AbstractSkill):
    """Grasps from above: the tool goes down to the object, closes, and lifts.

    The variables are where it grasps (up to 8 cm beside the centre in x and y), how far it closes,
    and how high it lifts.

    Attributes:
      joint: that opens the gripper.
      height: of the tool when it grasps [m].
      openings: when open and when closed as far as may be, in the joint's unit.
      lift: the most that is lifted [m].
    """

    joint: str = ""
    height: float = 0.07
    openings: tuple[float, float] = (0.05, 0.02)
    lift: AmountOrZero = 0.2

    @property
    def variables(self) -> int:
        """Two offsets, closing and lift."""
        return 4

    @property
    def gripper(self) -> str:
        """The joint that opens the gripper."""
        return self.joint

    def way(self, tool: Float[np.ndarray, "3"], variables: Float[np.ndarray, "d"]) -> Way:
        """Return the way of one grasp."""
        aside, (closing, lift) = variables[:2], (variables[2:] + 1) / 2
        grasp = np.r_[np.asarray(self.centre)[:2] + 0.08 * aside, self.height]
        opened, tight = self.openings
        closed = opened + closing * (tight - opened)
        up = grasp + [0.0, 0.0, self.lift * lift]
        times = [0.0, REACH_STEPS, REACH_STEPS + 1.0, float(self.horizon)]
        return Way(times, [tool, grasp, grasp, up], [opened, opened, closed, closed])


def turned(vector: Float[np.ndarray, "2"], angle: float) -> Float[np.ndarray, "2"]:
    """Return the direction of a vector, turned by an angle [rad]; that of x for no vector."""
    length = float(np.linalg.norm(vector))
    unit = vector / length if length > 1e-9 else np.array([1.0, 0.0])
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin], [sin, cos]]) @ unit
