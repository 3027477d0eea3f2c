"""Masks made of masks: sums, diagonal scalings, Kronecker products, a class token.

A product costs what the parts' products cost, and compositions compose.
"""

from collections.abc import Callable

import jax.numpy as jnp

from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Bool, Float, pytree

Apply = Callable[[Float[Array, "s d"]], Float[Array, "s d"]]


@pytree
class SumMask(AbstractMask):
    """M = M_1 + M_2.

    Attributes:
      first: M_1.
      second: M_2.

    Raises:
      UserError: the two differ in size.
    """

    first: AbstractMask
    second: AbstractMask

    def __post_init__(self) -> None:
        if self.first.num_tokens != self.second.num_tokens:
            raise UserError(
                f"sum of masks over {self.first.num_tokens} and {self.second.num_tokens} tokens: "
                "both must have the same number."
            )

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.first.num_tokens

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x."""
        return self.first @ x + self.second @ x

    def dense(self) -> Float[Array, "t t"]:
        """Return M."""
        return self.first.dense() + self.second.dense()

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Add the parts' rounding errors."""
        return self.first.rounding_error(x) + self.second.rounding_error(x)


@pytree
class ScaledMask(AbstractMask):
    """D_u M D_v: a weight for every token as query and for every token as key.

    Attributes:
      rows: u, learnable.
      mask: M.
      columns: v, learnable.

    Raises:
      UserError: the three differ in size.
    """

    rows: Float[Array, "_"]
    mask: AbstractMask
    columns: Float[Array, "_"]

    def __post_init__(self) -> None:
        expected = (self.mask.num_tokens,)
        if not self.rows.shape == self.columns.shape == expected:
            raise UserError(
                f"mask over {self.mask.num_tokens} tokens scaled by weights of shapes "
                f"{self.rows.shape} and {self.columns.shape}: both must be {expected}."
            )

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.mask.num_tokens

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return u M (v x)."""
        return self.rows[:, None] * (self.mask @ (self.columns[:, None] * x))

    def dense(self) -> Float[Array, "t t"]:
        """Return D_u M D_v."""
        return self.rows[:, None] * self.mask.dense() * self.columns[None]

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Scale the rounding errors with the rows."""
        error = self.mask.rounding_error(self.columns[:, None] * x)
        return jnp.abs(self.rows)[:, None] * error


def padded(mask: AbstractMask, real: Bool[Array, "t"]) -> ScaledMask:
    """Restrict a mask to real tokens: others see nothing and are seen by nobody."""
    weights = jnp.asarray(real, jnp.float32)
    return ScaledMask(weights, mask, weights)


@pytree
class KroneckerMask(AbstractMask):
    """M_1 (x) M_2 over pairs of tokens (i_1, i_2) in row-major order, such as (frame, patch).

    Attributes:
      outer: M_1.
      inner: M_2.
    """

    outer: AbstractMask
    inner: AbstractMask

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.outer.num_tokens * self.inner.num_tokens

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return M x: M_2 over the second token of every pair, then M_1 over the first."""
        return self._over_outer(self.outer.__matmul__, self._over_inner(self.inner.__matmul__, x))

    def dense(self) -> Float[Array, "t t"]:
        """Return M."""
        return jnp.kron(self.outer.dense(), self.inner.dense())

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Add M_1's rounding errors to what it makes of those of M_2."""
        product = self._over_inner(self.inner.__matmul__, x)
        inner_error = self._over_inner(self.inner.rounding_error, x)
        carried = jnp.abs(self._over_outer(self.outer.__matmul__, inner_error))
        return self._over_outer(self.outer.rounding_error, product) + carried

    def _over_outer(self, apply: Apply, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        return apply(x.reshape(self.outer.num_tokens, -1)).reshape(x.shape)

    def _over_inner(self, apply: Apply, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        pairs = jnp.asarray(x).reshape(self.outer.num_tokens, self.inner.num_tokens, -1)
        second = jnp.swapaxes(pairs, 0, 1)
        applied = apply(second.reshape(self.inner.num_tokens, -1)).reshape(second.shape)
        return jnp.swapaxes(applied, 0, 1).reshape(x.shape)


@pytree
class ClassTokenMask(AbstractMask):
    """A first token that sees every token and is seen by all, before those of a mask.

    M with a row and a column of ones in front (the vision models of arXiv 2410.03462).

    Attributes:
      mask: M of the other tokens.
    """

    mask: AbstractMask

    @property
    def num_tokens(self) -> int:
        """Rows and columns, the class token's among them."""
        return 1 + self.mask.num_tokens

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return y_class = sum_j x_j and y_rest = M x_rest + x_class."""
        total = x.sum(0, keepdims=True)
        return jnp.concatenate([total, self.mask @ x[1:] + x[:1]])

    def dense(self) -> Float[Array, "t t"]:
        """Return M inside its border."""
        return jnp.pad(self.mask.dense(), ((1, 0), (1, 0)), constant_values=1.0)

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[Array, "t c"]:
        """Return those of M; the class token's sum has none."""
        return jnp.pad(self.mask.rounding_error(x[1:]), ((1, 0), (0, 0)))
