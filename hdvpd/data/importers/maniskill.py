"""ManiSkill: trajectories of one task in one HDF5 file, replayed with obs_mode rgbd.

```
trajectory.rgbd.<control mode>.<backend>.h5, and .json of the same name
  traj_<id>/actions                            (T,A)
  traj_<id>/obs/agent/qpos                     (T+1,J)
  traj_<id>/obs/extra/tcp_pose                 (T+1,7)          x y z, then the quaternion w x y z
  traj_<id>/obs/sensor_data/<cam>/rgb          (T+1,H,W,3)      uint8
  traj_<id>/obs/sensor_data/<cam>/depth        (T+1,H,W,1)      millimetres, 0 is invalid
  traj_<id>/obs/sensor_param/<cam>/intrinsic_cv, extrinsic_cv (world to camera), cam2world_gl
  traj_<id>/env_states/articulations/<robot>   (T+1,13+2J)      pose of the base first
```
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.data import pinhole
from hdvpd.data.importers import base, conversions, images
from hdvpd.data.importers.faults import diagnosis, fault, reason
from hdvpd.data.importers.hdf5 import Node, open_hdf5
from hdvpd.data.importers.robotwin import check_opengl_pose
from hdvpd.errors import UserError

RATE_HZ = 20.0
"""ManiSkill's default control frequency; the files hold no time stamps."""
DEPTH_UNIT_M = 0.001
_NO_DEPTH = (
    "it has no depth; replay the demonstrations with "
    "`python -m mani_skill.trajectory.replay_trajectory --obs-mode rgb+depth --save-traj`"
)


class ManiSkillSource(base.AbstractSource):
    """A ManiSkill trajectory file, or a folder with one or more of them."""

    packages = ("h5py",)
    has_actions = True

    def episodes(self) -> tuple[base.SourceEpisode, ...]:
        """List the trajectories of every file, by file and number."""
        files = [self.path] if self.path.is_file() else sorted(self.path.rglob("*.h5"))
        if not files:
            raise UserError(f"{self.path} holds no .h5 file; name a ManiSkill trajectory file.")
        several = len(files) > 1
        return tuple(episode for file in files for episode in self._list(file, several))

    def _list(self, file: Path, several: bool) -> list[base.SourceEpisode]:
        about = _about(file)
        listed = about.get("episodes")
        success = {
            str(entry.get("episode_id")): entry.get("success")
            for entry in (listed if isinstance(listed, list) else [])
            if isinstance(entry, Mapping)
        }
        with open_hdf5(file) as stream:
            names = sorted((n for n in stream if n.startswith("traj_")), key=base.number_in)
        if not names:
            raise UserError(f"{file} holds no group traj_0; name a ManiSkill trajectory file.")
        prefix = f"{file.relative_to(self.path)}/" if several else ""
        episodes = []
        for name in names:
            judged = success.get(str(base.number_in(name)[0]))
            episodes.append(
                base.SourceEpisode(
                    name=prefix + name,
                    file=file,
                    task=str(_environment(about).get("env_id", "unknown")),
                    success=judged if isinstance(judged, bool) else None,
                )
            )
        return episodes

    @contextlib.contextmanager
    def open(self, episode: base.SourceEpisode) -> Iterator[base.Recording]:
        """Open one trajectory."""
        place, about = episode.place, _about(episode.file)
        with open_hdf5(episode.file, place) as file:
            root = Node(place, file).group(episode.name.rsplit("/", 1)[-1])
            agent = _agent(root)
            qpos = root.read(f"{agent}/qpos", (None, None))
            frames = len(qpos)
            if frames == 0:
                raise place.error(f"'{agent}/qpos' has no frames", "Replay the trajectory again.")
            available = _cameras(root)
            cameras = base.select_cameras(place, available, self.options.cameras)
            pictures = {
                name: _Camera(root.group("obs"), name, self.options, frames) for name in cameras
            }
            mode = str(_control_mode(about))
            targets, commanded = self._targets(root, qpos, mode)
            stand, stands = _base(root, frames, self.options)
            rate, origin = _rate(about, self.options)
            yield base.Recording(
                time_s=base.steady(rate, frames),
                views={name: camera.view for name, camera in pictures.items()},
                joints=base.name_joints(self.options, place, _joints(qpos.shape[1])),
                joint_positions=qpos,
                joint_targets=targets,
                end_effectors=_end_effectors(root, frames),
                base_to_world=stand,
                frames=base.side_by_side({n: c.read for n, c in pictures.items()}),
                fields={
                    **{name: camera.meaning for name, camera in pictures.items()},
                    "joint_positions": f"{agent}/qpos, measured",
                    "joint_targets": commanded,
                    "robot base": stands,
                    "time": f"{rate:g} Hz, {origin}",
                },
                warnings=base.left_out(available, cameras),
            )

    def _targets(self, root: Node, qpos: np.ndarray, mode: str) -> tuple[np.ndarray | None, str]:
        wanted = self.options.joint_targets
        if not (wanted or mode == "pd_joint_pos"):
            return None, f"next positions, because the control mode is {mode!r}"
        actions = root.read("actions", (len(qpos) - 1, None))
        targets, meaning = base.targets_from_actions(actions, qpos)
        if wanted and targets is None:
            raise root.place.error(f"--action joint-targets: {meaning}", "Leave the flag out.")
        return targets, meaning


