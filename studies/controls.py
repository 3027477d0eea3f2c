"""What a model's choices are compared with: the simulator, no or given motion, chance, geometry."""

import dataclasses
from dataclasses import dataclass, field

import jax
import numpy as np

from hdvpd.basics.types import Array, Float, ParticleCloud
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
        colors=np.zeros((num_particles, 3), np.uint8),
        robot=robot.points(trial.joints),
        joints=trial.joints,
        cameras=trial.cameras,
        size=trial.size,
    )


def _cannot_render(*_: object) -> Images:
    raise NotImplementedError("a control predicts particles, no images")


@dataclass(frozen=True)
class NothingMoves:
    """Predicts that every particle stays where it is.

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
        """Repeat the particles of the last observed step; see `World.rollout`."""
        del chunk, features
        targets = np.asarray(joint_targets, np.float64)
        shape, now = targets.shape[:-1], state.current

        def repeated(x: Array) -> np.ndarray:
            return np.broadcast_to(np.asarray(x), (*shape, *np.shape(x)))

        return Future(
            start=state,
            clouds=ParticleCloud(
                repeated(now.positions),
                repeated(np.asarray(now.features)[:, :0]),
                repeated(now.mask),
            ),
            robot=self.robot.points(targets),
            joint_targets=targets,
            kinematics=self.robot,
            render_cloud=_cannot_render,
        )


@dataclass(frozen=True)
class CarriedAlong:
    """Predicts that particles near the robot go along with it, and that nothing else moves.

    Nothing of it is learned (`evaluation.controls.carry_particles`).

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
        """Carry the particles of the last observed step; see `World.rollout`."""
        future = NothingMoves(self.robot).rollout(
            state, joint_targets, chunk=chunk, features=features
        )
        planned = future.robot.positions.shape
        plans = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(planned) - 3 :]), future.robot)
        bare = [
            dataclasses.replace(cloud, features=np.asarray(cloud.features)[:, :0])
            for cloud in (state.previous, state.current)
        ]
        paths = []
        for plan in range(len(plans.positions)):
            robot = jax.tree.map(lambda a, b, k=plan: np.concatenate([a, b[k]]), state.robot, plans)
            paths.append(np.asarray(carry_particles(*bare, robot).positions))
        positions = np.stack(paths).reshape(np.shape(future.clouds.positions))
        return dataclasses.replace(
            future, clouds=dataclasses.replace(future.clouds, positions=positions)
        )


@dataclass(frozen=True)
class Simulator:
    """Predicts what the simulator will do to the object: the upper bound of every model.

    Attributes:
      trial: as it stands in the state that is rolled out.
      robot: that the plans are of.
    """

    trial: Trial
    robot: Robot

    def rollout(
        self,
        state: State,
        joint_targets: Float[Array, "*batch j"],
        *,
        chunk: int = 1,
        features: bool = True,
    ) -> Future:
        """Execute each plan; particles on the object go along with it, the others stay.

        The particles of a plan that cannot be executed, because the arms touch, are NaN.
        """
        future = NothingMoves(self.robot).rollout(
            state, joint_targets, chunk=chunk, features=features
        )
        positions = np.array(future.clouds.positions, np.float64)
        plans = np.asarray(joint_targets, np.float64).reshape(-1, *np.shape(joint_targets)[-2:])
        rows = object_rows(state, self.trial.place)
        local = _moved(np.linalg.inv(self.trial.object_to_world), positions.reshape(
            -1, *positions.shape[-2:])[0, rows])  # fmt: skip
        of_plan = positions.reshape(len(plans), -1, *positions.shape[-2:])
        for plan, targets in zip(of_plan, plans, strict=True):
            poses = self.trial.execute(targets)
            plan[:, rows] = np.nan if poses is None else [_moved(pose, local) for pose in poses]
        clouds = dataclasses.replace(future.clouds, positions=of_plan.reshape(positions.shape))
        return dataclasses.replace(future, clouds=clouds)


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
