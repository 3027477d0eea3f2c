"""Dense layers of flax with what stands before and behind them: a norm, GELU, a residual.

With host code (`kernels/dense.py`) what stands before a layer is never written to memory.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.types import Array, Bool, Float, JaxArray
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.dense import (
    dense_added,
    dense_gelu,
    norm_attention_added,
    norm_dense,
    norm_dense_beside,
    norm_mlp_added,
    on_host,
)


def normed(
    norm: nnx.LayerNorm, layers: Sequence[nnx.Linear], x: Float[JaxArray, "t d"], kernels: Kernels
) -> Float[JaxArray, "t w"]:
    """Return layer(norm(x)) for some layers, beside each other.

    Args:
      norm: comes first.
      layers: with or without bias.
      x: rows.
      kernels: compiled host code or plain JAX.
    """
    if layers[0].dtype is not None or not on_host(kernels, x):
        x = norm(x)
        return jnp.concatenate([layer(x) for layer in layers], axis=1)
    return norm_dense(x, *_weights(norm, layers))


def normed_beside(
    norm: nnx.LayerNorm, layers: Sequence[nnx.Linear], x: Float[JaxArray, "t d"], kernels: Kernels
) -> tuple[Float[JaxArray, "t w"], Float[JaxArray, "t d"]]:
    """Return `normed` and the rows themselves, for the residual; both gradients are one pass."""
    if layers[0].dtype is not None or not on_host(kernels, x):
        return normed(norm, layers, x, kernels), x
    return norm_dense_beside(x, *_weights(norm, layers))


def mlp_added(
    x: Float[JaxArray, "t d"],
    norm: nnx.LayerNorm,
    layers: tuple[nnx.Linear, nnx.Linear],
    kernels: Kernels,
) -> Float[JaxArray, "t d"]:
    """Return x + second(GELU(first(norm(x)))).

    Args:
      x: rows.
      norm: comes first.
      layers: the two, with biases; what the first returns is the widest array of a block.
      kernels: compiled host code or plain JAX.
    """
    first, second = layers
    if first.dtype is not None or not on_host(kernels, x):
        return x + second(jax.nn.gelu(first(norm(x))))
    assert norm.scale is not None
    assert norm.bias is not None
    weights = [(layer.kernel[...], _bias(layer)) for layer in layers]
    return norm_mlp_added(x, norm.scale[...], norm.bias[...], norm.epsilon, weights)


def attention_added(
    x: Float[JaxArray, "t d"],
    norm: nnx.LayerNorm,
    layers: tuple[nnx.Linear, nnx.Linear],
    mask: Bool[Array, "t"],
    num_heads: int,
    least: float,
) -> Float[JaxArray, "t d"]:
    """Return `norm_attention_added` of flax's layers, on arrays that are `on_host`."""
    assert norm.scale is not None
    assert norm.bias is not None
    weights = [(layer.kernel[...], _bias(layer)) for layer in layers]
    scale, offset = norm.scale[...], norm.bias[...]
    return norm_attention_added(x, scale, offset, norm.epsilon, weights, mask, num_heads, least)


def added(
    residual: Float[JaxArray, "t n"],
    layer: nnx.Linear,
    x: Float[JaxArray, "t d"],
    kernels: Kernels,
) -> Float[JaxArray, "t n"]:
    """Return residual + layer(x).

    Args:
      residual: rows.
      layer: with or without bias.
      x: rows.
      kernels: compiled host code or plain JAX.
    """
    return summed([(layer, x)], None, residual, kernels)


def applied(
    layer: nnx.Linear, x: Float[JaxArray, "t d"], kernels: Kernels
) -> Float[JaxArray, "t n"]:
    """Return layer(x).

    Args:
      layer: with or without bias.
      x: rows.
      kernels: compiled host code or plain JAX.
    """
    return summed([(layer, x)], None, None, kernels)


def summed(
    layers: Sequence[tuple[nnx.Linear, Float[JaxArray, "t _"]]],
    shift: Float[JaxArray, "n"] | None,
    residual: Float[JaxArray, "t n"] | None,
    kernels: Kernels,
) -> Float[JaxArray, "t n"]:
    """Return residual + shift + the sum of layer(x) over some layers: on the host one product.

    Args:
      layers: with or without bias, each with its rows.
      shift: the same for all rows.
      residual: rows.
      kernels: compiled host code or plain JAX.
    """
    first, x = layers[0]
    rows = [x for _, x in layers]
    if first.dtype is not None or not on_host(kernels, *rows):
        result = first(x)
        for layer, x in layers[1:]:
            result = result + layer(x)
        result = result if shift is None else result + shift[None]
        return result if residual is None else residual + result
    bias = jnp.zeros(first.out_features) if shift is None else shift
    for layer, _ in layers:
        bias += _bias(layer)
    kernel = jnp.concatenate([layer.kernel[...] for layer, _ in layers])
    if residual is None:
        residual = jnp.zeros((0, first.out_features), x.dtype)
    return dense_added(residual, jnp.concatenate(rows, axis=1), kernel, bias)


def bent(layer: nnx.Linear, x: Float[JaxArray, "t d"], kernels: Kernels) -> Float[JaxArray, "t n"]:
    """Return GELU(layer(x)).

    Args:
      layer: with or without bias.
      x: rows.
      kernels: compiled host code or plain JAX.
    """
    if layer.dtype is not None or not on_host(kernels, x):
        return jax.nn.gelu(layer(x))
    return dense_gelu(x, layer.kernel[...], _bias(layer))


def _weights(norm: nnx.LayerNorm, layers: Sequence[nnx.Linear]) -> tuple:
    """Return what `norm_dense` asks for beside rows: of the norm, and of all layers together."""
    assert norm.scale is not None
    assert norm.bias is not None
    kernel = jnp.concatenate([layer.kernel[...] for layer in layers], axis=1)
    bias = jnp.concatenate([_bias(layer) for layer in layers])
    return norm.scale[...], norm.bias[...], norm.epsilon, kernel, bias


def _bias(layer: nnx.Linear) -> Float[JaxArray, "n"]:
    return jnp.zeros(layer.out_features) if layer.bias is None else layer.bias[...]
