"""Dense layers with what stands before and after them, as host code.

XLA's twin is the modules of flax themselves (`basics/layers.py`): `on_host` says which runs.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Bool, Float, JaxArray
from hdvpd.kernels import dense_host, gelu_dense_host, linear_attention_host, mlp_host
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.ffi import without_python
from hdvpd.kernels.host import fill

LEAST_ROWS = 128
"""Fewer are left to XLA, which is then as fast."""
_LEAST_IN_PYTHON = 16
"""Times as many rows where calls go through Python."""


def on_host(kernels: Kernels, *arrays: jax.Array) -> bool:
    """Whether dense layers on such arrays of rows run as host code: float32, and many."""
    least = LEAST_ROWS if without_python() else _LEAST_IN_PYTHON * LEAST_ROWS
    return (
        use_host_kernels(kernels)
        and all(x.dtype == jnp.float32 for x in arrays)
        and arrays[0].shape[0] >= least
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
    moving = (x, jnp.stack([scale, offset]), kernel, bias)
    return _norm_dense((epsilon, False), moving, ())


def norm_dense_beside(
    x: Float[JaxArray, "t d"],
    scale: Float[JaxArray, "d"],
    offset: Float[JaxArray, "d"],
    epsilon: float,
    kernel: Float[JaxArray, "d n"],
    bias: Float[JaxArray, "n"],
) -> tuple[Float[JaxArray, "t n"], Float[JaxArray, "t d"]]:
    """Return `norm_dense` and x itself, for what else is made of x.

    Both cotangents of x are then added up where the norm's is made.
    """
    moving = (x, jnp.stack([scale, offset]), kernel, bias)
    return _norm_dense((epsilon, True), moving, ())


def dense_added(
    residual: Float[JaxArray, "r n"],
    x: Float[JaxArray, "t d"],
    kernel: Float[JaxArray, "d n"],
    bias: Float[JaxArray, "n"],
) -> Float[JaxArray, "t n"]:
    """Return residual + x kernel + bias.

    Args:
      residual: rows; none at all for 0.
      x: rows.
      kernel: of the layer.
      bias: of the layer.
    """
    return _dense((), (x, residual, kernel, bias), ())


def dense_gelu(
    x: Float[JaxArray, "t d"], kernel: Float[JaxArray, "d n"], bias: Float[JaxArray, "n"]
) -> Float[JaxArray, "t n"]:
    """Return GELU(x kernel + bias).

    Args:
      x: rows.
      kernel: of the layer.
      bias: of the layer.
    """
    return _bent((), (x, kernel, bias), ())


def norm_mlp_added(
    x: Float[JaxArray, "t d"],
    scale: Float[JaxArray, "d"],
    offset: Float[JaxArray, "d"],
    epsilon: float,
    layers: Sequence[tuple[Float[JaxArray, "a b"], Float[JaxArray, "b"]]],
) -> Float[JaxArray, "t d"]:
    """Return x + MLP(LayerNorm(x)), with GELU between its two layers.

    Args:
      x: rows.
      scale: of the norm.
      offset: of the norm.
      epsilon: added to the variance.
      layers: kernel and bias of either.
    """
    (kernel_in, bias_in), (kernel_out, bias_out) = layers
    moving = (x, jnp.stack([scale, offset]), kernel_in, bias_in, kernel_out, bias_out)
    return _mlp(epsilon, moving, ())


def norm_attention_added(
    x: Float[JaxArray, "t d"],
    scale: Float[JaxArray, "d"],
    offset: Float[JaxArray, "d"],
    epsilon: float,
    layers: Sequence[tuple[Float[JaxArray, "a b"], Float[JaxArray, "b"]]],
    mask: Bool[Array, "t"],
    num_heads: int,
    least: float,
) -> Float[JaxArray, "t d"]:
    """Return x + second(`attention.linear.linear_attention` of ReLU features of first(norm(x))).

    Args:
      x: rows.
      scale: of the norm.
      offset: of the norm.
      epsilon: added to the variance.
      layers: kernel and bias of either; the first returns queries, keys and values beside each
        other, each of all heads beside each other.
      mask: real tokens.
      num_heads: heads.
      least: added to ReLU.
    """
    share = mask / jnp.maximum(mask.sum(), 1).astype(jnp.float32)
    moving = (x, jnp.stack([scale, offset]), *layers[0], *layers[1])
    return _attention((epsilon, num_heads, least), moving, share)


def _norm_forward(settings, moving, fixed):
    epsilon, beside = settings
    x, norm, kernel, bias = moving
    no_residual = jnp.zeros((0, kernel.shape[1]), x.dtype)
    result = _filled_dense(x, norm, epsilon, no_residual, kernel, bias)
    return (result, x) if beside else result, None


def _norm_backward(settings, moving, fixed, saved, bars):
    epsilon, beside = settings
    bars = bars if beside else (bars, moving[0][:0])
    return tuple(_filled_bars(*moving, epsilon, *bars))


def _forward(_, moving, fixed):
    x, residual, kernel, bias = moving
    return _filled_dense(x, _no_norm(x), 0.0, residual, kernel, bias), None


def _backward(_, moving, fixed, saved, result_bar):
    x, residual, kernel, bias = moving
    x_bar, _, *bars = _filled_bars(x, _no_norm(x), kernel, bias, 0.0, result_bar, x[:0])
    return x_bar, result_bar if residual.shape[0] else residual, *bars


def _filled_dense(x, norm, epsilon, *arrays):
    shape = x.shape[0], arrays[-1].shape[0]
    return fill(dense_host.forward, [shape], x, norm, _real(epsilon), *arrays)[0]


def _filled_bars(x, norm, kernel, bias, epsilon, *bars):
    shapes = [x.shape, norm.shape, kernel.shape, bias.shape]
    return fill(dense_host.backward, shapes, x, norm, _real(epsilon), kernel, *bars)


def _no_norm(x):
    return jnp.zeros((2, 0), x.dtype)


def _bent_forward(_, moving, fixed):
    x, kernel, bias = moving
    shape = x.shape[0], kernel.shape[1]
    return fill(gelu_dense_host.forward, [shape], x, kernel, bias)[0], None


def _bent_backward(_, moving, fixed, saved, result_bar):
    shapes = [array.shape for array in moving]
    return tuple(fill(gelu_dense_host.backward, shapes, *moving, result_bar))


def _mlp_forward(epsilon, moving, fixed):
    x, norm, *layers = moving
    return fill(mlp_host.forward, [x.shape], x, norm, _real(epsilon), *layers)[0], None


def _mlp_backward(epsilon, moving, fixed, saved, result_bar):
    x, norm, *layers, _ = moving
    shapes = [array.shape for array in moving]
    arguments = (x, norm, _real(epsilon), *layers, result_bar)
    return tuple(fill(mlp_host.backward, shapes, *arguments))


def _attention_forward(settings, moving, share):
    epsilon, num_heads, least = settings
    x, norm, kernel, bias, *out = moving
    rows, width = x.shape
    each = width // num_heads
    shapes = [x.shape, (rows, 3 * width), (num_heads, each, each), (num_heads, each)]
    arguments = (x, norm, _real(epsilon), kernel, bias, share, _real(least), *out)
    result, *saved = fill(linear_attention_host.forward, shapes, *arguments)
    return result, saved


def _attention_backward(settings, moving, share, saved, result_bar):
    epsilon, _, least = settings
    x, norm, kernel, _, out_kernel, _ = moving
    shapes = [array.shape for array in moving]
    before = (x, norm, _real(epsilon), kernel, share, _real(least), out_kernel)
    return tuple(fill(linear_attention_host.backward, shapes, *before, *saved, result_bar))


def _real(number):
    return np.asarray(number, np.float32)


_norm_dense = differentiable(_norm_forward, _norm_backward)
_dense = differentiable(_forward, _backward)
_bent = differentiable(_bent_forward, _bent_backward)
_mlp = differentiable(_mlp_forward, _mlp_backward)
_attention = differentiable(_attention_forward, _attention_backward)
