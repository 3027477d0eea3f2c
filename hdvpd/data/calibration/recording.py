"""What `hdvpd data check` reads: a few moments in full, and whole episodes as signals.

Memory is bounded: images are thinned to `MAX_PIXELS`, and of long episodes only the first
`MAX_FRAMES` frames are read as signals, one camera at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Float, Int, Shaped
from hdvpd.data import truth
from hdvpd.data.arrays import (
    CAMERA_KEYS,
    JOINT_POSITIONS,
    JOINT_TARGETS,
    LINKS,
    OBJECTS,
    TARGET_LINKS,
    camera_array,
)
from hdvpd.data.calibration import signals
from hdvpd.data.calibration.views import PATH_REACH, Moment, View, thin
from hdvpd.data.kinematics import kinematic_points
from hdvpd.data.schema import EpisodeInfo, ObjectInfo
from hdvpd.data.store import Dataset

MAX_PIXELS = 20_000
MAX_FRAMES = 256


@dataclass(frozen=True)
class Snapshot:
    """One frame of an episode.

    Attributes:
      moment: what the cameras saw, thinned.
      stored_depth: by camera, as on disk.
      objects: origins in the world [m] and colours of objects whose colour is declared.
    """

    moment: Moment
    stored_depth: Mapping[str, Shaped[np.ndarray, "h w"]]
    objects: tuple[tuple[Float[np.ndarray, "3"], Int[np.ndarray, "3"]], ...]


@dataclass(frozen=True)
class Signals:
    """Time series of one episode.

    Attributes:
      image_motion: change of the image per interval, by camera.
      robot_motion: motion of the robot per interval: of its points [m], or of its joints.
      joint_positions: measured.
      joint_targets: commanded.
      points: kinematic points at the measured joints [m]; None where link poses are unknown.
      target_points: kinematic points at the commanded joints [m], likewise.
    """

    image_motion: Mapping[str, Float[np.ndarray, "s"]]
    robot_motion: Float[np.ndarray, "s"]
    joint_positions: Float[np.ndarray, "f j"]
    joint_targets: Float[np.ndarray, "f j"]
    points: Float[np.ndarray, "f p 3"] | None
    target_points: Float[np.ndarray, "f p 3"] | None


@dataclass(frozen=True)
class Sample:
    """What is looked at of a data set."""

    dataset: Dataset
    episodes: Sequence[EpisodeInfo]
    snapshots: Sequence[Snapshot]
    series: Sequence[Signals]

    @property
    def moments(self) -> tuple[Moment, ...]:
        """What the cameras saw in the snapshots."""
        return tuple(snapshot.moment for snapshot in self.snapshots)

    @property
    def robot(self) -> Float[np.ndarray, "m 3"]:
        """The robot's kinematic points at all times, measured and commanded [m]."""
        points = [p for s in self.series for p in (s.points, s.target_points) if p is not None]
        return np.concatenate([np.zeros((0, 3)), *(p.reshape(-1, 3) for p in points)])


def read_sample(dataset: Dataset, episodes: int, frames: int) -> Sample:
    """Read evenly spread episodes, and evenly spread frames of each in full.

    Raises:
      UserError: an array is missing or damaged.
    """
    chosen = [dataset.episodes[i] for i in spread(episodes, len(dataset.episodes))]
    snapshots = [
        read_snapshot(dataset, episode, frame)
        for episode in chosen
        for frame in _frames(frames, episode.length)
    ]
    return Sample(dataset, chosen, snapshots, [read_signals(dataset, e) for e in chosen])


def _frames(count: int, length: int) -> list[int]:
    """Return up to `count` frames, with a past and a future where there are as many."""
    inner = length - 2 * PATH_REACH
    if inner < count:
        return spread(count, length)
    return [PATH_REACH + frame for frame in spread(count, inner)]


