"""Products of small blocks by oneDNN inside compiled host code, each by the thread that asks.

oneDNN sees that it is called within a parallel loop and begins none of its own.
"""

from typing import no_type_check

import llvmlite.binding as llvm
import numpy as np
from numba import types

from hdvpd.kernels import onednn
from hdvpd.kernels.compiled import fast_njit

_NAME = "dnnl_sgemm"
_PLAIN, _TRANSPOSED = 78, 84  # N and T

# Compiled code holds the name, also in its cache; every process says where the function is.
if onednn.available():
    llvm.add_symbol(_NAME, onednn.address(_NAME))

_sgemm = types.ExternalFunction(
    _NAME,
    types.int32(
        types.int8, types.int8, types.int64, types.int64, types.int64, types.float32,
        types.voidptr, types.int64, types.voidptr, types.int64, types.float32, types.voidptr,
        types.int64,
    ),
)  # fmt: skip


@fast_njit()
@no_type_check
def add_product(a, b, share, result):
    """Set result to share * result + a b. Rows must be without gaps, and may lie apart."""
    _add(_PLAIN, a, _PLAIN, b, a.shape[1], share, result)


@fast_njit()
@no_type_check
def add_product_transposed(a, b, share, result):
    """Set result to share * result + a b^T; see `add_product`."""
    _add(_PLAIN, a, _TRANSPOSED, b, a.shape[1], share, result)


@fast_njit()
@no_type_check
def add_transposed_product(a, b, share, result):
    """Set result to share * result + a^T b; see `add_product`."""
    _add(_TRANSPOSED, a, _PLAIN, b, a.shape[0], share, result)


@fast_njit()
@no_type_check
def _add(how_a, a, how_b, b, inner, share, result):
    _sgemm(
        how_a, how_b, result.shape[0], result.shape[1], inner, np.float32(1.0),
        a.ctypes.data, a.strides[0] // 4, b.ctypes.data, b.strides[0] // 4, np.float32(share),
        result.ctypes.data, result.strides[0] // 4,
    )  # fmt: skip
