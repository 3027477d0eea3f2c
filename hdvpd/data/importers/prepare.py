"""From an opened recording to native arrays: resampling, calibration, joints, link poses.

Everything small happens here, before a picture is decoded, so that most faults cost nothing.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.types import Float, Int
from hdvpd.data import checks, pinhole
from hdvpd.data.arrays import JOINT_POSITIONS, JOINT_TARGETS, LINKS, TARGET_LINKS
from hdvpd.data.importers import base
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.joint_limits import judge_limits
from hdvpd.data.importers.robot_model import RobotModel, UnusableRobotError, grippers_of
from hdvpd.data.importers.steps import Steps, pick_steps
from hdvpd.data.robot import describe_robot

REACH_M = 0.5
"""The guessed workspace box extends this far around the robot's links."""
MARGIN_M = 0.05
TOOL_TOLERANCE_M = 0.01
"""A recorded tool that moves more than this against every link does not belong to the model."""


@dataclass(frozen=True)
class Settings:
    """What decides the native arrays of a recording.

    Attributes:
      step_s: control step [s].
      size: height and width of all images [px]; None keeps those of the source.
      robot_file: of a robot model, or None.
      robot_text: its content.
    """

    step_s: float
    size: tuple[int, int] | None = None
    robot_file: Path | None = None
    robot_text: str = ""


@dataclass(frozen=True)
class Prepared:
    """A recording without its images, in native form.

    Attributes:
      rows: frames of the source that were picked, one per control step.
      sizes: height and width of the native images by camera [px].
      mounts: "world" or a link, by camera.
      arrays: by path inside the episode.
      robot: as in dataset.json.
      meta: of episode.json: what joints and links are, and where they come from.
      report: how joints were matched, and how many steps are left out, for people.
      kinematics: of robot.json, where there is a robot model.
      warnings: what the user should know of this episode.
    """

    rows: Int[np.ndarray, "t"]
    sizes: Mapping[str, tuple[int, int]]
    mounts: Mapping[str, str]
    arrays: Mapping[str, np.ndarray]
    robot: Mapping[str, Any]
    meta: Mapping[str, Any]
    report: tuple[str, ...]
    kinematics: Mapping[str, Any] | None
    warnings: tuple[str, ...] = ()


def prepare(recording: base.Recording, place: SourcePlace, settings: Settings) -> Prepared:
    """Resample and convert everything but the images.

    Raises:
      BadEpisodeError: times, joints or calibration are impossible.
      UserError: the robot model does not fit.
    """
    _require_finite(place, "time_s", recording.time_s)
    steps = pick_steps(recording, place, settings.step_s)
    rows = steps.rows
    targets, targets_source = _targets(recording, place, steps)
    positions = recording.joint_positions[rows]
    links = _links(recording, place, settings, steps, positions, targets)
    cameras, sizes = _cameras(recording, place, rows, links, settings.size)
    units = [{"name": j.name, "unit": j.unit, "arm": j.arm} for j in recording.joints]
    robot = {
        "name": links.source,
        "joints": units,
        "links": links.description,
        "skeleton": links.skeleton,
    }
    model, base_to_world = links.model, recording.base_to_world
    recorded = {"joint_positions": (positions, rows)}
    if recording.joint_targets is not None:
        recorded["joint_targets"] = targets, steps.commanded
    warning = model and judge_limits(model, recording.joints, place, recorded)
    return Prepared(
        rows=rows,
        sizes=sizes,
        mounts={name: camera.view.link for name, camera in recording.cameras.items()},
        arrays={
            "time_s": recording.time_s[rows],
            **cameras,
            JOINT_POSITIONS: positions.astype(np.float32),
            JOINT_TARGETS: targets.astype(np.float32),
            LINKS: links.measured.astype(np.float32),
            TARGET_LINKS: links.commanded.astype(np.float32),
        },
        robot=robot,
        meta={
            "joint_positions_source": recording.positions_source,
            "joint_targets_source": "next_positions" if links.realised else targets_source,
            "links_source": links.source,
            "source_frames": rows.tolist(),
            "max_time_offset_s": float(np.abs(steps.offsets_s).max()),
        },
        report=(*links.report, *steps.report()),
        kinematics=model and describe_robot(robot, model.text, model.moves(), base_to_world),
        warnings=(warning,) if warning else (),
    )


