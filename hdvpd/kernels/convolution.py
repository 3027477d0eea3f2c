"""Convolution of images that keeps their size, and the norm that follows it, as host code.

XLA's code for CPUs takes up to seven times as long for a convolution's gradients as oneDNN does
(docs/lab-book.md, *Distance from the machine's floor*). XLA's twin is the modules of flax;
`on_host` says which runs.
"""

import math

import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Float, JaxArray
from hdvpd.kernels import convolution_host, group_norm_host, onednn
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import fill

LEAST_PRODUCTS = 2**21
"""What has fewer is left to XLA, which is then as fast."""
LEAST_NORMED = 2**14
"""Numbers; as above."""


def on_host(
    kernels: Kernels, images: Float[JaxArray, "b h w i"], kernel: Float[JaxArray, "r s i o"]
) -> bool:
    """Whether a convolution runs as host code: float32, many products, with oneDNN."""
    return (
        use_host_kernels(kernels)
        and onednn.available()
        and images.dtype == kernel.dtype == jnp.float32
        and math.prod(images.shape[:3]) * kernel.size >= LEAST_PRODUCTS
    )


def convolve(
    images: Float[JaxArray, "b h w i"], kernel: Float[JaxArray, "r s i o"]
) -> Float[JaxArray, "b h w o"]:
    """Convolve images with zeros around them, keeping their size.

    Args:
      images: channels last.
      kernel: of rows and columns around a pixel; of an even number, one more after it.
    """
    return _convolve(None, (images, kernel), ())


def group_norm_gelu(
    x: Float[JaxArray, "b h w c"],
    bias: Float[JaxArray, "c"],
    scale: Float[JaxArray, "c"],
    offset: Float[JaxArray, "c"],
    num_groups: int,
    epsilon: float,
) -> Float[JaxArray, "b h w c"]:
    """Return GELU(GroupNorm(x + bias)) (arXiv 1803.08494; arXiv 1606.08415, by tanh).

    Args:
      x: images.
      bias: of the convolution that made them.
      scale: of the norm.
      offset: of the norm.
      num_groups: into which channels are divided, in their order.
      epsilon: added to the variance.
    """
    pixels = x.reshape(x.shape[0], -1, x.shape[-1])
    return _norm((num_groups, epsilon), (pixels, bias, scale, offset), ()).reshape(x.shape)


def _convolve_forward(_, moving, fixed):
    images, kernel = moving
    shape = (*images.shape[:3], kernel.shape[3])
    return fill(convolution_host.forward, [shape], images, kernel)[0], None


def _convolve_backward(_, moving, fixed, saved, result_bar):
    images, kernel = moving
    (images_bar,) = fill(convolution_host.to_images, [images.shape], result_bar, kernel)
    (kernel_bar,) = fill(convolution_host.to_kernel, [kernel.shape], images, result_bar)
    return images_bar, kernel_bar


def _norm_forward(settings, moving, fixed):
    x = moving[0]
    channels = (x.shape[0], x.shape[2])
    shapes = [x.shape, channels, channels]
    result, *moments = fill(group_norm_host.forward, shapes, *moving, *_numbers(settings))
    return result, moments


def _norm_backward(settings, moving, fixed, moments, result_bar):
    shapes = [x.shape for x in moving]
    groups = _numbers(settings)[0]
    arguments = (*moving, groups, *moments, result_bar)
    return tuple(fill(group_norm_host.backward, shapes, *arguments))


def _numbers(settings):
    return np.asarray(settings[0], np.int32), np.asarray(settings[1], np.float32)


_convolve = differentiable(_convolve_forward, _convolve_backward)
_norm = differentiable(_norm_forward, _norm_backward)
