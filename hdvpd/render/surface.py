"""Where the surface lies that particles were drawn from, also between them (docs/equations.md)."""

import jax
import jax.numpy as jnp

from hdvpd.basics.geometry import solve_3x3, turned
from hdvpd.basics.types import Array, Bool, Float, Int
from hdvpd.render.rays import Samples

# Weight of a neighbour that is not there, before the softmax; infinite ones have no gradient.
_NOT_FOUND = -1e9
# Of an interval without length.
_TINY = 1e-8
# Square of the sine of the angle below which a ray runs along the surface.
_GRAZING = 1e-4
# Below it, 1 less a share rounds to 1, whose inverse error function is infinite.
_TINY_SHARE = 1e-6


def light_stopped(
    density: Float[Array, "q"],
    positions: Float[Array, "n 3"],
    samples: Samples,
    indices: Int[Array, "q k"],
    found: Bool[Array, "q k"],
    bandwidth: float,
    thickness: float,
) -> tuple[Float[Array, "q"], Float[Array, "q"]]:
    """Return how much light a thin sheet stops at the surface that particles sample, and where.

    The neighbours, weighted by softmax(-d^2 / bandwidth^2), have a centroid c and a covariance C.
    Of particles on a surface, C is about the bandwidth's square along the surface and 0 across it,
    so with M = C + h^2 I, h the thickness, exp(-(q - c)^T M^-1 (q - c)) is 1 on the surface,
    between particles too, and falls off across it within h, beyond its edges within the bandwidth
    (a point-set surface). Around a single particle it is a ball of radius h.

    A point that moves by du is followed by the centroid, by 2 C du / bandwidth^2: along a surface
    altogether, beyond its edge less. So along a ray of direction u, c - q changes by -v dt with
    v = u - 2 C u / bandwidth^2, and the exponential is P exp(-(t - t_0)^2 / l^2) with
    l = (v^T M^-1 v)^-1/2. Every crossing stops what a straight one does, however long its way in
    the sheet, so that a round body is no wider than it is: the density is sigma h / l, the optical
    depth of the whole sheet D = sqrt(pi) P h sigma, and that of an interval known in closed form.
    The sheet is drawn behind, at t_0 + l erfinv(1 - 2 ln 2 / D): half of the light passes t_0.

    Args:
      density: sigma, per metre, of a straight crossing.
      positions: particles [m].
      samples: points with the intervals that they stand for; they carry no gradient.
      indices: neighbours of every query.
      found: which of them exist.
      bandwidth: of the weights [m]; about the distance from a particle to the next.
      thickness: h [m].

    Returns:
      The mean density over every interval, per metre, 0 where a sample has no neighbour; and t_0
      from the sample on [m], or the end of the interval next to it.
    """
    samples = jax.lax.stop_gradient(samples)
    # In units of h: the numbers are of order one, and the matrix below is never near singular.
    offsets = (positions[indices] - samples.points[:, None]) / thickness
    center, covariance = _neighborhood(offsets, found, bandwidth / thickness)
    matrix = covariance + jnp.eye(3)[None]
    following = turned(covariance, samples.directions)
    approach = samples.directions - 2 * (thickness / bandwidth) ** 2 * following
    across = solve_3x3(matrix, approach)
    slant = jnp.maximum(jnp.sum(approach * across, axis=-1), _GRAZING)
    ahead = jnp.sum(center * across, axis=-1) / slant
    beside = center - ahead[:, None] * approach
    peak = jnp.exp(-jnp.sum(beside * solve_3x3(matrix, beside), axis=-1))
    width = jax.lax.rsqrt(slant)
    optical_depth = jnp.sqrt(jnp.pi) * thickness * peak * density
    half = jnp.clip(2 * jnp.log(2.0) / jnp.maximum(optical_depth, 1.0), _TINY_SHARE, 1.0)
    middle = ahead / width + jax.scipy.special.erfinv(1.0 - half)
    start, end = (x / (thickness * width) - middle for x in (samples.before, samples.after))
    share = (jax.scipy.special.erf(end) - jax.scipy.special.erf(start)) / 2
    length = jnp.maximum(samples.after - samples.before, _TINY)
    mean = jnp.where(found.any(axis=-1), optical_depth * share / length, 0.0)
    return mean, jnp.clip(thickness * ahead, samples.before, samples.after)


def _neighborhood(
    offsets: Float[Array, "q k 3"], found: Bool[Array, "q k"], bandwidth: float
) -> tuple[Float[Array, "q 3"], Float[Array, "q 3 3"]]:
    """Return the weighted mean and covariance of neighbours, seen from the samples."""
    squared = jnp.sum(offsets**2, axis=-1) / bandwidth**2
    weights = jax.nn.softmax(jnp.where(found, -squared, _NOT_FOUND), axis=-1)
    # Sums, no products of matrices: those of so few numbers are slow on CPUs, above all backward.
    center = jnp.sum(weights[..., None] * offsets, axis=1)
    around = offsets - center[:, None]
    spread = (weights[..., None] * around)[..., None] * around[..., None, :]
    return center, jnp.sum(spread, axis=1)
