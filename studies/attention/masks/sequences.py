"""Masks of sequences: all tokens, real ones, earlier ones, those of the same segment."""

import jax
import jax.numpy as jnp

from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.types import Array, Bool, Float, Int, pytree, static

# Tokens whose prefix sums are taken at once: about the root of 65k.
_BLOCK = 256


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


@pytree
class CausalMask(AbstractMask):
    """Every token sees itself and the earlier ones: M_ij = 1 for j <= i.

    Attention under this mask alone is cheaper as `studies.attention.causal.causal_attention`.

    Attributes:
      length: tokens of the sequence.
    """

    length: int = static()

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.length

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x: prefix sums inside blocks and the sum of all earlier blocks.

        No entry goes through more than a few hundred additions, so that 65k terms in float32 keep
        their relative accuracy.
        """
        padding = -self.length % _BLOCK
        blocks = jnp.pad(x, ((0, padding), (0, 0))).reshape(-1, _BLOCK, x.shape[1])
        inside = blocks.cumsum(1)
        # Shifted rather than subtracted: a difference would carry a large block's rounding error.
        earlier = jnp.pad(inside[:-1, -1].cumsum(0), ((1, 0), (0, 0)))
        return (inside + earlier[:, None]).reshape(-1, x.shape[1])[: self.length]

    def dense(self) -> Float[Array, "t t"]:
        """Return M."""
        return jnp.tril(jnp.ones((self.length, self.length)))


@pytree
class SegmentMask(AbstractMask):
    """Tokens of one segment see each other: several sequences packed into one (2107.07999, Fig. 2).

    Attributes:
      segments: the segment of each token, numbers in any order; -1 is padding, which sees nothing
        and is seen by nobody.
    """

    segments: Int[Array, "t"]

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.segments.shape[0]

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x: the sum over each segment, gathered back."""
        real = jnp.asarray(self.segments >= 0, x.dtype)[:, None]
        # Numbers of any size become positions among the different ones.
        _, segments = jnp.unique(self.segments, return_inverse=True, size=self.num_tokens)
        sums = jax.ops.segment_sum(real * x, segments, num_segments=self.num_tokens)
        return real * sums[segments]

    def dense(self) -> Float[Array, "t t"]:
        """Return M."""
        segments = jnp.asarray(self.segments)
        same = (segments[:, None] == segments[None]) & (segments >= 0)[None]
        return same.astype(jnp.float32)
