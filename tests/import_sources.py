"""Small recordings of one analytic scene, written in each source format by its own library.

A plane and two boxes are ray-cast exactly: a red one on the left that moves 1 cm a frame, a blue
one on the right. A two-link arm with closed-form kinematics records its joints. Layouts follow the
formats' own writers; nothing here imports hdvpd, so mistakes of the importers do not cancel out.
"""

import csv
import io
import json
import pickle
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

SIZE = (24, 32)
FRAMES = 8
RATE = 2.0
HOME = (-0.3, 0.0, 0.16)
LENGTHS = (0.22, 0.20)
ARM_RADIUS = 0.035
FLIP_GL = np.diag([1.0, -1.0, -1.0, 1.0])
FLIP_COPPELIA = np.diag([-1.0, -1.0, 1.0, 1.0])
CAMERA_TO_TOOL = np.array(
    [[0.0, 0.8, 0.6, 0.05], [-1.0, 0.0, 0.0, 0.01], [0.0, -0.6, 0.8, 0.1], [0, 0, 0, 1.0]]
)
# Looks down and forward from the tool.
CAMERA_TO_TOOL[:3, :3] = CAMERA_TO_TOOL[:3, :3] @ np.diag([1.0, -1.0, -1.0])

URDF = f"""<robot name="arm">
  <material name="grey"><color rgba="0.5 0.5 0.5 1"/></material>
  <link name="base"><visual><geometry><mesh filename="package://gone/base.stl"/></geometry></visual>
  </link>
  <link name="upper"><inertial><mass value="0"/></inertial></link>
  <link name="fore"/><link name="tool"/><link name="finger_a"/><link name="finger_b"/>
  <joint name="shoulder" type="revolute"><parent link="base"/><child link="upper"/>
    <origin xyz="{HOME[0]} {HOME[1]} {HOME[2]}"/><axis xyz="0 0 1"/>
    <limit lower="-3" upper="3" effort="1" velocity="1"/></joint>
  <joint name="elbow" type="continuous"><parent link="upper"/><child link="fore"/>
    <origin xyz="{LENGTHS[0]} 0 0"/><axis xyz="0 0 1"/></joint>
  <joint name="flange" type="fixed"><parent link="fore"/><child link="tool"/>
    <origin xyz="{LENGTHS[1]} 0 0"/></joint>
  <joint name="finger" type="prismatic"><parent link="tool"/><child link="finger_a"/>
    <axis xyz="0 1 0"/><limit lower="0" upper="0.04" effort="1" velocity="1"/></joint>
  <joint name="finger_mirror" type="prismatic"><parent link="tool"/><child link="finger_b"/>
    <axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="1" velocity="1"/>
    <mimic joint="finger" multiplier="-1" offset="0.001"/></joint>
</robot>"""


def tool_poses(joints: np.ndarray) -> np.ndarray:
    """Closed-form kinematics of the tool."""
    first, total = joints[:, 0], joints[:, 0] + joints[:, 1]
    pose = np.tile(np.eye(4), (len(joints), 1, 1))
    pose[:, 0, 0] = pose[:, 1, 1] = np.cos(total)
    pose[:, 1, 0], pose[:, 0, 1] = np.sin(total), -np.sin(total)
    pose[:, 0, 3] = HOME[0] + LENGTHS[0] * np.cos(first) + LENGTHS[1] * np.cos(total)
    pose[:, 1, 3] = HOME[1] + LENGTHS[0] * np.sin(first) + LENGTHS[1] * np.sin(total)
    pose[:, 2, 3] = HOME[2]
    return pose


@dataclass
class View:
    intrinsics: np.ndarray
    poses: np.ndarray
    rgb: np.ndarray = field(default_factory=lambda: np.zeros(0))
    depth_m: np.ndarray = field(default_factory=lambda: np.zeros(0))


@dataclass
class Scene:
    """One episode: truth in native conventions."""

    joints: np.ndarray
    opening: np.ndarray
    views: dict[str, View]

    @property
    def frames(self) -> int:
        return len(self.joints)

    @property
    def targets(self) -> np.ndarray:
        """Commanded from each frame to the next; differs from where the arm gets to."""
        return np.concatenate([self.joints[1:], self.joints[-1:]]) + 0.02


