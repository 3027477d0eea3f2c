"""Means over points, weighted by a Gaussian of their distance: host code and plain JAX."""

import jax.numpy as jnp
import numpy as np

from hdvpd.basics.geometry import EXACT
from hdvpd.basics.types import Array, Float, JaxArray
from hdvpd.kernels import gaussian_mean_host
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.dense import on_host
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import fill


def gaussian_mean(
    places: Float[Array, "n 3"],
    points: Float[Array, "p 3"],
    shares: Float[Array, "p"],
    table: Float[Array, "p c"],
    bandwidth: float,
    kernels: Kernels = "auto",
) -> tuple[Float[JaxArray, "n c"], Float[JaxArray, "n"]]:
    """Return sum_p w_p T_p / sum_p w_p with w_p = s_p exp(-(d_p / bandwidth)^2), and min_p d_p^2.

    Args:
      places: from which distances d are taken; they carry no gradient.
      points: to which; they carry no gradient.
      shares: s_p, more than 0.
      table: T_p.
      bandwidth: distance at which the exponential is 1 / e.
      kernels: compiled host code, where places are many, or plain JAX.
    """
    places, points = jnp.asarray(places), jnp.asarray(points)
    shares, table = jnp.asarray(shares), jnp.asarray(table)
    if not on_host(kernels, places, points, table):
        return _plain(places, points, shares, table, bandwidth)
    return _mean(bandwidth, (shares, table), (places, points))


def _plain(
    places: Float[JaxArray, "n 3"],
    points: Float[JaxArray, "p 3"],
    shares: Float[JaxArray, "p"],
    table: Float[JaxArray, "p c"],
    bandwidth: float,
) -> tuple[Float[JaxArray, "n c"], Float[JaxArray, "n"]]:
    # Axis by axis: sums over an axis of three are not vectorised.
    x, y, z = (places[:, axis, None] - points[None, :, axis] for axis in range(3))
    squared = x**2 + y**2 + z**2
    least = squared.min(axis=1)
    # Less the nearest, whose weight is 1: softmax would look for the largest once more.
    weights = jnp.exp((least[:, None] - squared) / bandwidth**2) * shares[None]
    sums = jnp.matmul(weights, table, precision=EXACT)
    return sums / weights.sum(axis=1, keepdims=True), least


def _forward(bandwidth, moving, fixed):
    shares, table = moving
    count, columns = fixed[0].shape[0], table.shape[1]
    arguments = (*fixed, shares, _scale(bandwidth), table)
    found = fill(gaussian_mean_host.forward, [(count, columns), (count,)], *arguments)
    return tuple(found), found[0]


def _backward(bandwidth, moving, fixed, mean, bars):
    shares, table = moving
    arguments = (*fixed, shares, _scale(bandwidth), mean, bars[0])
    shape = table.shape[0], table.shape[1] + 1
    (sums,) = fill(gaussian_mean_host.backward, [shape], *arguments)
    table_bar = sums[:, :-1]
    return (jnp.sum(table * table_bar, axis=1) - sums[:, -1]) / shares, table_bar


def _scale(bandwidth):
    return np.asarray(np.log2(np.e) / bandwidth**2, np.float32)


_mean = differentiable(_forward, _backward)
