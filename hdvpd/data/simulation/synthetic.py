"""An analytic scene with exact answers, written as a native data set without any simulator.

Spheres on a chequered table are ray-cast in closed form: depth, colour and motion are exact. A
two-link arm swings over the table; its joints, seen as grey spheres, reach every commanded target
exactly, and a red ball hangs below its tool, so what the images show follows from the actions.
Pixels that miss everything have depth 0. Lengths are metres, world frame, table top at z = 0.
"""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, UInt8
from hdvpd.data import schema, writer
from hdvpd.data.importers.robot_model import kinematics_only
from hdvpd.data.pinhole import looking_at, pixel_directions
from hdvpd.data.robot import ROBOT_FILE, describe_robot
from hdvpd.data.shapes import Shape
from hdvpd.data.store import Dataset

TABLE_HALF_SIZE = 0.4
CHECK_SIZE = 0.1
TABLE_COLORS = ((0.75, 0.70, 0.60), (0.45, 0.50, 0.55))
BACKGROUND = (0.8, 0.85, 0.9)
LIGHT = (0.4, -0.3, 0.866)
"""Direction towards the light, a unit vector up to rounding."""
BASE = (-0.3, 0.0, 0.16)
LINK_LENGTHS = (0.22, 0.22)
LINKS = ("base", "elbow", "tcp")
BALL_OFFSET = (0.0, 0.0, -0.10)
"""From the tool to the ball that it carries."""
BALL_COLOR = (0.9, 0.15, 0.1)
BALL_RADIUS = 0.05
OBJECTS = (
    {"name": "ball", "rgb": [round(255 * channel) for channel in BALL_COLOR]},
    *({"name": f"sphere{k}"} for k in range(3)),
)
CAMERA_POSITIONS = {"cam0": (0.95, -0.55, 0.75), "cam1": (0.85, 0.70, 0.60)}
CAMERA_TARGET = (0.0, 0.0, 0.05)


@dataclass(frozen=True)
class Spheres:
    """Spheres that stand above the table.

    Attributes:
      centers: [m].
      radii: [m].
      colors: in [0, 1].
    """

    centers: Float[np.ndarray, "s 3"]
    radii: Float[np.ndarray, "s"]
    colors: Float[np.ndarray, "s 3"]


def write_synthetic_dataset(
    path: str | Path, *, episodes: int, steps: int, height: int, width: int, seed: int
) -> Dataset:
    """Write a data set of the analytic scene and open it.

    Raises:
      UserError: the folder is in use, or a number is impossible.
    """
    path = Path(path)
    if min(episodes, steps, height, width) < 1:
        raise UserError("A synthetic data set needs positive episodes, steps, height and width.")
    with writer.only_writer(path):
        if writer.is_in_use(path, {"episodes", ROBOT_FILE}):  # the start of a killed one
            raise UserError(f"{path} is not empty; give a new folder for the synthetic data set.")
        _write(path, episodes, steps, height, width, seed)
    return Dataset(path)


def _write(path: Path, episodes: int, steps: int, height: int, width: int, seed: int) -> None:
    writer.make_dataset(path)
    writer.write_json(path / ROBOT_FILE, robot())
    writer.write_json(path / "dataset.json", describe(height, width))
    for number in range(episodes):
        rng = np.random.default_rng([seed, number])
        values = synthetic_episode(rng, steps, height, width)
        meta = {
            "length": steps + 1,
            "task": "swing",
            "seed": seed,
            "split": schema.split_of(number, episodes),
            "success": True,
            "joint_positions_source": "measured",
            "joint_targets_source": "commanded",
            "objects": _describe_objects(values["truth/object_to_world"]),
        }
        writer.write_episode(path, number, meta, values)


def synthetic_episode(
    rng: np.random.Generator, steps: int, height: int, width: int
) -> dict[str, np.ndarray]:
    """Make the arrays of one episode, by path inside it."""
    joints = _joint_path(rng, steps)
    targets = np.concatenate([joints[1:], joints[-1:]])
    links, target_links = link_poses(joints[:, :2]), link_poses(targets[:, :2])
    resting = _resting_spheres(rng)
    scenes = [_spheres(pose[:, :3, 3], resting) for pose in links]
    result = {
        "time_s": 0.5 * np.arange(steps + 1),
        "robot/joint_positions": joints.astype(np.float32),
        "robot/joint_targets": targets.astype(np.float32),
        "robot/link_to_world": links.astype(np.float32),
        "robot/target_link_to_world": target_links.astype(np.float32),
        "truth/object_to_world": _object_poses(links, resting).astype(np.float32),
    }
    for name in CAMERA_POSITIONS:
        intrinsics, pose = camera(name, height, width)
        images = [cast(s, intrinsics, pose, height, width) for s in scenes]
        result[f"cameras/{name}/rgb"] = np.stack([rgb for rgb, _ in images])
        result[f"cameras/{name}/depth"] = np.stack([depth_m for _, depth_m in images])
        result[f"cameras/{name}/intrinsics"] = intrinsics
        result[f"cameras/{name}/camera_to_world"] = pose
    return result


