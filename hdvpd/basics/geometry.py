"""Pinhole cameras: unproject, project and rays.

Camera axes are OpenCV's (x right, y down, z forward); the centre of pixel (row i, column j) is
(x, y) = (j + 0.5, i + 0.5); depth is planar z; everything is in metres.
"""

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Camera, Float, JaxArray, Rays

EXACT = jax.lax.Precision.HIGHEST
"""Of products of places: by default GPUs may round factors to 10 bits, a millimetre at 1.2 m."""


def pixel_centers(height: int, width: int) -> Float[Array, "h w 2"]:
    """Return (x, y) of every pixel's centre [px]."""
    x, y = jnp.meshgrid(jnp.arange(width) + 0.5, jnp.arange(height) + 0.5)
    return jnp.stack([x, y], axis=-1)


def _camera_directions(
    pixels: Float[Array, "*batch r 2"], intrinsics: Float[Array, "*batch 3 3"]
) -> Float[Array, "*batch r 3"]:
    """Return the camera-frame direction of unit depth through each pixel."""
    focal = jnp.stack([intrinsics[..., 0, 0], intrinsics[..., 1, 1]], axis=-1)
    xy = (pixels - intrinsics[..., None, :2, 2]) / focal[..., None, :]
    return jnp.concatenate([xy, jnp.ones_like(xy[..., :1])], axis=-1)


def turned(
    rotation: Float[Array, "*#batch 3 3"], vectors: Float[Array, "*#batch 3"]
) -> Float[JaxArray, "*batch 3"]:
    """Return the products of matrices and vectors.

    As a sum of columns: XLA's code for CPUs takes 28 times as long for so small a `matmul`
    (docs/lab-book.md), and GPUs would round its factors.
    """
    rotation, vectors = jnp.asarray(rotation), jnp.asarray(vectors)
    x, y, z = (rotation[..., axis] * vectors[..., axis, None] for axis in range(3))
    return x + y + z


def _rotate(
    camera_to_world: Float[Array, "*batch 4 4"], vectors: Float[Array, "*batch r 3"]
) -> Float[Array, "*batch r 3"]:
    return turned(camera_to_world[..., None, :3, :3], vectors)


def unproject_pixels(
    pixels: Float[Array, "*batch r 2"], depth_m: Float[Array, "*batch r"], camera: Camera
) -> Float[Array, "*batch r 3"]:
    """Lift pixels with planar depth to world points (docs/conventions.md).

    Args:
      pixels: (x, y) in pixels, centres at +0.5.
      depth_m: distance along the optical axis [m]; 0 gives the camera's centre.
      camera: one camera per leading index.

    Returns:
      World points [m].
    """
    points = _camera_directions(pixels, camera.intrinsics) * depth_m[..., None]
    return _rotate(camera.camera_to_world, points) + camera.camera_to_world[..., None, :3, 3]


def unproject(depth_m: Float[Array, "*batch h w"], camera: Camera) -> Float[Array, "*batch h w 3"]:
    """Lift planar depth images to world points [m], one per pixel.

    Invalid pixels (depth 0) land on the camera's centre; carry `depth_m > 0` as the mask.
    """
    *batch, height, width = depth_m.shape
    pixels = jnp.broadcast_to(
        pixel_centers(height, width).reshape(height * width, 2), (*batch, height * width, 2)
    )
    points = unproject_pixels(pixels, jnp.asarray(depth_m).reshape(*batch, -1), camera)
    return points.reshape(*batch, height, width, 3)


def project(
    points: Float[Array, "*batch r 3"], camera: Camera
) -> tuple[Float[Array, "*batch r 2"], Float[Array, "*batch r"]]:
    """Project world points into images.

    Args:
      points: world points [m].
      camera: one camera per leading index.

    Returns:
      (x, y) in pixels and planar depth [m]. Where depth is not positive the pixel is meaningless:
      mask with `depth > 0`.
    """
    rotation = camera.camera_to_world[..., :3, :3]
    away = points - camera.camera_to_world[..., None, :3, 3]
    local = turned(jnp.swapaxes(rotation, -1, -2)[..., None, :, :], away)
    depth = local[..., 2]
    safe = jnp.where(depth > 0, depth, 1.0)
    intrinsics = camera.intrinsics
    focal = jnp.stack([intrinsics[..., 0, 0], intrinsics[..., 1, 1]], axis=-1)
    return local[..., :2] / safe[..., None] * focal[..., None, :] + intrinsics[
        ..., None, :2, 2
    ], depth


def rays_through(pixels: Float[Array, "*batch r 2"], camera: Camera) -> Rays:
    """Return the rays through pixels, unit directions in the world frame (docs/conventions.md)."""
    directions = _camera_directions(pixels, camera.intrinsics)
    length = jnp.linalg.norm(directions, axis=-1)
    unit = _rotate(camera.camera_to_world, directions / length[..., None])
    origins = jnp.broadcast_to(camera.camera_to_world[..., None, :3, 3], unit.shape)
    return Rays(origins=origins, directions=unit, z_scale=1.0 / length)


def pixel_rays(camera: Camera, height: int, width: int) -> Rays:
    """Return the rays through all pixel centres of one camera, axes (h w)."""
    rays = rays_through(pixel_centers(height, width).reshape(height * width, 2), camera)
    return Rays(
        origins=rays.origins.reshape(height, width, 3),
        directions=rays.directions.reshape(height, width, 3),
        z_scale=rays.z_scale.reshape(height, width),
    )


def safe_norm(vectors: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
    """Return sqrt(|v|^2 + 1e-12): the gradient of the plain norm is infinite at 0."""
    # Axis by axis: sums over an axis of three are not vectorised.
    squares = (vectors[..., axis] ** 2 for axis in range(vectors.shape[-1]))
    return jnp.sqrt(sum(squares, jnp.full((), 1e-12, vectors.dtype)))


def solve_3x3(matrix: Float[Array, "q 3 3"], vector: Float[Array, "q 3"]) -> Float[Array, "q 3"]:
    """Solve 3x3 systems by Cramer's rule; for well-conditioned matrices, and much faster than LU.

    Args:
      matrix: M.
      vector: v.

    Returns:
      M^-1 v.
    """
    first, second, third = matrix[:, :, 0], matrix[:, :, 1], matrix[:, :, 2]
    across = jnp.cross(second, third)
    determinant = jnp.sum(first * across, axis=-1)
    solution = jnp.stack(
        [
            jnp.sum(vector * across, axis=-1),
            jnp.sum(first * jnp.cross(vector, third), axis=-1),
            jnp.sum(first * jnp.cross(second, vector), axis=-1),
        ],
        axis=-1,
    )
    return solution / determinant[:, None]
