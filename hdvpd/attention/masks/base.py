"""The one interface of every mask."""

import abc

from hdvpd.array_typing import Array, Float


class AbstractMask(abc.ABC):
    """A matrix M over pairs of tokens with a product that never forms it.

    Masks are pytrees of their parameters and of the structure that was prepared for the product, so
    that they pass through jit, vmap and grad.
    """

    # Entries of a product below this share of its largest one are rounding errors: 0 where sums of
    # positive numbers keep their relative accuracy, more where Fourier transforms spread it.
    noise: float = 0.0

    @property
    @abc.abstractmethod
    def num_tokens(self) -> int:
        """Rows and columns of M."""

    @abc.abstractmethod
    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x, linear in x and differentiable in it and in the mask's parameters."""

    @abc.abstractmethod
    def dense(self) -> Float[Array, "t t"]:
        """Return M from its definition, not by products, for small numbers of tokens."""
