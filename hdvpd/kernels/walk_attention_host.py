"""Compiled host form of attention along walks.

No gathered [t, e, c] array exists: each token's loop reads the rows it needs, which is fast where
near tokens have near rows. Nor do ReLU features: they are made of the projections wherever a row is
read. Sums run in a fixed order whatever the number of threads, so results are reproducible bit for
bit on one machine.

Queries, keys and values are parts of the rows of arrays (t, parts, width): the one part of three
arrays, or three of one, as a dense layer leaves them beside each other.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import inlined_njit, parallel_njit

_F = np.float32
_BLOCK = 64
"""Tokens of a block."""
_APART, _TOGETHER = (0, 0, 0), (0, 1, 2)
"""Parts of the rows that are queries, keys and values."""
_GIVEN = (_F(-np.inf), _F(1), _F(0))
"""Numbers of features, max(x, lowest) * scale + least: those that are given stay as they are."""


def forward(query: np.ndarray, key: np.ndarray, value: np.ndarray, *arrays: np.ndarray) -> None:
    """Fill in the attention's output and its normaliser.

    Args:
      query: (t, m) features.
      key: (t, m) features.
      value: (t, c).
      *arrays: those of `_forward` from modulation on.
    """
    _forward(_GIVEN, _APART, query[:, None], key[:, None], value[:, None], *arrays)


def backward(query: np.ndarray, key: np.ndarray, value: np.ndarray, *arrays: np.ndarray) -> None:
    """Fill in the cotangents of query, key, value and modulation.

    Args:
      query: as of `forward`.
      key: likewise.
      value: likewise.
      *arrays: those of `_backward`, then the cotangents.
    """
    *before, query_bar, key_bar, value_bar, modulation_bar = arrays
    rows = query[:, None], key[:, None], value[:, None]
    bars = query_bar[:, None], key_bar[:, None], value_bar[:, None]
    modulation_bar[:] = _backward(_GIVEN, _APART, rows, bars, *before)


def relu_forward(together: np.ndarray, least: np.ndarray, *arrays: np.ndarray) -> None:
    """Fill in the attention's output and its normaliser.

    Args:
      together: (t, 3 d) queries, keys and values, of which ReLU makes features.
      least: added to ReLU.
      *arrays: those of `_forward` from modulation on.
    """
    rows = _thirds(together)
    _forward(_relu(rows, least), _TOGETHER, rows, rows, rows, *arrays)


def relu_backward(together: np.ndarray, least: np.ndarray, *arrays: np.ndarray) -> None:
    """Fill in the cotangents of `together` and modulation.

    Args:
      together: as of `relu_forward`.
      least: likewise.
      *arrays: those of `_backward`, then the cotangents.
    """
    *before, together_bar, modulation_bar = arrays
    rows, bars = _thirds(together), _thirds(together_bar)
    features = _relu(rows, least)
    modulation_bar[:] = _backward(
        features, _TOGETHER, (rows, rows, rows), (bars, bars, bars), *before
    )


def _thirds(together: np.ndarray) -> np.ndarray:
    return together.reshape(len(together), 3, together.shape[1] // 3)


def _relu(rows: np.ndarray, least: np.ndarray) -> tuple[np.float32, np.float32, np.float32]:
    """Return the numbers of a query's features; keys are not scaled."""
    return _F(0), _F(1 / np.sqrt(rows.shape[2])), _F(least)


@inlined_njit()
@no_type_check
def _cut(number, lowest):
    """Return the larger one; what is no number stays so."""
    return lowest if number < lowest else number


@inlined_njit()
@no_type_check
def _fill_in(features, query, part, token, row):
    """Fill in a query's features; return their product with what is added to a key's."""
    lowest, scale, least = features
    total = _F(0)
    for feature in range(row.shape[0]):
        number = _cut(query[token, part, feature], lowest) * scale + least
        row[feature] = number
        total += number
    return least * total


@inlined_njit()
@no_type_check
def _score(row, key, part, lowest, modulation, loads, token, entry, node):
    """Return row . max(k, lowest) and the mask, sum_l f_l W^l, of an entry of a token."""
    similarity = _F(0)
    for feature in range(row.shape[0]):
        similarity += row[feature] * _cut(key[node, part, feature], lowest)
    mask = _F(0)
    for hop in range(modulation.shape[0]):
        mask += modulation[hop] * loads[token, entry, hop]
    return similarity, mask


