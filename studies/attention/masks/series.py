"""Power series of W as masks, by repeated products (arXiv 2410.03462)."""

import jax
import jax.numpy as jnp

from hdvpd.attention.graphs import SymmetricPart
from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, JaxArray, pytree
from hdvpd.kernels.sparse_rows import SparseRows
from studies.attention.power_series import power_series


@pytree
class PowerSeriesMask(AbstractMask):
    """M = sum_k alpha_k W^k, cut at the last coefficient given.

    Without walkers: exact for any W, at the cost of one product with W per coefficient.

    Attributes:
      graph: W.
      coefficients: alpha. Kernels in closed form are in `studies.attention.power_series`.
    """

    graph: SparseRows | SymmetricPart
    coefficients: Float[Array, "l"]

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.coefficients.shape[0] == 0:
            raise UserError("coefficients = []: a power series needs alpha_0 at least.")

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.graph.num_rows

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return M x by Horner's rule."""
        return _horner(self, x)

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return M by products of dense matrices."""
        return jnp.asarray(power_series(self.graph.dense(), jnp.asarray(self.coefficients)))


@jax.jit
def _horner(mask: PowerSeriesMask, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
    coefficients = jnp.asarray(mask.coefficients)

    def add(total: JaxArray, coefficient: JaxArray) -> tuple[JaxArray, None]:
        return mask.graph @ total + coefficient * x, None

    return jax.lax.scan(add, coefficients[-1] * x, coefficients[:-1], reverse=True)[0]
