"""Compiled host form of walks on a graph, merged as they are made.

A row has few distinct nodes, so that searching it from the left is quicker than hashing.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import compiled_njit, exact_parallel_njit, group_by


@compiled_njit(inline="always")
@no_type_check
def _find(nodes: np.ndarray, token: int, used: int, node: int) -> int:
    """Return the entry of a row in which a node stands, the next free one if there is none."""
    entry = 0
    while entry < used and nodes[token, entry] != node:
        entry += 1
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


@compiled_njit()
@no_type_check
def _used(nodes: np.ndarray, num_entries: np.ndarray) -> np.ndarray:
    used = np.zeros(nodes.shape, np.bool_)
    for row in range(len(nodes)):
        used[row, : num_entries[row]] = True
    return used


@compiled_njit()
@no_type_check
def order(
    nodes: np.ndarray, num_entries: np.ndarray, incoming: np.ndarray, incoming_offsets: np.ndarray
) -> None:
    """Fill in the order of used entries by node, which gradients alone ask for."""
    group_by(nodes, _used(nodes, num_entries), incoming, incoming_offsets)
