"""What a native data set says about itself: `dataset.json`, `episode.json`, expected arrays.

Parsing only: nothing here reads arrays. Every function takes the decoded JSON and the file it
came from, which its messages name. Unknown keys are kept and ignored; an unknown version is
refused. docs/data-format.md is the description for users.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hdvpd.basics.errors import UserError
from hdvpd.data.fields import get, is_number, number
from hdvpd.data.kinematics import POINTS_PER_SEGMENT, Skeleton
from hdvpd.data.shapes import Shape, parse_shape

FORMAT = "hdvpd-dataset"
VERSION = 1
SPLITS = ("train", "validation", "test")
CONVENTIONS = {"axes": "opencv", "pixel_centre": 0.5, "depth": "planar_z"}
"""What every camera says of itself (docs/conventions.md)."""
GRIPPER_UNITS = {"m": 0.05, "rad": 1.0, "1": 1.0}
"""In which unit a gripper's joint enters the model, by the joint's own: of order one."""

Json = Mapping[str, Any]


@dataclass(frozen=True)
class CameraInfo:
    """One camera of a data set.

    Attributes:
      height: image rows [px].
      width: image columns [px].
      depth_unit_m: metres per stored unit of depth.
      mount: "world", or the link that carries the camera.
    """

    height: int
    width: int
    depth_unit_m: float
    mount: str


@dataclass(frozen=True)
class RobotInfo:
    """The robot of a data set.

    Attributes:
      name: of the robot.
      joints: names, in the order of the joint arrays.
      links: names, in the order of the link arrays.
      skeleton: how link origins become kinematic points.
    """

    name: str
    joints: tuple[str, ...]
    links: tuple[str, ...]
    skeleton: Skeleton


@dataclass(frozen=True)
class ObjectInfo:
    """One object whose pose is stored as privileged truth.

    Attributes:
      name: of the object.
      rgb: its colour, 0 to 255, where declared; a reference for the order of the channels.
      shape: where declared; then it is known which points lie on the object.
    """

    name: str
    rgb: tuple[int, int, int] | None = None
    shape: Shape | None = None


@dataclass(frozen=True)
class EpisodeInfo:
    """One episode of a data set.

    Attributes:
      number: its folder, `episodes/<number, six digits>`.
      length: frames.
      task: what the robot does.
      split: train, validation or test.
      seed: of the simulation, or None.
      success: whether the task was reached, or None where nobody judged.
      joint_positions_source: measured, or targets.
      joint_targets_source: commanded; next_positions where joints or links one step later stand
        in for commands.
      links_source: what the link poses were computed from; empty if unknown.
      objects: of this episode, or None where dataset.json lists them.
    """

    number: int
    length: int
    task: str
    split: str
    seed: int | None = None
    success: bool | None = None
    joint_positions_source: str = "measured"
    joint_targets_source: str = "commanded"
    links_source: str = ""
    objects: tuple[ObjectInfo, ...] | None = None


@dataclass(frozen=True)
class DatasetInfo:
    """Content of dataset.json.

    Attributes:
      rate_hz: frames per second.
      licence: of the data.
      cameras: by name, in the order of the file.
      robot: joints, links and kinematic points.
      workspace_min: lower corner of the workspace box, world frame [m].
      workspace_max: upper corner of the workspace box, world frame [m].
      objects: whose poses are stored, unless an episode lists its own.
      raw: the whole decoded file, unknown keys included.
    """

    rate_hz: float
    licence: str
    cameras: dict[str, CameraInfo]
    robot: RobotInfo
    workspace_min: tuple[float, float, float]
    workspace_max: tuple[float, float, float]
    objects: tuple[ObjectInfo, ...]
    raw: Json = dataclasses.field(repr=False)


def parse_dataset(raw: Any, file: Path) -> DatasetInfo:
    """Read a decoded dataset.json.

    Raises:
      UserError: another format or version, a missing key or an impossible value.
    """
    if not isinstance(raw, Mapping) or raw.get("format") != FORMAT:
        raise UserError(
            f"{file} does not describe an hdvpd data set: its 'format' should be '{FORMAT}'. "
            "Give the folder that `hdvpd data simulate --out` wrote."
        )
    if raw.get("version") != VERSION:
        raise UserError(
            f"{file} has format version {raw.get('version')!r}; this hdvpd reads version "
            f"{VERSION}. Install the hdvpd that wrote it, or write the data set again."
        )
    cameras = {
        name: _parse_camera(camera, f"cameras.{name}", file)
        for name, camera in get(raw, "cameras", Mapping, file).items()
    }
    if not cameras:
        raise UserError(f"{file}: 'cameras' is empty; a data set needs at least one camera.")
    robot = parse_robot(get(raw, "robot", Mapping, file), file)
    for name, camera in cameras.items():
        if not name or "/" in name:
            raise UserError(
                f"{file}: camera {name!r} cannot be called so, for a folder of each episode has "
                "its name; give both a name without /."
            )
        if camera.mount not in ("world", *robot.links):
            raise UserError(
                f"{file}: cameras.{name}.mount = {camera.mount!r} is no link of the robot, which "
                f"has {', '.join(robot.links)}; name one of these, or 'world'."
            )
    rate_hz = number(raw, "rate_hz", file)
    if not rate_hz > 0:
        raise UserError(f"{file}: rate_hz = {rate_hz} must be positive [frames per second].")
    workspace = get(raw, "workspace", Mapping, file)
    low, high = _corner(workspace, "min", file), _corner(workspace, "max", file)
    if not all(a < b for a, b in zip(low, high, strict=True)):
        raise UserError(f"{file}: workspace.min = {low} must lie below workspace.max = {high}.")
    if "source" in raw:
        get(raw, "source", Mapping, file)
    return DatasetInfo(
        rate_hz=rate_hz,
        licence=str(raw.get("licence", "unknown")),
        cameras=cameras,
        robot=robot,
        workspace_min=low,
        workspace_max=high,
        objects=parse_objects(raw.get("objects", []), file),
        raw=raw,
    )


def describe_camera(height: int, width: int, mount: str = "world") -> dict[str, Any]:
    """Return the entry of a camera in dataset.json; depth is stored in metres."""
    size = {"height": height, "width": width}
    return {**size, **CONVENTIONS, "depth_unit_m": 1.0, "mount": mount}


def parse_episode(raw: Any, number: int, file: Path) -> EpisodeInfo:
    """Read a decoded episode.json; its number is that of its folder.

    Raises:
      UserError: a missing key or an impossible value.
    """
    if not isinstance(raw, Mapping):
        raise UserError(f"{file} should hold one JSON object; restore it or delete the episode.")
    length = get(raw, "length", int, file)
    split = get(raw, "split", str, file)
    if length < 1:
        raise UserError(f"{file}: length = {length} must be at least 1; delete the episode.")
    if split not in SPLITS:
        raise UserError(f"{file}: split = {split!r} should be one of {', '.join(SPLITS)}.")
    success = raw.get("success")
    if not isinstance(success, bool | None):
        raise UserError(
            f"{file}: success = {success!r} should be true or false; leave it out if unknown."
        )
    return EpisodeInfo(
        number=number,
        length=length,
        task=str(raw.get("task", "unknown")),
        split=split,
        seed=raw.get("seed"),
        success=success,
        joint_positions_source=str(raw.get("joint_positions_source", "measured")),
        joint_targets_source=str(raw.get("joint_targets_source", "commanded")),
        links_source=str(raw.get("links_source", "")),
        objects=parse_objects(raw["objects"], file) if "objects" in raw else None,
    )


def parse_objects(raw: Any, file: Path) -> tuple[ObjectInfo, ...]:
    """Read `objects` of a decoded dataset.json or episode.json, in the order of the array.

    Raises:
      UserError: not a list of objects with a name and, where given, three channels and a shape.
    """
    if not isinstance(raw, list) or not all(isinstance(entry, Mapping) for entry in raw):
        raise UserError(f"{file}: objects = {raw!r} should be a list of objects with a 'name'.")
    found = []
    for entry in raw:
        rgb = entry.get("rgb")
        if rgb is not None and not (
            isinstance(rgb, list)
            and len(rgb) == 3
            and all(isinstance(c, int) and 0 <= c <= 255 for c in rgb)
        ):
            raise UserError(f"{file}: objects.rgb = {rgb!r} should be three numbers, 0 to 255.")
        color = None if rgb is None else (rgb[0], rgb[1], rgb[2])
        name = get(entry, "name", str, file, "objects")
        found.append(ObjectInfo(name, color, parse_shape(entry.get("shape"), file)))
    return tuple(found)


def split_of(number: int, episodes: int) -> Literal["train", "validation", "test"]:
    """Say to which split a simulated episode belongs.

    Returns:
      By the last digit: 8 is validation, 9 is test. Of fewer than ten episodes the last is test
      and the one before it validation, as long as one remains for training.
    """
    if episodes >= 10:
        validation, test = number % 10 == 8, number % 10 == 9
    else:
        validation = number == episodes - 2 and episodes >= 3
        test = number == episodes - 1 and episodes >= 2
    return "validation" if validation else "test" if test else "train"


def _parse_camera(raw: Any, key: str, file: Path) -> CameraInfo:
    if not isinstance(raw, Mapping):
        raise UserError(f"{file}: {key} = {raw!r} should be an object with height and width.")
    for name, expected in CONVENTIONS.items():
        if raw.get(name, expected) != expected:
            raise UserError(
                f"{file}: {key}.{name} = {raw[name]!r}, but the native format stores "
                f"{expected!r}; convert the data set."
            )
    height, width = get(raw, "height", int, file, key), get(raw, "width", int, file, key)
    unit = number(raw, "depth_unit_m", file, key) if "depth_unit_m" in raw else 1.0
    if height < 1 or width < 1 or not unit > 0:
        raise UserError(
            f"{file}: {key} has height {height}, width {width} and depth_unit_m {unit}; "
            "all must be positive."
        )
    return CameraInfo(height, width, unit, str(raw.get("mount", "world")))


def parse_robot(raw: Json, file: Path) -> RobotInfo:
    """Read the robot of a decoded dataset.json.

    Returns:
      Names, and the skeleton; without one in the file, every link is a point and every parent and
      child a segment.

    Raises:
      UserError: a name is missing, unknown or given twice.
    """
    listed_joints = _objects(raw, "joints", file)
    joints = [get(joint, "name", str, file, "robot.joints") for joint in listed_joints]
    units = [GRIPPER_UNITS.get(str(joint.get("unit")), 1.0) for joint in listed_joints]
    links = _objects(raw, "links", file)
    names = [get(link, "name", str, file, "robot.links") for link in links]
    for kind, listed in (("joints", joints), ("links", names)):
        twice = sorted({name for name in listed if listed.count(name) > 1})
        if twice:
            raise UserError(f"{file}: robot.{kind} names {twice[0]!r} twice; names are unique.")
    given = None if raw.get("skeleton") is None else get(raw, "skeleton", Mapping, file, "robot")
    skeleton = given or _default_skeleton(links, names)
    unit_of = dict(zip(joints, units, strict=True))
    return RobotInfo(
        name=str(raw.get("name", "unknown")),
        joints=tuple(joints),
        links=tuple(names),
        skeleton=_parse_skeleton(skeleton, links, names, unit_of, file),
    )


def _default_skeleton(links: Sequence[Json], names: Sequence[str]) -> Json:
    pairs = [[link.get("parent"), link["name"]] for link in links if link.get("parent") in names]
    return {"points": list(names), "segments": pairs}


def _parse_skeleton(
    raw: Json, links: Sequence[Json], names: Sequence[str], units: Mapping[str, float], file: Path
) -> Skeleton:
    def index(listed: Sequence[str], name: Any, key: str) -> int:
        if name not in listed:
            raise UserError(
                f"{file}: {key} names {name!r}, which the robot does not have; it has "
                f"{', '.join(listed)}."
            )
        return listed.index(name)

    raw = {"points": [], "segments": [], "arms": {}, **raw}
    listed = get(raw, "points", list, file, "robot.skeleton")
    points = [index(names, name, "robot.skeleton.points") for name in listed]
    segments = []
    for pair in get(raw, "segments", list, file, "robot.skeleton"):
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise UserError(f"{file}: robot.skeleton.segments has {pair!r}; give pairs of links.")
        a, b = (index(names, name, "robot.skeleton.segments") for name in pair)
        segments.append((a, b))
    if not points and not segments:
        raise UserError(
            f"{file}: the robot has no kinematic points; list at least one link under "
            "robot.links or robot.skeleton.points."
        )
    opening = {
        arm: index(list(units), entry["gripper"], f"robot.skeleton.arms.{arm}.gripper")
        for arm, entry in get(raw, "arms", Mapping, file, "robot.skeleton").items()
        if isinstance(entry, Mapping) and "gripper" in entry
    }
    gripper_of_link = [opening.get(str(link.get("arm")), -1) for link in links]
    # A point between two links moves with the arm of the second, which is the farther one.
    grippers = [gripper_of_link[p] for p in points]
    grippers += [gripper_of_link[b] for _, b in segments for _ in range(POINTS_PER_SEGMENT)]
    of_joint = [*units.values(), 1.0]  # the last is that of no gripper, number -1
    gripper_units = tuple(of_joint[gripper] for gripper in grippers)
    return Skeleton(tuple(points), tuple(segments), tuple(grippers), gripper_units)


def _objects(raw: Json, key: str, file: Path) -> list[Json]:
    value = get(raw, key, list, file, "robot")
    if not all(isinstance(entry, Mapping) for entry in value):
        raise UserError(f"{file}: robot.{key} should be a list of objects with a 'name'.")
    return value


def _corner(raw: Json, key: str, file: Path) -> tuple[float, float, float]:
    value = raw.get(key)
    if not (isinstance(value, list) and len(value) == 3 and all(map(is_number, value))):
        raise UserError(f"{file}: workspace.{key} = {value!r} should be three finite numbers [m].")
    return float(value[0]), float(value[1]), float(value[2])
