"""Compiled host form of attention along walks.

No gathered [t, e, c] array exists: each token's loop reads the rows it needs, which is fast where
near tokens have near rows. Nor do ReLU features: they are made of the projections wherever a row is
read. Sums run in a fixed order whatever the number of threads, so results are reproducible bit for
bit on one machine.

Queries, keys and values are columns of arrays of rows, from one on: the first of three arrays, or
thirds of one, as a dense layer leaves them beside each other. Some columns are one vector, and so
are numbers of some entries (`walk_entries_host.py`).
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import compiled_njit, exact_parallel_njit
from hdvpd.kernels.vector_sums import interleaved, plus_product
from hdvpd.kernels.vectors import (
    before,
    everywhere,
    larger,
    load,
    load_before,
    store,
    store_before,
    sum_of_lanes,
    where_positive,
)
from hdvpd.kernels.walk_entries_host import (
    CHANGES,
    ENTRIES,
    GAINS,
    MASKS,
    PULLS,
    SIMILARITIES,
    WEIGHTS,
    WIDTH,
    add_changes,
    fill_in_masks,
    multiply,
    room_for,
    take_changes,
)

_F = np.float32
_BLOCK = 64
"""Tokens of a block."""
_GIVEN = (_F(-np.inf), _F(1), _F(0))
"""Numbers of features, max(x, lowest) * scale + least: those that are given stay as they are."""


@compiled_njit()
@no_type_check
def forward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    modulation: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    out: np.ndarray,
    normalizer: np.ndarray,
) -> None:
    """Fill in the attention's output and its normaliser, of (t, m) features and (t, c) values.

    See `_forward`.
    """
    columns = (0, 0, 0, query.shape[1])
    _forward(
        _GIVEN, columns, query, key, value, modulation, nodes, loads, num_entries, out, normalizer
    )


@compiled_njit()
@no_type_check
def backward(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    modulation: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    incoming: np.ndarray,
    offsets: np.ndarray,
    out: np.ndarray,
    normalizer: np.ndarray,
    out_bar: np.ndarray,
    query_bar: np.ndarray,
    key_bar: np.ndarray,
    value_bar: np.ndarray,
    modulation_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of query, key, value and modulation; see `forward`."""
    columns = (0, 0, 0, query.shape[1])
    _backward(
        _GIVEN, columns, (query, key, value), modulation, nodes, loads, num_entries, incoming,
        offsets, out, normalizer, out_bar, (query_bar, key_bar, value_bar), modulation_bar,
    )  # fmt: skip


@compiled_njit()
@no_type_check
def relu_forward(
    together: np.ndarray,
    least: np.float32,
    modulation: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    out: np.ndarray,
    normalizer: np.ndarray,
) -> None:
    """Fill in the attention's output and its normaliser.

    Args:
      together: (t, 3 d) queries, keys and values, of which ReLU makes features.
      least: added to ReLU.
      modulation: as of `_forward`.
      nodes: likewise.
      loads: likewise.
      num_entries: likewise.
      out: likewise.
      normalizer: likewise.
    """
    features, columns = _relu(together, least)
    _forward(
        features, columns, together, together, together, modulation, nodes, loads, num_entries,
        out, normalizer,
    )  # fmt: skip


