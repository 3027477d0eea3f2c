"""The nearest points of two clouds to each other, without gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.geometry import EXACT
from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray
from hdvpd.kernels import counterparts_host
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.host import host_call

_BLOCK = 128
"""Points that are compared with all others at once."""


def counterparts(
    first: Float[Array, "n 6"],
    second: Float[Array, "m 6"],
    first_mask: Bool[Array, "n"],
    second_mask: Bool[Array, "m"],
    kernels: Kernels = "auto",
) -> tuple[Int[JaxArray, "n"], Int[JaxArray, "m"]]:
    """Return for every real point the row of the other cloud's nearest real one.

    Of points that are as near, the lesser row is nearer; plain JAX, whose squared distances are
    differences of larger numbers, takes for as near what differs by their rounding. Where there is
    none, the row is 0, as it is for points that are not real.

    Args:
      first: a cloud.
      second: the other cloud.
      first_mask: which of its points are real.
      second_mask: the same of the other cloud.
      kernels: form in which this is computed.
    """
    clouds = jax.lax.stop_gradient((jnp.asarray(first), jnp.asarray(second)))
    masks = jnp.asarray(first_mask), jnp.asarray(second_mask)
    if not use_host_kernels(kernels):
        return _compare_all(*clouds, *masks)
    rows = [jax.ShapeDtypeStruct(mask.shape, np.int32) for mask in masks]
    theirs, ours = host_call(counterparts_host.find, rows, *clouds, *masks)
    return theirs, ours


def _compare_all(
    first: Float[JaxArray, "n d"],
    second: Float[JaxArray, "m d"],
    first_mask: Bool[JaxArray, "n"],
    second_mask: Bool[JaxArray, "m"],
) -> tuple[Int[JaxArray, "n"], Int[JaxArray, "m"]]:
    """Compare some points of the first cloud at a time with all of the second.

    What is held is less than n x m distances, and stays in a processor's cache.
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
