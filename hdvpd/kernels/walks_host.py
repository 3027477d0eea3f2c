"""Compiled host form of walks on a graph, merged as they are made.

A row has few distinct nodes, so that searching it from the left is quicker than hashing.
"""

from typing import no_type_check

import numpy as np
from numba import njit, prange

from hdvpd.kernels.compiled import group_by


@njit(cache=True, inline="always")
@no_type_check
def _find(nodes: np.ndarray, token: int, used: int, node: int) -> int:
    """Return the entry of a row in which a node stands, the next free one if there is none."""
    entry = 0
    while entry < used and nodes[token, entry] != node:
        entry += 1
    return entry


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
        # The walks of one hop, from start to end, breed those of the next behind them.
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
                    entry = _find(nodes, token, used, node)
                    if entry == used:
                        nodes[token, entry] = node
                        used += 1
                    loads[token, entry, hop] += load
            start, end = end, write
        num_entries[token] = used


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
            entry = _find(nodes, token, used, node)
            if entry == used:
                nodes[token, entry] = node
                used += 1
            loads[token, entry, hops[column]] += shares[token, column]
        num_entries[token] = used


@njit(cache=True)
@no_type_check
def _used(nodes: np.ndarray, num_entries: np.ndarray) -> np.ndarray:
    used = np.zeros(nodes.shape, np.bool_)
    for row in range(len(nodes)):
        used[row, : num_entries[row]] = True
    return used


def follow(
    neighbors: np.ndarray,
    weights: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    incoming: np.ndarray,
    incoming_offsets: np.ndarray,
) -> None:
    """Fill in the fields of `Walks` for all walks on neighbour lists, equal nodes merged.

    (t, k) `neighbors` and `weights` are the out-neighbours and W of the edges to them.
    """
    _follow(neighbors, weights, nodes, loads, num_entries)
    group_by(nodes, _used(nodes, num_entries), incoming, incoming_offsets)


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

    Entry e of a token is at the node `listed` (t, e) with the load `shares` (t, e), which it has at
    the hop `hops` (e,); entries without load are dropped.
    """
    _merge(listed, shares, hops, nodes, loads, num_entries)
    group_by(nodes, _used(nodes, num_entries), incoming, incoming_offsets)