@compiled_njit()
@no_type_check
def relu_backward(
    together: np.ndarray,
    least: np.float32,
    modulation: np.ndarray,
    nodes: np.ndarray,
    loads: np.ndarray,
    num_entries: np.ndarray,
    incoming: np.ndarray,
    offsets: np.ndarray,
    out: np.ndarray,
    normalizer: np.ndarray,
    out_bar: np.ndarray,
    together_bar: np.ndarray,
    modulation_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of `together` and modulation; see `relu_forward`."""
    features, columns = _relu(together, least)
    _backward(
        features, columns, (together, together, together), modulation, nodes, loads, num_entries,
        incoming, offsets, out, normalizer, out_bar, (together_bar, together_bar, together_bar),
        modulation_bar,
    )  # fmt: skip


@compiled_njit()
@no_type_check
def _relu(together, least):
    """Return the numbers of a query's features (keys are not scaled) and where columns begin."""
    width = together.shape[1] // 3
    scale = _F(1 / np.sqrt(width))
    return (_F(0), scale, least), (0, width, 2 * width, width)


@compiled_njit(inline="always")
@no_type_check
def _fill_in(features, query, token, first, end, row):
    """Fill in a query's features; return their product with what is added to a key's."""
    lowest, scale, least = features
    # What is no number stays so: it is not less than the floor.
    floor, total = everywhere(lowest, WIDTH), _F(0)
    for column in range(0, end - first, WIDTH):
        scaled = larger(floor, load_before(end, query, token, first + column, WIDTH)) * scale
        total += sum_of_lanes(scaled)
        store(scaled + least, row, 0, column)
    return least * (total + least * _F(end - first))


@compiled_njit(inline="always")
@no_type_check
def _row_of(width):
    """Return room for one row of so many columns, in whole vectors, all zero."""
    return np.zeros((1, -(-width // WIDTH) * WIDTH), np.float32)


@exact_parallel_njit()
@no_type_check
def _forward(
    features, columns, query, key, value, modulation, nodes, loads, num_entries, out, normalizer,
):  # fmt: skip
    """Fill in the attention's output (t, c) and its normaliser (t,).

    Args:
      features: see `_GIVEN`.
      columns: where queries, keys and values begin, and how many queries have.
      query: rows of t tokens.
      key: likewise.
      value: likewise.
      modulation: (l,) f.
      nodes: (t, e) token of every entry.
      loads: (t, e, l) W^l.
      num_entries: (t,) how many there are.
      out: (t, c).
      normalizer: (t,).
    """
    tokens = out.shape[0]
    flat = loads.reshape(tokens, loads.shape[1] * loads.shape[2])
    for block in prange((tokens + _BLOCK - 1) // _BLOCK):
        row, room = _row_of(columns[3]), room_for(nodes.shape[1], modulation)
        for token in range(block * _BLOCK, min((block + 1) * _BLOCK, tokens)):
            number = num_entries[token]
            offset = _fill_in(features, query, token, columns[0], columns[0] + columns[3], row)
            multiply(
                row, 0, columns[3], features[0], key, columns[1], nodes, token, number, room,
                SIMILARITIES,
            )  # fmt: skip
            fill_in_masks(modulation, flat, token, number, room)
            sums = everywhere(_F(0), ENTRIES)
            for first in range(0, number, ENTRIES):
                similarities = load(room, SIMILARITIES, first, ENTRIES) + offset
                weights = before(number, load(room, MASKS, first, ENTRIES) * similarities, first)
                store(weights, room, WEIGHTS, first)
                sums = sums + weights
            total = sum_of_lanes(sums)
            normalizer[token] = total
            _mean(room, number, total, value, columns[2], nodes, token, out)


@compiled_njit(inline="always")
@no_type_check
def _mean(room, number, total, value, first, nodes, token, out):
    """Fill in sum_e w_e v_e / total."""
    channels = out.shape[1]
    for column in range(0, channels, WIDTH):
        found = everywhere(_F(0), WIDTH)
        for entry in range(number):
            node = nodes[token, entry]
            values = load_before(first + channels, value, node, first + column, WIDTH)
            found = plus_product(found, room[WEIGHTS, entry], values)
        store_before(channels, found / total, out, token, column)


@compiled_njit(inline="always")
@no_type_check
def _product(rows, row, others, other, channels):
    """Return the product of two rows."""
    products = everywhere(_F(0), WIDTH)
    for column in range(0, channels, WIDTH):
        values = load_before(channels, others, other, column, WIDTH)
        products = products + load_before(channels, rows, row, column, WIDTH) * values
    return sum_of_lanes(products)


@compiled_njit(inline="always")
@no_type_check
def _pull_on_query(features, columns, query, key, nodes, number, token, room, query_bar):
    """Fill in the cotangent of a query from those of its products with keys, scaled."""
    q, k, _, width = columns
    lowest, _, least = features
    floor, total = everywhere(lowest, WIDTH), _F(0)
    for entry in range(number):
        total += room[PULLS, entry]
    for column in range(0, width, WIDTH):
        found = everywhere(least * total, WIDTH)
        for entry in range(number):
            node = nodes[token, entry]
            keys = larger(floor, load_before(k + width, key, node, k + column, WIDTH))
            found = plus_product(found, room[PULLS, entry], keys)
        passed = load_before(q + width, query, token, q + column, WIDTH) - floor
        found = where_positive(passed, found)
        store_before(q + width, found, query_bar, token, q + column)


@exact_parallel_njit()
@no_type_check
def _backward_rows(
    features, columns, query, key, value, modulation, nodes, loads, num_entries, out, normalizer,
    out_bar, query_bar, coefficients, modulation_bars,
):  # fmt: skip
    tokens, channels = out.shape
    flat = loads.reshape(tokens, loads.shape[1] * loads.shape[2])
    for block in prange(modulation_bars.shape[0]):
        row, room = _row_of(columns[3]), room_for(nodes.shape[1], modulation)
        for token in range(block * _BLOCK, min((block + 1) * _BLOCK, tokens)):
            number = num_entries[token]
            offset = _fill_in(features, query, token, columns[0], columns[0] + columns[3], row)
            shift = _product(out_bar, token, out, token, channels)
            share = _F(1) / normalizer[token]
            multiply(
                out_bar, token, channels, _GIVEN[0], value, columns[2], nodes, token, number, room,
                GAINS,
            )  # fmt: skip
            multiply(
                row, 0, columns[3], features[0], key, columns[1], nodes, token, number, room,
                SIMILARITIES,
            )  # fmt: skip
            fill_in_masks(modulation, flat, token, number, room)
            for first in range(0, number, ENTRIES):
                # With out = sum_e w_e v_e / sum_e w_e, the cotangent of w_e is
                # out_bar . (v_e - out) / sum_e w_e.
                gains = (load(room, GAINS, first, ENTRIES) - shift) * share
                weight_bars = before(number, gains, first)
                similarities = load(room, SIMILARITIES, first, ENTRIES) + offset
                masks = load(room, MASKS, first, ENTRIES)
                store(weight_bars * similarities, room, CHANGES, first)
                pulls = weight_bars * masks * features[1]
                store(pulls, room, PULLS, first)
                both = interleaved(pulls, masks * similarities * share)
                store_before(2 * nodes.shape[1], both, coefficients, token, 2 * first)
            add_changes(modulation, flat, token, number, room)
            _pull_on_query(features, columns, query, key, nodes, number, token, room, query_bar)
        take_changes(modulation, room, block, modulation_bars)


@compiled_njit()
@no_type_check
def _pull_on_key(features, columns, query, key, entries, coefficients, out_bar, asked, node, bars):
    """Fill in the cotangents of a token's key and value from the entries in which it is asked."""
    q, k, v, width = columns
    lowest, scale, least = features
    key_bar, value_bar = bars
    channels = out_bar.shape[1]
    floor, total = everywhere(lowest, WIDTH), _F(0)
    for place in asked:
        total += coefficients[place, 0]
    for column in range(0, max(width, channels), WIDTH):
        keys, values = everywhere(least / scale * total, WIDTH), everywhere(_F(0), WIDTH)
        for place in asked:
            # Processors divide numbers of 32 bits sooner.
            token = np.int64(np.uint32(place) // np.uint32(entries))
            queries = larger(floor, load_before(q + width, query, token, q + column, WIDTH))
            keys = plus_product(keys, coefficients[place, 0], queries)
            bar = load_before(channels, out_bar, token, column, WIDTH)
            values = plus_product(values, coefficients[place, 1], bar)
        passed = load_before(k + width, key, node, k + column, WIDTH) - floor
        store_before(k + width, where_positive(passed, keys), key_bar, node, k + column)
        store_before(v + channels, values, value_bar, node, v + column)


@exact_parallel_njit()
@no_type_check
def _backward_columns(
    features, columns, query, key, entries, coefficients, out_bar, incoming, offsets, bars,
):  # fmt: skip
    for node in prange(key.shape[0]):
        asked = incoming[offsets[node] : offsets[node + 1]]
        _pull_on_key(
            features, columns, query, key, entries, coefficients, out_bar, asked, node, bars
        )


@compiled_njit()
@no_type_check
def _backward(
    features, columns, rows, modulation, nodes, loads, num_entries, incoming, offsets, out,
    normalizer, out_bar, bars, modulation_bar,
):  # fmt: skip
    """Fill in the cotangents of queries, keys and values and that of the modulation."""
    query, key, value = rows
    tokens, entries = nodes.shape
    # Per entry the cotangent of q . k and the weight, side by side: columns read both at once.
    coefficients = np.empty((tokens, 2 * entries), np.float32)
    blocks = (tokens + _BLOCK - 1) // _BLOCK
    modulation_bars = np.empty((blocks, modulation.shape[0]), np.float32)
    _backward_rows(
        features, columns, query, key, value, modulation, nodes, loads, num_entries, out,
        normalizer, out_bar, bars[0], coefficients, modulation_bars,
    )  # fmt: skip
    pairs = coefficients.reshape(tokens * entries, 2)
    _backward_columns(
        features, columns, query, key, entries, pairs, out_bar, incoming, offsets, bars[1:]
    )
    for hop in range(modulation.shape[0]):
        total = 0.0
        for block in range(blocks):
            total += modulation_bars[block, hop]
        modulation_bar[hop] = total
