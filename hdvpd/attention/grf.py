"""GRF-masked linear attention (arXiv 2410.03462, Algs. 1 and 2 and App. C.3).

A mask made of graph random features multiplies the linear attention scores:

- asymmetric, `walk_attention`: M = Phi = sum_l f_l W^l; the walks of the query's token choose the
  keys. Holds for directed graphs. The printed algorithm divides by (S_i * n); numerator and S_i
  are both sums over the walkers, so dividing by S_i is what normalises (checked against the dense
  form).
- symmetric, `symmetric_walk_attention`: M = Phi Phi^T, for symmetric W. Queries and keys meet on
  the nodes that both sides' walkers visit.

The policy where f could cross zero is one for both: `nonnegative_modulation` cuts f below at 0
(f_0 at 1e-6), so that mask entries are never negative, every token sees at least itself, weights
sum to one and outputs stay in the convex hull of the values. Models give softplus(raw), which the
cut does not touch.
"""

import jax.numpy as jnp
import numpy as np

from hdvpd.attention.masked import masked_linear_attention
from hdvpd.attention.masks.walks import WalkMask, walk_rows
from hdvpd.errors import UserError
from hdvpd.kernels.walk_attention import attend_along_walks
from hdvpd.kernels.walks import Walks, check_modulation
from hdvpd.types import Array, Float, JaxArray, is_known

_SMALLEST_F0 = 1e-6


def nonnegative_modulation(modulation: Float[Array, "l"]) -> Float[JaxArray, "l"]:
    """Cut f below at 0, and f_0 at 1e-6; where it is cut, its gradient is 0.

    Raises:
      UserError: a value is not finite. Traced values cannot be looked at: theirs make the output
        NaN, which the training step refuses.
    """
    if is_known(modulation) and not np.isfinite(modulation).all():
        raise UserError(f"modulation = {np.asarray(modulation).tolist()}: all f_l must be finite.")
    lowest = np.zeros(modulation.shape, np.float32)
    lowest[0] = _SMALLEST_F0
    return jnp.maximum(modulation, lowest)


def walk_attention(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    modulation: Float[Array, "l"],
    walks: Walks,
) -> Float[Array, "t c"]:
    """Attend along walks: out_i = sum_e c_e v_e / sum_e c_e, c_e = (q_i . k_e) sum_l f_l W^l_ie.

    Args:
      query: positive feature map of the queries.
      key: positive feature map of the keys.
      value: values.
      modulation: f_0..f_h, made not negative by `nonnegative_modulation`.
      walks: entries of every token, in whose form the sums are computed
        (`hdvpd.kernels.walk_attention`).

    Returns:
      Weighted means of the values; weights sum to one.

    Raises:
      UserError: the modulation is not finite, or its length is not that of the walks.
    """
    check_modulation(walks, modulation)
    modulation = nonnegative_modulation(modulation)
    # Scores and sums are float32 even of half-precision inputs.
    query, key, value = (x.astype(jnp.result_type(x, jnp.float32)) for x in (query, key, value))
    return attend_along_walks(query, key, value, modulation, walks)


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
