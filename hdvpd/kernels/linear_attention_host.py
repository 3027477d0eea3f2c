"""Host form of linear attention with ReLU features and the layers about it, in blocks of rows.

Cotangents of queries, keys and values, and what the layer behind gets, stay in the cache. Sums over
all tokens are made of those of fixed parts of the rows, in their order, whatever the number of
threads. A head's columns are too few for numba to make vectors of their loops: they are vectors of
their own here, the last one of a head perhaps with zeros at its end.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import (
    add_parts,
    aligned,
    clear,
    compiled_njit,
    exact_parallel_njit,
)
from hdvpd.kernels.dense_host import AT_ONCE, add_all_parts, parts_of, scaled, shifted, to_norm
from hdvpd.kernels.rows_host import add_rows, add_to, announce, normalize, undo_normalize
from hdvpd.kernels.small_products import (
    add_transposed_product,
    product,
    transposed,
)
from hdvpd.kernels.vector_sums import plus_product
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


@compiled_njit()
@no_type_check
def forward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    kernel: np.ndarray,
    bias: np.ndarray,
    share: np.ndarray,
    least: float,
    out_kernel: np.ndarray,
    out_bias: np.ndarray,
    result: np.ndarray,
    qkv: np.ndarray,
    summary: np.ndarray,
    total: np.ndarray,
) -> None:
    """Fill in the result and what the backward pass needs; see `_to_sums` and `_from_sums`."""
    _to_sums(x, norm, epsilon, kernel, bias, share, least, qkv, summary, total)
    _from_sums(x, least, out_kernel, out_bias, qkv, summary, total, result)


@compiled_njit()
@no_type_check
def backward(
    x: np.ndarray,
    norm: np.ndarray,
    epsilon: float,
    kernel: np.ndarray,
    share: np.ndarray,
    least: float,
    out_kernel: np.ndarray,
    qkv: np.ndarray,
    summary: np.ndarray,
    total: np.ndarray,
    result_bar: np.ndarray,
    x_bar: np.ndarray,
    norm_bar: np.ndarray,
    kernel_bar: np.ndarray,
    bias_bar: np.ndarray,
    out_kernel_bar: np.ndarray,
    out_bias_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of x, norm, both kernels and their biases; see `forward`."""
    query_bar, summary_bar, total_bar = _to_queries(
        qkv, least, summary, total, out_kernel, result_bar, out_kernel_bar, out_bias_bar
    )
    _to_rows(
        x, norm, epsilon, kernel, share, least, qkv, query_bar, summary_bar, total_bar, result_bar,
        x_bar, norm_bar, kernel_bar, bias_bar,
    )  # fmt: skip


