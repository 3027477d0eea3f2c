"""The interface of an importer: a source lists episodes and streams the frames of each.

A format converts poses, depth and colours to the native conventions and says what every field meant
in its file. It knows nothing of resampling, image sizes or writing: that is the driver's.
"""

import abc
import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from hdvpd.array_typing import Float, UInt8
from hdvpd.data.importers.conversions import PoseReading
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.robot_model import Joint
from hdvpd.data.importers.sidecar import SAFE_NAME, Sidecar

Channels = Literal["rgb", "bgr"]
MAX_TARGET_DISTANCE = 0.5
"""An absolute joint target lies nearer than this to the next position [rad, m]."""


@dataclass(frozen=True)
class Options:
    """What the user says about a source.

    Attributes:
      cameras: to import; empty means all that have depth and calibration.
      sidecar: calibration and names given by hand, or nothing.
      depth_unit_m: metres per stored unit of depth; None leaves it to the format.
      joint_targets: whether recorded actions are joint targets although the source does not say so.
      channels: order of the stored colours; None leaves it to the format.
      rate_hz: frames per second where the source has no time stamps; None leaves it to the format.
      extrinsics: what recorded camera poses mean where the format leaves it open; None until it is
        decided.
    """

    cameras: tuple[str, ...] = ()
    sidecar: Sidecar = field(default_factory=Sidecar)
    depth_unit_m: float | None = None
    joint_targets: bool = False
    channels: Channels | None = None
    rate_hz: float | None = None
    extrinsics: PoseReading | None = None


@dataclass(frozen=True)
class SourceEpisode:
    """One episode of a source.

    Attributes:
      name: unique in the source; shown to people.
      file: or folder that holds it.
      task: what the robot does.
      split: train, validation or test where the source says so, else empty.
      success: where the source says so.
    """

    name: str
    file: Path
    task: str
    split: str = ""
    success: bool | None = None

    @property
    def place(self) -> SourcePlace:
        """Where it is, for messages."""
        return SourcePlace(self.file, self.name)


@dataclass(frozen=True)
class View:
    """One camera of an opened episode.

    Attributes:
      size: height and width of its images [px].
      intrinsics: one matrix, or one per frame [px].
      camera_to_world: one pose, or one per frame, OpenCV axes; relative to the link if there is
        one.
      link: that carries the camera, or "world".
    """

    size: tuple[int, int]
    intrinsics: Float[np.ndarray, "*f 3 3"]
    camera_to_world: Float[np.ndarray, "*f 4 4"]
    link: str = "world"


@dataclass(frozen=True)
class EndEffector:
    """A tool whose pose the source records.

    Attributes:
      name: becomes a link.
      arm: it belongs to; empty if there is only one.
      to_world: poses, one per frame.
    """

    name: str
    arm: str
    to_world: Float[np.ndarray, "f 4 4"]


@dataclass(frozen=True)
class RgbdImage:
    """One picture of one camera.

    Attributes:
      rgb: colours, 0..255.
      depth_m: planar depth [m]; 0 is invalid.
    """

    rgb: UInt8[np.ndarray, "h w 3"]
    depth_m: Float[np.ndarray, "h w"]


@dataclass(frozen=True)
class Recording:
    """One opened episode: everything small at once, images as a stream.

    Attributes:
      time_s: time stamps of the frames [s].
      views: cameras by name.
      joints: columns of the joint arrays.
      joint_positions: where the joints are.
      joint_targets: row t is what is commanded from frame t to frame t + 1; None where the source
        has no such thing.
      positions_source: "measured", or "targets" where only commands were recorded.
      end_effectors: tools, for robots without a model.
      base_to_world: pose of the robot model's root.
      robot_xml: a robot model inside the source, MJCF; empty if there is none.
      frames: given ascending rows, yields the images of all cameras row by row.
      fields: what every field of the source was taken as, for people.
      warnings: what the user should know about the conversion.
    """

    time_s: Float[np.ndarray, "f"]
    views: Mapping[str, View]
    joints: tuple[Joint, ...]
    joint_positions: Float[np.ndarray, "f j"]
    joint_targets: Float[np.ndarray, "f j"] | None
    frames: Callable[[Sequence[int]], Iterator[Mapping[str, RgbdImage]]]
    positions_source: str = "measured"
    end_effectors: tuple[EndEffector, ...] = ()
    base_to_world: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    robot_xml: str = ""
    fields: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


