"""The robomimic family (robomimic, MimicGen, DexMimicGen, RoboCasa): one HDF5 file of demos.

```
data                attrs env_args: JSON with env_name and env_kwargs.control_freq
data/demo_<i>       attrs model_file: MJCF; camera_info: JSON {cam: {intrinsics, extrinsics}}
  obs/<cam>_image               (T,H,W,3)  uint8
  obs/<cam>_depth               (T,H,W,1)  metres
  obs/robot<r>_joint_pos        (T,7)
  obs/robot<r>_gripper_qpos     (T,2)
  obs/robot<r>_eef_pos, _eef_quat          quaternion x y z w
mask/<name>         names of demos
```

`camera_info` is camera-to-world with OpenCV axes for static cameras. For wrist cameras the script
that writes it stores another product, so their pose comes from the robot model inside the file.
"""

import contextlib
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.data import pinhole
from hdvpd.data.importers import base, conversions
from hdvpd.data.importers.common import Choices, dig, number_in
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.hdf5 import Node, open_hdf5
from hdvpd.data.importers.hdf5_camera import Layout, hdf5_camera

RATE_HZ = 20.0
"""robosuite's default control frequency."""
MUJOCO_FOVY = 45.0
"""MuJoCo's default vertical field of view [degrees]."""
SPLITS = {"train": "train", "valid": "validation", "validation": "validation", "test": "test"}
"""Split by the name of a mask."""
_SCRIPT = (
    "`python dataset_states_to_obs.py --dataset demo.hdf5 --output_name demo_depth.hdf5 "
    "--done_mode 2 --camera_names agentview robot0_eye_in_hand --camera_height 84 "
    "--camera_width 84 --depth`"
)
_WRITE = f"Write observations with pictures and depth by robomimic's script, {_SCRIPT}."
_CONVERT = "`python conversion/convert_robosuite.py --dataset demo.hdf5`"
_NO_DEPTH = f"it has no depth; write the observations again by robomimic's script, {_SCRIPT}"
_WRIST = (
    "it moves with the robot, and its pose in camera_info is not usable; no model_file mounts it "
    "on a link that the joints move, so give link and camera_to_link with --calibration"
)


class RobomimicSource(base.AbstractSource):
    """A robomimic HDF5 file with observations."""

    packages = ("h5py",)
    has_actions = True

    def episodes(self) -> tuple[base.SourceEpisode, ...]:
        """List the demos by number; masks become splits."""
        file = self.path
        if file.is_dir():
            raise UserError(f"{file} is a folder; name the .hdf5 file with the observations.")
        with open_hdf5(file) as stream:
            root = Node(SourcePlace(file, "all"), stream)
            names = sorted((n for n in root.names("data")), key=number_in)
            if not names:
                raise UserError(f"{file} holds no demos under 'data'; it is no robomimic file.")
            about = root.group("data").json_attribute("env_args")
            task = str(dig(about, "env_name") or "unknown")
            split = _splits(root)
        return tuple(base.SourceEpisode(n, file, task, split.get(n, "")) for n in names)

    @contextlib.contextmanager
    def open(self, episode: base.SourceEpisode) -> Iterator[base.Recording]:
        """Open one demo."""
        place = episode.place
        with open_hdf5(episode.file, place) as file:
            data = Node(place, file).group("data")
            demo = data.group(episode.name)
            obs = _observations(data, demo)
            model, choices = _Model(demo), Choices(place, self.options)
            positions, joints, fields = _joints(obs, model)
            frames = len(positions)
            named = model.names_joints(joints)
            mounts = _mounts(demo, obs, model, choices, movable=named)
            usable = {name: mount for name, mount in mounts.items() if isinstance(mount, _Mount)}
            names, warnings = choices.cameras(
                {name: "" if name in usable else str(mount) for name, mount in mounts.items()}
            )
            targets, commanded = _targets(demo, positions, choices)
            recorded = dig(data.json_attribute("env_args"), "env_kwargs", "control_freq")
            rate, time = choices.rate(
                RATE_HZ, "robosuite's default", recorded, "control_freq of env_args"
            )
            yield base.Recording(
                time_s=np.arange(frames) / rate,
                cameras={n: _camera(obs, n, frames, choices, usable[n]) for n in names},
                joints=choices.joints(joints),
                joint_positions=positions,
                joint_targets=targets,
                end_effectors=_end_effectors(obs, frames),
                base_to_world=choices.base_to_world(),
                robot_xml=model.text if named else "",
                fields={
                    "joint_positions": f"{', '.join(fields)}, measured",
                    "joint_targets": commanded,
                    "time": time,
                },
                warnings=warnings,
            )