def guess_workspace(
    points: Float[np.ndarray, "n 3"], links: Float[np.ndarray, "m 3"]
) -> tuple[list[float], list[float]]:
    """Guess the workspace box: what is seen within reach of the robot.

    Args:
      points: seen surfaces, world frame [m].
      links: positions of the robot's links over an episode [m].

    Returns:
      Lower and upper corner, to the centimetre.
    """
    low, high = links.min(axis=0) - REACH_M, links.max(axis=0) + REACH_M
    near = points[((points > low) & (points < high)).all(axis=1)]
    seen = np.concatenate([near, links])
    low = np.maximum(low, np.percentile(seen, 0.5, axis=0) - MARGIN_M)
    high = np.minimum(high, np.percentile(seen, 99.5, axis=0) + MARGIN_M)
    low = np.minimum(low, links.min(axis=0) - MARGIN_M)
    high = np.maximum(high, links.max(axis=0) + MARGIN_M)
    return (np.floor(low * 100) / 100).tolist(), (np.ceil(high * 100) / 100).tolist()


@dataclass(frozen=True)
class _Links:
    """Link poses of the picked frames, and how the native format describes the links.

    Attributes:
      measured: poses.
      commanded: poses that each frame is commanded to reach.
      description: of the links, as in dataset.json.
      skeleton: likewise.
      source: what the poses were computed from.
      report: for people.
      realised: whether `commanded` is where the links went, for want of anything better.
      model: what the poses were computed with, if there is one.
    """

    measured: Float[np.ndarray, "t l 4 4"]
    commanded: Float[np.ndarray, "t l 4 4"]
    description: list[dict[str, str]]
    skeleton: dict[str, Any]
    source: str
    report: tuple[str, ...]
    realised: bool = False
    model: RobotModel | None = None


def _targets(recording: base.Recording, place: SourcePlace, steps: Steps) -> tuple[np.ndarray, str]:
    _require_finite(place, "joint_positions", recording.joint_positions)
    if recording.joint_targets is None:
        return recording.joint_positions[steps.following], "next_positions"
    _require_finite(place, "joint_targets", recording.joint_targets)
    return recording.joint_targets[steps.commanded], "commanded"


def _links(
    recording: base.Recording,
    place: SourcePlace,
    settings: Settings,
    steps: Steps,
    positions: np.ndarray,
    targets: np.ndarray,
) -> _Links:
    if not (settings.robot_file or recording.robot_xml):
        return _tools(recording, place, steps)
    _require_rigid(place, "base_to_world", recording.base_to_world[None])
    try:
        model, source = _robot_model(recording, place, settings)
        measured = model.link_poses(positions, recording.base_to_world)
        commanded = model.link_poses(targets, recording.base_to_world)
    except UnusableRobotError as error:
        if settings.robot_file:
            raise
        raise place.error(str(error).rstrip(".")) from error  # only this episode's
    names = [link.name for link in model.links]
    tools = (
        compare_tool(tool.name, tool.to_world[steps.rows], names, measured)
        for tool in recording.end_effectors
    )
    return _Links(
        measured=measured,
        commanded=commanded,
        description=[
            {"name": link.name, "arm": link.arm} | ({"parent": link.parent} if link.parent else {})
            for link in model.links
        ],
        skeleton=model.skeleton(recording.joints),
        source=source,
        report=(*model.report, *tools),
        model=model,
    )


def compare_tool(
    name: str,
    recorded: Float[np.ndarray, "t 4 4"],
    links: Sequence[str],
    poses: Float[np.ndarray, "t l 4 4"],
) -> str:
    """Compare a recorded tool with the robot model: it should move with one of the links.

    Returns:
      Which link it moves with and how well, for people.
    """
    away = recorded[:, None, :3, 3] - poses[..., :3, 3]
    inside = np.einsum("tlji,tlj->tli", poses[..., :3, :3], away)
    spread = np.linalg.norm(inside - inside.mean(axis=0), axis=-1).max(axis=0)
    best = int(np.argmin(spread))
    text = (
        f"recorded {name} moves with link {links[best]} of the model to {1e3 * spread[best]:.1f} mm"
    )
    if spread[best] > TOOL_TOLERANCE_M:
        text += "; is the model the right one, its joints and base_to_world too?"
    return text