class AbstractSource(abc.ABC):
    """A data set of another format.

    Attributes:
      path: what the user named.
      options: what the user said about it.
    """

    licence: ClassVar[str] = "unknown"
    """Of the data, where the format decides it."""
    packages: ClassVar[tuple[str, ...]] = ()
    """Whose versions are worth recording."""
    has_actions: ClassVar[bool] = False
    """Whether it records actions that may or may not be joint targets."""

    def __init__(self, path: Path, options: Options) -> None:
        """Remember the source; nothing is read yet."""
        self.path, self.options = path, options

    @abc.abstractmethod
    def episodes(self) -> tuple[SourceEpisode, ...]:
        """List the episodes, always in the same order.

        Raises:
          UserError: the source is not of this format, or holds none.
        """

    def readings(self) -> tuple[PoseReading, ...]:
        """List what recorded camera poses may mean.

        Returns:
          Empty unless the source leaves it open; then `Options.extrinsics` is to become one of
          them.
        """
        return ()

    @abc.abstractmethod
    def open(self, episode: SourceEpisode) -> contextlib.AbstractContextManager[Recording]:
        """Open an episode.

        Args:
          episode: one of `episodes`.

        Returns:
          A context that yields the recording and closes its files.

        Raises:
          BadEpisodeError: it is damaged, or lacks depth or calibration; `Recording.frames` raises
            the same while it streams.
        """


def number_in(name: str) -> tuple[int, str]:
    """Return a sorting key: the last number in a name, so that 2 comes before 10."""
    numbers = re.findall(r"\d+", name)
    return (int(numbers[-1]) if numbers else -1, name)


def select_cameras(
    place: SourcePlace, available: Mapping[str, str], wanted: Sequence[str]
) -> tuple[str, ...]:
    """Choose the cameras of an episode.

    Args:
      place: the episode.
      available: every camera of the episode with the reason why it cannot be used, empty if it
        can.
      wanted: names; empty means all usable ones.

    Returns:
      Names in the order wanted, or in that of the source.

    Raises:
      BadEpisodeError: a camera is missing or not usable, none is left, or a name is no name.
    """
    for name in (*available, *wanted):
        if not SAFE_NAME.fullmatch(name):
            raise place.error(
                f"the camera name {name!r} cannot be the name of a folder",
                "Names are letters, digits, '_', '-', '+' and '.', not beginning with a '.'.",
            )
    for name in wanted:
        if name not in available:
            raise place.error(
                f"there is no camera {name!r}",
                f"It has {', '.join(available) or 'none'}; choose with --cameras.",
            )
        if available[name]:
            raise place.error(f"camera {name!r} cannot be imported: {available[name]}")
    chosen = tuple(wanted) or tuple(name for name, reason in available.items() if not reason)
    if not chosen:
        reasons = "; ".join(dict.fromkeys(f"{n}: {r}" for n, r in available.items()))
        raise place.error(f"no camera can be imported ({reasons or 'there are none'})")
    return chosen


def left_out(available: Mapping[str, str], chosen: Sequence[str]) -> tuple[str, ...]:
    """Say which cameras an import leaves out and why, one sentence each."""
    return tuple(
        f"camera {name} is left out: {reason}"
        for name, reason in available.items()
        if reason and name not in chosen
    )


