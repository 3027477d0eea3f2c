"""Small numeric primitives that several parts share, each with its reason."""

import jax.numpy as jnp

from hdvpd.array_typing import Array, Float


def safe_norm(vectors: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
    """Return sqrt(|v|^2 + 1e-12): the gradient of the plain norm is infinite at 0."""
    return jnp.sqrt(jnp.sum(vectors * vectors, axis=-1) + 1e-12)
