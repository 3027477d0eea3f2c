"""What the entries of a token's walks are multiplied and weighed by, in compiled host code.

Several entries at a time: of one, most instructions would wait for the one before. The numbers of a
token's entries are rows of a table, its room; those behind its last entry mean nothing, but masks
are 0 there.
"""

from typing import no_type_check

import numpy as np

from hdvpd.kernels.compiled import compiled_njit
from hdvpd.kernels.vector_sums import plus_product, repeated, sums_of_runs
from hdvpd.kernels.vectors import everywhere, larger, load, load_before, store

_F = np.float32
WIDTH = 64
"""Columns of a vector, several registers."""
ENTRIES = 16
"""Entries of a vector."""
SIMILARITIES, MASKS, WEIGHTS, GAINS, CHANGES, PULLS, _FACTORS, _SUMS, _NUM_ROWS = range(9)
"""Rows of a room."""
_USUAL = 4
"""Loads of an entry, one more than there are hops."""
_LOADED = ENTRIES // _USUAL
"""Entries whose loads are a vector."""


@compiled_njit(inline="always")
@no_type_check
def room_for(entries, modulation):
    """Return the room of so many entries."""
    hops = modulation.shape[0]
    room = np.zeros((_NUM_ROWS, -(-max(entries, hops) // ENTRIES) * ENTRIES), np.float32)
    for place in range(ENTRIES):
        room[_FACTORS, place] = modulation[place % hops]
    return room


@compiled_njit(inline="always")
@no_type_check
def multiply(rows, row, width, lowest, others, column, nodes, token, number, room, result):
    """Fill in row . max(x, lowest) for every entry.

    Args:
      rows: of which one is multiplied.
      row: its number.
      width: its columns.
      lowest: that an x is; -inf takes any as it is.
      others: of which x are as many columns.
      column: the first of them.
      nodes: (t, e) whose x an entry has.
      token: whose entries.
      number: how many there are.
      room: of the token.
      result: row of it that is filled in.
    """
    floor, end, last = everywhere(lowest, WIDTH), column + width, number - 1
    for entry in range(0, number, 4):
        a, b = nodes[token, entry], nodes[token, min(entry + 1, last)]
        c, d = nodes[token, min(entry + 2, last)], nodes[token, min(entry + 3, last)]
        of_a = of_b = of_c = of_d = everywhere(_F(0), WIDTH)
        for start in range(0, width, WIDTH):
            here, there = load_before(width, rows, row, start, WIDTH), column + start
            of_a = plus_product(
                of_a, here, larger(floor, load_before(end, others, a, there, WIDTH))
            )
            of_b = plus_product(
                of_b, here, larger(floor, load_before(end, others, b, there, WIDTH))
            )
            of_c = plus_product(
                of_c, here, larger(floor, load_before(end, others, c, there, WIDTH))
            )
            of_d = plus_product(
                of_d, here, larger(floor, load_before(end, others, d, there, WIDTH))
            )
        store(sums_of_runs((of_a, of_b, of_c, of_d), WIDTH), room, result, entry)


@compiled_njit(inline="always")
@no_type_check
def fill_in_masks(modulation, loads, token, number, room):
    """Fill in sum_l f_l W^l of every entry, of (t, e l) loads."""
    hops, end = modulation.shape[0], loads.shape[1]
    if hops == _USUAL:
        factors = load(room, _FACTORS, 0, ENTRIES)
        for first in range(0, number, ENTRIES):
            column = _USUAL * first
            a = factors * load_before(end, loads, token, column, ENTRIES)
            b = factors * load_before(end, loads, token, column + ENTRIES, ENTRIES)
            c = factors * load_before(end, loads, token, column + 2 * ENTRIES, ENTRIES)
            d = factors * load_before(end, loads, token, column + 3 * ENTRIES, ENTRIES)
            store(sums_of_runs((a, b, c, d), _USUAL), room, MASKS, first)
    else:
        for entry in range(-(-number // ENTRIES) * ENTRIES):
            mask = _F(0)
            if entry < number:
                for hop in range(hops):
                    mask += modulation[hop] * loads[token, entry * hops + hop]
            room[MASKS, entry] = mask


@compiled_njit(inline="always")
@no_type_check
def add_changes(modulation, loads, token, number, room):
    """Add sum_e change_e W^l_e, the cotangent of f_l, to what a block's room has of it."""
    hops, end = modulation.shape[0], loads.shape[1]
    if hops == _USUAL:
        sums = load(room, _SUMS, 0, ENTRIES)
        for first in range(0, number, _LOADED):
            changes = repeated(load(room, CHANGES, first, _LOADED), _USUAL)
            some = load_before(end, loads, token, _USUAL * first, ENTRIES)
            sums = plus_product(sums, changes, some)
        store(sums, room, _SUMS, 0)
    else:
        for entry in range(number):
            for hop in range(hops):
                room[_SUMS, hop] += room[CHANGES, entry] * loads[token, entry * hops + hop]


@compiled_njit(inline="always")
@no_type_check
def take_changes(modulation, room, block, bars):
    """Fill in a block's cotangents of f."""
    hops = modulation.shape[0]
    for hop in range(hops):
        total = room[_SUMS, hop]
        if hops == _USUAL:
            for place in range(hop + _USUAL, ENTRIES, _USUAL):
                total += room[_SUMS, place]
        bars[block, hop] = total
