"""Products with a square sparse matrix stored as rows of entries.

Phi_ij is the sum of features[i, e] over the entries e of row i with nodes[i, e] = j. The loops run
over entries up to the longest row's, so that no [t, e, c] array exists; each product is the other's
derivative.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from hdvpd.array_typing import Array, Float, Int, JaxArray


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
    return _multiply(features, nodes, num_entries, x)


@jax.custom_vjp
def multiply_transposed(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    """Return Phi^T x; arguments as in `multiply`."""
    return _multiply_transposed(features, nodes, num_entries, x)


# The loops are compiled by themselves, for callers outside of a compiled program.


@jax.jit
def _multiply(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    def add(entry: int | JaxArray, total: JaxArray) -> JaxArray:
        return total + features[:, entry, None] * x[nodes[:, entry]]

    return _over_entries(add, num_entries, jnp.zeros(x.shape, jnp.result_type(features, x)))


@jax.jit
def _multiply_transposed(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    x: Float[Array, "t c"],
) -> Float[JaxArray, "t c"]:
    def add(entry: int | JaxArray, total: JaxArray) -> JaxArray:
        return total.at[nodes[:, entry]].add(features[:, entry, None] * x)

    return _over_entries(add, num_entries, jnp.zeros(x.shape, jnp.result_type(features, x)))


@jax.jit
def _entry_products(
    features: Float[Array, "t e"],
    nodes: Int[Array, "t e"],
    num_entries: Int[Array, "t"],
    left: Float[Array, "t c"],
    right: Float[Array, "t c"],
) -> Float[JaxArray, "t e"]:
    """Return left_i . right_j for every entry (i, j): how left . Phi right changes with it."""

    def put(entry: int | JaxArray, products: JaxArray) -> JaxArray:
        products_of_entry = (left * right[nodes[:, entry]]).sum(1)
        return products.at[:, entry].set(products_of_entry.astype(products.dtype))

    return _over_entries(put, num_entries, jnp.zeros(nodes.shape, features.dtype))


def _over_entries(
    body: Callable[[int | JaxArray, JaxArray], JaxArray],
    num_entries: Int[Array, "t"],
    first: JaxArray,
) -> JaxArray:
    return jax.lax.fori_loop(0, jnp.asarray(num_entries).max(initial=0), body, first)


def _forward(features, nodes, num_entries, x):
    return multiply(features, nodes, num_entries, x), (features, nodes, num_entries, x)


def _backward(saved, out_bar):
    features, nodes, num_entries, x = saved
    features_bar = _entry_products(features, nodes, num_entries, out_bar, x)
    x_bar = multiply_transposed(features, nodes, num_entries, out_bar)
    return features_bar, None, None, x_bar.astype(x.dtype)


def _transposed_forward(features, nodes, num_entries, x):
    return multiply_transposed(features, nodes, num_entries, x), (features, nodes, num_entries, x)


def _transposed_backward(saved, out_bar):
    features, nodes, num_entries, x = saved
    features_bar = _entry_products(features, nodes, num_entries, x, out_bar)
    x_bar = multiply(features, nodes, num_entries, out_bar)
    return features_bar, None, None, x_bar.astype(x.dtype)


multiply.defvjp(_forward, _backward)
multiply_transposed.defvjp(_transposed_forward, _transposed_backward)
