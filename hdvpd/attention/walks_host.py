"""Compiled host code of the walk graph and of attention along it (numba).

Twins of `walks.exact_walks` and `grf.walk_attention` in plain JAX. No gathered [t, e, c] array
exists: each token's loop reads the rows it needs, which is fast where near tokens have near rows.
Sums run in a fixed order whatever the number of threads, so results are reproducible bit for bit on
one machine.

`no_type_check` keeps the tests' shape checker from wrapping what numba has to compile.
"""

from typing import no_type_check

import numpy as np
from numba import njit, prange

from hdvpd.kernels.compiled import group_by, parallel_njit


@njit(cache=True, parallel=True)
@no_type_check
def _follow(
    neighbors: np.ndarray,
    weights: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
) -> None:
    num_tokens, k = neighbors.shape
    width, num_hops = nodes.shape[1], loads.shape[2] - 1
    for token in prange(num_tokens):
        nodes[token] = token
        loads[token] = 0.0
        walkers = np.empty(width, np.int32)
        carried = np.empty(width, np.float32)
        walkers[0], carried[0] = token, 1.0
        loads[token, 0, 0] = 1.0
        used, start, end = 1, 0, 1
        for hop in range(1, num_hops + 1):
            write = end
            for walker in range(start, end):
                here = walkers[walker]
                for branch in range(k):
                    node, load = neighbors[here, branch], carried[walker] * weights[here, branch]
                    walkers[write], carried[write] = node, load
                    write += 1
                    entry = 0
                    while entry < used and nodes[token, entry] != node:
                        entry += 1
                    if entry == used:
                        nodes[token, entry] = node
                        used += 1
                    loads[token, entry, hop] += load
            start, end = end, write
        num_entries[token] = used


def exact_walks(
    neighbors: np.ndarray,
    weights: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    incoming: np.ndarray,
    incoming_offsets: np.ndarray,
) -> None:
    """Fill in the fields of `Walks` with equal nodes merged."""
    _follow(neighbors, weights, nodes, loads, num_entries)
    group_by(nodes, _used(nodes, num_entries), incoming, incoming_offsets)


def _used(nodes: np.ndarray, num_entries: np.ndarray) -> np.ndarray:
    return np.arange(nodes.shape[1], dtype=np.int32)[None] < num_entries[:, None]


@njit(cache=True, parallel=True)
@no_type_check
def _merge(
    listed: np.ndarray,
    shares: np.ndarray,
    hops: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
) -> None:
    for token in prange(listed.shape[0]):
        nodes[token] = token
        loads[token] = 0.0
        used = 0
        for column in range(listed.shape[1]):
            if shares[token, column] == 0:
                continue
            node = listed[token, column]
            entry = 0
            while entry < used and nodes[token, entry] != node:
                entry += 1
            if entry == used:
                nodes[token, entry] = node
                used += 1
            loads[token, entry, hops[column]] += shares[token, column]
        num_entries[token] = used


def merge(
    listed: np.ndarray,
    shares: np.ndarray,
    hops: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    incoming: np.ndarray,
    incoming_offsets: np.ndarray,
) -> None:
    """Fill in the fields of `Walks` for listed entries, equal nodes of a row merged.

    Args:
      listed: (t, e) node of every entry.
      shares: (t, e) its load; entries without load are dropped.
      hops: (e,) hop at which it has that load.
      nodes: the first of the fields to fill in.
      loads: see `Walks`.
      num_entries: see `Walks`.
      incoming: see `Walks`.
      incoming_offsets: see `Walks`.
    """
    _merge(listed, shares, hops, nodes, loads, num_entries)
    group_by(nodes, _used(nodes, num_entries), incoming, incoming_offsets)


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
            similarity = np.float32(0.0)
            for feature in range(query.shape[1]):
                similarity += query[token, feature] * key[node, feature]
            mask = np.float32(0.0)
            for hop in range(modulation.shape[0]):
                mask += modulation[hop] * loads[token, entry, hop]
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
    hops = modulation.shape[0]
    channels = value.shape[1]
    features = query.shape[1]
    for token in prange(query.shape[0]):
        query_bar[token] = 0.0
        modulation_bar[token] = 0.0
        shift = np.float32(0.0)
        for channel in range(channels):
            shift += out_bar[token, channel] * out[token, channel]
        scale = np.float32(1.0) / normalizer[token]
        for entry in range(num_entries[token]):
            node = nodes[token, entry]
            gain = np.float32(0.0)
            for channel in range(channels):
                gain += out_bar[token, channel] * value[node, channel]
            similarity = np.float32(0.0)
            for feature in range(features):
                similarity += query[token, feature] * key[node, feature]
            weight_bar = (gain - shift) * scale
            mask = np.float32(0.0)
            for hop in range(hops):
                load = loads[token, entry, hop]
                mask += modulation[hop] * load
                modulation_bar[token, hop] += weight_bar * similarity * load
            similarity_bar = weight_bar * mask
            coefficients[token, entry, 0] = similarity_bar
            coefficients[token, entry, 1] = mask * similarity * scale
            for feature in range(features):
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
