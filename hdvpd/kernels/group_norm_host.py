"""Host form of GroupNorm with GELU: images are read twice and written once, or twice backward.

Sums are made of those of fixed parts of an image, in their order, whatever the number of threads.
"""

from typing import no_type_check

import numpy as np
from numba import prange

from hdvpd.kernels.compiled import clear, fast_njit, parallel_njit
from hdvpd.kernels.gelu import gelu, gelu_slope
from hdvpd.kernels.host import each

_PARTS = 16
"""Of an image, whose sums are added at last."""
_AT_ONCE = 256
"""Pixels whose float32 sums are added to float64 ones."""


def forward(*arrays: np.ndarray) -> None:
    """Fill in GELU of the normed images, and the mean and 1 / deviation of every channel.

    Args:
      *arrays: those of `_forward`; there may be further axes in front (`host.each`).
    """
    for x in each((3, 1, 1, 1, 0, 0, 3, 2, 2), *arrays):
        _forward(*x)


def backward(*arrays: np.ndarray) -> None:
    """Fill in the cotangents of images, bias, scale and offset; see `forward`."""
    for x in each((3, 1, 1, 1, 0, 2, 2, 3, 3, 1, 1, 1), *arrays):
        _backward(*x)


@parallel_njit()
@no_type_check
def _forward(
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
    """Do what `forward` does.

    Args:
      x: (b, p, c) images, as rows of pixels.
      bias: (c,) added first.
      scale: (c,) of the norm.
      offset: (c,) of the norm.
      groups: how many.
      epsilon: added to the variance.
      result: (b, p, c).
      mean: (b, c).
      deviation: (b, c).
    """
    images, pixels, channels = x.shape
    sums = np.empty((images, _PARTS, 2, channels), np.float64)
    for index in prange(images * _PARTS):
        image, part = index // _PARTS, index % _PARTS
        begin, end = part * pixels // _PARTS, (part + 1) * pixels // _PARTS
        clear(sums[image, part])
        _add_moments(x[image, begin:end], bias, sums[image, part])
    _group_moments(sums, pixels, groups, epsilon, mean, deviation)
    for index in prange(images * _PARTS):
        image, part = index // _PARTS, index % _PARTS
        begin, end = part * pixels // _PARTS, (part + 1) * pixels // _PARTS
        slope = scale * deviation[image]
        shift = offset + (bias - mean[image]) * slope
        _activate(x[image, begin:end], slope, shift, result[image, begin:end])


@parallel_njit()
@no_type_check
def _backward(
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
    # Of arrays like those of `forward`, and their cotangents.
    images, pixels, channels = x.shape
    sums = np.empty((images, _PARTS, 3, channels), np.float64)
    for index in prange(images * _PARTS):
        image, part = index // _PARTS, index % _PARTS
        rows = slice(part * pixels // _PARTS, (part + 1) * pixels // _PARTS)
        slope = deviation[image]
        shift = (bias - mean[image]) * slope
        normed_bar = x_bar[image, rows]  # kept there for the second reading
        _deactivate(x[image, rows], slope * scale, shift * scale + offset, result_bar[image, rows],
                    normed_bar)  # fmt: skip
        clear(sums[image, part])
        _add_products(x[image, rows], slope, shift, normed_bar, sums[image, part])
    means = _group_means(sums, pixels, groups, scale)
    for index in prange(images * _PARTS):
        image, part = index // _PARTS, index % _PARTS
        rows = slice(part * pixels // _PARTS, (part + 1) * pixels // _PARTS)
        slope = deviation[image]
        # x_bar = normed_bar factor - x along - rest
        along = means[image, 1] * slope * slope
        rest = means[image, 0] * slope + (bias - mean[image]) * along
        _finish(x[image, rows], scale * slope, along, rest, x_bar[image, rows], sums[image, part])
    _add_parts(sums[:, :, 0], offset_bar)
    _add_parts(sums[:, :, 1], scale_bar)
    _add_parts(sums[:, :, 2], bias_bar)


# What follows is too little for several threads, which numba would wake for every sum of an array.


@fast_njit()
@no_type_check
def _group_moments(sums, pixels, groups, epsilon, mean, deviation):
    images, channels = mean.shape
    width = channels // groups
    for image in range(images):
        for first in range(0, channels, width):
            group = slice(first, first + width)
            middle = sums[image, :, 0, group].sum() / (pixels * width)
            square = sums[image, :, 1, group].sum() / (pixels * width)
            mean[image, group] = middle
            variance = max(square - middle * middle, 0.0)
            deviation[image, group] = 1 / np.sqrt(variance + epsilon)


@fast_njit()
@no_type_check
def _group_means(sums, pixels, groups, scale):
    """Return the means of a group's cotangents, and of those times what they belong to."""
    images, _, _, channels = sums.shape
    width = channels // groups
    means = np.empty((images, 2, channels), np.float32)
    for image in range(images):
        for first in range(0, channels, width):
            group = slice(first, first + width)
            for which in range(2):
                weighted = sums[image, :, which, group].sum(0) * scale[group]
                means[image, which, group] = weighted.sum() / (pixels * width)
    return means


@fast_njit()
@no_type_check
def _add_parts(sums, total):
    total[:] = sums.sum(0).sum(0)


@fast_njit()
@no_type_check
def _add_moments(x, bias, sums):
    pixels, channels = x.shape
    total, squares = np.empty((2, channels), np.float32)
    for start in range(0, pixels, _AT_ONCE):
        total[:] = 0
        squares[:] = 0
        for pixel in range(start, min(start + _AT_ONCE, pixels)):
            for channel in range(channels):
                value = x[pixel, channel] + bias[channel]
                total[channel] += value
                squares[channel] += value * value
        sums[0] += total
        sums[1] += squares


@fast_njit()
@no_type_check
def _activate(x, slope, shift, result):
    for pixel in range(x.shape[0]):
        for channel in range(x.shape[1]):
            result[pixel, channel] = gelu(x[pixel, channel] * slope[channel] + shift[channel])


@fast_njit()
@no_type_check
def _deactivate(x, slope, shift, result_bar, normed_bar):
    for pixel in range(x.shape[0]):
        for channel in range(x.shape[1]):
            inner = x[pixel, channel] * slope[channel] + shift[channel]
            normed_bar[pixel, channel] = result_bar[pixel, channel] * gelu_slope(inner)


@fast_njit()
@no_type_check
def _add_products(x, slope, shift, normed_bar, sums):
    pixels, channels = x.shape
    total, products = np.empty((2, channels), np.float32)
    for start in range(0, pixels, _AT_ONCE):
        total[:] = 0
        products[:] = 0
        for pixel in range(start, min(start + _AT_ONCE, pixels)):
            for channel in range(channels):
                bar = normed_bar[pixel, channel]
                total[channel] += bar
                products[channel] += bar * (x[pixel, channel] * slope[channel] + shift[channel])
        sums[0] += total
        sums[1] += products


@fast_njit()
@no_type_check
def _finish(x, factor, along, rest, x_bar, sums):
    pixels, channels = x.shape
    total = np.empty(channels, np.float32)
    for start in range(0, pixels, _AT_ONCE):
        total[:] = 0
        for pixel in range(start, min(start + _AT_ONCE, pixels)):
            for channel in range(channels):
                bar = x_bar[pixel, channel] * factor[channel] - rest[channel]
                bar -= x[pixel, channel] * along[channel]
                x_bar[pixel, channel] = bar
                total[channel] += bar
        sums[2] += total
