"""Observed images from arrays, checked and resized as those of a data set are."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool, Camera, ParticleCloud, RgbdFrames, UInt8
from hdvpd.data import checks, resizing
from hdvpd.data.pinhole import looking_at, scale_intrinsics
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.evaluation.videos import particle_colors, to_uint8


class _Observation(checks.AbstractPlace):
    """Arrays that a caller gave."""

    def require(self, good: Bool[np.ndarray, "f"], name: str, found: str, remedy: str) -> None:
        """Pass if every frame is good."""
        if not good.all():
            raise UserError(f"{name}: {found} in step {int(np.argmin(good))}. {remedy}")


def as_frames(
    rgb: Any, depth_m: Any, cameras: Mapping[str, Camera], size: tuple[int, int]
) -> RgbdFrames:
    """Check two observed steps and bring them to the model's size.

    Args:
      rgb: colours 0..255, axes (2 v h w 3).
      depth_m: planar depth [m], axes (2 v h w).
      cameras: one per view, in order; each still, or with a leading axis of the two steps.
      size: height and width that the model takes [px].

    Returns:
      Axes (2 v).

    Raises:
      UserError: shapes, types or numbers are impossible.
    """
    rgb, depth_m = np.asarray(rgb), np.asarray(depth_m)
    views = len(cameras)
    if not views or depth_m.ndim != 4 or depth_m.shape[:2] != (OBSERVED_FRAMES, views):
        raise UserError(
            f"depth_m has shape {depth_m.shape}; expected (2, {views}, height, width) for two "
            f"observed steps and the cameras {', '.join(cameras) or 'none'}."
        )
    if rgb.shape != (*depth_m.shape, 3) or rgb.dtype != np.uint8:
        raise UserError(
            f"rgb has shape {rgb.shape} and type {rgb.dtype}; expected {(*depth_m.shape, 3)} and "
            "uint8, 0 to 255, the last axis red, green, blue."
        )
    each = [
        _view(name, rgb[:, view], depth_m[:, view], camera, size)
        for view, (name, camera) in enumerate(cameras.items())
    ]
    return RgbdFrames(
        rgb=np.stack([frames.rgb for frames in each], axis=1),
        depth_m=np.stack([frames.depth_m for frames in each], axis=1),
        camera=Camera(
            np.stack([frames.camera.intrinsics for frames in each], axis=1),
            np.stack([frames.camera.camera_to_world for frames in each], axis=1),
        ),
    )


def _view(
    name: str, rgb: np.ndarray, depth_m: np.ndarray, camera: Camera, size: tuple[int, int]
) -> RgbdFrames:
    matrices = []
    for key, edge in (("intrinsics", 3), ("camera_to_world", 4)):
        value = np.asarray(getattr(camera, key), np.float64)
        if value.shape not in ((edge, edge), (OBSERVED_FRAMES, edge, edge)):
            raise UserError(
                f"Camera {name!r}: {key} has shape {value.shape}; expected {(edge, edge)}, or "
                f"{(OBSERVED_FRAMES, edge, edge)} where it changes between the two steps."
            )
        matrices.append(np.broadcast_to(value, (OBSERVED_FRAMES, edge, edge)))
    intrinsics, pose = matrices
    depth_m = depth_m.astype(np.float32)
    valid = np.isfinite(depth_m) & (depth_m > 0)
    place = _Observation()
    checks.check_depth(place, name, valid)
    checks.check_intrinsics(place, name, intrinsics)
    checks.check_pose(place, name, pose)
    scaled = scale_intrinsics(intrinsics, depth_m.shape[1:], size)
    return RgbdFrames(
        rgb=resizing.resize_rgb(rgb, *size),
        depth_m=resizing.resize_depth(np.where(valid, depth_m, np.float32(0)), *size),
        camera=Camera(scaled.astype(np.float32), pose.astype(np.float32)),
    )


def colors_of(cloud: ParticleCloud, frames: RgbdFrames) -> UInt8[np.ndarray, "m 3"]:
    """Look up in the observed images, axes (v), what colour each real particle has."""
    views = range(len(frames.depth_m))
    cameras = [jax.tree.map(lambda x, v=v: x[v], frames.camera) for v in views]
    rgb = np.asarray(frames.rgb, np.float32) / 255.0
    positions = np.asarray(cloud.positions)[cloud.mask]
    return to_uint8(particle_colors(positions, rgb, np.asarray(frames.depth_m), cameras))


def look_at(
    position: tuple[float, float, float],
    target: tuple[float, float, float],
    *,
    size: tuple[int, int],
    field_of_view_deg: float = 46.0,
) -> Camera:
    """Make a camera that looks from one point to another, upright.

    Args:
      position: of the camera [m].
      target: in the centre of the image [m].
      size: height and width of its images [px].
      field_of_view_deg: vertical [degrees].

    Returns:
      A camera for images of this size.

    Raises:
      UserError: the two points are the same, or above each other.
    """
    eye, aim = (tuple(map(float, point)) for point in (position, target))
    away = np.subtract(aim, eye)
    if not np.isfinite(away).all() or np.hypot(away[0], away[1]) < 1e-6:
        raise UserError(
            f"A camera at {eye} cannot look at {aim} upright: move one of them sideways a little."
        )
    height, width = size
    focal = 0.5 * height / np.tan(0.5 * np.deg2rad(field_of_view_deg))
    intrinsics = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]], np.float32)
    return Camera(intrinsics, looking_at(eye, aim).astype(np.float32))
