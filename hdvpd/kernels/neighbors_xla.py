"""Exact neighbour search in plain JAX, for accelerators: the leaves of a k-d tree, many at a time.

Points are cut along their widest axis into parts of equally many, again and again, queries
likewise. A group of queries looks into the boxes of points nearest to it, a few at a time, until
the next is farther than what each of its queries has found. That is what a search in a k-d tree
does, here for all queries of a group together and in arrays of static shape. The last few queries,
of points far apart, are compared with all points. Distances are held for one pass at a time.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, pytree

# Points that a box holds at most, and queries a group.
_SIZE = 32
# Distances held in one pass, of points or of boxes: enough to fill an accelerator.
_PASS_ENTRIES = 1 << 25
# Boxes looked into at a time.
_BOXES = 8
# A round costs what it does for all queries, however few are left. After so many, or when the last
# has finished less than half and comparing the rest with all points costs no more than so many,
# that is done instead.
_ROUNDS, _COST = 16, 8
_NO_ROW = jnp.iinfo(jnp.int32).max
Found = tuple[Float[JaxArray, "*queries k"], Int[JaxArray, "*queries k"]]
State = tuple[
    Found, Float[JaxArray, "g"], Int[JaxArray, "g"], Float[JaxArray, "2"], Int[JaxArray, ""]
]


@pytree
class Boxes:
    """Points in boxes of equally many.

    Attributes:
      points: [m], 0 of what is to be left out.
      rows: the row that each point had; _NO_ROW of what is to be left out.
      low: corner of each box [m]; inf of an empty one.
      high: the opposite corner [m]; -inf of an empty one.
    """

    points: Float[JaxArray, "*boxes size 3"]
    rows: Int[JaxArray, "*boxes size"]
    low: Float[JaxArray, "*boxes 3"]
    high: Float[JaxArray, "*boxes 3"]


def search(
    queries: Float[Array, "q 3"],
    points: Float[Array, "n 3"],
    mask: Bool[Array, "n"],
    k: int,
    reach: tuple[float, float],
) -> tuple[Int[Array, "q k"], Float[Array, "q k"]]:
    """Return the rows and distances [m] of the k nearest points; 0 and inf where there are fewer.

    Of points that are equally far the lesser rows are found.

    Args:
      queries: [m]; non-finite ones find nothing.
      points: [m], finite where the mask is True.
      mask: points that may be found.
      k: neighbours per query.
      reach: points farther than the first are not found, queries whose nearest point is farther
        than the second find nothing [m].
    """
    # Once more: what is mapped by itself (`sequential_vmap`) has tangents, if only 0.
    queries, points = jax.lax.stop_gradient((jnp.asarray(queries), jnp.asarray(points)))
    num_queries, num_points = queries.shape[0], points.shape[0]
    if 0 in (num_queries, num_points, k):
        empty = num_queries, k
        return jnp.zeros(empty, jnp.int32), jnp.full(empty, jnp.inf, jnp.float32)
    boxes = in_boxes(points, jnp.asarray(mask))
    groups = in_boxes(queries, jnp.isfinite(queries).all(-1))
    # Groups that fill a pass, one pass after another; the number of groups is a power of 2.
    count, size = groups.rows.shape
    passes = 1
    entries = max(size * _BOXES * boxes.rows.shape[1], boxes.rows.shape[0])
    while passes < count and count // passes * entries > _PASS_ENTRIES:
        passes *= 2
    passed = jax.tree.map(lambda x: x.reshape(passes, count // passes, *x.shape[1:]), groups)
    look = functools.partial(_search_groups, boxes=boxes, k=k, reach=reach)
    # From here on query by query, in the order of the groups.
    squared, rows, left = (x.reshape(count * size, *x.shape[3:]) for x in jax.lax.map(look, passed))
    squared, rows = _compare_rest(groups.points.reshape(-1, 3), (squared, rows), left, boxes)
    farthest, nearest = (jnp.float32(distance) ** 2 for distance in reach)
    missing = (squared > farthest) | (squared[:, :1] > nearest) | (squared == jnp.inf)
    # Back in the order of the queries; what filled the last group has no row.
    distances = jnp.where(missing, jnp.inf, jnp.sqrt(squared))
    rows, places = jnp.where(missing, 0, rows), groups.rows.reshape(-1)
    return (
        jnp.zeros((num_queries, k), jnp.int32).at[places].set(rows, mode="drop"),
        jnp.full((num_queries, k), jnp.inf).at[places].set(distances, mode="drop"),
    )


def in_boxes(points: Float[JaxArray, "n 3"], mask: Bool[JaxArray, "n"]) -> Boxes:
    """Return points in the leaves of a balanced k-d tree, a power of 2 of them.

    Args:
      points: [m], finite where the mask is True.
      mask: points that count; the others come last.
    """
    num_points, halvings = points.shape[0], 0
    while num_points > _SIZE << halvings:
        halvings += 1
    rows = jnp.where(mask, jnp.arange(num_points, dtype=jnp.int32), _NO_ROW)
    padding = -num_points % (1 << halvings)
    rows = jnp.pad(rows, (0, padding), constant_values=_NO_ROW)
    parts = 1
    while parts < 1 << halvings:
        rows = rows.reshape(parts, -1)
        boxes = _bounded(points, rows)
        widest = jnp.argmax(boxes.high - boxes.low, axis=-1)
        places = jnp.take_along_axis(boxes.points, widest[:, None, None], axis=2)[..., 0]
        places = jnp.where(rows == _NO_ROW, jnp.inf, places)
        rows = jax.lax.sort((places, rows), dimension=1, num_keys=1)[1]
        # One sort cuts into four; where their number is no power of 4, the first into two.
        parts *= 2 if parts == 1 and halvings % 2 else 4
    return _bounded(points, rows.reshape(parts, -1))


def _bounded(points: Float[JaxArray, "n 3"], rows: Int[JaxArray, "boxes size"]) -> Boxes:
    """Return boxes of given rows."""
    kept = (rows != _NO_ROW)[..., None]
    inside = jnp.where(kept, points.at[rows].get(mode="fill", fill_value=0.0), 0.0)
    return Boxes(
        points=inside,
        rows=rows,
        low=jnp.where(kept, inside, jnp.inf).min(1),
        high=jnp.where(kept, inside, -jnp.inf).max(1),
    )


def _search_groups(
    groups: Boxes, *, boxes: Boxes, k: int, reach: tuple[float, float]
) -> tuple[Float[JaxArray, "g size k"], Int[JaxArray, "g size k"], Bool[JaxArray, "g size"]]:
    """Look into the boxes nearest to every group, for as long as that is worth it.

    Returns:
      Squared distances [m^2] and rows of the k nearest points among those seen, of every query of
      the groups, and whether there may be nearer ones.
    """
    farthest, nearest = (jnp.float32(distance) ** 2 for distance in reach)
    (num_groups, size), num_boxes = groups.rows.shape, boxes.rows.shape[0]
    gaps = _gaps(groups, boxes)
    numbers = jnp.arange(num_boxes, dtype=jnp.int32)[None]

    def pending(found: Found, gap: Float[JaxArray, "g"]) -> Bool[JaxArray, "g size"]:
        """Return which queries may find something in boxes at such a gap [m^2] and beyond."""
        squared, _ = found
        within = squared[..., 0] <= nearest
        limit = jnp.where(within, jnp.minimum(squared[..., -1], farthest), nearest)
        limit = jnp.where(groups.rows == _NO_ROW, -jnp.inf, jnp.minimum(limit, farthest))
        return (gap[:, None] <= limit) & (gap[:, None] < jnp.inf)

    def is_worth_a_round(state: State) -> jax.Array:
        *_, left, turn = state
        many = left[1] * boxes.rows.size > _COST * _BOXES * boxes.rows.shape[1]
        return (turn < _ROUNDS) & (many | (left[1] < left[0] / 2)) & (left[1] > 0)

    def look(state: State) -> State:
        found, gap, number, left, turn = state
        # The next box is the one to start from, so that nothing is looked into twice.
        count = min(_BOXES, num_boxes) + 1
        near, last = least(gaps, numbers, count, (gap, number), inclusive=True)
        chosen = jnp.where(near < jnp.inf, last, num_boxes)[:, :-1]
        candidates = boxes.points.at[chosen].get(mode="fill", fill_value=0.0)
        rows = boxes.rows.at[chosen].get(mode="fill", fill_value=_NO_ROW)
        seen = candidates.reshape(num_groups, -1, 3), rows.reshape(num_groups, -1)
        new = _nearest(groups.points, groups.rows != _NO_ROW, *seen, k)
        squared, rows = (jnp.concatenate(pair, -1) for pair in zip(found, new, strict=True))
        found, gap, number = least(squared, rows, k), near[:, -1], last[:, -1]
        left = jnp.stack([left[1], pending(found, gap).mean()])
        return found, gap, number, left, turn + 1

    gap, number = (x[:, 0] for x in least(gaps, numbers, 1))
    found = jnp.full((num_groups, size, k), jnp.inf), jnp.full((num_groups, size, k), _NO_ROW)
    left = jnp.stack([jnp.inf, pending(found, gap).mean()])
    begin = found, gap, number, left, jnp.zeros((), jnp.int32)
    found, gap, *_ = jax.lax.while_loop(is_worth_a_round, look, begin)
    return *found, pending(found, gap)


def _compare_rest(
    queries: Float[JaxArray, "q 3"], found: Found, left: Bool[JaxArray, "q"], boxes: Boxes
) -> Found:
    """Return what was found, and for queries that are left the nearest of all points.

    Args:
      queries: [m].
      found: squared distances [m^2] and rows.
      left: queries that may have nearer points, of points far apart.
      boxes: all points.
    """
    num_queries, num_points, k = queries.shape[0], boxes.rows.size, found[0].shape[1]
    together = min(num_queries, max(1, _PASS_ENTRIES // num_points))
    everything = boxes.points.reshape(num_points, 3), boxes.rows.reshape(num_points)

    def compare(state: tuple[Found, Bool[JaxArray, "q"]]) -> tuple[Found, Bool[JaxArray, "q"]]:
        found, left = state
        some = jnp.nonzero(left, size=together, fill_value=num_queries)[0]
        few = queries.at[some].get(mode="clip")
        new = _nearest(few, some < num_queries, *everything, k)
        squared, rows = (x.at[some].set(y, mode="drop") for x, y in zip(found, new, strict=True))
        return (squared, rows), left.at[some].set(False, mode="drop")

    return jax.lax.while_loop(lambda state: state[1].any(), compare, (found, left))[0]


def _nearest(
    queries: Float[JaxArray, "*g q 3"],
    wanted: Bool[JaxArray, "*g q"],
    points: Float[JaxArray, "*#g m 3"],
    rows: Int[JaxArray, "*#g m"],
    k: int,
) -> Found:
    """Return squared distances [m^2] and rows of the k nearest of some points."""
    # Differences, not |q|^2 - 2 q.p + |p|^2, which loses millimetres to cancellation.
    squared = sum(
        (queries[..., :, None, axis] - points[..., None, :, axis]) ** 2 for axis in range(3)
    )
    known = wanted[..., None] & (rows != _NO_ROW)[..., None, :]
    return least(jnp.where(known, squared, jnp.inf), rows[..., None, :], k)


def _gaps(groups: Boxes, boxes: Boxes) -> Float[JaxArray, "g b"]:
    """Return squared distances [m^2] that no query's to a point falls below; inf of empty boxes.

    Less by more than what rounding may add to them.
    """
    below = boxes.low[None] - groups.high[:, None]
    above = groups.low[:, None] - boxes.high[None]
    apart = jnp.maximum(jnp.maximum(below, above), 0.0)
    filled = (boxes.low <= boxes.high).all(-1)[None] & (groups.low <= groups.high).all(-1)[:, None]
    squared = sum(jnp.where(filled, apart[..., axis], 0.0) ** 2 for axis in range(3))
    return jnp.where(filled, squared * (1 - 1e-6), jnp.inf)


def least(
    values: Float[JaxArray, "*batch m"],
    numbers: Int[JaxArray, "*#batch m"],
    count: int,
    after: tuple[Float[JaxArray, "*batch"], Int[JaxArray, "*batch"]] | None = None,
    *,
    inclusive: bool = False,
) -> tuple[Float[JaxArray, "*batch count"], Int[JaxArray, "*batch count"]]:
    """Return the least values and their numbers in order, of equal values the lesser numbers first.

    One pass per value: for few of them less than a sort, of which `top_k` is one on GPUs.

    Args:
      values: not NaN; inf is never found.
      numbers: different ones of a row.
      count: how many; inf and _NO_ROW where there are fewer.
      after: a value and a number; what comes before is left out.
      inclusive: that value and number themselves may be found.
    """
    if after is None:
        after = jnp.full(values.shape[:-1], -jnp.inf), jnp.full(values.shape[:-1], -1, jnp.int32)
    first = *after, jnp.full((), inclusive)

    def next_one(last: tuple[jax.Array, jax.Array, jax.Array], _: None) -> tuple[Any, Any]:
        value, number, itself = last[0][..., None], last[1][..., None], last[2]
        comes = (numbers > number) | ((numbers == number) & itself)
        comes = ((values > value) | ((values == value) & comes)) & (values < jnp.inf)
        least = jnp.where(comes, values, jnp.inf).min(-1)
        equal = comes & (values == least[..., None])
        found = least, jnp.where(equal, numbers, _NO_ROW).min(-1)
        return (*found, jnp.zeros((), bool)), found

    # A loop of the program: unrolled, a model's searches take a GPU's compiler a minute.
    values, numbers = jax.lax.scan(next_one, first, None, count)[1]
    return jnp.moveaxis(values, 0, -1), jnp.moveaxis(numbers, 0, -1)
