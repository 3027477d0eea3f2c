"""Host form of linear attention with ReLU features, all heads in blocks of rows.

Sums over all tokens are made of those of fixed parts of the rows, in their order, whatever the
number of threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import (
    add_parts,
    add_rows,
    clear,
    copy_rows,
    fast_njit,
    parallel_njit,
)
from hdvpd.kernels.host import each
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
            _features(qkv[begin:end], width, np.float32(1), least, keys)
            _weigh(share[begin:end], keys)
            add_rows(keys, totals[part])
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                values = slice(2 * width + head * each_width, 2 * width + (head + 1) * each_width)
                add_transposed_product(
                    keys[:, columns], qkv[begin:end, values], 1, summaries[part, head]
                )
    add_parts(summaries, summary)
    add_parts(totals.reshape(parts, heads, each_width), total)
    scale = np.float32(1 / np.sqrt(each_width))
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((_AT_ONCE, width), np.float32)
        per_head = np.empty((_AT_ONCE, heads), np.float32)
        for begin in range(part * rows // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            queries, normalizers = space[: end - begin], per_head[: end - begin]
            _features(qkv[begin:end], 0, scale, least, queries)
            _normalize(queries, total, normalizers)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                add_product(queries[:, columns], summary[head], 0, result[begin:end, columns])
            _divide(normalizers, result[begin:end])


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
    scale = np.float32(1 / np.sqrt(each_width))
    summaries = np.empty((parts, heads, each_width, each_width), np.float32)
    totals = np.empty((parts, width), np.float32)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((3, _AT_ONCE, width), np.float32)
        per_head = np.empty((_AT_ONCE, heads), np.float32)
        clear(summaries[part])
        clear(totals[part])
        for begin in range(part * rows // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            queries, divided = space[0, : end - begin], space[1, : end - begin]
            sums, normalizers = space[2, : end - begin], per_head[: end - begin]
            _features(qkv[begin:end], 0, scale, least, queries)
            _normalize(queries, total, normalizers)
            copy_rows(result_bar[begin:end], divided)
            _divide(normalizers, divided)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                add_product(queries[:, columns], summary[head], 0, sums[:, columns])
                add_transposed_product(
                    queries[:, columns], divided[:, columns], 1, summaries[part, head]
                )
            # In place of a normalizer its cotangent.
            _normalize_back(divided, sums, normalizers)
            _add_weighted(normalizers, queries, totals[part])
            _spread(normalizers, total, sums)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                add_product_transposed(divided[:, columns], summary[head], 1, sums[:, columns])
            _undo_features(qkv[begin:end], 0, scale, sums, qkv_bar[begin:end])
    summary_bar, total_bar = np.empty_like(summary), np.empty(width, np.float32)
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
    heads, each_width = summary_bar.shape[:2]
    parts = min(max(rows // _PART, 1), _MOST_PARTS)
    for part in prange(parts):
        last = (part + 1) * rows // parts
        space = np.empty((2, _AT_ONCE, width), np.float32)
        for begin in range(part * rows // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            keys, bar = space[0, : end - begin], space[1, : end - begin]
            _features(qkv[begin:end], width, np.float32(1), least, keys)
            _weigh(share[begin:end], keys)
            _repeat(total_bar, bar)
            for head in range(heads):
                columns = slice(head * each_width, (head + 1) * each_width)
                values = slice(2 * width + head * each_width, 2 * width + (head + 1) * each_width)
                add_product_transposed(
                    qkv[begin:end, values], summary_bar[head], 1, bar[:, columns]
                )
                add_product(keys[:, columns], summary_bar[head], 0, qkv_bar[begin:end, values])
            _weigh(share[begin:end], bar)
            _undo_features(qkv[begin:end], width, np.float32(1), bar, qkv_bar[begin:end])


@fast_njit()
@no_type_check
def _features(qkv, first, scale, least, features):
    """Fill in ReLU of the columns from `first` on, scaled, and a little."""
    for row in range(features.shape[0]):
        for column in range(features.shape[1]):
            value = qkv[row, first + column] * scale
            features[row, column] = (value if value > 0 else np.float32(0)) + least


@fast_njit()
@no_type_check
def _undo_features(qkv, first, scale, bar, qkv_bar):
    for row in range(bar.shape[0]):
        for column in range(bar.shape[1]):
            passed = scale if qkv[row, first + column] > 0 else np.float32(0)
            bar[row, column] *= passed
        for column in range(bar.shape[1]):
            qkv_bar[row, first + column] = bar[row, column]


@fast_njit()
@no_type_check
def _weigh(share, rows):
    for row in range(rows.shape[0]):
        factor = share[row]
        for column in range(rows.shape[1]):
            rows[row, column] *= factor


@fast_njit()
@no_type_check
def _normalize(queries, total, normalizers):
    """Fill in what every head's result is divided by; 1 where there is no token."""
    heads, width = total.shape
    for row in range(queries.shape[0]):
        for head in range(heads):
            value = np.float32(0)
            for column in range(width):
                value += queries[row, head * width + column] * total[head, column]
            normalizers[row, head] = value if value > 0 else np.float32(1)


@fast_njit()
@no_type_check
def _divide(normalizers, rows):
    heads = normalizers.shape[1]
    width = rows.shape[1] // heads
    for row in range(rows.shape[0]):
        for head in range(heads):
            factor = np.float32(1) / normalizers[row, head]
            first = head * width
            for column in range(width):
                rows[row, first + column] *= factor


@fast_njit()
@no_type_check
def _normalize_back(divided, sums, normalizers):
    """Replace normalizers by their cotangents, from result_bar / normalizer and the sums."""
    heads = normalizers.shape[1]
    width = sums.shape[1] // heads
    for row in range(sums.shape[0]):
        for head in range(heads):
            product = np.float32(0)
            for column in range(head * width, (head + 1) * width):
                product += divided[row, column] * sums[row, column]
            normalizers[row, head] = -product / normalizers[row, head]


@fast_njit()
@no_type_check
def _add_weighted(weights, rows, total):
    heads = weights.shape[1]
    width = rows.shape[1] // heads
    for row in range(rows.shape[0]):
        for head in range(heads):
            weight = weights[row, head]
            first = head * width
            for column in range(width):
                total[first + column] += weight * rows[row, first + column]


@fast_njit()
@no_type_check
def _spread(weights, total, rows):
    heads, width = total.shape
    for row in range(rows.shape[0]):
        for head in range(heads):
            weight = weights[row, head]
            for column in range(width):
                rows[row, head * width + column] = weight * total[head, column]


@fast_njit()
@no_type_check
def _repeat(row, rows):
    for number in range(rows.shape[0]):
        for column in range(rows.shape[1]):
            rows[number, column] = row[column]