def view_of(
    options: Options,
    place: SourcePlace,
    camera: str,
    size: tuple[int, int],
    recorded: Callable[[], View],
) -> View:
    """Calibrate a camera: by the side-car where it names the camera, else as recorded.

    Args:
      options: hold the side-car.
      place: the episode.
      camera: name.
      size: height and width of the images [px].
      recorded: reads the source's own calibration.

    Returns:
      The camera.
    """
    given = options.sidecar.cameras.get(camera)
    if given is None:
        return recorded()
    if not np.isclose(given.size[0] * size[1], given.size[1] * size[0]):
        raise place.error(
            f"camera {camera!r} has images of {size[0]}x{size[1]}, but its calibration is for "
            f"{given.size[0]}x{given.size[1]}: another aspect ratio",
            "Cropping moves the principal point: calibrate for the images as they are.",
        )
    return View(size, given.intrinsics_for(size), given.camera_to_world, given.link)


def name_joints(options: Options, place: SourcePlace, joints: Sequence[Joint]) -> tuple[Joint, ...]:
    """Name the joints: by the side-car where it does, else as the source does.

    Args:
      options: hold the side-car.
      place: the episode.
      joints: of the source.

    Returns:
      As many joints.

    Raises:
      BadEpisodeError: the side-car names another number of joints.
    """
    given = options.sidecar.joints
    if not given:
        return tuple(joints)
    if len(given) != len(joints):
        raise place.error(
            f"{options.sidecar.file} names {len(given)} joints, the source has {len(joints)}",
            f"The source's are {', '.join(joint.name for joint in joints)}.",
        )
    return given


def side_by_side(
    cameras: Mapping[str, Callable[[Sequence[int]], Iterator[RgbdImage]]],
) -> Callable[[Sequence[int]], Iterator[Mapping[str, RgbdImage]]]:
    """Join the streams of several cameras into one.

    Args:
      cameras: by name, what streams the images of given rows.

    Returns:
      What `Recording.frames` is.
    """

    def stream(rows: Sequence[int]) -> Iterator[Mapping[str, RgbdImage]]:
        streams = [read(rows) for read in cameras.values()]
        for shown in zip(*streams, strict=True):
            yield dict(zip(cameras, shown, strict=True))

    return stream


def targets_from_actions(
    actions: Float[np.ndarray, "a c"], positions: Float[np.ndarray, "f j"]
) -> tuple[Float[np.ndarray, "f j"] | None, str]:
    """Take recorded actions as absolute joint targets, if that is what they can be.

    One action less than joints is a gripper with two fingers and one command: the fingers' next
    positions stand in for their targets.

    Args:
      actions: row t is commanded from frame t to t + 1.
      positions: measured joints.

    Returns:
      A target for every frame and joint, or None; and what was found, for people.
    """
    count, joints = actions.shape[1], positions.shape[1]
    if not len(actions) or count not in (joints, joints - 1):
        return None, f"next positions, because there are {count} actions for {joints} joints"
    moved = count if count == joints else count - 1
    following = positions[np.minimum(np.arange(len(positions)) + 1, len(positions) - 1)]
    commanded = actions[np.minimum(np.arange(len(positions)), len(actions) - 1), :moved]
    distance = np.abs(commanded - following[:, :moved])[: len(actions)].max()
    if not distance < MAX_TARGET_DISTANCE:
        return None, (
            f"next positions, because actions lie up to {distance:.2g} from them and so are no "
            "absolute joint positions"
        )
    rest = "" if moved == joints else f"; next positions for the last {joints - moved} joints"
    return np.hstack([commanded, following[:, moved:]]), f"actions{rest}"


def base_pose(options: Options) -> Float[np.ndarray, "4 4"]:
    """Return where the robot model's root stands: as the side-car says, else at the origin."""
    given = options.sidecar.base_to_world
    return np.eye(4) if given is None else given


def steady(rate_hz: float, frames: int) -> Float[np.ndarray, "f"]:
    """Return the time stamps of frames recorded at a fixed rate [s]."""
    return np.arange(frames) / rate_hz
