"""Host form of what the nearest points say to particles: blocks of edges that stay in the cache.

What a point says is multiplied by its layer once per point; what is left of that layer are four
numbers of an edge. A row of hidden numbers is one value of `vectors` from there to its score, and
the backward pass makes it once more: nothing of an edge but its weight is kept. Gradients of what
particles share are sums over fixed parts of them, in their order, whatever the number of threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import add_parts, aligned, clear, compiled_njit, exact_parallel_njit
from hdvpd.kernels.small_products import (
    add_transposed_product,
    product,
    transposed,
)
from hdvpd.kernels.vector_sums import plus_product, sums_of_runs
from hdvpd.kernels.vectors import (
    everywhere,
    larger,
    load,
    power_of_two,
    root,
    store,
    sum_of_lanes,
    within,
)

WIDTH = 32
"""Numbers of a hidden row."""

# The layer's last rows: what multiplies an offset and its length, what is added, what gives scores.
# In `rows` they come first, and then a row of what each point says times the layer's other rows.
_X, _Y, _Z, _AWAY, _BIAS, _SCORE, _POINTS = range(7)
# Numbers of an edge after its offset and length: 1 / (1 + length / fade), its score or weight.
# Backward also cotangents: of its weight or score, of its offset and length, and of the share.
_SHARE, _WEIGHT, _SCORE_BAR = range(_AWAY + 1, _AWAY + 4)
_X_BAR, _Y_BAR, _Z_BAR, _AWAY_BAR, _SHARE_BAR, _NUMBERS = range(_SCORE_BAR + 1, _SCORE_BAR + 7)

_AT_ONCE = 128
"""Particles of a block."""
_PART = 256
"""Particles of a part at least."""
_MOST_PARTS = 32

_F = np.float32
_LOG2_E = _F(1.44269504)
_ZERO, _ONE, _SMALLEST, _LEAST = _F(0), _F(1), _F(1e-12), _F(-np.inf)
# jax.nn.gelu(x) is x / (1 + e^-y) with y = x (s + c x^2), s = 2 sqrt(2 / pi), c = 0.044715 s: a
# logistic function is of as many operations as `gelu.tanh`, and makes the softmax too. Beyond 7.5
# it is 0 or 1; so is what the softmax weighs less than 2^-64.
_LARGEST, _LARGEST_POWER = _F(7.5), _F(64)
_INNER, _INNER_CUBE = _F(1.595769122), _F(3 * 0.071354816)
_SLOPE, _CUBE = _F(-_LOG2_E * 1.595769122), _F(-_LOG2_E * 0.071354816)


@compiled_njit()
@no_type_check
def _load(rows, row, column):
    return load(rows, row, column, WIDTH)


@exact_parallel_njit()
@no_type_check
def forward(
    about: np.ndarray,
    points: np.ndarray,
    positions: np.ndarray,
    layer: np.ndarray,
    out: np.ndarray,
    near: np.ndarray,
    measures: np.ndarray,
    result: np.ndarray,
    weights: np.ndarray,
    summed: np.ndarray,
) -> None:
    """Fill in what the points say, and what the backward pass needs.

    Args:
      about: (p, c) what each point says.
      points: (p, 3) [m].
      positions: (n, 3) of particles [m].
      layer: (c + 6, WIDTH) see `_X`.
      out: (WIDTH, d) last layer.
      near: (n, k) points of a particle.
      measures: (2,) unit of offsets [m], and the length at which they fade, in that unit.
      result: (n, d).
      weights: (k, n) softmax of the scores.
      summed: (n, WIDTH) sums of hidden rows.
    """
    count, width = near.shape
    parts = min(max(count // _PART, 1), _MOST_PARTS)
    rows = _tell(about, layer)
    for part in prange(parts):
        last = (part + 1) * count // parts
        nodes = np.empty(width * _AT_ONCE, np.int32)
        edges = aligned((_NUMBERS, width * _AT_ONCE))
        hidden = aligned((width * _AT_ONCE, WIDTH))
        for begin in range(part * count // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            _look(points, positions, near, measures, begin, end, nodes, edges)
            _hide(rows, nodes, edges, hidden)
            _soften(edges)
            _sum(edges, hidden, begin, end, weights, summed)
            product(summed[begin:end], out, result[begin:end])


@exact_parallel_njit()
@no_type_check
def backward(
    about: np.ndarray,
    points: np.ndarray,
    positions: np.ndarray,
    layer: np.ndarray,
    out: np.ndarray,
    near: np.ndarray,
    measures: np.ndarray,
    weights: np.ndarray,
    summed: np.ndarray,
    result_bar: np.ndarray,
    about_bar: np.ndarray,
    points_bar: np.ndarray,
    positions_bar: np.ndarray,
    layer_bar: np.ndarray,
    out_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of about, points, positions, layer and out; see `forward`."""
    count, width = near.shape
    parts = min(max(count // _PART, 1), _MOST_PARTS)
    rows, back = _tell(about, layer), transposed(out)
    rows_bars = aligned((parts, rows.shape[0], WIDTH))
    points_bars = np.empty((parts, points.shape[0], 3), np.float32)
    out_bars = aligned((parts, WIDTH, out.shape[1]))
    for part in prange(parts):
        last = (part + 1) * count // parts
        nodes = np.empty(width * _AT_ONCE, np.int32)
        edges = aligned((_NUMBERS, width * _AT_ONCE))
        hidden = aligned((width * _AT_ONCE, WIDTH))
        slopes = aligned((width * _AT_ONCE, WIDTH))
        summed_bar = aligned((_AT_ONCE, WIDTH))
        clear(rows_bars[part])
        clear(points_bars[part])
        clear(out_bars[part])
        for begin in range(part * count // parts, last, _AT_ONCE):
            end = min(begin + _AT_ONCE, last)
            bar = result_bar[begin:end]
            add_transposed_product(summed[begin:end], bar, out_bars[part])
            clear(summed_bar)
            product(bar, back, summed_bar[: end - begin])
            _look(points, positions, near, measures, begin, end, nodes, edges)
            _hide_again(rows, nodes, edges, summed_bar, hidden, slopes)
            _undo_soften(weights, begin, end, edges)
            _undo_hide(rows, nodes, edges, summed_bar, hidden, slopes, rows_bars[part])
            _undo_look(nodes, edges, measures, begin, end, positions_bar, points_bars[part])
    add_parts(rows_bars, rows)
    add_parts(points_bars, points_bar)
    add_parts(out_bars, out_bar)
    _undo_tell(about, layer, rows, about_bar, layer_bar)


@compiled_njit()
@no_type_check
def _tell(about, layer):
    """Return `rows`; see `_X`."""
    columns = about.shape[1]
    rows = aligned((_POINTS + about.shape[0], WIDTH))
    for row in range(_POINTS):
        store(_load(layer, columns + row, 0), rows, row, 0)
    for point in range(about.shape[0]):
        row = everywhere(_ZERO, WIDTH)
        for column in range(columns):
            row = plus_product(row, about[point, column], _load(layer, column, 0))
        store(row, rows, _POINTS + point, 0)
    return rows


@compiled_njit()
@no_type_check
def _undo_tell(about, layer, rows_bar, about_bar, layer_bar):
    """Fill in the cotangents of what points say and of the layer."""
    columns = about.shape[1]
    for column in range(columns):
        row, row_bar = _load(layer, column, 0), everywhere(_ZERO, WIDTH)
        for point in range(about.shape[0]):
            bar = _load(rows_bar, _POINTS + point, 0)
            row_bar = plus_product(row_bar, about[point, column], bar)
            about_bar[point, column] = sum_of_lanes(row * bar)
        store(row_bar, layer_bar, column, 0)
    for row in range(_POINTS):
        store(_load(rows_bar, row, 0), layer_bar, columns + row, 0)


@compiled_njit()
@no_type_check
def _look(points, positions, near, measures, begin, end, nodes, edges):
    """Fill in points, offsets, lengths and shares of edges, by neighbour and then by particle.

    After the last particle comes it again.
    """
    for first in range(0, nodes.shape[0], _AT_ONCE):
        for i in range(_AT_ONCE):
            row = min(begin + i, end - 1)
            node = near[row, first // _AT_ONCE]
            nodes[first + i] = node
            edges[_X, first + i] = points[node, 0] - positions[row, 0]
            edges[_Y, first + i] = points[node, 1] - positions[row, 1]
            edges[_Z, first + i] = points[node, 2] - positions[row, 2]
    unit, fade = measures[0], measures[1]
    for edge in range(0, nodes.shape[0], WIDTH):
        x, y, z = _load(edges, _X, edge), _load(edges, _Y, edge), _load(edges, _Z, edge)
        x, y, z = x / unit, y / unit, z / unit
        away = root(x * x + y * y + z * z + _SMALLEST)
        store(x, edges, _X, edge)
        store(y, edges, _Y, edge)
        store(z, edges, _Z, edge)
        store(away, edges, _AWAY, edge)
        store(_ONE / (_ONE + away / fade), edges, _SHARE, edge)


@compiled_njit()
@no_type_check
def _hide(rows, nodes, edges, hidden):
    """Fill in hidden rows and, in place of weights, their scores."""
    x, y, z = _load(rows, _X, 0), _load(rows, _Y, 0), _load(rows, _Z, 0)
    away = _load(rows, _AWAY, 0)
    bias, score = _load(rows, _BIAS, 0), _load(rows, _SCORE, 0)
    for edge in range(nodes.shape[0]):
        inner = plus_product(_load(rows, _POINTS + nodes[edge], 0), edges[_X, edge], x)
        inner = plus_product(plus_product(inner, edges[_Y, edge], y), edges[_Z, edge], z)
        inner = plus_product(inner, edges[_AWAY, edge], away)
        row = plus_product(bias, edges[_SHARE, edge], inner)
        bounded = within(row, _LARGEST)
        power = bounded * plus_product(_SLOPE, _CUBE, bounded * bounded)
        row = row / (_ONE + power_of_two(power))
        store(row, hidden, edge, 0)
        edges[_WEIGHT, edge] = sum_of_lanes(row * score)


@compiled_njit()
@no_type_check
def _soften(edges):
    """Fill in the softmax of scores over the edges of a particle."""
    for i in range(0, _AT_ONCE, WIDTH):
        most, sums = everywhere(_LEAST, WIDTH), everywhere(_ZERO, WIDTH)
        for edge in range(i, edges.shape[1], _AT_ONCE):
            most = larger(_load(edges, _WEIGHT, edge), most)
        for edge in range(i, edges.shape[1], _AT_ONCE):
            power = within(_LOG2_E * (_load(edges, _WEIGHT, edge) - most), _LARGEST_POWER)
            weight = power_of_two(power)
            store(weight, edges, _WEIGHT, edge)
            sums = sums + weight
        for edge in range(i, edges.shape[1], _AT_ONCE):
            store(_load(edges, _WEIGHT, edge) / sums, edges, _WEIGHT, edge)


@compiled_njit()
@no_type_check
def _sum(edges, hidden, begin, end, weights, summed):
    """Fill in weighted sums of hidden rows, and keep their weights."""
    for i in range(end - begin):
        row = everywhere(_ZERO, WIDTH)
        for edge in range(i, hidden.shape[0], _AT_ONCE):
            weight = edges[_WEIGHT, edge]
            row = plus_product(row, weight, _load(hidden, edge, 0))
            weights[edge // _AT_ONCE, begin + i] = weight
        store(row, summed, begin + i, 0)


@compiled_njit()
@no_type_check
def _hide_again(rows, nodes, edges, summed_bar, hidden, slopes):
    """Fill in hidden rows, slopes of GELU and, in place of scores', the cotangents of weights."""
    x, y, z = _load(rows, _X, 0), _load(rows, _Y, 0), _load(rows, _Z, 0)
    away = _load(rows, _AWAY, 0)
    bias = _load(rows, _BIAS, 0)
    for edge in range(nodes.shape[0]):
        inner = plus_product(_load(rows, _POINTS + nodes[edge], 0), edges[_X, edge], x)
        inner = plus_product(plus_product(inner, edges[_Y, edge], y), edges[_Z, edge], z)
        inner = plus_product(inner, edges[_AWAY, edge], away)
        row = plus_product(bias, edges[_SHARE, edge], inner)
        bounded = within(row, _LARGEST)
        square = bounded * bounded
        part = _ONE / (_ONE + power_of_two(bounded * plus_product(_SLOPE, _CUBE, square)))
        row = row * part
        slope = plus_product(part, row * (_ONE - part), plus_product(_INNER, _INNER_CUBE, square))
        store(slope, slopes, edge, 0)
        store(row, hidden, edge, 0)
        edges[_SCORE_BAR, edge] = sum_of_lanes(row * _load(summed_bar, edge % _AT_ONCE, 0))


@compiled_njit()
@no_type_check
def _undo_soften(weights, begin, end, edges):
    """Fill in weights and, in place of their cotangents, those of scores."""
    for edge in range(edges.shape[1]):
        row = min(begin + edge % _AT_ONCE, end - 1)
        edges[_WEIGHT, edge] = weights[edge // _AT_ONCE, row]
    for i in range(0, _AT_ONCE, WIDTH):
        mean = everywhere(_ZERO, WIDTH)
        for edge in range(i, edges.shape[1], _AT_ONCE):
            mean = mean + _load(edges, _WEIGHT, edge) * _load(edges, _SCORE_BAR, edge)
        for edge in range(i, edges.shape[1], _AT_ONCE):
            pull = _load(edges, _WEIGHT, edge) * (_load(edges, _SCORE_BAR, edge) - mean)
            store(pull, edges, _SCORE_BAR, edge)


@compiled_njit()
@no_type_check
def _undo_hide(rows, nodes, edges, summed_bar, hidden, slopes, rows_bar):
    """Add to the cotangents of rows; fill in parts of those of offsets, lengths and shares."""
    x, y, z = _load(rows, _X, 0), _load(rows, _Y, 0), _load(rows, _Z, 0)
    away = _load(rows, _AWAY, 0)
    score = _load(rows, _SCORE, 0)
    x_bar, y_bar, z_bar = _load(rows_bar, _X, 0), _load(rows_bar, _Y, 0), _load(rows_bar, _Z, 0)
    away_bar, bias_bar = _load(rows_bar, _AWAY, 0), _load(rows_bar, _BIAS, 0)
    score_bar = _load(rows_bar, _SCORE, 0)
    sums = np.empty((1, 4), np.float32)
    for edge in range(nodes.shape[0]):
        pull, node = edges[_SCORE_BAR, edge], _POINTS + nodes[edge]
        score_bar = plus_product(score_bar, pull, _load(hidden, edge, 0))
        bar = plus_product(
            pull * score, edges[_WEIGHT, edge], _load(summed_bar, edge % _AT_ONCE, 0)
        )
        bar = bar * _load(slopes, edge, 0)
        # Of one sum alone, most instructions would wait.
        store(sums_of_runs((bar * x, bar * y, bar * z, bar * away), WIDTH), sums, 0, 0)
        edges[_X_BAR, edge], edges[_Y_BAR, edge] = sums[0, 0], sums[0, 1]
        edges[_Z_BAR, edge], edges[_AWAY_BAR, edge] = sums[0, 2], sums[0, 3]
        edges[_SHARE_BAR, edge] = sum_of_lanes(bar * _load(rows, node, 0))
        bias_bar = bias_bar + bar
        bar = edges[_SHARE, edge] * bar
        store(_load(rows_bar, node, 0) + bar, rows_bar, node, 0)
        x_bar = plus_product(x_bar, edges[_X, edge], bar)
        y_bar = plus_product(y_bar, edges[_Y, edge], bar)
        z_bar = plus_product(z_bar, edges[_Z, edge], bar)
        away_bar = plus_product(away_bar, edges[_AWAY, edge], bar)
    store(x_bar, rows_bar, _X, 0)
    store(y_bar, rows_bar, _Y, 0)
    store(z_bar, rows_bar, _Z, 0)
    store(away_bar, rows_bar, _AWAY, 0)
    store(bias_bar, rows_bar, _BIAS, 0)
    store(score_bar, rows_bar, _SCORE, 0)


@compiled_njit()
@no_type_check
def _undo_look(nodes, edges, measures, begin, end, positions_bar, points_bar):
    """Fill in the cotangents of particles, add to those of points."""
    unit, fade = measures[0], measures[1]
    for edge in range(0, nodes.shape[0], WIDTH):
        x, y, z = _load(edges, _X, edge), _load(edges, _Y, edge), _load(edges, _Z, edge)
        away, share = _load(edges, _AWAY, edge), _load(edges, _SHARE, edge)
        x_bar, y_bar = _load(edges, _X_BAR, edge), _load(edges, _Y_BAR, edge)
        z_bar, away_bar = _load(edges, _Z_BAR, edge), _load(edges, _AWAY_BAR, edge)
        share_bar = _load(edges, _SHARE_BAR, edge) + x * x_bar + y * y_bar + z * z_bar
        share_bar = share_bar + away * away_bar
        along = share * (away_bar - share * share_bar / fade) / away
        store((share * x_bar + along * x) / unit, edges, _X_BAR, edge)
        store((share * y_bar + along * y) / unit, edges, _Y_BAR, edge)
        store((share * z_bar + along * z) / unit, edges, _Z_BAR, edge)
    for i in range(end - begin):
        x_sum, y_sum, z_sum = _ZERO, _ZERO, _ZERO
        for edge in range(i, nodes.shape[0], _AT_ONCE):
            points_bar[nodes[edge], 0] += edges[_X_BAR, edge]
            points_bar[nodes[edge], 1] += edges[_Y_BAR, edge]
            points_bar[nodes[edge], 2] += edges[_Z_BAR, edge]
            x_sum -= edges[_X_BAR, edge]
            y_sum -= edges[_Y_BAR, edge]
            z_sum -= edges[_Z_BAR, edge]
        positions_bar[begin + i, 0] = x_sum
        positions_bar[begin + i, 1] = y_sum
        positions_bar[begin + i, 2] = z_sum
