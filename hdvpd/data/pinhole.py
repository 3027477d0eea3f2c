"""Pinhole cameras in numpy and float64, for everything that happens before the model.

The conventions are those of `hdvpd.basics.geometry`, its twin in JAX: OpenCV axes (x right, y down,
z forward), poses camera-to-world, the centre of pixel (row i, column j) at (j + 0.5, i + 0.5),
planar depth, metres. Sizes are height and width of an image, intrinsics pinhole matrices, both in
pixels.
"""

from collections.abc import Sequence

import numpy as np

from hdvpd.basics.types import Float

AXES = {
    "opencv": np.eye(4),
    "opengl": np.diag([1.0, -1.0, -1.0, 1.0]),
    "coppeliasim": np.diag([-1.0, -1.0, 1.0, 1.0]),
}
"""What a camera-to-world pose with these camera axes is multiplied with from the right."""


def pixel_directions(
    intrinsics: Float[np.ndarray, "3 3"], size: tuple[int, int]
) -> Float[np.ndarray, "h w 3"]:
    """Return the direction of unit planar depth through every pixel, camera frame."""
    x = (np.arange(size[1]) + 0.5 - intrinsics[0, 2]) / intrinsics[0, 0]
    y = (np.arange(size[0]) + 0.5 - intrinsics[1, 2]) / intrinsics[1, 1]
    return np.stack([*np.meshgrid(x, y), np.ones(size)], axis=-1)


def looking_at(
    position: Sequence[float] | Float[np.ndarray, "3"], target: Sequence[float]
) -> Float[np.ndarray, "4 4"]:
    """Return the pose of a camera that looks at a place, upright in a world with z up."""
    forward = np.array(target) - np.array(position)
    forward /= np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
    pose[:3, 3] = position
    return pose


def intrinsics_of(fovy: float, size: tuple[int, int]) -> Float[np.ndarray, "3 3"]:
    """Return intrinsics of a camera that looks through its image's centre, fovy [rad] high."""
    height, width = size
    focal = 0.5 * height / np.tan(0.5 * fovy)
    return np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1.0]])


def scale_intrinsics(
    intrinsics: Float[np.ndarray, "*batch 3 3"], old: tuple[int, int], new: tuple[int, int]
) -> Float[np.ndarray, "*batch 3 3"]:
    """Follow a resized image: the first row scales with the width, the second with the height."""
    scale = np.array([new[1] / old[1], new[0] / old[0], 1.0])
    return intrinsics * scale.reshape((1,) * (intrinsics.ndim - 2) + (3, 1))


def homogeneous(pose: Float[np.ndarray, "*batch r 4"]) -> Float[np.ndarray, "*batch 4 4"]:
    """Complete 3x4 poses with the row 0 0 0 1; 4x4 ones stay. float64."""
    if pose.shape[-2] == 4:
        return pose.astype(np.float64)
    last = np.broadcast_to(np.array([0.0, 0.0, 0.0, 1.0]), (*pose.shape[:-2], 1, 4))
    return np.concatenate([pose.astype(np.float64), last], axis=-2)


def invert_pose(pose: Float[np.ndarray, "*batch 4 4"]) -> Float[np.ndarray, "*batch 4 4"]:
    """Invert rigid poses, for instance world-to-camera to camera-to-world: [R^T | -R^T t]."""
    rotation = np.swapaxes(pose[..., :3, :3], -1, -2)
    result = np.zeros_like(pose)
    result[..., :3, :3] = rotation
    result[..., :3, 3] = -np.einsum("...ij,...j->...i", rotation, pose[..., :3, 3])
    result[..., 3, 3] = 1.0
    return result
