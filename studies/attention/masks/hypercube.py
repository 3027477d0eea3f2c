"""Masks over the corners of a hypercube, two of which are joined where one bit differs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, is_known, pytree, static

# Bits per pass over the tokens, a matrix product. Sums and differences of single bits XLA fuses to
# one loop over all tokens that computes every entry anew: 25 times the time for 4 times the tokens.
_BITS = 5
_PRECISION = jax.lax.Precision.HIGHEST


@pytree
class HypercubeMask(AbstractMask):
    """Heat kernel M = exp(-lambda L) of the hypercube with 2^q corners (arXiv 2107.07999).

    M_ij = ((1 + exp(-2 lambda)) / 2)^q tanh(lambda)^Hamming(i, j), the Kronecker power of the
    kernel of one edge. Made by `hypercube_mask`.

    Attributes:
      diffusion_time: lambda, learnable; the identity at 0, all entries equal in the limit.
      dimension: q.
    """

    diffusion_time: Float[Array, ""]
    dimension: int = static()

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return 2**self.dimension

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x, a few bits at a time, each with the kernel of a small hypercube."""
        stay = (1 + jnp.exp(-2 * self.diffusion_time)) / 2
        move = -jnp.expm1(-2 * self.diffusion_time) / 2
        edge = jnp.stack([jnp.stack([stay, move]), jnp.stack([move, stay])])
        num_columns = x.shape[1]
        # Passes of about equal size: a bit that is left over would cost a pass of its own.
        for bits in np.array_split(range(self.dimension), max(1, round(self.dimension / _BITS))):
            if not len(bits):
                continue
            kernel = functools.reduce(jnp.kron, [edge] * len(bits))
            groups = x.reshape(-1, len(kernel), 2 ** int(bits[0]) * num_columns)
            product = jnp.einsum("ij,gjc->gic", kernel, groups, precision=_PRECISION)
            x = product.reshape(-1, num_columns)
        return jnp.asarray(x)

    def dense(self) -> Float[Array, "t t"]:
        """Return M by its closed form."""
        corners = np.arange(self.num_tokens)
        hamming = np.bitwise_count(corners[:, None] ^ corners[None])
        stay = (1 + jnp.exp(-2 * self.diffusion_time)) / 2
        return stay**self.dimension * jnp.tanh(self.diffusion_time) ** hamming


def hypercube_mask(num_tokens: int, diffusion_time: Float[Array, ""] | float) -> HypercubeMask:
    """Make the heat kernel over tokens that are the corners of a hypercube.

    Args:
      num_tokens: a power of two; the bits of a token's number are its coordinates.
      diffusion_time: lambda, not negative.

    Raises:
      UserError: the number of tokens is no power of two, or lambda is negative or not finite. A
        traced lambda cannot be looked at.
    """
    if num_tokens < 1 or num_tokens & (num_tokens - 1):
        raise UserError(
            f"hypercube of {num_tokens} tokens: it has 2^q corners. Pad to the next power of two."
        )
    known = is_known(diffusion_time)
    if known and not (np.isfinite(diffusion_time) and diffusion_time >= 0):
        raise UserError(f"diffusion time lambda = {diffusion_time}: it must be finite and >= 0.")
    return HypercubeMask(jnp.asarray(diffusion_time, float), num_tokens.bit_length() - 1)
