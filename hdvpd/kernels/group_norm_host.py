"""Host form of GroupNorm with GELU: images are read twice and written once, or twice backward.

Loops go through rows of several pixels, since vector code for the channels of one would be short:
what belongs to a channel is repeated for every pixel of a row. Sums are made of those of fixed
parts of an image, in their order, whatever the number of threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import clear, fast_njit, parallel_njit
from hdvpd.kernels.gelu import gelu, gelu_slope

_MOST_PARTS = 16
"""Of an image, whose sums are added at last."""
_PART = 8192
"""Numbers of a part at least."""
_ROW = 512
"""Numbers of a row at least."""
_AT_ONCE = 256
"""Rows whose float32 sums are added to float64 ones."""


@parallel_njit()
@no_type_check
def forward(
    x: np.ndarray,
    bias: np.ndarray,
    scale: np.ndarray,
    offset: np.ndarray,
    groups: int,
    epsilon: float,
    result: np.ndarray,
    mean: np.ndarray,
    deviation: np.ndarray,
) -> None:
    """Fill in GELU of the normed images, and their mean and 1 / deviation.

    Args:
      x: (b, p, c) images, as lists of pixels.
      bias: (c,) added first.
      scale: (c,) of the norm.
      offset: (c,) of the norm.
      groups: how many.
      epsilon: added to the variance.
      result: (b, p, c).
      mean: (b, c) of x + bias, of every channel.
      deviation: (b, c) 1 / that of the channel's group.
    """
    images, pixels, channels = x.shape
    parts, row = _division(pixels, channels)
    sums = np.empty((images, parts, 2, row), np.float64)
    for index in prange(images * parts):
        image, part = index // parts, index % parts
        _add_moments(x[image, _of(part, parts, pixels)], sums[image, part])
    _moments(sums, pixels, bias, groups, epsilon, mean, deviation)
    factors = np.empty((images, 2, row), np.float32)
    _to_inner(bias, scale, offset, groups, mean, deviation, factors)
    for index in prange(images * parts):
        image, part = index // parts, index % parts
        some = _of(part, parts, pixels)
        _activate(x[image, some], factors[image], result[image, some])


@parallel_njit()
@no_type_check
def backward(
    x: np.ndarray,
    bias: np.ndarray,
    scale: np.ndarray,
    offset: np.ndarray,
    groups: int,
    mean: np.ndarray,
    deviation: np.ndarray,
    result_bar: np.ndarray,
    x_bar: np.ndarray,
    bias_bar: np.ndarray,
    scale_bar: np.ndarray,
    offset_bar: np.ndarray,
) -> None:
    """Fill in the cotangents of images, bias, scale and offset; shapes are as in `forward`."""
    images, pixels, channels = x.shape
    parts, row = _division(pixels, channels)
    inner = np.empty((images, 2, row), np.float32)
    _to_inner(bias, scale, offset, groups, mean, deviation, inner)
    sums = np.empty((images, parts, 2, row), np.float64)
    for index in prange(images * parts):
        image, part = index // parts, index % parts
        some = _of(part, parts, pixels)
        # The cotangent of what GELU gets is kept in x_bar for the second reading.
        _deactivate(x[image, some], inner[image], result_bar[image, some], x_bar[image, some],
                    sums[image, part])  # fmt: skip
    factors = np.empty((images, 3, row), np.float32)
    _bars(sums, pixels, bias, scale, groups, mean, deviation, bias_bar, scale_bar, offset_bar,
          factors)  # fmt: skip
    for index in prange(images * parts):
        image, part = index // parts, index % parts
        some = _of(part, parts, pixels)
        _finish(x[image, some], factors[image], x_bar[image, some])


# What follows is too little for several threads, which numba would wake for every sum of an array.


@fast_njit()
@no_type_check
def _division(pixels, channels):
    """Return the number of parts of an image, and how long a row of whole pixels is."""
    parts = min(max(pixels * channels // _PART, 1), _MOST_PARTS)
    return parts, channels * -(-_ROW // channels)


@fast_njit()
@no_type_check
def _of(part, parts, pixels):
    """Return which pixels a part has."""
    return slice(part * pixels // parts, (part + 1) * pixels // parts)


@fast_njit()
@no_type_check
def _moments(sums, pixels, bias, groups, epsilon, mean, deviation):
    """Fill in mean and deviation from the sums of x and of its squares."""
    images, channels = mean.shape
    width = channels // groups
    total = _of_channels(sums, channels)
    for image in range(images):
        for first in range(0, channels, width):
            square = 0.0
            for channel in range(first, first + width):
                middle = total[image, 0, channel] / pixels
                square += total[image, 1, channel] / pixels
                square += bias[channel] * (2 * middle + bias[channel])
                mean[image, channel] = middle + bias[channel]
            middle = _mean(mean[image, first : first + width])
            variance = max(square / width - middle * middle, 0.0)
            for channel in range(first, first + width):
                deviation[image, channel] = 1 / np.sqrt(variance + epsilon)


@fast_njit()
@no_type_check
def _to_inner(bias, scale, offset, groups, mean, deviation, factors):
    """Fill in (b, 2, row) slope and shift: GELU gets x slope + shift."""
    images, channels = mean.shape
    width = channels // groups
    for image in range(images):
        for first in range(0, channels, width):
            middle = _mean(mean[image, first : first + width])
            for channel in range(first, first + width):
                slope = scale[channel] * deviation[image, channel]
                factors[image, 0, channel] = slope
                factors[image, 1, channel] = offset[channel] + (bias[channel] - middle) * slope
        _repeat(factors[image], channels)


@fast_njit()
@no_type_check
def _bars(
    sums, pixels, bias, scale, groups, mean, deviation, bias_bar, scale_bar, offset_bar, factors
):
    """Fill in cotangents, and (b, 3, row) factor, along and rest of that of x, see `_finish`.

    The sums, (b, parts, 2, row), are of cotangents of what GELU gets, and of those times x.
    """
    images, channels = mean.shape
    width = channels // groups
    total = _of_channels(sums, channels)
    clear(bias_bar)
    clear(scale_bar)
    clear(offset_bar)
    for image in range(images):
        for first in range(0, channels, width):
            middle = _mean(mean[image, first : first + width])
            slope = np.float64(deviation[image, first])
            rest, along = 0.0, 0.0
            for channel in range(first, first + width):
                bar = total[image, 0, channel]
                product = (total[image, 1, channel] + (bias[channel] - middle) * bar) * slope
                offset_bar[channel] += bar
                scale_bar[channel] += product
                rest += scale[channel] * bar
                along += scale[channel] * product
            rest *= slope / (pixels * width)
            along *= slope * slope / (pixels * width)
            for channel in range(first, first + width):
                factor = scale[channel] * slope
                factors[image, 0, channel] = factor
                factors[image, 1, channel] = along
                factors[image, 2, channel] = rest + (bias[channel] - middle) * along
                # The sum of the cotangents of x.
                taken = rest + (mean[image, channel] - middle) * along
                bias_bar[channel] += factor * total[image, 0, channel] - pixels * taken
        _repeat(factors[image], channels)


@fast_njit()
@no_type_check
def _of_channels(sums, channels):
    """Return (b, 2, c) sums of channels from (b, parts, 2, row)."""
    images, parts, kinds, row = sums.shape
    total = np.empty((images, kinds, channels), np.float64)
    clear(total)
    for image in range(images):
        for part in range(parts):
            for kind in range(kinds):
                for first in range(0, row, channels):
                    for channel in range(channels):
                        total[image, kind, channel] += sums[image, part, kind, first + channel]
    return total


@fast_njit()
@no_type_check
def _mean(numbers):
    total = 0.0
    for place in range(numbers.shape[0]):
        total += numbers[place]
    return total / numbers.shape[0]


@fast_njit()
@no_type_check
def _repeat(factors, channels):
    """Fill in rows whose first pixel is there."""
    for kind in range(factors.shape[0]):
        for place in range(channels, factors.shape[1]):
            factors[kind, place] = factors[kind, place - channels]


# Of parts of images. Loops over a row are functions of their own: numba makes vector code of those.


@fast_njit()
@no_type_check
def _add_moments(x, sums):
    numbers, row = x.reshape(-1), sums.shape[1]
    clear(sums)
    some = np.empty((2, row), np.float32)
    for begin in range(0, numbers.shape[0], _AT_ONCE * row):
        clear(some)
        for first in range(begin, min(begin + _AT_ONCE * row, numbers.shape[0]), row):
            _add_squares(numbers[first : first + row], some[0], some[1])
        _add(some, sums)


@fast_njit()
@no_type_check
def _activate(x, factors, result):
    numbers, results, row = x.reshape(-1), result.reshape(-1), factors.shape[1]
    for first in range(0, numbers.shape[0], row):
        here = slice(first, first + row)
        _activate_row(numbers[here], factors[0], factors[1], results[here])


@fast_njit()
@no_type_check
def _deactivate(x, factors, result_bar, inner_bar, sums):
    numbers, bars, inner_bars = x.reshape(-1), result_bar.reshape(-1), inner_bar.reshape(-1)
    row = sums.shape[1]
    clear(sums)
    some = np.empty((2, row), np.float32)
    for begin in range(0, numbers.shape[0], _AT_ONCE * row):
        clear(some)
        for first in range(begin, min(begin + _AT_ONCE * row, numbers.shape[0]), row):
            here = slice(first, first + row)
            _deactivate_row(numbers[here], factors[0], factors[1], bars[here], inner_bars[here])
            _add_products(numbers[here], inner_bars[here], some[0], some[1])
        _add(some, sums)


@fast_njit()
@no_type_check
def _finish(x, factors, x_bar):
    """Replace the cotangent of what GELU gets by bar factor - x along - rest."""
    numbers, bars, row = x.reshape(-1), x_bar.reshape(-1), factors.shape[1]
    for first in range(0, numbers.shape[0], row):
        here = slice(first, first + row)
        _finish_row(numbers[here], factors[0], factors[1], factors[2], bars[here])


@fast_njit()
@no_type_check
def _add_squares(x, total, squares):
    for place in range(x.shape[0]):
        total[place] += x[place]
        squares[place] += x[place] * x[place]


@fast_njit()
@no_type_check
def _add_products(x, bar, total, products):
    for place in range(x.shape[0]):
        total[place] += bar[place]
        products[place] += bar[place] * x[place]


@fast_njit()
@no_type_check
def _activate_row(x, slope, shift, result):
    for place in range(x.shape[0]):
        result[place] = gelu(x[place] * slope[place] + shift[place])


@fast_njit()
@no_type_check
def _deactivate_row(x, slope, shift, result_bar, inner_bar):
    for place in range(x.shape[0]):
        inner_bar[place] = result_bar[place] * gelu_slope(x[place] * slope[place] + shift[place])


@fast_njit()
@no_type_check
def _finish_row(x, factor, along, rest, bar):
    for place in range(x.shape[0]):
        bar[place] = bar[place] * factor[place] - rest[place] - x[place] * along[place]


@fast_njit()
@no_type_check
def _add(some, sums):
    for kind in range(sums.shape[0]):
        for place in range(sums.shape[1]):
            sums[kind, place] += some[kind, place]
