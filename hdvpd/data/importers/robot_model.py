"""Kinematics of any robot: link poses from joint values through a URDF or MJCF, by MuJoCo.

Only the kinematic tree is used. Meshes, masses, contacts and actuators are removed before MuJoCo
compiles the model, so mesh files need not be there and `package://` paths do not matter.
"""

import contextlib
import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.basics.types import Float
from hdvpd.data.importers.faults import diagnosis

MIN_SEGMENT_M = 0.02
"""Links nearer to their parent than this give no kinematic points between the two."""

_MJCF_KEPT = {
    "mujoco", "compiler", "default", "worldbody", "body", "frame", "joint", "freejoint", "site",
    "inertial",
}  # fmt: skip
_MJCF_COMPILER = {"angle", "coordinate", "eulerseq", "autolimits"}
_MJCF_LOST = {"include", "attach", "replicate", "composite", "flexcomp"}
_INERTIA = {"pos": "0 0 0", "mass": "1", "diaginertia": "1 1 1"}
_URDF_INERTIA = (
    '<inertial><mass value="1"/><inertia ixx="1" iyy="1" izz="1" ixy="0" ixz="0" iyz="0"/>'
    "</inertial>"
)


class UnusableRobotError(UserError):
    """A robot model is damaged, or does not fit the data."""


@dataclass(frozen=True)
class Joint:
    """One column of the joint arrays.

    Attributes:
      name: of the joint; matched with the robot model's.
      unit: "rad", "m", or "1" for an opening normalised to [0, 1].
      arm: it belongs to; empty if there is only one.
      drives: joints of the robot model that it moves, with the factor; empty means the joint of
        its own name.
    """

    name: str
    unit: str = "rad"
    arm: str = ""
    drives: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_gripper(self) -> bool:
        """Whether it opens a gripper."""
        return self.unit == "1" or bool(re.search("grip|finger", self.name, re.IGNORECASE))


@dataclass(frozen=True)
class Mimic:
    """A joint of a URDF that follows another: value = factor * other + offset."""

    joint: str
    factor: float
    offset: float


@dataclass(frozen=True)
class Link:
    """A link of the robot as the native format lists it.

    Attributes:
      name: of the body.
      parent: the nearest listed link towards the root, or empty.
      arm: of the nearest joint towards the root that the data move.
      far: whether it lies far enough from its parent for points between the two.
    """

    name: str
    parent: str
    arm: str
    far: bool


