"""RLBench, PerAct and PerAct2: a folder per episode, with pictures and one pickle of the states.

```
.../episode<N>/
  <cam>_rgb/<i>.png, <cam>_depth/<i>.png          PerAct2: <cam>_rgb/rgb_0000.png
  low_dim_obs.pkl                                  observations, with misc['<cam>_camera_*']
```

Depth is packed into 24 bits of a colour picture: near + v (far - near) with
v = (65536 R + 256 G + B) / (2^24 - 1). Intrinsics have negative focal lengths and poses
CoppeliaSim's camera axes. The pickle is read by `unpickling`; RLBench need not be installed.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, UInt8
from hdvpd.data import pinhole
from hdvpd.data.importers import base, conversions, images
from hdvpd.data.importers.common import Choices, number_in
from hdvpd.data.importers.faults import SourcePlace, diagnosis
from hdvpd.data.importers.unpickling import UnsafePickleError, read_pickle

RATE_HZ = 20.0
"""RLBench's simulation step is 50 ms; the files hold no time stamps."""
STATES = "low_dim_obs.pkl"
MAX_OFF_CENTRE = 0.01
"""How far the principal point may lie off the image centre, as a share of the image."""
_PICTURE = re.compile(r"(?:[a-z_]+_)?(\d+)\.png")


class RLBenchSource(base.AbstractSource):
    """A folder with RLBench episodes at any depth."""

    licence: ClassVar[str] = "RLBench licence: non-commercial use"

    def episodes(self) -> tuple[base.SourceEpisode, ...]:
        """List the folders that hold low_dim_obs.pkl, by folder and number."""
        folders = [file.parent for file in self.path.rglob(STATES)]
        folders.sort(key=lambda f: (str(f.parent), number_in(f.name)))
        if not folders:
            raise UserError(
                f"{self.path} holds no folder with a {STATES}; name the folder of a task or of a "
                "split that RLBench or PerAct wrote."
            )
        return tuple(
            base.SourceEpisode(str(folder.relative_to(self.path)) if folder != self.path
                               else folder.name, folder, _task(folder))
            for folder in folders
        )  # fmt: skip

    @contextlib.contextmanager
    def open(self, episode: base.SourceEpisode) -> Iterator[base.Recording]:
        """Read the states and list the pictures."""
        place = episode.place
        states = _States(place, episode.file / STATES)
        positions, joints, tools = states.joints()
        choices = Choices(place, self.options)
        names, warnings = choices.cameras(_cameras(place, states))
        rate, time = choices.rate(RATE_HZ, "RLBench's step")
        yield base.Recording(
            time_s=np.arange(states.frames) / rate,
            cameras={name: _camera(place, name, states, choices) for name in names},
            joints=choices.joints(joints),
            joint_positions=positions,
            joint_targets=None,
            end_effectors=tools,
            base_to_world=choices.base_to_world(),
            fields={
                "joint_positions": "joint_positions and gripper_open, measured",
                "joint_targets": "none: RLBench records no commands",
                "time": time,
            },
            warnings=warnings,
        )


