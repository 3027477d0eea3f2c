"""Full images of clouds."""

import jax
import jax.numpy as jnp

from hdvpd.basics.geometry import rays_through
from hdvpd.basics.types import Array, Camera, Float, Int, ParticleCloud, Rendering
from hdvpd.model import Model
from hdvpd.model.rays import pixels_of, places_in


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
    num_pixels, supersample = height * width, model.config.render.supersample
    chunk = min(max(model.config.render.chunk_rays // supersample**2, 1), num_pixels)
    num_chunks = -(-num_pixels // chunk)
    clouds, camera = jax.tree.map(jnp.asarray, (clouds, camera))
    index = model.index(clouds)

    def render_chunk(number: Int[Array, ""]) -> Rendering:
        image, part = number // num_chunks, number % num_chunks
        # The last chunk is filled up with the last pixel.
        pixel = jnp.minimum(part * chunk + jnp.arange(chunk), num_pixels - 1)
        places = places_in(pixel // width, pixel % width, supersample).reshape(-1, 2)
        cloud, its_index = jax.tree.map(lambda x: x[image // views], (clouds, index))
        seen_from = jax.tree.map(lambda x: x[image // views, image % views], camera)
        seen = model.render(cloud, rays_through(places, seen_from), key=None, index=its_index)
        return pixels_of(seen, supersample)

    rendering = jax.lax.map(render_chunk, jnp.arange(groups * views * num_chunks))

    def images(x: Float[Array, "a p *c"]) -> Float[Array, "g v h w *c"]:
        pixels = x.reshape(groups, views, num_chunks * chunk, *x.shape[2:])[:, :, :num_pixels]
        return pixels.reshape(groups, views, height, width, *x.shape[2:])

    return jax.tree.map(images, rendering)


def render_image(
    model: Model, cloud: ParticleCloud, camera: Camera, height: int, width: int
) -> Rendering:
    """Render one image, axes (h w); see `render_images`."""
    clouds, cameras = jax.tree.map(lambda x: x[None], (cloud, camera))
    cameras = jax.tree.map(lambda x: x[None], cameras)
    return jax.tree.map(lambda x: x[0, 0], render_images(model, clouds, cameras, height, width))
