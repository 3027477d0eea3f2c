"""The robot of a data set or run: its model, how the joints of the data move it, and where it is.

`robot.json` beside `dataset.json` holds the kinematic part of a URDF or MJCF and the mapping of
joints and links, so that joint targets which nobody recorded become link poses and kinematic
points: by MuJoCo, loaded when it is first needed.
"""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, Int, RobotPoints
from hdvpd.data import schema
from hdvpd.data.importers.robot_model import (
    compile_kinematics,
    kinematics_only,
    load_mujoco,
)
from hdvpd.data.kinematics import robot_points

ROBOT_FILE = "robot.json"
FORMAT, VERSION = "hdvpd-robot", 1


class Robot:
    """Forward kinematics of the robot that the data show."""

    def __init__(self, description: Mapping[str, Any], source: Path) -> None:
        """Read a description; MuJoCo is not needed yet.

        Raises:
          UserError: it is of another format, or something is missing.
        """
        if description.get("format") != FORMAT or description.get("version") != VERSION:
            raise UserError(
                f"{source} is no robot model of this hdvpd: its format should be {FORMAT!r}, "
                f"version {VERSION}. Write it again with `hdvpd data robot`."
            )
        for key in ("model", "joints", "links", "base_to_world"):
            if key not in description:
                raise UserError(
                    f"{source}: {key!r} is missing. Write it again with `hdvpd data robot`."
                )
        self.description, self.source = description, source
        self.info = schema.parse_robot(description, source)

    @property
    def joints(self) -> tuple[str, ...]:
        """Names of the joints, in the order of joint arrays."""
        return self.info.joints

    @property
    def units(self) -> tuple[str, ...]:
        """Unit of each joint: rad, m, or 1 for a normalised opening."""
        return tuple(str(joint.get("unit", "rad")) for joint in self.description["joints"])

    @property
    def links(self) -> tuple[str, ...]:
        """Names of the links, in the order of link arrays."""
        return self.info.links

    @property
    def text(self) -> str:
        """The kinematic part of the robot model, URDF or MJCF."""
        return self.description["model"]

    @functools.cached_property
    def limits(self) -> Float[np.ndarray, "j 2"]:
        """Least and greatest value of every joint; infinite where the model has no limit."""
        model = self._compiled.model
        limits = np.array([[-np.inf, np.inf]] * len(self.joints))
        for column, joint in enumerate(self.description["joints"]):
            for name, (factor, offset) in joint.get("moves", {}).items():
                moved = model.joint(name)
                if model.jnt_limited[moved.id] and factor:
                    ends = sorted((x - offset) / factor for x in model.jnt_range[moved.id])
                    low, high = limits[column]
                    limits[column] = max(low, ends[0]), min(high, ends[1])
        return limits

    def link_poses(self, joints: Float[Array, "*batch j"]) -> Float[np.ndarray, "*batch l 4 4"]:
        """Forward kinematics.

        Args:
          joints: values in the units and the order of the data; leading axes as you like.

        Returns:
          Poses of the links in the world frame [m].

        Raises:
          UserError: the robot model is unusable, or MuJoCo is not installed.
        """
        compiled = self._compiled
        given = np.asarray(joints, np.float64)
        rows = given.reshape(-1, len(self.joints)) @ compiled.mapping + compiled.rest[None]
        count, data = len(compiled.bodies), compiled.data
        places = np.empty((len(rows), len(self.links), 3))
        turns = np.empty((len(rows), len(self.links), 9))
        # Views of MuJoCo's memory, looked up once: the loop is most of the time.
        qpos, kinematics, model = data.qpos, load_mujoco().mj_kinematics, compiled.model
        parts = (
            (data.xpos, data.xmat, compiled.bodies, slice(None, count)),
            (data.site_xpos, data.site_xmat, compiled.sites, slice(count, None)),
        )
        parts = tuple(part for part in parts if len(part[2]))
        for row, place, turn in zip(rows, places, turns, strict=True):
            qpos[:] = row
            kinematics(model, data)
            for xpos, xmat, numbers, part in parts:
                xpos.take(numbers, 0, place[part], "clip")
                xmat.take(numbers, 0, turn[part], "clip")
        poses = np.zeros((len(rows), len(self.links), 4, 4))
        poses[..., :3, :3] = turns[:, compiled.order].reshape(-1, len(self.links), 3, 3)
        poses[..., :3, 3], poses[..., 3, 3] = places[:, compiled.order], 1.0
        base = np.asarray(self.description["base_to_world"], np.float64)
        if (base != np.eye(4)).any():
            poses = base @ poses
        return poses.reshape(*given.shape[:-1], len(self.links), 4, 4)

    def points(self, joints: Float[Array, "*batch j"]) -> RobotPoints:
        """Place the kinematic points of joint values, as `data.windows` does for recorded ones.

        Raises:
          UserError: as in `link_poses`.
        """
        return robot_points(self.link_poses(joints), joints, self.info.skeleton)

    @functools.cached_property
    def _compiled(self) -> "_Compiled":
        model = compile_kinematics(kinematics_only(self.text, self.source)[0], self.source)
        data = load_mujoco().MjData(model)
        bodies = {model.body(k).name: k for k in range(model.nbody)}
        sites = {model.site(k).name: k for k in range(model.nsite)}
        unknown = [name for name in self.links if name not in bodies and name not in sites]
        if unknown:
            raise UserError(
                f"{self.source}: the robot model has no body or site {unknown[0]!r}, which the "
                f"data list as a link. Its bodies are {', '.join(filter(None, bodies))}."
            )
        of_bodies = [k for k, name in enumerate(self.links) if name in bodies]
        of_sites = [k for k, name in enumerate(self.links) if name not in bodies]
        mapping, rest = np.zeros((len(self.joints), model.nq)), model.qpos0.copy()
        addresses = {model.joint(k).name: int(model.jnt_qposadr[k]) for k in range(model.njnt)}
        for column, joint in enumerate(self.description["joints"]):
            for name, (factor, offset) in joint.get("moves", {}).items():
                if name not in addresses:
                    raise UserError(
                        f"{self.source}: the robot model has no joint {name!r}, which "
                        f"{joint['name']!r} of the data should move. Its joints are "
                        f"{', '.join(addresses)}."
                    )
                mapping[column, addresses[name]], rest[addresses[name]] = factor, offset
        return _Compiled(
            model=model,
            data=data,
            bodies=np.array([bodies[self.links[k]] for k in of_bodies], np.intp),
            sites=np.array([sites[self.links[k]] for k in of_sites], np.intp),
            order=np.argsort(of_bodies + of_sites),
            mapping=mapping,
            rest=rest,
        )