def make_scene(
    seed: int,
    frames: int = FRAMES,
    wrist: bool = False,
    *,
    names: tuple[str, str] = ("left_view", "right_view"),
    speed: float = 1.0,
    arm: bool = False,
) -> Scene:
    """Make an episode.

    Args:
      seed: of the joints.
      frames: to show.
      wrist: whether there is a third camera, on the tool.
      names: of the two cameras.
      speed: of all motion; 2 / rate is as fast at any rate as 1 is at `RATE`.
      arm: whether cameras see the arm, which `hdvpd data check` asks for.
    """
    rng = np.random.default_rng(seed)
    time = speed * np.arange(frames)
    joints = rng.uniform(-0.3, 0.3, (1, 2)) + 0.05 * time[:, None]
    opening = np.linspace(0, 1, frames)
    places = ((30.0, (0.7, 0.5, 0.7)), (26.0, (0.8, -0.6, 0.6)))
    views = {
        name: View(_pinhole(focal), np.tile(_looking(position), (frames, 1, 1)))
        for name, (focal, position) in zip(names, places, strict=True)
    }
    if wrist:
        views["eye_in_hand"] = View(_pinhole(24.0), tool_poses(joints) @ CAMERA_TO_TOOL)
    for view in views.values():
        body = _arm_points(joints, opening) if arm else np.zeros((frames, 0, 3))
        shown = [
            _cast(view.intrinsics, pose, time[k], body[k]) for k, pose in enumerate(view.poses)
        ]
        view.rgb = np.stack([rgb for rgb, _ in shown])
        view.depth_m = np.stack([depth for _, depth in shown])
    return Scene(joints, opening, views)


def _arm_points(joints: np.ndarray, opening: np.ndarray) -> np.ndarray:
    """Centres of the spheres that the arm is made of, on its two links and its fingers."""
    tool = tool_poses(joints)
    stretched = tool_poses(joints * [1, 0])
    elbow = stretched[:, :3, 3] - LENGTHS[1] * stretched[:, :3, 0]
    share = np.linspace(0, 1, 6)[:, None]
    upper = (1 - share) * np.array(HOME) + share * elbow[:, None]
    fore = (1 - share) * elbow[:, None] + share * tool[:, None, :3, 3]
    finger = 0.04 * opening[:, None] * tool[:, :3, 1]
    fingers = tool[:, None, :3, 3] + np.stack([finger, -finger], axis=1)
    return np.concatenate([upper, fore, fingers], axis=1)


def _pinhole(focal: float) -> np.ndarray:
    """Return intrinsics; the focal length [px] is for images that are 32 wide."""
    focal *= SIZE[1] / 32
    return np.array([[focal, 0, SIZE[1] / 2], [0, focal, SIZE[0] / 2], [0, 0, 1.0]])


def _looking(position: tuple[float, float, float]) -> np.ndarray:
    forward = -np.array(position) / np.linalg.norm(position)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
    pose[:3, 3] = position
    return pose


