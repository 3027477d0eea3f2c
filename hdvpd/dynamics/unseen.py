"""What cannot be seen of a thing, and decides how it moves: drawn once per rollout.

Beyond the papers (`model.stochastic`), whose outlook are predictions that sample among futures. A
push ends differently by where a thing's weight rests, by how it resists turning and by where
exactly its surface begins, none of which two images tell. So these are latent variables of things,
normal and without gradient, whose spreads are learned before (`studies/spreads.py`). Lengths are
metres.
"""

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Float, PRNGKey, pytree
from hdvpd.dynamics.segments import Segments


@pytree
class Unseen:
    """What is hidden, of every particle that of its thing; 0 is what is likeliest.

    Attributes:
      middle: where the weight rests, from the middle of what is seen, in radii of gyration.
      turning: logarithm of the factor by which turning is resisted.
      margin_m: how much earlier the thing is touched than its particles say [m].
    """

    middle: Float[Array, "*n 3"]
    turning: Float[Array, "*n"]
    margin_m: Float[Array, "*n"]


def draw_unseen(found: Segments, spreads: tuple[float, float, float], key: PRNGKey) -> Unseen:
    """Draw what is hidden of things, alike for all particles of one; nothing is of other particles.

    Args:
      found: things.
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
    return Unseen(middle=values[:, :3], turning=values[:, 3], margin_m=values[:, 4])


def unseen_of_things(found: Segments, unseen: Unseen) -> Unseen:
    """Return the means over things, as things part and meet: parts keep what the whole had."""
    inside = found.inside.astype(jnp.float32)
    return jax.tree.map(lambda x: found.mean(x, inside), unseen)
