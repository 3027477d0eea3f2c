"""Recordings of a run: its model's rollouts of recorded or of one's own actions."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Batch, Camera, Float, RgbdFrames
from hdvpd.config import Config
from hdvpd.config.experiments import load_config
from hdvpd.data.mixture import open_dataset
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_window, select_cameras
from hdvpd.encoders.particles import white_targets
from hdvpd.evaluation.eval import find_runs
from hdvpd.evaluation.videos import to_uint8
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.viewing.editing import Edit
from hdvpd.viewing.models import ModelSource, cameras_of, scores
from hdvpd.viewing.recording import PREDICTION, TRUTH, Layer, Recording, bones
from hdvpd.viewing.sources import seen_particles
from hdvpd.world.actions import read_actions
from hdvpd.world.future import Future
from hdvpd.world.loading import load


class RunSource(ModelSource):
    """Windows of a data set, rolled out by a run's model.

    Before a training has written its first checkpoint, the windows are shown without prediction.

    Attributes:
      folder: of the run.
      config: it is trained with.
      watched: whether the newest checkpoint is to be followed.
    """

    def __init__(
        self, folder: Path, *, split: str | None = None, steps: int | None = None,
        checkpoint_step: int | None = None, episode: int | None = None, start: int = 0,
        actions: Sequence[Path] = (),
    ) -> None:  # fmt: skip
        """Load the model and list the scenes.

        Args:
          folder: of the run, or its name in `runs/`.
          split: whose episodes; None takes `test`, and `validation` while the run is trained.
          steps: to predict; None takes the run's `eval.num_steps`.
          checkpoint_step: which checkpoint; None takes the newest sound one.
          episode: the only one to show; of any split.
          start: its first observed frame.
          actions: files of joint targets, each a scene of its own, from that frame on.

        Raises:
          UserError: run, checkpoint, data set or actions are missing, damaged or do not fit; or
            start or actions are given without an episode.
        """
        if episode is None and (actions or start):
            flag = "--actions" if actions else f"--start {start}"
            raise UserError(f"{flag} needs to know in which episode it starts: add --episode N.")
        super().__init__()
        (self.folder,) = find_runs([folder]).values()
        self.name = str(folder)
        self.config: Config = load_config(str(self.folder / "config.toml"))
        self._tried = self.newest()
        if checkpoint_step is not None or self._tried is not None or not self.in_training():
            self.world = load(self.folder, checkpoint_step)
        self.watched = checkpoint_step is None
        self.dataset = open_dataset(self.config.data)
        if steps is not None and steps < 1:
            raise UserError(f"--steps {steps}: ask for one or more.")
        self._length = OBSERVED_FRAMES + (steps or self.config.eval.num_steps)
        self._plans: tuple[np.ndarray | None, ...] = ()
        if episode is None:
            split = split or ("validation" if self.in_training() else "test")
            self.windows = WindowIndex(self.dataset, split, self._length).spread(1)
            self._plans = (None,) * len(self.windows)
        else:
            self.windows = [(episode, start)] * (1 + len(actions))
            plans = (read_actions(file, self.trained.robot, steps) for file in actions)
            self._plans = (None, *plans)
        self.episodes = tuple(number for number, _ in self.windows)
        what = [None] * len(self.windows) if episode is None else [None, *actions]
        self.titles = tuple(map(self._title, self.windows, what))

    def _title(self, window: tuple[int, int], actions: Path | None) -> str:
        number, start = window
        named, task = self.dataset.episode_title(number), self.dataset.episode(number).task
        title = f"episode {named} from frame {start}, {task}"
        return title if actions is None else f"{title}: {actions.name}"

    def newest(self) -> int | None:
        """Return the step of the newest checkpoint, or None."""
        return next(reversed(CheckpointStore(self.folder).steps()), None)

    def in_training(self) -> bool:
        """Say whether the newest checkpoint is not the last that the run is to have."""
        return (self.newest() or 0) < self.config.train.num_steps

    def refresh(self) -> bool:
        """Take the newest sound checkpoint, if it is another than the one in use.

        A newest one that is damaged is tried once, not whenever this is called.

        Returns:
          Whether it was.

        Raises:
          UserError: none is sound, or one is replaced while it is read.
        """
        newest, used = self.newest(), None if self.world is None else self.world.step
        if newest == self._tried:
            return False
        self._tried = newest
        if newest in (None, used):
            return False
        if self.world is None:
            self.world = load(self.folder)
        else:
            self.world.update()
        return self.world.step != used

    def load(self, index: int, edits: Sequence[Edit] = ()) -> Recording:
        """Roll a window out; what was edited, or has actions of its own, has no truth."""
        (number, start), plan = self.windows[index], self._plans[index]
        if self.world is None:
            batch = read_window(self.dataset, number, start, self._length, self.config.data)
            layers = {TRUTH: self._truth(batch)}
            return self._recording(index, batch.frames.camera, batch.robot.positions, layers)
        state = self.world.state_from(self.dataset, number, start)
        for edit in edits:
            state = edit.of_state(state)
        if plan is not None:
            return self._imagined(index, self.world.rollout(state, plan))
        steps = self._length - OBSERVED_FRAMES
        points = self.world.recorded_points(self.dataset, number, start, steps)
        batch = read_window(self.dataset, number, start, self._length, self.config.data)
        went = jax.tree.map(lambda x: x[OBSERVED_FRAMES:], batch.frames.camera)
        future = dataclasses.replace(self.world.rollout_points(state, points), seen_from=went)
        if edits:
            return self._imagined(index, future)
        layers = {
            TRUTH: self._truth(batch),
            PREDICTION: self.predicted(future, batch.frames.camera),
        }
        ssim = scores(layers[PREDICTION].rgb, layers[TRUTH].rgb)
        return self._recording(index, batch.frames.camera, batch.robot.positions, layers, ssim)

    def _imagined(self, index: int, future: Future) -> Recording:
        camera = cameras_of(future)
        layers = {PREDICTION: self.predicted(future, camera)}
        robot = np.concatenate([future.start.robot.positions, future.robot.positions])
        return self._recording(index, camera, robot, layers)

    def _recording(
        self, index: int, camera: Camera, robot: Float[Array, "t p 3"],
        layers: dict[str, Layer], ssim: Float[np.ndarray, "t v"] | None = None,
    ) -> Recording:  # fmt: skip
        scene = self.dataset.scene_spec(self.config.data)
        source, _ = self.dataset.source_of(self.episodes[index])
        return Recording(
            title=self.titles[index],
            rate_hz=self.dataset.rate_hz,
            num_observed=OBSERVED_FRAMES,
            cameras=select_cameras(self.dataset, self.config.data),
            camera=camera,
            robot=np.asarray(robot, np.float32),
            bones=bones(source.robot.skeleton),
            workspace=(scene.workspace_min, scene.workspace_max),
            layers=layers,
            ssim=ssim,
        )

    def _truth(self, batch: Batch) -> Layer:
        frames: RgbdFrames = batch.frames
        scene, far = self.dataset.scene_spec(self.config.data), self.config.render.far
        box = scene.workspace_min, scene.workspace_max
        rgb = np.asarray(frames.rgb, np.float32) / 255
        white = white_targets(rgb, frames.depth_m, frames.camera, *box, far)
        return Layer(
            seen_particles(frames, box, far),
            to_uint8(white),
            np.asarray(frames.depth_m, np.float32),
        )
