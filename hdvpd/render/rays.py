"""Where samples lie along rays (docs/equations.md, Renderer).

No gradient flows through sample positions.
"""

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Bool, Float, PRNGKey, Rays, pytree

# Width of the proposals around particles [m] and their floor in empty space.
_PROPOSAL_WIDTH = 0.03
_PROPOSAL_FLOOR = 1e-3


@pytree
class Samples:
    """Points on rays, and the part of the ray that each stands for.

    Attributes:
      points: where they are [m].
      directions: of their rays, unit vectors.
      before: where the part begins, from the point on, at most 0 [m].
      after: where it ends, from the point on, at least 0 [m].
    """

    points: Float[Array, "*batch 3"]
    directions: Float[Array, "*batch 3"]
    before: Float[Array, "*batch"]
    after: Float[Array, "*batch"]


def samples_at(tdist: Float[Array, "*batch s"], rays: Rays, near: float, far: float) -> Samples:
    """Return the samples at sorted distances [m]; a part ends midway to the next, or at an end."""
    middle = (tdist[..., 1:] + tdist[..., :-1]) / 2
    ends = [jnp.full_like(tdist[..., :1], x) for x in (near, far)]
    starts = jnp.concatenate([ends[0], middle], axis=-1)
    stops = jnp.concatenate([middle, ends[1]], axis=-1)
    directions = jnp.asarray(rays.directions)[..., None, :]
    points = jnp.asarray(rays.origins)[..., None, :] + tdist[..., None] * directions
    directions = jnp.broadcast_to(directions, points.shape)
    return Samples(points, directions, before=starts - tdist, after=stops - tdist)


def stratified(
    num_rays: int, num_samples: int, near: float, far: float, key: PRNGKey | None
) -> Float[Array, "r s"]:
    """Return one distance per stratum of [near, far] [m]: jittered, or mid-points without key."""
    edges = jnp.linspace(near, far, num_samples + 1)
    if key is None:
        offset = jnp.full((num_rays, num_samples), 0.5)
    else:
        offset = jax.random.uniform(key, (num_rays, num_samples))
    return edges[None, :-1] + offset * (far - near) / num_samples


def proposal_density(nearest_m: Float[Array, "*batch s"]) -> Float[Array, "*batch s"]:
    """Return the unnormalised density of proposals, exp(-(d/0.03)^2) + 1e-3.

    Args:
      nearest_m: distance to the nearest particle [m], inf where there is none in reach.
    """
    return jnp.exp(-((nearest_m / _PROPOSAL_WIDTH) ** 2)) + _PROPOSAL_FLOOR


def propose(
    density: Float[Array, "r s"],
    num_proposals: int,
    near: float,
    far: float,
    key: PRNGKey | None,
) -> Float[Array, "r p"]:
    """Draw distances from a piecewise-constant density over equal strata, by inverse transform.

    Args:
      density: unnormalised density of each stratum of [near, far].
      num_proposals: distances per ray.
      near: start of the ray [m].
      far: end of the ray [m].
      key: jitters the quantiles; None takes their mid-points.

    Returns:
      Sorted distances [m], one per equal quantile.
    """
    num_rays, num_strata = density.shape
    cdf = jnp.cumsum(density, axis=-1)
    cdf = jnp.concatenate([jnp.zeros((num_rays, 1)), cdf / cdf[:, -1:]], axis=-1)
    quantile = stratified(num_rays, num_proposals, 0.0, 1.0, key)
    edges = jnp.linspace(near, far, num_strata + 1)
    distances = jax.vmap(lambda q, c: jnp.interp(q, c, edges))(quantile, cdf)
    # Where one stratum ends and the next begins, rounding might put a later quantile before.
    return jax.lax.cummax(jnp.asarray(distances), axis=1)


def in_order(
    strata: Float[Array, "r s"], proposals: Float[Array, "r p"], empty: Bool[Array, "r s"]
) -> tuple[Float[Array, "r m"], Bool[Array, "r m"]]:
    """Merge the distances of strata and proposals, and follow what is known of the strata.

    Args:
      strata: sorted distances [m].
      proposals: others, sorted too [m].
      empty: which strata are known to have no particle in reach.

    Returns:
      All distances [m], and which of them are known to be empty.
    """
    num_rays, num_strata = strata.shape
    rows, numbers = jnp.arange(num_rays)[:, None], jnp.arange(num_strata + proposals.shape[1])
    later = proposals[:, None] < strata[..., None]
    # Both are sorted: a place is the number within its own kind and that of the others before it.
    places = (jnp.sum(later, axis=-1), jnp.sum(~later, axis=-2))
    places = [numbers[None, : place.shape[1]] + place for place in places]
    merged = jnp.zeros((num_rays, len(numbers)), strata.dtype)
    for place, distances in zip(places, (strata, proposals), strict=True):
        merged = merged.at[rows, place].set(distances, unique_indices=True)
    known = jnp.zeros(merged.shape, bool).at[rows, places[0]].set(empty, unique_indices=True)
    return merged, known
