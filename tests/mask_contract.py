"""What every mask must satisfy, whatever it is: called by the test files of the masks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.attention.masked import masked_linear_attention
from hdvpd.attention.masks.base import AbstractMask
from studies.attention import dense


def check_mask(mask: AbstractMask, oracle: np.ndarray, *, rtol: float = 1e-5) -> None:
    """Check products, dense form and transformations against a float64 matrix of the definition.

    Args:
      mask: what to check.
      oracle: M, made without the package's code.
      rtol: error allowed, relative to the largest entry of each result.
    """
    assert mask.num_tokens == len(oracle)
    columns = np.random.default_rng(len(oracle)).normal(size=(len(oracle), 3)).astype(np.float32)
    got = _transformed(mask, columns)
    product = np.asarray(got["product"])
    _close(product, oracle @ columns, rtol)
    _close(got["dense"], oracle, rtol)
    # Columns do not mix, and the product is linear in them.
    _close(got["column"], product[:, 1:2], rtol)
    _close(got["combination"], 2 * product[:, :1] - product[:, 1:2], rtol)
    _close(got["batch"], np.stack([product, -product]), rtol)
    # The product's derivative with respect to x is the transposed matrix.
    _close(got["pulled back"], oracle.T @ np.float64(product), rtol)


# One program for all, and one for each call of the others below: the time of these tests is
# compilation. Operation by operation masks work in test_masks_docs.py.
@jax.jit
def _transformed(mask: AbstractMask, x):
    product, pull_back = jax.vjp(lambda x: mask @ x, x)
    return {
        "dense": mask.dense(),
        "product": product,
        "column": mask @ x[:, 1:2],
        "combination": mask @ (2 * x[:, :1] - x[:, 1:2]),
        "batch": jax.vmap(lambda x: mask @ x)(jnp.stack([x, -x])),
        "pulled back": pull_back(product)[0],
    }


@jax.jit
def multiply(mask, x):
    """Return mask @ x of one program."""
    return mask @ x


@jax.jit
def densify(mask):
    """Return the dense form of one program."""
    return mask.dense()


@jax.jit
def attend(query, key, value, mask):
    """Return masked linear attention of one program."""
    return masked_linear_attention(query, key, value, mask)


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
    cotangent = np.float32(weights)
    # Compiled anew at every call: a caller may have changed the size of the chunks.
    got, pulled = jax.jit(functools.partial(_with_cotangents, masked_linear_attention))(
        inputs, cotangent, mask
    )
    _, expected_pulled = _dense_with_cotangents(inputs, cotangent, np.float32(oracle))
    expected = (oracle * (query @ key.T)) @ value / (oracle * (query @ key.T)).sum(1)[:, None]
    np.testing.assert_allclose(got, expected, atol=atol)
    for one, other in zip(pulled, expected_pulled, strict=True):
        np.testing.assert_allclose(one, other, atol=10 * atol)


def _with_cotangents(attention, inputs, cotangent, mask):
    out, pull_back = jax.vjp(lambda *inputs: attention(*inputs, mask), *inputs)
    return out, pull_back(cotangent)


_dense_with_cotangents = jax.jit(functools.partial(_with_cotangents, dense.masked_linear_attention))


def check_gradient(function, parameters, *, eps: float = 1e-2, rtol: float = 1e-4) -> None:
    """Check the derivative of a smooth function of parameters against differences in float64.

    Args:
      function: from a float array to a scalar, written with jax.
      parameters: where to differentiate.
      eps: step of the five-point difference, whose error is of fourth order.
      rtol: error allowed, relative to the largest derivative.
    """
    parameters = np.asarray(parameters, np.float64)
    # One program: a derivative of a jitted function would be two more.
    function = jax.jit(jax.value_and_grad(function))
    with jax.enable_x64(True):
        gradient = np.asarray(function(parameters)[1])
        differences = np.zeros_like(parameters)
        for index in np.ndindex(parameters.shape):
            direction = np.zeros_like(parameters)
            direction[index] = eps
            beside = {n: float(function(parameters + n * direction)[0]) for n in (-2, -1, 1, 2)}
            near, far = beside[1] - beside[-1], beside[2] - beside[-2]
            differences[index] = (8 * near - far) / (12 * eps)
    np.testing.assert_allclose(gradient, differences, atol=rtol * np.abs(differences).max())


def _close(got, expected, rtol: float) -> None:
    expected = np.asarray(expected, np.float64)
    scale = np.abs(expected).max(initial=1e-30)
    np.testing.assert_allclose(np.asarray(got, np.float64), expected, atol=rtol * scale, rtol=0)
