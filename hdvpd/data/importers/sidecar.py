"""`hdvpd_calibration.json`: what a user writes by hand about cameras, joints and robot.

The `folder` format needs it; for every other one it may be given with --calibration and then
overrides what the source says. docs/importing.md describes the keys.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, get_args

import numpy as np

from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError, nearest
from hdvpd.basics.types import Float
from hdvpd.data import pinhole
from hdvpd.data.corrections import Corrections, parse_corrections
from hdvpd.data.importers import conversions
from hdvpd.data.importers.faults import read_json
from hdvpd.data.importers.robot_model import Joint

FILE_NAME = "hdvpd_calibration.json"
VERSION = 1
SAFE_NAME = re.compile(r"\w[\w.+-]*", re.ASCII)
UNITS = ("rad", "m", "1")
_KEYS = (
    "version", "cameras", "joints", "end_effectors", "robot", "workspace", "extrinsics",
    "corrections",
)  # fmt: skip
_CAMERA_KEYS = (
    "rgb", "depth", "image_size", "intrinsics", "camera_to_world", "camera_to_link", "link",
    "axes", "depth_unit_m", "pixel_centre",
)  # fmt: skip


@dataclass(frozen=True)
class SidecarCamera:
    """Calibration of one camera.

    Attributes:
      size: height and width of the images the intrinsics are for [px].
      intrinsics: [px].
      camera_to_world: OpenCV axes; relative to the link if there is one.
      link: that carries the camera, or "world".
      depth_unit_m: metres per stored unit, or None.
      rgb: where the colours are; its meaning depends on the format. Empty means the usual place.
      depth: where depth is, likewise.
    """

    size: tuple[int, int]
    intrinsics: Float[np.ndarray, "3 3"]
    camera_to_world: Float[np.ndarray, "4 4"]
    link: str = "world"
    depth_unit_m: float | None = None
    rgb: str = ""
    depth: str = ""

    def intrinsics_for(self, size: tuple[int, int]) -> Float[np.ndarray, "3 3"]:
        """Return the intrinsics of images of another size [px]."""
        return pinhole.scale_intrinsics(self.intrinsics, self.size, size)


@dataclass(frozen=True)
class Sidecar:
    """Content of a calibration file; empty if there is none.

    Attributes:
      file: where it came from.
      cameras: by name.
      joints: columns of the joint arrays in order; empty leaves them to the source.
      end_effectors: name and arm of every recorded tool, for robots without a model.
      base_to_world: pose of the robot model's root, or None.
      workspace: lower and upper corner of the workspace box [m], or None.
      extrinsics: what camera poses recorded in the source mean, or None.
      corrections: of the imported arrays, as `hdvpd data calibrate` writes them.
    """

    file: Path = Path()
    cameras: Mapping[str, SidecarCamera] = field(default_factory=dict)
    joints: tuple[Joint, ...] = ()
    end_effectors: tuple[tuple[str, str], ...] = ()
    base_to_world: Float[np.ndarray, "4 4"] | None = None
    workspace: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    extrinsics: conversions.PoseReading | None = None
    corrections: Corrections = field(default_factory=Corrections)


def read_sidecar(file: Path) -> Sidecar:
    """Read a calibration file.

    Raises:
      UserError: it is missing, damaged, of another version, or a key or value is impossible.
    """
    raw = _read(file)
    try:
        _require_known(raw, _KEYS, "it")
        for key in ("joints", "end_effectors"):
            _require_unique(_list(raw, key), key)
        return Sidecar(
            file=file,
            cameras={
                name: _camera(camera, f"cameras.{name}")
                for name, camera in _object(raw.get("cameras", {}), "cameras").items()
            },
            joints=tuple(
                _joint(joint, f"joints[{k}]") for k, joint in enumerate(_list(raw, "joints"))
            ),
            end_effectors=tuple(
                _tool(tool, f"end_effectors[{k}]")
                for k, tool in enumerate(_list(raw, "end_effectors"))
            ),
            base_to_world=_base(_object(raw.get("robot", {}), "robot")),
            workspace=_workspace(raw.get("workspace")),
            extrinsics=_extrinsics(raw.get("extrinsics")),
            corrections=_corrections(raw["corrections"], file)
            if "corrections" in raw
            else Corrections(),
        )
    except _FaultError as fault:
        raise UserError(f"{file}: {fault} See docs/importing.md.") from fault


class _FaultError(Exception):
    """Something is wrong in the file; the caller adds its name."""


def _read(file: Path) -> Mapping[str, Any]:
    try:
        raw = read_json(file, "Repair it.")
    except FileNotFoundError as error:
        raise UserError(
            f"There is no calibration file {file}; docs/importing.md shows how to write one."
        ) from error
    if not isinstance(raw, Mapping):
        raise UserError(f"{file} should hold one JSON object; docs/importing.md shows one.")
    if raw.get("version") != VERSION:
        raise UserError(
            f"{file} has version {raw.get('version')!r}; this hdvpd reads version {VERSION}."
        )
    return raw


def _camera(raw: Any, key: str) -> SidecarCamera:
    raw = _object(raw, key)
    _name(key.partition(".")[2], "cameras")
    _require_known(raw, _CAMERA_KEYS, key)
    axes = raw.get("axes", "opencv")
    if axes not in pinhole.AXES:
        raise _FaultError(f"{key}.axes = {axes!r} should be one of {', '.join(pinhole.AXES)}.")
    link = str(raw.get("link", "world"))
    pose_key = "camera_to_world" if link == "world" else "camera_to_link"
    pose = _matrix(raw.get(pose_key), (4, 4), f"{key}.{pose_key}")
    size = raw.get("image_size")
    if not (isinstance(size, Sequence) and len(size) == 2 and all(_is_count(n) for n in size)):
        raise _FaultError(f"{key}.image_size = {size!r} should be [height, width] in pixels.")
    intrinsics = _matrix(raw.get("intrinsics"), (3, 3), f"{key}.intrinsics")
    unit = raw.get("depth_unit_m")
    if unit is not None and not (_is_number(unit) and unit > 0):
        raise _FaultError(f"{key}.depth_unit_m = {unit!r} should be metres per stored unit.")
    centre = raw.get("pixel_centre", 0.5)
    if centre not in (0, 0.5):
        raise _FaultError(
            f"{key}.pixel_centre = {centre!r} should be 0.5, or 0 as OpenCV calibrates."
        )
    intrinsics[:2, 2] += 0.5 - centre
    return SidecarCamera(
        size=(int(size[0]), int(size[1])),
        intrinsics=np.abs(intrinsics) if axes == "coppeliasim" else intrinsics,
        camera_to_world=pose @ pinhole.AXES[axes],
        link=link,
        depth_unit_m=None if unit is None else float(unit),
        rgb=_inside(raw.get("rgb", ""), f"{key}.rgb"),
        depth=_inside(raw.get("depth", ""), f"{key}.depth"),
    )


def _joint(raw: Any, key: str) -> Joint:
    raw = _object(raw, key)
    _require_known(raw, ("name", "unit", "arm", "drives"), key)
    unit = raw.get("unit", "rad")
    if unit not in UNITS:
        raise _FaultError(f"{key}.unit = {unit!r} should be one of {', '.join(UNITS)}.")
    drives = _object(raw.get("drives", {}), f"{key}.drives")
    for name, factor in drives.items():
        if not _is_number(factor):
            raise _FaultError(f"{key}.drives.{name} = {factor!r} should be a number.")
    return Joint(
        name=_name(raw.get("name"), f"{key}.name"),
        unit=unit,
        arm=str(raw.get("arm", "")),
        drives={str(name): float(factor) for name, factor in drives.items()},
    )


def _tool(raw: Mapping[str, Any], key: str) -> tuple[str, str]:
    _require_known(raw, ("name", "arm"), key)
    return _name(raw.get("name"), f"{key}.name"), str(raw.get("arm", ""))


def _base(raw: Mapping[str, Any]) -> Float[np.ndarray, "4 4"] | None:
    _require_known(raw, ("base_to_world",), "robot")
    if "base_to_world" not in raw:
        return None
    return _matrix(raw["base_to_world"], (4, 4), "robot.base_to_world")


def _workspace(raw: Any) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    if raw is None:
        return None
    raw = _object(raw, "workspace")
    _require_known(raw, ("min", "max"), "workspace")
    low = _matrix(raw.get("min"), (3,), "workspace.min")
    high = _matrix(raw.get("max"), (3,), "workspace.max")
    if not (low < high).all():
        raise _FaultError(f"workspace.min = {low.tolist()} must lie below max = {high.tolist()}.")
    return tuple(low.tolist()), tuple(high.tolist())


def _extrinsics(raw: Any) -> conversions.PoseReading | None:
    if raw is None:
        return None
    raw = _object(raw, "extrinsics")
    _require_known(raw, ("direction", "axes"), "extrinsics")
    direction, axes = raw.get("direction"), raw.get("axes", "opencv")
    known = get_args(conversions.Direction)
    if direction not in known:
        raise _FaultError(f"extrinsics.direction = {direction!r} should be {' or '.join(known)}.")
    if axes not in pinhole.AXES:
        raise _FaultError(f"extrinsics.axes = {axes!r} should be one of {', '.join(pinhole.AXES)}.")
    return conversions.PoseReading(direction, axes)


def _corrections(raw: Any, file: Path) -> Corrections:
    parsed = parse_corrections(raw, file)  # which checks the keys of cameras
    # A digest is that of the file from which it was copied.
    _require_known(raw, ("format", "version", "cameras", "robot", sealed.KEY), "corrections")
    robot = raw.get("robot", {})
    _require_known(robot, ("pose", "joints"), "corrections.robot")
    for name, joint in robot.get("joints", {}).items():
        known = ("offset", "link", "moves", "twist")
        _require_known(joint, known, f"corrections.robot.joints.{name}")
    return parsed


def _require_known(raw: Mapping[str, Any], known: Sequence[str], key: str) -> None:
    for name in raw:
        if name not in known:
            near = nearest(name, known)
            meant = f"did you mean {near!r}?" if near else f"known are {', '.join(known)}."
            raise _FaultError(f"{key} has the unknown key {name!r}; {meant}")


def _require_unique(entries: Sequence[Mapping[str, Any]], key: str) -> None:
    """Refuse a name of two entries, which the finished data set could not be read with."""
    first: dict[str, int] = {}
    for k, entry in enumerate(entries):
        name = str(entry.get("name"))
        if name in first:
            raise _FaultError(
                f"{key}[{first[name]}] and {key}[{k}] are both named {name!r}; give each a name of "
                "its own, or remove one."
            )
        first[name] = k


def _matrix(raw: Any, shape: tuple[int, ...], key: str) -> np.ndarray:
    size = "x".join(map(str, shape))
    try:
        values = np.array(raw, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise _FaultError(f"{key} = {raw!r} should be {size} numbers.") from error
    if values.shape != shape or not np.isfinite(values).all():
        raise _FaultError(f"{key} = {raw!r} should be {size} finite numbers.")
    return values


def _object(raw: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(raw, Mapping):
        raise _FaultError(f"{key} = {raw!r} should be an object.")
    return raw


def _list(raw: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    value = raw.get(key, [])
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        raise _FaultError(f"{key} should be a list of objects with a 'name'.")
    return value


def _name(raw: Any, key: str) -> str:
    if not isinstance(raw, str) or not SAFE_NAME.fullmatch(raw):
        raise _FaultError(
            f"{key} names {raw!r}; names are letters, digits, '_', '-', '+' and '.', not beginning "
            "with a '.'."
        )
    return raw


def _inside(raw: Any, key: str) -> str:
    path = PurePosixPath(str(raw))
    if not isinstance(raw, str) or path.is_absolute() or ".." in path.parts or "\\" in raw:
        raise _FaultError(f"{key} = {raw!r} leads out of the data set; name a place inside it.")
    return raw


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
