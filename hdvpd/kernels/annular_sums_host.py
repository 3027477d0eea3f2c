"""Compiled host form of sums under annular kernels.

Neither the gathered features nor a scatter exist: the backward pass groups neighbours by particle
and sums each particle's cotangent in a fixed order, so results do not depend on threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import group_by, parallel_njit

_EPS = np.float32(1e-12)


@parallel_njit()
@no_type_check
def forward(
    positions: np.ndarray,
    features: np.ndarray,
    queries: np.ndarray,
    indices: np.ndarray,
    found: np.ndarray,
    radii: np.ndarray,
    bandwidths: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Fill in the kernel sums (q, a, c + 1)."""
    channels = features.shape[1]
    for query in prange(queries.shape[0]):
        sums[query] = 0.0
        for neighbor in range(indices.shape[1]):
            if not found[query, neighbor]:
                continue
            particle = indices[query, neighbor]
            x = positions[particle, 0] - queries[query, 0]
            y = positions[particle, 1] - queries[query, 1]
            z = positions[particle, 2] - queries[query, 2]
            distance = np.sqrt(x * x + y * y + z * z + _EPS)
            for kernel in range(radii.shape[0]):
                scaled = (distance - radii[kernel]) / bandwidths[kernel]
                weight = np.exp(-scaled * scaled)
                for channel in range(channels):
                    sums[query, kernel, channel] += weight * features[particle, channel]
                sums[query, kernel, channels] += weight


@parallel_njit()
@no_type_check
def _backward(
    positions: np.ndarray,
    features: np.ndarray,
    queries: np.ndarray,
    slots: np.ndarray,
    offsets: np.ndarray,
    num_neighbors: int,
    sums_bar: np.ndarray,
    radii: np.ndarray,
    bandwidths: np.ndarray,
    positions_bar: np.ndarray,
    features_bar: np.ndarray,
) -> None:
    channels = features.shape[1]
    for particle in prange(positions.shape[0]):
        positions_bar[particle] = 0.0
        features_bar[particle] = 0.0
        for position in range(offsets[particle], offsets[particle + 1]):
            query = slots[position] // num_neighbors
            x = positions[particle, 0] - queries[query, 0]
            y = positions[particle, 1] - queries[query, 1]
            z = positions[particle, 2] - queries[query, 2]
            distance = np.sqrt(x * x + y * y + z * z + _EPS)
            distance_bar = np.float32(0.0)
            for kernel in range(radii.shape[0]):
                scaled = (distance - radii[kernel]) / bandwidths[kernel]
                weight = np.exp(-scaled * scaled)
                weight_bar = sums_bar[query, kernel, channels]
                for channel in range(channels):
                    weight_bar += sums_bar[query, kernel, channel] * features[particle, channel]
                    features_bar[particle, channel] += weight * sums_bar[query, kernel, channel]
                distance_bar -= weight_bar * weight * 2 * scaled / bandwidths[kernel]
            positions_bar[particle, 0] += distance_bar * x / distance
            positions_bar[particle, 1] += distance_bar * y / distance
            positions_bar[particle, 2] += distance_bar * z / distance


def backward(
    positions: np.ndarray,
    features: np.ndarray,
    queries: np.ndarray,
    indices: np.ndarray,
    found: np.ndarray,
    sums_bar: np.ndarray,
    radii: np.ndarray,
    bandwidths: np.ndarray,
    positions_bar: np.ndarray,
    features_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of positions and features."""
    slots = np.empty(indices.size, np.int64)
    offsets = np.empty(len(positions) + 1, np.int64)
    group_by(indices, found, slots, offsets)
    _backward(
        positions, features, queries, slots, offsets, indices.shape[1], sums_bar, radii,
        bandwidths, positions_bar, features_bar,
    )  # fmt: skip
