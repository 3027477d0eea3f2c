"""How far predicted particles are from the surfaces that were measured at the same time.

A loss beyond the papers (`train.match_weight`), whose only loss is of pixels: a few hundred rays
see an object that moves in a handful of pixels, while every particle has a measured counterpart.
"""

import jax.numpy as jnp

from hdvpd.basics.types import Array, Bool, Float, Int
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.counterparts import counterparts

_COLOR_M = 0.2
"""Distance that a difference of 1 in a colour counts as, when counterparts are chosen [m]."""
_NEAR_M = 0.02
"""Below it distances count squared: measured points are about as far apart."""


def match_distance(
    predicted_m: Float[Array, "n 3"],
    predicted_colors: Float[Array, "n 3"],
    predicted_mask: Bool[Array, "n"],
    measured_m: Float[Array, "m 3"],
    measured_colors: Float[Array, "m 3"],
    measured_mask: Bool[Array, "m"],
    kernels: Kernels = "auto",
) -> Float[Array, ""]:
    """Return the mean distance between two coloured clouds, each point to its counterpart [m].

    The counterpart is the other cloud's nearest point by place and colour together, so that a
    block that was pushed is sought at its new place and not on the table below it. Counted is the
    distance in space alone, r as sqrt(r^2 + (2 cm)^2) - 2 cm, both ways, as in a Chamfer distance.
    The choice carries no gradient.

    Args:
      predicted_m: particles [m].
      predicted_colors: theirs, in [0, 1].
      predicted_mask: which are real.
      measured_m: points of depth images [m].
      measured_colors: theirs, in [0, 1].
      measured_mask: which are real.
      kernels: form in which counterparts are found.
    """
    predicted = jnp.concatenate([predicted_m, _COLOR_M * predicted_colors], axis=-1)
    measured = jnp.concatenate([measured_m, _COLOR_M * measured_colors], axis=-1)
    masks = jnp.asarray(predicted_mask), jnp.asarray(measured_mask)
    theirs, ours = counterparts(predicted, measured, *masks, kernels)
    some = masks[0].any() & masks[1].any()
    return _mean_distance(predicted_m, measured_m, theirs, masks[0] & some) + _mean_distance(
        measured_m, predicted_m, ours, masks[1] & some
    )


def _mean_distance(
    points_m: Float[Array, "n 3"],
    others_m: Float[Array, "m 3"],
    chosen: Int[Array, "n"],
    mask: Bool[Array, "n"],
) -> Float[Array, ""]:
    apart = jnp.sum((points_m - jnp.asarray(others_m)[chosen]) ** 2, axis=-1)
    distance = jnp.sqrt(apart + _NEAR_M**2) - _NEAR_M
    return jnp.sum(jnp.where(mask, distance, 0.0)) / jnp.maximum(mask.sum(), 1)
