"""Corrections of a calibration: what `hdvpd data calibrate` writes and every reader applies.

`corrections.json` lies beside dataset.json. Arrays on disk stay as they are; whoever reads them
through `store.Dataset` gets them corrected. An import reads the same content under `corrections` of
its calibration file, and then writes corrected arrays.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import scipy.linalg

from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, Shaped
from hdvpd.data.pinhole import pixel_directions
from hdvpd.data.schema import DatasetInfo

FILE_NAME = "corrections.json"
FORMAT, VERSION = "hdvpd-corrections", 1
Flip = Literal["", "left to right", "upside down"]
_KEYS = {
    "pose", "intrinsics", "depth_scale", "depth_offset_m", "depth_along_ray", "invalid_depth_m",
    "flip", "lag_s", "why",
}  # fmt: skip


@dataclass(frozen=True)
class CameraCorrection:
    """What must be done to one camera's arrays, in this order.

    Attributes:
      flip: how its images are mirrored; they are mirrored back.
      invalid_depth_m: depth as stored that means "invalid", or None [m].
      intrinsics: multiplies the stored matrix from the left.
      depth_along_ray: whether depth is the length of the ray; it becomes planar.
      depth_scale: true metres per stored metre.
      depth_offset_m: is added after that [m].
      pose: multiplies the stored camera-to-world pose from the right.
      lag_s: by how much the images are late [s]; an import takes later frames.
      why: what was found, for people.
    """

    flip: Flip = ""
    invalid_depth_m: float | None = None
    intrinsics: Float[np.ndarray, "3 3"] = field(default_factory=lambda: np.eye(3))
    depth_along_ray: bool = False
    depth_scale: float = 1.0
    depth_offset_m: float = 0.0
    pose: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    lag_s: float = 0.0
    why: str = ""

    def images(self, values: Shaped[np.ndarray, "f h w *c"]) -> Shaped[np.ndarray, "f h w *c"]:
        """Mirror images, or depth, back."""
        if self.flip == "left to right":
            return values[:, :, ::-1]
        return values[:, ::-1] if self.flip == "upside down" else values

    def matrices(self, values: Float[np.ndarray, "*f 3 3"]) -> Float[np.ndarray, "*f 3 3"]:
        """Correct intrinsics [px]."""
        return self.intrinsics @ values

    def poses(self, values: Float[np.ndarray, "*f 4 4"]) -> Float[np.ndarray, "*f 4 4"]:
        """Correct camera-to-world poses."""
        return values @ self.pose

    def depth(
        self,
        values: Shaped[np.ndarray, "f h w"],
        intrinsics: Float[np.ndarray, "*f 3 3"],
        unit_m: float,
    ) -> Shaped[np.ndarray, "f h w"]:
        """Correct stored depth but for its scale, which belongs to the unit.

        Args:
          values: as stored.
          intrinsics: corrected; one matrix, or one per frame [px].
          unit_m: metres per stored unit, uncorrected.

        Returns:
          Values of the same type, 0 where invalid.
        """
        result = self.images(values).astype(np.float64)
        good = np.isfinite(result) & (np.nan_to_num(result) > 0)
        if self.invalid_depth_m is not None:
            good &= ~np.isclose(result * unit_m, self.invalid_depth_m, rtol=1e-6)
        if self.depth_along_ray:
            each = np.broadcast_to(intrinsics, (len(result), 3, 3))
            rays = np.stack([pixel_directions(k, result.shape[1:]) for k in each])
            result = result / np.linalg.norm(rays, axis=-1)
        result = result + self.depth_offset_m / (unit_m * self.depth_scale)
        result = np.where(good & (result > 0), result, 0.0)
        if np.issubdtype(values.dtype, np.integer):
            result = np.clip(result.round(), 0, np.iinfo(values.dtype).max)
        return result.astype(values.dtype)

    @property
    def changes_depth(self) -> bool:
        """Whether stored values of depth change, beside their unit."""
        code = self.invalid_depth_m is not None
        return bool(self.flip or code or self.depth_along_ray or self.depth_offset_m)

    def as_plain(self) -> dict[str, Any]:
        """Return what differs from no correction as JSON values."""
        plain: dict[str, Any] = {}
        for item in dataclasses.fields(self):
            value, default = getattr(self, item.name), getattr(NOTHING, item.name)
            if isinstance(value, np.ndarray):
                if not np.array_equal(value, default):
                    plain[item.name] = value.tolist()
            elif value != default:
                plain[item.name] = value
        return plain


NOTHING = CameraCorrection()


@dataclass(frozen=True)
class JointCorrection:
    """By how much a joint is off at all times.

    Attributes:
      offset: true value less the stored one, in the unit of the joint.
      link: first link that the joint moves.
      moves: all links that it moves.
      twist: motion of that link per unit of the joint, in its own axes: turn [rad], move [m].
    """

    offset: float
    link: str
    moves: tuple[str, ...]
    twist: Float[np.ndarray, "6"]

    def poses(
        self, links: Float[np.ndarray, "*f l 4 4"], names: Sequence[str]
    ) -> Float[np.ndarray, "*f l 4 4"]:
        """Return the poses of the links with the joint where it really is."""
        generator = np.zeros((4, 4))
        x, y, z = self.offset * self.twist[:3]
        generator[:3, :3] = [[0, -z, y], [z, 0, -x], [-y, x, 0]]
        generator[:3, 3] = self.offset * self.twist[3:]
        moved = [names.index(name) for name in self.moves]
        own = links[..., names.index(self.link), :, :]
        motion = own @ scipy.linalg.expm(generator) @ np.linalg.inv(own)
        result = np.array(links, np.float64)
        result[..., moved, :, :] = motion[..., None, :, :] @ links[..., moved, :, :]
        return result


@dataclass(frozen=True)
class Corrections:
    """Of all cameras and of the robot.

    Attributes:
      cameras: by name; those without an entry are right.
      robot: multiplies the link poses from the left: where the robot's base really is.
      joints: of the robot, by name; they come before its base.
      file: where they were read from.
    """

    cameras: Mapping[str, CameraCorrection] = field(default_factory=dict)
    robot: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    joints: Mapping[str, JointCorrection] = field(default_factory=dict)
    file: Path = Path()

    def __bool__(self) -> bool:
        """Whether anything is corrected."""
        return bool(self.cameras) or self.moves_robot

    @property
    def moves_robot(self) -> bool:
        """Whether link poses are corrected."""
        return bool(self.joints) or not np.array_equal(self.robot, np.eye(4))

    def links(
        self, values: Float[np.ndarray, "*f l 4 4"], names: Sequence[str]
    ) -> Float[np.ndarray, "*f l 4 4"]:
        """Correct link poses."""
        for joint in self.joints.values():
            values = joint.poses(values, names)
        return self.robot @ values

    def joint_values(
        self, values: Float[np.ndarray, "*f j"], names: Sequence[str]
    ) -> Float[np.ndarray, "*f j"]:
        """Correct measured or commanded joints, whose names are given."""
        offsets = [self.joints[n].offset if n in self.joints else 0.0 for n in names]
        return values + np.array(offsets)

    def description(self, info: DatasetInfo) -> DatasetInfo:
        """Return the description of a data set with units of depth as corrected.

        Raises:
          UserError: a correction is of a camera, joint or link that there is none of.
        """
        links = {link for joint in self.joints.values() for link in joint.moves}
        for kind, named, known in (
            ("camera", set(self.cameras), info.cameras),
            ("joint", set(self.joints), info.robot.joints),
            ("link", links, info.robot.links),
        ):
            for unknown in sorted(named - set(known)):
                raise UserError(
                    f"{self.file} corrects {kind} {unknown!r}, but the data set has "
                    f"{', '.join(known)}; run `hdvpd data calibrate` again, or remove the file."
                )
        cameras = {
            name: dataclasses.replace(camera, depth_unit_m=camera.depth_unit_m * c.depth_scale)
            if (c := self.cameras.get(name)) is not None
            else camera
            for name, camera in info.cameras.items()
        }
        return dataclasses.replace(info, cameras=cameras)

    def as_plain(self) -> dict[str, Any]:
        """Return the content of `corrections.json`."""
        plain: dict[str, Any] = {
            "format": FORMAT,
            "version": VERSION,
            "cameras": {name: camera.as_plain() for name, camera in self.cameras.items()},
        }
        if self.moves_robot:
            plain["robot"] = {"pose": self.robot.tolist()}
        if self.joints:
            plain["robot"]["joints"] = {
                name: {
                    "offset": joint.offset,
                    "link": joint.link,
                    "moves": list(joint.moves),
                    "twist": joint.twist.tolist(),
                }
                for name, joint in self.joints.items()
            }
        return plain


def read_corrections(folder: Path) -> Corrections:
    """Read the corrections of a data set; none if there is no file.

    Raises:
      UserError: the file is damaged, or a value is impossible.
    """
    file = folder / FILE_NAME
    if not file.exists():
        return Corrections()
    try:
        raw = sealed.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} cannot be read ({error}); remove it, or run `hdvpd data calibrate` again."
        ) from error
    return parse_corrections(raw, file)


def parse_corrections(raw: Any, file: Path) -> Corrections:
    """Check corrections read from JSON.

    Raises:
      UserError: it is not of this format, or a value is impossible.
    """
    remedy = "Remove it, or run `hdvpd data calibrate` again."
    try:
        if raw["format"] != FORMAT or raw["version"] != VERSION:
            raise ValueError(f"format {raw['format']!r}, version {raw['version']!r}")
        cameras = {str(name): _camera(value) for name, value in raw["cameras"].items()}
        robot = _matrix(raw.get("robot", {}).get("pose", np.eye(4)), (4, 4), "robot.pose")
        offsets = raw.get("robot", {}).get("joints", {})
        joints = {str(name): _joint(value) for name, value in offsets.items()}
    except KeyError as error:
        raise UserError(f"{file}: corrections lack {error}. {remedy}") from error
    except (AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{file}: corrections cannot be read: {error}. {remedy}") from error
    return Corrections(cameras, robot, joints, file)


def _camera(raw: Mapping[str, Any]) -> CameraCorrection:
    unknown = sorted(set(raw) - _KEYS)
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r}")
    flip = raw.get("flip", "")
    if flip not in get_args(Flip):
        raise ValueError(f"flip = {flip!r} should be left to right or upside down")
    code = raw.get("invalid_depth_m")
    scale = _number(raw, "depth_scale", 1.0)
    if scale <= 0:
        raise ValueError(f"depth_scale = {scale} should be positive")
    return CameraCorrection(
        flip=flip,
        invalid_depth_m=None if code is None else float(code),
        intrinsics=_matrix(raw.get("intrinsics", np.eye(3)), (3, 3), "intrinsics"),
        depth_along_ray=bool(raw.get("depth_along_ray", False)),
        depth_scale=scale,
        depth_offset_m=_number(raw, "depth_offset_m", 0.0),
        pose=_matrix(raw.get("pose", np.eye(4)), (4, 4), "pose"),
        lag_s=_number(raw, "lag_s", 0.0),
        why=str(raw.get("why", "")),
    )


def _joint(raw: Mapping[str, Any]) -> JointCorrection:
    moves = tuple(str(name) for name in raw["moves"])
    if raw["link"] not in moves:
        raise ValueError(f"moves = {list(moves)} should hold link = {raw['link']!r}")
    return JointCorrection(
        _number(raw, "offset", 0.0), str(raw["link"]), moves, _matrix(raw["twist"], (6,), "twist")
    )


def _number(raw: Mapping[str, Any], key: str, default: float) -> float:
    value = float(raw.get(key, default))
    if not np.isfinite(value):
        raise ValueError(f"{key} = {value} should be finite")
    return value


def _matrix(raw: Any, shape: tuple[int, ...], key: str) -> np.ndarray:
    values = np.array(raw, np.float64)
    if values.shape != shape or not np.isfinite(values).all():
        raise ValueError(f"{key} should be {'x'.join(map(str, shape))} finite numbers")
    return values
