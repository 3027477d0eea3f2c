"""Compiled host form of the two passes over a forest, for edges that multiply what they carry.

The plain JAX form takes a step per level, so that a path costs its number of nodes in steps; here
every slot costs the same.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import SLAB, parallel_njit


@parallel_njit()
@no_type_check
def weighted_path_sums(
    weights: np.ndarray,
    above: np.ndarray,
    below: np.ndarray,
    beside: np.ndarray,
    x: np.ndarray,
    inside: np.ndarray,
    outside: np.ndarray,
) -> None:
    """Fill in what `forests.path_sums` returns (slots, c); the structure is that of `Forest`.

    Args:
      weights: (slots,) factor of the edge from each slot to the one above.
      above: (slots,), past the end if there is none, as below.
      below: (slots, 2).
      beside: (slots,).
      x: (slots, c) what every slot sends.
      inside: (slots, c).
      outside: (slots, c).
    """
    num_slots, num_columns = x.shape
    for slab in prange(-(-num_columns // SLAB)):
        start, end = slab * SLAB, min(num_columns, (slab + 1) * SLAB)
        # Slots lie level after level from the roots on: children come after their parents.
        for slot in range(num_slots - 1, -1, -1):
            for column in range(start, end):
                inside[slot, column] = x[slot, column]
            for child in below[slot]:
                if child < num_slots:
                    for column in range(start, end):
                        inside[slot, column] += weights[child] * inside[child, column]
        for slot in range(num_slots):
            parent, sibling = above[slot], beside[slot]
            if parent == num_slots:
                for column in range(start, end):
                    outside[slot, column] = 0.0
                continue
            for column in range(start, end):
                outside[slot, column] = weights[slot] * (
                    x[parent, column] + outside[parent, column]
                )
            if sibling < num_slots:
                share = weights[slot] * weights[sibling]
                for column in range(start, end):
                    outside[slot, column] += share * inside[sibling, column]