def _cast(
    intrinsics: np.ndarray, pose: np.ndarray, frame: float, spheres: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    x = (np.arange(SIZE[1]) + 0.5 - intrinsics[0, 2]) / intrinsics[0, 0]
    y = (np.arange(SIZE[0]) + 0.5 - intrinsics[1, 2]) / intrinsics[1, 1]
    rays = np.stack([*np.meshgrid(x, y), np.ones(SIZE)], axis=-1) @ pose[:3, :3].T
    origin = pose[:3, 3]
    with np.errstate(divide="ignore", invalid="ignore"):
        depth = -origin[2] / rays[..., 2]
        depth[~((depth > 0) & (depth < 4.0))] = np.inf
        color = np.full((*SIZE, 3), 120.0)
        for y_box, own in ((0.15, (230, 20, 20)), (-0.2, (20, 20, 230))):
            moved = 0.01 * frame if y_box > 0 else 0.0
            low = np.array([-0.1 + moved, y_box - 0.1, 0.0])
            near_far = np.stack(
                [(low - origin) / rays, (low + np.array([0.2, 0.2, 0.15]) - origin) / rays]
            )
            enter, leave = near_far.min(axis=0).max(-1), near_far.max(axis=0).min(-1)
            hit = (enter < leave) & (enter > 0) & (enter < depth)
            depth = np.where(hit, enter, depth)
            color = np.where(hit[..., None], own, color)
        for centre in spheres:
            b, c = rays @ (origin - centre), (origin - centre) @ (origin - centre) - ARM_RADIUS**2
            a = (rays**2).sum(-1)
            enter = (-b - np.sqrt(b**2 - a * c)) / a  # NaN beside the sphere
            hit = (enter > 0) & (enter < depth)
            depth = np.where(hit, enter, depth)
            color = np.where(hit[..., None], (90, 160, 90), color)
    depth = np.where(np.isfinite(depth), depth, 0.0)
    return color.astype(np.uint8), depth


# --- own folders --------------------------------------------------------------------------------

CALIBRATION_JOINTS = [
    {"name": "shoulder", "unit": "rad"},
    {"name": "elbow", "unit": "rad"},
    {"name": "grip", "unit": "1", "drives": {"finger": 0.04}},
]


def write_folder(path: Path, scenes: list[Scene], time_s: np.ndarray | None = None) -> None:
    path.mkdir(parents=True)
    cameras = {
        name: {
            "image_size": list(SIZE),
            "intrinsics": view.intrinsics.tolist(),
            "camera_to_world": view.poses[0].tolist(),
        }
        for name, view in scenes[0].views.items()
    }
    # One camera states its pose with OpenGL's axes.
    last = cameras[list(cameras)[-1]]
    last |= {"axes": "opengl", "camera_to_world": (last["camera_to_world"] @ FLIP_GL).tolist()}
    calibration = {"version": 1, "cameras": cameras, "joints": CALIBRATION_JOINTS}
    (path / "hdvpd_calibration.json").write_text(json.dumps(calibration))
    (path / "arm.urdf").write_text(URDF)
    for number, scene in enumerate(scenes):
        folder = path / f"take{number}"
        for name, view in scene.views.items():
            for kind in ("rgb", "depth"):
                (folder / name / kind).mkdir(parents=True)
            for k in range(scene.frames):
                Image.fromarray(view.rgb[k]).save(folder / name / f"rgb/{k:06d}.png")
                millimetres = (1000 * view.depth_m[k]).round().astype(np.uint16)
                Image.fromarray(millimetres).save(folder / name / f"depth/{k:06d}.png")
        times = np.arange(scene.frames) / RATE if time_s is None else time_s
        names = [joint["name"] for joint in CALIBRATION_JOINTS]
        with (folder / "joints.csv").open("w", newline="") as stream:
            table = csv.writer(stream)
            table.writerow(["time_s", *names, *(f"{name}.target" for name in names)])
            openings = np.concatenate([scene.opening[1:], scene.opening[-1:]])
            for k in range(scene.frames):
                row = [times[k], *scene.joints[k], scene.opening[k], *scene.targets[k], openings[k]]
                table.writerow([repr(float(value)) for value in row])


# --- HDF5 formats -------------------------------------------------------------------------------


def write_robotwin(path: Path, scenes: list[Scene], depth: bool = True) -> None:
    import h5py

    folder = path / "push_block" / "demo_clean" / "data"
    folder.mkdir(parents=True)
    for number, scene in enumerate(scenes):
        with h5py.File(folder / f"episode{number}.hdf5", "w") as file:
            for name, view in scene.views.items():
                group = file.create_group(f"observation/{name}")
                encoded = [_jpeg(rgb[..., ::-1]) for rgb in view.rgb]
                longest = max(map(len, encoded))
                padded = np.array([data.ljust(longest, b"\0") for data in encoded])
                group.create_dataset("rgb", data=padded, dtype=f"S{longest}")
                if depth:
                    group["depth"] = 1000.0 * view.depth_m
                _sapien(group, view, rows=3)
            # The drive target of a frame is what led to it.
            action = np.concatenate([scene.joints[:1], scene.targets[:-1]])
            for arm in ("left", "right"):
                file[f"joint_action/{arm}_arm"] = action
                file[f"joint_action/{arm}_gripper"] = scene.opening
                file[f"endpose/{arm}_endpose"] = _pose7(tool_poses(scene.joints), "wxyz")
            file["joint_action/vector"] = np.zeros((scene.frames, 6))


def write_maniskill(path: Path, scenes: list[Scene]) -> None:
    import h5py

    path.mkdir(parents=True)
    stem = path / "trajectory.rgbd.pd_joint_pos.physx_cpu"
    with h5py.File(stem.with_name(stem.name + ".h5"), "w") as file:
        for number, scene in enumerate(scenes):
            group = file.create_group(f"traj_{number}")
            qpos = np.column_stack([scene.joints, 0.04 * scene.opening])
            target = np.column_stack([scene.targets, 0.04 * scene.opening])
            group["actions"] = target[:-1].astype(np.float32)
            group["obs/agent/qpos"] = qpos.astype(np.float32)
            group["obs/extra/tcp_pose"] = _pose7(tool_poses(scene.joints), "wxyz")
            state = np.zeros((scene.frames, 13 + 6), np.float32)
            state[:, 3] = 1.0
            group["env_states/articulations/arm"] = state
            for name, view in scene.views.items():
                data = group.create_group(f"obs/sensor_data/{name}")
                data.create_dataset("rgb", data=view.rgb, compression="gzip", compression_opts=5)
                millimetres = (1000 * view.depth_m).round().astype(np.int16)[..., None]
                data.create_dataset("depth", data=millimetres, compression="gzip")
                _sapien(group.create_group(f"obs/sensor_param/{name}"), view, rows=4)
    about = {
        "env_info": {
            "env_id": "PushCube-v1",
            "env_kwargs": {"obs_mode": "rgbd", "sim_config": {"control_freq": RATE}},
        },
        "episodes": [
            {"episode_id": k, "control_mode": "pd_joint_pos", "success": k == 0}
            for k in range(len(scenes))
        ],
    }
    stem.with_name(stem.name + ".json").write_text(json.dumps(about))


def _sapien(group: Any, view: View, rows: int) -> None:
    frames = len(view.poses)
    group["intrinsic_cv"] = np.tile(view.intrinsics, (frames, 1, 1)).astype(np.float32)
    group["extrinsic_cv"] = np.linalg.inv(view.poses)[:, :rows].astype(np.float32)
    group["cam2world_gl"] = (view.poses @ FLIP_GL).astype(np.float32)


def model_file(scene: Scene) -> str:
    """MJCF as robosuite stores it: meshes that are not there, cameras, an object that floats."""
    quat = " ".join(map(repr, _quaternion((CAMERA_TO_TOOL @ FLIP_GL)[None])[0].tolist()))
    name, fixed = next(iter(scene.views.items()))
    static = (fixed.poses[:1] @ FLIP_GL)[0]
    fovy = {n: float(np.degrees(2 * np.arctan(SIZE[0] / 2 / v.intrinsics[1, 1]))) for n, v in
            scene.views.items()}  # fmt: skip
    return f"""<mujoco model="base">
      <compiler angle="radian" meshdir="/home/someone/meshes"/>
      <asset><mesh name="link" file="link.stl"/><material name="steel"/></asset>
      <worldbody>
        <camera name="{name}" pos="{_words(static[:3, 3])}"
          quat="{_words(_quaternion(static[None])[0])}" fovy="{fovy[name]!r}"/>
        <body name="cube"><freejoint name="cube_joint"/><geom type="box" size="1 1 1"/></body>
        <body name="robot0_base" pos="{_words(np.array(HOME))}">
          <geom type="mesh" mesh="link" material="steel"/>
          <body name="robot0_upper"><joint name="robot0_joint1" axis="0 0 1"/>
            <inertial pos="0 0 0" mass="0"/>
            <body name="robot0_fore" pos="{LENGTHS[0]} 0 0"><joint name="robot0_joint2"
              axis="0 0 1" range="-3 3"/>
              <body name="robot0_tool" pos="{LENGTHS[1]} 0 0">
                <camera name="eye_in_hand" pos="{_words(CAMERA_TO_TOOL[:3, 3])}" quat="{quat}"
                  fovy="{fovy.get("eye_in_hand", 45.0)!r}"/>
                <body name="gripper0_finger"><joint name="gripper0_finger_joint1" type="slide"
                  axis="0 1 0"/></body>
              </body></body></body></body>
      </worldbody>
      <actuator><motor joint="robot0_joint1"/></actuator></mujoco>"""


def write_robomimic(
    path: Path, scenes: Mapping[str, Scene], camera_info: bool = True, model: bool = True
) -> None:
    import h5py

    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        settings = {"env_name": "Stack", "env_kwargs": {"control_freq": RATE}}
        data.attrs["env_args"] = json.dumps(settings)
        for name, scene in scenes.items():
            demo = data.create_group(name)
            demo["actions"] = np.zeros((scene.frames, 7))
            demo["obs/robot0_joint_pos"] = scene.joints
            demo["obs/robot0_gripper_qpos"] = 0.04 * scene.opening[:, None]
            pose = _pose7(tool_poses(scene.joints), "xyzw")
            demo["obs/robot0_eef_pos"], demo["obs/robot0_eef_quat"] = pose[:, :3], pose[:, 3:]
            info = {}
            for camera, view in scene.views.items():
                options = {"compression": "gzip"} if name.endswith("0") else {}
                demo.create_dataset(f"obs/{camera}_image", data=view.rgb, **options)
                depth = view.depth_m.astype(np.float32)[..., None]
                demo.create_dataset(f"obs/{camera}_depth", data=depth, **options)
                info[camera] = {
                    "intrinsics": view.intrinsics.tolist(),
                    "extrinsics": view.poses[0].tolist(),
                }
            if camera_info:
                demo.attrs["camera_info"] = json.dumps(info)
            if model:
                demo.attrs["model_file"] = model_file(scene)
        names = [name.encode() for name in scenes]
        file["mask/train"], file["mask/valid"] = names[:-1], names[-1:]


# --- RLBench ------------------------------------------------------------------------------------


def write_rlbench(
    path: Path, scenes: list[Scene], protocol: int = 4, two_arms: bool = False
) -> None:
    for number, scene in enumerate(scenes):
        folder = path / "push_buttons" / "all_variations" / "episodes" / f"episode{number}"
        for name, view in scene.views.items():
            for kind in ("rgb", "depth"):
                (folder / f"{name}_{kind}").mkdir(parents=True)
            for k in range(scene.frames):
                names = [f"{kind}_{k:04d}" if two_arms else str(k) for kind in ("rgb", "depth")]
                Image.fromarray(view.rgb[k]).save(folder / f"{name}_rgb/{names[0]}.png")
                packed = _pack(view.depth_m[k], 0.01, 4.0)
                Image.fromarray(packed).save(folder / f"{name}_depth/{names[1]}.png")
        dump_demo(folder / "low_dim_obs.pkl", scene, protocol, two_arms)


def _pack(depth_m: np.ndarray, near: float, far: float) -> np.ndarray:
    code = np.round((depth_m - near) / (far - near) * (2**24 - 1)).astype(np.int64)
    code[depth_m == 0] = 2**24 - 1
    return np.stack([code >> 16, (code >> 8) & 255, code & 255], axis=-1).astype(np.uint8)


def dump_demo(
    file: Path,
    scene: Scene,
    protocol: int,
    two_arms: bool = False,
    edit: Callable[[list[Any]], Any] | None = None,
) -> None:
    """Pickle instances of classes that live in modules named as RLBench's."""
    demo_module, state_module = types.ModuleType("rlbench.demo"), types.ModuleType("rlbench.obs")
    demo_type = type("Demo", (), {"__module__": "rlbench.demo"})
    state_type = type("Observation", (), {"__module__": "rlbench.obs"})
    vars(demo_module)["Demo"], vars(state_module)["Observation"] = demo_type, state_type
    observations = []
    for k, pose in enumerate(tool_poses(scene.joints)):
        misc: dict[str, Any] = {}
        for name, view in scene.views.items():
            intrinsics = view.intrinsics * np.array([[-1, 1, 1], [1, -1, 1], [1, 1, 1]])
            misc |= {
                f"{name}_camera_intrinsics": intrinsics,
                f"{name}_camera_extrinsics": view.poses[k] @ FLIP_COPPELIA,
                f"{name}_camera_near": 0.01,
                f"{name}_camera_far": np.float64(4.0),
            }
        state = {
            "joint_positions": scene.joints[k],
            "gripper_open": float(scene.opening[k]),
            "gripper_pose": _pose7(pose[None], "xyzw")[0],
        }
        observation = state_type()
        if two_arms:
            for arm in ("left", "right"):
                own = state_type()
                own.__dict__.update(state)
                setattr(observation, arm, own)
            observation.__dict__["misc"] = misc
        else:
            observation.__dict__.update(state | {"gripper_matrix": pose, "misc": misc})
        observations.append(observation)
    demo = demo_type()
    demo.__dict__.update(
        _observations=edit(observations) if edit else observations, variation_number=3
    )
    modules = {"rlbench": types.ModuleType("rlbench"), "rlbench.demo": demo_module,
               "rlbench.obs": state_module}  # fmt: skip
    sys.modules.update(modules)
    try:
        file.write_bytes(pickle.dumps(demo, protocol))
    finally:
        for name in modules:
            del sys.modules[name]


# --- small helpers ------------------------------------------------------------------------------


def _jpeg(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(stream, "JPEG", quality=95)
    return stream.getvalue()


def _quaternion(poses: np.ndarray) -> np.ndarray:
    """Return w x y z by scipy."""
    from scipy.spatial.transform import Rotation

    return np.roll(Rotation.from_matrix(poses[:, :3, :3]).as_quat(), 1, axis=1)


def _pose7(poses: np.ndarray, order: str) -> np.ndarray:
    quaternion = _quaternion(poses)
    ordered = quaternion if order == "wxyz" else np.roll(quaternion, -1, axis=1)
    return np.column_stack([poses[:, :3, 3], ordered])


def _words(values: np.ndarray) -> str:
    return " ".join(repr(float(value)) for value in values)