@dataclass(frozen=True)
class _Compiled:
    """A robot model in MuJoCo.

    Attributes:
      model: MuJoCo's.
      data: its state.
      bodies: numbers of the links that are bodies.
      sites: numbers of the links that are sites.
      order: from bodies and sites to the order of the links.
      mapping: joints of the data to generalised positions: rest + joints @ mapping.
      rest: see there.
    """

    model: Any
    data: Any
    bodies: Int[np.ndarray, "x"]
    sites: Int[np.ndarray, "y"]
    order: Int[np.ndarray, "l"]
    mapping: Float[np.ndarray, "j q"]
    rest: Float[np.ndarray, "q"]


def describe_robot(
    robot: Mapping[str, Any],
    model: str,
    moves: Sequence[Mapping[str, Sequence[float]]],
    base_to_world: Float[np.ndarray, "4 4"] | None = None,
) -> dict[str, Any]:
    """Describe a robot for robot.json.

    Args:
      robot: as in dataset.json; its links are bodies or sites of the model.
      model: the kinematic part of a URDF or MJCF.
      moves: for every joint of the data the joints of the model that it moves, each with a factor
        and an offset; none for a joint that moves no link.
      base_to_world: pose of the model's root; by default the world's.
    """
    base = np.eye(4) if base_to_world is None else base_to_world
    joints = [
        {**joint, "moves": {name: list(map(float, how)) for name, how in own.items()}}
        for joint, own in zip(robot["joints"], moves, strict=True)
    ]
    return {
        "format": FORMAT,
        "version": VERSION,
        **robot,
        "joints": joints,
        "base_to_world": np.asarray(base, np.float64).tolist(),
        "model": model,
    }


def with_base_moved(
    description: Mapping[str, Any], motion: Float[np.ndarray, "4 4"]
) -> Mapping[str, Any]:
    """Return what `describe_robot` does, for a base that a motion [m] brings to its true place."""
    base = motion @ np.asarray(description["base_to_world"], np.float64)
    return {**description, "base_to_world": base.tolist()}


def read_robot(folder: Path, base_motion: Float[np.ndarray, "4 4"] | None = None) -> Robot | None:
    """Read the robot model that a data set carries, or None if it carries none.

    Args:
      folder: of the data set.
      base_motion: brings the robot's base from where it is stored to where it is
        (`corrections.Corrections.robot`); by default it is right.

    Raises:
      UserError: it cannot be read, or is of another format.
    """
    file = folder / ROBOT_FILE
    if not file.is_file():
        return None
    try:
        raw = sealed.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} cannot be read ({error}). Write it again with `hdvpd data robot {folder}`."
        ) from error
    if not isinstance(raw, Mapping):
        raise UserError(
            f"{file} should hold one JSON object; write it again with `hdvpd data robot {folder}`."
        )
    robot = Robot(raw, file)
    return robot if base_motion is None else Robot(with_base_moved(raw, base_motion), file)
