"""`meta/info.json` of a LeRobot data set: version, features, and the templates of paths."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hdvpd.basics.errors import UserError
from hdvpd.data.importers.conversions import PoseReading
from hdvpd.data.importers.faults import read_json
from hdvpd.data.importers.sidecar import Sidecar

VERSIONS = {"v3.0": 3, "v2.1": 2}
_PREFIX = {"observation", "images"}
_KIND = {"rgb", "color", "colour", "depth"}
INTRINSICS = ("intrinsics", "intrinsic", "camera_intrinsics")
_TO_WORLD, _TO_CAMERA = PoseReading("camera-to-world"), PoseReading("world-to-camera")
POSES = {
    "camera_pose": _TO_WORLD, "camera_to_world": _TO_WORLD, "cam2world": _TO_WORLD,
    "c2w": _TO_WORLD, "world_to_camera": _TO_CAMERA, "world2cam": _TO_CAMERA, "w2c": _TO_CAMERA,
    "camera_extrinsics": None, "extrinsics": None, "extrinsic": None,
}  # fmt: skip
"""What a pose means by the name of its column; None where the name does not say."""


@dataclass(frozen=True)
class Camera:
    """Features of a camera: its colours and its depth, which may be missing."""

    rgb: str
    depth: str


@dataclass(frozen=True)
class Info:
    """Content of info.json.

    Attributes:
      path: of the data set.
      version: 3 or 2.
      fps: frames per second.
      chunk_size: episodes per folder, version 2.1.
      splits: ranges of episodes by name.
      features: by key.
      data_path: template of the tables.
      video_path: template of the videos.
    """

    path: Path
    version: int
    fps: float
    chunk_size: int
    splits: Mapping[str, Any]
    features: Mapping[str, Mapping[str, Any]]
    data_path: str
    video_path: str

    @property
    def videos(self) -> tuple[str, ...]:
        """Keys of the features that are videos."""
        return tuple(key for key in self.features if self.dtype(key) == "video")

    def dtype(self, key: str) -> str:
        """Type of a feature, such as "video", "image" or "float32"."""
        return str(self.features[key].get("dtype", ""))

    def names(self, key: str) -> tuple[str, ...]:
        """Names of the values of a feature; empty if it has none."""
        names = self.features.get(key, {}).get("names")
        if isinstance(names, Mapping):
            names = next(iter(names.values()), None)
        return tuple(map(str, names)) if isinstance(names, list) else ()

    def about(self, key: str) -> Mapping[str, Any]:
        """What info.json says of a video: `info`, or `video_info` of older writers."""
        found: dict[str, Any] = {}
        for name in ("video_info", "info"):
            part = self.features[key].get(name)
            found |= part if isinstance(part, Mapping) else {}
        return found

    def cameras(self, sidecar: Sidecar) -> dict[str, Camera]:
        """Pair colours with depth: by the side-car where it names features, else by their keys.

        Returns:
          Features by camera; depth is empty where there is none.
        """
        pictures = [key for key in self.features if self.dtype(key) in ("video", "image")]
        depths = {_stem(key): key for key in pictures if self._is_depth(key)}
        colours = {_stem(key): key for key in pictures if not self._is_depth(key)}
        found = {stem: Camera(key, depths.get(stem, "")) for stem, key in colours.items()}
        for name, camera in sidecar.cameras.items():
            usual = found.get(name, Camera("", ""))
            rgb = camera.rgb or usual.rgb
            if rgb not in pictures or camera.depth not in (*pictures, ""):
                wrong = rgb if rgb not in pictures else camera.depth
                raise UserError(
                    f"{sidecar.file}: camera {name!r} names the feature {wrong!r}; the data "
                    f"set has {', '.join(pictures) or 'no pictures'}. Correct its rgb and depth."
                )
            found = {n: c for n, c in found.items() if n == name or c.rgb != rgb}
            depth = camera.depth or usual.depth or depths.get(_stem(rgb), "")
            found[name] = Camera(rgb, depth)
        return found

    def calibration_columns(self, camera: str) -> tuple[str, str, PoseReading | None] | None:
        """Find columns with the calibration of a camera.

        Returns:
          Keys of intrinsics and pose, and what the pose means (None if its name does not say); or
          None without such columns.
        """
        keys = {_flat(key): key for key in self.features}
        alone = len(self.cameras(Sidecar())) == 1
        prefixes = (f"{camera}_camera_", f"{camera}_", *(("",) if alone else ()))
        for prefix in prefixes:
            intrinsics = [keys[prefix + n] for n in INTRINSICS if prefix + n in keys]
            poses = [(keys[prefix + n], d) for n, d in POSES.items() if prefix + n in keys]
            if intrinsics and poses:
                return intrinsics[0], *poses[0]
        return None

    def data_file(self, **values: Any) -> Path:
        """Return the path of a table."""
        return self._file("data_path", self.data_path, values)

    def video_file(self, **values: Any) -> Path:
        """Return the path of a video."""
        return self._file("video_path", self.video_path, values)

    def _file(self, name: str, template: str, values: Mapping[str, Any]) -> Path:
        fault = UserError(
            f"{self.path / 'meta' / 'info.json'}: {name} = {template!r} leads to no file of the "
            "data set; download it again."
        )
        if not re.fullmatch(r"(?:[^{}]|\{\w+(?::\d+d)?\})*", template):
            raise fault
        try:
            file = Path(template.format(**values))
        except (KeyError, ValueError, IndexError) as error:
            raise fault from error
        if file.is_absolute() or ".." in file.parts:
            raise fault
        return self.path / file

    def _is_depth(self, key: str) -> bool:
        about, shape = self.about(key), self.features[key].get("shape")
        if about.get("is_depth_map") or about.get("video.is_depth_map"):
            return True
        return isinstance(shape, list) and 1 in shape and "depth" in key.lower()


def read_info(path: Path) -> Info:
    """Read info.json of a data set.

    Raises:
      UserError: it is missing, damaged or of another version.
    """
    file = path / "meta" / "info.json"
    try:
        raw = read_json(file)
    except FileNotFoundError as error:
        raise UserError(f"{path} is no LeRobot data set: it has no meta/info.json.") from error
    raw = raw if isinstance(raw, Mapping) else {}
    version = raw.get("codebase_version")
    if not isinstance(version, str) or version not in VERSIONS:
        raise UserError(
            f"{file} has codebase_version {version!r}; hdvpd reads {' and '.join(VERSIONS)}. "
            "Convert the data set with LeRobot's own scripts."
        )
    if raw.get("storage_format", "parquet") not in ("parquet", "default", None):
        raise UserError(
            f"{file} has storage_format {raw['storage_format']!r}; hdvpd reads Parquet and video "
            "files. Convert the data set with LeRobot's own scripts."
        )
    features, fps = raw.get("features"), raw.get("fps")
    if not isinstance(features, Mapping) or not all(
        isinstance(f, Mapping) for f in features.values()
    ):
        raise UserError(f"{file} has no usable `features`; download it again.")
    if isinstance(fps, bool) or not isinstance(fps, int | float) or not 0 < fps < 1e6:
        raise UserError(f"{file} has fps {fps!r}, expected frames per second.")
    chunk_size, splits = raw.get("chunks_size", 1000), raw.get("splits")
    return Info(
        path=path,
        version=VERSIONS[str(version)],
        fps=float(fps),
        chunk_size=chunk_size if isinstance(chunk_size, int) and chunk_size > 0 else 1000,
        splits=splits if isinstance(splits, Mapping) else {},
        features=features,
        data_path=str(raw.get("data_path")),
        video_path=str(raw.get("video_path")),
    )


def _flat(key: str) -> str:
    return re.sub(r"[./]", "_", re.sub(r"^observation\.(images\.)?", "", key))


def _stem(key: str) -> str:
    """Name the camera of a feature: observation.images.front_depth is of front."""
    tokens = [t for t in re.split(r"([._/])", key) if t]
    words = [t for t in tokens[::2] if t not in _PREFIX and t.lower() not in _KIND]
    return "_".join(words) or key
