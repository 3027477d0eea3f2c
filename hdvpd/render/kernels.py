"""Annular kernels: what a point in space sees of the particles around it (spec section 6).

The MLP never sees the query's position, only features interpolated from nearby particles.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.array_typing import Array, Bool, Float, Int
from hdvpd.host import Kernels, host_call, use_host_kernels
from hdvpd.numerics import safe_norm

_EPS = 1e-8


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

    With d the distance from query to particle, w_a = exp(-((d - r_a) / b_a)^2).

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
        return _annular_sums_host((radii, bandwidths), positions, features, queries, indices, found)
    distance = safe_norm(positions[indices] - queries[:, None])
    radius, bandwidth = (jnp.asarray(x, distance.dtype)[None, None] for x in (radii, bandwidths))
    weights = jnp.exp(-(((distance[..., None] - radius) / bandwidth) ** 2))
    weights = jnp.where(found[..., None], weights, 0.0)
    gathered = features[indices]
    values = jnp.concatenate([gathered, jnp.ones_like(gathered[..., :1])], axis=-1)
    return jnp.einsum("qka,qkc->qac", weights, values)


def annular_features(sums: Float[Array, "q a c"]) -> Float[Array, "q a*c"]:
    """Turn kernel sums into the MLP's input.

    Args:
      sums: from `annular_sums`.

    Returns:
      Per kernel the interpolated features F = sum w f / (S + eps) and the density channel
      g = 1 + ln(S + eps) / ln(1 / eps): 0 in empty space, 1 at S = 1; eps = 1e-8.
    """
    total = sums[..., -1:]
    density = 1.0 + jnp.log(total + _EPS) / np.log(1 / _EPS)
    features = jnp.concatenate([sums[..., :-1] / (total + _EPS), density], axis=-1)
    return features.reshape(sums.shape[0], -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _annular_sums_host(
    shape: tuple[tuple[float, ...], tuple[float, ...]],
    positions: Float[Array, "n 3"],
    features: Float[Array, "n c"],
    queries: Float[Array, "q 3"],
    indices: Int[Array, "q k"],
    found: Bool[Array, "q k"],
) -> Float[Array, "q a c+1"]:
    return _host_forward(shape, positions, features, queries, indices, found)[0]


def _host_forward(shape, positions, features, queries, indices, found):
    constants = [np.asarray(values, np.float32) for values in shape]
    result_shape = (queries.shape[0], len(constants[0]), features.shape[1] + 1)
    results = [jax.ShapeDtypeStruct(result_shape, np.float32)]
    arguments = (positions, features, queries, indices, found)
    function = "hdvpd.render.kernels_host:forward"
    (sums,) = host_call(function, results, *arguments, *constants)
    return sums, arguments


def _host_backward(shape, arguments, sums_bar):
    constants = [np.asarray(values, np.float32) for values in shape]
    positions, features = arguments[:2]
    results = [jax.ShapeDtypeStruct(x.shape, np.float32) for x in (positions, features)]
    function = "hdvpd.render.kernels_host:backward"
    positions_bar, features_bar = host_call(function, results, *arguments, sums_bar, *constants)
    return positions_bar, features_bar, None, None, None


_annular_sums_host.defvjp(_host_forward, _host_backward)
