"""Masks over trees as sums of Hankel blocks, by centroid decomposition.

The path between two nodes of a tree at distances d and k from its centroid has d + k edges, unless
both are in the same branch. Hence the mask is a block f(d + k) over the tree, minus one over each
branch, plus the masks of the branches, which are trees of at most half the size. The paper (arXiv
2107.07999, Lemma 6.1) divides a tree in two parts instead, of up to nine tenths of its size.
"""

from typing import no_type_check

import jax.numpy as jnp
import numpy as np
from numba import njit

from hdvpd.basics.types import Array, Float, Int, JaxArray, pytree, static
from studies.kernels.forests import Forest

# Blocks up to this size are multiplied as matrices, larger ones by Fourier transforms.
_LARGEST_MATRIX = 64


@pytree
class HankelBlocks:
    """The blocks of one size.

    Attributes:
      tokens: token of each entry; a token has one entry in every block that it belongs to.
      places: block * size + distance from the centroid, of each entry.
      signs: 1 for a tree, -1 for a branch.
      size: power of two above all distances.
    """

    tokens: Int[Array, "entries"]
    places: Int[Array, "entries"]
    signs: Float[Array, "blocks"]
    size: int = static()

    def multiply(self, values: Float[Array, "f"], x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return the blocks' share of the mask's product with x, for values f(0), f(1), ..."""
        num_blocks, columns = self.signs.shape[0], x.shape[1]
        values = values[: 2 * self.size]
        values = jnp.pad(values, (0, 2 * self.size - values.shape[0]))
        sums = jnp.zeros((num_blocks * self.size, columns), x.dtype)
        sums = sums.at[self.places].add(x[self.tokens])
        product = _hankel_product(values, sums.reshape(num_blocks, self.size, columns))
        product = (product * self.signs[:, None, None]).reshape(-1, columns)
        return jnp.zeros_like(x).at[self.tokens].add(product[self.places].astype(x.dtype))


def centroid_blocks(forest: Forest) -> tuple[HankelBlocks, ...]:
    """Decompose the mask of a forest on the host, into at most 2 t log2(2t) entries in all.

    Returns:
      The blocks by size, the smallest first.
    """
    tokens = np.argsort(forest.slots)  # parents before children, as `_split` needs them
    rank = np.argsort(tokens)
    parents = np.where(forest.parents < 0, -1, rank[forest.parents])[tokens]
    parts: list[tuple[np.ndarray, ...]] = []
    names = 0
    # All trees of a round are split at once, so that there are log2(t) rounds whatever the number
    # of trees; then the centroids leave, and their branches are the trees of the next round.
    while len(tokens):
        centroids, branches, hops = _split(parents)
        # A tree's block is named after the centroid, a branch's after its node nearest to that. A
        # branch keeps the distances from the centroid: its block takes away just the pairs that the
        # tree's block adds although their path does not lead over the centroid.
        for sign, groups in ((1.0, centroids), (-1.0, branches)):
            members = np.flatnonzero(groups >= 0)
            signs = np.full(len(members), sign, np.float32)
            parts.append((tokens[members], names + groups[members], hops[members], signs))
            names += len(tokens)
        left = hops > 0
        # Whoever hung from a centroid is a root now. Removing nodes keeps parents before children.
        kept = (parents >= 0) & left[parents]
        parents = np.where(kept, (np.cumsum(left) - 1)[parents], -1)[left]
        tokens = tokens[left]
    tokens, blocks, hops, entry_signs = (np.concatenate(part) for part in zip(*parts, strict=True))
    signs, depths = np.zeros(names, np.float32), np.zeros(names, np.int64)
    signs[blocks] = entry_signs
    np.maximum.at(depths, blocks, hops)
    # Blocks of one power of two above their depths are multiplied together; most are small.
    exponents = np.frexp(depths)[1]
    result = []
    for exponent in np.unique(exponents[signs != 0]):
        chosen = (exponents == exponent) & (signs != 0)
        entries = np.flatnonzero(chosen[blocks])
        places = ((np.cumsum(chosen) - 1)[blocks[entries]] << exponent) + hops[entries]
        result.append(
            HankelBlocks(
                tokens=tokens[entries].astype(np.int32),
                places=places.astype(np.int32),
                signs=signs[chosen],
                size=1 << int(exponent),
            )
        )
    return tuple(result)


def _hankel_product(
    values: Float[Array, "f"], x: Float[JaxArray, "blocks size c"]
) -> Float[JaxArray, "blocks size c"]:
    """Return sum_k f(d + k) x[:, k] for every distance d; values of f for twice the size."""
    size = x.shape[1]
    if size <= _LARGEST_MATRIX:
        index = np.arange(size)
        return jnp.einsum("dk,bkc->bdc", values[index[:, None] + index[None]], x)
    spectrum = jnp.fft.rfft(values)[:, None]
    # The conjugate turns the convolution into a correlation.
    product = spectrum[None] * jnp.conj(jnp.fft.rfft(x, 2 * size, axis=1))
    return jnp.fft.irfft(product, 2 * size, axis=1)[:, :size]


@njit(cache=True)
@no_type_check
def _split(parents: np.ndarray) -> tuple:
    """Return of each node the centroid of its tree, its branch, -1 at centroids, and its distance.

    Parents come before their children. A node is the centroid if its subtree is more than half of
    its tree and no child's is.
    """
    num_nodes = len(parents)
    sizes = np.ones(num_nodes, np.int64)
    for node in range(num_nodes - 1, -1, -1):
        if parents[node] >= 0:
            sizes[parents[node]] += sizes[node]
    roots = np.arange(num_nodes)
    centroids = np.empty(num_nodes, np.int64)
    for node in range(num_nodes):
        if parents[node] >= 0:
            roots[node] = roots[parents[node]]
        if 2 * sizes[node] > sizes[roots[node]]:
            centroids[roots[node]] = node
    # Distances grow from the centroid up to the root first, along parents, then from these nodes
    # down to all others, whose parents come before them.
    hops = np.full(num_nodes, -1, np.int64)
    branches = np.full(num_nodes, -1, np.int64)
    for root in range(num_nodes):
        if roots[root] == root:
            node = centroids[root]
            hops[node] = 0
            while node != root:
                branches[parents[node]] = branches[node] if hops[node] else parents[node]
                hops[parents[node]] = hops[node] + 1
                node = parents[node]
    for node in range(num_nodes):
        if hops[node] < 0:
            above = parents[node]
            hops[node] = hops[above] + 1
            branches[node] = branches[above] if hops[above] else node
    return centroids[roots], branches, hops
