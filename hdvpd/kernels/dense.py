"""Dense layers with what stands before and after them, as host code.

XLA's twin is the modules of flax themselves (`basics/layers.py`): `on_host` says which runs.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Bool, Float, JaxArray
from hdvpd.kernels import dense_host, linear_attention_host, onednn
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import fill_each

LEAST_ROWS = 2048
"""Fewer are left to XLA, which is then as fast."""


def on_host(kernels: Kernels, *arrays: jax.Array) -> bool:
    """Whether dense layers on such arrays of rows run as host code: float32, many, with oneDNN."""
    return (
        use_host_kernels(kernels)
        and onednn.available()
        and all(x.dtype == jnp.float32 for x in arrays)
        and arrays[0].shape[0] >= LEAST_ROWS
    )


def norm_dense(
    x: Float[JaxArray, "t d"],
    scale: Float[JaxArray, "d"],
    offset: Float[JaxArray, "d"],
    epsilon: float,
    kernel: Float[JaxArray, "d n"],
    bias: Float[JaxArray, "n"],
) -> Float[JaxArray, "t n"]:
    """Return LayerNorm(x) kernel + bias.

    Args:
      x: rows.
      scale: of the norm.
      offset: of the norm.
      epsilon: added to the variance.
      kernel: of the layer.
      bias: of the layer.
    """
    no_residual = jnp.zeros((0, kernel.shape[1]), x.dtype)
    moving = (x, jnp.stack([scale, offset]), no_residual, kernel, bias)
    return _dense((dense_host.NORM, epsilon), moving, ())


def dense_added(
    residual: Float[JaxArray, "r n"],
    x: Float[JaxArray, "t d"],
    kernel: Float[JaxArray, "d n"],
    bias: Float[JaxArray, "n"],
    *,
    gelu: bool = False,
) -> Float[JaxArray, "t n"]:
    """Return residual + x kernel + bias.

    Args:
      residual: rows; none at all for 0.
      x: rows.
      kernel: of the layer.
      bias: of the layer.
      gelu: take GELU(x) in place of x.
    """
    before = dense_host.GELU if gelu else dense_host.NOTHING
    moving = (x, jnp.zeros((2, 0), x.dtype), residual, kernel, bias)
    return _dense((before, 0.0), moving, ())


def relu_attention(
    queries_keys_values: Float[JaxArray, "t w"],
    mask: Bool[Array, "t"],
    num_heads: int,
    least: float,
) -> Float[JaxArray, "t d"]:
    """Return `attention.linear.linear_attention` of ReLU features.

    Args:
      queries_keys_values: w = 3 d, beside each other, each of all heads beside each other.
      mask: real tokens.
      num_heads: heads.
      least: added to ReLU.
    """
    share = mask / jnp.maximum(mask.sum(), 1).astype(jnp.float32)
    return _attend((num_heads, least), queries_keys_values, share)


def _forward(settings, moving, fixed):
    x, norm, residual, kernel, bias = moving
    before, epsilon = _numbers(*settings)
    arguments = (before, x, norm, epsilon, residual, kernel, bias)
    return fill_each(dense_host.forward, [(x.shape[0], kernel.shape[1])], *arguments)[0], None


def _backward(settings, moving, fixed, saved, result_bar):
    x, norm, residual, kernel, bias = moving
    before, epsilon = _numbers(*settings)
    shapes = [x.shape, norm.shape, kernel.shape, bias.shape]
    arguments = (before, x, norm, epsilon, kernel, result_bar)
    x_bar, norm_bar, kernel_bar, bias_bar = fill_each(dense_host.backward, shapes, *arguments)
    residual_bar = result_bar if residual.shape[0] else residual
    return x_bar, norm_bar, residual_bar, kernel_bar, bias_bar


def _attention_forward(settings, moving, fixed):
    num_heads, (_, least) = settings[0], _numbers(*settings)
    rows, width = moving.shape[0], moving.shape[1] // 3
    each = width // num_heads
    shapes = [(rows, width), (num_heads, each, each), (num_heads, each)]
    result, *sums = fill_each(linear_attention_host.forward, shapes, moving, fixed, least)
    return result, sums


def _attention_backward(settings, moving, fixed, sums, result_bar):
    _, least = _numbers(*settings)
    arguments = (moving, fixed, least, *sums, result_bar)
    return fill_each(linear_attention_host.backward, [moving.shape], *arguments)[0]


def _numbers(whole, real):
    return np.asarray(whole, np.int32), np.asarray(real, np.float32)


_dense = differentiable(_forward, _backward)
_attend = differentiable(_attention_forward, _attention_backward)
