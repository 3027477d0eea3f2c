"""Compiled host form of sums under annular kernels.

Neither the gathered features nor a scatter exist: the backward pass groups neighbours by particle
and sums each particle's cotangent in a fixed order, so results do not depend on threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import fast_njit, group_by, parallel_njit
from hdvpd.kernels.gaussian import LEAST_POWER, gaussian
from hdvpd.kernels.lanes import COLUMNS, sum_of_rows

_F = np.float32
_EPS = _F(1e-12)
# Queries of a block.
_BLOCK = 64


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
    rows, neighbors, kernels = queries.shape[0], indices.shape[1], radii.shape[0]
    for block in prange((rows + _BLOCK - 1) // _BLOCK):
        first, last = block * _BLOCK, min((block + 1) * _BLOCK, rows)
        distances = np.empty(neighbors, np.float32)
        scaled = np.empty((_BLOCK * kernels, neighbors), np.float32)
        powers, weights = np.empty_like(scaled), np.empty_like(scaled)
        _scale(
            positions, queries, indices, found, radii, bandwidths, first, last, distances, scaled
        )
        numbers = (last - first) * kernels * neighbors
        gaussian(scaled.ravel()[:numbers], powers.ravel(), weights.ravel())
        _add_up(features, indices, found, first, last, weights, sums)


@fast_njit()
@no_type_check
def _scale(positions, queries, indices, found, radii, bandwidths, first, last, distances, scaled):
    """Fill in (d - r_a) / b_a, a row per query and kernel; what is not found is infinitely far."""
    for query in range(first, last):
        for neighbor in range(indices.shape[1]):
            particle = indices[query, neighbor]
            x = positions[particle, 0] - queries[query, 0]
            y = positions[particle, 1] - queries[query, 1]
            z = positions[particle, 2] - queries[query, 2]
            squared = x * x + y * y + z * z + _EPS if found[query, neighbor] else _F(np.inf)
            distances[neighbor] = np.sqrt(squared)
        for kernel in range(radii.shape[0]):
            row, factor = (query - first) * radii.shape[0] + kernel, 1 / bandwidths[kernel]
            for neighbor in range(indices.shape[1]):
                scaled[row, neighbor] = (distances[neighbor] - radii[kernel]) * factor


@fast_njit()
@no_type_check
def _add_up(features, indices, found, first, last, weights, sums):
    """Fill in the sums of queries from their weights."""
    channels, kernels = features.shape[1], sums.shape[1]
    whole = channels // COLUMNS * COLUMNS
    for query in range(first, last):
        number = 0
        for neighbor in range(indices.shape[1]):
            number = neighbor + 1 if found[query, neighbor] else number
        for kernel in range(kernels):
            row = (query - first) * kernels + kernel
            for channel in range(0, whole, COLUMNS):
                sum_of_rows(weights, row, indices, query, number, features, channel, sums, kernel)
            for channel in range(whole, channels):
                total = np.float32(0)
                for neighbor in range(number):
                    total += weights[row, neighbor] * features[indices[query, neighbor], channel]
                sums[query, kernel, channel] = total
            total = np.float32(0)
            for neighbor in range(number):
                total += weights[row, neighbor]
            sums[query, kernel, channels] = total


@parallel_njit()
@no_type_check
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
    channels = features.shape[1]
    for particle in prange(positions.shape[0]):
        positions_bar[particle] = 0.0
        features_bar[particle] = 0.0
        for position in range(offsets[particle], offsets[particle + 1]):
            query = slots[position] // indices.shape[1]
            x = positions[particle, 0] - queries[query, 0]
            y = positions[particle, 1] - queries[query, 1]
            z = positions[particle, 2] - queries[query, 2]
            distance = np.sqrt(x * x + y * y + z * z + _EPS)
            distance_bar = np.float32(0.0)
            for kernel in range(radii.shape[0]):
                scaled = (distance - radii[kernel]) / bandwidths[kernel]
                power = -scaled * scaled
                weight = np.exp(power) if power > LEAST_POWER else np.float32(0)
                weight_bar = sums_bar[query, kernel, channels]
                for channel in range(channels):
                    weight_bar += sums_bar[query, kernel, channel] * features[particle, channel]
                    features_bar[particle, channel] += weight * sums_bar[query, kernel, channel]
                distance_bar -= weight_bar * weight * 2 * scaled / bandwidths[kernel]
            positions_bar[particle, 0] += distance_bar * x / distance
            positions_bar[particle, 1] += distance_bar * y / distance
            positions_bar[particle, 2] += distance_bar * z / distance
