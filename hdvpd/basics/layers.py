"""The dense layers, convolutions and norms of flax, with initial values from few compiled programs.

JAX compiles a draw for every shape anew, and slowly for kernels with many axes. Here numbers are
drawn in a row, of a length out of few, and cut to shape on the host. They are those of flax's own
initialisers: number i of a draw depends on the key and on i alone (`jax_threefry_partitionable`,
JAX's default).
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from hdvpd.basics.types import PRNGKey

# Standard deviation of a normal distribution cut at two of its own.
_TRUNCATED_STD = 0.87962566103423978


def lecun_normal(key: PRNGKey, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Draw a kernel of variance 1 / fan-in, from a normal distribution cut at two deviations."""
    variance = np.asarray(1 / math.prod(shape[:-1]), dtype)
    std = np.sqrt(variance) / np.asarray(_TRUNCATED_STD, dtype)
    return _draw(_truncated_normal, key, shape, dtype, float(std))


def normal(std: float) -> Callable[..., jax.Array]:
    """Return the initialiser of a normal distribution."""
    return lambda key, shape, dtype=jnp.float32: _draw(_normal, key, shape, dtype, std)


def zeros(key: PRNGKey, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Return zeros; nothing is drawn."""
    del key
    return _on_device(np.zeros(shape, dtype))


def ones(key: PRNGKey, shape: Sequence[int], dtype: Any = jnp.float32) -> jax.Array:
    """Return ones; nothing is drawn."""
    del key
    return _on_device(np.ones(shape, dtype))


class Keys(nnx.Rngs):
    """The keys of `nnx.Rngs(params=seed)`, counted in Python.

    nnx counts in an array, and before it adds one asks a tracer for its sharding, twice: refusing
    writes a message about all that was traced so far, half of the time that a model's shapes took.
    """

    def __init__(self, seed: int):
        super().__init__()
        self.params = _Counted(seed, tag="params")


class _Counted(nnx.RngStream):
    drawn = 0

    def __call__(self) -> jax.Array:
        key = jax.random.fold_in(self.key[...], self.drawn)
        self.drawn += 1
        return key


Linear = functools.partial(nnx.Linear, kernel_init=lecun_normal, bias_init=zeros)
Conv = functools.partial(nnx.Conv, kernel_init=lecun_normal, bias_init=zeros)
LayerNorm = functools.partial(nnx.LayerNorm, scale_init=ones, bias_init=zeros)
GroupNorm = functools.partial(nnx.GroupNorm, scale_init=ones, bias_init=zeros)


def count_parameters(module: nnx.Module) -> int:
    """Count the numbers that training changes."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))


def multiply_in_bfloat16(model: nnx.Module) -> None:
    """Let all dense layers and convolutions of a model round their inputs to bfloat16.

    Products are summed in float32. Parameters, norms, attention's own sums and everything between
    layers stay float32; a convolution's result is rounded once more.
    """
    for _, module in nnx.iter_modules(model):
        if isinstance(module, nnx.Linear | nnx.Conv):
            module.dtype = jnp.bfloat16
        if isinstance(module, nnx.Linear):
            # The transpose of such a convolution is one that JAX does not have.
            module.preferred_element_type = jnp.float32


def split_linear(linear: nnx.Linear, x: jax.Array, parts: int) -> list[jax.Array]:
    """Apply a dense layer and return equal parts of its result, each a product of its own.

    Cutting the common product apart would copy it, and its gradient add padded parts.

    Args:
      linear: with bias.
      x: rows.
      parts: how many.
    """
    bias = linear.bias
    assert bias is not None
    x, kernel, offset = linear.promote_dtype((x, linear.kernel[...], bias[...]), dtype=linear.dtype)
    kernels, offsets = jnp.split(kernel, parts, axis=1), jnp.split(offset, parts)
    dtype = linear.preferred_element_type
    return [
        jnp.matmul(x, w, preferred_element_type=dtype) + b[None]
        for w, b in zip(kernels, offsets, strict=True)
    ]


ROWS_AT_ONCE = 16384
"""Rows of a block in `by_rows`: 8 MiB at width 128, which the last-level cache of a CPU holds."""


def by_rows(function: Callable[[jax.Array], jax.Array], rows: jax.Array) -> jax.Array:
    """Apply a function that works row by row, in blocks that stay in the cache if there are many.

    What lies between its layers, such as the hidden rows of an MLP, is then never written to
    memory as a whole. Below eight blocks, as in training at the paper's size, and on accelerators
    all rows are taken at once.

    Args:
      function: from (r, d) to (r, o), each row from its own row.
      rows: (t, d).

    Returns:
      (t, o).
    """
    if rows.shape[0] < 8 * ROWS_AT_ONCE or jax.default_backend() != "cpu":
        return function(rows)
    whole = rows.shape[0] // ROWS_AT_ONCE * ROWS_AT_ONCE
    blocks = rows[:whole].reshape(-1, ROWS_AT_ONCE, rows.shape[1])
    done = jax.lax.map(function, blocks)
    return jnp.concatenate([done.reshape(whole, -1), function(rows[whole:])])


def each(function: Callable[..., Any], *elements: Any) -> Any:
    """Map a function over the leading axis of its arguments; a single element is not batched.

    With an axis of one, XLA's code for CPUs transposes what the gradients of weights are made of:
    a block of the Interlacer takes 1.4 times as long forward and backward (docs/lab-book.md).
    """
    if jax.tree.leaves(elements)[0].shape[0] != 1:
        return jax.vmap(function)(*elements)
    alone = function(*jax.tree.map(lambda x: x[0], elements))
    return jax.tree.map(lambda x: x[None], alone)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _truncated_normal(key: PRNGKey, length: int, dtype: Any) -> jax.Array:
    return jax.random.truncated_normal(key, -2.0, 2.0, (length,), dtype)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _normal(key: PRNGKey, length: int, dtype: Any) -> jax.Array:
    return jax.random.normal(key, (length,), dtype)


def _draw(
    distribution: Callable[..., jax.Array],
    key: PRNGKey,
    shape: Sequence[int],
    dtype: Any,
    std: float,
) -> jax.Array:
    size = math.prod(shape)
    row = distribution(key, 4 ** math.ceil(math.log(size, 4)), dtype)
    scale = np.asarray(std, dtype)
    if isinstance(row, Tracer):  # of a program, or for shapes only: there is nothing on the host
        return row[:size].reshape(shape) * scale
    return _on_device(np.asarray(row)[:size].reshape(shape) * scale)


def _on_device(values: np.ndarray) -> jax.Array:
    # A copy, because the train step donates its state and must own the buffers.
    return jax.device_put(values, may_alias=False)
