"""Where recordings come from; here the episodes of a data set, in `runs.py` those of a run."""

import abc
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, RgbdFrames, UInt8
from hdvpd.config import DataConfig
from hdvpd.data.arrays import LINKS
from hdvpd.data.kinematics import kinematic_points
from hdvpd.data.store import Dataset
from hdvpd.data.windows import read_window
from hdvpd.encoders.particles import visible_points
from hdvpd.viewing.editing import Edit, edit_particles
from hdvpd.viewing.recording import TRUTH, Layer, Particles, Recording, bones, pack

MAX_PARTICLES = 32768
"""Seen points of a time that are shown, at most: as many as the paper's model has particles."""


class AbstractSource(abc.ABC):
    """A list of scenes, each made into a recording when it is asked for.

    Attributes:
      name: what was opened.
      titles: of the scenes.
      episodes: which episode each scene is from.
    """

    name: str
    titles: tuple[str, ...]
    episodes: tuple[int, ...]

    @abc.abstractmethod
    def load(self, index: int, edits: Sequence[Edit] = ()) -> Recording:
        """Make the recording of one scene.

        Args:
          index: into the titles.
          edits: done one after the other to the particles of the observed times, before anything
            is predicted.
        """

    def render(
        self, recording: Recording, time: int, camera_to_world: Float[np.ndarray, "4 4"], fov: float
    ) -> UInt8[np.ndarray, "h w 3"]:
        """Render a prediction from a new place.

        Args:
          recording: of `load`.
          time: which of its times.
          camera_to_world: pose of the camera, OpenCV axes [m].
          fov: vertical angle of view [rad].

        Raises:
          UserError: the source has no model.
        """
        del recording, time, camera_to_world, fov
        raise UserError(f"{self.name} holds no model that could render a new view; view a run.")


class DatasetSource(AbstractSource):
    """The episodes of a data set, as they were seen and measured."""

    def __init__(self, path: Path, episode: int | None = None) -> None:
        """Open the data set.

        Args:
          path: its folder.
          episode: number of the only one to show; None shows all.

        Raises:
          UserError: it is none, or damaged, or has no such episode.
        """
        self.dataset = Dataset(path)
        self.name = str(path)
        shown = self.dataset.episodes if episode is None else [self.dataset.episode(episode)]
        self.titles = tuple(f"episode {e.number}, {e.task} ({e.split})" for e in shown)
        self.episodes = tuple(e.number for e in shown)
        camera = self.dataset.info.cameras[self.dataset.cameras[0]]
        self._config = DataConfig(path=str(path), height=camera.height, width=camera.width)

    def load(self, index: int, edits: Sequence[Edit] = ()) -> Recording:
        """Read an episode; edits change its particles at every time."""
        episode = self.dataset.episode(self.episodes[index])
        batch = read_window(self.dataset, episode.number, 0, episode.length, self._config)
        links = self.dataset.read(episode.number, LINKS)[..., :3, 3]
        skeleton = self.dataset.robot.skeleton
        workspace = self.dataset.workspace_min, self.dataset.workspace_max
        particles = seen_particles(batch.frames, workspace, np.inf)
        for edit in edits:
            particles = edit_particles(particles, edit)
        return Recording(
            title=self.titles[index],
            rate_hz=self.dataset.rate_hz,
            num_observed=episode.length,
            cameras=self.dataset.cameras,
            camera=batch.frames.camera,
            robot=np.asarray(kinematic_points(links, skeleton), np.float32),
            bones=bones(skeleton),
            workspace=workspace,
            layers={TRUTH: seen_layer(batch.frames, particles)},
        )


def seen_particles(
    frames: RgbdFrames,
    workspace: tuple[tuple[float, ...], tuple[float, ...]],
    far: float,
) -> Particles:
    """Lift the pixels of every time to points, at most `MAX_PARTICLES` of them.

    Args:
      frames: axes (t v).
      workspace: corners of the box outside which pixels are dropped [m].
      far: see `visible_points`.

    Returns:
      Points with the colours of their pixels, drawn anew at every time.
    """
    (low, high), clouds, colors = workspace, [], []
    lift = jax.jit(lambda d, c: visible_points(d, c, _corner(low), _corner(high), far))
    for time in range(len(frames.rgb)):
        one = jax.tree.map(lambda x, t=time: x[t], frames)
        points, valid = (np.asarray(x) for x in lift(one.depth_m, one.camera))
        rows = np.flatnonzero(valid)
        if len(rows) > MAX_PARTICLES:
            rows = np.random.default_rng(time).choice(rows, MAX_PARTICLES, replace=False)
        clouds.append(points.reshape(-1, 3)[rows])
        colors.append(one.rgb.reshape(-1, 3)[rows])
    positions, mask = pack(clouds)
    return Particles(
        positions=positions.astype(np.float32),
        colors=pack(colors)[0].astype(np.uint8),
        features=None,
        mask=mask,
        age=np.zeros(len(mask), np.int32),
        tracked=False,
    )


def _corner(values: Sequence[float]) -> tuple[float, float, float]:
    x, y, z = values
    return float(x), float(y), float(z)


def seen_layer(frames: RgbdFrames, particles: Particles) -> Layer:
    """Return what the cameras saw, with the points lifted from it."""
    return Layer(particles, np.asarray(frames.rgb), np.asarray(frames.depth_m, np.float32))
