"""Symmetric GRF-masked linear attention (arXiv 2410.03462, Alg. 1): M = Phi Phi^T, for symmetric W.

Queries and keys meet on the nodes that both sides' walkers visit. The asymmetric form, which the
model uses, is `hdvpd.attention.grf`.
"""

from hdvpd.attention.grf import nonnegative_modulation
from hdvpd.attention.masked import masked_linear_attention
from hdvpd.attention.masks.walks import WalkMask, walk_rows
from hdvpd.basics.types import Array, Float, JaxArray
from hdvpd.kernels.walks import Walks, check_modulation


def symmetric_walk_attention(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    modulation: Float[Array, "l"],
    walks: Walks,
    key_walks: Walks | None = None,
) -> Float[JaxArray, "t c"]:
    """Attend with the mask Phi Phi^T at a cost linear in tokens (arXiv 2410.03462, Alg. 1).

    Neither the mask nor the [t, t m] features of the paper are made: 4 nnz m (c + 1) +
    3 t m (c + 1) FLOP, in the memory of `masked_linear_attention`.

    Args:
      query: positive feature map of the queries.
      key: positive feature map of the keys.
      value: values.
      modulation: f_0..f_h of Phi (not of the mask), made not negative by `nonnegative_modulation`.
      walks: entries of every token on the query side.
      key_walks: independent walks for the key side. Without them one set serves both sides, and the
        mask's diagonal is too large on average by the sum of Phi's variances in the row.

    Returns:
      Weighted means of the values; weights sum to one.

    Raises:
      UserError: the modulation is not finite, or its length is not that of the walks.
    """
    check_modulation(walks, modulation)
    modulation = nonnegative_modulation(modulation)
    query_rows = walk_rows(walks, modulation)
    key_rows = query_rows if key_walks is None else walk_rows(key_walks, modulation)
    return masked_linear_attention(query, key, value, WalkMask(query_rows, key_rows))
