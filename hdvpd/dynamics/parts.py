"""What hangs together and is more than one thing, by hue and place.

Beyond the papers (`model.contact`): pure functions of observed places and colours, without
gradient. The stripe of a can touches the can as one cube of a heap touches another. So things are
put together of parts of one hue: those of the same hue that hang together are one, as both sides of
a stripe, and so are parts of which one stands within the other's footprint, or lies on it, as
stripe, lid and can. Lengths are metres.
"""

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray
from hdvpd.dynamics.components import connected_labels, followed
from hdvpd.dynamics.surroundings import Surroundings
from hdvpd.kernels.choice import Kernels

# Squared difference of hues, in units of an edge, below which they are one.
_ONE_HUE = 0.5
# A part has a core of particles, this share of whose neighbours has their hue, and so many of them.
# What is between, of pixels that mix two colours, follows the nearest core.
_CORE_SHARE, _CORE_LEAST = 0.6, 3
_ROUNDS = 3
# What is smaller is an edge.
_FEWEST = 6
# Of one hue and of one thing is what is not farther apart than this.
_FAR_M = 0.12
# A part stands within another's footprint if the square of their distance is less than this many
# times the larger mean square: 2 is the edge of a disc, and cubes side by side are 6 apart. What
# does not reach down to its support lies on another, of which only one side may be seen.
_WITHIN, _LIES_ON = 1.6, 4.0
_OFF_M = 0.03
_SMALLEST_M = 0.003
# The largest parts, of which all pairs are asked; others are things.
_MOST_PARTS = 256


def told_apart(
    whole: Int[Array, "n"],
    near: Bool[Array, "n k"],
    around: Surroundings,
    places: Float[Array, "n 2"],
    height_m: Float[Array, "n"],
    kernels: Kernels = "auto",
) -> Int[JaxArray, "n"]:
    """Tell apart the things that hang together.

    Args:
      whole: for every particle the number of one that it hangs together with, the same for all of
        them; -1 for what is of no thing.
      near: which neighbours may be of one thing by their distance.
      around: the particles' surroundings.
      places: where particles stand [m].
      height_m: above the support [m].
      kernels: form in which labels are computed.

    Returns:
      For every particle the number of one of its thing, the same for all of them; -1 as in `whole`.
      Things of fewer than six particles of one hue are not told apart.
    """
    whole = jnp.asarray(whole)
    near &= (whole[around.indices] == whole[:, None]) & (whole >= 0)[:, None]
    part = _of_one_hue(jnp.asarray(near), around, kernels)
    hue, places = jnp.asarray(around.hue), jnp.asarray(places)
    joined = _joined(part, whole, hue, places, height_m, kernels)
    # What hangs on no part goes with the particle that numbers the whole.
    rest = jnp.where(part < 0, whole, joined)[jnp.maximum(whole, 0)]
    return jnp.where(part < 0, jnp.where(whole < 0, -1, rest), joined)


def _of_one_hue(
    near: Bool[JaxArray, "n k"], around: Surroundings, kernels: Kernels
) -> Int[JaxArray, "n"]:
    """Label parts of one hue, as DBSCAN does clusters (Ester et al., KDD 1996)."""
    indices, distances = jnp.asarray(around.indices), jnp.asarray(around.distances)
    like = near & (jnp.asarray(around.unlike) < _ONE_HUE)
    alike = like.sum(axis=1)
    core = (alike >= _CORE_SHARE * near.sum(axis=1)) & (alike >= _CORE_LEAST)
    label = connected_labels(core, like, indices, kernels)
    label = followed(label, like, distances, indices, _ROUNDS, kernels)
    count = label.shape[0]
    bins = jnp.where(label < 0, count, label)
    size = jax.ops.segment_sum(jnp.ones(count), bins, count + 1)[bins]
    label = jnp.where(size < _FEWEST, -1, label)
    return followed(label, near, distances, indices, _ROUNDS, kernels)


def _joined(
    part: Int[Array, "n"],
    whole: Int[Array, "n"],
    hue: Float[Array, "n 3"],
    places: Float[Array, "n 2"],
    height_m: Float[Array, "n"],
    kernels: Kernels,
) -> Int[JaxArray, "n"]:
    """Label particles by the part that theirs belongs to; those of no part keep -1."""
    count = part.shape[0]
    most = min(_MOST_PARTS, count)
    bins = jnp.where(part < 0, count, part)
    sizes = jax.ops.segment_sum(jnp.ones(count), bins, count + 1)[:count]
    size, first = jax.lax.top_k(sizes, most)
    # Parts by their rank; what is of none has the rank after the last.
    rank = jnp.full(count + 1, most).at[first].set(jnp.arange(most)).at[count].set(most)[bins]
    home, real = whole[first], size > 0
    together = (home[:, None] == home[None]) & real[:, None] & real[None]
    middle, its_hue = _means(places, rank, most), _means(hue, rank, most)
    same = together & (_apart2(its_hue) < _ONE_HUE) & (_apart2(middle) < _FAR_M**2)
    every = jnp.broadcast_to(jnp.arange(most), same.shape)
    group = connected_labels(real, same, every, kernels)
    group = jnp.where(real, group, every[0])

    of = jnp.append(group, most)[rank]
    middle = _means(places, of, most)
    offset = places - jnp.append(middle, middle[:1], axis=0)[of]
    spread2 = _means(jnp.sum(offset**2, axis=-1), of, most) + _SMALLEST_M**2
    lies = jax.ops.segment_min(height_m, of, most + 1)[:most] > _OFF_M
    # A part goes with one after it: what stands is after what lies, and then the larger one.
    place = jnp.zeros(most, jnp.int32).at[jnp.lexsort((spread2, ~lies))].set(every[0])
    exists = group == every[0]
    after = together & (place[None] > place[:, None]) & exists[:, None] & exists[None]
    larger2 = jnp.maximum(spread2[:, None], spread2[None])
    away = jnp.where(after, _apart2(middle) / larger2, jnp.inf)
    near_enough = away.min(axis=1) < jnp.where(lies, _LIES_ON, _WITHIN)
    into = jnp.where(near_enough, away.argmin(axis=1), every[0])
    # Each goes with one after it: half as far to the last of them in every round.
    for _ in range(max(most - 1, 1).bit_length()):
        into = into[into]
    return jnp.where(rank < most, jnp.append(first[into[group]], -1)[rank], part)


def _means(values: Float[Array, "n *d"], of: Int[Array, "n"], most: int) -> Float[JaxArray, "m *d"]:
    size = jax.ops.segment_sum(jnp.ones(of.shape), of, most + 1)[:most]
    total = jax.ops.segment_sum(values, of, most + 1)[:most]
    return total / jnp.maximum(size, 1.0).reshape(-1, *[1] * (values.ndim - 1))


def _apart2(x: Float[Array, "m d"]) -> Float[JaxArray, "m m"]:
    return jnp.sum((x[:, None] - x[None]) ** 2, axis=-1)
