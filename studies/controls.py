"""What a model's choices are compared with: the simulator, no or given motion, chance, geometry."""

import dataclasses
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import jax
import numpy as np

from hdvpd.basics.types import Array, Float, ParticleCloud, RobotPoints
from hdvpd.data.robot import Robot
from hdvpd.data.simulation import scene
from hdvpd.encoders.particles import subsample, visible_points
from hdvpd.evaluation.controls import carry_particles
from hdvpd.planning.costs import AbstractCost, AbstractObjectCost, object_rows
from hdvpd.planning.inverse_kinematics import link_number
from hdvpd.planning.trials import Trial
from hdvpd.world.future import Future, Images
from hdvpd.world.state import State

_FAR_M = 3.0


def seen_surface(trial: Trial, robot: Robot, num_particles: int = 2048) -> State:
    """Return the surfaces that a trial's two frames show: a state without features or a model.

    Args:
      trial: whose images are taken.
      robot: whose joints were measured.
      num_particles: drawn evenly of the visible points.
    """
    clouds = []
    for frame in range(len(trial.rgb)):
        points, valid = zip(*(
            visible_points(depth_m, camera, scene.WORKSPACE_MIN, scene.WORKSPACE_MAX, _FAR_M)
            for depth_m, camera in zip(trial.depth_m[frame], trial.cameras.values(), strict=True)
        ), strict=True)  # fmt: skip
        places = np.stack(points).reshape(-1, 3)
        cloud = subsample(
            places, np.zeros((len(places), 0), np.float32), np.stack(valid).reshape(-1),
            num_particles, jax.random.key(frame), even=True,
        )  # fmt: skip
        clouds.append(jax.tree.map(np.asarray, cloud))
    return State(
        previous=clouds[0],
        current=clouds[1],
        colors=np.zeros((int(clouds[1].mask.sum()), 3), np.uint8),
        robot=robot.points(trial.joints),
        joints=trial.joints,
        cameras=trial.cameras,
        size=trial.size,
    )


def _cannot_render(*_: object) -> Images:
    raise NotImplementedError("a control predicts particles, no images")


@dataclass(frozen=True)
class AbstractControl(ABC):
    """Predicts where particles go without a model: they have no features and show no images.

    Attributes:
      robot: that the plans are of.
    """

    robot: Robot

    def rollout(
        self,
        state: State,
        joint_targets: Float[Array, "*batch j"],
        *,
        chunk: int = 1,
        features: bool = True,
    ) -> Future:
        """Predict particles without features; see `World.rollout`."""
        del chunk, features
        targets = np.asarray(joint_targets, np.float64)
        batch, (steps, joints) = targets.shape[:-2], targets.shape[-2:]
        plans, mask = targets.reshape(-1, steps, joints), np.asarray(state.current.mask)
        robot = self.robot.points(plans)
        places = np.stack([
            self.places(state, plan, jax.tree.map(lambda x, k=k: x[k], robot))
            for k, plan in enumerate(plans)
        ])  # fmt: skip
        shape = (*batch, steps, len(mask))
        robot = jax.tree.map(lambda x: x.reshape(*batch, *x.shape[1:]), robot)
        return Future(
            start=state,
            clouds=ParticleCloud(
                places.reshape(*shape, 3), np.zeros((*shape, 0), np.float32),
                np.broadcast_to(mask, shape),
            ),
            robot=robot,
            expected=robot,
            joint_targets=targets,
            kinematics=self.robot,
            render_cloud=_cannot_render,
        )  # fmt: skip

    @abstractmethod
    def places(
        self, state: State, targets: Float[np.ndarray, "s j"], points: RobotPoints
    ) -> Float[np.ndarray, "s n 3"]:
        """Say where the particles of a state are after every step of one plan [m].

        Args:
          state: to start from.
          targets: the plan.
          points: kinematic points at its targets, axes (s).
        """


@dataclass(frozen=True)
class NothingMoves(AbstractControl):
    """Predicts that every particle stays where it is."""

    def places(
        self, state: State, targets: Float[np.ndarray, "s j"], points: RobotPoints
    ) -> Float[np.ndarray, "s n 3"]:
        """Repeat the particles."""
        del points
        return _repeated(state, len(targets))


@dataclass(frozen=True)
class CarriedAlong(AbstractControl):
    """Predicts that particles near the robot go along with it, and that nothing else moves.

    Nothing of it is learned (`evaluation.controls.carry_particles`).
    """

    def places(
        self, state: State, targets: Float[np.ndarray, "s j"], points: RobotPoints
    ) -> Float[np.ndarray, "s n 3"]:
        """Carry the particles along."""
        del targets
        bare = [
            dataclasses.replace(cloud, features=np.asarray(cloud.features)[:, :0])
            for cloud in (state.previous, state.current)
        ]
        robot = jax.tree.map(lambda a, b: np.concatenate([a, b]), state.robot, points)
        return np.asarray(carry_particles(*bare, robot).positions)


@dataclass(frozen=True)
class Simulator(AbstractControl):
    """Predicts what the simulator will do to the object: the upper bound of every model.

    Particles on the object go along with it, the others stay. Those of a plan that cannot be
    executed, because the arms touch, are NaN.

    Attributes:
      trial: as it stands in the state that is rolled out.
    """

    trial: Trial

    def places(
        self, state: State, targets: Float[np.ndarray, "s j"], points: RobotPoints
    ) -> Float[np.ndarray, "s n 3"]:
        """Execute the plan."""
        del points
        places = np.array(_repeated(state, len(targets)), np.float64)
        rows = object_rows(state, self.trial.place)
        local = _moved(np.linalg.inv(self.trial.object_to_world), places[0, rows])
        poses = self.trial.execute(targets)
        places[:, rows] = np.nan if poses is None else [_moved(pose, local) for pose in poses]
        return places


def _repeated(state: State, steps: int) -> Float[np.ndarray, "s n 3"]:
    now = np.asarray(state.current.positions)
    return np.broadcast_to(now, (steps, *now.shape))


def _moved(pose: np.ndarray, points: np.ndarray) -> np.ndarray:
    return points @ pose[:3, :3].T + pose[None, :3, 3]


@dataclass(frozen=True)
class ToolDistance(AbstractObjectCost):
    """How near a link's path comes to the object's centre [m]: geometry alone, no prediction.

    Attributes:
      link: of the robot, such as its tool centre.
    """

    link: str = ""

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Return the least distance of every plan."""
        robot, targets = future.kinematics, future.joint_targets
        assert robot is not None
        assert targets is not None
        centre = future.start.current.positions[object_rows(future.start, self.place)].mean(0)
        poses = robot.link_poses(targets)[:, :, link_number(robot, self.link)]
        return np.linalg.norm(poses[..., :3, 3] - centre[None, None], axis=-1).min(1)


@dataclass(frozen=True)
class Chance(AbstractCost):
    """A cost that is drawn: the planner then takes any plan.

    Attributes:
      rng: draws.
    """

    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    def __call__(self, future: Future) -> Float[np.ndarray, "b"]:
        """Draw a number for every plan."""
        return self.rng.random(future.plans)