def _targets(demo: Node, positions: np.ndarray, choices: Choices) -> tuple[np.ndarray | None, str]:
    if not choices.options.joint_targets:
        return None, "next positions, because actions are the controller's"
    return choices.targets(demo.read("actions", (len(positions), None)), positions)


def _mounts(
    demo: Node, obs: Node, model: "_Model", choices: Choices, *, movable: bool
) -> dict[str, "_Mount | str"]:
    """Say for every camera where it is mounted, or why it cannot be imported."""
    info = demo.json_attribute("camera_info") or {}
    mounts: dict[str, _Mount | str] = {}
    for field in obs.names():
        if not field.endswith("_image"):
            continue
        name = field.removesuffix("_image")
        if f"{name}_depth" not in obs:
            mounts[name] = _NO_DEPTH
        elif choices.is_given(name):
            mounts[name] = _Mount("world", np.eye(4), None, 0.0, "given")
        else:
            mounts[name] = _mount(demo.place, name, info, model, movable=movable)
    return mounts


@dataclass(frozen=True)
class _Mount:
    """Calibration of a camera.

    Attributes:
      link: that carries it, or "world".
      camera_to_link: OpenCV axes; relative to the world if that is the link.
      intrinsics: [px], or None where only the field of view is known.
      fovy: vertical field of view [rad], used without intrinsics.
      origin: where this was found, for people.
    """

    link: str
    camera_to_link: Float[np.ndarray, "4 4"]
    intrinsics: Float[np.ndarray, "3 3"] | None
    fovy: float
    origin: str


def _mount(
    place: SourcePlace, name: str, info: Any, model: "_Model", *, movable: bool
) -> _Mount | str:
    found = model.mount(name)
    moves = name.endswith("eye_in_hand") or (found is not None and found.link != "world")
    given = info.get(name) if isinstance(info, Mapping) else None
    if moves:
        usable = found is not None and found.link != "world" and movable
        return found if usable and found is not None else _WRIST
    if given is None:
        return found or "it has neither camera_info nor a <camera> in model_file"
    try:
        matrices = [np.array(given[key], np.float64) for key in ("intrinsics", "extrinsics")]
    except (TypeError, KeyError, ValueError):
        matrices = []
    if [m.shape for m in matrices] != [(3, 3), (4, 4)]:
        raise place.error(
            f"camera_info of {name!r} should hold 3x3 intrinsics and 4x4 extrinsics",
            "Write the observations again, or give the camera with --calibration.",
        )
    return _Mount("world", matrices[1], matrices[0], 0.0, "camera_info")


class _Model:
    """The MJCF inside a demo, as far as cameras and joint names go.

    Attributes:
      text: the MJCF, or empty.
      joints: names of all its joints in order.
    """

    def __init__(self, demo: Node) -> None:
        self._place = demo.place
        text = demo.attribute("model_file")
        self.text = text if isinstance(text, str) else ""
        self._cameras: dict[str, tuple[str, ElementTree.Element]] = {}
        self.joints: tuple[str, ...] = ()
        if not self.text:
            return
        try:
            root = ElementTree.fromstring(self.text)
        except (ElementTree.ParseError, ValueError, RecursionError) as error:
            raise demo.place.error(f"attribute 'model_file' is no XML ({error})") from error
        self.joints = tuple(joint.get("name", "") for joint in root.iter("joint"))
        compiler = root.find("compiler")
        self._degrees = compiler is None or compiler.get("angle", "degree") == "degree"
        for parent in root.iter():
            for camera in parent.findall("camera"):
                link = parent.get("name", "") if parent.tag == "body" else "world"
                self._cameras[camera.get("name", "")] = (link, camera)

    def names_joints(self, joints: Sequence[base.Joint]) -> bool:
        """Whether it holds every joint of an arm."""
        return all(joint.name in self.joints for joint in joints if not joint.is_gripper)

    def joints_of(self, prefix: str) -> list[str]:
        """List the joints whose names begin so, in order."""
        return [name for name in self.joints if name.startswith(prefix)]

    def mount(self, name: str) -> _Mount | None:
        """Find a camera; its pose is relative to the body that holds it."""
        if name not in self._cameras:
            return None
        link, camera = self._cameras[name]
        try:
            fovy = float(np.deg2rad(float(camera.get("fovy", MUJOCO_FOVY))))
            pose = _camera_pose(camera)
        except ValueError as error:
            raise self._place.error(f"<camera> {name!r} of model_file: {error}") from error
        return _Mount(link, pose, None, fovy, "model_file")


