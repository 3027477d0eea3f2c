"""Broken sources: one line that names file, episode and frame, status 2, nothing left behind."""

import contextlib
import functools
import io
import json
import os
import pickle
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import extras
import import_sources as sources
import numpy as np
import pytest
from PIL import Image

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data.corrections import CameraCorrection, Corrections, JointCorrection
from hdvpd.data.importers.sidecar import read_sidecar
from hdvpd.data.importers.unpickling import StandIn, UnsafePickleError, read_pickle

h5py: Any = extras.needed("h5py")

SCENE = sources.make_scene(0, frames=4)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One good source of every format."""
    path = tmp_path_factory.mktemp("good")
    sources.write_folder(path / "folder", [SCENE])
    sources.write_robotwin(path / "robotwin", [SCENE])
    sources.write_maniskill(path / "maniskill", [SCENE])
    sources.write_robomimic(path / "robomimic" / "demos.hdf5", {"demo_0": SCENE})
    sources.write_rlbench(path / "rlbench", [SCENE])
    return path


@dataclass(frozen=True)
class Case:
    """A way to break a source, and what the message says."""

    format: str
    name: str
    damage: Callable[[Path], Any]
    words: tuple[str, ...]
    flags: tuple[str, ...] = ()


def only(pattern: str) -> Callable[[Path], Path]:
    def find(path: Path) -> Path:
        (file,) = path.rglob(pattern)
        return file

    return find


HDF5 = {"robotwin": only("*.hdf5"), "maniskill": only("*.h5"), "robomimic": only("*.hdf5")}
FOLDERS = {"robotwin": "observation/left_view", "maniskill": "traj_0/obs/sensor_data/left_view",
           "robomimic": "data/demo_0/obs"}  # fmt: skip
NAMES = {"robotwin": "episode0.hdf5", "maniskill": "episode traj_0", "robomimic": "episode demo_0",
         "folder": "episode take0", "rlbench": "episode0"}  # fmt: skip


def edit(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change an HDF5 file in place."""

    def apply(path: Path) -> None:
        with h5py.File(HDF5[name](path), "a") as file:
            change(file)

    return apply


def array(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Any], None]:
    """Replace an array of an HDF5 file."""

    def apply(file: Any) -> None:
        values = change(file[name][()])
        del file[name]
        file[name] = values

    return apply


def remove(name: str) -> Callable[[Any], None]:
    def apply(file: Any) -> None:
        del file[name]

    return apply


