"""Compiled host form of attention along walks.

No gathered [t, e, c] array exists: each token's loop reads the rows it needs, which is fast where
near tokens have near rows. Sums run in a fixed order whatever the number of threads, so results are
reproducible bit for bit on one machine.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import compiled_njit, parallel_njit


@compiled_njit(inline="always")
@no_type_check
def _score(
    query: np.ndarray,
    key: np.ndarray,
    modulation: np.ndarray,
    loads: np.ndarray,
    token: int,
    entry: int,
    node: int,
) -> tuple[np.float32, np.float32]:
    """Return q . k and the mask, sum_l f_l W^l, of an entry of a token."""
    similarity = np.float32(0.0)
    for feature in range(query.shape[1]):
        similarity += query[token, feature] * key[node, feature]
    mask = np.float32(0.0)
    for hop in range(modulation.shape[0]):
        mask += modulation[hop] * loads[token, entry, hop]
    return similarity, mask


@parallel_njit()
@no_type_check
def forward(
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
    for token in prange(query.shape[0]):
        out[token] = 0.0
        total = np.float32(0.0)
        for entry in range(num_entries[token]):
            node = nodes[token, entry]
            similarity, mask = _score(query, key, modulation, loads, token, entry, node)
            weight = mask * similarity
            total += weight
            for channel in range(value.shape[1]):
                out[token, channel] += weight * value[node, channel]
        normalizer[token] = total
        for channel in range(value.shape[1]):
            out[token, channel] /= total


@parallel_njit()
@no_type_check
def _backward_rows(
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
    modulation_bar: np.ndarray,
) -> None:
    channels = value.shape[1]
    for token in prange(query.shape[0]):
        query_bar[token] = 0.0
        modulation_bar[token] = 0.0
        shift = np.float32(0.0)
        for channel in range(channels):
            shift += out_bar[token, channel] * out[token, channel]
        scale = np.float32(1.0) / normalizer[token]
        for entry in range(num_entries[token]):
            node = nodes[token, entry]
            # With out = sum_e w_e v_e / sum_e w_e, the cotangent of w_e is
            # out_bar . (v_e - out) / sum_e w_e.
            gain = np.float32(0.0)
            for channel in range(channels):
                gain += out_bar[token, channel] * value[node, channel]
            similarity, mask = _score(query, key, modulation, loads, token, entry, node)
            weight_bar = (gain - shift) * scale
            for hop in range(modulation.shape[0]):
                modulation_bar[token, hop] += weight_bar * similarity * loads[token, entry, hop]
            similarity_bar = weight_bar * mask
            coefficients[token, entry, 0] = similarity_bar
            coefficients[token, entry, 1] = mask * similarity * scale
            for feature in range(query.shape[1]):
                query_bar[token, feature] += similarity_bar * key[node, feature]


@parallel_njit()
@no_type_check
def _backward_columns(
    query: np.ndarray,
    coefficients: np.ndarray,
    out_bar: np.ndarray,
    incoming: np.ndarray,
    incoming_offsets: np.ndarray,
    key_bar: np.ndarray,
    value_bar: np.ndarray,
) -> None:
    width = coefficients.shape[1]
    for node in prange(query.shape[0]):
        key_bar[node] = 0.0
        value_bar[node] = 0.0
        for position in range(incoming_offsets[node], incoming_offsets[node + 1]):
            token, entry = divmod(incoming[position], width)
            similarity_bar = coefficients[token, entry, 0]
            weight = coefficients[token, entry, 1]
            for feature in range(query.shape[1]):
                key_bar[node, feature] += similarity_bar * query[token, feature]
            for channel in range(out_bar.shape[1]):
                value_bar[node, channel] += weight * out_bar[token, channel]


def backward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    modulation: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    incoming: np.ndarray,
    incoming_offsets: np.ndarray,
    out: np.ndarray,
    normalizer: np.ndarray,
    out_bar: np.ndarray,
    query_bar: np.ndarray,
    key_bar: np.ndarray,
    value_bar: np.ndarray,
    modulation_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of query, key, value and modulation."""
    # Per entry the cotangent of q . k and the weight, side by side: columns read both at once.
    coefficients = np.empty((*nodes.shape, 2), np.float32)
    per_token = np.empty((len(query), len(modulation)), np.float32)
    _backward_rows(
        query, key, value, modulation, nodes, loads, num_entries, out, normalizer, out_bar,
        query_bar, coefficients, per_token,
    )  # fmt: skip
    _backward_columns(query, coefficients, out_bar, incoming, incoming_offsets, key_bar, value_bar)
    modulation_bar[:] = per_token.sum(0, dtype=np.float64)
