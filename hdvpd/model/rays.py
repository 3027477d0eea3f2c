"""Which rays of the predicted images a training step looks along, and how rays make pixels."""

import jax
import jax.numpy as jnp

from hdvpd.basics.geometry import EXACT, rays_through
from hdvpd.basics.types import (
    Array,
    Bool,
    Float,
    Int,
    JaxArray,
    Key,
    PRNGKey,
    Rays,
    Rendering,
    RgbdFrames,
)

# A pixel counts as moving if a channel changed by more than this since the last observed frame.
_MOVING_THRESHOLD = 0.1
# Numbers whose running sums are one product.
_ROW = 32


def sample_rays(
    frames: RgbdFrames,
    target: Float[Array, "b s v h w c"],
    last_observed: Float[Array, "b 1 v h w 3"],
    num_rays: int,
    moving_ray_weight: float,
    keys: Key[JaxArray, "b"],
    near: Bool[Array, "b s v h w"] | None = None,
    patch_size: int = 1,
    supersample: int = 1,
) -> tuple[Rays, Float[Array, "b s p c"]]:
    """Draw pixels over all views, independently per window and step.

    Args:
      frames: axes (b s v); only cameras are read.
      target: whitened colours of the same frames, and whatever else rays should see.
      last_observed: whitened colours of the last observed frame.
      num_rays: pixels per window and step, p; a multiple of patch_size squared.
      moving_ray_weight: how much likelier a moving pixel is drawn than another (1: uniform).
      keys: each draws the pixels of a window.
      near: pixels that are drawn as often as moving ones.
      patch_size: side of the squares in which pixels are drawn [px]; each lies inside its image,
        and is drawn for the pixel in its middle.
      supersample: rays per pixel and axis of the image.

    Returns:
      Rays with axes (b s r), those of a pixel one after another (`pixels_of`), and what the pixels
      should be; those of a square one after another, row by row.
    """
    if moving_ray_weight == 1:  # without sums over all pixels, which XLA would fold for seconds
        weights = None
    else:
        # Channel by channel: of an axis of three, XLA makes no vector code.
        changes = [jnp.abs(target[..., k] - last_observed[..., k]) for k in range(3)]
        moving = jnp.maximum(jnp.maximum(*changes[:2]), changes[2]) > _MOVING_THRESHOLD
        moving = moving if near is None else moving | near
        weights = jnp.where(moving, moving_ray_weight, 1.0)
    *batch, _, height, width, _ = target.shape
    view, row, column = _draw_squares(target.shape[:-1], weights, num_rays, patch_size, keys)

    def take_view(x: Array) -> Array:
        index = view.reshape(*view.shape, *((1,) * (x.ndim - view.ndim)))
        return jnp.take_along_axis(jnp.asarray(x), index, axis=2)

    cameras = jax.tree.map(take_view, frames.camera)
    # One camera per pixel: rays_through expects the axis of its rays inside the camera's.
    rays = rays_through(places_in(row, column, supersample), cameras)
    rays = jax.tree.map(lambda x: x.reshape(*batch, -1, *x.shape[len(batch) + 2 :]), rays)
    flat = target.reshape(*batch, -1, target.shape[-1])
    pixel = (view * height + row) * width + column
    return rays, jnp.take_along_axis(flat, pixel[..., None], axis=2)


def _draw_squares(
    shape: tuple[int, ...],
    weights: Float[Array, "b s v h w"] | None,
    num_pixels: int,
    patch_size: int,
    keys: Key[JaxArray, "b"],
) -> tuple[Int[JaxArray, "b s p"], Int[JaxArray, "b s p"], Int[JaxArray, "b s p"]]:
    """Return view, row and column of the pixels of drawn squares.

    Args:
      shape: of all pixels, (b s v h w).
      weights: how likely a square is drawn with each pixel in its middle; None for all alike.
      num_pixels: per window and step.
      patch_size: side of the squares [px].
      keys: each draws for a window.
    """
    _, steps, views, height, width = shape
    # Squares by their first pixel.
    rows, columns = height - patch_size + 1, width - patch_size + 1
    count = num_pixels // patch_size**2
    if weights is None:
        limit = views * rows * columns
        draw = jax.vmap(lambda key: jax.random.randint(key, (steps, count), 0, limit))
        drawn = draw(keys)
    else:
        middle = patch_size // 2
        inner = weights[..., middle : middle + rows, middle : middle + columns]
        draw = jax.vmap(lambda w, key: _draw(w, count, key))
        drawn = draw(inner.reshape(*shape[:2], -1), keys)
    view, first = drawn // (rows * columns), drawn % (rows * columns)
    along = jnp.arange(patch_size**2)
    view = jnp.repeat(view, along.size, axis=-1)
    row = jnp.add.outer(first // columns, along // patch_size).reshape(view.shape)
    column = jnp.add.outer(first % columns, along % patch_size).reshape(view.shape)
    return view, row, column


def places_in(
    row: Int[Array, "*batch"], column: Int[Array, "*batch"], supersample: int
) -> Float[JaxArray, "*batch q 2"]:
    """Return the places of pixels' rays (x, y) [px]: a grid of so many by so many in each."""
    along = (jnp.arange(supersample) + 0.5) / supersample
    x = jnp.add.outer(column, jnp.tile(along, supersample))
    return jnp.stack([x, jnp.add.outer(row, jnp.repeat(along, supersample))], axis=-1)


def pixels_of(seen: Rendering, supersample: int) -> Rendering:
    """Return what pixels are, from what their rays see.

    Args:
      seen: axes (*batch r), the rays of a pixel one after another.
      supersample: rays per pixel and axis of the image.

    Returns:
      Mean colour and opacity, as a camera's, and the depth of the ray in the middle, for surfaces
      are not blended; axes (*batch r / supersample^2).
    """
    if supersample == 1:
        return seen
    batch = seen.depth_m.shape[:-1]
    rgb, depth_m, acc = (
        x.reshape(*batch, -1, supersample**2, *x.shape[len(batch) + 1 :])
        for x in (seen.rgb, seen.depth_m, seen.acc)
    )
    middle = (supersample**2 - 1) // 2
    return Rendering(
        rgb=rgb.mean(axis=len(batch) + 1),
        depth_m=jnp.sort(depth_m, axis=-1)[..., middle],
        acc=acc.mean(axis=-1),
    )


def _draw(weights: Float[Array, "s a"], count: int, key: PRNGKey) -> Int[Array, "s r"]:
    """Draw indices with replacement, with probabilities proportional to weights."""
    cdf = _running_sums(weights)
    uniform = jax.random.uniform(key, (*weights.shape[:-1], count)) * cdf[..., -1:]
    find = jax.vmap(lambda c, u: jnp.searchsorted(c, u, side="right"))
    # Rounding may put the largest draw at the end of the distribution.
    return jnp.minimum(find(cdf, uniform), weights.shape[-1] - 1).astype(jnp.int32)


def _running_sums(x: Float[Array, "s a"]) -> Float[JaxArray, "s a"]:
    """Return `jnp.cumsum` along the second axis, which XLA computes in windows that overlap."""
    steps, count = x.shape
    rows = jnp.pad(x, ((0, 0), (0, -count % _ROW))).reshape(steps, -1, _ROW)
    inside = jnp.matmul(rows, jnp.triu(jnp.ones((_ROW, _ROW))), precision=EXACT)
    ends = inside[..., -1]
    sums = inside + (jnp.cumsum(ends, axis=1) - ends)[..., None]
    return sums.reshape(steps, -1)[:, :count]
