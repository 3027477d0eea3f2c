"""The order of points along the Z curve, in which near ones mostly follow each other."""

from typing import no_type_check

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, UInt32
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.compiled import compiled_njit
from hdvpd.kernels.host import host_call

_CELLS = 1024
"""Along each axis."""
_HALVES = ((16, 0x30000FF), (8, 0x300F00F), (4, 0x30C30C3), (2, 0x9249249))
"""Shifts that move the lowest ten bits three places apart, by halves, and what each leaves."""
_TINY = np.finfo(np.float32).tiny
_LAST = 1 << 30
# Bits that one pass of the radix sort looks at, so that its counts stay in the first cache.
_BITS = 11


def z_order(
    points: Float[Array, "n 3"], mask: Bool[Array, "n"], kernels: Kernels = "auto"
) -> Int[JaxArray, "n"]:
    """Return an order in which points that are near in space mostly follow each other.

    It is that of the Z curve (Morton codes) over 1,024 cells per axis of the points' bounding cube;
    points of one cell keep their order.

    Args:
      points: [m], finite where the mask is True.
      mask: points to order; the others come last, in their order.
      kernels: form in which they are sorted.
    """
    points, mask = jax.lax.stop_gradient(jnp.asarray(points)), jnp.asarray(mask)
    if use_host_kernels(kernels):
        result = jax.ShapeDtypeStruct(mask.shape, np.int32)
        return host_call(order_points, [result], points, mask)[0]
    # Axis by axis: XLA makes no vector code of arrays whose last axis has three.
    axes = [jnp.where(mask, x, 0.0) for x in jnp.unstack(points, axis=1)]
    offsets = [x - jnp.where(mask, x, jnp.inf).min() for x in axes]
    largest = jnp.stack([jnp.where(mask, x, 0.0).max() for x in offsets]).max()
    size = jnp.maximum(largest, _TINY)
    cells = [jnp.clip(x / size * _CELLS, 0, _CELLS - 1).astype(jnp.uint32) for x in offsets]
    x, y, z = map(_apart, cells)
    keys = jnp.where(mask, x | y << 1 | z << 2, jnp.uint32(_LAST))
    return jnp.argsort(keys, stable=True).astype(jnp.int32)


def _apart(numbers: UInt32[JaxArray, "n"]) -> UInt32[JaxArray, "n"]:
    for shift, kept in _HALVES:
        numbers = (numbers | numbers << shift) & kept
    return numbers


@compiled_njit()
@no_type_check
def order_points(points: np.ndarray, mask: np.ndarray, order: np.ndarray) -> None:
    """Fill in the order, (n,), of (n, 3) points; see `z_order`."""
    rows = np.empty(len(mask), np.int32)
    count = _masked_last(mask, rows)
    keys, sorted_rows = np.empty(count, np.uint32), np.empty(count, np.int32)
    if count:
        _fill_keys(points, rows[:count], keys)
        sort_rows(keys, sorted_rows)
    for place in range(count):
        order[place] = rows[sorted_rows[place]]
    for place in range(count, len(mask)):
        order[place] = rows[place]


@compiled_njit()
@no_type_check
def _masked_last(mask, rows):
    """Fill in the numbers of rows, those that are masked last; return how many are not."""
    count = 0
    for row in range(len(mask)):
        count += mask[row]
    front, back = 0, count
    for row in range(len(mask)):
        # No branch: which rows are masked is hard to guess.
        rows[front if mask[row] else back] = row
        front += mask[row]
        back += not mask[row]
    return count


@compiled_njit()
@no_type_check
def _fill_keys(points, rows, keys):
    """Fill in the Morton codes of some rows of (n, 3) points, at least one."""
    count = len(rows)
    # Axis by axis: loops over an axis of three make no vectors.
    x, y, z = np.empty((3, count), np.float32)
    for place in range(count):
        row = rows[place]
        x[place], y[place], z[place] = points[row, 0], points[row, 1], points[row, 2]
    (x_least, x_most), (y_least, y_most), (z_least, z_most) = _range(x), _range(y), _range(z)
    size = max(_TINY, x_most - x_least, y_most - y_least, z_most - z_least)
    for place in range(count):
        key = _spread(x[place] - x_least, size)
        key |= _spread(y[place] - y_least, size) << np.uint32(1)
        keys[place] = key | _spread(z[place] - z_least, size) << np.uint32(2)


@compiled_njit()
@no_type_check
def _range(places):
    least = most = places[0]
    for place in places:
        least, most = min(least, place), max(most, place)
    return least, most


@compiled_njit(inline="always")
@no_type_check
def _spread(offset, size):
    """Return the number of a place's cell along an axis, its bits three places apart."""
    cell = min(max(offset / size * np.float32(_CELLS), np.float32(0)), np.float32(_CELLS - 1))
    number = np.uint32(np.int32(cell))
    for shift, kept in _HALVES:
        number = (number | number << np.uint32(shift)) & np.uint32(kept)
    return number


@compiled_njit()
@no_type_check
def sort_rows(keys: np.ndarray, order: np.ndarray) -> None:
    """Fill in the stable order of (n,) keys, by a radix sort that begins at the lowest bits."""
    count = len(keys)
    before = np.empty(count, np.int32)
    for row in range(count):
        order[row] = row
    for shift in range(0, 32, _BITS):
        starts = np.zeros((1 << _BITS) + 1, np.int64)
        for row in range(count):
            before[row] = order[row]
            starts[1 + (keys[row] >> np.uint32(shift) & np.uint32((1 << _BITS) - 1))] += 1
        for digit in range(1 << _BITS):
            starts[digit + 1] += starts[digit]
        for place in range(count):
            row = before[place]
            digit = keys[row] >> np.uint32(shift) & np.uint32((1 << _BITS) - 1)
            order[starts[digit]] = row
            starts[digit] += 1
