"""Masks made of walks: sparse rows of features, one-sided or multiplied with each other.

The features of token i are row i of Phi, sparse because its walkers reach few nodes. Phi itself is
a mask (arXiv 2410.03462, asymmetric features, for directed graphs too), and so is Phi_q Phi_k^T
(symmetric features, for symmetric W). What Phi holds is decided by the function that makes the
rows: `walk_rows` for graph random features, `rwgnk_rows` in `hdvpd.attention.masks.rwgnk`.
"""

import jax.numpy as jnp

from hdvpd.array_typing import Array, Float, Int, JaxArray, pytree
from hdvpd.attention.masks.base import AbstractMask
from hdvpd.attention.sparse_rows import multiply, multiply_transposed
from hdvpd.attention.walks import Walks
from hdvpd.errors import UserError


@pytree
class WalkRows(AbstractMask):
    """The one-sided mask Phi: the walks of a query's token choose its keys.

    Attributes:
      features: values of the entries; 0 in unused ones.
      nodes: column of each entry; several entries of a row may share one and add up.
      num_entries: entries of each row that are in use.
    """

    features: Float[Array, "*batch t e"]
    nodes: Int[Array, "*batch t e"]
    num_entries: Int[Array, "*batch t"]

    @property
    def num_tokens(self) -> int:
        """Rows and columns of Phi."""
        return self.nodes.shape[0]

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return Phi x."""
        return multiply(self.features, self.nodes, self.num_entries, x)

    def transposed_product(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return Phi^T x."""
        return multiply_transposed(self.features, self.nodes, self.num_entries, x)

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return Phi."""
        num_tokens = self.num_tokens
        rows = jnp.broadcast_to(jnp.arange(num_tokens)[:, None], self.nodes.shape)
        matrix = jnp.zeros((num_tokens, num_tokens), self.features.dtype)
        return matrix.at[rows, self.nodes].add(self.features)


@pytree
class WalkMask(AbstractMask):
    """The mask Phi_q Phi_k^T: queries and keys meet on the nodes that both sides' walkers visit.

    Attributes:
      query_rows: Phi_q.
      key_rows: Phi_k. The same rows make the mask positive semi-definite, but where walks are
        sampled its diagonal is then too large on average, by the features' variance.
    """

    query_rows: WalkRows
    key_rows: WalkRows

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.query_rows.num_tokens

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return Phi_q (Phi_k^T x), in time linear in the entries of both."""
        return self.query_rows @ self.key_rows.transposed_product(x)

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return M."""
        return self.query_rows.dense() @ self.key_rows.dense().T


def walk_rows(walks: Walks, modulation: Float[Array, "l"]) -> WalkRows:
    """Return the graph random features of walks, in expectation Phi = sum_l f_l W^l.

    Args:
      walks: entries of every token.
      modulation: f, of any sign; masks of attention need one that is not negative, which
        `hdvpd.attention.grf.nonnegative_modulation` makes.

    Raises:
      UserError: f is not as long as the walks.
    """
    check_modulation(walks, modulation)
    return WalkRows(jnp.asarray(walks.loads) @ modulation, walks.nodes, walks.num_entries)


def check_modulation(walks: Walks, modulation: Float[Array, "l"]) -> None:
    """Refuse an f of another length: compiled host code would read beyond its end."""
    hops = walks.loads.shape[-1]
    if modulation.shape[0] != hops:
        raise UserError(
            f"modulation of {modulation.shape[0]} values for walks of up to {hops - 1} hops: give "
            f"f_0..f_{hops - 1}, zeros where f ends."
        )
