"""The interface of an importer: a source lists episodes and streams the frames of each.

A format converts poses, depth and colours to the native conventions and says what every field meant
in its file. It knows nothing of resampling, image sizes or writing: that is the driver's.
"""

import abc
import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from hdvpd.basics.types import Bool, Float, Int, UInt8
from hdvpd.data.importers.conversions import PoseReading
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.robot_model import Joint
from hdvpd.data.importers.sidecar import Sidecar

Channels = Literal["rgb", "bgr"]


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
      late_s: by how much its images are late [s]: later ones are taken.
    """

    size: tuple[int, int]
    intrinsics: Float[np.ndarray, "*f 3 3"]
    camera_to_world: Float[np.ndarray, "*f 4 4"]
    link: str = "world"
    late_s: float = 0.0


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
class Camera:
    """One camera of an opened episode.

    Attributes:
      view: its calibration.
      meaning: what its fields in the source were taken as, for people.
      read: given ascending rows, of which some may repeat, yields its pictures one after the other.
    """

    view: View
    meaning: str
    read: Callable[[Sequence[int]], Iterator[RgbdImage]]


@dataclass(frozen=True)
class Recording:
    """One opened episode: everything small at once, images as a stream.

    Attributes:
      time_s: time stamps of the frames [s].
      cameras: by name.
      joints: columns of the joint arrays.
      joint_positions: where the joints are.
      joint_targets: row t is what is commanded from frame t to frame t + 1; None where the source
        has no such thing.
      fields: what every field of the source was taken as, cameras aside, for people.
      positions_source: "measured", or "targets" where only commands were recorded.
      end_effectors: tools, for robots without a model.
      base_to_world: pose of the robot model's root.
      robot_xml: a robot model inside the source, MJCF; empty if there is none.
      warnings: what the user should know about the conversion.
    """

    time_s: Float[np.ndarray, "f"]
    cameras: Mapping[str, Camera]
    joints: tuple[Joint, ...]
    joint_positions: Float[np.ndarray, "f j"]
    joint_targets: Float[np.ndarray, "f j"] | None
    fields: Mapping[str, str]
    positions_source: str = "measured"
    end_effectors: tuple[EndEffector, ...] = ()
    base_to_world: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    robot_xml: str = ""
    warnings: tuple[str, ...] = ()

    def has_pictures(self, rows: Int[np.ndarray, "n"]) -> Bool[np.ndarray, "n"]:
        """Say at which rows no camera is so late, or early, that its picture was not recorded."""
        # A frame stands for the time up to half way to the next: the first and last outwards too.
        first_s = self.time_s[0] - np.diff(self.time_s[:2]).sum() / 2
        last_s = self.time_s[-1] + np.diff(self.time_s[-2:]).sum() / 2
        good = np.ones(len(rows), bool)
        for camera in self.cameras.values():
            wanted = self.time_s[rows] + camera.view.late_s
            good &= (wanted >= first_s) & (wanted <= last_s)
        return good

    def frames(self, rows: Sequence[int]) -> Iterator[Mapping[str, RgbdImage]]:
        """Yield the pictures of all cameras at ascending rows of the source, row by row.

        Where a camera is late, those that were stored later are taken.
        """
        streams = [
            camera.read(self._later(rows, camera.view.late_s)) for camera in self.cameras.values()
        ]
        for shown in zip(*streams, strict=True):
            yield dict(zip(self.cameras, shown, strict=True))

    def _later(self, rows: Sequence[int], late_s: float) -> Sequence[int]:
        if not late_s:
            return rows
        wanted = self.time_s[np.asarray(rows)] + late_s
        return [int(np.argmin(np.abs(self.time_s - time))) for time in wanted]


class AbstractSource(abc.ABC):
    """A data set of another format."""

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

        Raises:
          BadEpisodeError: it is damaged, or lacks depth or calibration; `Recording.frames` raises
            the same while it streams.
        """