@exact_parallel_njit()
@no_type_check
def _to_sums(
    x, norm, epsilon, kernel, bias, share, least, qkv, summary, total,
):  # fmt: skip
    """Fill in queries, keys and values, and their sums over all tokens.

    Args:
      x: (t, d) rows.
      norm: (2, d) scale and offset of the LayerNorm.
      epsilon: added to the variance.
      kernel: (d, 3 d) to queries, keys and values.
      bias: (3 d,).
      share: (t,) weight of every token in the sums.
      least: added to ReLU.
      qkv: (t, 3 d) queries, keys and values, each of all heads.
      summary: (a, w, w) sum over tokens of key feature times value, per head.
      total: (a, w) sum of key features.
    """
    rows, width = x.shape
    heads, each_width = total.shape
    parts = parts_of(rows)
    inner_kernel, inner_bias = scaled(norm, kernel), shifted(norm, kernel, bias)
    summaries = aligned((parts, heads, each_width, each_width))
    totals = aligned((parts, width))
    for part in prange(parts):
        last = (part + 1) * rows // parts
        spaces, factors = aligned((2, AT_ONCE, width)), np.empty(AT_ONCE, np.float32)
        clear(summaries[part])
        clear(totals[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            normed, keys = spaces[0, : end - begin], spaces[1, : end - begin]
            normalize(x[begin:end], epsilon, normed, factors, qkv[begin:end])
            product(normed, inner_kernel, qkv[begin:end])
            add_to(qkv[begin:end], qkv[:0], inner_bias)
            _weighted_keys(qkv[begin:end], share[begin:end], least, keys)
            add_rows(keys, totals[part : part + 1])
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                values = slice(2 * width + head * each_width, 2 * width + (head + 1) * each_width)
                mine = qkv[begin:end, values]
                add_transposed_product(keys[:, columns], mine, summaries[part, head])
    add_parts(summaries, summary)
    add_parts(totals.reshape(parts, heads, each_width), total)


@exact_parallel_njit()
@no_type_check
def _from_sums(
    x, least, out_kernel, out_bias, qkv, summary, total, result,
):  # fmt: skip
    """Fill in the result, (t, d), of the layer behind: `out_kernel`, (d, d), and `out_bias`."""
    rows, width = x.shape
    heads, parts = total.shape[0], parts_of(rows)
    outer_bias = out_bias.reshape(1, -1)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        spaces = aligned((2, AT_ONCE, width))
        inverses = aligned((AT_ONCE, heads))
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            queries, attended = spaces[0, : end - begin], spaces[1, : end - begin]
            _divided_queries(qkv[begin:end], least, total, x[begin:end], queries, inverses)
            _attend(queries, summary, attended)
            product(attended, out_kernel, result[begin:end])
            add_to(result[begin:end], x[begin:end], outer_bias)


@exact_parallel_njit()
@no_type_check
def _to_queries(
    qkv, least, summary, total, out_kernel, result_bar, out_kernel_bar, out_bias_bar,
):  # fmt: skip
    """Fill in the cotangents of the layer behind; return those of queries and of the sums.

    Shapes are as in `_to_sums`; queries are (t, d).
    """
    rows, width = result_bar.shape
    heads, each_width = total.shape
    parts = parts_of(rows)
    back, summary_back = transposed(out_kernel), _transposed_each(summary)
    query_bar = aligned((rows, width))
    summaries = aligned((parts, heads, each_width, each_width))
    totals = aligned((parts, heads, each_width))
    kernel_bars = aligned((parts, width, width))
    bias_bars = aligned((parts, 1, width))
    for part in prange(parts):
        last = (part + 1) * rows // parts
        spaces = aligned((3, AT_ONCE, width))
        inverses = aligned((AT_ONCE, heads))
        clear(summaries[part])
        clear(totals[part])
        clear(kernel_bars[part])
        clear(bias_bars[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            queries, attended = spaces[0, : end - begin], spaces[1, : end - begin]
            bar = spaces[2, : end - begin]
            _divided_queries(qkv[begin:end], least, total, result_bar[begin:end], queries, inverses)
            _attend(queries, summary, attended)
            add_transposed_product(attended, result_bar[begin:end], kernel_bars[part])
            add_rows(result_bar[begin:end], bias_bars[part])
            attended_bar = attended  # which is not needed any more
            product(result_bar[begin:end], back, attended_bar)
            _attend(attended_bar, summary_back, bar)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                add_transposed_product(
                    queries[:, columns], attended_bar[:, columns], summaries[part, head]
                )
            _undo_queries(
                queries, inverses, bar, total, qkv[begin:end], totals[part], query_bar[begin:end]
            )
    summary_bar, total_bar = aligned(summary.shape), aligned(total.shape)
    add_parts(summaries, summary_bar)
    add_parts(totals, total_bar)
    add_all_parts(kernel_bars, out_kernel_bar)
    add_parts(bias_bars, out_bias_bar)
    return query_bar, summary_bar, total_bar


@exact_parallel_njit()
@no_type_check
def _to_rows(
    x, norm, epsilon, kernel, share, least, qkv, query_bar, summary_bar, total_bar, result_bar,
    x_bar, norm_bar, kernel_bar, bias_bar,
):  # fmt: skip
    """Fill in the cotangents of x and of the layer before."""
    rows, width = x.shape
    heads, each_width = total_bar.shape
    parts = parts_of(rows)
    back, summary_back = transposed(scaled(norm, kernel)), _transposed_each(summary_bar)
    kernel_bars = aligned((parts, width, 3 * width))
    bias_bars = aligned((parts, 1, 3 * width))
    for part in prange(parts):
        last = (part + 1) * rows // parts
        spaces, factors = aligned((2, AT_ONCE, width)), np.empty(AT_ONCE, np.float32)
        whole = aligned((AT_ONCE, 3 * width))
        clear(kernel_bars[part])
        clear(bias_bars[part])
        for begin in range(part * rows // parts, last, AT_ONCE):
            end = min(begin + AT_ONCE, last)
            keys, bar = spaces[0, : end - begin], spaces[1, : end - begin]
            qkv_bar = whole[: end - begin]
            _weighted_keys(qkv[begin:end], share[begin:end], least, keys)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                values = slice(2 * width + head * each_width, 2 * width + (head + 1) * each_width)
                product(qkv[begin:end, values], summary_back[head], bar[:, columns])
                product(keys[:, columns], summary_bar[head], qkv_bar[:, values])
            _undo_keys(
                bar, query_bar[begin:end], total_bar, share[begin:end], qkv[begin:end], qkv_bar
            )
            normed = keys  # which are not needed any more
            normalize(x[begin:end], epsilon, normed, factors, result_bar[begin:end])
            add_transposed_product(normed, qkv_bar, kernel_bars[part])
            add_rows(qkv_bar, bias_bars[part])
            product(qkv_bar, back, x_bar[begin:end])
            undo_normalize(normed, factors, result_bar[begin:end], x_bar[begin:end])
    add_all_parts(kernel_bars, kernel_bar)
    add_parts(bias_bars, bias_bar)
    to_norm(norm, kernel, bias_bar, kernel_bar, norm_bar)


@compiled_njit()
@no_type_check
def _transposed_each(summary):
    """Return the transposes of all heads."""
    result = aligned(summary.shape)
    heads, width = summary.shape[0], summary.shape[1]
    for head in range(heads):
        for row in range(width):
            for column in range(width):
                result[head, row, column] = summary[head, column, row]
    return result


@compiled_njit()
@no_type_check
def _attend(queries, summary, attended):
    """Fill in the heads' products of queries and their summaries."""
    heads, width = summary.shape[0], summary.shape[1]
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        product(queries[:, columns], summary[head], attended[:, columns])


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
                here = load_before(width, total, head, column, _WIDTH)
                products = plus_product(products, query, here)
                store_before(end, query, queries, row, first + column)
            normalizer = sum_of_lanes(products)
            inverse = np.float32(1) / (normalizer if normalizer > 0 else np.float32(1))
            inverses[row, head] = inverse
            factor = everywhere(inverse, _WIDTH)
            for column in range(first, end, _WIDTH):
                query = load_before(end, queries, row, column, _WIDTH) * factor
                store_before(end, query, queries, row, column)


@compiled_njit()
@no_type_check
def _undo_queries(queries, inverses, bar, total, qkv, total_bar, qkv_bar):
    """Add to the cotangent of the total and fill in that of queries.

    Args:
      queries: what `_divided_queries` fills in.
      inverses: likewise.
      bar: cotangent of `queries` as if their products with the total were constants.
      total: as in `_to_sums`.
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
                here = load_before(end, bar, row, column, _WIDTH)
                products = plus_product(products, query, here)
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
def _undo_keys(bar, query_bar, total_bar, share, qkv, qkv_bar):
    """Fill in the cotangents of queries and keys.

    Args:
      bar: cotangent of weighted keys but for the total's part.
      query_bar: that of queries.
      total_bar: that of the total.
      share: as in `_to_sums`.
      qkv: likewise.
      qkv_bar: gets the first columns.
    """
    heads, width = total_bar.shape
    for row in range(bar.shape[0]):
        for column in range(0, heads * width, _WIDTH):
            query = load_before(heads * width, query_bar, row, column, _WIDTH)
            store_before(heads * width, query, qkv_bar, row, column)
        weight = everywhere(share[row], _WIDTH)
        for head in range(heads):
            first, end = (heads + head) * width, (heads + head + 1) * width
            for column in range(0, width, _WIDTH):
                place = head * width + column
                key_bar = load_before((head + 1) * width, bar, row, place, _WIDTH)
                key_bar = weight * (key_bar + load_before(width, total_bar, head, column, _WIDTH))
                passed = where_positive(load_before(end, qkv, row, first + column, _WIDTH), key_bar)
                store_before(end, passed, qkv_bar, row, first + column)
