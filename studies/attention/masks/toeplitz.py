"""Masks of relative positions on a grid: Toeplitz in one dimension, block-Toeplitz in several.

Tokens are the cells of a grid n_1 x .. x n_d in row-major order, and M_ij = xi(pos_i - pos_j). The
table xi lists every offset from -(n_k - 1) to n_k - 1 along each axis, which for a sequence
(d = 1) is the usual relative position mask.
"""

import math
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
from scipy.fft import next_fast_len

from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, JaxArray, pytree


@pytree
class ToeplitzMask(AbstractMask):
    """M_ij = xi(pos_i - pos_j), applied by Fourier transforms (arXiv 2107.07999, Sec. 3.1).

    For a table per head make the masks inside `jax.vmap`.

    Attributes:
      table: xi, learnable; offset o along axis k at index o + n_k - 1. The grid follows from it.

    Raises:
      UserError: an axis of the table has no middle, so that it fits no grid.
    """

    table: Float[Array, "*offsets"]

    # Transforms in float32 err by up to 5e-7 of an entry and 4e-7 of the largest one (measured for
    # up to 2^16 tokens), so that even the smallest sum that counts is right to a few per cent.
    noise = 1e-5

    def __post_init__(self) -> None:
        if not self.table.ndim or not all(size % 2 for size in self.table.shape):
            raise UserError(
                f"table of a Toeplitz mask of shape {self.table.shape}: every axis must list the "
                "offsets -(n-1)..(n-1) of a grid's axis with n >= 1 cells, 2 n - 1 in all."
            )

    @property
    def grid(self) -> tuple[int, ...]:
        """Cells along each axis."""
        return tuple((size + 1) // 2 for size in self.table.shape)

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return math.prod(self.grid)

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x: the part of the convolution of xi and x that lies on the grid.

        A transform of 2 n - 1 is long enough along an axis of n: what wraps around lands outside.
        """
        grid, sizes = self.grid, self._transform_sizes()
        axes = tuple(range(1, len(grid) + 1))
        images = jnp.asarray(x).T.reshape(-1, *grid)
        spectrum = jnp.fft.rfftn(jnp.asarray(self.table)[None], sizes, axes)
        products = spectrum * jnp.fft.rfftn(images, sizes, axes)
        images = jnp.fft.irfftn(products, sizes, axes)
        images = images[:, *(slice(cells - 1, 2 * cells - 1) for cells in grid)]
        return images.reshape(-1, self.num_tokens).T

    def dense(self) -> Float[Array, "t t"]:
        """Return M by indexing the table."""
        positions = np.indices(self.grid).reshape(len(self.grid), -1)
        last = np.array(self.grid)[:, None, None] - 1
        return jnp.asarray(self.table)[tuple(positions[:, :, None] - positions[:, None] + last)]

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return the share `noise` of the largest entry that the convolution can have.

        Transforms spread rounding errors evenly, also from entries that lie outside the grid and
        onto a product that is zero everywhere; so the bound is that of the whole convolution,
        min(|xi|_1 |x|_inf, |xi|_inf |x|_1).
        """
        table, x = jnp.abs(jnp.asarray(self.table)), jnp.abs(jnp.asarray(x))
        largest = jnp.minimum(
            table.sum() * x.max(0, keepdims=True), table.max() * x.sum(0, keepdims=True)
        )
        return jnp.broadcast_to(self.noise * largest, x.shape)

    def _transform_sizes(self) -> tuple[int, ...]:
        # pyright takes scipy's dispatcher for the function, which returns nothing.
        return tuple(next_fast_len(size, real=True) for size in self.table.shape)  # type: ignore


def distance_table(
    function: Callable[[JaxArray], JaxArray], grid: tuple[int, ...]
) -> Float[JaxArray, "*offsets"]:
    """Tabulate a function of the shortest-path distance on a grid, sum_k |offset_k|.

    Args:
      function: from distances, whole numbers in a float array, to mask values, entry by entry.
      grid: cells along each axis.

    Returns:
      Table for `ToeplitzMask`, differentiable in what the function depends on.

    Raises:
      UserError: the grid is empty.
    """
    if not grid or min(grid) < 1:
        raise UserError(f"grid {grid}: it needs at least one axis and one cell along each.")
    offsets = (np.abs(np.arange(1 - cells, cells)) for cells in grid)
    # Floats: squares of integer distances would overflow silently.
    return function(jnp.asarray(sum(np.meshgrid(*offsets, indexing="ij")), float))
