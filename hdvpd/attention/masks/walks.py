"""Masks made of walks: sparse rows of features, one-sided or multiplied with each other.

The features of token i are row i of Phi, sparse because its walkers reach few nodes. Phi itself is
a mask (arXiv 2410.03462, asymmetric features, for directed graphs too), and so is Phi_q Phi_k^T
(symmetric features, for symmetric W). What Phi holds is decided by the function that makes the
rows: `walk_rows` for graph random features, `rwgnk_rows` in `hdvpd.attention.masks.rwgnk`.
"""

import jax.numpy as jnp

from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.types import Array, Float, JaxArray, pytree
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks, check_modulation


@pytree
class SparseMask(AbstractMask):
    """A mask stored as sparse rows. Of walks: those of a query's token choose its keys.

    Attributes:
      rows: M, such as Phi.
    """

    rows: SparseRows

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.rows.num_rows

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return M x."""
        return self.rows @ x

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return M."""
        return self.rows.dense()


@pytree
class WalkMask(AbstractMask):
    """The mask Phi_q Phi_k^T: queries and keys meet on the nodes that both sides' walkers visit.

    Attributes:
      query_rows: Phi_q.
      key_rows: Phi_k. The same rows make the mask positive semi-definite, but where walks are
        sampled its diagonal is then too large on average, by the features' variance.
    """

    query_rows: SparseRows
    key_rows: SparseRows

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.query_rows.num_rows

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return Phi_q (Phi_k^T x), in time linear in the entries of both."""
        return self.query_rows @ self.key_rows.transposed_product(x)

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return M."""
        return self.query_rows.dense() @ self.key_rows.dense().T


def walk_rows(walks: Walks, modulation: Float[Array, "l"]) -> SparseRows:
    """Return the graph random features of walks, in expectation Phi = sum_l f_l W^l.

    Args:
      walks: entries of every token.
      modulation: f, of any sign; masks of attention need one that is not negative, which
        `hdvpd.attention.grf.nonnegative_modulation` makes.

    Raises:
      UserError: f is not as long as the walks.
    """
    check_modulation(walks, modulation)
    values = jnp.asarray(walks.loads) @ modulation
    return SparseRows(walks.nodes, values, walks.num_entries, walks.kernels)
