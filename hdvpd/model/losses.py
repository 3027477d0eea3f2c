"""What images lack of the truth, along rays."""

import jax.numpy as jnp

from hdvpd.basics.types import Array, Float

# Of the structural similarity, (K L)^2 with a range L of 1.
_LEVEL_FLOOR, _STRUCTURE_FLOOR = 0.01**2, 0.03**2


def ray_l2(
    predicted: Float[Array, "b s r 3"], target: Float[Array, "b s r 3"]
) -> Float[Array, "s"]:
    """Return the squared colour error per predicted step, averaged over batch, rays and RGB."""
    return jnp.mean((predicted - target) ** 2, axis=(0, 2, 3))


def ray_depth_l1(
    predicted_m: Float[Array, "b s r"], target_m: Float[Array, "b s r"]
) -> Float[Array, "s"]:
    """Return the absolute error of planar depth [m] per image, averaged over batch and rays.

    Rays without a target, which is 0 then, count as right.
    """
    return jnp.mean(jnp.where(target_m > 0, jnp.abs(predicted_m - target_m), 0.0), axis=(0, 2))


def patch_structure(
    predicted: Float[Array, "b s p 3"], target: Float[Array, "b s p 3"], patch_size: int
) -> Float[Array, "s"]:
    """Return 1 - SSIM of squares of pixels, averaged over batch, squares and RGB.

    The structural similarity of Wang et al. (2004, Eq. 13) for colours in [0, 1], with each square
    as one window of uniform weights.

    Args:
      predicted: colours of squares' pixels, those of a square one after another.
      target: what they should be.
      patch_size: side of the squares [px].
    """

    def squares(x: Array) -> Array:
        return jnp.asarray(x).reshape(*x.shape[:2], -1, patch_size**2, 3)

    x, y = squares(predicted), squares(target)
    mean_x, mean_y = x.mean(3, keepdims=True), y.mean(3, keepdims=True)
    apart = 2 * jnp.mean((x - mean_x) * (y - mean_y), axis=3) + _STRUCTURE_FLOOR
    spread = jnp.mean((x - mean_x) ** 2 + (y - mean_y) ** 2, axis=3) + _STRUCTURE_FLOOR
    mean_x, mean_y = mean_x[:, :, :, 0], mean_y[:, :, :, 0]
    level = (2 * mean_x * mean_y + _LEVEL_FLOOR) / (mean_x**2 + mean_y**2 + _LEVEL_FLOOR)
    return jnp.mean(1 - level * apart / spread, axis=(0, 2, 3))
