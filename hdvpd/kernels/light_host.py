"""Host form of the light that balls let pass on its way from a lamp.

What a ball dims by less than 4e-8 it does not dim in float32, and most balls are far from most
ways: exponentials are computed for blocks of places in which a ball dims any.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, aligned, fast_njit, inlined_njit, parallel_njit
from hdvpd.kernels.gelu import tanh
from hdvpd.kernels.vector_sums import plus_product
from hdvpd.kernels.vectors import (
    at_most,
    before,
    everywhere,
    larger,
    load,
    power_of_two,
    root,
    squared_length,
    store,
    sum_of_lanes,
)

_F = np.float32
# Places of a block, and what is kept of each: where it is, and the way to the lamp.
_BLOCK = 32
_X, _Y, _Z, _WAY_X, _WAY_Y, _WAY_Z, _AWAY, _NUM_ROWS = range(8)
# Beyond them exp(-t^2) and a logistic function are less than 4e-8.
_LARGEST, _FARTHEST = _F(4.2), _F(-17)
_LOG2_E, _LEAST_POWER = _F(1.44269504088896341), _F(-126)
_SMALLEST, _HALF, _ONE, _TWO, _NONE = _F(1e-12), _F(0.5), _F(1), _F(2), _F(0)


@parallel_njit()
@no_type_check
def forward(
    lamp: np.ndarray,
    spreads: np.ndarray,
    most: float,
    edge: float,
    places: np.ndarray,
    points: np.ndarray,
    passed: np.ndarray,
) -> None:
    """Fill in the share of light that arrives; see `dynamics.shadow.light_blocked`.

    Args:
      lamp: (3,) where it is [m].
      spreads: (p,) 1 / r^2 of every ball [1/m^2].
      most: share that a ball keeps at most.
      edge: length in which light ceases behind a ball [m].
      places: (n, 3) [m].
      points: (p, 3) middles of balls [m].
      passed: (n,).
    """
    count = places.shape[0]
    for block in prange((count + _BLOCK - 1) // _BLOCK):
        ways, kept = aligned((_NUM_ROWS, _BLOCK)), aligned((1, _BLOCK))
        _look_up(lamp, places, block * _BLOCK, ways)
        _dim(ways, points, spreads, most, edge, kept)
        for i in range(min(_BLOCK, count - block * _BLOCK)):
            passed[block * _BLOCK + i] = kept[0, i]


@parallel_njit()
@no_type_check
def backward(
    lamp: np.ndarray,
    spreads: np.ndarray,
    most: float,
    edge: float,
    places: np.ndarray,
    points: np.ndarray,
    passed: np.ndarray,
    passed_bar: np.ndarray,
    lamp_bar: np.ndarray,
    spreads_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of lamp and spreads; shapes are as in `forward`."""
    count = places.shape[0]
    blocks = (count + _BLOCK - 1) // _BLOCK
    lamp_bars = np.empty((blocks, 3), np.float32)
    spreads_bars = np.empty((blocks, points.shape[0]), np.float32)
    for block in prange(blocks):
        ways, bars = aligned((_NUM_ROWS, _BLOCK)), aligned((1, _BLOCK))
        _look_up(lamp, places, block * _BLOCK, ways)
        for i in range(_BLOCK):
            place = min(block * _BLOCK + i, count - 1)
            bars[0, i] = passed_bar[place] * passed[place]
        number = count - block * _BLOCK
        _undo(ways, points, spreads, most, edge, number, bars, lamp_bars, spreads_bars, block)
    add_parts(lamp_bars, lamp_bar)
    add_parts(spreads_bars, spreads_bar)


@fast_njit()
@no_type_check
def _look_up(lamp, places, first, ways):
    """Fill in a block's places and their ways to the lamp; after the last place comes it again."""
    last = places.shape[0] - 1
    for i in range(_BLOCK):
        place = min(first + i, last)
        ways[_X, i], ways[_Y, i], ways[_Z, i] = places[place, 0], places[place, 1], places[place, 2]
    x, y = lamp[0] - load(ways, _X, 0, _BLOCK), lamp[1] - load(ways, _Y, 0, _BLOCK)
    z = lamp[2] - load(ways, _Z, 0, _BLOCK)
    away = root(squared_length(x, y, z) + _SMALLEST)
    store(x / away, ways, _WAY_X, 0)
    store(y / away, ways, _WAY_Y, 0)
    store(z / away, ways, _WAY_Z, 0)
    store(away, ways, _AWAY, 0)