class _States:
    """What low_dim_obs.pkl holds, checked when it is asked for."""

    def __init__(self, place: SourcePlace, file: Path) -> None:
        self._place = place
        try:
            demo = read_pickle(file, "rlbench")
        except UnsafePickleError as error:
            remedy = "Nothing of it was run. Download it again."
            wrong = diagnosis(file, f"is refused: {error}", remedy, file.name)
            raise place.error(*wrong) from error
        observations = getattr(demo, "_observations", demo)
        if not isinstance(observations, list) or not observations:
            raise place.error(f"{file.name} holds no observations", "Download it again.")
        self._observations: list[Any] = observations
        self.frames = len(observations)
        self.arms = ("left", "right") if hasattr(observations[0], "left") else ("",)

    def joints(
        self,
    ) -> tuple[np.ndarray, list[base.Joint], tuple[base.EndEffector, ...]]:
        """Return joint values, their names, and the tools."""
        columns, joints, tools = [], [], []
        for arm in self.arms:
            angles = self._stack("joint_positions", (None,), arm)
            columns += [angles, self._stack("gripper_open", (), arm)[:, None]]
            prefix = f"{arm}_" if arm else "panda_"
            joints += [
                base.Joint(f"{prefix}joint{k + 1}", "rad", arm) for k in range(angles.shape[1])
            ]
            joints.append(base.Joint(f"{arm}_gripper" if arm else "gripper", "1", arm))
            tools.append(base.EndEffector(f"{prefix}tip", arm, self._tip(arm)))
        return np.concatenate(columns, axis=1), joints, tuple(tools)

    def calibration(self, camera: str, key: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return one entry of `misc` for every frame."""
        name = f"{camera}_camera_{key}"
        return self._collect(name, shape, lambda o: _mapping(getattr(o, "misc", None)).get(name))

    def has_calibration(self, camera: str) -> bool:
        """Say whether the first frame's `misc` knows a camera."""
        misc = _mapping(getattr(self._observations[0], "misc", None))
        return f"{camera}_camera_intrinsics" in misc

    def _tip(self, arm: str) -> Float[np.ndarray, "f 4 4"]:
        first = getattr(self._observations[0], arm, None) if arm else self._observations[0]
        if getattr(first, "gripper_matrix", None) is not None:
            return self._stack("gripper_matrix", (4, 4), arm)
        return conversions.pose_from_quaternion(self._stack("gripper_pose", (7,), arm), "xyzw")

    def _stack(self, name: str, shape: tuple[int | None, ...], arm: str) -> np.ndarray:
        def get(observation: Any) -> Any:
            return getattr(getattr(observation, arm, None) if arm else observation, name, None)

        return self._collect(f"{arm}.{name}" if arm else name, shape, get)

    def _collect(self, name: str, shape: tuple[int | None, ...], get: Any) -> np.ndarray:
        rows: list[np.ndarray] = []
        for frame, observation in enumerate(self._observations):
            try:
                value = np.asarray(get(observation), np.float64)
            except (TypeError, ValueError):
                value = np.array(np.nan)
            expected = rows[0].shape if rows else shape
            agrees = len(value.shape) == len(expected) and all(
                n in (None, m) for n, m in zip(expected, value.shape, strict=True)
            )
            if not agrees or not np.isfinite(value).all():
                raise self._place.error(
                    f"{STATES}: {name} is missing, not finite or of shape {value.shape}",
                    "Download the episode again.",
                    frame,
                )
            rows.append(value)
        return np.stack(rows)


def _camera(place: SourcePlace, name: str, states: _States, choices: Choices) -> base.Camera:
    rgb, depth = (
        images.numbered(
            place,
            place.file / f"{name}_{kind}",
            _PICTURE,
            states.frames,
            f"observations in {STATES}",
            "Download the episode again.",
        )
        for kind in ("rgb", "depth")
    )

    def decode(file: Path, row: int, size: tuple[int, int] | None) -> UInt8[np.ndarray, "h w 3"]:
        return images.decode_rgb(file, place, row, size, str(file.relative_to(place.file)))

    height, width = decode(rgb[0], 0, None).shape[:2]
    size, channels = (height, width), choices.channels()
    near, far = (states.calibration(name, key, ()) for key in ("near", "far"))

    def read(rows: Sequence[int]) -> Iterator[base.RgbdImage]:
        for row in rows:
            colours, packed = decode(rgb[row], row, size), decode(depth[row], row, size)
            depth_m = unpack_depth(packed, near[row], far[row])
            yield base.RgbdImage(images.in_rgb_order(colours, channels), depth_m)

    return base.Camera(
        choices.view(name, size, lambda: _recorded_view(place, name, size, states)),
        f"rgb as {channels}, depth from 24 bits between near and far, calibration "
        + (
            "as given"
            if choices.is_given(name)
            else "from misc, CoppeliaSim's axes and signs converted"
        ),
        read,
    )


def _recorded_view(
    place: SourcePlace, name: str, size: tuple[int, int], states: _States
) -> base.View:
    intrinsics = states.calibration(name, "intrinsics", (3, 3))
    intrinsics[:, [0, 1], [0, 1]] = np.abs(intrinsics[:, [0, 1], [0, 1]])
    centre = np.array(size[::-1]) / 2
    off = np.abs(intrinsics[:, :2, 2] - centre[None]) / (2 * centre[None])
    place.require(
        np.asarray((off <= MAX_OFF_CENTRE).all(axis=1)),
        f"{name}_camera_intrinsics",
        f"the principal point {intrinsics[0, :2, 2].tolist()} is not the centre "
        f"{centre.tolist()} of the images, so the images were resized and the intrinsics not",
        "Import the original images, or give the camera with --calibration.",
    )
    pose = states.calibration(name, "extrinsics", (4, 4)) @ pinhole.AXES["coppeliasim"]
    return base.View(size, intrinsics, pose)


def unpack_depth(
    packed: UInt8[np.ndarray, "h w 3"], near: float, far: float
) -> Float[np.ndarray, "h w"]:
    """Decode RLBench's depth pictures.

    Args:
      packed: red is the most significant byte.
      near: near clipping plane [m].
      far: far clipping plane [m]; pixels that lie on it are invalid.

    Returns:
      float32 metres, 0 where nothing was hit.
    """
    code = packed.astype(np.int64) @ np.array([65536, 256, 1])
    depth_m = near + code / (2**24 - 1) * (far - near)
    return conversions.metric_depth(np.where(code == 2**24 - 1, 0.0, depth_m), 1.0)


def _cameras(place: SourcePlace, states: _States) -> dict[str, str]:
    available = {}
    for folder in sorted(place.file.glob("*_rgb")):
        name = folder.name.removesuffix("_rgb")
        if not (place.file / f"{name}_depth").is_dir():
            available[name] = f"the folder {name}_depth is missing"
        elif not states.has_calibration(name):
            available[name] = f"misc of {STATES} has no {name}_camera_intrinsics"
        else:
            available[name] = ""
    return available


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _task(folder: Path) -> str:
    parts = folder.resolve().parts
    for index, part in enumerate(parts):
        if part == "all_variations" or re.fullmatch(r"variation\d+", part):
            return parts[index - 1]
    return folder.resolve().parent.name
