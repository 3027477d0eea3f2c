"""Masks that are products of two thin matrices."""

import jax.numpy as jnp

from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, pytree


@pytree
class LowRankMask(AbstractMask):
    """M = L R^T, applied as L (R^T x) at cost t r per column (arXiv 2107.07999, Sec. 3).

    Attributes:
      left: L.
      right: R.

    Raises:
      UserError: the two differ in shape.
    """

    left: Float[Array, "t r"]
    right: Float[Array, "_ _"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.left.shape != self.right.shape:
            raise UserError(
                f"factors of a low-rank mask of shapes {self.left.shape} and {self.right.shape}: "
                "both must be (tokens, rank)."
            )

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.left.shape[0]

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x."""
        return jnp.asarray(self.left) @ (jnp.asarray(self.right).T @ x)

    def dense(self) -> Float[Array, "t t"]:
        """Return M."""
        return jnp.einsum("ir,jr->ij", self.left, self.right)
