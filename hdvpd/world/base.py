"""A trained model in use: observe, roll out any joint targets, render any camera."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.basics.layers import each
from hdvpd.basics.machine import usable_cores
from hdvpd.basics.types import (
    Array,
    Camera,
    Float,
    ParticleCloud,
    Rendering,
    RgbdFrames,
    RobotPoints,
)
from hdvpd.config import Config, SceneSpec
from hdvpd.data.arrays import JOINT_POSITIONS, JOINT_TARGETS
from hdvpd.data.robot import Robot
from hdvpd.data.setup import Setup
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, read_robot, read_window, select_cameras
from hdvpd.dynamics.base import Known
from hdvpd.evaluation.eval import require_scene
from hdvpd.evaluation.videos import to_uint8
from hdvpd.model import Model
from hdvpd.model.images import render_image
from hdvpd.training.checkpoints import load_model
from hdvpd.world.actions import check_actions, check_measured, check_start
from hdvpd.world.checks import require_length, require_own, require_seen
from hdvpd.world.frames import as_frames, colors_of
from hdvpd.world.future import Future, Images
from hdvpd.world.state import State, find_camera, scaled


class World:
    """A trained model in use. Every method is compiled once per shape of its arrays.

    Attributes:
      model: the neural network.
      config: it was trained with.
      scene: number of kinematic points and workspace box.
      step: training steps of the checkpoint.
      folder: of the run.
      setup: robot, cameras and pace of the data, or None where neither run nor data tell.
    """

    def __init__(
        self,
        model: Model,
        config: Config,
        scene: SceneSpec,
        step: int,
        folder: Path,
        setup: Setup | None,
    ) -> None:
        """Compile nothing yet; `hdvpd.load` is the usual way here."""
        self.model, self.config, self.scene = model, config, scene
        self.step, self.folder, self.setup = step, folder, setup
        graphdef = nnx.graphdef(model)
        self._params = nnx.state(model)

        @jax.jit
        def encode(params: Any, *observed: Any) -> ParticleCloud:
            return nnx.merge(graphdef, params).encode(*observed)

        @jax.jit
        def rollout(
            params: Any,
            clouds: tuple[ParticleCloud, ParticleCloud],
            known: Known | None,
            robot: RobotPoints,
            key: Any,
        ) -> tuple[ParticleCloud, RobotPoints]:
            model = nnx.merge(graphdef, params)
            one = functools.partial(model.rollout, *clouds)
            return each(lambda plan: one(plan, key, known), robot), each(model.expected, robot)

        @functools.partial(jax.jit, static_argnums=(3, 4))
        def render(
            params: Any, cloud: ParticleCloud, camera: Camera, height: int, width: int
        ) -> Rendering:
            return render_image(nnx.merge(graphdef, params), cloud, camera, height, width)

        self._encode, self._rollout, self._render = encode, rollout, render
        self._know = jax.jit(lambda params, *told: nnx.merge(graphdef, params).know(*told))

    def update(self) -> None:
        """Take the run's newest sound checkpoint; nothing is compiled again."""
        stochastic = self.config.model.stochastic
        self.model, _, _, self.step = load_model(self.folder, stochastic=stochastic)
        self._params = nnx.state(self.model)

    @property
    def robot(self) -> Robot:
        """The robot's kinematics.

        Raises:
          UserError: neither the run nor its data set holds a robot model.
        """
        if self.setup is None or self.setup.robot is None:
            raise UserError(
                f"The run {self.folder} has no robot model, so joint targets cannot become "
                "kinematic points. Add one to its data set, and the run finds it there: hdvpd data "
                f"robot {self.config.data.paths[0]} --robot FILE (a URDF or MJCF)."
            )
        return self.setup.robot

    @property
    def cameras(self) -> Mapping[str, Camera]:
        """Cameras of the training data by name, for images of `size`; empty if unknown."""
        if self.setup is None:
            return {}
        chosen = self.config.data.cameras or tuple(self.setup.cameras)
        return {
            name: scaled(self.setup.cameras[name], self.setup.sizes[name], self.size)
            for name in chosen
        }

    @property
    def workspace(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Lower and upper corner of the box that is modelled [m]."""
        return tuple(self.scene.workspace_min), tuple(self.scene.workspace_max)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the images that the model was trained with [px]."""
        return self.config.data.height, self.config.data.width

    def observe(
        self,
        rgb: Any,
        depth_m: Any,
        cameras: Mapping[str, Camera],
        joints: Any,
        *,
        seed: int | None = None,
    ) -> State:
        """Encode two observed time steps, one control step apart.

        Args:
          rgb: colours 0..255 of every camera, (2, v, h, w, 3) uint8; of any size.
          depth_m: planar depth [m], (2, v, h, w); 0, NaN and inf are invalid.
          cameras: one per view, in order: intrinsics (3, 3) for the images as given and
            camera-to-world pose (4, 4) [m], or both with a leading axis of the two steps.
          joints: measured values (2, j) in the units and the order of the training data, with
            `setup.joint_offsets` added.
          seed: draws the particles; by default `eval.seed`.

        Returns:
          The state.

        Raises:
          UserError: shapes do not fit, something is not finite, or there is no robot model.
        """
        values = np.asarray(joints, np.float32)
        check_measured(self.robot, values, OBSERVED_FRAMES)
        frames = as_frames(rgb, depth_m, cameras, self.size)
        mounts = {} if self.setup is None else self.setup.mounts
        kept = {name: link for name, link in mounts.items() if name in cameras}
        return self._encoded(
            frames, self.robot.points(values), values, tuple(cameras), kept, (0, 0), seed
        )

    def state_from(
        self,
        dataset: str | Path | Dataset,
        episode: int,
        start: int = 0,
        *,
        seed: int | None = None,
    ) -> State:
        """Encode two frames of an episode.

        Args:
          dataset: a native data set of the same robot and workspace.
          episode: its number.
          start: the first of the two frames.
          seed: draws the particles; by default `eval.seed`, as in an evaluation.

        Raises:
          UserError: the data set does not fit the model, or the episode is too short.
        """
        data = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        require_scene(self.scene, data, self.config, self.folder)
        batch = read_window(data, episode, start, OBSERVED_FRAMES, self.config.data)
        joints = data.read_many(episode, [JOINT_POSITIONS], start, OBSERVED_FRAMES)
        names = select_cameras(data, self.config.data)
        mounts = {n: data.info.cameras[n].mount for n in names if n in data.moving_cameras}
        window = (episode, start)
        state = self._encoded(
            batch.frames, batch.robot, joints[JOINT_POSITIONS], names, mounts, window, seed
        )
        return dataclasses.replace(state, source=data.source_of(episode)[0].title)

    def recorded_targets(
        self, dataset: str | Path | Dataset, episode: int, start: int, steps: int
    ) -> Float[np.ndarray, "s j"]:
        """Read the joint targets that followed the state of the same episode and start.

        Raises:
          UserError: the episode is too short.
        """
        data = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        require_length(data, episode, start, steps)
        first = start + OBSERVED_FRAMES - 1
        return data.read(episode, JOINT_TARGETS, first, steps)

    def recorded_points(
        self, dataset: str | Path | Dataset, episode: int, start: int, steps: int
    ) -> RobotPoints:
        """Read the planned kinematic points that followed a state, axes (s); needs no robot model.

        Raises:
          UserError: the episode is too short.
        """
        data = dataset if isinstance(dataset, Dataset) else Dataset(dataset)
        require_length(data, episode, start, steps)
        robot = read_robot(data, episode, start, OBSERVED_FRAMES + steps)
        return jax.tree.map(lambda x: x[OBSERVED_FRAMES:], robot)

    def rollout(
        self,
        state: State,
        joint_targets: Float[Array, "*batch j"],
        *,
        chunk: int = 1,
        features: bool = True,
        seed: int | None = None,
    ) -> Future:
        """Predict what follows if the robot is sent along joint targets.

        Args:
          state: to start from.
          joint_targets: row k is commanded for predicted step k, in the units and the order of the
            training data, with `setup.joint_offsets` added; axes (s j), or (b s j) for several
            plans.
          chunk: plans that are computed at once: more take more memory and, on a GPU, less time.
          features: keep the particles' features, without which nothing can be rendered.
          seed: draws what the dynamics draws, but not anew what `state.known` says; by default
            `eval.seed`.

        Returns:
          Predictions, with an axis of plans if the targets have one.

        Raises:
          UserError: targets of another shape, not finite or outside the robot's limits, `chunk` is
            not positive, no robot model, or one that has the robot elsewhere than the state's data.
        """
        targets = np.asarray(joint_targets, np.float32)
        require_own(state, self.scene, self.config)
        check_start(self.robot, state, self.folder)
        check_actions(self.robot, targets)
        future = self.rollout_points(
            state, self.robot.points(targets), chunk=chunk, features=features, seed=seed
        )
        return dataclasses.replace(future, joint_targets=targets)

    def rollout_points(
        self,
        state: State,
        points: RobotPoints,
        *,
        chunk: int = 1,
        features: bool = True,
        seed: int | None = None,
    ) -> Future:
        """Predict along planned kinematic points, axes (s) or (b s); else as `rollout`."""
        if chunk < 1:
            raise UserError(f"chunk={chunk}: give how many plans are computed at once, 1 or more.")
        require_own(state, self.scene, self.config)
        single = points.positions.ndim == 3
        planned = jax.tree.map(lambda x: np.asarray(x)[None] if single else np.asarray(x), points)
        count = planned.positions.shape[0]
        observed = jax.tree.map(lambda x: np.repeat(x[None], count, axis=0), state.robot)
        robot = jax.tree.map(lambda a, b: np.concatenate([a, b], axis=1), observed, planned)

        clouds, known = (state.previous, state.current), state.known
        if known is None:
            key = self.keys(state.episode, state.start, seed)[1]
            known = self._know(self._params, state.current, state.robot, key)

        def piece(first: int) -> tuple[ParticleCloud, RobotPoints]:
            # The last chunk is filled up with its last plan, so that all have one shape.
            rows = np.minimum(np.arange(first, first + chunk), count - 1)
            some = jax.tree.map(lambda x: x[rows], robot)
            key = self.keys(state.episode, state.start, seed)[1]  # the same draws for every plan
            cloud, goes = self._rollout(self._params, clouds, known, some, key)
            if not features:
                cloud = dataclasses.replace(cloud, features=cloud.features[..., :0])
            goes = jax.tree.map(lambda x: x[:, OBSERVED_FRAMES:], goes)
            own = min(chunk, count - first)
            return jax.tree.map(lambda x: np.asarray(x[:own]), (cloud, goes))

        pieces = _in_parallel(piece, range(0, count, chunk))
        results = *jax.tree.map(lambda *x: np.concatenate(x), *pieces), planned
        predicted, expected, planned = jax.tree.map(lambda x: x[0], results) if single else results
        return Future(
            start=state,
            clouds=predicted,
            robot=planned,
            expected=expected,
            joint_targets=None,
            kinematics=None if self.setup is None else self.setup.robot,
            render_cloud=self._images,
            known=jax.tree.map(np.asarray, known),
        )

    def render(
        self, state: State, camera: str | Camera, size: tuple[int, int] | None = None
    ) -> Images:
        """Render the last observed step of a state.

        Args:
          state: also an edited one.
          camera: name of an observed one, or any other, such as `hdvpd.look_at` makes.
          size: height and width [px]; by default that of the observed images.

        Raises:
          UserError: there is no camera of that name, or the size is none.
        """
        require_own(state, self.scene, self.config)
        view = find_camera(state, camera, size)
        return self._images(state.current, view, size or state.size)

    def _images(self, cloud: ParticleCloud, camera: Camera, size: tuple[int, int]) -> Images:
        rendering = self._render(self._params, cloud, camera, *size)
        return Images(
            rgb=to_uint8(rendering.rgb),
            depth_m=np.asarray(rendering.depth_m),
            opacity=np.asarray(rendering.acc),
        )

    def _encoded(
        self,
        frames: RgbdFrames,
        robot: RobotPoints,
        joints: np.ndarray,
        names: Sequence[str],
        mounts: Mapping[str, str],
        window: tuple[int, int],
        seed: int | None,
    ) -> State:
        keys = jax.random.split(self.keys(*window, seed)[0], OBSERVED_FRAMES)
        clouds = [
            jax.tree.map(
                np.asarray,
                self._encode(
                    self._params, *jax.tree.map(lambda x, t=t: x[t], (frames, robot)), keys[t]
                ),
            )
            for t in range(OBSERVED_FRAMES)
        ]
        require_seen(clouds[1], self.scene, self.config)
        last = jax.tree.map(lambda x: np.asarray(x)[-1], frames)
        cameras = {n: jax.tree.map(lambda x, v=v: x[v], last.camera) for v, n in enumerate(names)}
        return State(
            previous=clouds[0],
            current=clouds[1],
            colors=colors_of(clouds[1], last),
            robot=jax.tree.map(np.asarray, robot),
            joints=np.asarray(joints),
            cameras=cameras,
            size=self.size,
            mounts=mounts,
            frames=frames,
            episode=window[0],
            start=window[1],
        )

    def keys(self, episode: int, start: int, seed: int | None = None) -> tuple[Any, Any]:
        """Return the keys of encoder and dynamics: those of an evaluation of the same window."""
        key = jax.random.key(self.config.eval.seed if seed is None else seed)
        encode, roll = jax.random.split(jax.random.fold_in(jax.random.fold_in(key, episode), start))
        return encode, roll


def _in_parallel(piece: Callable[[int], Any], firsts: range) -> list[Any]:
    """Compute pieces of a batch: on CPU one per core, as one by itself does not keep all busy."""
    first, *others = firsts
    done = [piece(first)]  # alone, so that it is compiled once
    workers = usable_cores() if jax.default_backend() == "cpu" else 1
    if workers == 1 or len(others) < 2:
        return done + [piece(other) for other in others]
    with ThreadPoolExecutor(workers) as pool:
        return done + list(pool.map(piece, others))