class _Camera:
    """One camera of one trajectory."""

    def __init__(self, obs: Node, name: str, options: base.Options, frames: int) -> None:
        self._data, self._param = (f"sensor_data/{name}", f"sensor_param/{name}")
        self._obs = obs
        obs.check_shape(f"{self._data}/rgb", (frames, None, None, 3))
        height, width = obs.shape(f"{self._data}/rgb")[1:3]
        obs.check_shape(f"{self._data}/depth", (frames, height, width, 1))
        self._size = (height, width)
        given = options.sidecar.cameras.get(name)
        self._unit = options.depth_unit_m or (given and given.depth_unit_m) or DEPTH_UNIT_M
        self._channels: base.Channels = options.channels or "rgb"
        self.view = base.view_of(options, obs.place, name, self._size, self._calibration)
        self.meaning = f"rgb as {self._channels}, depth in units of {self._unit:g} m, " + (
            "calibration as given" if given else "calibration from intrinsic_cv, extrinsic_cv"
        )

    def _calibration(self) -> base.View:
        param, frames = self._obs.group(self._param), self._obs.shape(f"{self._data}/rgb")[0]
        world_to_camera = param.read("extrinsic_cv", (frames, None, 4))
        if world_to_camera.shape[1] not in (3, 4):
            param.check_shape("extrinsic_cv", (frames, 3, 4))
        pose = pinhole.invert_pose(pinhole.homogeneous(world_to_camera))
        check_opengl_pose(param, pose)
        return base.View(self._size, param.read("intrinsic_cv", (frames, 3, 3)), pose)

    def read(self, rows: Sequence[int]) -> Iterator[base.RgbdImage]:
        """Read chosen frames."""
        name = f"{self._data}/rgb"
        colours = self._obs.rows(name, rows)
        depths = self._obs.rows(f"{self._data}/depth", rows)
        for row, rgb, depth in zip(rows, colours, depths, strict=True):
            rgb = images.require_rgb(rgb, self._obs.place, row, name)
            yield base.RgbdImage(
                images.in_rgb_order(rgb, self._channels),
                conversions.metric_depth(depth[..., 0], self._unit),
            )


def _about(file: Path) -> Mapping[str, Any]:
    beside = file.with_suffix(".json")
    try:
        raw = json.loads(beside.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        wrong = diagnosis(beside, f"cannot be read as JSON ({reason(error)})")
        raise fault(beside, None, *wrong) from error
    return raw if isinstance(raw, Mapping) else {}


def _environment(about: Mapping[str, Any]) -> Mapping[str, Any]:
    found = about.get("env_info")
    return found if isinstance(found, Mapping) else {}


def _control_mode(about: Mapping[str, Any]) -> Any:
    episodes = about.get("episodes")
    first = episodes[0] if isinstance(episodes, list) and episodes else {}
    settings = _environment(about).get("env_kwargs")
    fallback = settings.get("control_mode") if isinstance(settings, Mapping) else None
    return (first.get("control_mode") if isinstance(first, Mapping) else None) or fallback


def _rate(about: Mapping[str, Any], options: base.Options) -> tuple[float, str]:
    if options.rate_hz:
        return options.rate_hz, "as given"
    settings = _environment(about).get("env_kwargs")
    simulation = settings.get("sim_config") if isinstance(settings, Mapping) else None
    rate = simulation.get("control_freq") if isinstance(simulation, Mapping) else None
    if isinstance(rate, int | float) and rate > 0:
        return float(rate), "control_freq of the .json"
    return RATE_HZ, "ManiSkill's default; --rate overrides"


def _agent(root: Node) -> str:
    if "obs/agent/qpos" in root:
        return "obs/agent"
    inner = [n for n in root.names("obs/agent") if f"obs/agent/{n}/qpos" in root]
    if len(inner) == 1:
        return f"obs/agent/{inner[0]}"
    raise root.place.error(
        f"'obs/agent' holds {', '.join(root.names('obs/agent')) or 'nothing'}, expected qpos",
        "Trajectories of several robots are not supported; convert them to `folder`.",
    )


def _joints(count: int) -> list[base.Joint]:
    return [base.Joint(f"qpos{k}") for k in range(count)]


def _cameras(root: Node) -> dict[str, str]:
    available = {}
    for name in root.names("obs/sensor_data"):
        folder = f"obs/sensor_data/{name}"
        missing = _NO_DEPTH if f"{folder}/depth" not in root else ""
        available[name] = missing if f"{folder}/rgb" in root else "it has no rgb"
    return available


def _end_effectors(root: Node, frames: int) -> tuple[base.EndEffector, ...]:
    if "obs/extra/tcp_pose" not in root:
        return ()
    values = root.read("obs/extra/tcp_pose", (frames, 7))
    return (base.EndEffector("tcp", "", conversions.pose_from_quaternion(values, "wxyz")),)


def _base(root: Node, frames: int, options: base.Options) -> tuple[np.ndarray, str]:
    """Read where the robot stands, if there is exactly one articulation."""
    folder = "env_states/articulations"
    robots = root.names(folder)
    if options.sidecar.base_to_world is not None:
        return options.sidecar.base_to_world, "as given"
    if len(robots) != 1:
        return np.eye(4), f"at the origin, because '{folder}' names {len(robots)} robots"
    states = root.read(f"{folder}/{robots[0]}", (frames, None))
    if frames and states.shape[1] >= 7:
        return conversions.pose_from_quaternion(states[0, :7], "wxyz"), f"of {robots[0]}"
    raise root.place.error(f"'{folder}/{robots[0]}' has shape {states.shape}, expected 7 or more")
