"""The order of integer keys, equal ones in that of their rows."""

from typing import no_type_check

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Int, JaxArray, UInt32
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.compiled import compiled_njit
from hdvpd.kernels.host import host_call

# Bits that one pass of the radix sort looks at, so that its counts stay in the first cache.
_BITS = 11


def order_of(keys: UInt32[Array, "n"], kernels: Kernels = "auto") -> Int[JaxArray, "n"]:
    """Return `jnp.argsort(keys, stable=True)`.

    Args:
      keys: numbers.
      kernels: form in which this is computed.
    """
    if not use_host_kernels(kernels):
        return jnp.argsort(keys, stable=True).astype(jnp.int32)
    return host_call(sort_rows, [jax.ShapeDtypeStruct(keys.shape, np.int32)], keys)[0]


@compiled_njit()
@no_type_check
def sort_rows(keys: np.ndarray, order: np.ndarray) -> None:
    """Fill in the order of (n,) keys, by a radix sort that begins at the lowest bits."""
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
