"""Compiled host form of walks on a graph, merged as they are made.

In which entry of a row a node stands is kept for every node: a search of the row would be a guess
of the processor each time. A table is of some consecutive tokens, whose numbers grow, so that what
it holds of the tokens before needs no clearing.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import compiled_njit, exact_parallel_njit

_TABLES, _MORE, _MANY = 16, 64, 2**15
"""Parts of the tokens, each with a table of all nodes; more for so many tokens."""


@compiled_njit()
@no_type_check
def _table(num_nodes):
    """Return a table in which no node has an entry."""
    places = np.empty(num_nodes, np.int64)
    for node in range(num_nodes):
        places[node] = -1
    return places


@compiled_njit(inline="always")
@no_type_check
def _enter(nodes, token, used, node, places):
    """Return the entry of a row in which a node stands, which it gets if it has none yet."""
    first = np.int64(token) * nodes.shape[1]
    entry = places[node] - first
    entry = entry if entry >= 0 else np.int64(used)
    nodes[token, entry] = node
    places[node] = first + entry
    return entry


@exact_parallel_njit()
@no_type_check
def follow(
    neighbors: np.ndarray,
    weights: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
) -> None:
    """Fill in nodes, loads and their number for all walks on neighbour lists, equal nodes merged.

    (t, k) `neighbors` and `weights` are the out-neighbours and W of the edges to them.
    """
    num_tokens = neighbors.shape[0]
    width, num_hops = nodes.shape[1], loads.shape[2] - 1
    tables = _TABLES if num_tokens < _MANY else _MORE
    for table in prange(tables):
        places = _table(num_tokens)
        walkers, carried = np.empty(width, np.int32), np.empty(width, np.float32)
        start, end = table * num_tokens // tables, (table + 1) * num_tokens // tables
        for token in range(start, end):
            num_entries[token] = _follow(
                neighbors, weights, token, num_hops, walkers, carried, places, nodes, loads
            )


@compiled_njit()
@no_type_check
def _follow(neighbors, weights, token, num_hops, walkers, carried, places, nodes, loads):
    """Fill in a token's nodes and loads; return their number."""
    _clear(token, nodes, loads)
    places[token] = np.int64(token) * nodes.shape[1]
    walkers[0], carried[0], loads[token, 0, 0] = token, 1, 1
    # The walks of one hop, from start to end, breed those of the next behind them.
    used, start, end = 1, 0, 1
    for hop in range(1, num_hops + 1):
        write = end
        for walker in range(start, end):
            here = walkers[walker]
            for branch in range(neighbors.shape[1]):
                node, load = neighbors[here, branch], carried[walker] * weights[here, branch]
                walkers[write], carried[write] = node, load
                write += 1
                entry = _enter(nodes, token, used, node, places)
                used = max(used, entry + 1)
                loads[token, entry, hop] += load
        start, end = end, write
    return used


@compiled_njit(inline="always")
@no_type_check
def _clear(token, nodes, loads):
    for entry in range(nodes.shape[1]):
        nodes[token, entry] = token
    row = loads[token].reshape(-1)
    for place in range(row.shape[0]):
        row[place] = 0


@exact_parallel_njit()
@no_type_check
def merge(
    listed: np.ndarray,
    shares: np.ndarray,
    hops: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
) -> None:
    """Fill in nodes, loads and their number for listed entries, equal nodes of a row merged.

    Entry e of a token is at the node `listed` (t, e) with the load `shares` (t, e), which it has at
    the hop `hops` (e,); entries without load are dropped.
    """
    num_tokens = listed.shape[0]
    tables = _TABLES if num_tokens < _MANY else _MORE
    for table in prange(tables):
        places = _table(num_tokens)
        start, end = table * num_tokens // tables, (table + 1) * num_tokens // tables
        for token in range(start, end):
            num_entries[token] = _merge(listed, shares, hops, token, places, nodes, loads)


@compiled_njit()
@no_type_check
def _merge(listed, shares, hops, token, places, nodes, loads):
    """Fill in a token's nodes and loads; return their number."""
    _clear(token, nodes, loads)
    used = 0
    for column in range(listed.shape[1]):
        if shares[token, column] != 0:
            entry = _enter(nodes, token, used, listed[token, column], places)
            used = max(used, entry + 1)
            loads[token, entry, hops[column]] += shares[token, column]
    return used


@compiled_njit()
@no_type_check
def order(
    nodes: np.ndarray, num_entries: np.ndarray, incoming: np.ndarray, incoming_offsets: np.ndarray
) -> None:
    """Fill in the order of used entries by node, which gradients alone ask for.

    By counting, as `compiled.group_by` does for any slots.
    """
    num_rows, width = nodes.shape
    incoming_offsets[:] = 0
    for row in range(num_rows):
        for column in range(num_entries[row]):
            incoming_offsets[nodes[row, column] + 1] += 1
    for node in range(len(incoming_offsets) - 1):
        incoming_offsets[node + 1] += incoming_offsets[node]
    position = incoming_offsets[:-1].copy()
    incoming[incoming_offsets[-1] :] = 0
    for row in range(num_rows):
        for column in range(num_entries[row]):
            node = nodes[row, column]
            incoming[position[node]] = row * width + column
            position[node] += 1