class RobotModel:
    """The kinematic tree of a robot, with the columns of joint arrays that move it.

    Attributes:
      links: that the data move, and the tools fixed to them, from the root on.
      report: how joints were matched, for people.
      text: the kinematic part of the model, URDF or MJCF.
    """

    def __init__(self, text: str, file: Path, joints: Sequence[Joint]) -> None:
        """Compile a robot model and match its joints.

        Raises:
          UnusableRobotError: the model is damaged, or a joint has no counterpart.
          UserError: MuJoCo is not installed.
        """
        self._file = file
        self.text, self._mimics = kinematics_only(text, file)
        self._mujoco = load_mujoco()
        self._model = compile_kinematics(self.text, file)
        self._data = self._mujoco.MjData(self._model)
        self._num_columns = len(joints)
        self._columns = self._match(joints)
        self.links = self._moving_links(joints)
        self._bodies = [self._model.body(link.name).id for link in self.links]
        self.report = self._describe(joints)

    def link_poses(
        self, values: Float[np.ndarray, "f j"], base_to_world: Float[np.ndarray, "4 4"]
    ) -> Float[np.ndarray, "f l 4 4"]:
        """Forward kinematics.

        Returns:
          Poses of `links` in the world frame [m].

        Raises:
          UnusableRobotError: the model holds NaN or infinite numbers, which MuJoCo lets pass.
        """
        poses = np.zeros((len(values), len(self.links), 4, 4))
        poses[..., 3, 3] = 1.0
        data = self._data
        data.qpos[:] = self._model.qpos0
        for f, row in enumerate(values):
            for address, (column, factor, offset) in self._columns.items():
                data.qpos[address] = factor * row[column] + offset
            self._mujoco.mj_kinematics(self._model, data)
            poses[f, :, :3, :3] = data.xmat[self._bodies].reshape(-1, 3, 3)
            poses[f, :, :3, 3] = data.xpos[self._bodies]
        if not np.isfinite(poses).all():
            link = self.links[int(np.argmin(np.isfinite(poses).all(axis=(0, 2, 3))))].name
            raise UnusableRobotError(
                f"{self._file}: the robot model puts link {link!r} at NaN or infinity. Repair the "
                "numbers of its joints and origins."
            )
        return base_to_world @ poses

    def moves(self) -> tuple[dict[str, list[float]], ...]:
        """Say for every column which joints of the model it moves, with factor and offset."""
        moves: list[dict[str, list[float]]] = [{} for _ in range(self._num_columns)]
        for name, (column, factor, offset) in self._moved.items():
            moves[column][name] = [factor, offset]
        return tuple(moves)

    def limits(self) -> dict[str, tuple[bool, float, float]]:
        """Return of every moved joint with limits whether it turns, and both limits [rad or m].

        Those that follow others are left out: a model's author seldom minds their limits.
        """
        model = self._model
        numbers = {name: model.joint(name).id for name in self._moved if name not in self._mimics}
        return {
            name: (bool(model.jnt_type[k] == 3), *model.jnt_range[k].tolist())
            for name, k in numbers.items()
            if model.jnt_limited[k]
        }

    def skeleton(self, joints: Sequence[Joint]) -> dict[str, Any]:
        """Describe kinematic points for dataset.json: every link, and segments from far parents."""
        return {
            "points": [link.name for link in self.links],
            "segments": [[link.parent, link.name] for link in self.links if link.far],
            "arms": grippers_of(joints),
        }

    def _match(self, joints: Sequence[Joint]) -> dict[int, tuple[int, float, float]]:
        """Say for addresses of generalised positions which column moves them, factor and offset."""
        addresses = {
            self._model.joint(k).name: int(self._model.jnt_qposadr[k])
            for k in range(self._model.njnt)
            if self._model.jnt_type[k] in (2, 3)  # sliding joints and hinges
        }
        moved: dict[str, tuple[int, float, float]] = {}
        for column, joint in enumerate(joints):
            targets = joint.drives or {joint.name: 1.0}
            unknown = [name for name in targets if name not in addresses]
            if unknown and (joint.drives or not joint.is_gripper):
                raise UnusableRobotError(
                    f"{self._file} has no joint {unknown[0]!r}, which the data move. Its joints "
                    f"are {', '.join(addresses) or 'none'}; the data's are "
                    f"{', '.join(j.name for j in joints)}. Name the data's joints like the model's "
                    "in 'joints' of the calibration file (docs/importing.md)."
                )
            moved |= {n: (column, f, 0.0) for n, f in targets.items() if n in addresses}
        for _ in self._mimics:  # one may follow another that stands after it in the file
            for name, mimic in self._mimics.items():
                if name not in moved and mimic.joint in moved:
                    column, factor, offset = moved[mimic.joint]
                    own = mimic.factor * offset + mimic.offset
                    moved[name] = (column, mimic.factor * factor, own)
        self._moved = moved
        self._still = [name for name in addresses if name not in moved]
        if not moved:
            raise UnusableRobotError(f"{self._file}: the data move none of its joints.")
        return {addresses[name]: how for name, how in moved.items()}

    def _moving_links(self, joints: Sequence[Joint]) -> tuple[Link, ...]:
        model = self._model
        arm: dict[int, str] = {}
        listed: dict[int, str] = {0: ""}
        links = []
        for body in range(1, model.nbody):
            parent = int(model.body_parentid[body])
            first, count = int(model.body_jntadr[body]), int(model.body_jntnum[body])
            own = [model.joint(first + k).name for k in range(count)]
            driven = [self._moved[name][0] for name in own if name in self._moved]
            if driven:
                arm[body] = joints[driven[0]].arm
            elif parent in arm:
                arm[body] = arm[parent]
            listed[body] = listed[parent]
            if body not in arm or not model.body(body).name:
                continue
            far = bool(np.linalg.norm(model.body_pos[body]) > MIN_SEGMENT_M)
            name = model.body(body).name
            links.append(Link(name, listed[parent], arm[body], far and bool(listed[parent])))
            listed[body] = name
        return tuple(links)

    def _describe(self, joints: Sequence[Joint]) -> tuple[str, ...]:
        matched = ", ".join(
            f"{joints[column].name} -> {name}" + (f" (x {factor:g})" if factor != 1 else "")
            for name, (column, factor, _) in self._moved.items()
        )
        used = {column for column, _, _ in self._moved.values()}
        unused = [joint.name for k, joint in enumerate(joints) if k not in used]
        lines = [f"joints matched with {self._file.name}: {matched}"]
        if unused:
            lines.append(f"joints that move no link of {self._file.name}: {', '.join(unused)}")
        if self._still:
            lines.append(f"joints of {self._file.name} that stay at 0: {', '.join(self._still)}")
        return tuple(lines)


def grippers_of(joints: Sequence[Joint]) -> dict[str, dict[str, str]]:
    """Say which joint opens the gripper of every arm, as dataset.json does."""
    arms: dict[str, dict[str, str]] = {}
    for joint in joints:
        if joint.is_gripper:
            arms.setdefault(joint.arm, {"gripper": joint.name})
    return arms