def camera(
    name: str, height: int, width: int
) -> tuple[Float[np.ndarray, "3 3"], Float[np.ndarray, "4 4"]]:
    """Return the calibration of a camera.

    Returns:
      Intrinsics [px] and camera-to-world pose with OpenCV axes.
    """
    focal = 1.4 * height
    intrinsics = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])
    return intrinsics, looking_at(CAMERA_POSITIONS[name], CAMERA_TARGET)


def link_poses(joints: Float[np.ndarray, "f 2"]) -> Float[np.ndarray, "f l 4 4"]:
    """Forward kinematics of the two-link arm: both hinges turn about z.

    Returns:
      Poses of `LINKS`.
    """
    poses = np.zeros((len(joints), len(LINKS), 4, 4))
    angle = np.cumsum(joints, axis=1)
    place = np.broadcast_to(np.array(BASE)[None], (len(joints), 3))
    for k in range(len(LINKS)):
        turn = angle[:, min(k, 1)]
        poses[:, k, 0, 0] = poses[:, k, 1, 1] = np.cos(turn)
        poses[:, k, 1, 0], poses[:, k, 0, 1] = np.sin(turn), -np.sin(turn)
        poses[:, k, 2, 2] = poses[:, k, 3, 3] = 1.0
        poses[:, k, :3, 3] = place
        if k < len(LINK_LENGTHS):
            along = np.stack([np.cos(turn), np.sin(turn), np.zeros_like(turn)], axis=1)
            place = place + LINK_LENGTHS[k] * along
    return poses


def cast(
    spheres: Spheres,
    intrinsics: Float[np.ndarray, "3 3"],
    camera_to_world: Float[np.ndarray, "4 4"],
    height: int,
    width: int,
) -> tuple[UInt8[np.ndarray, "h w 3"], Float[np.ndarray, "h w"]]:
    """Ray-cast table and spheres exactly.

    Returns:
      Colours, and planar depth [m] that is 0 where nothing is hit.
    """
    # Rays are scaled to z = 1 in camera axes, so their parameter is the planar depth.
    rays = pixel_directions(intrinsics, (height, width)) @ camera_to_world[:3, :3].T
    origin = camera_to_world[:3, 3]
    depth_m, color = _hit_table(origin, rays)
    for center, radius, own in zip(spheres.centers, spheres.radii, spheres.colors, strict=True):
        near = _hit_sphere(origin, rays, center, radius)
        closer = near < depth_m
        normal = (origin[None, None] + near[..., None] * rays - center[None, None]) / radius
        with np.errstate(invalid="ignore"):
            shade = 0.4 + 0.6 * np.clip(normal @ np.array(LIGHT), 0, 1)
        color = np.where(closer[..., None], shade[..., None] * own[None, None], color)
        depth_m = np.where(closer, near, depth_m)
    depth_m = np.where(np.isfinite(depth_m), depth_m, 0.0)
    return (255 * np.clip(color, 0, 1)).round().astype(np.uint8), depth_m.astype(np.float32)


