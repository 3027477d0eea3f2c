"""Small analytic scenes, cameras, clouds and configurations that the tests share.

Arrays are numpy's: what a test does to them compiles nothing.
"""

import dataclasses
import tomllib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from flax import nnx
from scipy.spatial.transform import Rotation

from hdvpd.basics.types import Batch, Camera, ParticleCloud, RgbdFrames, RobotPoints
from hdvpd.config import Config, DataConfig, ModelConfig, RenderConfig, SceneSpec, TrainConfig
from hdvpd.config.experiments import apply_overrides
from hdvpd.dynamics.global_attention import GlobalAttentionSettings
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.model import Model

SCENE = SceneSpec(
    num_robot_points=5, workspace_min=(-0.6, -0.6, -0.1), workspace_max=(0.6, 0.6, 0.8)
)


def tiny_config(**changes: dict) -> Config:
    """Return a configuration of the smallest sizes that still exercise every part.

    Args:
      **changes: per section, tables to lay over it.
    """
    config = Config(
        data=DataConfig(height=12, width=16),
        model=ModelConfig(
            num_particles=48, feature_dim=6, unet_channels=(8, 8), latent_dim=16,
            dynamics=InterlacerSettings(
                num_layers=1, attention=GlobalAttentionSettings(num_heads=2)
            ),
        ),
        render=RenderConfig(
            num_samples=12, num_proposals=6, eval_num_samples=16, eval_num_proposals=8,
            mlp_width=16, chunk_rays=64,
        ),
        train=TrainConfig(
            batch_size=2, horizon=2, num_rays=16, num_steps=100, learning_rates=(1e-3,),
            boundaries=(), clip_norm=1.0,
        ),
    )  # fmt: skip
    return apply_overrides(config, changes)


def changed(model: ModelConfig, toml: str) -> ModelConfig:
    """Return settings of a model with lines of TOML laid over its table."""
    tables = {"model": tomllib.loads(toml)}
    return apply_overrides(dataclasses.replace(tiny_config(), model=model), tables).model


class TinyModel(Model):
    """Colours of a window from a linear map of its depth, with noise that the key decides."""

    def __init__(self, config: Config, scene: SceneSpec, *, rngs: nnx.Rngs):
        del scene
        self.map = nnx.Linear(2, 3, rngs=rngs)
        self.horizon = config.train.horizon

    def loss(
        self, batch: Batch, key: jax.Array, *, scored: bool = False, first_window: int = 0
    ) -> jax.Array:
        del scored
        depth_m = batch.frames.depth_m[:, 2:]
        seen = jnp.stack([depth_m.mean((2, 3, 4)), depth_m.std((2, 3, 4))], axis=-1)
        colour = batch.frames.rgb[:, 2:].mean((2, 3, 4)) / 255
        places = first_window + jnp.arange(colour.shape[0])
        keys = jax.vmap(jax.random.fold_in, (None, 0))(key, places)
        noise = 0.1 * jax.vmap(lambda k: jax.random.normal(k, colour.shape[1:]))(keys)
        return jnp.square(self.map(seen) + noise - colour).mean((0, 2))


def look_at(eye: tuple, target: tuple, up: tuple = (0.0, 0.0, 1.0)) -> np.ndarray:
    """Return the camera-to-world pose (OpenCV axes) of a camera at eye that looks at target."""
    forward = np.subtract(target, eye)
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, up)
    right = right / np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(forward, right), forward], axis=1)
    pose[:3, 3] = eye
    return pose


def intrinsics(height: int, width: int, focal: float) -> np.ndarray:
    """Return the pinhole matrix of a centred camera; focal length in image widths."""
    return np.array([[focal * width, 0, width / 2], [0, focal * width, height / 2], [0, 0, 1.0]])


def two_cameras(height: int, width: int, focal: float = 1.0) -> Camera:
    """Return two float32 cameras above a table, axes (v)."""
    poses = [look_at((0.9, 0.5, 0.8), (0, 0, 0)), look_at((-0.8, 0.7, 0.9), (0, 0, 0.05))]
    return Camera(
        intrinsics=np.stack([intrinsics(height, width, focal)] * 2).astype(np.float32),
        camera_to_world=np.stack(poses).astype(np.float32),
    )


