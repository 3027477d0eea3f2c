"""Products with a square sparse matrix stored as rows of entries.

Phi_ij is the sum of features[i, e] over the entries e of row i with nodes[i, e] = j. The loops run
over blocks of rows and, in each, over entries up to the longest row's: no [t, e, c] array exists,
and a block stays in the processor's cache while its entries are added, which read nearby rows where
the order of the nodes follows the graph. Each product is the other's derivative.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.array_typing import Array, Float, Int, JaxArray
from hdvpd.attention import sparse_rows_host
from hdvpd.kernels.choice import use_host_kernels
from hdvpd.kernels.host import host_call

# Numbers in a block of rows: 256 KiB of float32, about half of a second-level cache.
_BLOCK_SIZE = 1 << 16


@jax.custom_vjp
def multiply(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    """Return Phi x.

    Args:
      features: values of the entries; 0 in unused ones.
      nodes: columns of the entries; any in unused ones.
      num_entries: entries of each row that are in use.
      x: what to multiply.
    """
    if _on_host(features, x):
        return _call("multiply", x.shape, features, nodes, num_entries, x)
    return _multiply(features, nodes, num_entries, x)


@jax.custom_vjp
def multiply_transposed(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    """Return Phi^T x; arguments as in `multiply`."""
    if _on_host(features, x):
        return _call("multiply_transposed", x.shape, features, nodes, num_entries, x)
    return _multiply_transposed(features, nodes, num_entries, x)


def entry_products(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    left: Float[Array, "t c"],
    right: Float[Array, "t c"],
) -> Float[JaxArray, "t e"]:
    """Return left_i . right_j for every entry (i, j): how left . Phi right changes with it."""
    if _on_host(features, left, right):
        return _call("entry_products", nodes.shape, nodes, num_entries, left, right)
    return _entry_products(features, nodes, num_entries, left, right)


def _on_host(*arrays: Array) -> bool:
    return use_host_kernels("auto") and all(array.dtype == np.float32 for array in arrays)


def _call(name: str, shape: tuple[int, ...], *arguments: Array) -> JaxArray:
    result = jax.ShapeDtypeStruct(shape, np.float32)
    return host_call(getattr(sparse_rows_host, name), [result], *arguments)[0]


# The loops are compiled by themselves, for callers outside of a compiled program.


@jax.jit
def _multiply(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    x = jnp.asarray(x)

    def product(rows: tuple[JaxArray, ...]) -> JaxArray:
        features, nodes, num_entries = rows

        def add(entry: JaxArray, total: JaxArray) -> JaxArray:
            return total + features[:, entry, None] * x[nodes[:, entry]]

        first = jnp.zeros((len(nodes), x.shape[1]), jnp.result_type(features, x))
        return _over_entries(add, num_entries, first)

    products = jax.lax.map(product, _row_blocks(x.shape[1], features, nodes, num_entries))
    return products.reshape(-1, x.shape[1])[: len(x)]


@jax.jit
def _multiply_transposed(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    def scatter(total: JaxArray, rows: tuple[JaxArray, ...]) -> tuple[JaxArray, None]:
        features, nodes, num_entries, x = rows

        def add(entry: JaxArray, total: JaxArray) -> JaxArray:
            return total.at[nodes[:, entry]].add(features[:, entry, None] * x)

        return _over_entries(add, num_entries, total), None

    first = jnp.zeros(x.shape, jnp.result_type(features, x))
    blocks = _row_blocks(x.shape[1], features, nodes, num_entries, x)
    return jax.lax.scan(scatter, first, blocks)[0]


@jax.jit
def _entry_products(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    left: Float[Array, "t c"],
    right: Float[Array, "t c"],
) -> Float[JaxArray, "t e"]:
    right = jnp.asarray(right)

    def product(rows: tuple[JaxArray, ...]) -> JaxArray:
        nodes, num_entries, left = rows

        def put(entry: JaxArray, products: JaxArray) -> JaxArray:
            products_of_entry = (left * right[nodes[:, entry]]).sum(1)
            return products.at[:, entry].set(products_of_entry.astype(products.dtype))

        return _over_entries(put, num_entries, jnp.zeros(nodes.shape, features.dtype))

    products = jax.lax.map(product, _row_blocks(left.shape[1], nodes, num_entries, left))
    return products.reshape(-1, nodes.shape[1])[: len(nodes)]


def _row_blocks(num_columns: int, *arrays: Array) -> tuple[JaxArray, ...]:
    """Cut arrays of one row per token into blocks of rows; rows of zeros fill up the last one."""
    num_rows = len(arrays[0])
    # A power of two of them: rows of a power of two, the common case, then need no filling.
    num_blocks = 1 << (max(0, num_rows * num_columns - 1) // _BLOCK_SIZE).bit_length()
    block = max(1, -(-num_rows // num_blocks))

    def cut(array: Array) -> JaxArray:
        padded = jnp.pad(array, ((0, -num_rows % block), *((0, 0),) * (array.ndim - 1)))
        return padded.reshape(-1, block, *array.shape[1:])

    return tuple(map(cut, arrays))


def _over_entries(
    body: Callable[[JaxArray, JaxArray], JaxArray],
    num_entries: Int[JaxArray, "t"],
    first: JaxArray,
) -> JaxArray:
    return jax.lax.fori_loop(0, num_entries.max(initial=0), body, first)


def _forward(features, nodes, num_entries, x):
    return multiply(features, nodes, num_entries, x), (features, nodes, num_entries, x)


def _backward(saved, out_bar):
    features, nodes, num_entries, x = saved
    features_bar = entry_products(features, nodes, num_entries, out_bar, x)
    x_bar = multiply_transposed(features, nodes, num_entries, out_bar)
    return features_bar, None, None, x_bar.astype(x.dtype)


def _transposed_forward(features, nodes, num_entries, x):
    return multiply_transposed(features, nodes, num_entries, x), (features, nodes, num_entries, x)


def _transposed_backward(saved, out_bar):
    features, nodes, num_entries, x = saved
    features_bar = entry_products(features, nodes, num_entries, x, out_bar)
    x_bar = multiply(features, nodes, num_entries, out_bar)
    return features_bar, None, None, x_bar.astype(x.dtype)


multiply.defvjp(_forward, _backward)
multiply_transposed.defvjp(_transposed_forward, _transposed_backward)