def read_robot_file(file: Path) -> str:
    """Read a URDF or MJCF.

    Raises:
      UserError: it cannot be read.
    """
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"--robot {file}: it cannot be read as text ({error}).") from error


def load_mujoco() -> Any:
    """Import MuJoCo; nothing is rendered with it here.

    Raises:
      UserError: it is not installed.
    """
    try:
        import mujoco
    except ImportError as error:
        raise UserError(
            "The kinematics of a robot model need MuJoCo, which is not installed: "
            f"{how_to_install('sim')}."
        ) from error
    return mujoco


def compile_kinematics(text: str, file: Path) -> Any:
    """Compile what `kinematics_only` returned; `file` is named in messages.

    Raises:
      UnusableRobotError: MuJoCo refuses it.
      UserError: MuJoCo is not installed.
    """
    mujoco = load_mujoco()
    try:
        with _without_log(mujoco):
            return mujoco.MjModel.from_xml_string(text)
    except ValueError as error:
        raise UnusableRobotError(
            f"{file}: MuJoCo cannot compile the robot model ({' '.join(str(error).split())}). "
            "Give --robot a URDF or MJCF of the robot."
        ) from error


@contextlib.contextmanager
def _without_log(mujoco: Any) -> Iterator[None]:
    """Keep MuJoCo from writing its warnings to a file in the current folder."""
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda _: None)
    try:
        yield
    finally:
        mujoco.set_mju_user_warning(before)


def kinematics_only(text: str, file: Path) -> tuple[str, dict[str, Mimic]]:
    """Strip a robot model of all but its kinematic tree.

    Returns:
      The rest, in the same language, and the joints of a URDF that follow others.

    Raises:
      UnusableRobotError: it is no robot model.
    """
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError, RecursionError) as error:
        found, remedy = diagnosis(file, f"is no XML ({error})", "", "the robot model")
        raise UnusableRobotError(f"{file}: {found}. {remedy}".strip()) from error
    if root.tag == "robot":
        return _strip_urdf(root, file)
    if root.tag == "mujoco":
        return _strip_mjcf(root, file), {}
    raise UnusableRobotError(
        f"{file}: the robot model begins with <{root.tag}>; expected <robot> (URDF) or <mujoco> "
        "(MJCF)."
    )


def _strip_urdf(root: ElementTree.Element, file: Path) -> tuple[str, dict[str, Mimic]]:
    mimics = {}
    try:
        for joint in root.iter("joint"):
            mimic = joint.find("mimic")
            if mimic is not None:
                factor, offset = (
                    float(mimic.get(*pair)) for pair in (("multiplier", "1"), ("offset", "0"))
                )
                if not (math.isfinite(factor) and math.isfinite(offset)):
                    raise ValueError(f"{factor:g} * joint + {offset:g}")
                mimics[joint.get("name", "")] = Mimic(mimic.get("joint", ""), factor, offset)
                joint.remove(mimic)
    except ValueError as error:
        raise UnusableRobotError(
            f"{file}: a <mimic> of the robot model is no number ({error})."
        ) from error
    for element in list(root):
        if element.tag not in ("link", "joint"):
            root.remove(element)
        elif element.tag == "link":
            for child in list(element):
                element.remove(child)
            element.append(ElementTree.fromstring(_URDF_INERTIA))
    # A tool fixed to its flange would otherwise be merged with it and lose its name.
    settings = ElementTree.SubElement(root, "mujoco")
    ElementTree.SubElement(settings, "compiler", {"fusestatic": "false"})
    return ElementTree.tostring(root, encoding="unicode"), mimics


def _strip_mjcf(root: ElementTree.Element, file: Path) -> str:
    lost = next((e.tag for e in root.iter() if e.tag in _MJCF_LOST), None)
    if lost:
        raise UnusableRobotError(
            f"{file}: the robot model uses <{lost}>. Save the compiled model as one flat file "
            "with mujoco.mj_saveLastXML and give that one."
        )
    _keep(root)
    for compiler in root.iter("compiler"):
        compiler.attrib = {k: v for k, v in compiler.attrib.items() if k in _MJCF_COMPILER}
    for site in root.iter("site"):
        site.attrib.pop("material", None)
    world = (element for element in root.iter("worldbody"))
    for body in itertools.chain.from_iterable(element.iter("body") for element in world):
        ElementTree.SubElement(body, "inertial", _INERTIA)
    return ElementTree.tostring(root, encoding="unicode")


def _keep(element: ElementTree.Element) -> None:
    for child in list(element):
        if child.tag not in _MJCF_KEPT or child.tag == "inertial":
            element.remove(child)
        else:
            _keep(child)
