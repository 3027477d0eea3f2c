"""Masks of sequences: all tokens, real ones, earlier ones, those of the same segment."""

import jax.numpy as jnp

from hdvpd.array_typing import Array, Bool, Float, pytree
from hdvpd.attention.masks.base import AbstractMask


@pytree
class PaddingMask(AbstractMask):
    """Real tokens see each other: M_ij = r_i r_j (arXiv 2107.07999, Fig. 2).

    Attributes:
      real: tokens that are not padding.
    """

    real: Bool[Array, "t"]

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.real.shape[0]

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x: the sum over real tokens, for every real token."""
        real = jnp.asarray(self.real, x.dtype)[:, None]
        return real * (real * x).sum(0, keepdims=True)

    def dense(self) -> Float[Array, "t t"]:
        """Return M."""
        real = jnp.asarray(self.real, jnp.float32)
        return real[:, None] * real[None]