@parallel_njit()
@no_type_check
def _forward(
    features: tuple[np.float32, np.float32, np.float32],
    parts: tuple[int, int, int],
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    modulation: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    out: np.ndarray,
    normalizer: np.ndarray,
) -> None:
    """Fill in the attention's output (t, c) and its normaliser (t,)."""
    tokens = query.shape[0]
    q, k, v = parts
    for block in prange((tokens + _BLOCK - 1) // _BLOCK):
        row = np.empty(query.shape[2], np.float32)
        for token in range(block * _BLOCK, min((block + 1) * _BLOCK, tokens)):
            offset = _fill_in(features, query, q, token, row)
            for channel in range(out.shape[1]):
                out[token, channel] = _F(0)
            total = _F(0)
            for entry in range(num_entries[token]):
                node = nodes[token, entry]
                similarity, mask = _score(
                    row, key, k, features[0], modulation, loads, token, entry, node
                )
                weight = mask * (similarity + offset)
                total += weight
                for channel in range(out.shape[1]):
                    out[token, channel] += weight * value[node, v, channel]
            normalizer[token] = total
            for channel in range(out.shape[1]):
                out[token, channel] /= total


@parallel_njit()
@no_type_check
def _backward_rows(
    features: tuple[np.float32, np.float32, np.float32],
    parts: tuple[int, int, int],
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    modulation: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    out: np.ndarray,
    normalizer: np.ndarray,
    out_bar: np.ndarray,
    query_bar: np.ndarray,
    coefficients: np.ndarray,
    modulation_bars: np.ndarray,
) -> None:
    tokens, width = query.shape[0], query.shape[2]
    q, k, v = parts
    lowest, scale, least = features
    for block in prange(modulation_bars.shape[0]):
        row, row_bar = np.empty(width, np.float32), np.empty(width, np.float32)
        for hop in range(modulation.shape[0]):
            modulation_bars[block, hop] = _F(0)
        for token in range(block * _BLOCK, min((block + 1) * _BLOCK, tokens)):
            offset = _fill_in(features, query, q, token, row)
            shift = _F(0)
            for channel in range(out.shape[1]):
                shift += out_bar[token, channel] * out[token, channel]
            for feature in range(width):
                row_bar[feature] = _F(0)
            total = _F(0)
            share = _F(1) / normalizer[token]
            for entry in range(num_entries[token]):
                node = nodes[token, entry]
                # With out = sum_e w_e v_e / sum_e w_e, the cotangent of w_e is
                # out_bar . (v_e - out) / sum_e w_e.
                gain = _F(0)
                for channel in range(out.shape[1]):
                    gain += out_bar[token, channel] * value[node, v, channel]
                similarity, mask = _score(
                    row, key, k, lowest, modulation, loads, token, entry, node
                )
                similarity += offset
                weight_bar = (gain - shift) * share
                mask_bar = weight_bar * similarity
                for hop in range(modulation.shape[0]):
                    modulation_bars[block, hop] += mask_bar * loads[token, entry, hop]
                pull = weight_bar * mask * scale
                total += pull
                coefficients[token, entry, 0] = pull
                coefficients[token, entry, 1] = mask * similarity * share
                for feature in range(width):
                    row_bar[feature] += pull * _cut(key[node, k, feature], lowest)
            rest = least * total
            for feature in range(width):
                passed = query[token, q, feature] > lowest
                query_bar[token, q, feature] = row_bar[feature] + rest if passed else _F(0)


@parallel_njit()
@no_type_check
def _backward_columns(
    features: tuple[np.float32, np.float32, np.float32],
    parts: tuple[int, int, int],
    query: np.ndarray,
    key: np.ndarray,
    coefficients: np.ndarray,
    out_bar: np.ndarray,
    incoming: np.ndarray,
    incoming_offsets: np.ndarray,
    key_bar: np.ndarray,
    value_bar: np.ndarray,
) -> None:
    entries, width = coefficients.shape[1], key.shape[2]
    q, k, v = parts
    lowest, scale, least = features
    for node in prange(key.shape[0]):
        for feature in range(width):
            key_bar[node, k, feature] = _F(0)
        for channel in range(out_bar.shape[1]):
            value_bar[node, v, channel] = _F(0)
        total = _F(0)
        for position in range(incoming_offsets[node], incoming_offsets[node + 1]):
            token, entry = divmod(incoming[position], entries)
            pull, weight = coefficients[token, entry, 0], coefficients[token, entry, 1]
            total += pull
            for feature in range(width):
                key_bar[node, k, feature] += pull * _cut(query[token, q, feature], lowest)
            for channel in range(out_bar.shape[1]):
                value_bar[node, v, channel] += weight * out_bar[token, channel]
        rest = least / scale * total
        for feature in range(width):
            passed = key[node, k, feature] > lowest
            key_bar[node, k, feature] = key_bar[node, k, feature] + rest if passed else _F(0)


def _backward(
    features: tuple[np.float32, np.float32, np.float32],
    parts: tuple[int, int, int],
    rows: tuple[np.ndarray, np.ndarray, np.ndarray],
    bars: tuple[np.ndarray, np.ndarray, np.ndarray],
    modulation: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    incoming: np.ndarray,
    incoming_offsets: np.ndarray,
    out: np.ndarray,
    normalizer: np.ndarray,
    out_bar: np.ndarray,
) -> np.ndarray:
    """Fill in the cotangents of queries, keys and values; return that of the modulation."""
    query_bar, key_bar, value_bar = bars
    # Per entry the cotangent of q . k and the weight, side by side: columns read both at once.
    coefficients = np.empty((*nodes.shape, 2), np.float32)
    modulation_bars = np.empty((-(-len(out) // _BLOCK), len(modulation)), np.float32)
    _backward_rows(
        features, parts, *rows, modulation, nodes, loads, num_entries, out, normalizer, out_bar,
        query_bar, coefficients, modulation_bars,
    )  # fmt: skip
    _backward_columns(
        features, parts, *rows[:2], coefficients, out_bar, incoming, incoming_offsets, key_bar,
        value_bar,
    )  # fmt: skip
    return modulation_bars.sum(0, dtype=np.float64)