def spread(count: int, available: int) -> list[int]:
    """Return up to `count` of the indices below `available`, evenly spread."""
    return sorted({round(i) for i in np.linspace(0, available - 1, min(count, available))})


def read_snapshot(dataset: Dataset, episode: EpisodeInfo, frame: int) -> Snapshot:
    """Read one frame of an episode: all cameras, the robot and objects of known colour.

    Raises:
      UserError: an array is missing or damaged.
    """
    number = episode.number
    names = [camera_array(camera, key) for camera in dataset.cameras for key in CAMERA_KEYS]
    names += [name for name in (LINKS,) if dataset.has_array(number, name)]
    colored = [o for o in dataset.objects(episode) if o.rgb is not None]
    if colored and dataset.has_array(number, OBJECTS):
        truth.require_frames(dataset, number)
        names.append(OBJECTS)
    values = dataset.read_many(number, names, frame, 1)
    views, stored = {}, {}
    for camera, info in dataset.info.cameras.items():
        rgb, depth, intrinsics, pose = (values[camera_array(camera, key)] for key in CAMERA_KEYS)
        stored[camera] = depth[0]
        depth_m = depth[0].astype(np.float64) * info.depth_unit_m
        valid = np.isfinite(depth_m) & (np.nan_to_num(depth_m) > 0)
        view = View(
            rgb[0],
            np.where(valid, depth_m, 0.0),
            intrinsics.reshape(-1, 3, 3)[0],
            pose.reshape(-1, 4, 4)[0],
        )
        views[camera] = thin(view, MAX_PIXELS)
    robot, path, links = None, None, None
    if LINKS in values:
        links = values[LINKS][0].astype(np.float64)
        robot = _finite(_points(dataset, number, LINKS, frame, 1))
        if PATH_REACH <= frame < episode.length - PATH_REACH:
            path = _finite(_points(dataset, number, LINKS, frame - PATH_REACH, 2 * PATH_REACH + 1))
    moment = Moment(number, frame, views, None if robot is None else robot[0], links, path)
    return Snapshot(moment, stored, _colored_objects(dataset.objects(episode), values))


def _finite(points: np.ndarray | None) -> np.ndarray | None:
    return points if points is not None and np.isfinite(points).all() else None


def _colored_objects(
    objects: Sequence[ObjectInfo], values: Mapping[str, np.ndarray]
) -> tuple[tuple[np.ndarray, np.ndarray], ...]:
    poses = values.get(OBJECTS)
    if poses is None:
        return ()
    return tuple(
        (pose[:3, 3].astype(np.float64), np.array(info.rgb))
        for pose, info in zip(poses[0], objects, strict=False)
        if info.rgb is not None
    )


def read_signals(dataset: Dataset, episode: EpisodeInfo) -> Signals:
    """Read the time series of an episode's first `MAX_FRAMES` frames, images reduced to change.

    Raises:
      UserError: an array is missing or damaged.
    """
    number, length = episode.number, min(episode.length, MAX_FRAMES)
    image_motion = {
        camera: signals.image_motion(dataset.read(number, f"cameras/{camera}/rgb", 0, length))
        for camera in dataset.cameras
    }
    joints, targets = (
        dataset.read(number, name, 0, length).astype(np.float64)
        for name in (JOINT_POSITIONS, JOINT_TARGETS)
    )
    points, target_points = (
        _points(dataset, number, name, 0, length) for name in (LINKS, TARGET_LINKS)
    )
    if points is not None:
        motion = signals.point_motion(points)
    else:
        motion = np.abs(np.diff(joints, axis=0)).mean(axis=1)
    return Signals(image_motion, motion, joints, targets, points, target_points)


def _points(dataset: Dataset, number: int, name: str, start: int, length: int) -> np.ndarray | None:
    if not dataset.has_array(number, name):
        return None
    origins = dataset.read(number, name, start, length)[..., :3, 3].astype(np.float64)
    return np.asarray(kinematic_points(origins, dataset.robot.skeleton))
