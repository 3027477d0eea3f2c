"""LeRobot data sets, version 3.0 and 2.1: Parquet tables and videos.

```
meta/info.json                              version, fps, features, templates of the paths below
meta/episodes/chunk-000/file-000.parquet    3.0: a row per episode, where rows and frames are
meta/episodes.jsonl                         2.1: a line per episode
data/chunk-000/file-000.parquet             3.0: many episodes; 2.1: episode_000000.parquet
videos/<key>/chunk-000/file-000.mp4         3.0: many episodes, each from its from_timestamp on
videos/chunk-000/<key>/episode_000000.mp4   2.1
```

Depth is a feature of one channel: a video of 12-bit codes whose range info.json states, a video of
integers in a unit, or TIFF images inside the table (lerobot_depth.py). LeRobot has no standard for
calibration: it comes from the side-car or from columns (lerobot_calibration.py).
"""

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data.importers import base, images
from hdvpd.data.importers.common import Choices
from hdvpd.data.importers.conversions import PoseReading
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.lerobot_calibration import recorded_view
from hdvpd.data.importers.lerobot_depth import DepthCoding, depth_coding
from hdvpd.data.importers.lerobot_episodes import LeRobotEpisode, list_episodes
from hdvpd.data.importers.lerobot_info import Camera, Info, read_info
from hdvpd.data.importers.parquet import Table, open_parquet
from hdvpd.data.importers.sidecar import FILE_NAME, read_sidecar
from hdvpd.data.importers.video import Video, open_video

MAX_RADIANS = 4 * np.pi
"""Joint values beyond two turns are probably degrees, or the percentages of LeRobot's own arms."""
READINGS = tuple(
    PoseReading(direction, axes)
    for axes in ("opencv", "opengl")
    for direction in ("camera-to-world", "world-to-camera")
)
"""What a column of extrinsics may hold."""
_STATE, _ACTION = "observation.state", "action"


class LeRobotSource(base.AbstractSource):
    """A LeRobot data set."""

    packages = ("pyarrow", "av")
    has_actions = True

    def __init__(self, path: Path, options: base.Options) -> None:
        """Take the calibration beside the data, unless the options hold one."""
        if options.sidecar.file == Path() and (path / FILE_NAME).exists():
            options = dataclasses.replace(options, sidecar=read_sidecar(path / FILE_NAME))
        super().__init__(path, options)

    def episodes(self) -> tuple[base.SourceEpisode, ...]:
        """List the episodes by number."""
        return list_episodes(read_info(self.path))

    def readings(self) -> tuple[PoseReading, ...]:
        """List what poses may mean in columns whose names do not say it."""
        given = self.options.sidecar
        if given.extrinsics is not None:
            return ()
        info = read_info(self.path)
        names = self.options.cameras or tuple(info.cameras(given))
        found = [info.calibration_columns(name) for name in names if name not in given.cameras]
        is_open = any(columns is not None and columns[2] is None for columns in found)
        return READINGS if is_open else ()

    @contextlib.contextmanager
    def open(self, episode: base.SourceEpisode) -> Iterator[base.Recording]:
        """Open one episode."""
        assert isinstance(episode, LeRobotEpisode)
        place, info = episode.place, read_info(self.path)
        with open_parquet(episode.file, place) as table, contextlib.ExitStack() as stack:
            rows = _Rows(place, table, info, episode, stack)
            time_s = rows.numbers("timestamp")[:, 0]
            codings = {
                name: depth_coding(info, camera, self.options, name)
                for name, camera in info.cameras(self.options.sidecar).items()
            }
            choices = Choices(place, self.options)
            names, warnings = choices.cameras(
                {
                    name: coding if isinstance(coding, str) else self._uncalibrated(info, name)
                    for name, coding in codings.items()
                }
            )
            usable = {n: coding for n, coding in codings.items() if isinstance(coding, DepthCoding)}
            state = _State(rows, choices)
            targets, commanded = self._targets(rows, state, choices)
            yield base.Recording(
                time_s=time_s,
                cameras={
                    name: _Pictures(rows, name, usable[name], choices, time_s).camera()
                    for name in names
                },
                joints=state.joints,
                joint_positions=state.values[:, state.columns],
                joint_targets=None if targets is None else targets[:, state.columns],
                end_effectors=choices.end_effectors(state.named),
                base_to_world=choices.base_to_world(),
                fields={
                    "joint_positions": f"{_STATE}, measured",
                    "joint_targets": commanded,
                    "time": f"timestamp, about {info.fps:g} Hz",
                },
                warnings=(*warnings, *state.unit_warnings()),
            )

    def _uncalibrated(self, info: Info, name: str) -> str:
        if name in self.options.sidecar.cameras or info.calibration_columns(name) is not None:
            return ""
        return (
            "it has no calibration, for which LeRobot has no standard: write "
            f"{FILE_NAME} into the data set (docs/importing.md)"
        )

    def _targets(
        self, rows: "_Rows", state: "_State", choices: Choices
    ) -> tuple[np.ndarray | None, str]:
        names = rows.info.names(_ACTION)
        alike = names and names == rows.info.names(_STATE)
        if not (alike or self.options.joint_targets):
            return None, "next positions, because action is not named like the state"
        return choices.targets(rows.numbers(_ACTION), state.values)


