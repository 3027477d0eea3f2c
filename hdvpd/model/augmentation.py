"""Windows changed at random in training: colours, places of cameras, mirrored scenes.

What is changed stays one scene: all frames of a window are changed alike, and what was observed,
what is commanded and what should be predicted with each other.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.geometry import EXACT
from hdvpd.basics.types import (
    Array,
    Batch,
    Camera,
    Float,
    JaxArray,
    Key,
    PRNGKey,
    RgbdFrames,
    RobotPoints,
    UInt8,
)
from hdvpd.config import SceneSpec
from hdvpd.config.training import AugmentConfig


def augmented(
    batch: Batch, settings: AugmentConfig, scene: SceneSpec, keys: Key[JaxArray, "b"]
) -> Batch:
    """Change windows at random.

    Args:
      batch: windows.
      settings: what is changed, and how much.
      scene: whose workspace has the mirror in its middle.
      keys: each decides over a window.

    Returns:
      Windows of the same shapes and types; the same ones where the settings change nothing.
    """
    if settings == AugmentConfig():
        return batch
    change = functools.partial(_augmented, settings, scene)
    frames, robot = jax.vmap(change)(batch.frames, batch.robot, keys)
    return Batch(frames=frames, robot=robot, episode=batch.episode, start=batch.start)


def _augmented(
    settings: AugmentConfig, scene: SceneSpec, frames: RgbdFrames, robot: RobotPoints, key: PRNGKey
) -> tuple[RgbdFrames, RobotPoints]:
    of_colors, of_cameras, of_mirror = jax.random.split(key, 3)
    rgb, camera = frames.rgb, frames.camera
    if settings.colors:
        rgb = _recolored(rgb, settings.colors, of_colors)
    if settings.camera_shift or settings.camera_turn:
        camera = _displaced(camera, settings.camera_shift, settings.camera_turn, of_cameras)
    frames = RgbdFrames(rgb=rgb, depth_m=frames.depth_m, camera=camera)
    if settings.mirror == "none":
        return frames, robot
    turned = jax.random.bernoulli(of_mirror)
    mirror = mirrored(frames, robot, "xyz".index(settings.mirror), scene)
    return jax.tree.map(lambda x, y: jnp.where(turned, x, y), mirror, (frames, robot))


def _recolored(
    rgb: UInt8[Array, "f v h w 3"], spread: float, key: PRNGKey
) -> UInt8[Array, "f v h w 3"]:
    """Multiply every channel by a random gain; what is too bright saturates."""
    gain = jnp.exp(spread * jax.random.normal(key, (1, 1, 1, 1, 3)))
    return jnp.clip(jnp.round(jnp.asarray(rgb, jnp.float32) * gain), 0, 255).astype(jnp.uint8)


def _displaced(camera: Camera, shift_m: float, turn: float, key: PRNGKey) -> Camera:
    """Put every camera, axes (f v), beside its place, in all frames alike."""
    pose = jnp.asarray(camera.camera_to_world)
    of_shift, of_turn = jax.random.split(key)
    views = pose.shape[1]
    shift = shift_m * jax.random.normal(of_shift, (views, 3))
    rotation = _rotation(turn * jax.random.normal(of_turn, (views, 3)))
    turned = jnp.einsum("fvij,vjk->fvik", pose[..., :3, :3], rotation, precision=EXACT)
    pose = pose.at[..., :3, :3].set(turned).at[..., :3, 3].add(shift[None])
    return Camera(intrinsics=camera.intrinsics, camera_to_world=pose)


def _rotation(vectors: Float[JaxArray, "v 3"]) -> Float[JaxArray, "v 3 3"]:
    """Return the rotations about vectors by their lengths [rad] (Rodrigues)."""
    x, y, z = jnp.moveaxis(vectors, -1, 0)
    zero = jnp.zeros_like(x)
    rows = [jnp.stack(row, -1) for row in ((zero, -z, y), (z, zero, -x), (-y, x, zero))]
    cross, turn = jnp.stack(rows, -2), jnp.linalg.norm(vectors, axis=-1)[:, None, None] / jnp.pi
    twice = jnp.einsum("vij,vjk->vik", cross, cross, precision=EXACT)
    first, second = jnp.sinc(turn), jnp.sinc(turn / 2) ** 2 / 2
    return jnp.eye(3)[None] + first * cross + second * twice


def mirrored(
    frames: RgbdFrames, robot: RobotPoints, axis: int, scene: SceneSpec
) -> tuple[RgbdFrames, RobotPoints]:
    """Mirror a scene along an axis of the world, through the middle of the workspace.

    A mirrored camera sees its image from the other side, left and right exchanged; with the first
    axis of its own turned round it is a camera again. So is a link's frame.

    Args:
      frames: axes (*batch), any.
      robot: axes (*batch), any.
      axis: that is reversed: 0, 1 or 2.
      scene: has the workspace.
    """
    reversal = np.where(np.arange(3) == axis, -1.0, 1.0).astype(np.float32)
    offset = np.float32(scene.workspace_min[axis] + scene.workspace_max[axis])

    def points(x: Array) -> JaxArray:
        x = jnp.asarray(x)
        return x.at[..., axis].set(offset - x[..., axis])

    def axes(x: Array) -> JaxArray:
        other_hand = np.asarray([-1.0, 1.0, 1.0], np.float32)
        return jnp.asarray(x) * np.multiply.outer(reversal, other_hand).reshape(
            (1,) * (x.ndim - 2) + (3, 3)
        )

    pose = jnp.asarray(frames.camera.camera_to_world)
    intrinsics = jnp.asarray(frames.camera.intrinsics)
    pose = pose.at[..., :3, :3].set(axes(pose[..., :3, :3]))
    width = frames.rgb.shape[-2]
    camera = Camera(
        intrinsics=intrinsics.at[..., 0, 2].set(width - intrinsics[..., 0, 2]),
        camera_to_world=pose.at[..., :3, 3].set(points(pose[..., :3, 3])),
    )
    rgb, depth_m = jnp.flip(frames.rgb, axis=-2), jnp.flip(frames.depth_m, axis=-1)
    return RgbdFrames(rgb=rgb, depth_m=depth_m, camera=camera), RobotPoints(
        positions=points(robot.positions), axes=axes(robot.axes), gripper=robot.gripper
    )
