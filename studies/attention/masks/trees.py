"""Masks that depend on the distance in a tree; zero between trees (arXiv 2107.07999, Sec. 3.3)."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, JaxArray, pytree
from hdvpd.kernels.derivatives import differentiable
from studies.attention.masks.centroids import HankelBlocks, centroid_blocks
from studies.attention.masks.forests import distances
from studies.kernels.forests import Forest, multiply_along_paths, path_sums, put_tokens

# Numbers in the largest temporary of a product, one column's at least: 4 MiB of float32.
_CHUNK_SIZE = 1 << 20


@pytree
class ExponentialForestMask(AbstractMask):
    """M_ij = exp(a dist(i, j) + b) in two passes, O(t) (Lemma 3.5).

    The printed recursions (Eq. 11, 15 and 16) have exp(length) where exp(a length) is right, and a
    subtraction that cancels for a > 0. Here nothing is subtracted (`studies.kernels.forests`).

    Attributes:
      forest: with the lengths of its edges.
      rate: a, of any sign.
      offset: b.
    """

    forest: Forest
    rate: Float[Array, ""] | float
    offset: Float[Array, ""] | float

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.forest.parents.shape[0]

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x."""
        return _exponential_product(self, x)

    def dense(self) -> Float[Array, "t t"]:
        """Return M."""
        distance, joined = distances(self.forest)
        return jnp.where(joined, jnp.exp(self.rate * distance + self.offset), 0.0)


@pytree
class TreeMask(AbstractMask):
    """M_ij = f(dist(i, j)) for any f, dist counting edges whatever their lengths.

    Attributes:
      forest: the trees.
      values: f(0), f(1), ..., up to the diameter at least, of any sign.
      blocks: of `centroid_blocks`, O(t log^2 t). Without them the product goes by level arrays,
        O(t diameter): a reference, slower on every shape measured, down to paths of no edge.

    Raises:
      UserError: f ends before the diameter.
    """

    noise = 3e-6  # of products by blocks; 6e-7 was seen on a path of 3000 nodes

    forest: Forest
    values: Float[Array, "f"]
    blocks: tuple[HankelBlocks, ...] = ()

    def __post_init__(self) -> None:
        if self.values.shape[0] <= self.forest.diameter:
            raise UserError(
                f"tree mask: f has {self.values.shape[0]} values, but distances reach "
                f"{self.forest.diameter}: give {self.forest.diameter + 1}, zeros where f ends."
            )

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.forest.parents.shape[0]

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x."""
        return _tree_product(self, x)

    def dense(self) -> Float[Array, "t t"]:
        """Return M."""
        hops = jnp.asarray(self.forest.parents >= 0, jnp.float32)
        distance, joined = distances(dataclasses.replace(self.forest, lengths=hops))
        return jnp.where(joined, jnp.asarray(self.values)[distance.astype(int)], 0.0)


def tree_mask(forest: Forest, values: Float[Array, "f"]) -> TreeMask:
    """Prepare M_ij = f(dist(i, j)) by the form that is fastest for the forest, on the host.

    That is the blocks: they were faster than level arrays on every shape measured, from stars to
    binary trees, down to trees of one node (docs/lab-book.md).

    Args:
      forest: the trees.
      values: f(0), f(1), ..., up to the diameter at least, of any sign.

    Raises:
      UserError: f ends before the diameter.
    """
    return TreeMask(forest, values, centroid_blocks(forest))


# Both products are compiled whole: a scan outside of jit is compiled anew at every call.
@jax.jit
def _exponential_product(
    mask: ExponentialForestMask, x: Float[Array, "t c"]
) -> Float[JaxArray, "t c"]:
    exponents = jnp.asarray(mask.rate * mask.forest.spans, x.dtype)
    product = multiply_along_paths(mask.forest, exponents, x)
    return jnp.exp(jnp.asarray(mask.offset, x.dtype)) * product


@jax.jit
def _tree_product(mask: TreeMask, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
    forest, blocks = mask.forest, mask.blocks
    values = jnp.asarray(mask.values, x.dtype)[: forest.diameter + 1]
    if blocks:
        size = max(max(block.tokens.size, 4 * block.signs.size * block.size) for block in blocks)
        product = functools.partial(_multiply_by_blocks, blocks, values)
    else:
        size = forest.spans.size * (forest.diameter + 1)
        product = functools.partial(_multiply_by_levels, forest, values)
    return _by_columns(product, x, max(1, _CHUNK_SIZE // size))


def _multiply_by_blocks(
    blocks: tuple[HankelBlocks, ...], values: Float[Array, "f"], x: Float[Array, "t c"]
) -> Float[JaxArray, "t c"]:
    return sum((block.multiply(values, x) for block in blocks), jnp.zeros_like(x))


def _multiply_by_levels(
    forest: Forest, values: Float[Array, "f"], x: Float[Array, "t c"]
) -> Float[JaxArray, "t c"]:
    """Return the product by sums over the nodes at each distance (Lemma 6.2)."""
    return _level_product(None, (values, x), forest)


def _level_sums(
    forest: Forest, num_levels: int, x: Float[Array, "t c"]
) -> Float[JaxArray, "t f c"]:
    """Return for each node the sums of x over all nodes at distances 0, 1, ..."""

    def cross(spans: JaxArray, sent: JaxArray) -> JaxArray:
        one_farther = jnp.pad(sent[:, :-1], ((0, 0), (1, 0), (0, 0)))
        return jnp.where(spans[:, None, None] > 0, one_farther, sent)

    near = jnp.pad(x[:, None], ((0, 0), (0, num_levels - 1), (0, 0)))
    inside, outside = path_sums(forest, jnp.asarray(forest.spans), cross, put_tokens(forest, near))
    return (inside + outside)[forest.slots]


def _levels_forward(_, moving, forest):
    values, x = moving
    return jnp.einsum("f,tfc->tc", values, _level_sums(forest, values.shape[0], x)), None


def _levels_backward(_, moving, forest, saved, out_bar):
    # The matrix is symmetric, as is that of each distance. Nothing is saved: level sums are larger
    # than x by the number of distances.
    del saved
    values, x = moving
    values_bar = jnp.einsum("tfc,tc->f", _level_sums(forest, values.shape[0], x), out_bar)
    return values_bar, _multiply_by_levels(forest, values, out_bar)


_level_product = differentiable(_levels_forward, _levels_backward)


def _by_columns(
    product: Callable[[JaxArray], JaxArray], x: Float[Array, "t c"], width: int
) -> Float[JaxArray, "t c"]:
    """Multiply `width` columns at a time."""
    if x.shape[1] <= width:
        return product(jnp.asarray(x))
    # Recomputed in the backward pass: the temporaries of all columns would be kept otherwise.
    one = jax.checkpoint(lambda column: product(column[:, None])[:, 0])
    return jax.lax.map(one, jnp.asarray(x).T, batch_size=width).T