def _camera_pose(camera: ElementTree.Element) -> Float[np.ndarray, "4 4"]:
    if any(key in camera.attrib for key in ("euler", "xyaxes", "zaxis", "axisangle")):
        raise ValueError("its rotation should be a quaternion, as robosuite saves it")
    numbers = f"{camera.get('pos', '0 0 0')} {camera.get('quat', '1 0 0 0')}".split()
    values = np.array([float(number) for number in numbers])
    if values.shape != (7,):
        raise ValueError("pos should be 3 numbers and quat 4")
    # MuJoCo's cameras look along -z with y up, as OpenGL's do.
    return conversions.pose_from_quaternion(values, "wxyz") @ pinhole.AXES["opengl"]


def _camera(obs: Node, name: str, frames: int, choices: Choices, mount: _Mount) -> base.Camera:
    def recorded(size: tuple[int, int]) -> base.View:
        intrinsics = mount.intrinsics
        if intrinsics is None:
            intrinsics = pinhole.intrinsics_of(mount.fovy, size)
        return base.View(size, intrinsics, mount.camera_to_link, mount.link)

    layout = Layout(f"{name}_image", f"{name}_depth", unit_m=1.0)
    return hdf5_camera(obs, name, frames, layout, choices, recorded, mount.origin)


def _observations(data: Node, demo: Node) -> Node:
    if "obs" not in demo:
        raw = data.attribute("env_args") is None
        first = f"The file is as robosuite writes it: first {_CONVERT}. " if raw else ""
        raise demo.place.error("it holds no observations", first + _WRITE)
    obs = demo.group("obs")
    if not any(name.endswith("_image") for name in obs.names()):
        raise demo.place.error("its observations hold no pictures", _WRITE)
    return obs


def _joints(obs: Node, model: _Model) -> tuple[np.ndarray, list[base.Joint], list[str]]:
    """Read the joints of all robots, each its arm's and then its gripper's."""
    robots = [n for n in obs.names() if re.fullmatch(r"robot\d+_joint_pos", n)]
    if not robots:
        raise obs.place.error("'obs' has no robot0_joint_pos", _WRITE)
    columns, joints, used = [], [], []
    frames = None
    for arm_field in sorted(robots, key=number_in):
        robot = arm_field.removesuffix("_joint_pos")
        number = robot.removeprefix("robot")
        values = obs.read(arm_field, (frames, None))
        frames = len(values)
        arm = robot if len(robots) > 1 else ""
        columns.append(values)
        used.append(arm_field)
        names = _names(model.joints_of(f"{robot}_"), values.shape[1], f"{robot}_joint")
        joints += [base.Joint(name, "rad", arm) for name in names]
        if f"{robot}_gripper_qpos" in obs:
            opening = obs.read(f"{robot}_gripper_qpos", (frames, None))
            columns.append(opening)
            used.append(f"{robot}_gripper_qpos")
            found = model.joints_of(f"gripper{number}_")
            names = _names(found, opening.shape[1], f"{robot}_gripper")
            joints += [base.Joint(name, "m", arm) for name in names]
    if frames == 0:
        raise obs.place.error("'robot0_joint_pos' has no frames")
    return np.concatenate(columns, axis=1), joints, used


def _names(found: Sequence[str], count: int, otherwise: str) -> list[str]:
    if len(found) == count:
        return list(found)
    return [f"{otherwise}{k + 1}" for k in range(count)]


def _end_effectors(obs: Node, frames: int) -> tuple[base.EndEffector, ...]:
    fields = [n for n in obs.names() if re.fullmatch(r"robot\d+_eef_pos", n)]
    tools = []
    for field in sorted(fields, key=number_in):
        robot = field.removesuffix("_eef_pos")
        if f"{robot}_eef_quat" in obs:
            position = obs.read(field, (frames, 3))
            quaternion = obs.read(f"{robot}_eef_quat", (frames, 4))
            pose = conversions.pose_from_quaternion(np.hstack([position, quaternion]), "xyzw")
            arm = robot if len(fields) > 1 else ""
            tools.append(base.EndEffector(f"{robot}_eef", arm, pose))
    return tuple(tools)


def _splits(root: Node) -> dict[str, str]:
    split = {}
    for mask, name in SPLITS.items():
        if f"mask/{mask}" in root:
            root.check_shape(f"mask/{mask}", (None,))
            rows = root.rows(f"mask/{mask}", range(root.shape(f"mask/{mask}")[0]))
            split |= {_text(row): name for row in rows}
    return split


def _text(name: Any) -> str:
    return name.decode("utf-8", "replace") if isinstance(name, bytes) else str(name)
