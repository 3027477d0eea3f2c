"""What dataset.json says of an import, and what else belongs into the same data set."""

import hashlib
import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hdvpd
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.data import schema
from hdvpd.data.arrays import LINKS
from hdvpd.data.importers import base, source_class
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.prepare import Prepared, Settings, guess_workspace
from hdvpd.data.pinhole import pixel_directions

WORKSPACE_FRAMES = 3
"""Frames of the first episode from which the workspace is guessed."""


@dataclass(frozen=True)
class Job:
    """What decides the bytes of an import."""

    format: str
    path: Path
    out: Path
    options: base.Options
    settings: Settings

    def source(self) -> base.AbstractSource:
        """Open the source."""
        if not self.path.exists():
            raise UserError(f"There is no {self.path}; name the data set to import.")
        return source_class(self.format)(self.path, self.options)


def describe(
    source: base.AbstractSource,
    recording: base.Recording,
    prepared: Prepared,
    provenance: Mapping[str, Any],
    decided: Mapping[str, str],
) -> Mapping[str, Any]:
    """Describe a data set by its first episode, as dataset.json does."""
    low, high = source.options.sidecar.workspace or _workspace(recording, prepared)
    cameras = {
        name: schema.describe_camera(*size, prepared.mounts[name])
        for name, size in prepared.sizes.items()
    }
    return {
        "format": schema.FORMAT,
        "version": schema.VERSION,
        "rate_hz": 1 / provenance["options"]["step_s"],
        "licence": source.licence,
        "cameras": cameras,
        "robot": prepared.robot,
        "workspace": {"min": list(low), "max": list(high)},
        "source": {
            **provenance,
            "fields": {
                **{name: camera.meaning for name, camera in recording.cameras.items()},
                **recording.fields,
                **decided,
            },
        },
    }


def provenance(job: Job, source: base.AbstractSource, episodes: int) -> dict[str, Any]:
    """Say what an import is made of: everything here must agree before it continues."""
    options, settings = source.options, job.settings
    packages = ("numpy", "pillow", "scipy", *source.packages)
    if settings.robot_file:
        packages += ("mujoco",)
    return {
        "command": f"hdvpd data import {job.format} {job.path}",
        "episodes": episodes,
        "options": {
            "step_s": settings.step_s,
            "size": None if settings.size is None else list(settings.size),
            "cameras": list(options.cameras),
            "calibration": _digest(options.sidecar.file),
            "robot": None if settings.robot_file is None else _digest(settings.robot_file),
            "depth_unit_m": options.depth_unit_m,
            "joint_targets": options.joint_targets,
            "channels": options.channels,
            "rate_hz": options.rate_hz,
            "extrinsics": None if options.extrinsics is None else str(options.extrinsics),
        },
        "hdvpd": hdvpd.__version__,
        **{name: importlib.metadata.version(name) for name in packages},
    }


def require_same(found: Any, wanted: Mapping[str, Any], file: Path) -> None:
    """Require that a dataset.json, as found, is of the import whose provenance is wanted.

    Raises:
      UserError: it is of another one.
    """
    source = found.get("source", {})
    for key, value in wanted.items():
        if source.get(key) != value:
            raise UserError(
                f"{file} holds another data set: its source.{key} is {source.get(key)!r}, this "
                f"would be {value!r}. Choose another --out, or remove {file.parent}."
            )


def require_alike(prepared: Prepared, description: Mapping[str, Any], place: SourcePlace) -> None:
    """Require that an episode has what dataset.json describes.

    Raises:
      BadEpisodeError: cameras, sizes, joints or links differ.
    """
    cameras = {n: (c["height"], c["width"]) for n, c in description["cameras"].items()}
    if dict(prepared.sizes) != cameras:
        raise place.error(
            f"its cameras are {_listed(prepared.sizes)}, those of the data set are "
            f"{_listed(cameras)}",
            "All episodes need the same cameras and sizes; choose them with --cameras and --size.",
        )
    for key in ("joints", "links"):
        own = [entry["name"] for entry in prepared.robot[key]]
        expected = [entry["name"] for entry in description["robot"][key]]
        if own != expected:
            raise place.error(
                f"its {key} are {', '.join(own)}, those of the data set are {', '.join(expected)}",
                "Import episodes of different robots into data sets of their own.",
            )


def _workspace(
    recording: base.Recording, prepared: Prepared
) -> tuple[Sequence[float], Sequence[float]]:
    links = prepared.arrays[LINKS][..., :3, 3].reshape(-1, 3)
    steps = np.unique(np.linspace(0, len(prepared.rows) - 1, WORKSPACE_FRAMES).astype(int))
    rows = prepared.rows[steps].tolist()
    views = {name: camera.view for name, camera in recording.cameras.items()}
    fixed = {name: view for name, view in views.items() if view.link == "world"}
    points = [np.zeros((0, 3))]
    for row, images in zip(rows, recording.frames(rows), strict=True):
        points += [_seen(images[name].depth_m, view, row) for name, view in fixed.items()]
    return guess_workspace(np.concatenate(points), links.astype(np.float64))


def _seen(depth_m: Float[np.ndarray, "h w"], view: base.View, row: int) -> Float[np.ndarray, "n 3"]:
    """Lift every fourth valid pixel to the world."""
    intrinsics = view.intrinsics if view.intrinsics.ndim == 2 else view.intrinsics[row]
    pose = view.camera_to_world if view.camera_to_world.ndim == 2 else view.camera_to_world[row]
    points = pixel_directions(intrinsics, depth_m.shape) * depth_m[..., None]
    return points[depth_m > 0][::4] @ pose[:3, :3].T + pose[:3, 3]


def _digest(file: Path) -> str | None:
    if file == Path():
        return None
    return f"{file.name}, sha256 {hashlib.sha256(file.read_bytes()).hexdigest()[:16]}"


def _listed(sizes: Mapping[str, tuple[int, int]]) -> str:
    return ", ".join(f"{name} {height}x{width}" for name, (height, width) in sizes.items())
