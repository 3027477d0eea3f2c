"""Host form of linear attention with ReLU features, all heads in blocks of rows.

Sums over all tokens are made of those of fixed parts of the rows, in their order, whatever the
number of threads. A head's columns are too few for numba to make vectors of their loops: they are
vectors of their own here, the last one of a head perhaps with zeros at its end.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, add_rows, clear, fast_njit, parallel_njit
from hdvpd.kernels.host import each
from hdvpd.kernels.lanes import (
    COLUMNS,
    bring_near,
    in_all_lanes,
    load_columns,
    store_columns,
    sum_of_lanes,
    where_positive,
)
from hdvpd.kernels.small_products import (
    add_product,
    add_product_transposed,
    add_transposed_product,
)

_AT_ONCE = 256
"""Rows of a block."""
_PART = 1024
"""Rows of a part at least."""
_MOST_PARTS = 32
_AHEAD = 16
"""Rows between the one at hand and the one that the processor is told to fetch.

Each loop takes a part of longer rows, which the processor does not foresee.
"""


def forward(*arrays: np.ndarray) -> None:
    """Fill in the result and what the backward pass needs.

    Args:
      *arrays: those of `_forward`; there may be further axes in front (`host.each`).
    """
    for x in each((2, 1, 0, 2, 3, 2), *arrays):
        _forward(*x)


def backward(*arrays: np.ndarray) -> None:
    """Fill in the cotangent of queries, keys and values.

    Args:
      *arrays: those of `_to_queries`; there may be further axes in front (`host.each`).
    """
    for x in each((2, 1, 0, 3, 2, 2, 2), *arrays):
        qkv, share, least, _, _, _, qkv_bar = x
        summary_bar, total_bar = _to_queries(*x)
        _to_keys_and_values(qkv, share, least, summary_bar, total_bar, qkv_bar)


@parallel_njit()
@no_type_check
def _forward(
    qkv: np.ndarray,
    share: np.ndarray,
    least: float,
    result: np.ndarray,
    summary: np.ndarray,
    total: np.ndarray,
) -> None:
    """Do what `forward` does.

    Args:
      qkv: (t, 3 d) queries, keys and values, each of all heads.
      share: (t,) weight of every token in the sums.
      least: added to ReLU.
      result: (t, d).
      summary: (a, w, w) sum over tokens of key feature times value, per head.
      total: (a, w) sum of key features.
    """
    rows, width = result.shape
    heads, each_width = total.shape
    parts = min(max(rows // _PART, 1), _MOST_PARTS)
    summaries = np.empty((parts, heads, each_width, each_width), np.float32)
    totals = np.empty((parts, width), np.float32)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((_AT_ONCE, width), np.float32)
        clear(summaries[part])
        clear(totals[part])
        for begin in range(part * rows // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            keys = space[: end - begin]
            _weighted_keys(qkv[begin:end], share[begin:end], least, keys)
            add_rows(keys, totals[part])
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                values = slice(2 * width + head * each_width, 2 * width + (head + 1) * each_width)
                add_transposed_product(
                    keys[:, columns], qkv[begin:end, values], 1, summaries[part, head]
                )
    add_parts(summaries, summary)
    add_parts(totals.reshape(parts, heads, each_width), total)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((_AT_ONCE, width), np.float32)
        inverses = np.empty((_AT_ONCE, heads), np.float32)
        for begin in range(part * rows // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            queries = space[: end - begin]
            _divided_queries(qkv[begin:end], least, total, result[begin:end], queries, inverses)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                add_product(queries[:, columns], summary[head], 0, result[begin:end, columns])


@parallel_njit()
@no_type_check
def _to_queries(
    qkv: np.ndarray,
    share: np.ndarray,
    least: float,
    summary: np.ndarray,
    total: np.ndarray,
    result_bar: np.ndarray,
    qkv_bar: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Fill in the cotangent of queries; return those of the sums, of shapes as in `_forward`."""
    rows, width = result_bar.shape
    heads, each_width = total.shape
    parts = min(max(rows // _PART, 1), _MOST_PARTS)
    summaries = np.empty((parts, heads, each_width, each_width), np.float32)
    totals = np.empty((parts, heads, each_width), np.float32)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((2, _AT_ONCE, width), np.float32)
        inverses = np.empty((_AT_ONCE, heads), np.float32)
        clear(summaries[part])
        clear(totals[part])
        for begin in range(part * rows // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            queries, bar = space[0, : end - begin], space[1, : end - begin]
            _divided_queries(qkv[begin:end], least, total, result_bar[begin:end], queries, inverses)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                add_product_transposed(
                    result_bar[begin:end, columns], summary[head], 0, bar[:, columns]
                )
                add_transposed_product(
                    queries[:, columns], result_bar[begin:end, columns], 1, summaries[part, head]
                )
            _undo_queries(
                queries, inverses, bar, total, qkv[begin:end], totals[part], qkv_bar[begin:end]
            )
    summary_bar, total_bar = np.empty_like(summary), np.empty_like(total)
    add_parts(summaries, summary_bar)
    add_parts(totals, total_bar)
    return summary_bar, total_bar


@parallel_njit()
@no_type_check
def _to_keys_and_values(
    qkv: np.ndarray,
    share: np.ndarray,
    least: float,
    summary_bar: np.ndarray,
    total_bar: np.ndarray,
    qkv_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of keys and values."""
    rows, width = qkv.shape[0], qkv.shape[1] // 3
    heads, each_width = total_bar.shape
    parts = min(max(rows // _PART, 1), _MOST_PARTS)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((2, _AT_ONCE, width), np.float32)
        for begin in range(part * rows // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            keys, bar = space[0, : end - begin], space[1, : end - begin]
            _weighted_keys(qkv[begin:end], share[begin:end], least, keys)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                values = slice(2 * width + head * each_width, 2 * width + (head + 1) * each_width)
                add_product_transposed(
                    qkv[begin:end, values], summary_bar[head], 0, bar[:, columns]
                )
                add_product(keys[:, columns], summary_bar[head], 0, qkv_bar[begin:end, values])
            _undo_keys(bar, total_bar, share[begin:end], qkv[begin:end], qkv_bar[begin:end])


@fast_njit()
@no_type_check
def _weighted_keys(qkv, share, least, keys):
    """Fill in features of keys times shares."""
    width = keys.shape[1]
    little = in_all_lanes(least)
    for row in range(keys.shape[0]):
        # With the values, which come next.
        _announce(qkv, row + _AHEAD, width, 3 * width)
        weight = in_all_lanes(share[row])
        for column in range(0, width, COLUMNS):
            key = load_columns(qkv, row, width + column, 2 * width)
            store_columns((where_positive(key, key) + little) * weight, keys, row, column, width)


@fast_njit()
@no_type_check
def _divided_queries(qkv, least, total, next_rows, queries, inverses):
    """Fill in features of queries by their products with the total, and one by those products.

    A product is taken as 1 where there is no token. The next rows, needed afterwards, are fetched.
    """
    heads, width = total.shape
    scale, little = in_all_lanes(np.float32(1 / np.sqrt(width))), in_all_lanes(least)
    for row in range(queries.shape[0]):
        _announce(qkv, row + _AHEAD, 0, heads * width)
        _announce(next_rows, row, 0, heads * width)
        for head in range(heads):
            first, end = head * width, (head + 1) * width
            products = in_all_lanes(np.float32(0))
            for column in range(0, width, COLUMNS):
                query = load_columns(qkv, row, first + column, end)
                query = where_positive(query, query) * scale + little
                products = products + query * load_columns(total, head, column, width)
                store_columns(query, queries, row, first + column, end)
            normalizer = sum_of_lanes(products)
            inverse = np.float32(1) / (normalizer if normalizer > 0 else np.float32(1))
            inverses[row, head] = inverse
            factor = in_all_lanes(inverse)
            for column in range(first, end, COLUMNS):
                store_columns(
                    load_columns(queries, row, column, end) * factor, queries, row, column, end
                )


@fast_njit()
@no_type_check
def _undo_queries(queries, inverses, bar, total, qkv, total_bar, qkv_bar):
    """Add to the cotangent of the total and fill in that of queries.

    Args:
      queries: what `_divided_queries` fills in.
      inverses: likewise.
      bar: cotangent of `queries` as if their products with the total were constants.
      total: as in `_forward`.
      qkv: likewise.
      total_bar: gets the sum.
      qkv_bar: gets the first columns.
    """
    heads, width = total.shape
    scale = np.float32(1 / np.sqrt(width))
    for row in range(queries.shape[0]):
        _announce(qkv_bar, row + _AHEAD, 0, heads * width)
        for head in range(heads):
            first, end = head * width, (head + 1) * width
            products = in_all_lanes(np.float32(0))
            for column in range(first, end, COLUMNS):
                query = load_columns(queries, row, column, end)
                products = products + query * load_columns(bar, row, column, end)
            product = in_all_lanes(sum_of_lanes(products))
            factor = in_all_lanes(scale * inverses[row, head])
            for column in range(0, width, COLUMNS):
                place = first + column
                query = load_columns(queries, row, place, end)
                sums = load_columns(total_bar, head, column, width)
                store_columns(sums - product * query, total_bar, head, column, width)
                part = product * load_columns(total, head, column, width)
                query_bar = factor * (load_columns(bar, row, place, end) - part)
                passed = where_positive(load_columns(qkv, row, place, end), query_bar)
                store_columns(passed, qkv_bar, row, place, end)


@fast_njit()
@no_type_check
def _undo_keys(bar, total_bar, share, qkv, qkv_bar):
    """Fill in the cotangent of keys from that of weighted keys, which lacks the total's part."""
    heads, width = total_bar.shape
    for row in range(bar.shape[0]):
        _announce(qkv_bar, row + _AHEAD, heads * width, 2 * heads * width)
        weight = in_all_lanes(share[row])
        for head in range(heads):
            first, end = (heads + head) * width, (heads + head + 1) * width
            for column in range(0, width, COLUMNS):
                place = head * width + column
                key_bar = load_columns(bar, row, place, (head + 1) * width)
                key_bar = weight * (key_bar + load_columns(total_bar, head, column, width))
                passed = where_positive(load_columns(qkv, row, first + column, end), key_bar)
                store_columns(passed, qkv_bar, row, first + column, end)


@fast_njit()
@no_type_check
def _announce(rows, row, first, end):
    """Let columns be brought near; there need not be such a row."""
    for column in range(first, end, COLUMNS):
        bring_near(rows, row, column)
