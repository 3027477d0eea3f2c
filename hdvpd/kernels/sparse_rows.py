"""Square sparse matrices stored as rows of entries, and their products.

A directed graph with weights is one (row i lists the out-neighbours of node i), the features of
walks are another. The plain JAX loops run over blocks of rows and, in each, over entries up to the
longest row's: no [t, e, c] array exists, and a block stays in the processor's cache while its
entries are added, which read nearby rows where the order of the nodes follows the graph. Each
product is the other's derivative.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Float, Int, JaxArray, pytree, static
from hdvpd.kernels import sparse_rows_host
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import host_call

# Numbers in a block of rows: 256 KiB of float32, about half of a second-level cache.
_BLOCK_SIZE = 1 << 16


@pytree
class SparseRows:
    """A square matrix S; S_ij is the sum of the values of row i's entries in column j.

    As a graph: the columns of row i are the out-neighbours of node i, the values are the weights
    W_ij of its edges, and `num_entries` are the out-degrees.

    Attributes:
      columns: of each entry; any in unused entries, which follow those in use.
      values: of each entry; 0 in unused ones.
      num_entries: entries of each row that are in use.
      kernels: form in which products, and walks on the graph, are computed.
    """

    columns: Int[Array, "*batch t e"]
    values: Float[Array, "*batch t e"]
    num_entries: Int[Array, "*batch t"]
    kernels: Kernels = static(default="auto")

    @property
    def num_rows(self) -> int:
        """Rows and columns of S."""
        return self.columns.shape[0]

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return S x."""
        return multiply(self, x)

    def transposed_product(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return S^T x."""
        return multiply_transposed(self, x)

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return S, for small matrices."""
        rows = jnp.broadcast_to(jnp.arange(self.num_rows)[:, None], self.columns.shape)
        matrix = jnp.zeros((self.num_rows,) * 2, self.values.dtype)
        return matrix.at[rows, self.columns].add(self.values)


def multiply(rows: SparseRows, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
    """Return S x, differentiable in the values and in x."""
    return _product((rows.kernels, False), (rows.values, x), (rows.columns, rows.num_entries))


def multiply_transposed(rows: SparseRows, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
    """Return S^T x, differentiable in the values and in x."""
    return _product((rows.kernels, True), (rows.values, x), (rows.columns, rows.num_entries))


def entry_products(
    rows: SparseRows, left: Float[Array, "t c"], right: Float[Array, "t c"]
) -> Float[JaxArray, "t e"]:
    """Return left_i . right_j for every entry (i, j): how left . S right changes with it."""
    columns, counts = rows.columns, rows.num_entries
    if _on_host(rows, left, right):
        host = sparse_rows_host.entry_products
        return _call(host, columns.shape, columns, counts, left, right)
    return _entry_products(rows.values, columns, counts, left, right)


def _on_host(rows: SparseRows, *arrays: Array) -> bool:
    # Higher precision is plain JAX's.
    single = all(array.dtype == np.float32 for array in (rows.values, *arrays))
    return single and use_host_kernels(rows.kernels)


def _call(function: Callable[..., None], shape: tuple[int, ...], *arguments: Array) -> JaxArray:
    return host_call(function, [jax.ShapeDtypeStruct(shape, np.float32)], *arguments)[0]


# The loops are compiled by themselves, for callers outside of a compiled program.


@jax.jit
def _multiply(
    values: Float[Array, "t e"],
    columns: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    x = jnp.asarray(x)

    def product(rows: tuple[JaxArray, ...]) -> JaxArray:
        values, columns, num_entries = rows

        def add(entry: JaxArray, total: JaxArray) -> JaxArray:
            return total + values[:, entry, None] * x[columns[:, entry]]

        first = jnp.zeros((len(columns), x.shape[1]), jnp.result_type(values, x))
        return _over_entries(add, num_entries, first)

    products = jax.lax.map(product, _row_blocks(x.shape[1], values, columns, num_entries))
    return products.reshape(-1, x.shape[1])[: len(x)]


@jax.jit
def _multiply_transposed(
    values: Float[Array, "t e"],
    columns: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    def scatter(total: JaxArray, rows: tuple[JaxArray, ...]) -> tuple[JaxArray, None]:
        values, columns, num_entries, x = rows

        def add(entry: JaxArray, total: JaxArray) -> JaxArray:
            return total.at[columns[:, entry]].add(values[:, entry, None] * x)

        return _over_entries(add, num_entries, total), None

    first = jnp.zeros(x.shape, jnp.result_type(values, x))
    blocks = _row_blocks(x.shape[1], values, columns, num_entries, x)
    return jax.lax.scan(scatter, first, blocks)[0]


@jax.jit
def _entry_products(
    values: Float[Array, "t e"],
    columns: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    left: Float[Array, "t c"],
    right: Float[Array, "t c"],
) -> Float[JaxArray, "t e"]:
    right = jnp.asarray(right)

    def product(rows: tuple[JaxArray, ...]) -> JaxArray:
        columns, num_entries, left = rows

        def put(entry: JaxArray, products: JaxArray) -> JaxArray:
            products_of_entry = (left * right[columns[:, entry]]).sum(1)
            return products.at[:, entry].set(products_of_entry.astype(products.dtype))

        return _over_entries(put, num_entries, jnp.zeros(columns.shape, values.dtype))

    products = jax.lax.map(product, _row_blocks(left.shape[1], columns, num_entries, left))
    return products.reshape(-1, columns.shape[1])[: len(columns)]


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


def _forward(settings, moving, fixed):
    kernels, transposed = settings
    values, x = moving
    if _on_host(_rows(kernels, moving, fixed), x):
        host = sparse_rows_host.multiply_transposed if transposed else sparse_rows_host.multiply
        return _call(host, x.shape, values, *fixed, x), None
    product = _multiply_transposed if transposed else _multiply
    return product(values, *fixed, x), None


def _backward(settings, moving, fixed, _, out_bar):
    kernels, transposed = settings
    rows, x = _rows(kernels, moving, fixed), moving[1]
    x_bar = (multiply if transposed else multiply_transposed)(rows, out_bar)
    left, right = (x, out_bar) if transposed else (out_bar, x)
    return entry_products(rows, left, right), x_bar.astype(x.dtype)


def _rows(kernels: Kernels, moving: tuple[Any, Any], fixed: tuple[Any, Any]) -> SparseRows:
    return SparseRows(fixed[0], moving[0], fixed[1], kernels)


_product = differentiable(_forward, _backward)
