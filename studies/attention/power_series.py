"""Power series of W as masks: coefficients and their deconvolution (arXiv 2310.04859, 2410.03462).

A mask M = sum_k alpha_k W^k of a symmetric W factorises as Phi Phi^T with Phi = sum_l f_l W^l when
f is the deconvolution of alpha: sum_{p <= k} f_p f_{k-p} = alpha_k. M is positive semi-definite by
construction. `alpha` is called mask coefficients here and `f` modulation. Everything is float64
numpy: coefficients are constants, computed once.
"""

from typing import NamedTuple

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float


class PowerSeries(NamedTuple):
    """The first coefficients of a mask and of its symmetric factor.

    Attributes:
      mask: alpha_0..alpha_{l-1}.
      modulation: f_0..f_{l-1}, the deconvolution of `mask`.
    """

    mask: Float[np.ndarray, "l"]
    modulation: Float[np.ndarray, "l"]


def deconvolve(mask: Float[np.ndarray, "l"]) -> Float[np.ndarray, "l"]:
    """Find f with f * f = alpha by the recursion of arXiv 2310.04859 (Eq. 6).

    f_0 = sqrt(alpha_0), f_{k+1} = (alpha_{k+1} - sum_{p=1..k} f_p f_{k+1-p}) / (2 f_0).

    Raises:
      UserError: alpha_0 is not positive, or a coefficient is not finite.
    """
    mask = np.asarray(mask, np.float64)
    if not (np.isfinite(mask).all() and mask[0] > 0):
        raise UserError(
            f"mask coefficients {mask.tolist()}: all must be finite and the first positive."
        )
    modulation = np.zeros_like(mask)
    modulation[0] = np.sqrt(mask[0])
    for k in range(1, len(mask)):
        inner = modulation[1:k] @ modulation[1:k][::-1]
        modulation[k] = (mask[k] - inner) / (2 * modulation[0])
    return modulation


def convolve(modulation: Float[np.ndarray, "l"]) -> Float[np.ndarray, "l"]:
    """Return alpha = f * f, cut to the length of f: the inverse of `deconvolve`."""
    return np.convolve(modulation, modulation)[: len(modulation)]


def power_series(
    matrix: Float[Array, "t t"], coefficients: Float[Array, "l"]
) -> Float[Array, "t t"]:
    """Return the dense sum_l c_l W^l by Horner's rule; the truncated series, not its limit."""
    identity = np.eye(len(matrix), dtype=matrix.dtype)
    total = coefficients[-1] * identity
    for hop in range(2, len(coefficients) + 1):
        total = total @ matrix + coefficients[-hop] * identity
    return total


def exponential(num_terms: int, time: float = 1.0) -> PowerSeries:
    """Return the coefficients of exp(t W): alpha_k = t^k / k!, f_k = (t/2)^k / k!."""
    order = np.arange(1, num_terms)
    return PowerSeries(_products(time / order), _products(time / 2 / order))


def heat(num_terms: int, time: float = 1.0) -> PowerSeries:
    """Return the coefficients of the heat kernel exp(-t (I - W))."""
    series = exponential(num_terms, time)
    return PowerSeries(np.exp(-time) * series.mask, np.exp(-time / 2) * series.modulation)


def inverse_power(num_terms: int, exponent: float = 1.0) -> PowerSeries:
    """Return the coefficients of (I - W)^-s: alpha_k = (s)_k / k!, f_k = (s/2)_k / k!.

    (a)_k = a (a+1) .. (a+k-1). s = 2 gives f = 1; s = 1 gives f_k = (2k-1)!! / (2k)!!.
    """
    order = np.arange(1, num_terms)
    return PowerSeries(*(_products((s + order - 1) / order) for s in (exponent, exponent / 2)))


def binomial_power(num_terms: int, exponent: float = 2.0) -> PowerSeries:
    """Return the coefficients of (I + W)^s: alpha_k = binom(s, k), f_k = binom(s/2, k)."""
    order = np.arange(1, num_terms)
    return PowerSeries(*(_products((s - order + 1) / order) for s in (exponent, exponent / 2)))


def cosine_plus_sine(num_terms: int, *, radius: float) -> PowerSeries:
    """Return the coefficients of cos W + sin W, which has no closed form of f: the recursion's.

    Args:
      num_terms: coefficients of each.
      radius: spectral radius of W. f is the root of cos z + sin z, which is 0 at z = -pi/4: its
        series converges below pi/4 only, whatever the mask's own does.

    Raises:
      UserError: the radius is pi/4 or more.
    """
    if not 0 <= radius < np.pi / 4:
        raise UserError(
            f"radius = {radius}: the factor of cos W + sin W is a series that converges for "
            "spectral radii below pi/4 = 0.785 only; scale W, for example 0.7 W of a normalised W."
        )
    order = np.arange(num_terms)
    signs = (-1.0) ** (order // 2)
    mask = signs * _products(1 / np.arange(1, num_terms))
    return PowerSeries(mask, deconvolve(mask))


def _products(ratios: Float[np.ndarray, "ratios"]) -> Float[np.ndarray, "l"]:
    """Return 1, r_1, r_1 r_2, ..."""
    return np.concatenate([[1.0], np.cumprod(ratios)])
