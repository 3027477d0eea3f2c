"""Spaces of plans: from a solver's normalised variables to joint targets of every step."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.config.settings import Count, Settings, require
from hdvpd.data.robot import Robot
from hdvpd.planning.inverse_kinematics import link_number, solve_pose
from hdvpd.planning.limits import Amount, Corner
from hdvpd.world.state import State


@dataclass(frozen=True)
class AbstractSpace(Settings):
    """Plans that can be expressed.

    A plan passes through knots that are evenly spread over the horizon, the last at its end; in
    between it is linear, as a robot's own controller interpolates.

    Attributes:
      robot: that moves.
      horizon: control steps of a plan.
      knots: points in time at which the solver decides.
    """

    robot: Robot
    horizon: Count
    knots: Count

    @property
    @abstractmethod
    def variables(self) -> int:
        """Decision variables per knot."""

    @abstractmethod
    def joint_targets(
        self, state: State, candidates: Float[np.ndarray, "k q d"]
    ) -> Float[np.ndarray, "k s j"]:
        """Turn candidates in [-1, 1] into joint targets within the robot's limits."""

    def interpolate(
        self, first: Float[np.ndarray, "d"], values: Float[np.ndarray, "k q d"]
    ) -> Float[np.ndarray, "k s d"]:
        """Lead from the present value through the knots, one row per control step."""
        ends = np.linspace(0, self.horizon, self.knots + 1)
        steps = np.arange(1, self.horizon + 1)
        upper = np.clip(np.searchsorted(ends, steps), 1, self.knots)
        share = (steps - ends[upper - 1]) / (ends[upper] - ends[upper - 1])
        starts = np.broadcast_to(first[None, None], (len(values), 1, values.shape[-1]))
        path = np.concatenate([starts, values], axis=1)
        before, after = path[:, upper - 1], path[:, upper]
        return before + share[None, :, None] * (after - before)


def present_joints(state: State) -> Float[np.ndarray, "j"]:
    """Return the measured joints of a state's last step.

    Raises:
      UserError: they are not known.
    """
    if state.joints is None:
        raise UserError("This state does not know the robot's joints, so no plan can start there.")
    return np.asarray(state.joints[-1], np.float64)


@dataclass(frozen=True)
class JointKnots(AbstractSpace):
    """Plans in joints: every knot says how far each joint goes from where it is now.

    Attributes:
      reach: how far a joint may go within the horizon, in its unit; limits of the robot hold too.
      joints: names of those that move; empty means all.
    """

    reach: Amount = 0.5
    joints: tuple[str, ...] = ()

    @property
    def variables(self) -> int:
        """One per joint that moves."""
        return len(self._columns)

    @property
    def _columns(self) -> list[int]:
        for name in self.joints:
            if name not in self.robot.joints:
                raise UserError(
                    f"The robot has no joint {name!r}; it has {', '.join(self.robot.joints)}."
                )
        chosen = self.joints or self.robot.joints
        return [self.robot.joints.index(name) for name in chosen]

    def joint_targets(
        self, state: State, candidates: Float[np.ndarray, "k q d"]
    ) -> Float[np.ndarray, "k s j"]:
        """Move the chosen joints; the others stay, at their limit if they are beyond it."""
        low, high = self.robot.limits.T
        # Sensors read beyond limits, where the first targets would be refused.
        now = np.clip(present_joints(state), low, high)
        knots = np.broadcast_to(now[None, None], (*candidates.shape[:2], len(now))).copy()
        knots[..., self._columns] += self.reach * candidates
        return self.interpolate(now, np.clip(knots, low[None, None], high[None, None]))


@dataclass(frozen=True)
class ToolWaypoints(AbstractSpace):
    """Plans of a tool: every knot is a place in a box; the tool keeps its orientation.

    Attributes:
      link: of the robot, such as its tool centre.
      low: lower corner of the box [m].
      high: upper corner of the box [m].
    """

    link: str = ""
    low: Corner = (0.0, 0.0, 0.0)
    high: Corner = (0.0, 0.0, 0.0)

    def check(self) -> None:
        """Require a box; it may be flat, but in a point there is one plan alone."""
        low, high = (np.asarray(corner, np.float64) for corner in (self.low, self.high))
        good = bool((low <= high).all() and (low < high).any())
        remedy = f"use a corner beyond low = {low.tolist()}; some coordinates may be the same"
        require(good, "high", high.tolist(), remedy)

    @property
    def variables(self) -> int:
        """x, y and z."""
        return 3

    def normalised(self, places: Float[np.ndarray, "*batch 3"]) -> Float[np.ndarray, "*batch 3"]:
        """Return the variables of places [m]."""
        low, high = np.asarray(self.low), np.asarray(self.high)
        return 2 * (places - low) / np.maximum(high - low, 1e-9) - 1

    def joint_targets(
        self, state: State, candidates: Float[np.ndarray, "k q d"]
    ) -> Float[np.ndarray, "k s j"]:
        """Solve the inverse kinematics step by step; what is out of reach is approached."""
        now = present_joints(state)
        pose = self.robot.link_poses(now[None])[0, link_number(self.robot, self.link)]
        low, high = np.asarray(self.low), np.asarray(self.high)
        knots = low + (candidates + 1) / 2 * (high - low)
        paths = self.interpolate(pose[:3, 3], knots)
        targets = np.empty((*paths.shape[:2], len(now)))
        for plan, path in enumerate(paths):
            targets[plan] = follow(self.robot, self.link, pose, path, now)
        return targets


def follow(
    robot: Robot,
    link: str,
    pose: Float[np.ndarray, "4 4"],
    path: Float[np.ndarray, "s 3"],
    joints: Float[np.ndarray, "j"],
) -> Float[np.ndarray, "s j"]:
    """Return joints that bring a link along a path, step by step from given joints.

    Args:
      robot: that moves.
      link: of it.
      pose: whose orientation the link keeps.
      path: of the link [m].
      joints: to begin from; those that do not move the link stay, within their limits.
    """
    rows, wanted = [], np.array(pose, np.float64)
    for place in path:
        wanted[:3, 3] = place
        joints, _ = solve_pose(robot, link, wanted, joints)
        rows.append(joints)
    return np.stack(rows)