class _Rows:
    """The rows of one episode in its table."""

    def __init__(
        self,
        place: SourcePlace,
        table: Table,
        info: Info,
        episode: LeRobotEpisode,
        stack: contextlib.ExitStack,
    ) -> None:
        self.place, self.table, self.info, self.episode = place, table, info, episode
        self._stack, self._videos = stack, dict[str, Video]()
        self.columns = table.columns
        self.first, self._stop = table.rows_of("episode_index", episode.index)
        found = self._stop - self.first
        if found != episode.length:
            raise place.error(
                f"the table has {found} rows, meta/episodes says {episode.length}",
                "Download the data set again.",
            )
        expected = np.arange(found)
        place.require(
            np.asarray(self.numbers("frame_index")[:, 0] == expected),
            "frame_index",
            "the rows do not count up from 0",
            "Write the data set again: rows of an episode are in order.",
        )

    def numbers(self, column: str) -> Float[np.ndarray, "f c"]:
        """Read a column of the episode."""
        return self.table.numbers(column, self.first, self._stop)

    def video(self, key: str) -> Video:
        """Open the video of a feature, once: that takes as long as decoding many frames."""
        if key not in self._videos:
            self._videos[key] = self._stack.enter_context(open_video(self.video_place(key)))
        return self._videos[key]

    def video_place(self, key: str) -> SourcePlace:
        """Where the video of a feature is, for messages."""
        return SourcePlace(self.episode.clips[key].file, self.episode.name)

    def stream(self, column: str, rows: Sequence[int]) -> Iterator[Any]:
        """Stream a column of the episode."""
        return self.table.stream(column, [self.first + row for row in rows])


class _State:
    """The state of one episode: joints, and whatever else the robot records in it.

    Attributes:
      values: of every frame.
      columns: those that are joints: the ones the side-car names, else all.
      joints: of these columns.
    """

    def __init__(self, rows: _Rows, choices: Choices) -> None:
        self._place, self._sidecar = rows.place, choices.options.sidecar
        self.values = rows.numbers(_STATE)
        count = self.values.shape[1]
        self._names = list(rows.info.names(_STATE)) or [f"joint{k + 1}" for k in range(count)]
        if len(self._names) != count:
            raise rows.place.error(
                f"{_STATE} has {count} values, info.json names {len(self._names)}",
                "Repair `names` in meta/info.json.",
            )
        given = [joint.name for joint in self._sidecar.joints]
        self.columns = list(range(count))
        if given and len(given) != count and set(given) <= set(self._names):
            self.columns = [self._names.index(name) for name in given]
        named = [_joint(self._names[k]) for k in self.columns]
        self.joints = choices.joints(named)

    def named(self, names: Sequence[str]) -> Float[np.ndarray, "f c"]:
        """Return the values of these names, which the side-car says are there."""
        missing = [name for name in names if name not in self._names]
        if missing:
            raise self._place.error(
                f"{_STATE} has no value named {missing[0]!r}; it has {', '.join(self._names)}",
                f"{self._sidecar.file} names the end effectors.",
            )
        return self.values[:, [self._names.index(name) for name in names]]

    def unit_warnings(self) -> Iterator[str]:
        """Say which joints cannot be radians."""
        reached = np.abs(self.values[:, self.columns]).max(axis=0, initial=0.0)
        pairs = zip(self.joints, reached, strict=True)
        large = [joint.name for joint, most in pairs if most > MAX_RADIANS]
        if large:
            yield (
                f"joints {', '.join(large)} reach {reached.max():.4g}, which is not radians; "
                "LeRobot's own arms record degrees or percentages: convert them before --robot"
            )


