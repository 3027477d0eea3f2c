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
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.data.importers import base, conversions
from hdvpd.data.importers.common import Choices, dig, number_in
from hdvpd.data.importers.faults import read_json
from hdvpd.data.importers.hdf5 import Node, open_hdf5
from hdvpd.data.importers.hdf5_camera import SAPIEN, Layout, hdf5_camera, sapien_view

RATE_HZ = 20.0
"""ManiSkill's default control frequency; the files hold no time stamps."""
DEPTH_UNIT_M = 0.001
_SETTINGS = ("env_info", "env_kwargs")
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
            names = sorted((n for n in stream if n.startswith("traj_")), key=number_in)
        if not names:
            raise UserError(f"{file} holds no group traj_0; name a ManiSkill trajectory file.")
        prefix = f"{file.relative_to(self.path)}/" if several else ""
        episodes = []
        for name in names:
            judged = success.get(str(number_in(name)[0]))
            episodes.append(
                base.SourceEpisode(
                    name=prefix + name,
                    file=file,
                    task=str(dig(about, "env_info", "env_id") or "unknown"),
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
            choices = Choices(place, self.options)
            names, warnings = choices.cameras(_cameras(root))
            targets, commanded = _targets(root, qpos, str(_control_mode(about)), choices)
            stand, stands = _base(root, frames, choices)
            recorded = dig(about, *_SETTINGS, "sim_config", "control_freq")
            rate, time = choices.rate(
                RATE_HZ, "ManiSkill's default", recorded, "control_freq of the .json"
            )
            yield base.Recording(
                time_s=np.arange(frames) / rate,
                cameras={name: _camera(root.group("obs"), name, frames, choices) for name in names},
                joints=choices.joints([base.Joint(f"qpos{k}") for k in range(qpos.shape[1])]),
                joint_positions=qpos,
                joint_targets=targets,
                end_effectors=_end_effectors(root, frames),
                base_to_world=stand,
                fields={
                    "joint_positions": f"{agent}/qpos, measured",
                    "joint_targets": commanded,
                    "robot base": stands,
                    "time": time,
                },
                warnings=warnings,
            )


def _camera(obs: Node, name: str, frames: int, choices: Choices) -> base.Camera:
    data, param = f"sensor_data/{name}", f"sensor_param/{name}"
    layout = Layout(f"{data}/rgb", f"{data}/depth", DEPTH_UNIT_M)

    def recorded(size: tuple[int, int]) -> base.View:
        return sapien_view(obs.group(param), frames, size)

    return hdf5_camera(obs, name, frames, layout, choices, recorded, SAPIEN)


def _targets(
    root: Node, qpos: np.ndarray, mode: str, choices: Choices
) -> tuple[np.ndarray | None, str]:
    if not (choices.options.joint_targets or mode == "pd_joint_pos"):
        return None, f"next positions, because the control mode is {mode!r}"
    return choices.targets(root.read("actions", (len(qpos) - 1, None)), qpos)


def _about(file: Path) -> Mapping[str, Any]:
    try:
        raw = read_json(file.with_suffix(".json"))
    except FileNotFoundError:
        return {}
    return raw if isinstance(raw, Mapping) else {}


def _control_mode(about: Mapping[str, Any]) -> Any:
    episodes = about.get("episodes")
    first = episodes[0] if isinstance(episodes, list) and episodes else None
    return dig(first, "control_mode") or dig(about, *_SETTINGS, "control_mode")


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


def _base(root: Node, frames: int, choices: Choices) -> tuple[np.ndarray, str]:
    """Read where the robot stands, if there is exactly one articulation."""
    folder = "env_states/articulations"
    robots = root.names(folder)
    if choices.options.sidecar.base_to_world is not None:
        return choices.base_to_world(), "as given"
    if len(robots) != 1:
        return np.eye(4), f"at the origin, because '{folder}' names {len(robots)} robots"
    states = root.read(f"{folder}/{robots[0]}", (frames, None))
    if frames and states.shape[1] >= 7:
        return conversions.pose_from_quaternion(states[0, :7], "wxyz"), f"of {robots[0]}"
    raise root.place.error(f"'{folder}/{robots[0]}' has shape {states.shape}, expected 7 or more")
