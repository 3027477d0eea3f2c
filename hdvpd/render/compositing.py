"""Volume compositing on a white background (NeRF, arXiv 2003.08934, eq. 3)."""

import jax.numpy as jnp

from hdvpd.basics.types import Array, Float, Rendering


def compositing_weights(
    density: Float[Array, "*batch s"], tdist: Float[Array, "*batch s"], far: float
) -> tuple[Float[Array, "*batch s"], Float[Array, "*batch"]]:
    """Return the share of light each sample and the background send along a ray.

    Args:
      density: per metre, at least 0.
      tdist: sorted ray distances of the samples [m].
      far: end of the ray [m].

    Returns:
      weights_m = exp(-sum_{l<m} sigma_l delta_l) (1 - exp(-sigma_m delta_m)) with
      delta_m = t_{m+1} - t_m and delta_M = far - t_M; and the background's share. They sum to 1.
      The product of transmittances is taken in the exponent, where it cannot lose digits.
    """
    ends = jnp.concatenate([tdist[..., 1:], jnp.full_like(tdist[..., :1], far)], axis=-1)
    optical_depth = density * (ends - tdist)
    through = jnp.cumsum(optical_depth, axis=-1)
    before = jnp.concatenate([jnp.zeros_like(through[..., :1]), through[..., :-1]], axis=-1)
    weights = jnp.exp(-before) * -jnp.expm1(-optical_depth)
    return weights, jnp.exp(-through[..., -1])


def composite(
    rgb: Float[Array, "*batch s 3"],
    density: Float[Array, "*batch s"],
    tdist: Float[Array, "*batch s"],
    z_scale: Float[Array, "*batch"],
    far: float,
    stops: Float[Array, "*batch s"] | None = None,
) -> Rendering:
    """Blend samples front to back over white.

    Args:
      rgb: colours in [0, 1].
      density: per metre.
      tdist: sorted ray distances [m].
      z_scale: planar depth per ray distance.
      far: end of the ray, where the background lies [m].
      stops: where a sample's light comes from [m], if not from its distance.

    Returns:
      Colour, planar depth and accumulated opacity of each ray.
    """
    weights, background = compositing_weights(density, tdist, far)
    distance = jnp.sum(weights * (tdist if stops is None else stops), axis=-1) + background * far
    return Rendering(
        rgb=jnp.sum(weights[..., None] * rgb, axis=-2) + background[..., None],
        depth_m=distance * z_scale,
        acc=1.0 - background,
    )
