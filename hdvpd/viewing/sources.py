"""Where recordings come from; here the episodes of a data set, in `runs.py` those of a run."""

import abc
import math
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, RgbdFrames, UInt8
from hdvpd.config import DataConfig
from hdvpd.data.arrays import LINKS
from hdvpd.data.kinematics import kinematic_points
from hdvpd.data.schema import EpisodeInfo
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, read_window
from hdvpd.encoders.particles import visible_points
from hdvpd.viewing.editing import Edit, edit_particles
from hdvpd.viewing.recording import TRUTH, Layer, Particles, Recording, bones, pack

MAX_PARTICLES = 32768
"""Seen points of a time that are shown, at most: as many as the paper's model has particles."""
MAX_PIXELS = 100_000_000
"""Of an episode that are shown, at most, over all cameras: 162 frames of two of 480x640. One takes
7 bytes, and up to 16 more for the points that are lifted from it; reading takes as much again."""


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
    """The episodes of a data set, as they were seen and measured.

    Of an episode that is too long to be held (`MAX_PIXELS`), evenly spaced frames are shown.
    """

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
        camera = self.dataset.info.cameras[self.dataset.cameras[0]]
        self._config = DataConfig(path=str(path), height=camera.height, width=camera.width)
        shown = self.dataset.episodes if episode is None else [self.dataset.episode(episode)]
        self.titles = tuple(map(self._title, shown))
        self.episodes = tuple(e.number for e in shown)

    def _title(self, episode: EpisodeInfo) -> str:
        title = f"episode {episode.number}, {episode.task} ({episode.split})"
        stride = self._stride(episode)
        if stride == 1:
            return title
        return f"{title}, frames 0, {stride}, {2 * stride} ... of {episode.length}"

    def _stride(self, episode: EpisodeInfo) -> int:
        """Return how many frames further the next one is that is shown."""
        size = len(self.dataset.cameras) * self._config.height * self._config.width
        return math.ceil(episode.length / max(MAX_PIXELS // size, 1))

    def load(self, index: int, edits: Sequence[Edit] = ()) -> Recording:
        """Read an episode; edits change its particles at every time."""
        episode = self.dataset.episode(self.episodes[index])
        stride = self._stride(episode)
        frames = self._frames(episode, stride)
        links = self.dataset.read(episode.number, LINKS)[::stride, :, :3, 3]
        skeleton = self.dataset.robot.skeleton
        workspace = self.dataset.workspace_min, self.dataset.workspace_max
        particles = seen_particles(frames, workspace, np.inf)
        for edit in edits:
            particles = edit_particles(particles, edit)
        return Recording(
            title=self.titles[index],
            rate_hz=self.dataset.rate_hz,
            num_observed=len(links),
            cameras=self.dataset.cameras,
            camera=frames.camera,
            robot=np.asarray(kinematic_points(links, skeleton), np.float32),
            bones=bones(skeleton),
            workspace=workspace,
            layers={TRUTH: seen_layer(frames, particles)},
            stride=stride,
        )

    def _frames(self, episode: EpisodeInfo, stride: int) -> RgbdFrames:
        """Read every so many-th frame of an episode, axes (t v)."""
        number, length = episode.number, episode.length
        if stride == 1:
            return read_window(self.dataset, number, 0, length, self._config).frames
        read = []
        for frame in range(0, length, stride):
            start = min(frame, length - OBSERVED_FRAMES)  # no window is shorter
            window = read_window(self.dataset, number, start, OBSERVED_FRAMES, self._config)
            # Copied, for a view would keep the other frame too.
            read.append(jax.tree.map(lambda x, row=frame - start: x[row].copy(), window.frames))
        return jax.tree.map(lambda *x: np.stack(x), *read)


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
