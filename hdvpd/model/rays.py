"""Which rays of the predicted images a training step looks along."""

import jax
import jax.numpy as jnp

from hdvpd.basics.geometry import rays_through
from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, Key, PRNGKey, Rays, RgbdFrames

# A pixel counts as moving if a channel changed by more than this since the last observed frame.
_MOVING_THRESHOLD = 0.1


def sample_rays(
    frames: RgbdFrames,
    target: Float[Array, "b s v h w c"],
    last_observed: Float[Array, "b 1 v h w 3"],
    num_rays: int,
    moving_ray_weight: float,
    keys: Key[JaxArray, "b"],
    near: Bool[Array, "b s v h w"] | None = None,
) -> tuple[Rays, Float[Array, "b s r c"]]:
    """Draw pixels over all views, independently per window and step.

    Args:
      frames: axes (b s v); only cameras are read.
      target: whitened colours of the same frames, and whatever else rays should see.
      last_observed: whitened colours of the last observed frame.
      num_rays: per window and step.
      moving_ray_weight: how much likelier a moving pixel is drawn than another (1: uniform).
      keys: each draws the pixels of a window.
      near: pixels that are drawn as often as moving ones.

    Returns:
      Rays with axes (b s r) and what they should see.
    """
    *batch, views, height, width, _ = target.shape
    if moving_ray_weight == 1:  # without sums over all pixels, which XLA would fold for seconds
        shape, pixels = (*batch[1:], num_rays), views * height * width
        drawn = jax.vmap(lambda key: jax.random.randint(key, shape, 0, pixels))(keys)
    else:
        moving = (jnp.abs(target[..., :3] - last_observed) > _MOVING_THRESHOLD).any(-1)
        if near is not None:
            moving |= near
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
    flat = target.reshape(*batch, -1, target.shape[-1])
    return rays, jnp.take_along_axis(flat, drawn[..., None], axis=2)


def _draw(weights: Float[Array, "s a"], count: int, key: PRNGKey) -> Int[Array, "s r"]:
    """Draw indices with replacement, with probabilities proportional to weights."""
    cdf = jnp.cumsum(weights, axis=-1)
    uniform = jax.random.uniform(key, (*weights.shape[:-1], count)) * cdf[..., -1:]
    find = jax.vmap(lambda c, u: jnp.searchsorted(c, u, side="right"))
    # Rounding may put the largest draw at the end of the distribution.
    return jnp.minimum(find(cdf, uniform), weights.shape[-1] - 1).astype(jnp.int32)
