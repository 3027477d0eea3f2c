"""Trials in the simulator: a start to plan from, and what plans truly lead to there.

A trial is a pure function of its seed. The arm has come to the object and stands before it: two
frames are observed, then joint targets decide what happens.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Camera, Float, UInt8
from hdvpd.data.robot import Robot
from hdvpd.data.simulation import bimanual, clip, scene
from hdvpd.planning.skills import AbstractSkill, Grasp, Push, turned
from hdvpd.world.base import World
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
        states, _ = self._followed(targets)
        return None if states is None else _object_poses(self.task, self.model, states[1:])

    def advanced(self, targets: Float[np.ndarray, "s j"]) -> "Trial | None":
        """Follow joint targets and observe the last two frames; None if the arms touch.

        The same trial, later: this one stays as it is.
        """
        states, simulation = self._followed(targets)
        if states is None:
            return None
        return dataclasses.replace(
            self,
            state=clip.full_state(self.model, simulation),
            command=np.asarray(targets[-1], np.float64),
            **_observed(self.task, self.model, states[-2:], self.size),
        )

    def images(self, targets: Float[np.ndarray, "s j"]) -> tuple[np.ndarray, np.ndarray] | None:
        """Render every step of a plan: colours (s v h w 3) and depth [m]; None as in `execute`."""
        states, _ = self._followed(targets)
        return None if states is None else clip.render(self.model, states[1:], self.size)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images [px]."""
        return self.rgb.shape[2], self.rgb.shape[3]

    def _followed(self, targets: Float[np.ndarray, "s j"]) -> tuple[np.ndarray | None, Any]:
        simulation = clip.restored(self.model, self.state)
        path = np.concatenate([self.command[None], targets])
        return clip.follow(self.model, simulation, path), simulation


def _object_poses(task: str, model: Any, states: np.ndarray) -> Float[np.ndarray, "f 4 4"]:
    names = scene.object_names(task)[:1]
    return clip.frame_poses(model, states, names)[:, 0].astype(np.float64)


def _observed(task: str, model: Any, frames: np.ndarray, size: tuple[int, int]) -> dict[str, Any]:
    """Return what two frames show, by the names of a trial's attributes."""
    rgb, depth_m = clip.render(model, frames, size)
    return {
        "rgb": rgb,
        "depth_m": depth_m,
        "joints": frames[:, clip.joint_addresses(model)].astype(np.float32),
        "object_to_world": _object_poses(task, model, frames[-1:])[0],
    }


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
    cameras = {}
    for view, name in enumerate(scene.CAMERAS):
        intrinsics, pose = clip.camera_parameters(drawn.model, view, size)
        cameras[name] = Camera(intrinsics.astype(np.float32), pose.astype(np.float32))
    return Trial(
        task=task,
        arm="R_tcp" if drawn.draw.object_xy[1] < 0 else "L_tcp",
        model=drawn.model,
        state=clip.full_state(drawn.model, simulation),
        cameras=cameras,
        command=drawn.path[last],
        **_observed(task, drawn.model, states[-2:], size),
    )


def simulated_robot() -> Robot:
    """Return the kinematics of the simulated arms, as data sets of them carry it."""
    return Robot(bimanual.robot(), Path("robot.json"))


def require_simulated(world: World, trial: Trial) -> None:
    """Require that a model is of the simulated robot and cameras.

    Raises:
      UserError: its robot has other joints, or no such tool.
    """
    robot = world.robot
    if robot.joints != scene.joint_names() or trial.arm not in robot.links:
        raise UserError(
            f"The run {world.folder} is of a robot with the joints {', '.join(robot.joints)}, not "
            "of the simulated arms: plan for it in Python, as docs/planning.md shows, or give a "
            "run that was trained on `hdvpd data simulate`."
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
            return np.asarray(before[2] - after[..., 2])
        return np.asarray(np.linalg.norm(after[..., :2] - self.goal, axis=-1))

    def succeeds(self, cost: Float[np.ndarray, "*batch"]) -> Any:
        """Say whether a block is within 3 cm of its goal, or a can risen by 8 cm."""
        return cost <= (-0.08 if self.task == "can" else 0.03)


def draw_outcome(trial: Trial, tool: Float[np.ndarray, "3"], rng: np.random.Generator) -> Outcome:
    """Draw a goal that a push from where the tool stands can roughly reach."""
    direction = turned(trial.object_to_world[:2, 3] - tool[:2], rng.normal(0, 0.3))
    return Outcome(trial.task, trial.object_to_world[:2, 3] + rng.uniform(0.06, 0.16) * direction)


def skill(
    trial: Trial, robot: Robot, horizon: int, centre: Float[np.ndarray, "3"]
) -> AbstractSkill:
    """Return the plans of a trial's task.

    Args:
      trial: the start.
      robot: of the simulated scene.
      horizon: control steps, at least 4.
      centre: where the object is thought to be [m].
    """
    x, y, z = (float(value) for value in centre)
    common: dict[str, Any] = {"link": trial.arm, "centre": (x, y, z)}
    if trial.task == "push":
        return Push(robot, horizon, **common)
    return Grasp(robot, horizon, joint=f"{trial.arm[0]}_grip", **common)


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
    space = skill(trial, robot, horizon, trial.object_to_world[:3, 3])
    return space.targets_from(trial.command, mixed(space, count, rng))


def mixed(space: AbstractSkill, count: int, rng: np.random.Generator) -> Float[np.ndarray, "k 1 d"]:
    """Draw candidates of mixed quality: about as many meet the object well as badly."""
    candidates = rng.uniform(-1, 1, (count, 1, space.variables))
    if isinstance(space, Grasp):
        precise, closed = rng.random(count) < 0.4, rng.random(count) < 0.75
        offsets = np.where(precise, 0.1, 0.5)[:, None] * rng.standard_normal((count, 2))
        candidates[:, 0, :2] = np.clip(offsets, -1, 1)
        candidates[:, 0, 2] = np.where(closed, 1.0, -1.0)
    else:
        candidates[:, 0, 0] = np.clip(rng.normal(0, 0.5, count), -1, 1)
    return candidates
