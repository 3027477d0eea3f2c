"""Compiled host form of labels on a graph of neighbours."""

from typing import no_type_check

import numpy as np

from hdvpd.kernels.compiled import compiled_njit


@compiled_njit()
@no_type_check
def connect(
    members: np.ndarray, linked: np.ndarray, indices: np.ndarray, label: np.ndarray
) -> None:
    """Fill in the largest number of every member's component, -1 for others.

    Sets are joined under the larger of their roots (Tarjan, J. ACM 1975).

    Args:
      members: (n,) which particles are of the graph.
      linked: (n, k) which neighbours a particle hangs together with, among members.
      indices: (n, k) of the neighbours.
      label: (n,).
    """
    for node in range(len(members)):
        label[node] = node
    for node in range(len(members)):
        if not members[node]:
            continue
        for place in range(indices.shape[1]):
            if linked[node, place] and members[indices[node, place]]:
                one, other = _root(label, node), _root(label, indices[node, place])
                label[min(one, other)] = max(one, other)
    # A parent is larger than its children.
    for node in range(len(members) - 1, -1, -1):
        label[node] = label[label[node]] if members[node] else -1


@compiled_njit(inline="always")
@no_type_check
def _root(parent, node):
    """Return the last of a node's ancestors; each node on the way then skips one."""
    while parent[node] != node:
        parent[node] = parent[parent[node]]
        node = parent[node]
    return node


@compiled_njit()
@no_type_check
def follow(
    label: np.ndarray,
    linked: np.ndarray,
    distances: np.ndarray,
    indices: np.ndarray,
    rounds: int,
    told: np.ndarray,
) -> None:
    """Fill in what `dynamics.components.followed` says.

    Args:
      label: (n,) of the particles, -1 without.
      linked: (n, k) which neighbours a particle may follow.
      distances: (n, k) of the neighbours [m].
      indices: (n, k) of the neighbours.
      rounds: how many.
      told: (n,).
    """
    before = label.copy()
    for _ in range(rounds):
        for node in range(len(label)):
            told[node] = before[node]
            nearest = np.float32(np.inf)
            if before[node] >= 0:
                continue
            for place in range(indices.shape[1]):
                theirs = before[indices[node, place]]
                if linked[node, place] and theirs >= 0 and distances[node, place] < nearest:
                    nearest, told[node] = distances[node, place], theirs
        for node in range(len(label)):
            before[node] = told[node]
