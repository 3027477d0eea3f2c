"""The arrays of an episode, declared once: who writes, reads or checks one asks here.

A path inside an episode names a kind of array: `cameras/front/rgb` is of the kind `cameras/*/rgb`.
Arrays of other paths are kept as they are (`truth/object_to_world`, privileged, is one of them).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from hdvpd.data.schema import DatasetInfo

CAMERA_KEYS = ("rgb", "depth", "intrinsics", "camera_to_world")
"""The arrays of every camera, below `cameras/<name>/`."""
JOINT_POSITIONS, JOINT_TARGETS = "robot/joint_positions", "robot/joint_targets"
LINKS, TARGET_LINKS = "robot/link_to_world", "robot/target_link_to_world"
OBJECTS = "truth/object_to_world"


@dataclass(frozen=True)
class ArraySpec:
    """What arrays of one kind are like.

    Attributes:
      dimensions: names of the axes.
      dtypes: the types allowed.
      fixed: sizes of axes that are the same in every data set.
      steady: whether the axis of time may be missing, because nothing changes.
      optional: whether an episode may lack it.
      chunk_frames: whether each frame is a chunk of its own inside a shard.
      codec: zstd where size matters, lz4 where speed does.
    """

    dimensions: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    fixed: Mapping[str, int] = field(default_factory=dict)
    steady: bool = False
    optional: bool = False
    chunk_frames: bool = False
    codec: Literal["zstd", "lz4"] = "zstd"


_IMAGE, _MATRIX = ("time", "row", "column"), ("matrix_row", "matrix_column")
_JOINTS = ArraySpec(("time", "joint"), ("float32",))
_POSES = ArraySpec(
    ("time", "link", *_MATRIX), ("float32",), dict.fromkeys(_MATRIX, 4), optional=True
)
KINDS: Mapping[str, ArraySpec] = {
    "time_s": ArraySpec(("time",), ("float64",)),
    "cameras/*/rgb": ArraySpec((*_IMAGE, "channel"), ("uint8",), {"channel": 3}, chunk_frames=True),
    # lz4 is written 1.3 to 4 and read 1.2 to 2 times as fast on depth (docs/data-format.md).
    "cameras/*/depth": ArraySpec(_IMAGE, ("float32", "uint16"), chunk_frames=True, codec="lz4"),
    "cameras/*/intrinsics": ArraySpec(
        ("time", *_MATRIX), ("float64",), dict.fromkeys(_MATRIX, 3), steady=True
    ),
    "cameras/*/camera_to_world": ArraySpec(
        ("time", *_MATRIX), ("float64",), dict.fromkeys(_MATRIX, 4), steady=True
    ),
    JOINT_POSITIONS: _JOINTS,
    JOINT_TARGETS: _JOINTS,
    LINKS: _POSES,
    TARGET_LINKS: _POSES,
}
"""What an episode must or may have."""


def camera_array(camera: str, key: str) -> str:
    """Return the path of a camera's array inside an episode."""
    return f"cameras/{camera}/{key}"


def spec_of(name: str) -> ArraySpec:
    """Return what the array of a path inside an episode is like; nothing is known of others."""
    folder, _, rest = name.partition("/")
    kind = f"cameras/*/{rest.rpartition('/')[2]}" if folder == "cameras" else name
    return KINDS.get(kind, ArraySpec())


def names_of(info: DatasetInfo) -> tuple[str, ...]:
    """List the arrays that an episode of a data set must or may have."""
    per_camera = [kind for kind in KINDS if "*" in kind]
    cameras = (kind.replace("*", name) for name in info.cameras for kind in per_camera)
    return ("time_s", *cameras, *(kind for kind in KINDS if kind.startswith("robot/")))


def shapes_of(name: str, info: DatasetInfo, length: int) -> tuple[tuple[int, ...], ...]:
    """List the shapes that an array may have.

    Returns:
      One, or with and without the axis of time where nothing may change; none if it is undeclared.
    """
    spec = spec_of(name)
    if not spec.dimensions:
        return ()
    sizes = {"time": length, "joint": len(info.robot.joints), "link": len(info.robot.links)}
    moving = False
    if name.startswith("cameras/"):
        camera = info.cameras[name.split("/")[1]]
        sizes |= {"row": camera.height, "column": camera.width}
        moving = camera.mount != "world" and name.endswith("/camera_to_world")
    shape = tuple((sizes | dict(spec.fixed))[axis] for axis in spec.dimensions)
    return (shape[1:], shape) if spec.steady and not moving else (shape,)