def _hit_table(origin: np.ndarray, rays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    with np.errstate(divide="ignore"):
        depth_m = -origin[2] / rays[..., 2]
    with np.errstate(invalid="ignore"):
        points = origin[None, None] + depth_m[..., None] * rays
        hit = (depth_m > 0) & (np.abs(points[..., :2]) < TABLE_HALF_SIZE).all(-1)
        cells = np.floor(points[..., :2] / CHECK_SIZE).sum(-1) % 2
    table = np.where(cells[..., None] == 0, *(np.array(c)[None, None] for c in TABLE_COLORS))
    color = np.where(hit[..., None], table, np.array(BACKGROUND)[None, None])
    return np.where(hit, depth_m, np.inf), color


def _hit_sphere(
    origin: np.ndarray, rays: np.ndarray, center: np.ndarray, radius: float
) -> np.ndarray:
    offset = origin - center
    a = (rays**2).sum(-1)
    b = rays @ offset
    c = offset @ offset - radius**2
    discriminant = b**2 - a * c
    near = (-b - np.sqrt(np.maximum(discriminant, 0.0))) / a
    return np.where((discriminant > 0) & (near > 0), near, np.inf)


def _joint_path(rng: np.random.Generator, steps: int) -> np.ndarray:
    time = np.arange(steps + 1)[:, None]
    amplitude = np.array([[0.5, 0.6, 0.02]]) * rng.uniform(0.6, 1.0, (1, 3))
    angle = rng.uniform(0.35, 0.6, (1, 3)) * time + rng.uniform(0, 2 * np.pi, (1, 3))
    return np.array([[0.0, 0.5, 0.03]]) + amplitude * np.sin(angle)


def _resting_spheres(rng: np.random.Generator) -> Spheres:
    radii = rng.uniform(0.03, 0.05, 3)
    places = np.array([[0.25, -0.25], [0.28, 0.22], [-0.1, 0.3]]) + rng.uniform(-0.04, 0.04, (3, 2))
    centers = np.concatenate([places, radii[:, None]], axis=1)
    return Spheres(centers, radii, rng.uniform(0.2, 0.9, (3, 3)))


def _spheres(links: np.ndarray, resting: Spheres) -> Spheres:
    ball = links[-1] + np.array(BALL_OFFSET)
    between = 0.5 * (links[:-1] + links[1:])
    grey = np.full((len(links) + len(between), 3), 0.35)
    return Spheres(
        centers=np.concatenate([links, between, ball[None], resting.centers]),
        radii=np.concatenate([np.full(len(grey), 0.035), [BALL_RADIUS], resting.radii]),
        colors=np.concatenate([grey, [BALL_COLOR], resting.colors]),
    )


def _object_poses(links: np.ndarray, resting: Spheres) -> np.ndarray:
    frames = len(links)
    poses = np.tile(np.eye(4), (frames, 1 + len(resting.centers), 1, 1))
    poses[:, 0, :3, 3] = links[:, -1, :3, 3] + np.array(BALL_OFFSET)[None]
    poses[:, 1:, :3, 3] = resting.centers[None]
    return poses


def robot() -> dict[str, Any]:
    """Describe the two-link arm for robot.json."""
    axis = 'type="hinge" axis="0 0 1"'
    reach, base = LINK_LENGTHS, " ".join(map(str, BASE))
    limits = 'range="-1.5 1.5" limited="true"', 'range="-1.5 2" limited="true"'
    model = f"""<mujoco model="two-link"><compiler angle="radian"/><worldbody>
<body name="base" pos="{base}"><joint name="shoulder" {axis} {limits[0]}/>
<body name="elbow" pos="{reach[0]} 0 0"><joint name="elbow" {axis} {limits[1]}/>
<site name="tcp" pos="{reach[1]} 0 0"/></body></body></worldbody></mujoco>"""
    text, _ = kinematics_only(model, Path("synthetic.py"))
    moves = [{"shoulder": (1.0, 0.0)}, {"elbow": (1.0, 0.0)}, {}]
    return describe_robot(describe(1, 1)["robot"], text, moves)


def _describe_objects(poses: np.ndarray) -> list[dict[str, Any]]:
    # Resting spheres touch the table, so their height is their radius.
    radii = [BALL_RADIUS, *poses[0, 1:, 2, 3].tolist()]
    shapes = [{"shape": Shape("sphere", (radius,)).describe()} for radius in radii]
    return [dict(entry) | shape for entry, shape in zip(OBJECTS, shapes, strict=True)]


def describe(height: int, width: int) -> Mapping[str, Any]:
    """Return the dataset.json of the analytic scene for images of a height and width [px]."""
    parents = dict(zip(LINKS[1:], LINKS[:-1], strict=True))
    return {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "rate_hz": 2.0,
        "licence": "CC0-1.0",
        "cameras": dict.fromkeys(CAMERA_POSITIONS, schema.describe_camera(height, width)),
        "robot": {
            "name": "synthetic-two-link",
            "joints": [
                {"name": name, "unit": unit, "arm": "left"}
                for name, unit in (("shoulder", "rad"), ("elbow", "rad"), ("grip", "m"))
            ],
            "links": [
                {"name": n, "arm": "left"} | ({"parent": parents[n]} if n in parents else {})
                for n in LINKS
            ],
            "skeleton": {
                "points": list(LINKS),
                "segments": [list(pair) for pair in itertools.pairwise(LINKS)],
                "arms": {"left": {"gripper": "grip"}},
            },
        },
        "objects": [dict(entry) for entry in OBJECTS],
        "workspace": {"min": [-0.5, -0.5, -0.05], "max": [0.5, 0.5, 0.5]},
        "source": {"command": "write_synthetic_dataset"},
    }