def at(frame: int, value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(values: np.ndarray) -> np.ndarray:
        values = values.astype(np.float64)
        values[frame] = value
        return values

    return change


def truncate(find: Callable[[Path], Path], size: int) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        os.truncate(find(path), size)

    return apply


def replace(find: Callable[[Path], Path], content: bytes | str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        data = content.encode() if isinstance(content, str) else content
        find(path).write_bytes(data)

    return apply


def rewrite(find: Callable[[Path], Path], old: str, new: str) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        text = find(path).read_text()
        assert old in text
        find(path).write_text(text.replace(old, new, 1))

    return apply


def calibration(**changes: Any) -> Callable[[Path], None]:
    """Change the entry of left_view, or a key of the file if it is in capitals."""

    def apply(path: Path) -> None:
        file = path / "hdvpd_calibration.json"
        raw = json.loads(file.read_text())
        for key, value in changes.items():
            (raw if key.isupper() else raw["cameras"]["left_view"])[key.lower()] = value
        file.write_text(json.dumps(raw))

    return apply


def picture(name: str, pixels: np.ndarray) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        (file,) = path.rglob(name)
        Image.fromarray(pixels).save(file)

    return apply


def misc(key: str, value: Any, frame: int = 2) -> Callable[[Path], None]:
    """Write other states into low_dim_obs.pkl."""

    def change(observations: list[Any]) -> list[Any]:
        observations[frame].misc[f"left_view_camera_{key}"] = value
        return observations

    return states(change)


def states(change: Callable[[list[Any]], Any]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        sources.dump_demo(only("low_dim_obs.pkl")(path), SCENE, 4, edit=change)

    return apply


def row(number: int, change: Callable[[list[str]], list[str]]) -> Callable[[Path], None]:
    """Change one line of joints.csv."""

    def apply(path: Path) -> None:
        file = only("joints.csv")(path)
        lines = file.read_text().splitlines()
        lines[number + 1] = ",".join(change(lines[number + 1].split(",")))
        file.write_text("\n".join(lines))

    return apply


def external_link(file: Any) -> None:
    del file["observation/left_view/depth"]
    file["observation/left_view/depth"] = h5py.ExternalLink("/etc/passwd", "/x")


def external_values(file: Any) -> None:
    del file["observation/left_view/depth"]
    shape = (4, *sources.SIZE)
    file["observation/left_view"].create_dataset(
        "depth", shape, np.float64, external=[("/etc/passwd", 0, 100000)]
    )


def _damaged_chunk(path: Path) -> None:
    """Flip bytes inside a compressed chunk."""
    file = HDF5["maniskill"](path)
    with h5py.File(file) as opened:
        chunk = opened["traj_0/obs/sensor_data/left_view/rgb"].id.get_chunk_info(0)
    data = bytearray(file.read_bytes())
    data[chunk.byte_offset : chunk.byte_offset + 20] = bytes(20)
    file.write_bytes(data)


RT, MS, RM = (FOLDERS[name] for name in ("robotwin", "maniskill", "robomimic"))
DEPTH = f"{RM}/left_view_depth"
LOOSE = np.eye(4)
LOOSE[0, 0] = 1.1
SMALL_JPEG = sources._jpeg(np.zeros((12, 16, 3), np.uint8))
HDF5_CASES = [
    *(Case(n, "truncated", truncate(HDF5[n], 2000), (".h", "damaged or no HDF5")) for n in HDF5),
    *(Case(n, "empty file", replace(HDF5[n], b""), ("damaged or no HDF5",)) for n in HDF5),
    *(Case(n, "no HDF5", replace(HDF5[n], "hello " * 99), ("damaged or no HDF5",)) for n in HDF5),
    Case("maniskill", "damaged chunk", _damaged_chunk, ("frame 0", "rgb' is damaged")),
    Case(
        "robotwin",
        "no depth",
        edit("robotwin", lambda f: [remove(f"observation/{c}/depth")(f) for c in f["observation"]]),
        ("depth: true",),
    ),
    Case(
        "robotwin",
        "no such camera",
        lambda _: None,
        ("no camera 'front'", "left_view"),
        ("--cameras", "front"),
    ),
    Case(
        "robotwin",
        "camera without depth asked for",
        edit("robotwin", remove(f"{RT}/depth")),
        ("'left_view' cannot be imported", "depth: true"),
        ("--cameras", "left_view"),
    ),
    Case(
        "robotwin",
        "depth shorter",
        edit("robotwin", array(f"{RT}/depth", lambda d: d[:-1])),
        ("/depth' has shape (3, 24, 32)", "(4, any, any)"),
    ),
    Case(
        "robotwin",
        "rgb shorter",
        edit("robotwin", array(f"{RT}/rgb", lambda d: d[:-1])),
        ("/rgb' has shape (3,)",),
    ),
    Case(
        "robotwin",
        "poses disagree",
        edit("robotwin", array(f"{RT}/cam2world_gl", at(2, np.eye(4)))),
        ("frame 2", "differs from the inverse of extrinsic_cv"),
    ),
    Case(
        "robotwin",
        "pose not rigid",
        edit(
            "robotwin",
            lambda f: [
                remove(f"{RT}/cam2world_gl")(f),
                array(f"{RT}/extrinsic_cv", at(1, LOOSE[:3]))(f),
            ],
        ),
        ("frame 1", "not orthonormal"),
    ),
    Case(
        "robotwin",
        "pose NaN",
        edit(
            "robotwin",
            lambda f: [
                remove(f"{RT}/cam2world_gl")(f),
                array(f"{RT}/extrinsic_cv", at(3, np.nan))(f),
            ],
        ),
        ("frame 3", "NaN"),
    ),
    Case(
        "robotwin",
        "no intrinsics",
        edit("robotwin", remove(f"{RT}/intrinsic_cv")),
        ("'intrinsic_cv' is missing",),
    ),
    Case(
        "robotwin",
        "zero focal length",
        edit("robotwin", array(f"{RT}/intrinsic_cv", at(0, np.eye(3) * 0))),
        ("frame 0", "focal lengths"),
    ),
    Case("robotwin", "no joints", edit("robotwin", remove("joint_action")), ("joint_action",)),
    Case(
        "robotwin",
        "NaN joints",
        edit("robotwin", array("joint_action/left_arm", at(2, np.nan))),
        ("frame 2", "joint_positions: a value is NaN"),
    ),
    Case(
        "robotwin",
        "arms of unequal length",
        edit("robotwin", array("joint_action/right_arm", lambda a: a[:-1])),
        ("right_arm' has shape (3, 2)",),
    ),
    Case(
        "robotwin",
        "text for joints",
        edit("robotwin", array("joint_action/left_arm", lambda a: np.full(a.shape, b"x"))),
        ("expected numbers",),
    ),
    Case(
        "robotwin",
        "truncated JPEG",
        edit(
            "robotwin",
            array(f"{RT}/rgb", lambda d: np.array([d[0], d[1], d[2][: len(d[2]) // 2], d[3]])),
        ),
        ("frame 2", "rgb is damaged"),
    ),
    Case(
        "robotwin",
        "no JPEG",
        edit("robotwin", array(f"{RT}/rgb", lambda d: np.full(4, b"x" * 99))),
        ("frame 0", "rgb is damaged"),
    ),
    Case(
        "robotwin",
        "pictures differ in size",
        edit("robotwin", array(f"{RT}/rgb", lambda d: np.array([d[0], d[1], SMALL_JPEG, d[3]]))),
        ("frame 2", "is 12x16, the others of this camera are 24x32"),
    ),
    Case(
        "robotwin",
        "link to another file",
        edit("robotwin", external_link),
        ("link to another file",),
    ),
    Case(
        "robotwin",
        "values in another file",
        edit("robotwin", external_values),
        ("keeps its values in another file",),
    ),
    *(
        Case(
            name,
            "array without values",
            edit(
                name, lambda f, p=path: [remove(p)(f), f.create_dataset(p, data=h5py.Empty("f8"))]
            ),
            (f"{path.rpartition('/')[2]}' holds no values",),
        )
        for name, path in (
            ("robotwin", f"{RT}/depth"),
            ("maniskill", f"{MS}/rgb"),
            ("robomimic", DEPTH),
        )
    ),
    *(
        Case(
            name,
            "array for group",
            edit(name, lambda f, p=path: [remove(p)(f), f.create_dataset(p, data=1.0)]),
            (f"'{words}' is an array, expected a group",),
        )
        for name, path, words in (
            ("robotwin", "observation", "observation"),
            ("maniskill", "traj_0", "traj_0"),
            ("robomimic", "data/demo_0/obs", "obs"),
        )
    ),
    Case(
        "robotwin",
        "OpenGL pose infinite",
        edit("robotwin", array(f"{RT}/cam2world_gl", at(1, np.inf))),
        ("frame 1", "cam2world_gl: a value is NaN or infinite"),
    ),
    Case(
        "robotwin",
        "group for array",
        edit("robotwin", lambda f: [remove(f"{RT}/rgb")(f), f.create_group(f"{RT}/rgb")]),
        ("is a group",),
    ),
    Case(
        "maniskill",
        "camera named ..",
        edit("maniskill", lambda f: f["traj_0/obs/sensor_data"].move("left_view", "..")),
        ("camera name '..' cannot be the name of a folder",),
    ),
    Case(
        "maniskill",
        "camera named .hidden",
        edit("maniskill", lambda f: f["traj_0/obs/sensor_data"].move("left_view", ".hidden")),
        ("'.hidden'",),
    ),
    Case(
        "maniskill",
        "cameras flag leads out",
        lambda _: None,
        ("'../../x'",),
        ("--cameras", "../../x"),
    ),
    Case(
        "maniskill",
        "metres in millimetres",
        edit("maniskill", array(f"{MS}/depth", lambda d: (d / 1000).round().astype(np.int16))),
        ("frame 0", "nearer than any", "--depth-unit-m 1"),
    ),
    Case(
        "maniskill",
        "depth all invalid in one frame",
        edit(
            "maniskill",
            array(
                f"{MS}/depth",
                lambda d: d * (np.arange(4) != 2).astype(np.int16)[:, None, None, None],
            ),
        ),
        ("frame 2", "no valid depth"),
    ),
    Case(
        "maniskill",
        "depth of another size",
        edit("maniskill", array(f"{MS}/depth", lambda d: d[:, ::2, ::2])),
        ("depth' has shape (4, 12, 16, 1)",),
    ),
    Case(
        "maniskill",
        "grey pictures",
        edit("maniskill", array(f"{MS}/rgb", lambda d: d[..., :1])),
        ("rgb' has shape (4, 24, 32, 1)",),
    ),
    Case(
        "maniskill",
        "float pictures",
        edit("maniskill", array(f"{MS}/rgb", lambda d: d / 255.0)),
        ("frame 0", "expected 8-bit RGB"),
    ),
    Case(
        "maniskill",
        "NaN joints",
        edit("maniskill", array("traj_0/obs/agent/qpos", at(1, np.nan))),
        ("frame 1", "joint_positions: a value is NaN"),
    ),
    Case(
        "maniskill",
        "poses of another shape",
        edit(
            "maniskill",
            array(
                "traj_0/obs/sensor_param/left_view/extrinsic_cv",
                lambda p: np.moveaxis(p[:, :3], 1, 2),
            ),
        ),
        ("extrinsic_cv' has shape (4, 4, 3)",),
    ),
    Case(
        "maniskill",
        "pose transposed",
        edit(
            "maniskill",
            array("traj_0/obs/sensor_param/left_view/extrinsic_cv", lambda p: np.swapaxes(p, 1, 2)),
        ),
        ("frame 0", "differs from the inverse of extrinsic_cv"),
    ),
    Case(
        "maniskill",
        "no qpos",
        edit("maniskill", remove("traj_0/obs/agent/qpos")),
        ("obs/agent", "expected qpos"),
    ),
    Case(
        "maniskill",
        "no frames",
        edit("maniskill", array("traj_0/obs/agent/qpos", lambda q: q[:0])),
        ("has no frames",),
    ),
    Case(
        "maniskill",
        "actions too many",
        edit("maniskill", array("traj_0/actions", lambda a: np.repeat(a, 2, axis=0))),
        ("actions' has shape (6, 3)",),
    ),
    Case(
        "maniskill",
        "actions of another width",
        edit("maniskill", array("traj_0/actions", lambda a: a[:, :2] + 9)),
        ("--action joint-targets", "are no absolute joint positions"),
        ("--action", "joint-targets"),
    ),
    Case("maniskill", "broken json", replace(only("*.json"), "{"), (".json: it cannot be read",)),
    Case(
        "maniskill",
        "no trajectories",
        edit("maniskill", lambda f: f.move("traj_0", "other")),
        ("no group traj_0",),
    ),
    Case(
        "robomimic",
        "no depth",
        edit("robomimic", lambda f: [remove(n)(f) for n in (DEPTH, f"{RM}/right_view_depth")]),
        ("no depth", "--depth"),
    ),
    Case(
        "robomimic",
        "OpenGL buffer",
        edit(
            "robomimic",
            array(DEPTH, lambda d: np.where(d > 0, 0.98 + d / 1000, 0).astype(np.float32)),
        ),
        ("frame 0", "OpenGL depth buffer", "z = near / (1 - d * (1 - near / far))"),
    ),
    Case(
        "robomimic",
        "millimetres in metres",
        edit("robomimic", array(DEPTH, lambda d: d * 1000)),
        ("frame 0", "farther than any", "--depth-unit-m 0.001"),
    ),
    Case(
        "robomimic",
        "depth NaN in one frame",
        edit("robomimic", array(DEPTH, at(3, np.nan))),
        ("frame 3", "no valid depth"),
    ),
    Case(
        "robomimic",
        "depth shorter",
        edit("robomimic", array(DEPTH, lambda d: d[:-1])),
        ("left_view_depth' has shape (3, 24, 32, 1)",),
    ),
    Case(
        "robomimic",
        "infinite joints",
        edit("robomimic", array(f"{RM}/robot0_joint_pos", at(3, np.inf))),
        ("frame 3", "joint_positions: a value is NaN or infinite"),
    ),
    Case(
        "robomimic",
        "fingers of unequal length",
        edit("robomimic", array(f"{RM}/robot0_gripper_qpos", lambda q: q[:-1])),
        ("robot0_gripper_qpos' has shape (3, 1)",),
    ),
    Case(
        "robomimic",
        "no such camera",
        lambda _: None,
        ("no camera 'agentview'", "left_view, right_view"),
        ("--cameras", "agentview"),
    ),
    Case(
        "robomimic",
        "camera named ..",
        edit(
            "robomimic",
            lambda f: [f[RM].move(f"left_view_{k}", f".._{k}") for k in ("image", "depth")],
        ),
        ("camera name '..' cannot be the name of a folder",),
    ),
    Case(
        "robomimic",
        "camera_info no JSON",
        edit("robomimic", lambda f: f["data/demo_0"].attrs.__setitem__("camera_info", "{")),
        ("'camera_info' is no JSON",),
    ),
    Case(
        "robomimic",
        "camera_info of another shape",
        edit(
            "robomimic",
            lambda f: f["data/demo_0"].attrs.__setitem__(
                "camera_info", json.dumps({"left_view": {"intrinsics": [1], "extrinsics": 2}})
            ),
        ),
        ("camera_info of 'left_view'", "3x3"),
    ),
    Case(
        "robomimic",
        "model_file does not compile",
        edit(
            "robomimic",
            lambda f: f["data/demo_0"].attrs.__setitem__(
                "model_file",
                sources.model_file(SCENE).replace('name="robot0_fore"', 'name="robot0_upper"'),
            ),
        ),
        ("episode demo_0: ", "MuJoCo cannot compile", "repeated name"),
    ),
    Case(
        "robomimic",
        "mask of one name",
        edit(
            "robomimic", lambda f: [remove("mask/train")(f), f.__setitem__("mask/train", "demo_0")]
        ),
        ("'mask/train' has shape (), expected (any)",),
    ),
    Case(
        "robomimic",
        "model_file no XML",
        edit("robomimic", lambda f: f["data/demo_0"].attrs.__setitem__("model_file", "<mujoco>")),
        ("'model_file' is no XML",),
    ),
    Case("robomimic", "no demos", edit("robomimic", remove("data/demo_0")), ("no demos",)),
    Case(
        "robomimic",
        "no observations",
        edit("robomimic", remove("data/demo_0/obs")),
        ("it holds no observations", "dataset_states_to_obs.py --dataset"),
    ),
    Case(
        "robomimic",
        "one frame",
        edit("robomimic", lambda f: [array(f"{RM}/{n}", lambda d: d[:1])(f) for n in list(f[RM])]),
        ("less than one control step", "--step"),
    ),
]

TABLE = only("joints.csv")
FOLDER_CASES = [
    Case(
        "folder",
        "no calibration",
        lambda p: (p / "hdvpd_calibration.json").unlink(),
        ("no calibration file",),
    ),
    Case(
        "folder",
        "calibration no JSON",
        replace(only("*.json"), "{'a'}"),
        ("cannot be read as JSON",),
    ),
    Case("folder", "calibration deep", replace(only("*.json"), "[" * 100_000), ("as JSON",)),
    Case("folder", "unknown version", calibration(VERSION=9), ("version 9",)),
    Case("folder", "no joints", calibration(JOINTS=[]), ("names no joints",)),
    Case(
        "folder",
        "joint twice",
        calibration(JOINTS=[*sources.CALIBRATION_JOINTS, {"name": "shoulder"}]),
        ("hdvpd_calibration.json: joints[0] and joints[3] are both named 'shoulder'; give each",),
    ),
    Case(
        "folder",
        "unit in degrees",
        calibration(JOINTS=[{"name": "a", "unit": "deg"}]),
        ("joints[0].unit = 'deg'",),
    ),
    Case("folder", "unknown key", calibration(extrinsics=[]), ("unknown key 'extrinsics'",)),
    Case("folder", "unknown axes", calibration(axes="unity"), ("axes = 'unity'", "opengl")),
    Case("folder", "pose 3x4", calibration(camera_to_world=[[1, 0, 0, 0]] * 3), ("4x4 finite",)),
    Case(
        "folder", "pose NaN", calibration(camera_to_world=[[float("nan")] * 4] * 4), ("4x4 finite",)
    ),
    Case(
        "folder",
        "pose scaled",
        calibration(camera_to_world=(2 * np.eye(4)).tolist()),
        ("episode take0, frame 0", "not orthonormal"),
    ),
    Case(
        "folder",
        "pose mirrored",
        calibration(camera_to_world=np.diag([1.0, 1, -1, 1]).tolist()),
        ("determinant -1",),
    ),
    Case(
        "folder",
        "pose transposed",
        calibration(camera_to_world=SCENE.views["left_view"].poses[0].T.tolist()),
        ("frame 0", "the last column is: the matrix is transposed"),
    ),
    Case("folder", "another aspect", calibration(image_size=[480, 480]), ("another aspect ratio",)),
    Case(
        "folder",
        "principal point outside",
        calibration(intrinsics=[[30, 0, 160], [0, 30, 120], [0, 0, 1]]),
        ("lies outside the image",),
    ),
    Case("folder", "pictures lead out", calibration(rgb="../../../etc"), ("leads out",)),
    Case("folder", "depth leads out", calibration(depth="/etc"), ("leads out",)),
    Case("folder", "camera name leads out", calibration(CAMERAS={"../x": {}}), ("'../x'",)),
    Case(
        "folder",
        "mounted on nothing",
        lambda p: [calibration(link="hand")(p), calibration(camera_to_link=np.eye(4).tolist())(p)],
        ("mounted on 'hand'",),
    ),
    Case(
        "folder", "no episodes", lambda p: shutil.rmtree(p / "take0"), ("no folder with a joints",)
    ),
    Case("folder", "empty table", replace(TABLE, ""), ("first line",)),
    Case("folder", "no rows", replace(TABLE, "time_s,shoulder\n"), ("no rows",)),
    Case("folder", "binary table", replace(TABLE, b"\xff\xfe\x00"), ("joints.csv cannot be read",)),
    Case("folder", "column twice", rewrite(TABLE, "elbow,", "shoulder,"), ("every column once",)),
    Case("folder", "column missing", rewrite(TABLE, "elbow,", "hip,"), ("no column 'elbow'",)),
    Case("folder", "short row", row(2, lambda r: r[:-1]), ("frame 2", "expected 7 numbers")),
    Case("folder", "one cell in a row", row(3, lambda r: r[:1]), ("frame 3", "expected 7 numbers")),
    Case(
        "folder",
        "time in nanoseconds",
        lambda p: [
            row(k, lambda r: [str(1e9 * float(r[0])), *r[1:]])(p) for k in range(SCENE.frames)
        ],
        ("4 frames last 1.5e+09 s, 3e+09 control steps", "Time stamps are seconds"),
    ),
    Case(
        "folder",
        "text in a row",
        row(1, lambda r: ["x", *r[1:]]),
        ("frame 1", "expected 7 numbers"),
    ),
    Case("folder", "NaN joint", row(3, lambda r: [r[0], "nan", *r[2:]]), ("frame 3", "NaN")),
    Case("folder", "NaN time", row(2, lambda r: ["nan", *r[1:]]), ("frame 2", "time_s")),
    Case("folder", "repeated time", row(2, lambda r: ["0.5", *r[1:]]), ("frame 2", "not later")),
    Case(
        "folder", "time runs backwards", row(3, lambda r: ["-1", *r[1:]]), ("frame 3", "not later")
    ),
    Case("folder", "gap", row(3, lambda r: ["2.5", *r[1:]]), ("no frame lies within", "gap")),
    Case("folder", "step too short", lambda _: None, ("no frame lies within",), ("--step", "0.1")),
    Case(
        "folder",
        "picture missing",
        lambda p: (p / "take0/left_view/rgb/000002.png").unlink(),
        ("episode take0, frame 2", "left_view/rgb has no picture"),
    ),
    Case(
        "folder",
        "picture too many",
        lambda p: shutil.copy(
            p / "take0/left_view/depth/000000.png", p / "take0/left_view/depth/000004.png"
        ),
        ("frame 4", "5 pictures"),
    ),
    Case(
        "folder",
        "picture twice",
        lambda p: shutil.copy(
            p / "take0/left_view/rgb/000003.png", p / "take0/left_view/rgb/2.png"
        ),
        ("episode take0, frame 2", "left_view/rgb has two pictures for it, 000002.png and 2.png"),
    ),
    Case(
        "folder",
        "camera missing",
        lambda p: shutil.rmtree(p / "take0/left_view"),
        ("left_view/rgb is missing",),
    ),
    Case(
        "folder",
        "truncated picture",
        truncate(lambda p: p / "take0/left_view/rgb/000001.png", 100),
        ("frame 1", "left_view/rgb/000001.png is damaged"),
    ),
    Case(
        "folder",
        "empty picture",
        truncate(lambda p: p / "take0/left_view/depth/000003.png", 0),
        ("frame 3", "left_view/depth/000003.png is damaged"),
    ),
    Case(
        "folder",
        "pictures differ in size",
        picture("left_view/rgb/000002.png", np.zeros((12, 16, 3), np.uint8)),
        ("frame 2", "is 12x16, the others of this camera are 24x32"),
    ),
    Case(
        "folder",
        "depth differs in size",
        picture("left_view/depth/000003.png", np.ones((12, 16), np.uint16)),
        ("frame 3", "left_view/depth/000003.png is 12x16"),
    ),
    Case(
        "folder",
        "depth all unknown in one frame",
        picture("left_view/depth/000001.png", np.zeros((24, 32), np.uint16)),
        ("frame 1", "no valid depth"),
    ),
    Case(
        "folder",
        "depth in 8 bits",
        picture("left_view/depth/000001.png", np.zeros((24, 32), np.uint8)),
        ("frame 1", "expected one channel of 16"),
    ),
    Case(
        "folder",
        "depth in colour",
        picture("left_view/depth/000001.png", np.zeros((24, 32, 3), np.uint8)),
        ("frame 1", "expected one channel of 16"),
    ),
    Case(
        "folder",
        "grey colours",
        picture("left_view/rgb/000000.png", np.zeros((24, 32), np.uint8)),
        ("frame 0", "expected 8-bit RGB"),
    ),
    Case(
        "folder",
        "unknown split",
        lambda p: (p / "take0/episode.json").write_text('{"split": "x"}'),
        ("split 'x'",),
    ),
    Case(
        "folder",
        "episode.json broken",
        lambda p: (p / "take0/episode.json").write_text("["),
        ("episode.json cannot be read",),
    ),
    Case(
        "folder",
        "robot without joints",
        rewrite(only("arm.urdf"), 'name="shoulder"', 'name="s"'),
        ("no joint 'shoulder'",),
    ),
]

PICKLE = only("low_dim_obs.pkl")
RLBENCH_CASES = [
    Case(
        "rlbench",
        "os.system",
        replace(PICKLE, b"cos\nsystem\n(S'touch HERE'\ntR."),
        ("names os.system", "Nothing of it was run"),
    ),
    Case(
        "rlbench",
        "eval",
        replace(PICKLE, b'cbuiltins\neval\n(S\'open("HERE", "w")\'\ntR.'),
        ("names builtins.eval",),
    ),
    Case("rlbench", "truncated pickle", truncate(PICKLE, 300), ("low_dim_obs.pkl is refused",)),
    Case("rlbench", "empty pickle", replace(PICKLE, b""), ("low_dim_obs.pkl is refused",)),
    Case("rlbench", "pickle of a number", replace(PICKLE, pickle.dumps(7)), ("no observations",)),
    Case("rlbench", "no observations", states(lambda o: []), ("no observations",)),
    Case(
        "rlbench",
        "joints missing",
        states(lambda o: [delattr(o[2], "joint_positions"), o][1]),
        ("frame 2", "joint_positions is missing"),
    ),
    Case(
        "rlbench", "no calibration", misc("intrinsics", None), ("frame 2", "intrinsics is missing")
    ),
    Case("rlbench", "no near plane", misc("near", float("nan")), ("frame 2", "camera_near")),
    Case("rlbench", "pose 3x4", misc("extrinsics", np.eye(4)[:3]), ("frame 2", "extrinsics")),
    Case(
        "rlbench",
        "pose NaN",
        misc("extrinsics", np.full((4, 4), np.nan)),
        ("frame 2", "extrinsics"),
    ),
    Case(
        "rlbench",
        "pose scaled",
        misc("extrinsics", 2 * np.eye(4), frame=1),
        ("frame 1", "camera_to_world"),
    ),
    Case(
        "rlbench",
        "joints of unequal length",
        states(lambda o: [setattr(o[3], "joint_positions", np.zeros(3)), o][1]),
        ("frame 3", "joint_positions"),
    ),
    Case(
        "rlbench",
        "pictures differ in size",
        picture("left_view_rgb/2.png", np.zeros((12, 16, 3), np.uint8)),
        ("frame 2", "left_view_rgb/2.png is 12x16"),
    ),
    Case(
        "rlbench",
        "picture too many",
        lambda p: shutil.copy(
            only("left_view_depth/0.png")(p), only("left_view_depth")(p) / "4.png"
        ),
        ("frame 4", "left_view_depth has 5 pictures"),
    ),
    Case(
        "rlbench",
        "depth missing",
        lambda p: [shutil.rmtree(f) for f in list(p.rglob("*_depth"))],
        ("the folder left_view_depth is missing",),
    ),
    Case(
        "rlbench",
        "cameras flag leads out",
        lambda _: None,
        ("camera name '../left_view' cannot be",),
        ("--cameras", "../left_view"),
    ),
    Case(
        "rlbench",
        "resized pictures",
        states(
            lambda o: [
                (
                    x.misc.update(
                        left_view_camera_intrinsics=np.diag([2.0, 2, 1])
                        @ x.misc["left_view_camera_intrinsics"]
                    ),
                    x,
                )[1]
                for x in o
            ]
        ),
        ("frame 0", "images were resized and the intrinsics not"),
    ),
    Case(
        "rlbench",
        "truncated depth",
        truncate(only("left_view_depth/1.png"), 90),
        ("frame 1", "left_view_depth/1.png is damaged"),
    ),
    Case(
        "rlbench",
        "picture missing",
        lambda p: only("left_view_rgb/3.png")(p).unlink(),
        ("frame 3", "left_view_rgb has no picture"),
    ),
    Case(
        "rlbench", "nothing there", lambda p: PICKLE(p).unlink(), ("no folder with a low_dim_obs",)
    ),
]
CASES = HDF5_CASES + FOLDER_CASES + RLBENCH_CASES


def test_the_corpus_is_large():
    assert len(CASES) >= 100
    assert len({(case.format, case.name) for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.format}: {case.name}")
def test_a_broken_source_is_one_line_and_leaves_nothing(
    case: Case, originals: Path, tmp_path: Path, capsys: Any, monkeypatch: Any
) -> None:
    shutil.copytree(originals / case.format, tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    case.damage(tmp_path / "source")
    source = "source/demos.hdf5" if case.format == "robomimic" else "source"
    words = ["data", "import", case.format, source, "--out", "out", "--workers", "1", *case.flags]
    if case.format in ("robotwin", "rlbench"):
        words += ["--rate", "2"]
    if case.format == "folder":
        words += ["--robot", "source/arm.urdf"]
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("hdvpd: ")
    assert printed.err.count("\n") == 1
    for word in case.words:
        assert word in printed.err
    assert "--skip-bad" not in printed.err  # of the one episode
    if "frame" in case.words[0]:
        assert NAMES[case.format] in printed.err
    assert str(tmp_path) not in printed.err or "source" in printed.err
    assert sorted(f.name for f in tmp_path.iterdir()) == ["source"]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("folder nowhere --out out", "There is no nowhere"),
        ("folder source --out out --episodes 3", "--episodes 3"),
        ("folder source --out out --episodes a-b", "--episodes a-b"),
        ("folder source --out out --episodes 0-99999999999", "lies outside 0-0"),
        ("folder source --out out --step 0", "--step = 0"),
        ("folder source --out out --step nan", "--step = nan"),
        ("folder source --out out --workers 0", "--workers = 0"),
        ("folder source --out out --depth-unit-m -1", "--depth-unit-m = -1"),
        ("folder source --out out --action joint-targets", "has no actions"),
        ("folder source --out out --robot gone.urdf", "--robot gone.urdf"),
        ("folder source --out out --calibration gone.json", "no calibration file gone.json"),
        ("folder source --out out", "neither a robot model nor"),
    ],
)
def test_impossible_flags_are_one_line(words, part, originals, tmp_path, capsys, monkeypatch):
    shutil.copytree(originals / "folder", tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    assert main(["data", "import", *words.split()]) == 2
    printed = capsys.readouterr().err
    assert part in printed
    assert printed.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flag", "value"), [("--size", "96"), ("--channels", "rbg"), ("--action", "torque")]
)
def test_impossible_values_are_named(flag, value, originals, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = str(originals / "folder")
    assert main(["data", "import", "folder", source, "--out", "out", flag, value]) == 2
    printed = capsys.readouterr().err
    assert flag in printed
    assert value in printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("package", ["h5py", "mujoco"])
def test_a_missing_package_names_its_extra(package, originals, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    source = str(originals / "robomimic" / "demos.hdf5")
    assert main(["data", "import", "robomimic", source, "--out", str(tmp_path / "out")]) == 2
    extra = {"h5py": "import", "mujoco": "sim"}[package]
    assert (
        f"in the clone, run: pip install -c constraints.txt -e '.[{extra}]'"
        in capsys.readouterr().err
    )


def test_a_disk_error_is_not_blamed_on_the_source(originals, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    source = str(originals / "maniskill")
    out = str(tmp_path / "file" / "out")
    assert main(["data", "import", "maniskill", source, "--out", out, "--skip-bad"]) == 2
    assert "Could not write" in capsys.readouterr().err


@pytest.mark.parametrize(
    "episodes", ["null", "5", "[3]", '[{"episode_id": [0]}]', '[{"episode_id": {"a": 1}}]']
)
def test_what_the_json_of_maniskill_says_of_success_may_be_anything(
    originals, tmp_path, monkeypatch, episodes
):
    """It is not needed, so it does not stop an import."""
    shutil.copytree(originals / "maniskill", tmp_path / "source")
    (file,) = (tmp_path / "source").glob("*.json")
    file.write_text(f'{{"episodes": {episodes}}}')
    monkeypatch.chdir(tmp_path)
    words = "data import maniskill source --out out --rate 2 --workers 1 --no-check"
    assert main(words.split()) == 0


# --- pickles ------------------------------------------------------------------------------------


class _Call:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call


@pytest.mark.parametrize(
    "payload",
    [
        _Call(os.system, "touch HERE"),
        _Call(eval, "open('HERE', 'w')"),
        _Call(getattr, StandIn, "x"),
        _Call(io.open, "HERE", "w"),
        _Call(np.load, "HERE"),
        _Call(np.lib.format.open_memmap, "HERE"),
        _Call(__import__, "antigravity"),
        {"inside": [np.zeros(3), _Call(os.mkdir, "HERE")]},
        np.array([_Call(os.mkdir, "HERE"), None]),
    ],
    ids=lambda p: p.call[0].__name__ if isinstance(p, _Call) else "nested",
)
@pytest.mark.parametrize("protocol", [0, 2, 5])
def test_nothing_of_a_malicious_pickle_is_run(payload, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "bad.pkl"
    file.write_bytes(pickle.dumps(payload, protocol))
    with pytest.raises(UnsafePickleError, match="is not allowed"):
        read_pickle(file, "rlbench")
    assert [f.name for f in tmp_path.iterdir()] == ["bad.pkl"]


@pytest.mark.parametrize("protocol", range(6))
def test_arrays_survive_every_protocol(protocol, tmp_path):
    file = tmp_path / "good.pkl"
    values = {"a": np.arange(6.0).reshape(2, 3), "b": np.float64(0.1), "c": [1, "x", None],
              "d": np.asfortranarray(np.arange(6).reshape(2, 3)), "e": b"\xff"}  # fmt: skip
    file.write_bytes(pickle.dumps(values, protocol))
    read = read_pickle(file, "rlbench")
    for key in "abd":
        np.testing.assert_array_equal(read[key], values[key])
    assert (read["c"], read["e"]) == (values["c"], values["e"])


def test_old_numpy_names_and_foreign_classes_become_data(tmp_path):
    file = tmp_path / "old.pkl"
    text = pickle.dumps(np.arange(3), 0).replace(b"numpy._core", b"numpy.core")
    file.write_bytes(text)
    np.testing.assert_array_equal(read_pickle(file, "rlbench"), np.arange(3))
    file.write_bytes(b"\x80\x02crlbench.backend.observation\nObservation\n)\x81}U\x01xK\x05sb.")
    stand_in = read_pickle(file, "rlbench")
    assert isinstance(stand_in, StandIn)
    assert vars(stand_in) == {"x": 5}


def test_garbage_is_refused_and_nothing_else_happens(tmp_path):
    rng = np.random.default_rng(0)
    good = pickle.dumps({"a": np.arange(5), "b": [1.5, "text"]}, 4)
    file = tmp_path / "noise.pkl"
    for _ in range(300):
        data = bytearray(good)
        for place in rng.integers(0, len(data), 3):
            data[place] = rng.integers(256)
        file.write_bytes(data)
        with contextlib.suppress(UnsafePickleError):
            read_pickle(file, "rlbench")


def test_the_calibration_of_opencv_counts_pixels_from_their_centres(tmp_path):
    camera = {"image_size": [24, 32], "intrinsics": [[30, 0, 15.5], [0, 30, 11.5], [0, 0, 1]],
              "camera_to_world": np.eye(4).tolist(), "pixel_centre": 0}  # fmt: skip
    file = tmp_path / "c.json"
    file.write_text(json.dumps({"version": 1, "cameras": {"a": camera}}))
    intrinsics = read_sidecar(file).cameras["a"].intrinsics_for((48, 64))
    np.testing.assert_allclose(intrinsics, [[60, 0, 32], [0, 60, 24], [0, 0, 1]])
    camera["axes"] = "nerf"
    file.write_text(json.dumps({"version": 1, "cameras": {"a": camera}}))
    with pytest.raises(UserError, match=r"cameras\.a\.axes"):
        read_sidecar(file)


PLAIN_CORRECTIONS = Corrections(
    {"a": CameraCorrection(lag_s=0.5)},
    np.diag([-1.0, -1, 1, 1]),
    {"elbow": JointCorrection(0.1, "fore", ("fore",), np.eye(6)[2])},
).as_plain()
EVERY_KEY = {
    "version": 1,
    "cameras": {
        "a": {"image_size": [24, 32], "intrinsics": [[30, 0, 16], [0, 30, 12], [0, 0, 1]],
              "camera_to_world": np.eye(4).tolist(), "camera_to_link": np.eye(4).tolist(),
              "link": "hand", "axes": "opencv", "pixel_centre": 0.5, "depth_unit_m": 0.001,
              "rgb": "a/rgb", "depth": "a/depth"}
    },
    "joints": [{"name": "grip", "unit": "m", "arm": "left", "drives": {"any_name": 1}}],
    "end_effectors": [{"name": "tool", "arm": "left"}],
    "robot": {"base_to_world": np.eye(4).tolist()},
    "workspace": {"min": [0, 0, 0], "max": [1, 1, 1]},
    "extrinsics": {"direction": "world-to-camera", "axes": "opencv"},
    "corrections": {**PLAIN_CORRECTIONS, "sha256": "as in a file that was copied"},
}  # fmt: skip


def test_every_key_of_a_calibration_file_is_read(tmp_path):
    file = tmp_path / "c.json"
    file.write_text(json.dumps(EVERY_KEY))
    assert set(read_sidecar(file).corrections.joints) == {"elbow"}


@pytest.mark.parametrize(
    ("path", "wrong", "words"),
    [
        ((), "workspce", "it has the unknown key 'workspce'; did you mean 'workspace'?"),
        ((), "colour", "unknown key 'colour'; known are version, cameras, joints, "),
        (("cameras", "a"), "pixel_center", "cameras.a has the unknown key 'pixel_center'; did you"),
        (("joints", 0), "units", "joints[0] has the unknown key 'units'; did you mean 'unit'?"),
        (("end_effectors", 0), "arms", "end_effectors[0] has the unknown key 'arms'; did you mean"),
        (("robot",), "base_to_wrld", "robot has the unknown key 'base_to_wrld'; did you mean"),
        (("workspace",), "lower", "workspace has the unknown key 'lower'; known are min, max"),
        (("extrinsics",), "axis", "extrinsics has the unknown key 'axis'; did you mean 'axes'?"),
        (("corrections",), "camera", "corrections has the unknown key 'camera'; did you mean"),
        (("corrections", "robot"), "joint", "corrections.robot has the unknown key 'joint'; did"),
        (("corrections", "robot", "joints", "elbow"), "ofset", "joints.elbow has the unknown key"),
    ],
)
def test_unknown_keys_are_refused_at_every_level(path, wrong, words, tmp_path):
    raw = json.loads(json.dumps(EVERY_KEY))
    functools.reduce(lambda level, key: level[key], path, raw)[wrong] = 0
    file = tmp_path / "c.json"
    file.write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"c\.json: ") as caught:
        read_sidecar(file)
    assert words in str(caught.value)
