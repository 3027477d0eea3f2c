"""Uniform random subsets of what a mask marks as real, in static shapes."""

import math

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Bool, Float, Int, PRNGKey

# Rounding of fraction * count must not make one of 10 * 0.1 elements two.
_ROUNDING = 1e-2


def uniform_subset(
    mask: Bool[Array, "a"], size: int, key: PRNGKey
) -> tuple[Int[Array, "u"], Bool[Array, "u"]]:
    """Draw up to `size` of the marked elements, uniformly and without replacement.

    Returns:
      Indices of the elements in random order, and which slots hold one: all of them where the mask
      marks at least `size` elements, else every marked element is drawn. Other slots hold any
      index.
    """
    score = jnp.where(mask, _scores(key, mask.shape[0]), -1.0)
    score, chosen = jax.lax.top_k(score, min(size, mask.shape[0]))
    padding = (0, size - chosen.shape[0])
    return jnp.pad(chosen, padding), jnp.pad(score >= 0, padding)


def systematic_subset(
    order: Int[Array, "a"],
    mask: Bool[Array, "a"],
    size: int,
    key: PRNGKey,
    favoured: Bool[Array, "a"] | None = None,
    weight: float = 1.0,
) -> tuple[Int[Array, "u"], Bool[Array, "u"]]:
    """Draw up to `size` of the marked elements at equal distances along an order.

    Systematic sampling: with m marked elements, those whose ranks are the whole parts of
    (i + u) m / size, u uniform in [0, 1). Each is drawn with probability size / m, and none twice.

    Args:
      order: of the elements, marked ones first.
      mask: marks those that may be drawn.
      size: slots.
      key: draws u.
      favoured: elements that are drawn by themselves, and the others by themselves: so many that
        each is `weight` times as likely as another, as far as there are enough of both.
      weight: see there.

    Returns:
      As `uniform_subset`, but in the given order.
    """
    order, mask = jnp.asarray(order), jnp.asarray(mask)
    slots, start, last = jnp.arange(size), jax.random.uniform(key), mask.shape[0] - 1
    marked = mask.sum()
    if favoured is None:
        rank = _systematic_ranks(slots, start, marked, jnp.asarray(size))
        return order[jnp.clip(rank, 0, last)], slots < marked
    first = (favoured & mask)[order]
    many = first.sum()
    few = marked - many
    share = size * weight * many / jnp.maximum(weight * many + few, 1)
    of_first = jnp.minimum(jnp.maximum(jnp.round(share).astype(jnp.int32), size - few), many)
    of_others = jnp.minimum(size - of_first, few)
    apart, _ = marked_first(first)
    rank = jnp.where(
        slots < of_first,
        _systematic_ranks(slots, start, many, of_first),
        many + _systematic_ranks(slots - of_first, start, few, of_others),
    )
    real = slots < of_first + of_others
    place = jnp.sort(jnp.where(real, apart[jnp.clip(rank, 0, last)], last + 1))
    return order[jnp.minimum(place, last)], real


def _systematic_ranks(
    slots: Int[Array, "u"], start: Float[Array, ""], marked: Int[Array, ""], size: Int[Array, ""]
) -> Int[Array, "u"]:
    # Whole numbers apart: float32 has too few digits for i m beyond 2^24. Rounding may still reach
    # the end, and may not pass it.
    size = jnp.maximum(size, 1)
    stride, rest = marked // size, marked % size
    further = jnp.floor(start * stride + (slots + start) * (rest / size)).astype(jnp.int32)
    rank = slots * stride + jnp.minimum(further, jnp.maximum(stride + rest - 1, 0))
    return jnp.where(marked >= size, rank, slots)


def uniform_fraction(
    mask: Bool[Array, "a"], fraction: float, key: PRNGKey
) -> tuple[Int[Array, "u"], Bool[Array, "u"]]:
    """Draw a fraction of the marked elements, rounded up, uniformly and without replacement.

    Args:
      mask: elements that may be drawn.
      fraction: of the marked elements, in (0, 1].
      key: draws.

    Returns:
      As `uniform_subset`, with ceil(fraction * a) slots; how many hold an element depends on the
      number of marked ones only, not on the padding among them.
    """
    size = max(1, math.ceil(fraction * mask.shape[0] - _ROUNDING))
    chosen, drawn = uniform_subset(mask, size, key)
    count = jnp.maximum(1.0, jnp.ceil(fraction * mask.sum().astype(jnp.float32) - _ROUNDING))
    return chosen, drawn & (jnp.arange(size) < count)


def _scores(key: PRNGKey, count: int) -> Float[Array, "a"]:
    return jax.random.uniform(key, (count,))


def marked_first(marked: Bool[Array, "q"]) -> tuple[Int[Array, "q"], Int[Array, "q"]]:
    """Return the order that puts marked elements first, and every element's place in it.

    The stable sort of a mask and its inverse, by counting: sorts of an image's samples cost an
    eighth of its rendering on a CPU.
    """
    rows = jnp.arange(marked.shape[0], dtype=jnp.int32)
    before = jnp.cumsum(marked, dtype=jnp.int32)
    place = jnp.where(marked, before - 1, before[-1] + rows - before)
    return jnp.zeros_like(rows).at[place].set(rows, unique_indices=True), place
