"""Reading a native data set: what it holds, and its arrays, checked.

A `Dataset` knows its cameras, robot and episodes from the JSON files; arrays are opened when they
are asked for, and the latest thousands are kept open: opening is a fifth of the time of reading a
window, and an open array holds its description but no file. Every fault becomes one `UserError`
that names file, episode and frame. The folder may be one in a remote store (`hdvpd.data.remote`).
"""

import concurrent.futures
import functools
import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from hdvpd.basics.errors import UserError
from hdvpd.config import DataConfig, SceneSpec
from hdvpd.data import arrays, remote, schema, writer
from hdvpd.data.corrections import Corrections, read_corrections
from hdvpd.data.metadata import episode_files, read_json
from hdvpd.data.schema import EpisodeInfo
from hdvpd.data.writer import episode_folder

_OPEN_ARRAYS = 4096
_OPENED_AT_ONCE = 16
_RANGES = 6
"""Ranges of numbers that a message names."""


class Dataset:
    """An opened native data set.

    Attributes:
      path: its folder, or its place in a remote store.
      title: names it in messages.
      info: the checked dataset.json, with corrected units of depth.
      episodes: every finished episode, by ascending number.
      corrections: that are applied to everything that is read.
    """

    def __init__(self, path: str | Path, *, corrections: Corrections | None = None) -> None:
        """Read dataset.json and every episode.json.

        Args:
          path: the folder, or the address of a remote one.
          corrections: to apply; None takes `corrections.json` if there is one.

        Raises:
          UserError: it does not exist, is no data set, holds no episode or is damaged.
        """
        self.path = remote.locate(path)
        self.title = str(self.path)
        file = self.path / "dataset.json"
        if not file.is_file():
            if isinstance(self.path, remote.RemotePath):
                raise remote.missing_dataset(self.path)
            raise UserError(
                f"There is no data set at {self.path} ({file.name} is missing). Simulate one with "
                f"`hdvpd data simulate --out {self.path}`, or name another folder, "
                "for training and evaluation with --data.path."
            )
        unfinished = self.path / writer.INCOMPLETE
        if unfinished.exists():
            raise UserError(
                f"The data set {self.path} is incomplete: what writes it has not ended "
                f"({unfinished.name} is there). Run the same command again: `hdvpd data import` "
                "continues, and with --skip-bad it leaves bad episodes out; for `hdvpd data "
                "calibrate` remove the folder first."
            )
        self._stored = schema.parse_dataset(read_json(file), file)
        self.corrections = read_corrections(self.path) if corrections is None else corrections
        self.info = self.corrections.description(self._stored)
        self.episodes = tuple(
            schema.parse_episode(raw, number, file)
            for number, file, raw in episode_files(self.path)
        )
        if not self.episodes:
            raise UserError(
                f"The data set {self.path} holds no finished episode. Run the `hdvpd data "
                "simulate` command that began it again; it continues where it stopped."
            )
        self._by_number = {episode.number: episode for episode in self.episodes}
        self._keep_open()

    def _keep_open(self) -> None:
        self._opened = functools.lru_cache(_OPEN_ARRAYS)(self._open_array)
        self._found = functools.lru_cache(_OPEN_ARRAYS)(self._find_array)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is open: another process opens its own."""
        return {k: v for k, v in vars(self).items() if k not in ("_opened", "_found")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._keep_open()

    @property
    def sources(self) -> tuple["Dataset", ...]:
        """The data sets it is made of: itself, unless it is a mixture."""
        return (self,)

    def source_of(self, number: int) -> tuple["Dataset", int]:
        """Return the data set that holds an episode, and the episode's number there."""
        return self, number

    def episode_title(self, number: int) -> str:
        """Return what a message says of an episode after the word."""
        return str(number)

    def window_id(self, episode: int, start: int) -> tuple[int | str, ...]:
        """Return what a log says of a window: its episode and first frame."""
        return episode, start

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names of the cameras."""
        return tuple(self.info.cameras)

    @property
    def robot(self) -> schema.RobotInfo:
        """Joints, links and kinematic points."""
        return self.info.robot

    @property
    def workspace_min(self) -> tuple[float, float, float]:
        """Lower corner of the workspace box, world frame [m]."""
        return self.info.workspace_min

    @property
    def workspace_max(self) -> tuple[float, float, float]:
        """Upper corner of the workspace box, world frame [m]."""
        return self.info.workspace_max

    @property
    def rate_hz(self) -> float:
        """Frames per second."""
        return self.info.rate_hz

    @property
    def moving_cameras(self) -> tuple[str, ...]:
        """Names of the cameras that a link carries.

        Their pose is the measured one in every frame, also in those that a model predicts.
        """
        return tuple(n for n, camera in self.info.cameras.items() if camera.mount != "world")

    @property
    def joint_positions_source(self) -> str:
        """Where measured joints come from: measured, or targets; both if episodes differ."""
        return _joined(e.joint_positions_source for e in self.episodes)

    @property
    def joint_targets_source(self) -> str:
        """What the planned robot is: commanded, or next_positions; both if episodes differ.

        With next_positions a model is told where the robot went, not where it was sent.
        """
        return _joined(e.joint_targets_source for e in self.episodes)

    @property
    def links_source(self) -> str:
        """What link poses were computed from: a robot, its file, or the source's end effectors."""
        return _joined(e.links_source or self.robot.name for e in self.episodes)

    def episode(self, number: int) -> EpisodeInfo:
        """Return what is known of one episode.

        Raises:
          UserError: there is no such episode, or it is not given by a whole number.
        """
        if not isinstance(number, int | np.integer):  # 3.0 equals 3, but names no folder
            raise UserError(
                f"An episode is given by its number, a whole one such as {self.episodes[0].number},"
                f" not by {number!r} ({type(number).__name__})."
            )
        if number not in self._by_number:
            raise UserError(
                f"The data set {self.title} has no episode {number}; it has {self._numbers()}."
            )
        return self._by_number[number]

    def _numbers(self) -> str:
        """Name the numbers of the episodes, those that follow each other as a range."""
        numbers = [episode.number for episode in self.episodes]
        first = [n for k, n in enumerate(numbers) if k == 0 or numbers[k - 1] != n - 1]
        last = [n for k, n in enumerate(numbers) if n + 1 not in numbers[k + 1 : k + 2]]
        ranges = [f"{a} to {b}" if a < b else f"{a}" for a, b in zip(first, last, strict=True)]
        if len(ranges) > _RANGES:
            ranges = [*ranges[: _RANGES - 1], "...", ranges[-1]]
        return ", ".join(ranges)

    def objects(self, episode: EpisodeInfo) -> tuple[schema.ObjectInfo, ...]:
        """Return the objects of an episode, in the order of `truth/object_to_world`."""
        return self.info.objects if episode.objects is None else episode.objects

    def split(self, name: str) -> tuple[EpisodeInfo, ...]:
        """Return the episodes of a split by ascending number; none if it is empty."""
        return tuple(episode for episode in self.episodes if episode.split == name)

    def identity(self) -> str:
        """Return a fingerprint of dataset.json and of every episode.json, wherever the data lie."""
        listed = [[e.number, e.length, e.task, e.split, e.seed] for e in self.episodes]
        corrected = [self.corrections.as_plain()] if self.corrections else []
        text = json.dumps([self.info.raw, listed, *corrected], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def scene_spec(self, data_config: DataConfig) -> SceneSpec:
        """Return the number of kinematic points, and the workspace box, which may be overridden."""
        low = _corner(data_config.workspace_min) or self.workspace_min
        high = _corner(data_config.workspace_max) or self.workspace_max
        return SceneSpec(self.robot.skeleton.num_points, low, high)

    def check_arrays(self) -> None:
        """Open every array of every episode and check its shape and type, reading none.

        Raises:
          UserError: one is missing, or not what it should be.
        """

        def check(episode: EpisodeInfo) -> None:
            for name in arrays.names_of(self.info):
                if not arrays.spec_of(name).optional or self.has_array(episode.number, name):
                    self.open_array(episode.number, name)

        with concurrent.futures.ThreadPoolExecutor(_OPENED_AT_ONCE) as pool:
            for _ in pool.map(check, self.episodes):
                pass

    def open_array(self, number: int, name: str) -> tensorstore.TensorStore:
        """Open one array of an episode, not reading it, and check what it claims to be.

        Raises:
          UserError: it is missing, unreadable, or has another shape or type than it should.
        """
        return self._opened(number, name)

    def _open_array(self, number: int, name: str) -> tensorstore.TensorStore:
        file = episode_folder(self.path, number) / name
        spec = {
            "driver": "zarr3",
            "kvstore": remote.kvstore(file),
            # By default a missing shard would read as zeros.
            "fill_missing_data_reads": False,
        }
        try:
            array = tensorstore.open(spec, open=True, read=True).result()
        except ValueError as error:
            if (unreachable := remote.explain(file, error)) is not None:
                raise unreachable from error
            reason = "it is missing" if not file.exists() else str(error).split(" [", 1)[0]
            raise UserError(
                f"{file}: array '{name}' of episode {number} cannot be opened: {reason}. Restore "
                f"it from a copy, or delete {file.parents[len(Path(name).parts) - 1]} and write "
                "the episode again."
            ) from error
        self._check(array, number, name, file)
        return array

    def has_array(self, number: int, name: str) -> bool:
        """Say whether an episode has an array; it may still be damaged."""
        if isinstance(self.path, remote.RemotePath):
            return self._found(number, name)  # every look is a request
        return self._find_array(number, name)

    def _find_array(self, number: int, name: str) -> bool:
        return (episode_folder(self.path, number) / name / "zarr.json").is_file()

    def read(
        self, number: int, name: str, start: int | None = None, length: int | None = None
    ) -> np.ndarray:
        """Read an array of an episode, or some of its frames, as `read_many` does.

        Raises:
          UserError: it is missing, damaged, or not what it should be.
        """
        return self.read_many(number, [name], start, length)[name]

    def read_many(
        self, number: int, names: list[str], start: int | None = None, length: int | None = None
    ) -> dict[str, np.ndarray]:
        """Read several arrays of an episode at once.

        Args:
          number: of the episode.
          names: their paths inside the episode.
          start: first frame, or None for whole arrays.
          length: frames to read, when start is given.

        Returns:
          The values as stored, by name.

        Raises:
          UserError: one is missing, damaged, or not what it should be.
        """
        views = {}
        for name in names:
            array = self.open_array(number, name)
            spec = arrays.spec_of(name)
            still = spec.steady and array.rank < len(spec.dimensions)
            if start is not None and not still:
                array = array[start : start + (length or 1)]
            views[name] = array
        futures = {name: view.read() for name, view in views.items()}
        values = {}
        for name, future in futures.items():
            try:
                values[name] = np.asarray(future.result())
            except ValueError as error:
                place = episode_folder(self.path, number) / name
                unreachable = remote.explain(place, error)
                raise unreachable or self._damaged(number, name, views[name], error) from error
        if self.corrections:
            for name in names:
                values[name] = self._correct(number, name, values[name], start, length)
        return values

    def _correct(
        self, number: int, name: str, values: np.ndarray, start: int | None, length: int | None
    ) -> np.ndarray:
        if name in (arrays.LINKS, arrays.TARGET_LINKS):
            return self.corrections.links(values, self.robot.links).astype(values.dtype)
        if name in (arrays.JOINT_POSITIONS, arrays.JOINT_TARGETS):
            return self.corrections.joint_values(values, self.robot.joints).astype(values.dtype)
        folder, _, rest = name.partition("/")
        camera, _, key = rest.rpartition("/")
        correction = self.corrections.cameras.get(camera) if folder == "cameras" else None
        if correction is None:
            return values
        if key == "rgb":
            return np.ascontiguousarray(correction.images(values))
        if key == "intrinsics":
            return correction.matrices(values)
        if key == "camera_to_world":
            return correction.poses(values)
        if key != "depth" or not correction.changes_depth:
            return values
        intrinsics = self.read(number, arrays.camera_array(camera, "intrinsics"), start, length)
        unit_m = self._stored.cameras[camera].depth_unit_m
        return correction.depth(values, intrinsics, unit_m)

    def _check(self, array: tensorstore.TensorStore, number: int, name: str, file: Path) -> None:
        shapes = arrays.shapes_of(name, self.info, self.episode(number).length)
        dtype, dtypes = array.dtype.name, arrays.spec_of(name).dtypes
        if dtypes and dtype not in dtypes:
            raise UserError(
                f"{file}: array '{name}' of episode {number} has type {dtype}, expected "
                f"{' or '.join(dtypes)}; write it again with that type."
            )
        if shapes and tuple(array.shape) not in shapes:
            raise UserError(
                f"{file}: array '{name}' of episode {number} has shape {tuple(array.shape)}, "
                f"expected {' or '.join(map(str, shapes))} from dataset.json and episode.json; "
                "write the episode again."
            )

    def _damaged(
        self, number: int, name: str, view: tensorstore.TensorStore, error: Exception
    ) -> UserError:
        folder = episode_folder(self.path, number)
        frame = _first_damaged_frame(view) if arrays.spec_of(name).chunk_frames else None
        where = "" if frame is None else f" frame {frame}"
        reason = str(error).split(":", 1)[0]
        meaning = {"DATA_LOSS": "its checksum does not match", "NOT_FOUND": "data are missing"}
        return UserError(
            f"{folder / name}: array '{name}' of episode {number}{where} is damaged "
            f"({meaning.get(reason, str(error).split(' [', 1)[0])}). Restore it from a copy, or "
            f"delete {folder} and run the command that wrote the data set again."
        )


def _joined(labels: Iterable[str]) -> str:
    return ", ".join(sorted(set(labels)))


def _first_damaged_frame(view: tensorstore.TensorStore) -> int | None:
    begin, end = view.domain[0].inclusive_min, view.domain[0].exclusive_max
    for frame in range(begin, end):
        try:
            view[frame].read().result()
        except ValueError:
            return frame
    return None


def _corner(values: tuple[float, ...]) -> tuple[float, float, float] | None:
    return (float(values[0]), float(values[1]), float(values[2])) if values else None
