"""Compiled host form of attention along walks.

No gathered [t, e, c] array exists: each token's loop reads the rows it needs, which is fast where
near tokens have near rows. Nor do ReLU features: they are made of the projections wherever a row is
read. Sums run in a fixed order whatever the number of threads, so results are reproducible bit for
bit on one machine.

Queries, keys and values are columns of arrays of rows, from one on: the first of three arrays, or
thirds of one, as a dense layer leaves them beside each other. `_WIDTH` columns are one vector.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import compiled_njit, exact_parallel_njit
from hdvpd.kernels.vectors import (
    everywhere,
    larger,
    load,
    load_before,
    store,
    store_before,
    sum_of_lanes,
    where_positive,
)

_F = np.float32
_WIDTH = 64
"""Columns of a vector, several registers."""
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


@compiled_njit()
@no_type_check
def _fill_in(features, query, token, first, end, row):
    """Fill in a query's features; return their product with what is added to a key's."""
    lowest, scale, least = features
    # What is no number stays so: it is not less than the floor.
    floor, total = everywhere(lowest, _WIDTH), _F(0)
    for column in range(0, end - first, _WIDTH):
        scaled = larger(floor, load_before(end, query, token, first + column, _WIDTH)) * scale
        total += sum_of_lanes(scaled)
        store(scaled + least, row, 0, column)
    return least * (total + least * _F(end - first))


@compiled_njit()
@no_type_check
def _similarity(row, lowest, key, node, first, end):
    """Return row . max(k, lowest)."""
    floor, products = everywhere(lowest, _WIDTH), everywhere(_F(0), _WIDTH)
    for column in range(0, end - first, _WIDTH):
        features = larger(floor, load_before(end, key, node, first + column, _WIDTH))
        products = products + load(row, 0, column, _WIDTH) * features
    return sum_of_lanes(products)


@compiled_njit()
@no_type_check
def _mask(modulation, loads, token, entry):
    """Return sum_l f_l W^l of an entry of a token."""
    mask = _F(0)
    for hop in range(modulation.shape[0]):
        mask += modulation[hop] * loads[token, entry, hop]
    return mask


@compiled_njit()
@no_type_check
def _row_of(width):
    """Return room for one row of so many columns, in whole vectors, all zero."""
    return np.zeros((1, -(-width // _WIDTH) * _WIDTH), np.float32)


@compiled_njit()
@no_type_check
def _weigh(features, columns, query, key, modulation, nodes, loads, number, token, row, weights):
    """Fill in the weights of a token's entries; return their sum."""
    q, k, _, width = columns
    offset = _fill_in(features, query, token, q, q + width, row)
    total = _F(0)
    for entry in range(number):
        node = nodes[token, entry]
        similarity = _similarity(row, features[0], key, node, k, k + width) + offset
        weights[entry] = _mask(modulation, loads, token, entry) * similarity
        total += weights[entry]
    return total


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
    for block in prange((tokens + _BLOCK - 1) // _BLOCK):
        row, weights = _row_of(columns[3]), np.empty(nodes.shape[1], np.float32)
        for token in range(block * _BLOCK, min((block + 1) * _BLOCK, tokens)):
            number = num_entries[token]
            total = _weigh(
                features, columns, query, key, modulation, nodes, loads, number, token, row, weights
            )
            normalizer[token] = total
            _mean(weights, number, total, value, columns[2], nodes, token, out)


@compiled_njit()
@no_type_check
def _mean(weights, number, total, value, first, nodes, token, out):
    """Fill in sum_e w_e v_e / total."""
    channels = out.shape[1]
    for column in range(0, channels, _WIDTH):
        found = everywhere(_F(0), _WIDTH)
        for entry in range(number):
            node = nodes[token, entry]
            values = load_before(first + channels, value, node, first + column, _WIDTH)
            found = found + weights[entry] * values
        store_before(channels, found / total, out, token, column)


@compiled_njit()
@no_type_check
def _product(rows, row, others, other, first, channels):
    """Return the product of a row with a part of another one."""
    products = everywhere(_F(0), _WIDTH)
    for column in range(0, channels, _WIDTH):
        values = load_before(first + channels, others, other, first + column, _WIDTH)
        products = products + load_before(channels, rows, row, column, _WIDTH) * values
    return sum_of_lanes(products)


@compiled_njit()
@no_type_check
def _pull_on_query(features, columns, query, key, nodes, number, token, pulls, query_bar):
    """Fill in the cotangent of a query from those of its products with keys, scaled."""
    q, k, _, width = columns
    lowest, _, least = features
    floor, total = everywhere(lowest, _WIDTH), _F(0)
    for entry in range(number):
        total += pulls[entry]
    for column in range(0, width, _WIDTH):
        found = everywhere(least * total, _WIDTH)
        for entry in range(number):
            node = nodes[token, entry]
            keys = larger(floor, load_before(k + width, key, node, k + column, _WIDTH))
            found = found + pulls[entry] * keys
        passed = load_before(q + width, query, token, q + column, _WIDTH) - floor
        found = where_positive(passed, found)
        store_before(q + width, found, query_bar, token, q + column)


@exact_parallel_njit()
@no_type_check
def _backward_rows(
    features, columns, query, key, value, modulation, nodes, loads, num_entries, out, normalizer,
    out_bar, query_bar, coefficients, modulation_bars,
):  # fmt: skip
    tokens, channels = out.shape
    for block in prange(modulation_bars.shape[0]):
        row = _row_of(columns[3])
        pulls = np.empty(nodes.shape[1], np.float32)
        for hop in range(modulation.shape[0]):
            modulation_bars[block, hop] = _F(0)
        for token in range(block * _BLOCK, min((block + 1) * _BLOCK, tokens)):
            number = num_entries[token]
            offset = _fill_in(features, query, token, columns[0], columns[0] + columns[3], row)
            shift = _product(out_bar, token, out, token, 0, channels)
            share = _F(1) / normalizer[token]
            for entry in range(number):
                node = nodes[token, entry]
                # With out = sum_e w_e v_e / sum_e w_e, the cotangent of w_e is
                # out_bar . (v_e - out) / sum_e w_e.
                gain = _product(out_bar, token, value, node, columns[2], channels)
                weight_bar = (gain - shift) * share
                similarity = offset + _similarity(
                    row, features[0], key, node, columns[1], columns[1] + columns[3]
                )
                for hop in range(modulation.shape[0]):
                    change = weight_bar * similarity * loads[token, entry, hop]
                    modulation_bars[block, hop] += change
                mask = _mask(modulation, loads, token, entry)
                pulls[entry] = weight_bar * mask * features[1]
                coefficients[token, entry, 0] = pulls[entry]
                coefficients[token, entry, 1] = mask * similarity * share
            _pull_on_query(features, columns, query, key, nodes, number, token, pulls, query_bar)


@compiled_njit()
@no_type_check
def _pull_on_key(features, columns, query, key, entries, coefficients, out_bar, asked, node, bars):
    """Fill in the cotangents of a token's key and value from the entries in which it is asked."""
    q, k, v, width = columns
    lowest, scale, least = features
    key_bar, value_bar = bars
    channels = out_bar.shape[1]
    floor, total = everywhere(lowest, _WIDTH), _F(0)
    for place in asked:
        total += coefficients[place, 0]
    for column in range(0, max(width, channels), _WIDTH):
        keys, values = everywhere(least / scale * total, _WIDTH), everywhere(_F(0), _WIDTH)
        for place in asked:
            token = place // entries
            queries = larger(floor, load_before(q + width, query, token, q + column, _WIDTH))
            keys = keys + coefficients[place, 0] * queries
            bar = load_before(channels, out_bar, token, column, _WIDTH)
            values = values + coefficients[place, 1] * bar
        passed = load_before(k + width, key, node, k + column, _WIDTH) - floor
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
    coefficients = np.empty((tokens, entries, 2), np.float32)
    blocks = (tokens + _BLOCK - 1) // _BLOCK
    modulation_bars = np.empty((blocks, modulation.shape[0]), np.float32)
    _backward_rows(
        features, columns, query, key, value, modulation, nodes, loads, num_entries, out,
        normalizer, out_bar, bars[0], coefficients, modulation_bars,
    )  # fmt: skip
    _backward_columns(
        features, columns, query, key, entries, coefficients.reshape(-1, 2), out_bar, incoming,
        offsets, bars[1:],
    )  # fmt: skip
    for hop in range(modulation.shape[0]):
        total = 0.0
        for block in range(blocks):
            total += modulation_bars[block, hop]
        modulation_bar[hop] = total
