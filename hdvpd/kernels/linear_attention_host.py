"""Host form of linear attention with ReLU features, all heads in blocks of rows.

Sums over all tokens are made of those of fixed parts of the rows, in their order, whatever the
number of threads. A head's columns are too few for numba to make vectors of their loops: they are
vectors of their own here, the last one of a head perhaps with zeros at its end.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, clear, compiled_njit, exact_parallel_njit
from hdvpd.kernels.dense_host import AT_ONCE, parts_of
from hdvpd.kernels.host import each
from hdvpd.kernels.rows_host import add_rows, announce
from hdvpd.kernels.small_products import (
    add_product,
    add_product_transposed,
    add_transposed_product,
)
from hdvpd.kernels.vectors import (
    everywhere,
    load_before,
    store_before,
    sum_of_lanes,
    where_positive,
)

_WIDTH = 16
"""Columns of a vector."""
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


@exact_parallel_njit()
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
    parts = parts_of(rows)
    summaries = np.empty((parts, heads, each_width, each_width), np.float32)
    totals = np.empty((parts, width), np.float32)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((AT_ONCE, width), np.float32)
        clear(summaries[part])
        clear(totals[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            keys = space[: end - begin]
            _weighted_keys(qkv[begin:end], share[begin:end], least, keys)
            add_rows(keys, totals[part : part + 1])
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
        space = np.empty((AT_ONCE, width), np.float32)
        inverses = np.empty((AT_ONCE, heads), np.float32)
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            queries = space[: end - begin]
            _divided_queries(qkv[begin:end], least, total, result[begin:end], queries, inverses)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                add_product(queries[:, columns], summary[head], 0, result[begin:end, columns])


@exact_parallel_njit()
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
    parts = parts_of(rows)
    summaries = np.empty((parts, heads, each_width, each_width), np.float32)
    totals = np.empty((parts, heads, each_width), np.float32)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((2, AT_ONCE, width), np.float32)
        inverses = np.empty((AT_ONCE, heads), np.float32)
        clear(summaries[part])
        clear(totals[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
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


@exact_parallel_njit()
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
    parts = parts_of(rows)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((2, AT_ONCE, width), np.float32)
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
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


@compiled_njit()
@no_type_check
def _weighted_keys(qkv, share, least, keys):
    """Fill in features of keys times shares."""
    width = keys.shape[1]
    little = everywhere(least, _WIDTH)
    for row in range(keys.shape[0]):
        # With the values, which come next.
        announce(qkv, row + _AHEAD, width, 3 * width)
        weight = everywhere(share[row], _WIDTH)
        for column in range(0, width, _WIDTH):
            key = load_before(2 * width, qkv, row, width + column, _WIDTH)
            store_before(width, (where_positive(key, key) + little) * weight, keys, row, column)


@compiled_njit()
@no_type_check
def _divided_queries(qkv, least, total, next_rows, queries, inverses):
    """Fill in features of queries by their products with the total, and one by those products.

    A product is taken as 1 where there is no token. The next rows, needed afterwards, are fetched.
    """
    heads, width = total.shape
    scale, little = everywhere(np.float32(1 / np.sqrt(width)), _WIDTH), everywhere(least, _WIDTH)
    for row in range(queries.shape[0]):
        announce(qkv, row + _AHEAD, 0, heads * width)
        announce(next_rows, row, 0, heads * width)
        for head in range(heads):
            first, end = head * width, (head + 1) * width
            products = everywhere(np.float32(0), _WIDTH)
            for column in range(0, width, _WIDTH):
                query = load_before(end, qkv, row, first + column, _WIDTH)
                query = where_positive(query, query) * scale + little
                products = products + query * load_before(width, total, head, column, _WIDTH)
                store_before(end, query, queries, row, first + column)
            normalizer = sum_of_lanes(products)
            inverse = np.float32(1) / (normalizer if normalizer > 0 else np.float32(1))
            inverses[row, head] = inverse
            factor = everywhere(inverse, _WIDTH)
            for column in range(first, end, _WIDTH):
                store_before(
                    end,
                    load_before(end, queries, row, column, _WIDTH) * factor,
                    queries,
                    row,
                    column,
                )


@compiled_njit()
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
        announce(qkv_bar, row + _AHEAD, 0, heads * width)
        for head in range(heads):
            first, end = head * width, (head + 1) * width
            products = everywhere(np.float32(0), _WIDTH)
            for column in range(first, end, _WIDTH):
                query = load_before(end, queries, row, column, _WIDTH)
                products = products + query * load_before(end, bar, row, column, _WIDTH)
            product = everywhere(sum_of_lanes(products), _WIDTH)
            factor = everywhere(scale * inverses[row, head], _WIDTH)
            for column in range(0, width, _WIDTH):
                place = first + column
                query = load_before(end, queries, row, place, _WIDTH)
                sums = load_before(width, total_bar, head, column, _WIDTH)
                store_before(width, sums - product * query, total_bar, head, column)
                part = product * load_before(width, total, head, column, _WIDTH)
                query_bar = factor * (load_before(end, bar, row, place, _WIDTH) - part)
                passed = where_positive(load_before(end, qkv, row, place, _WIDTH), query_bar)
                store_before(end, passed, qkv_bar, row, place)


@compiled_njit()
@no_type_check
def _undo_keys(bar, total_bar, share, qkv, qkv_bar):
    """Fill in the cotangent of keys from that of weighted keys, which lacks the total's part."""
    heads, width = total_bar.shape
    for row in range(bar.shape[0]):
        announce(qkv_bar, row + _AHEAD, heads * width, 2 * heads * width)
        weight = everywhere(share[row], _WIDTH)
        for head in range(heads):
            first, end = (heads + head) * width, (heads + head + 1) * width
            for column in range(0, width, _WIDTH):
                place = head * width + column
                key_bar = load_before((head + 1) * width, bar, row, place, _WIDTH)
                key_bar = weight * (key_bar + load_before(width, total_bar, head, column, _WIDTH))
                passed = where_positive(load_before(end, qkv, row, first + column, _WIDTH), key_bar)
                store_before(end, passed, qkv_bar, row, first + column)