@inlined_njit()
@no_type_check
def _apart(ways, points, point):
    """Return where a ball is from places: along the axes, and along the way to the lamp."""
    x = points[point, 0] - load(ways, _X, 0, _BLOCK)
    y = points[point, 1] - load(ways, _Y, 0, _BLOCK)
    z = points[point, 2] - load(ways, _Z, 0, _BLOCK)
    along = x * load(ways, _WAY_X, 0, _BLOCK)
    along = plus_product(along, y, load(ways, _WAY_Y, 0, _BLOCK))
    return x, y, z, plus_product(along, z, load(ways, _WAY_Z, 0, _BLOCK))


@inlined_njit()
@no_type_check
def _beside(x, y, z, along, spread):
    """Return (d / r)^2."""
    squares = squared_length(x, y, z) - along * along
    return spread * larger(everywhere(_NONE, _BLOCK), squares)


@inlined_njit()
@no_type_check
def _dims(beside, ahead):
    """Return a bit for each place that a ball dims."""
    return at_most(larger(beside - _LARGEST, _FARTHEST - ahead), _NONE)


@inlined_njit()
@no_type_check
def _share(beside, before, most):
    """Return the share of light that a ball keeps."""
    power = larger(everywhere(_LEAST_POWER, _BLOCK), beside * beside * -_LOG2_E)
    return most * power_of_two(power) * before


@inlined_njit()
@no_type_check
def _logistic(ahead):
    return _HALF + _HALF * tanh(_HALF * ahead)


@fast_njit()
@no_type_check
def _dim(ways, points, spreads, most, edge, kept):
    """Fill in the light that all balls let pass."""
    left = everywhere(_ONE, _BLOCK)
    for point in range(points.shape[0]):
        x, y, z, along = _apart(ways, points, point)
        beside, ahead = _beside(x, y, z, along, spreads[point]), along / edge
        if _dims(beside, ahead):
            left = left * (_ONE - _share(beside, _logistic(ahead), most))
    store(left, kept, 0, 0)


@fast_njit()
@no_type_check
def _undo(ways, points, spreads, most, edge, number, bars, lamp_bars, spreads_bars, block):
    """Fill in a block's cotangents of the lamp and of the balls' spreads."""
    bar_of_all = before(number, load(bars, 0, 0, _BLOCK), 0)
    x_bar = y_bar = z_bar = everywhere(_NONE, _BLOCK)
    for point in range(points.shape[0]):
        x, y, z, along = _apart(ways, points, point)
        spread = spreads[point]
        beside, ahead = _beside(x, y, z, along, spread), along / edge
        spread_bar = _NONE
        if _dims(beside, ahead):
            passing = _logistic(ahead)
            share = _share(beside, passing, most)
            # Of the logarithms of what the ball keeps, of (d / r)^2 and of how far along it is.
            bar = bar_of_all * share / (share - _ONE)
            scaled_bar = -_TWO * beside * bar
            spread_bar = sum_of_lanes(scaled_bar * beside) / spread
            along_bar = bar * (_ONE - passing) / edge - _TWO * spread * scaled_bar * along
            x_bar = plus_product(x_bar, along_bar, x)
            y_bar = plus_product(y_bar, along_bar, y)
            z_bar = plus_product(z_bar, along_bar, z)
        spreads_bars[block, point] = spread_bar
    # Ways are unit vectors.
    way_x, way_y = load(ways, _WAY_X, 0, _BLOCK), load(ways, _WAY_Y, 0, _BLOCK)
    way_z, away = load(ways, _WAY_Z, 0, _BLOCK), load(ways, _AWAY, 0, _BLOCK)
    along = x_bar * way_x + y_bar * way_y + z_bar * way_z
    lamp_bars[block, 0] = sum_of_lanes((x_bar - along * way_x) / away)
    lamp_bars[block, 1] = sum_of_lanes((y_bar - along * way_y) / away)
    lamp_bars[block, 2] = sum_of_lanes((z_bar - along * way_z) / away)
