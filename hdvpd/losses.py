"""The training loss (HD-VPD, arXiv 2406.19800)."""

import jax.numpy as jnp

from hdvpd.array_typing import Array, Float


def ray_l2(
    predicted: Float[Array, "b s r 3"], target: Float[Array, "b s r 3"]
) -> Float[Array, "s"]:
    """Return the squared colour error per predicted step, averaged over batch, rays and RGB."""
    return jnp.mean((predicted - target) ** 2, axis=(0, 2, 3))
