"""Host form of means over points, weighted by a Gaussian of their distance, in blocks of places.

A block's places lie beside each other in vectors; its weights, which no memory ever holds for all
places, are multiplied with the table while they are in the cache.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, clear, fast_njit, parallel_njit
from hdvpd.kernels.small_products import add_transposed_product, product
from hdvpd.kernels.vectors import everywhere, larger, load, power_of_two, squared_length, store

_BLOCK = 64
"""Places of a block."""
_NOTHING, _FARTHEST = np.float32(0), np.float32(-np.inf)
_LEAST_POWER = np.float32(-100)
"""Of two, of a weight before its share: smaller numbers are slow, and weigh nothing."""


@parallel_njit()
@no_type_check
def forward(
    places: np.ndarray,
    points: np.ndarray,
    shares: np.ndarray,
    scale: float,
    table: np.ndarray,
    mean: np.ndarray,
    least: np.ndarray,
) -> None:
    """Fill in means and squared distances of the nearest points.

    Args:
      places: (n, 3).
      points: (p, 3).
      shares: (p,) by which weights are multiplied.
      scale: log2(e) by the squared distance at which a weight is 1 / e.
      table: (p, c) what is averaged.
      mean: (n, c).
      least: (n,).
    """
    count, columns = mean.shape
    for block in prange((count + _BLOCK - 1) // _BLOCK):
        first, number = block * _BLOCK, min(_BLOCK, count - block * _BLOCK)
        weights, spaces = np.empty((points.shape[0], _BLOCK), np.float32), _spaces()
        _weigh(places, first, points, shares, scale, weights, spaces)
        sums = np.empty((_BLOCK, columns), np.float32)
        clear(sums)
        add_transposed_product(weights, table, sums)
        for i in range(number):
            least[first + i] = spaces[_LEAST, i]
            for column in range(columns):
                mean[first + i, column] = sums[i, column] / spaces[_TOTAL, i]


@parallel_njit()
@no_type_check
def backward(
    places: np.ndarray,
    points: np.ndarray,
    shares: np.ndarray,
    scale: float,
    mean: np.ndarray,
    mean_bar: np.ndarray,
    sums: np.ndarray,
) -> None:
    """Fill in the cotangent of the table, and sums for that of the points' shares.

    `sums`, (p, c + 1), gets the table's cotangent; in its last column, for every point, the sum of
    normalised weights times mean . mean_bar.
    """
    count, columns = mean.shape
    blocks = (count + _BLOCK - 1) // _BLOCK
    parts = np.empty((blocks, points.shape[0], columns + 1), np.float32)
    for block in prange(blocks):
        first, number = block * _BLOCK, min(_BLOCK, count - block * _BLOCK)
        weights, spaces = np.empty((points.shape[0], _BLOCK), np.float32), _spaces()
        _weigh(places, first, points, shares, scale, weights, spaces)
        pulls = np.zeros((_BLOCK, columns + 1), np.float32)
        for i in range(number):
            for column in range(columns):
                pull = mean_bar[first + i, column] / spaces[_TOTAL, i]
                pulls[i, column] = pull
                pulls[i, columns] += pull * mean[first + i, column]
        product(weights, pulls, parts[block])
    add_parts(parts, sums)


# Rows of a block's working memory.
_X, _Y, _Z, _LEAST, _TOTAL = range(5)


@fast_njit()
@no_type_check
def _spaces():
    return np.empty((_TOTAL + 1, _BLOCK), np.float32)


@fast_njit()
@no_type_check
def _weigh(places, first, points, shares, scale, weights, spaces):
    """Fill in weights, (p, block), their sums and the least squared distances of a block."""
    last = places.shape[0] - 1
    for i in range(_BLOCK):
        place = places[min(first + i, last)]
        spaces[_X, i], spaces[_Y, i], spaces[_Z, i] = place[0], place[1], place[2]
    x, y = load(spaces, _X, 0, _BLOCK), load(spaces, _Y, 0, _BLOCK)
    z, nothing = load(spaces, _Z, 0, _BLOCK), everywhere(_NOTHING, _BLOCK)
    nearest = everywhere(_FARTHEST, _BLOCK)
    for point in range(points.shape[0]):
        right, up, ahead = x - points[point, 0], y - points[point, 1], z - points[point, 2]
        near = nothing - squared_length(right, up, ahead)
        store(near, weights, point, 0)
        nearest = larger(nearest, near)
    total = nothing
    for point in range(points.shape[0]):
        # Less the nearest, whose weight is 1 before its share.
        power = (load(weights, point, 0, _BLOCK) - nearest) * scale
        weight = power_of_two(larger(everywhere(_LEAST_POWER, _BLOCK), power)) * shares[point]
        store(weight, weights, point, 0)
        total = total + weight
    store(nothing - nearest, spaces, _LEAST, 0)
    store(total, spaces, _TOTAL, 0)
