"""Means over points, weighted by a Gaussian of their distance, as host code.

XLA's twin is in `dynamics.carrying.held_along`.
"""

import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Float, JaxArray
from hdvpd.kernels import gaussian_mean_host
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import fill_each


def gaussian_mean(
    places: Float[Array, "n 3"],
    points: Float[Array, "p 3"],
    shares: Float[Array, "p"],
    table: Float[Array, "p c"],
    bandwidth: float,
) -> tuple[Float[JaxArray, "n c"], Float[JaxArray, "n"]]:
    """Return sum_p w_p T_p / sum_p w_p with w_p = s_p exp(-(d_p / bandwidth)^2), and min_p d_p^2.

    Args:
      places: from which distances d are taken; they carry no gradient.
      points: to which; they carry no gradient.
      shares: s_p, more than 0.
      table: T_p.
      bandwidth: distance at which the exponential is 1 / e.
    """
    moving = jnp.asarray(shares), jnp.asarray(table)
    return _mean(bandwidth, moving, (jnp.asarray(places), jnp.asarray(points)))


def _forward(bandwidth, moving, fixed):
    shares, table = moving
    count, columns = fixed[0].shape[0], table.shape[1]
    arguments = (*fixed, shares, _scale(bandwidth), table)
    found = fill_each(gaussian_mean_host.forward, [(count, columns), (count,)], *arguments)
    return tuple(found), found[0]


def _backward(bandwidth, moving, fixed, mean, bars):
    shares, table = moving
    arguments = (*fixed, shares, _scale(bandwidth), mean, bars[0])
    shape = table.shape[0], table.shape[1] + 1
    (sums,) = fill_each(gaussian_mean_host.backward, [shape], *arguments)
    table_bar = sums[:, :-1]
    return (jnp.sum(table * table_bar, axis=1) - sums[:, -1]) / shares, table_bar


def _scale(bandwidth):
    return np.asarray(np.log2(np.e) / bandwidth**2, np.float32)


_mean = differentiable(_forward, _backward)
