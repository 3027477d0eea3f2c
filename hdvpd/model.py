"""HD-VPD: encoder, dynamics and renderer together; the only module that knows all three."""

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.config import Config, SceneSpec
from hdvpd.dynamics.base import AbstractDynamics
from hdvpd.dynamics.rollout import rollout
from hdvpd.encoders.particles import subsample, visible_points, white_targets
from hdvpd.encoders.unet import UNet
from hdvpd.geometry import rays_through
from hdvpd.render.renderer import Renderer
from hdvpd.types import (
    Array,
    Batch,
    Camera,
    Float,
    Int,
    JaxArray,
    Key,
    ParticleCloud,
    PRNGKey,
    Rays,
    Rendering,
    RgbdFrames,
    RobotPoints,
)


class Model(nnx.Module):
    """The world model: encode two frames, predict along the robot's plan, render what is seen."""

    def __init__(self, config: Config, scene: SceneSpec, *, rngs: nnx.Rngs):
        model = config.model
        self.unet = UNet(model.unet_channels, model.feature_dim, rngs=rngs)
        self.dynamics: AbstractDynamics = model.dynamics.make(model, scene, rngs=rngs)
        self.renderer = Renderer(
            config.render,
            model.feature_dim,
            knn_backend=model.knn,
            kernels=model.kernels,
            rngs=rngs,
        )
        self.config = config
        self.scene = scene

    @property
    def _visible(self) -> tuple:
        return (self.scene.workspace_min, self.scene.workspace_max, self.config.render.far)

    def encode(self, frames: RgbdFrames, key: PRNGKey) -> ParticleCloud:
        """Turn the views of one time step into particles (docs/equations.md, Encoder).

        Args:
          frames: axes (v): all cameras at one time.
          key: draws the subsample.
        """
        with jax.named_scope("encode"):
            features = self.unet(jnp.asarray(frames.rgb, jnp.float32) / 127.5 - 1.0)
            points, valid = visible_points(frames.depth_m, frames.camera, *self._visible)
            return subsample(
                points.reshape(-1, 3),
                features.reshape(-1, features.shape[-1]),
                valid.reshape(-1),
                self.config.model.num_particles,
                key,
            )

    def rollout(
        self, previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints, key: PRNGKey
    ) -> ParticleCloud:
        """Predict the clouds of every planned step (docs/equations.md, Dynamics).

        Args:
          previous: observed particles at step -2.
          current: observed particles at step -1.
          robot: axes (2 + s): measured points of steps -2 and -1, planned ones after.
          key: draws what the dynamics draws.

        Returns:
          Clouds of steps 0..s-1, axes (s).
        """
        with jax.named_scope("rollout"):
            return rollout(
                self.dynamics, previous, current, robot, key, remat=self.config.train.remat
            )

    def render(self, cloud: ParticleCloud, rays: Rays, key: PRNGKey | None) -> Rendering:
        """Render rays, axes (r), of one cloud; no key means deterministic evaluation samples."""
        with jax.named_scope("render"):
            clouds, groups = jax.tree.map(lambda x: x[None], (cloud, rays))
            keys = None if key is None else key[None]
            return jax.tree.map(lambda x: x[0], self.renderer(clouds, groups, keys))

    def white_targets(self, frames: RgbdFrames) -> Float[Array, "*batch h w 3"]:
        """Return the frames' colours in [0, 1], white wherever nothing can be rendered."""
        rgb = jnp.asarray(frames.rgb, jnp.float32) / 255.0
        return white_targets(rgb, frames.depth_m, frames.camera, *self._visible)

    def loss(
        self,
        batch: Batch,
        key: PRNGKey,
        *,
        moving_ray_weight: float | None = None,
        first_window: int | Int[Array, ""] = 0,
    ) -> Float[Array, "s"]:
        """Return the ray loss of every predicted step of a batch (docs/equations.md, Training).

        Args:
          batch: windows.
          key: draws particles, rays and samples along them.
          moving_ray_weight: as in `TrainConfig`; None takes that of the training.
          first_window: place of the first window in a larger batch of which this is a part. What a
            window draws is a function of the key and its place, so that a batch may be computed in
            parts, on one device or several, with the same draws.
        """
        size = batch.start.shape[0]
        places = first_window + jnp.arange(size)
        encode_keys, ray_keys, sample_keys, rollout_keys = (
            jax.vmap(jax.random.fold_in, (None, 0))(kind, places)
            for kind in jax.random.split(key, 4)
        )

        def predict(
            frames: RgbdFrames, robot: RobotPoints, encode_key: PRNGKey, rollout_key: PRNGKey
        ) -> ParticleCloud:
            observed = jax.tree.map(lambda x: x[:2], frames)
            clouds = jax.vmap(self.encode)(observed, jax.random.split(encode_key))
            previous, current = (jax.tree.map(lambda x, i=i: x[i], clouds) for i in range(2))
            return self.rollout(previous, current, robot, rollout_key)

        clouds = jax.vmap(predict)(batch.frames, batch.robot, encode_keys, rollout_keys)
        future = jax.tree.map(lambda x: x[:, 2:], batch.frames)
        last_observed = jax.tree.map(lambda x: x[:, 1:2], batch.frames)
        train = self.config.train
        rays, target = sample_rays(
            future,
            self.white_targets(future),
            self.white_targets(last_observed),
            train.num_rays,
            train.moving_ray_weight if moving_ray_weight is None else moving_ray_weight,
            ray_keys,
        )
        steps = target.shape[1]
        with jax.named_scope("render"):
            clouds, rays = jax.tree.map(
                lambda x: x.reshape(size * steps, *x.shape[2:]), (clouds, rays)
            )
            keys = jax.vmap(lambda window: jax.random.split(window, steps))(sample_keys)
            rendering = self.renderer(clouds, rays, keys.reshape(-1))
        return ray_l2(rendering.rgb.reshape(target.shape), target)


