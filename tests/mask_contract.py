"""What every mask must satisfy, whatever it is: called by the test files of the masks."""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.attention import dense
from hdvpd.attention.masked import masked_linear_attention
from hdvpd.attention.masks.base import AbstractMask


def check_mask(mask: AbstractMask, oracle: np.ndarray, *, rtol: float = 1e-5) -> None:
    """Check products, dense form and transformations against a float64 matrix of the definition.

    Args:
      mask: what to check.
      oracle: M, made without the package's code.
      rtol: error allowed, relative to the largest entry of each result.
    """
    assert mask.num_tokens == len(oracle)
    columns = np.random.default_rng(len(oracle)).normal(size=(len(oracle), 3)).astype(np.float32)
    _close(mask.dense(), oracle, rtol)
    product = mask @ columns
    _close(product, oracle @ columns, rtol)
    # Columns do not mix, and the product is linear in them.
    for column in range(columns.shape[1]):
        _close(mask @ columns[:, column : column + 1], product[:, column : column + 1], rtol)
    _close(
        mask @ (2 * columns[:, :1] - columns[:, 1:2]), 2 * product[:, :1] - product[:, 1:2], rtol
    )
    # The mask is an argument of a compiled program, and its product maps over a batch.
    _close(jax.jit(lambda mask, x: mask @ x)(mask, columns), product, rtol)
    _close(jax.vmap(lambda x: mask @ x)(jnp.stack([columns, -columns]))[1], -product, rtol)
    # The product's derivative with respect to x is the transposed matrix.
    _close(
        jax.vjp(lambda x: mask @ x, columns)[1](product)[0], oracle.T @ np.float64(product), rtol
    )


def check_attention(mask: AbstractMask, oracle: np.ndarray, *, atol: float = 1e-5) -> None:
    """Check masked linear attention and its gradients against the dense form.

    Args:
      mask: what to check; no row of it is zero.
      oracle: M in float64, not negative.
      atol: error allowed; values are of order one.
    """
    rng = np.random.default_rng(1)
    query, key = (np.maximum(rng.normal(size=(len(oracle), 4)), 0) + 1e-1 for _ in range(2))
    value, weights = (rng.normal(size=(len(oracle), 3)) for _ in range(2))
    inputs = tuple(np.float32(x) for x in (query, key, value))

    def fast(*inputs):
        return masked_linear_attention(*inputs, mask)

    def slow(*inputs):
        return dense.masked_linear_attention(*inputs, jnp.asarray(oracle, jnp.float32))

    expected = (oracle * (query @ key.T)) @ value / (oracle * (query @ key.T)).sum(1)[:, None]
    np.testing.assert_allclose(fast(*inputs), expected, atol=atol)
    cotangent = jnp.asarray(weights, jnp.float32)
    for got, wanted in zip(*(jax.vjp(f, *inputs)[1](cotangent) for f in (fast, slow)), strict=True):
        np.testing.assert_allclose(got, wanted, atol=10 * atol)


def check_gradient(function, parameters, *, eps: float = 1e-2, rtol: float = 1e-4) -> None:
    """Check the derivative of a smooth function of parameters against differences in float64.

    Args:
      function: from a float array to a scalar, written with jax.
      parameters: where to differentiate.
      eps: step of the five-point difference, whose error is of fourth order.
      rtol: error allowed, relative to the largest derivative.
    """
    parameters = np.asarray(parameters, np.float64)
    with jax.enable_x64(True):
        gradient = np.asarray(jax.grad(function)(jnp.asarray(parameters)))
        differences = np.zeros_like(parameters)
        for index in np.ndindex(parameters.shape):
            direction = np.zeros_like(parameters)
            direction[index] = eps
            near = function(parameters + direction) - function(parameters - direction)
            far = function(parameters + 2 * direction) - function(parameters - 2 * direction)
            differences[index] = (8 * near - far) / (12 * eps)
    np.testing.assert_allclose(gradient, differences, atol=rtol * np.abs(differences).max())


def _close(got, expected, rtol: float) -> None:
    expected = np.asarray(expected, np.float64)
    scale = np.abs(expected).max(initial=1e-30)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=rtol * scale, rtol=0)
