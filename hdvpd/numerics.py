"""Small numeric primitives that several parts share, each with its reason."""

import jax
import jax.numpy as jnp

from hdvpd.array_typing import Array, Float


def safe_norm(vectors: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
    """Return sqrt(|v|^2 + 1e-12): the gradient of the plain norm is infinite at 0 (spec D8)."""
    return jnp.sqrt(jnp.sum(vectors * vectors, axis=-1) + 1e-12)


def relu_features(x: Float[Array, "*batch m"]) -> Float[Array, "*batch m"]:
    """Map to positive features, relu(x) + 1e-3, so that attention sums cannot vanish."""
    return jax.nn.relu(x) + 1e-3