def _robot_model(
    recording: base.Recording, place: SourcePlace, settings: Settings
) -> tuple[RobotModel, str]:
    file = settings.robot_file
    if file:
        return RobotModel(settings.robot_text, file, recording.joints), file.name
    model = RobotModel(recording.robot_xml, place.file, recording.joints)
    return model, "robot model of the source"


def _tools(recording: base.Recording, place: SourcePlace, steps: Steps) -> _Links:
    """Fall back to the poses of end effectors, which stand in for targets one step later."""
    tools = recording.end_effectors
    if not tools:
        raise place.error(
            "there is neither a robot model nor a recorded pose of an end effector",
            "Give a URDF or MJCF with --robot.",
        )
    for tool in tools:
        _require_rigid(place, tool.name, tool.to_world)
    poses = np.stack([tool.to_world for tool in tools], axis=1)
    return _Links(
        measured=poses[steps.rows],
        commanded=poses[steps.following],
        description=[{"name": tool.name, "arm": tool.arm} for tool in tools],
        skeleton={
            "points": [tool.name for tool in tools],
            "segments": [],
            "arms": grippers_of(recording.joints),
        },
        source="end effectors of the source",
        report=(
            f"no robot model: the links are the end effectors {_listed(tools)}; their poses one "
            "step later stand in for commands",
        ),
        realised=True,
    )


def _cameras(
    recording: base.Recording,
    place: SourcePlace,
    rows: np.ndarray,
    links: _Links,
    size: tuple[int, int] | None,
) -> tuple[dict[str, np.ndarray], dict[str, tuple[int, int]]]:
    arrays, sizes = {}, {}
    names = [link["name"] for link in links.description]
    for name, camera in recording.cameras.items():
        view = camera.view
        _require_intrinsics(place, name, view)
        _require_rigid(place, f"cameras/{name}/camera_to_world", _rowwise(view.camera_to_world))
        intrinsics = _picked(view.intrinsics, rows)
        pose = _picked(view.camera_to_world, rows)
        if view.link != "world":
            if view.link not in names:
                raise place.error(
                    f"camera {name!r} is mounted on {view.link!r}, which is no link of the robot",
                    f"Its links are {', '.join(names)}; choose other --cameras, or give --robot.",
                )
            pose = links.measured[:, names.index(view.link)] @ pose
        sizes[name] = size or view.size
        scaled = pinhole.scale_intrinsics(intrinsics, view.size, sizes[name])
        arrays[f"cameras/{name}/intrinsics"] = _still(scaled)
        arrays[f"cameras/{name}/camera_to_world"] = pose if view.link != "world" else _still(pose)
    return arrays, sizes


def _require_intrinsics(place: SourcePlace, camera: str, view: base.View) -> None:
    intrinsics, (height, width) = _rowwise(view.intrinsics), view.size
    checks.check_intrinsics(place, camera, intrinsics)
    centre = intrinsics[:, :2, 2]
    inside = ((centre > 0) & (centre < np.array([[width, height]]))).all(axis=1)
    place.require(
        np.asarray(inside),
        f"cameras/{camera}/intrinsics",
        f"the principal point {centre[np.argmin(inside)].tolist()} lies outside the image of "
        f"{height}x{width} pixels",
        "Intrinsics are for another image size: scale them, or give the camera with --calibration.",
    )


def _require_rigid(place: SourcePlace, name: str, poses: np.ndarray) -> None:
    checks.check_rigid(place, name, poses, "Record or calibrate the pose again.")


def _rowwise(values: np.ndarray) -> np.ndarray:
    return values[None] if values.ndim == 2 else values


def _picked(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.broadcast_to(values, (len(rows), *values.shape)) if values.ndim == 2 else values[rows]


def _still(values: np.ndarray) -> np.ndarray:
    """Store what never changes once."""
    return np.array(values[0] if (values == values[:1]).all() else values)


def _require_finite(place: SourcePlace, name: str, values: np.ndarray) -> None:
    good = np.abs(values) <= np.finfo(np.float32).max  # as stored; False for NaN
    place.require(
        np.asarray(good.reshape(len(values), -1).all(axis=1)),
        name,
        "a value is NaN or infinite",
        "Record or export it again.",
    )


def _listed(tools: Sequence[base.EndEffector]) -> str:
    return ", ".join(tool.name for tool in tools)
