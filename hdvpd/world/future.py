"""A future: what a rollout predicts, ready to be looked at, saved or continued."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool, Camera, Float, ParticleCloud, RobotPoints, UInt8
from hdvpd.data.robot import Robot
from hdvpd.dynamics.base import Known
from hdvpd.world import saving
from hdvpd.world.state import State, find_camera


@dataclass(frozen=True)
class Images:
    """Rendered images of one camera.

    Attributes:
      rgb: colours on white.
      depth_m: planar depth [m]; the background lies at the far end of the rays.
      opacity: in [0, 1]: how much of a pixel is no background.
    """

    rgb: UInt8[np.ndarray, "*batch h w 3"]
    depth_m: Float[np.ndarray, "*batch h w"]
    opacity: Float[np.ndarray, "*batch h w"]


RenderCloud = Callable[[ParticleCloud, Camera, tuple[int, int]], Images]


@dataclass(frozen=True)
class Future:
    """Predicted steps 0..s-1 of one plan, axes (s), or of several, axes (b s).

    Attributes:
      start: the state that was rolled out.
      clouds: particles of every predicted step; the same particle in the same row as in
        `start.current`.
      robot: planned kinematic points of every predicted step.
      expected: where they are expected to be, which is behind the plan with `model.tracking`.
      joint_targets: the plan, or None where it was given as points.
      kinematics: of the robot, or None where its model is not known.
      render_cloud: draws one cloud from one camera.
      seen_from: where the cameras of `start` are known to have gone, axes (s v), or None.
      known: what stays as it is of particles, rows as in `start.current`, alike in every plan; None
        if the model tells nothing apart.
    """

    start: State
    clouds: ParticleCloud
    robot: RobotPoints
    expected: RobotPoints
    joint_targets: Float[np.ndarray, "*batch j"] | None
    kinematics: Robot | None
    render_cloud: RenderCloud
    seen_from: Camera | None = None
    known: Known | None = None

    def __len__(self) -> int:
        """Return the number of predicted steps."""
        return self.clouds.mask.shape[-2]

    @property
    def plans(self) -> int | None:
        """Number of plans, or None for a single one without an axis of its own."""
        return self.clouds.mask.shape[0] if self.clouds.mask.ndim == 3 else None

    @property
    def positions(self) -> Float[np.ndarray, "*batch n 3"]:
        """Of the particles [m], axes (s n) or (b s n); rows of padding are 0."""
        return np.asarray(self.clouds.positions)

    @property
    def features(self) -> Float[np.ndarray, "*batch n c"]:
        """Of the particles, axes as for positions."""
        return np.asarray(self.clouds.features)

    @property
    def mask(self) -> Bool[np.ndarray, "n"]:
        """True for real particles; the same at every step."""
        return np.asarray(self.start.current.mask)

    @property
    def colors(self) -> UInt8[np.ndarray, "n 3"]:
        """The colour in which each particle was last observed; rows of padding are 0."""
        return self.start.padded_colors

    @property
    def displacements(self) -> Float[np.ndarray, "*batch n 3"]:
        """From the last observed step to every predicted one [m]."""
        now = np.asarray(self.start.current.positions)
        return self.positions - now.reshape((1,) * (self.positions.ndim - 2) + now.shape)

    @property
    def kinematic_points(self) -> Float[np.ndarray, "*batch p 3"]:
        """Planned kinematic points [m]."""
        return np.asarray(self.robot.positions)

    def __getitem__(self, plan: int) -> "Future":
        """Return one plan of several.

        Raises:
          UserError: there is a single plan only.
          IndexError: there is no such plan.
        """
        if self.plans is None:
            raise UserError("This future holds a single plan: use it as it is, without [k].")

        def take(x: Any) -> Any:
            return np.asarray(x)[plan]

        return dataclasses.replace(
            self,
            clouds=jax.tree.map(take, self.clouds),
            robot=jax.tree.map(take, self.robot),
            expected=jax.tree.map(take, self.expected),
            joint_targets=None if self.joint_targets is None else take(self.joint_targets),
        )

    def render(
        self, camera: str | Camera, size: tuple[int, int] | None = None
    ) -> UInt8[np.ndarray, "*batch h w 3"]:
        """Render every step.

        Args:
          camera: name of an observed one, or any other.
          size: height and width [px]; by default that of the observed images. The intrinsics of a
            camera of one's own are for this size.

        Returns:
          Colours on white, axes (s h w) or (b s h w).

        Raises:
          UserError: the camera is unknown, the size is none, or the features were not kept.
        """
        return self.images(camera, size).rgb

    def images(self, camera: str | Camera, size: tuple[int, int] | None = None) -> Images:
        """Render every step: colours, planar depth and opacity; arguments as in `render`."""
        if self.plans is not None:
            each = [self[k].images(camera, size) for k in range(self.plans)]
        else:
            if not self.features.shape[-1]:
                raise UserError(
                    "This future was rolled out without features, so it cannot be rendered; leave "
                    "features=False out."
                )
            views = self.cameras_over_time(camera, len(self), size)
            each = [
                self.render_cloud(self.cloud(step), view, size or self.start.size)
                for step, view in enumerate(views)
            ]
        return Images(*(np.stack([getattr(e, f.name) for e in each]) for f in _FIELDS))

    def cameras_over_time(
        self, camera: str | Camera, steps: int, size: tuple[int, int] | None = None
    ) -> list[Camera]:
        """Say where a camera is at every step.

        One of the state is where it is known to have been; else, on a link of the robot, it goes
        where joint targets take it; else it stands still.

        Args:
          camera: as in `render`.
          steps: number of predicted steps.
          size: as in `render`.

        Raises:
          UserError: there is no camera of that name.
        """
        still = find_camera(self.start, camera, size)
        if isinstance(camera, str) and self.seen_from is not None:
            view = list(self.start.cameras).index(camera)
            poses = np.asarray(self.seen_from.camera_to_world)[:steps, view]
            return [dataclasses.replace(still, camera_to_world=pose) for pose in poses]
        link = self.start.mounts.get(camera) if isinstance(camera, str) else None
        joints, plan, robot = self.start.joints, self.joint_targets, self.kinematics
        if link is None or joints is None or plan is None or robot is None:
            return [still] * steps
        number = robot.links.index(link)
        before, *after = robot.link_poses(np.concatenate([joints[-1:], plan]))[:, number]
        to_link = np.linalg.inv(before) @ still.camera_to_world
        poses = [(pose @ to_link).astype(np.float32) for pose in after]
        return [dataclasses.replace(still, camera_to_world=pose) for pose in poses]

    def save(self, file: str | Path) -> tuple[Path, ...]:
        """Save the particles of every step.

        Args:
          file: `.npz`: positions, features, mask, colors, kinematic_points, kinematic_axes, gripper
            and, where known, joint_targets in one file; `.ply`: a point cloud per step,
            `name-00.ply` on.

        Returns:
          The files written.

        Raises:
          UserError: another ending, several plans as `.ply`, or the disk is full or not writable.
        """
        file = Path(file)
        if saving.require_suffix(file) == ".npz":
            arrays = {
                "positions": self.positions,
                "features": self.features,
                "mask": self.mask,
                "colors": self.colors,
                "kinematic_points": self.kinematic_points,
                "kinematic_axes": np.asarray(self.robot.axes),
                "gripper": np.asarray(self.robot.gripper),
            }
            if self.joint_targets is not None:
                arrays["joint_targets"] = self.joint_targets
            saving.write_npz(file, "future", arrays, {"steps": len(self)})
            return (file,)
        if self.plans is not None:
            raise UserError(f"{file}: several plans; choose one with future[k], or save as .npz.")
        written = []
        for step, positions in enumerate(self.positions):
            written.append(file.with_name(f"{file.stem}-{step:02d}.ply"))
            saving.write_ply(written[-1], positions, self.colors, self.mask)
        return tuple(written)

    def last(self) -> State:
        """Return the state after the last step, to be rolled out further.

        Its `known` is that of this rollout, so that single steps are the rollout of all.

        Raises:
          UserError: there are several plans; choose one with `future[k]`.
        """
        if self.plans is not None:
            raise UserError("Several plans end in several states: choose one with future[k].")
        previous = self.start.current if len(self) == 1 else self.cloud(len(self) - 2)
        robot = jax.tree.map(
            lambda observed, planned: np.concatenate([observed, planned])[-2:],
            self.start.robot, self.expected,
        )  # fmt: skip
        joints, targets = self.start.joints, self.joint_targets
        if joints is not None:
            joints = None if targets is None else np.concatenate([joints[1:], targets])[-2:]
        names = list(self.start.cameras)
        return dataclasses.replace(
            self.start,
            previous=previous,
            current=self.cloud(len(self) - 1),
            robot=robot,
            joints=joints,
            cameras={name: self.cameras_over_time(name, len(self))[-1] for name in names},
            frames=None,
            start=self.start.start + len(self),
            source="",
            known=self.known,
        )

    def cloud(self, step: int) -> ParticleCloud:
        """Return the particles of one step of a single plan."""
        clouds = self.clouds
        return ParticleCloud(
            np.asarray(clouds.positions)[step],
            np.asarray(clouds.features)[step],
            np.asarray(clouds.mask)[step],
        )


_FIELDS = dataclasses.fields(Images)
