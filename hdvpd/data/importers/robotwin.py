"""RoboTwin 2.0: one HDF5 file per episode, written by the benchmark's own collection script.

```
<task>/<config>/data/episode<N>.hdf5
  observation/<cam>/rgb           (T,)      JPEG, padded with zero bytes; red and blue exchanged
  observation/<cam>/depth         (T,H,W)   millimetres; only if collected with data_type.depth
  observation/<cam>/intrinsic_cv  (T,3,3)
  observation/<cam>/extrinsic_cv  (T,3,4)   world to camera, OpenCV axes
  observation/<cam>/cam2world_gl  (T,4,4)   camera to world, OpenGL axes
  joint_action/{left,right}_{arm,gripper}   drive targets
  joint_state/...                           measured, in some forks
  endpose/{left,right}_endpose    (T,7)     x y z, then the quaternion w x y z
```

The collection script hands RGB arrays to OpenCV's encoder, which expects BGR: any decoder but
OpenCV's own gives red and blue exchanged.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.data.importers import base, conversions
from hdvpd.data.importers.common import Choices, number_in
from hdvpd.data.importers.hdf5 import Node, open_hdf5
from hdvpd.data.importers.hdf5_camera import SAPIEN, Layout, hdf5_camera, sapien_view

RATE_HZ = 250 / 15
"""The simulator's rate over the default `save_freq`; the files hold no time stamps."""
DEPTH_UNIT_M = 0.001
ARMS = ("left", "right")
_NO_DEPTH = (
    "it has no depth, which RoboTwin records only with `depth: true` under data_type in "
    "task_config/*.yml; the published archives have none, so collect the data again"
)


class RoboTwinSource(base.AbstractSource):
    """A folder of RoboTwin episodes, or one of its files."""

    packages = ("h5py",)

    def episodes(self) -> tuple[base.SourceEpisode, ...]:
        """List episode<N>.hdf5 below the path, by folder and number."""
        files = [self.path] if self.path.is_file() else list(self.path.rglob("episode*.hdf5"))
        files.sort(key=lambda file: (str(file.parent), number_in(file.stem)))
        if not files:
            raise UserError(
                f"{self.path} holds no episode*.hdf5; name the folder <task>/<config> that "
                "RoboTwin collected into."
            )
        root = self.path.parent if self.path.is_file() else self.path
        return tuple(
            base.SourceEpisode(str(file.relative_to(root)), file, _task(file)) for file in files
        )

    @contextlib.contextmanager
    def open(self, episode: base.SourceEpisode) -> Iterator[base.Recording]:
        """Open one file."""
        place = episode.place
        with open_hdf5(episode.file, place) as file:
            root = Node(place, file)
            positions, targets, joints, measured = _joints(root)
            available = {
                name: "" if f"observation/{name}/depth" in root else _NO_DEPTH
                for name in root.names("observation")
                if f"observation/{name}/rgb" in root
            }
            choices, frames = Choices(place, self.options), len(positions)
            names, warnings = choices.cameras(available)
            rate, time = choices.rate(RATE_HZ, "save_freq 15 of a simulation at 250 Hz")
            yield base.Recording(
                time_s=np.arange(frames) / rate,
                cameras={name: _camera(root, name, frames, choices) for name in names},
                joints=choices.joints(joints),
                joint_positions=positions,
                joint_targets=targets,
                positions_source="measured" if measured else "targets",
                end_effectors=_end_effectors(root, frames),
                base_to_world=choices.base_to_world(),
                fields={
                    "joint_positions": "joint_state, measured"
                    if measured
                    else "joint_action: drive targets, because the file has no joint_state",
                    "joint_targets": "joint_action of the following frame",
                    "time": time,
                },
                warnings=warnings,
            )


def _camera(root: Node, name: str, frames: int, choices: Choices) -> base.Camera:
    folder = f"observation/{name}"
    # As the standard decoders see them, see the top of this file.
    layout = Layout(f"{folder}/rgb", f"{folder}/depth", DEPTH_UNIT_M, "bgr", encoded=True)

    def recorded(size: tuple[int, int]) -> base.View:
        return sapien_view(root.group(folder), frames, size)

    return hdf5_camera(root, name, frames, layout, choices, recorded, SAPIEN)


def _joints(
    root: Node,
) -> tuple[np.ndarray, np.ndarray, list[base.Joint], bool]:
    joints: list[base.Joint] = []
    columns: dict[str, list[np.ndarray]] = {"joint_action": [], "joint_state": []}
    measured = "joint_state/left_arm" in root or "joint_state/right_arm" in root
    arms = [arm for arm in ARMS if f"joint_action/{arm}_arm" in root]
    frames = None
    for arm in arms:
        for group in columns if measured else ("joint_action",):
            angles = root.read(f"{group}/{arm}_arm", (frames, None))
            frames = len(angles)
            opening = root.read(f"{group}/{arm}_gripper", (frames,))
            columns[group] += [angles, opening[:, None]]
        count = columns["joint_action"][-2].shape[1]
        joints += [base.Joint(f"{arm}_joint{k + 1}", "rad", arm) for k in range(count)]
        joints.append(base.Joint(f"{arm}_gripper", "1", arm))
    if frames is None:
        root.group("joint_action/left_arm")
        raise AssertionError
    if frames == 0:
        raise root.place.error("'joint_action' has no frames", "Collect the episode again.")
    action = np.concatenate(columns["joint_action"], axis=1)
    state = np.concatenate(columns["joint_state"], axis=1) if measured else action
    if state.shape != action.shape:
        raise root.place.error(
            f"joint_state has {state.shape[1]} columns, joint_action {action.shape[1]}"
        )
    # The drive target recorded with a frame led to that frame; what follows is the next one's.
    return state, np.concatenate([action[1:], action[-1:]]), joints, measured


def _end_effectors(root: Node, frames: int) -> tuple[base.EndEffector, ...]:
    tools = []
    for arm in ARMS:
        path = f"endpose/{arm}_endpose"
        if path in root:
            values = root.read(path, (frames, 7))
            pose = conversions.pose_from_quaternion(values, "wxyz")
            tools.append(base.EndEffector(f"{arm}_endpose", arm, pose))
    return tuple(tools)


def _task(file: Path) -> str:
    parents = [parent.name for parent in file.resolve().parents]
    index = 2 if parents[0] == "data" and len(parents) > 2 else 0
    return re.sub(r"[^\w.+-]", "_", parents[index]) or "unknown"
