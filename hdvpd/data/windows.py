"""Windows: fixed numbers of frames cut from episodes, addressed by an index.

A window is `(episode, start)`. Which windows a training step sees is a pure function of
`(seed, step)`, so order does not depend on workers and a resumed run reads what an uninterrupted
one would have read. Row f of a window is frame `start + f`; rows 0 and 1 are observed. The robot of
a later row is where it was told to be: row t - 1 of the stored targets is commanded from frame
t - 1 to frame t.
"""

import logging
from collections.abc import Sequence

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Batch, Camera, RgbdFrames, RobotPoints
from hdvpd.config import DataConfig
from hdvpd.data import checks, kinematics, resizing
from hdvpd.data.arrays import (
    CAMERA_KEYS,
    JOINT_POSITIONS,
    JOINT_TARGETS,
    LINKS,
    TARGET_LINKS,
    camera_array,
)
from hdvpd.data.draws import ROUND, Draws, split_round
from hdvpd.data.pinhole import scale_intrinsics
from hdvpd.data.schema import CameraInfo, EpisodeInfo
from hdvpd.data.store import Dataset
from hdvpd.data.writer import episode_folder

OBSERVED_FRAMES = 2


class WindowIndex:
    """All windows of a split.

    Attributes:
      split: train, validation or test.
      length: frames per window.
      episodes: episodes long enough for a window.
      skipped: episodes of the split that are too short.
    """

    def __init__(
        self, dataset: Dataset, split: str, length: int, weights: Sequence[float] = ()
    ) -> None:
        """List the windows.

        Args:
          dataset: to read from.
          split: train, validation or test.
          length: frames per window, observed ones included.
          weights: how often `sample` draws from each data set of a mixture, against the others;
            none draws all windows equally often.

        Raises:
          UserError: the split has no episode, or none that is long enough; or there is not one
            weight per data set, or nothing to draw from where one has weight.
        """
        listed = dataset.split(split)
        if not listed:
            counts = ", ".join(
                f"{name} {len(dataset.split(name))}" for name in ("train", "validation", "test")
            )
            raise UserError(
                f"The data set {dataset.title} has no episode in split '{split}' (episodes: "
                f"{counts}). Simulate more episodes: ten or more fill every split."
            )
        self.split, self.length = split, length
        self.episodes = tuple(e for e in listed if e.length >= length)
        self.skipped = tuple(e for e in listed if e.length < length)
        if not self.episodes:
            longest = max(listed, key=lambda e: e.length)
            raise UserError(
                f"No episode of split '{split}' of {dataset.title} has the {length} frames a "
                f"window needs ({OBSERVED_FRAMES} observed and {length - OBSERVED_FRAMES} "
                f"predicted); the longest is episode {longest.number} with {longest.length}. "
                f"Predict at most {max(longest.length - OBSERVED_FRAMES, 0)} steps, or simulate "
                f"with --steps {length - 1} or more."
            )
        if self.skipped:
            numbers = ", ".join(dataset.episode_title(e.number) for e in self.skipped)
            logging.getLogger("hdvpd").warning(
                "%s: episodes %s of split '%s' are shorter than a window of %d frames and are "
                "left out.", dataset.title, numbers, split, length
            )  # fmt: skip
        self._ends = np.cumsum([e.length - length + 1 for e in self.episodes])
        if weights:
            self._draws = _share_out(dataset, self.episodes, length, weights)
        else:
            self._draws = Draws([len(self)])

    def favour(self, windows: Sequence[int], share: float) -> None:
        """Let `sample` draw a share of all windows from some of them.

        Args:
          windows: numbers of windows, at least one. Where a weighted data set has none, all of its
            windows are drawn as before.
          share: of the windows that are drawn, from 0 to 1; the rest is drawn from all.
        """
        self._draws.favour(windows, share)

    def __len__(self) -> int:
        """Return the number of windows."""
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Return number of the episode and first frame of a window; by episode, then by start."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        position = int(np.searchsorted(self._ends, index, side="right"))
        before = int(self._ends[position - 1]) if position else 0
        return self.episodes[position].number, index - before

    def sample(self, seed: int, step: int, batch_size: int) -> list[tuple[int, int]]:
        """Choose the windows of a training step.

        Windows are visited in passes; every pass is a permutation of all windows that only seed
        and pass decide. So each draw is uniform over episodes and start frames, and nothing is
        repeated before everything has been seen. With a share of favoured windows (`favour`), every
        so many-th draw is the next of their passes instead. With weights, every data set has passes
        of its own, and its part of every thousand draws, mixed at random.

        Returns:
          Windows; a pure function of the arguments.
        """
        positions = range(step * batch_size, (step + 1) * batch_size)
        return [self[self._draws(seed, position)] for position in positions]

    def spread(self, windows_per_episode: int) -> list[tuple[int, int]]:
        """Choose windows for evaluation, evenly spread from frame 0 of every episode.

        Args:
          windows_per_episode: at most; short episodes have fewer.

        Returns:
          Windows, by episode and start frame.
        """
        chosen = []
        for episode in self.episodes:
            starts = episode.length - self.length + 1
            count = min(windows_per_episode, starts)
            chosen += [(episode.number, i * starts // count) for i in range(count)]
        return chosen


def _share_out(
    dataset: Dataset, episodes: Sequence[EpisodeInfo], length: int, weights: Sequence[float]
) -> Draws:
    """Give every data set of a mixture its part of the draws.

    Raises:
      UserError: there is not one weight per data set, or one has nothing to draw or no draw.
    """
    titles = [source.title for source in dataset.sources]
    if len(weights) != len(titles):
        raise UserError(
            f"data.weights = {list(weights)} has {len(weights)} numbers, but data.path names "
            f"{len(titles)} data sets ({', '.join(titles)}). Give one weight per data set, or none."
        )
    sizes = dict.fromkeys(titles, 0)
    for episode in episodes:
        source, _ = dataset.source_of(episode.number)
        sizes[source.title] += episode.length - length + 1
    quotas = split_round(weights)
    for (title, size), quota in zip(sizes.items(), quotas, strict=True):
        if not size:
            raise UserError(
                f"data.weights = {list(weights)} draws from {title}, which has no window of "
                f"{length} frames. Leave it out of data.path."
            )
        if not quota:
            raise UserError(
                f"data.weights = {list(weights)} gives {title} less than one of {ROUND} windows. "
                "Give it more, or leave it out of data.path."
            )
    return Draws(list(sizes.values()), quotas)


def describe_windows(windows: Sequence[tuple[int | str, ...]]) -> str:
    """Name windows in a message, by their `Dataset.window_id`."""
    return ", ".join(
        f"episode {episode}{''.join(f' of {title}' for title in of)} from frame {start}"
        for *of, episode, start in windows
    )


def select_cameras(dataset: Dataset, data_config: DataConfig) -> tuple[str, ...]:
    """Return the cameras an experiment reads, in the order of the views.

    Raises:
      UserError: a camera does not exist.
    """
    for name in data_config.cameras:
        if name not in dataset.cameras:
            raise UserError(
                f"data.cameras names {name!r}, which the data set {dataset.title} does not have; "
                f"it has {', '.join(dataset.cameras)}."
            )
    return data_config.cameras or dataset.cameras


def read_window(
    dataset: Dataset, episode: int, start: int, length: int, data_config: DataConfig
) -> Batch:
    """Read one window.

    Args:
      dataset: to read from.
      episode: number of the episode.
      start: first frame.
      length: frames.
      data_config: cameras and image size; frames of another size are resized.

    Returns:
      Numpy arrays without a batch axis: axes (f v) for frames, (f) for the robot.

    Raises:
      UserError: the window lies outside the episode, or what is stored is damaged or impossible.
    """
    number, available = episode, dataset.episode(episode).length
    dataset, episode = dataset.source_of(episode)
    if start < 0 or length < OBSERVED_FRAMES or start + length > available:
        raise UserError(
            f"Episode {episode} of {dataset.path} has frames 0 to {available - 1}; a window of "
            f"{length} frames from frame {start} does not fit."
        )
    cameras = select_cameras(dataset, data_config)
    names = [camera_array(c, key) for c in cameras for key in CAMERA_KEYS]
    missing = [n for n in _LINK_ARRAYS if not dataset.has_array(episode, n)]
    if missing:
        raise UserError(
            f"{episode_folder(dataset.path, episode)} lacks the array '{missing[0]}'. The model "
            "needs the link poses of measured and commanded joints; store both "
            "(docs/data-format.md, robot geometry)."
        )
    values = dataset.read_many(episode, names + _ROBOT_ARRAYS + _LINK_ARRAYS, start, length)
    place = checks.Place(dataset.path, episode, start)
    views = [_read_view(values, place, c, dataset.info.cameras[c], data_config) for c in cameras]
    frames = jax.tree.map(lambda *leaves: np.stack(leaves, axis=1), *views)
    return Batch(
        frames=frames,
        robot=_read_robot(values, place, dataset.robot.skeleton),
        episode=np.asarray(number, np.int32),
        start=np.asarray(start, np.int32),
    )


def stack_windows(windows: Sequence[Batch]) -> Batch:
    """Put windows of equal length, cameras and size side by side: a leading batch axis."""
    return jax.tree.map(lambda *leaves: np.stack(leaves), *windows)


def read_robot(dataset: Dataset, episode: int, start: int, length: int) -> RobotPoints:
    """Read what `read_window` reads of the robot, without the images.

    Returns:
      Kinematic points, axes (f): measured for the two observed frames, commanded ones after.

    Raises:
      UserError: what is stored is damaged or impossible.
    """
    dataset, episode = dataset.source_of(episode)
    values = dataset.read_many(episode, _ROBOT_ARRAYS + _LINK_ARRAYS, start, length)
    return _read_robot(values, checks.Place(dataset.path, episode, start), dataset.robot.skeleton)


_ROBOT_ARRAYS, _LINK_ARRAYS = [JOINT_POSITIONS, JOINT_TARGETS], [LINKS, TARGET_LINKS]


def _read_view(
    values: dict[str, np.ndarray],
    place: checks.Place,
    camera: str,
    info: CameraInfo,
    data_config: DataConfig,
) -> RgbdFrames:
    rgb, depth, intrinsics, pose = (values[camera_array(camera, key)] for key in CAMERA_KEYS)
    intrinsics = np.broadcast_to(intrinsics, (len(rgb), 3, 3))
    pose = np.broadcast_to(pose, (len(rgb), 4, 4))
    depth_m = depth.astype(np.float32)
    if info.depth_unit_m != 1.0:
        depth_m *= np.float32(info.depth_unit_m)
    valid = np.isfinite(depth_m) & (depth_m > 0)
    depth_m = np.where(valid, depth_m, np.float32(0))
    checks.check_depth(place, camera, valid)
    checks.check_intrinsics(place, camera, intrinsics)
    checks.check_pose(place, camera, pose)
    height, width = data_config.height, data_config.width
    scaled = scale_intrinsics(intrinsics, (info.height, info.width), (height, width))
    return RgbdFrames(
        rgb=resizing.resize_rgb(rgb, height, width),
        depth_m=resizing.resize_depth(depth_m, height, width),
        camera=Camera(
            intrinsics=scaled.astype(np.float32),
            camera_to_world=pose.astype(np.float32),
        ),
    )


def _read_robot(
    values: dict[str, np.ndarray], place: checks.Place, skeleton: kinematics.Skeleton
) -> RobotPoints:
    for name in (*_ROBOT_ARRAYS, *_LINK_ARRAYS):
        checks.check_finite(place, name, values[name])

    def plan(measured: str, commanded: str) -> np.ndarray:
        observed, told = values[measured][:OBSERVED_FRAMES], values[commanded]
        return np.concatenate([observed, told[OBSERVED_FRAMES - 1 : -1]])

    return kinematics.robot_points(plan(*_LINK_ARRAYS), plan(*_ROBOT_ARRAYS), skeleton)
