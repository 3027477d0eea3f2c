"""Where the surface lies that particles were drawn from, also between them (docs/equations.md)."""

import jax
import jax.numpy as jnp

from hdvpd.types import Array, Bool, Float, Int

# Weight of a neighbour that is not there, before the softmax; infinite ones have no gradient.
_NOT_FOUND = -1e9


def surface_gate(
    positions: Float[Array, "n 3"],
    queries: Float[Array, "q 3"],
    indices: Int[Array, "q k"],
    found: Bool[Array, "q k"],
    bandwidth: float,
    thickness: float,
) -> Float[Array, "q"]:
    """Say how much a point lies on the surface that its neighbours sample (a point-set surface).

    The neighbours, weighted by softmax(-d^2 / bandwidth^2), have a centroid c and a covariance C.
    Of particles on a surface, C is about the bandwidth's square along the surface and 0 across it,
    so exp(-(q - c)^T (C + h^2 I)^-1 (q - c)), h the thickness, is 1 on the surface, between
    particles too, and falls off across it within h, beyond its edges within the bandwidth. Around a
    single particle it is a ball of radius h.

    Args:
      positions: particles [m].
      queries: points in space [m]; they carry no gradient.
      indices: neighbours of every query.
      found: which of them exist.
      bandwidth: of the weights [m]; about the distance from a particle to the next.
      thickness: h [m].

    Returns:
      Numbers in [0, 1]; 0 where a query has no neighbour.
    """
    # In units of h: the numbers are of order one, and the matrix below is never near singular.
    offsets = (positions[indices] - jax.lax.stop_gradient(queries)[:, None]) / thickness
    squared = jnp.sum(offsets**2, axis=-1) * (thickness / bandwidth) ** 2
    weights = jax.nn.softmax(jnp.where(found, -squared, _NOT_FOUND), axis=-1)
    center = jnp.einsum("qk,qki->qi", weights, offsets)
    around = offsets - center[:, None]
    matrix = jnp.einsum("qk,qki,qkj->qij", weights, around, around) + jnp.eye(3)[None]
    distance = jnp.sum(center * solve_3x3(matrix, center), axis=-1)
    return jnp.where(found.any(axis=-1), jnp.exp(-distance), 0.0)


def solve_3x3(matrix: Float[Array, "q 3 3"], vector: Float[Array, "q 3"]) -> Float[Array, "q 3"]:
    """Solve 3x3 systems by Cramer's rule; for well-conditioned matrices, and much faster than LU.

    Args:
      matrix: M.
      vector: v.

    Returns:
      M^-1 v.
    """
    first, second, third = matrix[:, :, 0], matrix[:, :, 1], matrix[:, :, 2]
    across = jnp.cross(second, third)
    determinant = jnp.sum(first * across, axis=-1)
    solution = jnp.stack(
        [
            jnp.sum(vector * across, axis=-1),
            jnp.sum(first * jnp.cross(vector, third), axis=-1),
            jnp.sum(first * jnp.cross(second, vector), axis=-1),
        ],
        axis=-1,
    )
    return solution / determinant[:, None]
