"""What cannot be seen of a thing, and decides how it moves: drawn once per rollout.

Beyond the papers (`model.stochastic`), whose outlook are predictions that sample among futures. A
push ends differently by where a thing's weight rests, by how it resists turning and by where
exactly its surface begins, none of which two images tell. So these are latent variables of things,
normal and without gradient, whose spreads are learned before (`studies/spreads.py`). Lengths are
metres.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Float, PRNGKey, pytree
from hdvpd.dynamics.segments import Segments


@pytree
class Unseen:
    """What is hidden, of every particle that of its thing; 0 is what is likeliest.

    Attributes:
      middle: where the weight rests, from the middle of what is seen, in radii of gyration.
      turning: logarithm of the factor by which turning is resisted.
      margin_m: how much earlier the thing is touched than its particles say [m].
      places: where particles were when this was drawn: `middle` is in the axes of then [m].
    """

    middle: Float[Array, "*n 3"]
    turning: Float[Array, "*n"]
    margin_m: Float[Array, "*n"]
    places: Float[Array, "*n 3"]


def draw_unseen(
    found: Segments,
    places: Float[Array, "n 3"],
    spreads: tuple[float, float, float],
    key: PRNGKey,
) -> Unseen:
    """Draw what is hidden of things, alike for all particles of one; nothing is of other particles.

    Args:
      found: things.
      places: where particles are [m].
      spreads: standard deviations of `middle`, in each direction, `turning` and `margin_m`.
      key: of the draws.
    """
    count = found.label.shape[0]
    middle, turning, margin_m = spreads
    each = jnp.asarray([middle, middle, middle, turning, margin_m], jnp.float32)
    normal = jax.random.normal(key, (count, len(each)))
    # The draw of a thing is that of the particle that numbers it.
    values = each[None] * normal[jnp.minimum(found.label, count - 1)]
    values = jnp.where(found.inside[:, None], values, 0.0)
    return Unseen(values[:, :3], values[:, 3], values[:, 4], places)


def unseen_of_things(
    found: Segments,
    unseen: Unseen,
    places: Float[Array, "n 3"],
    axis: Float[np.ndarray, "3"] | None,
) -> Unseen:
    """Return what is hidden of things as they are now.

    Args:
      found: things.
      unseen: as it was drawn. As things part and meet, each has the mean of its particles: parts
        keep what the whole had.
      places: where particles are now [m].
      axis: that points up, about which things have turned since; None where it is not known: no
        thing turns.
    """
    inside = found.inside.astype(jnp.float32)
    hidden = jax.tree.map(lambda x: found.mean(x, inside), unseen)
    if axis is None:
        return hidden
    # The turn that brings the places of then nearest to those of now (Kabsch 1976, in a plane).
    then = unseen.places - hidden.places
    now = jax.lax.stop_gradient(jnp.asarray(places))
    now -= found.mean(now, inside)
    cos = found.sum(jnp.sum(then * now, axis=-1) - (then @ axis) * (now @ axis))
    sin = found.sum(jnp.cross(then, now) @ axis)
    size = jnp.maximum(jnp.hypot(cos, sin), 1e-12)
    cos, sin = (x[:, None] for x in (jnp.where(size > 1e-12, cos / size, 1.0), sin / size))
    upright = jnp.multiply.outer(hidden.middle @ axis, axis)
    flat = hidden.middle - upright
    across = jnp.cross(jnp.broadcast_to(axis, flat.shape), flat)
    return dataclasses.replace(hidden, middle=upright + cos * flat + sin * across)
