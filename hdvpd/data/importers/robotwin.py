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
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from hdvpd.array_typing import Float
from hdvpd.data import pinhole
from hdvpd.data.checks import check_finite
from hdvpd.data.importers import base, conversions, images
from hdvpd.data.importers.hdf5 import Node, open_hdf5
from hdvpd.errors import UserError

RATE_HZ = 250 / 15
"""The simulator's rate over the default `save_freq`; the files hold no time stamps."""
DEPTH_UNIT_M = 0.001
MAX_DISAGREEMENT = 1e-3
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
        files.sort(key=lambda file: (str(file.parent), base.number_in(file.stem)))
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
            cameras = base.select_cameras(place, available, self.options.cameras)
            pictures = {
                name: _Camera(root.group(f"observation/{name}"), name, self.options, len(positions))
                for name in cameras
            }
            rate = self.options.rate_hz or RATE_HZ
            yield base.Recording(
                time_s=base.steady(rate, len(positions)),
                views={name: camera.view for name, camera in pictures.items()},
                joints=base.name_joints(self.options, place, joints),
                joint_positions=positions,
                joint_targets=targets,
                positions_source="measured" if measured else "targets",
                end_effectors=_end_effectors(root, len(positions)),
                base_to_world=base.base_pose(self.options),
                frames=base.side_by_side({n: c.read for n, c in pictures.items()}),
                fields={
                    **{name: camera.meaning for name, camera in pictures.items()},
                    "joint_positions": "joint_state, measured" if measured else
                    "joint_action: drive targets, because the file has no joint_state",
                    "joint_targets": "joint_action of the following frame",
                    "time": f"{rate:.4g} Hz, " + ("as given" if self.options.rate_hz else
                    "save_freq 15 of a simulation at 250 Hz; --rate overrides"),
                },
                warnings=base.left_out(available, cameras),
            )  # fmt: skip


class _Camera:
    """One camera of one file."""

    def __init__(self, group: Node, name: str, options: base.Options, frames: int) -> None:
        self._group, self._name = group, name
        group.check_shape("depth", (frames, None, None))
        group.check_shape("rgb", (frames,))
        height, width = group.shape("depth")[1:]
        self._size = (height, width)
        given = options.sidecar.cameras.get(name)
        self._unit = options.depth_unit_m or (given and given.depth_unit_m) or DEPTH_UNIT_M
        # As the standard decoders see it, see the top of this file.
        self._channels: base.Channels = options.channels or "bgr"
        self.view = base.view_of(options, group.place, name, self._size, self._calibration)
        self.meaning = (
            f"rgb from JPEG in the order {self._channels}, depth in units of {self._unit:g} m, "
            + ("calibration as given" if given else "calibration from intrinsic_cv, extrinsic_cv")
        )

    def _calibration(self) -> base.View:
        group, frames = self._group, self._group.shape("depth")[0]
        world_to_camera = group.read("extrinsic_cv", (frames, None, 4))
        if world_to_camera.shape[1] not in (3, 4):
            group.check_shape("extrinsic_cv", (frames, 3, 4))
        pose = pinhole.invert_pose(pinhole.homogeneous(world_to_camera))
        check_opengl_pose(group, pose)
        return base.View(self._size, group.read("intrinsic_cv", (frames, 3, 3)), pose)

    def read(self, rows: Sequence[int]) -> Iterator[base.RgbdImage]:
        """Read chosen frames."""
        place, name = self._group.place, f"observation/{self._name}/rgb"
        pairs = zip(self._group.rows("rgb", rows), self._group.rows("depth", rows), strict=True)
        for row, (encoded, depth) in zip(rows, pairs, strict=True):
            rgb = images.decode_rgb(_bytes(encoded), place, row, self._size, name)
            yield base.RgbdImage(
                images.in_rgb_order(rgb, self._channels),
                conversions.metric_depth(depth, self._unit),
            )


def check_opengl_pose(camera: Node, camera_to_world: Float[np.ndarray, "f 4 4"]) -> None:
    """Require that SAPIEN's two extrinsics, where both are recorded, are the same pose.

    Args:
      camera: group that may hold `cam2world_gl`.
      camera_to_world: from `extrinsic_cv`, OpenCV axes.

    Raises:
      BadEpisodeError: they differ; the first frame is named.
    """
    if "cam2world_gl" not in camera:
        return
    recorded = camera.read("cam2world_gl", (len(camera_to_world), 4, 4))
    check_finite(camera.place, "cam2world_gl", recorded)
    difference = np.abs(recorded @ pinhole.AXES["opengl"] - camera_to_world).max(axis=(1, 2))
    camera.place.require(
        np.asarray(difference < MAX_DISAGREEMENT),
        "cam2world_gl",
        f"it differs from the inverse of extrinsic_cv by up to {difference.max():.3g}",
        "One of the two is wrong (transposed, or of another camera): collect the data again, or "
        "give the poses with --calibration.",
    )


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


def _bytes(encoded: object) -> bytes:
    return (
        bytes(encoded) if isinstance(encoded, bytes | np.bytes_) else np.asarray(encoded).tobytes()
    )


def _task(file: Path) -> str:
    parents = [parent.name for parent in file.resolve().parents]
    index = 2 if parents[0] == "data" and len(parents) > 2 else 0
    return re.sub(r"[^\w.+-]", "_", parents[index]) or "unknown"
