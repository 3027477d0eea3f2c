"""Host form of the light that balls let pass on its way from a lamp.

What a ball dims by less than 4e-8 it does not dim in float32, and most balls are far from most
ways: exponentials are computed for blocks of places in which a ball dims any.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, clear, fast_njit, parallel_njit
from hdvpd.kernels.gaussian import gaussian
from hdvpd.kernels.gelu import tanh

_F = np.float32
# Places of a block, and what is kept of each: where it is, and the way to the lamp.
_BLOCK = 64
_X, _Y, _Z, _WAY_X, _WAY_Y, _WAY_Z, _AWAY = range(7)
# Beyond them exp(-t^2) and a logistic function are less than 4e-8.
_LARGEST, _FARTHEST = _F(4.2), _F(-17)
_SMALLEST, _HALF, _ONE, _TWO, _FOUR = _F(1e-12), _F(0.5), _F(1), _F(2), _F(4)


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
        ways, space = np.empty((7, _BLOCK), np.float32), np.empty((4, _BLOCK), np.float32)
        kept = np.empty(_BLOCK, np.float32)
        _look_up(lamp, places, block * _BLOCK, ways)
        for i in range(_BLOCK):
            kept[i] = _ONE
        for point in range(points.shape[0]):
            if _meet(ways, points[point], spreads[point], _ONE / edge, space):
                gaussian(space[0], space[2], space[3])
                _dim(space, most, kept)
        for i in range(min(_BLOCK, count - block * _BLOCK)):
            passed[block * _BLOCK + i] = kept[i]


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
        ways, space = np.empty((7, _BLOCK), np.float32), np.empty((4, _BLOCK), np.float32)
        way_bars, bars = np.empty((3, _BLOCK), np.float32), np.empty(_BLOCK, np.float32)
        _look_up(lamp, places, block * _BLOCK, ways)
        clear(way_bars)
        clear(bars)
        for i in range(min(_BLOCK, count - block * _BLOCK)):
            place = block * _BLOCK + i
            bars[i] = passed_bar[place] * passed[place]
        for point in range(points.shape[0]):
            spreads_bars[block, point] = 0
            if _meet(ways, points[point], spreads[point], _ONE / edge, space):
                gaussian(space[0], space[2], space[3])
                spreads_bars[block, point] = _undo(
                    ways, points[point], spreads[point], most, edge, space, bars, way_bars
                )
        _gather(ways, way_bars, lamp_bars[block])
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
    for i in range(_BLOCK):
        x, y, z = lamp[0] - ways[_X, i], lamp[1] - ways[_Y, i], lamp[2] - ways[_Z, i]
        away = np.sqrt(x * x + y * y + z * z + _SMALLEST)
        ways[_WAY_X, i], ways[_WAY_Y, i], ways[_WAY_Z, i] = x / away, y / away, z / away
        ways[_AWAY, i] = away


@fast_njit()
@no_type_check
def _meet(ways, point, spread, steepness, space):
    """Fill in (d / r)^2 and how far the ball is along the way; return how many places it dims."""
    dimmed = 0
    for i in range(_BLOCK):
        x, y, z = point[0] - ways[_X, i], point[1] - ways[_Y, i], point[2] - ways[_Z, i]
        along = x * ways[_WAY_X, i] + y * ways[_WAY_Y, i] + z * ways[_WAY_Z, i]
        beside = x * x + y * y + z * z - along * along
        beside = beside if beside > 0 else _F(0)
        space[0, i] = beside * spread
        space[1, i] = along * steepness
        dimmed += np.int32(space[0, i] < _LARGEST) & np.int32(space[1, i] > _FARTHEST)
    return dimmed


@fast_njit()
@no_type_check
def _dim(space, most, kept):
    for i in range(_BLOCK):
        kept[i] *= _ONE - most * space[3, i] * (_HALF + _HALF * tanh(_HALF * space[1, i]))


@fast_njit()
@no_type_check
def _undo(ways, point, spread, most, edge, space, bars, way_bars):
    """Add to the cotangents of ways; return that of the ball's spread."""
    spread_bar = _F(0)
    for i in range(_BLOCK):
        x, y, z = point[0] - ways[_X, i], point[1] - ways[_Y, i], point[2] - ways[_Z, i]
        before = _HALF + _HALF * tanh(_HALF * space[1, i])
        share = most * space[3, i] * before
        # Of the logarithms of what the ball keeps, of (d / r)^2 and of how far along it is.
        bar = -bars[i] * share / (_ONE - share)
        scaled_bar = -_TWO * space[0, i] * bar
        spread_bar += scaled_bar * space[0, i]
        along_bar = bar * (_ONE - before) / edge
        along_bar -= _TWO * scaled_bar * spread * edge * space[1, i]
        way_bars[0, i] += along_bar * x
        way_bars[1, i] += along_bar * y
        way_bars[2, i] += along_bar * z
    return spread_bar / spread


@fast_njit()
@no_type_check
def _gather(ways, way_bars, lamp_bar):
    """Fill in the cotangent of the lamp from those of a block's ways, which are unit vectors."""
    lamp_bar[0] = lamp_bar[1] = lamp_bar[2] = 0
    for i in range(_BLOCK):
        x, y, z = way_bars[0, i], way_bars[1, i], way_bars[2, i]
        along = x * ways[_WAY_X, i] + y * ways[_WAY_Y, i] + z * ways[_WAY_Z, i]
        lamp_bar[0] += (x - along * ways[_WAY_X, i]) / ways[_AWAY, i]
        lamp_bar[1] += (y - along * ways[_WAY_Y, i]) / ways[_AWAY, i]
        lamp_bar[2] += (z - along * ways[_WAY_Z, i]) / ways[_AWAY, i]
