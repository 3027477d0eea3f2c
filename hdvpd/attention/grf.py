"""GRF-masked linear attention (arXiv 2410.03462, Alg. 2 and App. C.3).

A mask made of graph random features multiplies the linear attention scores, M = Phi =
sum_l f_l W^l: the walks of the query's token choose the keys. Holds for directed graphs. The
printed algorithm divides by (S_i * n); numerator and S_i are both sums over the walkers, so
dividing by S_i is what normalises (checked against the dense form).

Where f could cross zero, `nonnegative_modulation` cuts it below at 0 (f_0 at 1e-6), so that mask
entries are never negative, every token sees at least itself, weights sum to one and outputs stay in
the convex hull of the values. Models give softplus(raw), which the cut does not touch.
"""

import jax.numpy as jnp
import numpy as np

from hdvpd.attention.feature_maps import RELU_LEAST
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, JaxArray, is_known
from hdvpd.kernels.walk_attention import attend_along_walks, relu_attend_along_walks
from hdvpd.kernels.walks import Walks, check_modulation

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


def relu_walk_attention(
    queries_keys_values: Float[Array, "t w"],
    modulation: Float[Array, "l"],
    walks: Walks,
) -> Float[JaxArray, "t d"]:
    """Return `walk_attention` of ReLU features, the queries scaled by 1 / sqrt(d), as host code.

    Args:
      queries_keys_values: w = 3 d, beside each other, in float32.
      modulation: as of `walk_attention`.
      walks: entries of every token, whose form is compiled host code.

    Raises:
      UserError: as of `walk_attention`.
    """
    check_modulation(walks, modulation)
    modulation = nonnegative_modulation(modulation)
    return relu_attend_along_walks(queries_keys_values, modulation, walks, RELU_LEAST)
