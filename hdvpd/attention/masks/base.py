"""The one interface of every mask."""

import abc

import jax.numpy as jnp

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float


class AbstractMask(abc.ABC):
    """A matrix M over pairs of tokens with a product that never forms it.

    Masks are pytrees of their parameters and of the structure that was prepared for the product, so
    that they pass through jit, vmap and grad.

    Raises:
      UserError: the mask has no tokens.
    """

    # Entries of a product below this share of its largest one are rounding errors: 0 where sums of
    # positive numbers keep their relative accuracy, more where Fourier transforms spread it.
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.num_tokens < 1:
            raise UserError(f"{type(self).__name__} over no tokens: a mask needs at least one.")

    @property
    @abc.abstractmethod
    def num_tokens(self) -> int:
        """Rows and columns of M."""

    @abc.abstractmethod
    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x, linear in x and differentiable in it and in the mask's parameters.

        x is float32 at least: sums of half precision would lose digits. Attention makes it so.
        """

    @abc.abstractmethod
    def dense(self) -> Float[Array, "t t"]:
        """Return M from its definition, not by products, for small numbers of tokens."""

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Bound the entries of M x that may be nothing but rounding errors.

        By default the share `noise` of the product's largest entry in each column. A mask whose
        rows differ in size says it for each of them.
        """
        if not self.noise:
            return jnp.zeros_like(x)
        largest = jnp.abs(self @ x).max(0, keepdims=True)
        return jnp.broadcast_to(self.noise * largest, x.shape)