class _Pictures:
    """One camera of one episode."""

    def __init__(
        self,
        rows: _Rows,
        name: str,
        coding: DepthCoding,
        choices: Choices,
        time_s: np.ndarray,
    ) -> None:
        self._rows, self._name, self._coding = rows, name, coding
        self._choices, self._time_s = choices, time_s
        self._camera: Camera = rows.info.cameras(choices.options.sidecar)[name]
        self._size = self._stored_size(self._camera.rgb)
        depth_size = self._stored_size(self._camera.depth)
        if depth_size != self._size:
            raise rows.place.error(
                f"camera {name!r}: its depth is {depth_size[0]}x{depth_size[1]}, its colours "
                f"{self._size[0]}x{self._size[1]}",
                "Depth must be aligned with the colours, pixel by pixel.",
            )

    def camera(self) -> base.Camera:
        """Calibrate it."""
        rows, options, origin = self._rows, self._choices.options, "as given"
        extrinsics = options.extrinsics or options.sidecar.extrinsics

        def recorded() -> base.View:
            nonlocal origin
            view, origin = recorded_view(
                rows.place, rows.info, self._name, self._size, rows.numbers, extrinsics
            )
            return view

        view = self._choices.view(self._name, self._size, recorded)
        meaning = (
            f"rgb from {self._camera.rgb} as {self._choices.channels()}, depth from "
            f"{self._camera.depth}: {self._coding.meaning}; calibration {origin}"
        )
        return base.Camera(view, meaning, self._read)

    def _read(self, rows: Sequence[int]) -> Iterator[base.RgbdImage]:
        channels = self._choices.channels()
        colours = self._colours(rows)
        for row, rgb, depth in zip(rows, colours, self._depths(rows), strict=True):
            size = self._size
            if rgb.shape[:2] != size or depth.shape != size:
                raise self._rows.place.error(
                    f"{self._camera.rgb} is {rgb.shape[0]}x{rgb.shape[1]}, {self._camera.depth} "
                    f"{depth.shape[0]}x{depth.shape[1]}, expected {size[0]}x{size[1]}",
                    "All images of a camera have one size.",
                    row,
                )
            yield base.RgbdImage(images.in_rgb_order(rgb, channels), depth)

    def _colours(self, rows: Sequence[int]) -> Iterator[np.ndarray]:
        key, place = self._camera.rgb, self._rows.place
        if self._is_video(key):
            yield from (picture.rgb() for picture in self._frames(key, rows))
            return
        for row, data in zip(rows, self._stored(key, rows), strict=True):
            yield images.decode_rgb(data, place, row, self._size, key)

    def _depths(self, rows: Sequence[int]) -> Iterator[np.ndarray]:
        key, place = self._camera.depth, self._rows.place
        if self._is_video(key):
            for row, picture in zip(rows, self._frames(key, rows), strict=True):
                samples = self._coding.checked_samples(picture, self._rows.video_place(key), row)
                yield self._coding.metres(samples)
            return
        for row, data in zip(rows, self._stored(key, rows), strict=True):
            yield self._coding.metres(images.decode_depth(data, place, row, self._size, key))

    def _frames(self, key: str, rows: Sequence[int]) -> Iterator[Any]:
        # The table's clock begins at 0 in every episode, the video's only with the file. Files of
        # version 3 hold many episodes, so a row's frame is at its episode's start plus its own
        # time. Not row / fps: where a camera lost frames, that would drift off by as many; fps is
        # nominal and decides no more than how near a frame must be.
        clip = self._rows.episode.clips[key]
        times = clip.start_s + self._time_s[list(rows)]
        return self._rows.video(key).frames(rows, times, 1 / self._rows.info.fps)

    def _stored(self, key: str, rows: Sequence[int]) -> Iterator[bytes]:
        for row, value in zip(rows, self._rows.stream(key, rows), strict=True):
            data = value.get("bytes") if isinstance(value, Mapping) else None
            if not isinstance(data, bytes):
                raise self._rows.place.error(
                    f"{key} holds no picture",
                    "Pictures are stored inside the table, as LeRobot's own writer does.",
                    row,
                )
            yield data

    def _stored_size(self, key: str) -> tuple[int, int]:
        if self._is_video(key):
            return self._rows.video(key).size
        (data,) = self._stored(key, [0])
        first = images.decode(data, self._rows.place, 0, None, key)
        return (first.shape[0], first.shape[1])

    def _is_video(self, key: str) -> bool:
        return self._rows.info.dtype(key) == "video"


def _joint(name: str) -> base.Joint:
    safe = re.sub(r"[^\w.+-]", "_", name)
    return base.Joint(safe, "1" if "grip" in name.lower() else "rad")
