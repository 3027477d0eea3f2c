"""GELU for compiled host code, of numbers in loops or of vectors.

The form of `jax.nn.gelu`: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). tanh is the rational
approximation of Eigen and XLA (unsupported/../MathFunctionsImpl.h, generic_fast_tanh_float), within
5e-7.
"""

from typing import no_type_check

import numpy as np

from hdvpd.kernels.compiled import inlined_njit
from hdvpd.kernels.vector_sums import plus_product
from hdvpd.kernels.vectors import within

_F = np.float32
_HALF, _ONE = _F(0.5), _F(1)
# sqrt(2 / pi), and that times 0.044715 and three times that.
_SCALE, _CUBE, _THREE = _F(0.7978845608), _F(0.0356774081), _F(0.1070322244)
_LARGEST = _F(7.90531110763549805)
_P1, _P3, _P5, _P7 = (
    _F(4.89352455891786e-3),
    _F(6.37261928875436e-4),
    _F(1.48572235717979e-5),
    _F(5.12229709037114e-8),
)
_P9, _P11, _P13 = _F(-8.60467152213735e-11), _F(2.00018790482477e-13), _F(-2.76076847742355e-16)
_Q0, _Q2, _Q4, _Q6 = (
    _F(4.89352518554385e-3),
    _F(2.26843463243900e-3),
    _F(1.18534705686654e-4),
    _F(1.19825839466702e-6),
)


@inlined_njit()
@no_type_check
def tanh(x):
    """Return tanh of a number or vector."""
    x = within(x, _LARGEST)
    y = x * x
    p = plus_product(_P9, y, plus_product(_P11, y, _P13))
    p = plus_product(_P3, y, plus_product(_P5, y, plus_product(_P7, y, p)))
    q = plus_product(_Q2, y, plus_product(_Q4, y, _Q6))
    return x * plus_product(_P1, y, p) / plus_product(_Q0, y, q)


@inlined_njit()
@no_type_check
def gelu(x):
    """Return GELU of a number or vector."""
    half = _HALF * x
    return plus_product(half, half, tanh(x * plus_product(_SCALE, _CUBE, x * x)))


@inlined_njit()
@no_type_check
def gelu_slope(x):
    """Return the derivative of GELU."""
    return gelu_and_slope(x)[1]


@inlined_njit()
@no_type_check
def gelu_and_slope(x):
    """Return GELU and its derivative."""
    square, half = x * x, _HALF * x
    bent = tanh(x * plus_product(_SCALE, _CUBE, square))
    inner = half * plus_product(_SCALE, _THREE, square)
    slope = plus_product(plus_product(_HALF, _HALF, bent), _ONE - bent * bent, inner)
    return plus_product(half, half, bent), slope
