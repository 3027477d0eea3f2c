"""Positive feature maps: what replaces the exponential of softmax attention at linear cost.

ReLU and elu + 1 are taken entry by entry. FAVOR+ (Performer, arXiv 2009.14794) approximates softmax
itself: E[phi(q) . phi(k)] = exp(q . k / sqrt(w)) over its random projection.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Bool, Float, PRNGKey

_EPS = 1e-6


RELU_LEAST = 1e-3
"""Of a ReLU feature."""


def relu_features(x: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
    """Map to positive features, relu(x) + 1e-3, so that attention sums cannot vanish."""
    return jax.nn.relu(x) + RELU_LEAST


def elu_features(x: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
    """Map to elu(x) + 1 (arXiv 2006.16236), and 1e-6, so that attention sums cannot vanish.

    arXiv 2410.03462 prints elu(x) + x, which is not positive.
    """
    return jax.nn.elu(x) + 1.0 + _EPS


@functools.partial(jax.jit, static_argnums=(1, 2))
def orthogonal_gaussian(key: PRNGKey, num_features: int, width: int) -> Float[Array, "m w"]:
    """Draw Gaussian rows that are orthogonal within every block of `width` of them.

    Uniform over rotations, as `jax.random.orthogonal` is, and not as a QR decomposition comes:
    public Performer code takes its Q without the signs of R's diagonal, and its estimate is biased.

    Returns:
      Rows of random directions, their lengths independent as those of Gaussian vectors.
    """
    direction_key, length_key = jax.random.split(key)
    num_blocks = -(-num_features // width)
    rotations = jax.random.orthogonal(direction_key, width, (num_blocks,))
    rows = rotations.reshape(-1, width)[:num_features]
    lengths = jnp.linalg.norm(jax.random.normal(length_key, (num_features, width)), axis=1)
    return rows * lengths[:, None]


def softmax_exponents(
    x: Float[Array, "t a w"], projection: Float[Array, "a m w"]
) -> Float[Array, "t a m"]:
    """Return the logarithm of sqrt(m) times the positive softmax features (Performer, lemma 1).

    Returns:
      omega . z - |z|^2 / 2 with z = x / w^(1/4).
    """
    z = x / x.shape[-1] ** 0.25
    return jnp.einsum("taw,amw->tam", z, projection) - 0.5 * jnp.sum(z * z, -1, keepdims=True)


def favor_features(
    query: Float[Array, "t a w"],
    key: Float[Array, "t a w"],
    projection: Float[Array, "a m w"],
    mask: Bool[Array, "t"],
) -> tuple[Float[Array, "t a m"], Float[Array, "t a m"]]:
    """Map queries and keys to FAVOR+ features, scaled so that no exponential overflows.

    Each query's features are divided by their maximum and all real keys' features by one common
    maximum per head. Both cancel in the attention's ratio, up to the 1e-6 added to each feature:
    because of it gradients flow through the maxima too.

    Args:
      query: queries per head a.
      key: keys per head.
      projection: random rows of every head, from `orthogonal_gaussian`.
      mask: real keys; the features of others are of no meaning.
    """
    of_query, of_key = (softmax_exponents(x, projection) for x in (query, key))
    real = mask[:, None, None]
    most_query = of_query.max(-1, keepdims=True)
    most_key = jnp.where(real, of_key, -jnp.inf).max((0, 2), keepdims=True)
    most_key = jnp.where(jnp.isfinite(most_key), most_key, 0.0)
    of_query = of_query - most_query
    of_key = jnp.where(real, of_key - most_key, 0.0)
    scale = 1 / np.sqrt(projection.shape[1])
    return scale * (jnp.exp(of_query) + _EPS), scale * (jnp.exp(of_key) + _EPS)
