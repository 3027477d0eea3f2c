"""Sums over the neighbours of points in space under annular kernels."""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.geometry import safe_norm
from hdvpd.basics.types import Array, Bool, Float, Int
from hdvpd.kernels import annular_sums_host
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import host_call


def annular_sums(
    positions: Float[Array, "n 3"],
    features: Float[Array, "n c"],
    queries: Float[Array, "q 3"],
    indices: Int[Array, "q k"],
    found: Bool[Array, "q k"],
    radii: tuple[float, ...],
    bandwidths: tuple[float, ...],
    kernels: Kernels = "auto",
) -> Float[Array, "q a c+1"]:
    """Sum features and weights of the neighbours under each annular kernel a.

    With d the distance from query to particle, w_a = exp(-((d - r_a) / b_a)^2); host code takes 0
    for less than e^-80.

    Args:
      positions: particles [m].
      features: particles' features.
      queries: points in space [m]; they carry no gradient.
      indices: neighbours of every query.
      found: which of them exist.
      radii: r_a [m].
      bandwidths: b_a [m].
      kernels: compiled host code or plain JAX.

    Returns:
      [sum_i w_a f_i, sum_i w_a] per kernel; zero where a query has no neighbour.
    """
    queries = jax.lax.stop_gradient(queries)
    if use_host_kernels(kernels):
        return _on_host((radii, bandwidths), (positions, features), (queries, indices, found))
    distance = safe_norm(positions[indices] - queries[:, None])
    radius, bandwidth = (jnp.asarray(x, distance.dtype)[None, None] for x in (radii, bandwidths))
    weights = jnp.exp(-(((distance[..., None] - radius) / bandwidth) ** 2))
    weights = jnp.where(found[..., None], weights, 0.0)
    gathered = features[indices]
    values = jnp.concatenate([gathered, jnp.ones_like(gathered[..., :1])], axis=-1)
    return jnp.einsum("qka,qkc->qac", weights, values)


def _forward(shape, moving, fixed):
    constants = [np.asarray(values, np.float32) for values in shape]
    queries, features = fixed[0], moving[1]
    result_shape = (queries.shape[0], len(constants[0]), features.shape[1] + 1)
    results = [jax.ShapeDtypeStruct(result_shape, np.float32)]
    (sums,) = host_call(annular_sums_host.forward, results, *moving, *fixed, *constants)
    return sums, None


def _backward(shape, moving, fixed, _, sums_bar):
    constants = [np.asarray(values, np.float32) for values in shape]
    results = [jax.ShapeDtypeStruct(x.shape, np.float32) for x in moving]
    arguments = (*moving, *fixed, sums_bar, *constants)
    return tuple(host_call(annular_sums_host.backward, results, *arguments))


_on_host = differentiable(_forward, _backward)
