"""What the two simulated arms do: way-points of a task, the reach rule, inverse kinematics.

A plan is drawn in tool space and accepted only if every way-point lies within reach: damped least
squares saturates silently beyond it. With the gripper down the wrist centre is `WRIST_HEIGHT` above
the tool and the shoulder at `SHOULDER_HEIGHT` above the base; shoulder to wrist spans 0.82 m, and
way-points up to 0.8217 m were solved where those from 0.8229 m failed, so 0.81 m is the rule.
Lengths are metres, angles radians, world frame.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data.simulation.contacts import contact_path
from hdvpd.data.simulation.scene import (
    ARMS,
    BASES,
    HAND_OFFSET,
    HOME,
    JOINTS_PER_ARM,
    LIMITS,
    OFFSETS,
    TOOL_OFFSET,
    SceneDraw,
)

REACH = 0.81
WRIST_HEIGHT = OFFSETS[6] + HAND_OFFSET + TOOL_OFFSET
SHOULDER_HEIGHT = OFFSETS[0] + OFFSETS[1]
POSITION_TOLERANCE = 2e-3
ANGLE_TOLERANCE = np.deg2rad(0.5)
TARGET_DIGITS = 6
"""Joint targets are rounded to 1e-6: results of linear algebra differ by about 1e-15 between numpy
builds, and contacts would amplify that into different images."""
_MAX_ITERATIONS = 60


@dataclass(frozen=True)
class ArmPlan:
    """Where one arm's tool is to be at every frame.

    Attributes:
      positions: of the tool centre [m].
      yaw: of the gripper, which points down [rad].
      openings: of the fingers [m].
    """

    positions: Float[np.ndarray, "f 3"]
    yaw: float
    openings: Float[np.ndarray, "f"]


def draw_plan(draw: SceneDraw, steps: int, rng: np.random.Generator) -> dict[str, ArmPlan]:
    """Draw what both arms do in a clip of some control steps: a plan by arm.

    One arm acts on the object, from the side it stands on; the other wanders.
    """
    side = 1.0 if draw.object_xy[1] < 0 else -1.0
    acting, other = ("R", "L") if side > 0 else ("L", "R")
    if draw.contact is not None and not draw.contact.lifted:
        way, yaw = contact_path(draw.contact)
    else:
        keys = {"push": _push, "sweep": _sweep}.get(draw.task, _can)
        way, yaw = keys(draw.object_xy, side, rng)
    clip_time = np.linspace(0, 1, steps + 1)
    times = [time for time, _, _ in way]
    places = np.array([place for _, place, _ in way])
    path = np.stack([np.interp(clip_time, times, places[:, i]) for i in range(3)], axis=1)
    openings = np.interp(clip_time, times, [opening for _, _, opening in way])
    plans = {acting: ArmPlan(path, yaw, openings), other: _wander(other, clip_time, rng)}
    return {arm: plans[arm] for arm in ARMS}


def within_reach(plans: dict[str, ArmPlan]) -> bool:
    """Say whether every way-point keeps the wrist within `REACH` of the shoulder."""
    for arm, plan in plans.items():
        shoulder = np.array(BASES[arm]) + [0.0, 0.0, SHOULDER_HEIGHT]
        wrist = plan.positions + np.array([[0.0, 0.0, WRIST_HEIGHT]])
        if np.linalg.norm(wrist - shoulder[None], axis=1).max() > REACH:
            return False
    return True


_WayPoints = list[tuple[float, np.ndarray, float]]


def _push(xy: np.ndarray, side: float, rng: np.random.Generator) -> tuple[_WayPoints, float]:
    direction = np.array([rng.uniform(-0.2, 0.2), side])
    direction /= np.linalg.norm(direction)
    length = rng.uniform(0.12, 0.20)
    begin, end = xy - 0.15 * direction, xy + (length - 0.07) * direction
    way = [
        (0.0, np.r_[begin, 0.30], 0.006),
        (0.2, np.r_[begin, 0.055], 0.006),
        (0.75, np.r_[end, 0.055], 0.006),
        (1.0, np.r_[end - 0.08 * direction, 0.25], 0.006),
    ]
    return way, float(np.arctan2(direction[1], direction[0]))


def _can(xy: np.ndarray, side: float, rng: np.random.Generator) -> tuple[_WayPoints, float]:
    grasp = np.r_[xy, 0.07]
    forward, sideways = rng.uniform(-0.03, 0.06), side * rng.uniform(0.0, 0.08)
    lift = grasp + np.array([forward, sideways, rng.uniform(0.12, 0.20)])
    way = [
        (0.0, grasp + np.array([0.0, 0.0, 0.17]), 0.05),
        (0.25, grasp, 0.05),
        (0.38, grasp, 0.02),
        (0.7, lift, 0.02),
        (0.78, lift, 0.05),
        (1.0, lift + np.array([0.0, 0.0, 0.08]), 0.05),
    ]
    return way, 0.0


def _sweep(xy: np.ndarray, side: float, rng: np.random.Generator) -> tuple[_WayPoints, float]:
    up = np.array([0.0, 0.0, 0.17])
    begin = np.r_[xy + np.array([0.0, -0.14 * side]), 0.045]
    end = np.r_[xy + np.array([rng.uniform(-0.04, 0.04), 0.16 * side]), 0.045]
    way = [(0.0, begin + up, 0.02), (0.2, begin, 0.02), (0.7, end, 0.02), (1.0, end + up, 0.02)]
    return way, float(np.pi / 2)


def _wander(arm: str, clip_time: np.ndarray, rng: np.random.Generator) -> ArmPlan:
    rest = np.array([-0.05, 0.30 if arm == "L" else -0.30, 0.24])
    phase, amplitude = rng.uniform(0, 2 * np.pi, 3), rng.uniform(0.02, 0.07, 3)
    periods = rng.uniform(0.5, 1.5)
    angle = 2 * np.pi * periods * clip_time[:, None] + phase[None]
    openings = 0.03 + 0.02 * np.sin(2 * np.pi * clip_time + phase[0])
    return ArmPlan(rest[None] + amplitude[None] * np.sin(angle), 0.0, openings)


def easiest_yaw(yaw: float) -> float:
    """Choose between a yaw and its half turn, which the two-fingered gripper cannot tell apart.

    At the home posture the gripper's yaw is pi; a yaw of 0 would need joint 7 beyond its limit.

    Returns:
      The one of the two nearer to the home posture [rad].
    """
    turn = (yaw - np.pi + np.pi / 2) % np.pi - np.pi / 2
    return float(np.pi + turn)


def joint_path(model: Any, plans: dict[str, ArmPlan]) -> Float[np.ndarray, "f 16"] | None:
    """Solve a plan for the joints: inverse kinematics way-point by way-point.

    Returns:
      Joint targets per frame in the order of `joint_names`, rounded to `TARGET_DIGITS`; None if a
      way-point is missed by more than the tolerances.
    """
    columns = []
    for arm in ARMS:
        plan, solver = plans[arm], _ArmSolver(model, arm)
        joints, rows = np.array(HOME), []
        yaw = easiest_yaw(plan.yaw)
        for position in plan.positions:
            joints = solver.solve(position, yaw, joints).round(TARGET_DIGITS)
            if not solver.reached(position, yaw, joints):
                return None
            rows.append(joints)
        columns += [np.array(rows), plan.openings[:, None].round(TARGET_DIGITS)]
    return np.concatenate(columns, axis=1)


class _ArmSolver:
    """Damped least squares for one arm on a private copy of the state."""

    def __init__(self, model: Any, arm: str) -> None:
        import mujoco

        self._mujoco: Any = mujoco
        self._model, self._data = model, self._mujoco.MjData(model)
        joints = [model.joint(f"{arm}_j{i + 1}") for i in range(JOINTS_PER_ARM)]
        self._positions = [int(j.qposadr[0]) for j in joints]
        self._velocities = [int(j.dofadr[0]) for j in joints]
        self._site = model.site(f"{arm}_tcp").id

    def solve(self, position: np.ndarray, yaw: float, joints: np.ndarray) -> Float[np.ndarray, "7"]:
        """Bring the tool centre to a place with the gripper down, starting from `joints`."""
        limit = np.array(LIMITS) - 0.02
        for _ in range(_MAX_ITERATIONS):
            error = self._error(position, yaw, joints)
            error[3:] *= 0.5
            if np.linalg.norm(error) < 1e-4:
                break
            jacobian = self._jacobian()
            jacobian[3:] *= 0.5
            damped = jacobian @ jacobian.T + 1e-4 * np.eye(6)
            step = jacobian.T @ np.linalg.solve(damped, error)
            null_space = np.eye(JOINTS_PER_ARM) - np.linalg.pinv(jacobian) @ jacobian
            step += 0.05 * null_space @ (np.array(HOME) - joints)
            joints = np.clip(joints + np.clip(step, -0.3, 0.3), -limit, limit)
        return joints

    def reached(self, position: np.ndarray, yaw: float, joints: np.ndarray) -> bool:
        """Say whether the joints bring the tool to the place within the tolerances."""
        error = self._error(position, yaw, joints)
        return bool(
            np.linalg.norm(error[:3]) < POSITION_TOLERANCE
            and np.linalg.norm(error[3:]) < ANGLE_TOLERANCE
        )

    def _error(self, position: np.ndarray, yaw: float, joints: np.ndarray) -> np.ndarray:
        mj, data = self._mujoco, self._data
        data.qpos[self._positions] = joints
        mj.mj_kinematics(self._model, data)
        cos, sin = np.cos(yaw), np.sin(yaw)
        wanted = np.array([cos, sin, 0, sin, -cos, 0, 0, 0, -1.0])
        goal, current, inverse, between = (np.zeros(4) for _ in range(4))
        rotation = np.zeros(3)
        mj.mju_mat2Quat(goal, wanted)
        mj.mju_mat2Quat(current, data.site_xmat[self._site])
        mj.mju_negQuat(inverse, current)
        mj.mju_mulQuat(between, goal, inverse)
        mj.mju_quat2Vel(rotation, between, 1.0)
        return np.r_[position - data.site_xpos[self._site], rotation]

    def _jacobian(self) -> np.ndarray:
        linear, angular = np.zeros((3, self._model.nv)), np.zeros((3, self._model.nv))
        self._mujoco.mj_comPos(self._model, self._data)
        self._mujoco.mj_jacSite(self._model, self._data, linear, angular, self._site)
        return np.concatenate([linear, angular])[:, self._velocities]
