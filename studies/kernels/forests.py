"""Sums along the paths of a forest, in two passes over its nodes."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Float, Int, JaxArray, pytree, static
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import host_call
from studies.kernels import forests_host


@pytree
class Forest:
    """Rooted trees over tokens, made by `studies.attention.masks.forests.edge_forest`.

    Nodes lie in slots, level after level from the roots on, in chunks of one width. No node has
    more than two children: joints without a token stand between a node and more of them.

    Attributes:
      parents: parent of each token; -1 for roots.
      lengths: length of the edge to the parent; 0 for roots.
      slots: place of each token among the slots.
      above: slot of the parent; past the end if there is none, as below.
      below: slots of the children.
      beside: slot of the sibling.
      spans: length of the edge to the parent; 0 for roots, joints and unused slots.
      diameter: edges on the longest path.
      kernels: form in which sums along paths are computed.
    """

    parents: Int[Array, "t"]
    lengths: Float[Array, "t"]
    slots: Int[Array, "t"]
    above: Int[Array, "chunks width"]
    below: Int[Array, "chunks width 2"]
    beside: Int[Array, "chunks width"]
    spans: Float[Array, "chunks width"]
    diameter: int = static()
    kernels: Kernels = static(default="auto")


def multiply_along_paths(
    forest: Forest, exponents: Float[Array, "chunks width"], x: Float[Array, "t c"]
) -> Float[JaxArray, "t c"]:
    """Return the sum over j of x_j exp(the sum of the exponents on the path from i to j).

    Args:
      forest: the trees; tokens of different ones are joined by no path.
      exponents: of the edge from each slot to the one above; 0 where `forest.spans` is 0.
      x: what every token sends.
    """
    return _product(None, (exponents, x), forest)


def path_sums(
    forest: Forest,
    weights: Float[JaxArray, "chunks width"],
    cross: Callable[[Float[JaxArray, "width"], JaxArray], JaxArray],
    x: Float[JaxArray, "slots *rest"],
) -> tuple[Float[JaxArray, "slots *rest"], Float[JaxArray, "slots *rest"]]:
    """Carry every node's x along all paths that start there, and add up what arrives.

    Up, then down the tree (arXiv 2107.07999, Lemma 3.5), in a form without subtractions: what a
    node hears of from its parent is the parent's x, what its sibling sends, and what the parent
    hears of from its own parent. Not differentiable in memory of O(t): its callers are.

    Args:
      forest: the trees.
      weights: of the edge from each node to its parent.
      cross: linear in its second argument; takes weights of edges and what is sent along them.
      x: what every slot sends.

    Returns:
      For each slot the sum over its subtree, itself included, and the sum over all other nodes.
    """
    above, below = jnp.asarray(forest.above), jnp.asarray(forest.below)
    num_chunks, width = above.shape
    chunked = x.reshape(num_chunks, width, *x.shape[1:])
    starts = width * jnp.arange(num_chunks)

    # A chunk's children lie in later chunks and its parents in earlier ones, so that one scan in
    # reverse sees all children first and one forwards all parents. `sent` holds what every slot
    # sends over its edge upwards: its sibling needs that again on the way down, where the paper
    # subtracts the node's own share from what the parent has heard.
    def up(sent: JaxArray, chunk: tuple[JaxArray, ...]) -> tuple[JaxArray, JaxArray]:
        start, weights, below, x = chunk
        inside = x + _read(sent, below).sum(1)
        return jax.lax.dynamic_update_slice_in_dim(sent, cross(weights, inside), start, 0), inside

    def down(outside: JaxArray, chunk: tuple[JaxArray, ...]) -> tuple[JaxArray, None]:
        start, weights, above, arriving = chunk
        heard = cross(weights, arriving + _read(outside, above))
        return jax.lax.dynamic_update_slice_in_dim(outside, heard, start, 0), None

    nothing = jnp.zeros_like(x)
    sent, inside = jax.lax.scan(up, nothing, (starts, weights, below, chunked), reverse=True)
    # At the parent arrive its own x and the sibling's subtree; `down` adds what it hears itself.
    arriving = _read(x, above) + _read(sent, forest.beside)
    outside, _ = jax.lax.scan(down, nothing, (starts, weights, above, arriving))
    return inside.reshape(x.shape), outside


def put_tokens(forest: Forest, x: Float[Array, "t *rest"]) -> Float[JaxArray, "slots *rest"]:
    """Lay tokens' values into the slots, zero in all others."""
    empty = jnp.zeros((forest.above.size, *x.shape[1:]), x.dtype)
    return empty.at[forest.slots].set(x, unique_indices=True)


def _read(values: JaxArray, slots: Array) -> JaxArray:
    return values.at[slots].get(mode="fill", fill_value=0.0)


def _sums(
    forest: Forest, exponents: Float[Array, "chunks width"], x: Float[Array, "t c"]
) -> tuple[Float[JaxArray, "slots c"], Float[JaxArray, "slots c"]]:
    """Return `path_sums` for edges that multiply what they carry with exp(exponent)."""
    weights, sent = jnp.exp(exponents), put_tokens(forest, x)
    # Higher precision is plain JAX's.
    if use_host_kernels(forest.kernels) and sent.dtype == np.float32:
        results = [jax.ShapeDtypeStruct(sent.shape, np.float32)] * 2
        below = forest.below.reshape(-1, 2)
        structure = (forest.above.reshape(-1), below, forest.beside.reshape(-1))
        arguments = (weights.reshape(-1), *structure, sent)
        inside, outside = host_call(forests_host.weighted_path_sums, results, *arguments)
        return inside, outside

    def cross(weights: JaxArray, sent: JaxArray) -> JaxArray:
        return weights[:, None] * sent

    return path_sums(forest, weights, cross, sent)


def _forward(_, moving, forest):
    inside, outside = _sums(forest, *moving)
    return (inside + outside)[forest.slots], (inside, outside)


def _backward(_, moving, forest, saved, out_bar):
    # The matrix is symmetric, so that x's cotangent is the product with that of the result. An
    # edge is on the paths from inside its subtree to outside and back, and on no other; exp is its
    # own derivative, and its weight is in `outside` already.
    inside, outside = saved
    exponents = moving[0]
    inside_bar, outside_bar = _sums(forest, exponents, out_bar)
    exponents_bar = (inside_bar * outside + outside_bar * inside).sum(1).reshape(exponents.shape)
    return exponents_bar, (inside_bar + outside_bar)[forest.slots]


_product = differentiable(_forward, _backward)
