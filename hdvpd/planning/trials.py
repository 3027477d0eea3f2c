"""Trials in the simulator: a start to plan from, and what plans truly lead to there.

A trial is a pure function of its seed. The arm has come to the object and stands before it: two
frames are observed, then joint targets decide what happens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdvpd.data.robot import Robot
from hdvpd.data.simulation import clip, scene
from hdvpd.errors import UserError
from hdvpd.planning.spaces import follow
from hdvpd.types import Camera, Float, UInt8
from hdvpd.world.state import Place

TASKS = ("push", "can")
RATE_STEPS = 20
"""Control steps of the clip that a start is cut from; its way-points follow its share of time."""
ARRIVED = {"push": 4, "can": 3}
"""Frame at which the tool stands before the block, or open above the can."""
MARGIN_M = 0.01


@dataclass(frozen=True)
class Trial:
    """One start.

    Attributes:
      task: push or can.
      arm: the tool's frame of the acting arm.
      model: compiled MuJoCo model of the scene.
      state: MuJoCo's full state at the last observed frame.
      rgb: of the two observed frames.
      depth_m: of the two observed frames [m].
      cameras: by name.
      joints: measured at the two observed frames, in the order of the data.
      command: joint targets of the last observed frame.
      object_to_world: pose of the object at the last observed frame [m].
    """

    task: str
    arm: str
    model: Any
    state: Float[np.ndarray, "z"]
    rgb: UInt8[np.ndarray, "2 v h w 3"]
    depth_m: Float[np.ndarray, "2 v h w"]
    cameras: Mapping[str, Camera]
    joints: Float[np.ndarray, "2 j"]
    command: Float[np.ndarray, "j"]
    object_to_world: Float[np.ndarray, "4 4"]

    @property
    def place(self) -> Place:
        """Where the object lies, as a mask of it would say."""
        shape, pose = scene.object_shape(scene.object_names(self.task)[0]), self.object_to_world

        def on_object(positions: Float[np.ndarray, "n 3"]) -> Any:
            local = (positions - pose[None, :3, 3]) @ pose[:3, :3]
            return shape.distance(local) <= MARGIN_M

        return on_object

    def execute(self, targets: Float[np.ndarray, "s j"]) -> Float[np.ndarray, "s 4 4"] | None:
        """Follow joint targets in the simulator.

        Returns:
          Poses of the object after every step [m]; None if the arms touch each other.
        """
        simulation = clip.restored(self.model, self.state)
        path = np.concatenate([self.command[None], targets])
        states = clip.follow(self.model, simulation, path)
        if states is None:
            return None
        names = scene.object_names(self.task)[:1]
        return clip.frame_poses(self.model, states[1:], names)[:, 0].astype(np.float64)


def begin_trial(task: str, size: tuple[int, int], seed: Sequence[int]) -> Trial:
    """Simulate a start.

    Args:
      task: push or can.
      size: height and width of the images [px].
      seed: numbers that decide everything.

    Raises:
      UserError: there is no such task, or MuJoCo or its rendering is missing.
    """
    if task not in TASKS:
        raise UserError(f"--task {task}: plans are made for {' and '.join(TASKS)}.")
    drawn = clip.simulate_clip(task, steps=RATE_STEPS, size=size, seed=seed)
    last = ARRIVED[task]
    # Again from the beginning: a clip keeps positions, and going on needs velocities too.
    simulation = clip.settle(drawn.model, drawn.path[0])
    states = clip.follow(drawn.model, simulation, drawn.path[: last + 1])
    if states is None:
        raise RuntimeError("the arms touch in a repetition of a clip in which they do not")
    frames = states[-2:]
    rgb, depth_m = clip.render(drawn.model, frames, size)
    poses = clip.frame_poses(drawn.model, frames[-1:], scene.object_names(task)[:1])
    cameras = {}
    for view, name in enumerate(scene.CAMERAS):
        intrinsics, pose = clip.camera_parameters(drawn.model, view, size)
        cameras[name] = Camera(intrinsics.astype(np.float32), pose.astype(np.float32))
    return Trial(
        task=task,
        arm="R_tcp" if drawn.draw.object_xy[1] < 0 else "L_tcp",
        model=drawn.model,
        state=clip.full_state(drawn.model, simulation),
        rgb=rgb,
        depth_m=depth_m,
        cameras=cameras,
        joints=frames[:, clip.joint_addresses(drawn.model)].astype(np.float32),
        command=drawn.path[last],
        object_to_world=poses[0, 0].astype(np.float64),
    )


@dataclass(frozen=True)
class Outcome:
    """What counts in a task, from poses of the object or from points on it.

    Attributes:
      task: push or can.
      goal: where the block's centre should go (x, y) [m].
    """

    task: str
    goal: Float[np.ndarray, "2"]

    def cost(
        self, before: Float[np.ndarray, "3"], after: Float[np.ndarray, "*batch 3"]
    ) -> Float[np.ndarray, "*batch"]:
        """Return the block's distance from its goal, or minus the can's rise [m]."""
        if self.task == "can":
            return before[2] - after[..., 2]
        return np.linalg.norm(after[..., :2] - self.goal, axis=-1)

    def succeeds(self, cost: Float[np.ndarray, "*batch"]) -> Any:
        """Say whether a block is within 3 cm of its goal, or a can risen by 8 cm."""
        return cost <= (-0.08 if self.task == "can" else 0.03)


def draw_outcome(trial: Trial, tool: Float[np.ndarray, "3"], rng: np.random.Generator) -> Outcome:
    """Draw a goal that a push from where the tool stands can roughly reach."""
    direction = _turned(trial.object_to_world[:2, 3] - tool[:2], rng.normal(0, 0.3))
    return Outcome(trial.task, trial.object_to_world[:2, 3] + rng.uniform(0.06, 0.16) * direction)


def propose(
    trial: Trial, robot: Robot, count: int, horizon: int, rng: np.random.Generator
) -> Float[np.ndarray, "k s j"]:
    """Draw plans of mixed quality: some meet the object well, some badly, some not at all.

    Args:
      trial: the start.
      robot: of the simulated scene.
      count: plans.
      horizon: control steps, at least 4.
      rng: draws them.
    """
    now = trial.command.astype(np.float64)
    pose = robot.link_poses(now[None])[0, robot.links.index(trial.arm)]
    grip = robot.joints.index(f"{trial.arm[0]}_grip")
    plans = []
    for _ in range(count):
        way = _push_way if trial.task == "push" else _can_way
        times, places, openings = way(trial.object_to_world[:3, 3], pose[:3, 3], horizon, rng)
        steps = np.arange(1, horizon + 1)
        path = np.stack([np.interp(steps, times, axis) for axis in np.transpose(places)], axis=1)
        joints = follow(robot, trial.arm, pose, path, now)
        if openings is not None:
            joints[:, grip] = np.interp(steps, times, openings)
        plans.append(joints)
    return np.stack(plans)


_Way = tuple[Sequence[float], Sequence[np.ndarray], Sequence[float] | None]


def _push_way(centre: np.ndarray, tool: np.ndarray, horizon: int, rng: np.random.Generator) -> _Way:
    direction = _turned(centre[:2] - tool[:2], rng.normal(0, 0.5))
    aside = rng.uniform(-0.07, 0.07) * np.array([-direction[1], direction[0]])
    begin = centre[:2] - 0.13 * direction + aside
    end = begin + (0.06 + rng.uniform(0, 0.2)) * direction
    places = [tool, np.r_[begin, tool[2]], np.r_[end, tool[2]]]
    return [0.0, 2.0, float(horizon)], places, None


def _can_way(centre: np.ndarray, tool: np.ndarray, horizon: int, rng: np.random.Generator) -> _Way:
    scale = 0.008 if rng.random() < 0.4 else 0.04
    grasp = np.r_[centre[:2] + rng.normal(0, scale, 2), 0.07]
    closed = 0.02 if rng.random() < 0.75 else 0.05
    lift = grasp + [0.0, 0.0, rng.uniform(0.0, 0.2)]
    return [0.0, 2.0, 3.0, float(horizon)], [tool, grasp, grasp, lift], [0.05, 0.05, closed, closed]


def _turned(vector: np.ndarray, angle: float) -> np.ndarray:
    cos, sin = np.cos(angle), np.sin(angle)
    return np.array([[cos, -sin], [sin, cos]]) @ (vector / np.linalg.norm(vector))
