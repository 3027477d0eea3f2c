"""exp(-x^2) for compiled host code, in operations of which compilers make vectors."""

from typing import no_type_check

import numpy as np

from hdvpd.kernels.compiled import fast_njit

_F, _I = np.float32, np.int32
_ONE, _HALF, _LOG2_E, _LN_2, _LN_2_REST = (
    _F(1), _F(0.5), _F(1.44269504088896341), _F(0.693359375), _F(-2.12194440e-4),
)  # fmt: skip
_P0, _P1, _P2 = _F(1.9875691500e-4), _F(1.3981999507e-3), _F(8.3334519073e-3)
_P3, _P4, _P5 = _F(4.1665795894e-2), _F(1.6666665459e-1), _F(5.0000001201e-1)
_BIAS, _MANTISSA = _I(127), _I(23)
# A weight of less than e^-80 is 0: its products would be numbers too small for full speed.
LEAST_POWER = _F(-80)


@fast_njit()
@no_type_check
def gaussian(x, powers, result):
    """Fill in exp(-x^2), 0 where it is less than e^-80.

    As Cephes computes exp(t): t = n ln 2 + r, a polynomial for e^r, and the bits of 2^n.

    Args:
      x: (m,) numbers.
      powers: working memory of as many numbers or more.
      result: of as many numbers or more.
    """
    bits = powers.view(np.int32)
    for i in range(x.shape[0]):
        square = -x[i] * x[i]
        power = square if square > LEAST_POWER else LEAST_POWER
        whole = np.floor(power * _LOG2_E + _HALF)
        rest = power - whole * _LN_2 - whole * _LN_2_REST
        series = _P5 + rest * (_P4 + rest * (_P3 + rest * (_P2 + rest * (_P1 + rest * _P0))))
        result[i] = _ONE + rest + rest * rest * series
        bits[i] = (np.int32(whole) + _BIAS) << _MANTISSA if square > LEAST_POWER else np.int32(0)
    for i in range(x.shape[0]):
        result[i] *= powers[i]