def trace(
    camera: Camera, height: int, width: int, center: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ray-trace a chequered table (z = 0, 1 m square) with a red ball of 12 cm radius on it.

    Returns:
      RGB (h w 3) as uint8 and planar depth (h w) [m], 0 where nothing is hit.
    """
    matrix, pose = (np.asarray(x, np.float64) for x in (camera.intrinsics, camera.camera_to_world))
    x, y = np.meshgrid(np.arange(width) + 0.5, np.arange(height) + 0.5)
    local = np.stack([(x - matrix[0, 2]) / matrix[0, 0], (y - matrix[1, 2]) / matrix[1, 1],
                      np.ones_like(x)], axis=-1)  # fmt: skip
    direction, origin = local @ pose[:3, :3].T, pose[:3, 3]
    plane = -origin[2] / direction[..., 2]
    hit = origin + plane[..., None] * direction
    plane = np.where((plane > 0) & (np.abs(hit[..., :2]).max(-1) < 0.5), plane, np.inf)
    a, b = (direction**2).sum(-1), direction @ (origin - center)
    root = b**2 - a * (((origin - center) ** 2).sum() - 0.12**2)
    ball = np.where(root > 0, (-b - np.sqrt(np.maximum(root, 0))) / a, np.inf)
    chequer = (np.floor(hit[..., 0] / 0.25) + np.floor(hit[..., 1] / 0.25)) % 2
    table = np.where(chequer[..., None] > 0, [0.2, 0.3, 0.8], [0.8, 0.8, 0.3])
    rgb = np.where((ball < plane)[..., None], [0.9, 0.1, 0.1], table)
    depth = np.minimum(plane, ball)
    seen = np.isfinite(depth)
    rgb = np.where(seen[..., None], rgb, 0.5)
    return np.round(255 * rgb).astype(np.uint8), np.where(seen, depth, 0.0).astype(np.float32)


def make_batch(
    num_windows: int, num_frames: int, height: int, width: int, *, moving: bool = True
) -> Batch:
    """Return windows of a ball that a five-point robot pushes, axes (b f v).

    Args:
      num_windows: windows.
      num_frames: frames of each, the two observed ones included.
      height: rows [px].
      width: columns [px].
      moving: False stands still.
    """
    cameras = two_cameras(height, width)
    shape = (num_windows, num_frames, 2)
    rgb = np.zeros((*shape, height, width, 3), np.uint8)
    depth = np.zeros((*shape, height, width), np.float32)
    points = np.zeros((num_windows, num_frames, SCENE.num_robot_points, 3), np.float32)
    for b, f in np.ndindex(num_windows, num_frames):
        center = np.array([-0.2 + 0.1 * b + 0.05 * f * moving, 0.1 * b, 0.12])
        arm = np.linspace([0.0, 0.0, 0.5], [-0.15, 0.0, 0.0], SCENE.num_robot_points)
        points[b, f] = center + arm
        for v in range(2):
            camera = jax.tree.map(lambda x, v=v: x[v], cameras)
            rgb[b, f, v], depth[b, f, v] = trace(camera, height, width, center)
    camera = jax.tree.map(lambda x: np.broadcast_to(x, (*shape, *x.shape[1:])).copy(), cameras)
    return Batch(
        frames=RgbdFrames(rgb=rgb, depth_m=depth, camera=camera),
        robot=unturned(points),
        episode=np.arange(num_windows, dtype=np.int32),
        start=np.zeros(num_windows, np.int32),
    )


def random_cloud(
    seed: int, num_particles: int, feature_dim: int, num_real: int | None = None, scale: float = 0.2
) -> ParticleCloud:
    """Return particles normally distributed around the origin [m], padding last."""
    rng = np.random.default_rng(seed)
    mask = np.arange(num_particles) < (num_particles if num_real is None else num_real)
    positions = scale * rng.normal(size=(num_particles, 3)) * mask[:, None]
    features = rng.normal(size=(num_particles, feature_dim)) * mask[:, None]
    return ParticleCloud(
        positions=np.asarray(positions, np.float32),
        features=np.asarray(features, np.float32),
        mask=mask,
    )


def random_robot(
    seed: int, num_times: int, num_points: int = SCENE.num_robot_points
) -> RobotPoints:
    """Return a robot whose points move randomly, axes (f p)."""
    rng = np.random.default_rng(seed)
    turns = Rotation.random(num_times * num_points, random_state=seed).as_matrix()
    return RobotPoints(
        positions=np.asarray(0.2 * rng.normal(size=(num_times, num_points, 3)), np.float32),
        axes=turns.reshape(num_times, num_points, 3, 3).astype(np.float32),
        gripper=np.asarray(rng.uniform(size=(num_times, num_points)), np.float32),
    )


def unturned(positions: npt.ArrayLike, gripper: npt.ArrayLike = 0.0) -> RobotPoints:
    """Return a robot whose links keep the axes of the world."""
    positions = np.asarray(positions, np.float32)
    shape = positions.shape[:-1]
    return RobotPoints(
        positions=positions,
        axes=np.broadcast_to(np.eye(3, dtype=np.float32), (*shape, 3, 3)).copy(),
        gripper=np.broadcast_to(np.float32(gripper), shape).copy(),
    )


def permuted(cloud: ParticleCloud, order: np.ndarray) -> ParticleCloud:
    """Return the cloud with its particles in another order."""
    return jax.tree.map(lambda x: x[order], cloud)


def random_params(build: Callable[[], nnx.Module], seed: int = 0) -> tuple[nnx.GraphDef, dict]:
    """Return a module's definition and random parameters, as after training: no layer is zero.

    Nothing is compiled. Kernels are normal with variance 1 / inputs, norms' scales near 1.
    """
    rng = np.random.default_rng(seed)
    graphdef, state = nnx.split(nnx.eval_shape(build))

    def draw(path: tuple, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        normal = rng.normal(size=leaf.shape)
        if path[-1].key == "kernel":
            value = normal / np.sqrt(np.prod(leaf.shape[:-1]))
        elif path[-1].key == "scale":
            value = 1 + 0.1 * normal
        else:
            value = 0.3 * normal
        return jnp.asarray(value, jnp.float32)

    return graphdef, jax.tree_util.tree_map_with_path(draw, nnx.to_pure_dict(state))


def apply(graphdef: nnx.GraphDef, params: dict) -> Any:
    """Return the module with these parameters."""
    return nnx.merge(graphdef, nnx.State(params))


def list_graph(neighbors: np.ndarray, kernels: Kernels = "auto") -> SparseRows:
    """Return the graph of neighbour lists of one length, with weights 1/k."""
    tokens, k = neighbors.shape
    weights, degrees = np.full((tokens, k), 1 / k, np.float32), np.full(tokens, k, np.int32)
    return SparseRows(neighbors, weights, degrees, kernels)


def with_last_layer(params: dict, layer: dict | None = None) -> dict:
    """Return a dynamics model's parameters with another last layer; zeros as at initialisation."""
    read_out = params["read_out"]
    layer = jax.tree.map(jnp.zeros_like, read_out["mlp"]["out"]) if layer is None else layer
    return {**params, "read_out": {**read_out, "mlp": {**read_out["mlp"], "out": layer}}}