# A pixel counts as moving if a channel changed by more than this since the last observed frame.
_MOVING_THRESHOLD = 0.1


def sample_rays(
    frames: RgbdFrames,
    target: Float[Array, "b s v h w 3"],
    last_observed: Float[Array, "b 1 v h w 3"],
    num_rays: int,
    moving_ray_weight: float,
    keys: Key[JaxArray, "b"],
) -> tuple[Rays, Float[Array, "b s r 3"]]:
    """Draw pixels over all views, independently per window and step.

    Args:
      frames: predicted frames, axes (b s v); only cameras are read.
      target: whitened colours of the predicted frames.
      last_observed: whitened colours of the last observed frame.
      num_rays: per window and step.
      moving_ray_weight: how much likelier a moving pixel is drawn than another (1: uniform).
      keys: each draws the pixels of a window.

    Returns:
      Rays with axes (b s r) and the colours they should see.
    """
    *batch, _views, height, width, _ = target.shape
    moving = (jnp.abs(target - last_observed) > _MOVING_THRESHOLD).any(-1)
    weights = jnp.where(moving.reshape(*batch, -1), moving_ray_weight, 1.0)
    drawn = jax.vmap(lambda w, key: _draw(w, num_rays, key))(weights, keys)
    view, pixel = drawn // (height * width), drawn % (height * width)
    centers = jnp.stack([pixel % width, pixel // width], axis=-1) + 0.5

    def take_view(x: Array) -> Array:
        index = view.reshape(*view.shape, *((1,) * (x.ndim - view.ndim)))
        return jnp.take_along_axis(jnp.asarray(x), index, axis=2)

    cameras = jax.tree.map(take_view, frames.camera)
    # One camera per ray: rays_through expects the ray axis inside the camera axes.
    rays = rays_through(centers[..., None, :], cameras)
    rays = Rays(
        origins=rays.origins[..., 0, :],
        directions=rays.directions[..., 0, :],
        z_scale=rays.z_scale[..., 0],
    )
    flat = target.reshape(*batch, -1, 3)
    return rays, jnp.take_along_axis(flat, drawn[..., None], axis=2)


def _draw(weights: Float[Array, "s a"], count: int, key: PRNGKey) -> Int[Array, "s r"]:
    """Draw indices with replacement, with probabilities proportional to weights."""
    cdf = jnp.cumsum(weights, axis=-1)
    uniform = jax.random.uniform(key, (*weights.shape[:-1], count)) * cdf[..., -1:]
    find = jax.vmap(lambda c, u: jnp.searchsorted(c, u, side="right"))
    # Rounding may put the largest draw at the end of the distribution.
    return jnp.minimum(find(cdf, uniform), weights.shape[-1] - 1).astype(jnp.int32)


def render_images(
    model: Model, clouds: ParticleCloud, camera: Camera, height: int, width: int
) -> Rendering:
    """Render full images in chunks of rays; memory does not depend on their number or size.

    Args:
      model: the world model.
      clouds: particles, axes (g).
      camera: the cameras that look at each, axes (g v).
      height: rows [px].
      width: columns [px].

    Returns:
      Colour, planar depth and opacity, axes (g v h w).
    """
    groups, views = camera.intrinsics.shape[:2]
    num_rays = height * width
    chunk = min(model.config.render.chunk_rays, num_rays)
    num_chunks = -(-num_rays // chunk)
    clouds, camera = jax.tree.map(jnp.asarray, (clouds, camera))

    def render_chunk(number: Int[Array, ""]) -> Rendering:
        image, part = number // num_chunks, number % num_chunks
        # The last chunk is filled up with the last pixel.
        pixel = jnp.minimum(part * chunk + jnp.arange(chunk), num_rays - 1)
        centers = jnp.stack([pixel % width, pixel // width], axis=-1) + 0.5
        cloud = jax.tree.map(lambda x: x[image // views], clouds)
        seen_from = jax.tree.map(lambda x: x[image // views, image % views], camera)
        return model.render(cloud, rays_through(centers, seen_from), key=None)

    rendering = jax.lax.map(render_chunk, jnp.arange(groups * views * num_chunks))

    def images(x: Float[Array, "a r *c"]) -> Float[Array, "g v h w *c"]:
        rays = x.reshape(groups, views, num_chunks * chunk, *x.shape[2:])[:, :, :num_rays]
        return rays.reshape(groups, views, height, width, *x.shape[2:])

    return jax.tree.map(images, rendering)


def render_image(
    model: Model, cloud: ParticleCloud, camera: Camera, height: int, width: int
) -> Rendering:
    """Render one image, axes (h w); see `render_images`."""
    clouds, cameras = jax.tree.map(lambda x: x[None], (cloud, camera))
    cameras = jax.tree.map(lambda x: x[None], cameras)
    return jax.tree.map(lambda x: x[0, 0], render_images(model, clouds, cameras, height, width))


def ray_l2(
    predicted: Float[Array, "b s r 3"], target: Float[Array, "b s r 3"]
) -> Float[Array, "s"]:
    """Return the squared colour error per predicted step, averaged over batch, rays and RGB."""
    return jnp.mean((predicted - target) ** 2, axis=(0, 2, 3))
