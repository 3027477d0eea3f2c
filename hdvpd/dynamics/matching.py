"""How far predicted particles are from the surfaces that were measured at the same time.

A loss beyond the papers (`train.match_weight`), whose only loss is of pixels: a few hundred rays
see an object that moves in a handful of pixels, while every particle has a measured counterpart.
"""

import jax
import jax.numpy as jnp

from hdvpd.basics.geometry import EXACT
from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray

_COLOR_M = 0.2
"""Distance that a difference of 1 in a colour counts as, when counterparts are chosen [m]."""
_NEAR_M = 0.02
"""Below it distances count squared: measured points are about as far apart."""
_BLOCK = 128
"""Points that are compared with all others at once."""


def match_distance(
    predicted_m: Float[Array, "n 3"],
    predicted_colors: Float[Array, "n 3"],
    predicted_mask: Bool[Array, "n"],
    measured_m: Float[Array, "m 3"],
    measured_colors: Float[Array, "m 3"],
    measured_mask: Bool[Array, "m"],
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
    """
    predicted = jnp.concatenate([predicted_m, _COLOR_M * predicted_colors], axis=-1)
    measured = jnp.concatenate([measured_m, _COLOR_M * measured_colors], axis=-1)
    masks = jnp.asarray(predicted_mask), jnp.asarray(measured_mask)
    theirs, ours = _counterparts(*jax.lax.stop_gradient((predicted, measured)), *masks)
    some = masks[0].any() & masks[1].any()
    return _mean_distance(predicted_m, measured_m, theirs, masks[0] & some) + _mean_distance(
        measured_m, predicted_m, ours, masks[1] & some
    )


def _counterparts(
    first: Float[JaxArray, "n d"],
    second: Float[JaxArray, "m d"],
    first_mask: Bool[JaxArray, "n"],
    second_mask: Bool[JaxArray, "m"],
) -> tuple[Int[JaxArray, "n"], Int[JaxArray, "m"]]:
    """Return for every point the row of the other cloud's nearest one, any where there is none.

    Some points of the first cloud at a time: what is held is less than n x m distances, and stays
    in a processor's cache.
    """
    (count, _), other_count = first.shape, second.shape[0]
    center = jnp.mean(second, axis=0, keepdims=True)
    first, second = first - center, second - center
    squares = [
        jnp.where(mask, jnp.sum(x**2, axis=1), jnp.inf)
        for x, mask in ((first, first_mask), (second, second_mask))
    ]

    def compare(
        nearest: tuple[Float[JaxArray, "m"], Int[JaxArray, "m"]],
        some: tuple[Float[JaxArray, "b d"], Float[JaxArray, "b"], Int[JaxArray, ""]],
    ) -> tuple[tuple[Float[JaxArray, "m"], Int[JaxArray, "m"]], Int[JaxArray, "b"]]:
        points, square, start = some
        squared = square[:, None] + squares[1][None]
        squared -= 2 * jnp.matmul(points, second.T, precision=EXACT)
        (least, row), (_, its) = (_first_least(squared, axis) for axis in (0, 1))
        nearer = least < nearest[0]
        return (
            jnp.where(nearer, least, nearest[0]),
            jnp.where(nearer, start + row, nearest[1]),
        ), its

    blocks = -(-count // _BLOCK)
    missing = blocks * _BLOCK - count
    rows = jnp.pad(first, ((0, missing), (0, 0))).reshape(blocks, _BLOCK, -1)
    square = jnp.pad(squares[0], (0, missing), constant_values=jnp.inf).reshape(blocks, _BLOCK)
    start = jnp.full(other_count, jnp.inf), jnp.zeros(other_count, jnp.int32)
    (_, ours), theirs = jax.lax.scan(
        compare, start, (rows, square, _BLOCK * jnp.arange(blocks, dtype=jnp.int32))
    )
    return theirs.reshape(-1)[:count], ours


def _first_least(
    values: Float[JaxArray, "n m"], axis: int
) -> tuple[Float[JaxArray, "k"], Int[JaxArray, "k"]]:
    """Return the least values and their first places, by two plain reductions.

    XLA's code for CPUs does not vectorise `jnp.argmin`.
    """
    least = jnp.min(values, axis=axis)
    place = jax.lax.broadcasted_iota(jnp.int32, values.shape, axis)
    places = jnp.where(values == jnp.expand_dims(least, axis), place, values.shape[axis])
    return least, jnp.min(places, axis=axis)


def _mean_distance(
    points_m: Float[Array, "n 3"],
    others_m: Float[Array, "m 3"],
    chosen: Int[Array, "n"],
    mask: Bool[Array, "n"],
) -> Float[Array, ""]:
    apart = jnp.sum((points_m - jnp.asarray(others_m)[chosen]) ** 2, axis=-1)
    distance = jnp.sqrt(apart + _NEAR_M**2) - _NEAR_M
    return jnp.sum(jnp.where(mask, distance, 0.0)) / jnp.maximum(mask.sum(), 1)
