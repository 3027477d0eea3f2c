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

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.array_typing import Array, Float, JaxArray, is_known
from hdvpd.attention import walks_host
from hdvpd.attention.masked import masked_linear_attention
from hdvpd.attention.masks.walks import WalkMask, check_modulation, walk_rows
from hdvpd.attention.walks import Walks, merged
from hdvpd.errors import UserError
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.host import host_call

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
    kernels: Kernels = "auto",
) -> Float[Array, "t c"]:
    """Attend along walks: out_i = sum_e c_e v_e / sum_e c_e, c_e = (q_i . k_e) sum_l f_l W^l_ie.

    Args:
      query: positive feature map of the queries.
      key: positive feature map of the keys.
      value: values.
      modulation: f_0..f_h, made not negative by `nonnegative_modulation`.
      walks: entries of every token, made with the same `kernels`; listed ones are merged first
        where a form needs their transpose, at the cost of doing so in every call.
      kernels: compiled host code or Pallas, which never materialise [t, e, c], or plain JAX.

    Returns:
      Weighted means of the values; weights sum to one.

    Raises:
      UserError: the modulation is not finite, or its length is not that of the walks.
    """
    check_modulation(walks, modulation)
    modulation = nonnegative_modulation(modulation)
    # Scores and sums are float32 even of half-precision inputs.
    query, key, value = (x.astype(jnp.result_type(x, jnp.float32)) for x in (query, key, value))
    on_host = use_host_kernels(kernels)
    if on_host or kernels == "pallas":
        walks = merged(walks)
    if on_host:
        return _walk_attention_host(query, key, value, modulation, walks)
    if kernels == "pallas":
        from hdvpd.attention import walks_pallas

        return walks_pallas.attend(query, key, value, walks.loads @ modulation, walks)
    scores = jnp.einsum("tm,tem->te", query, key[walks.nodes])
    weights = scores * (walks.loads @ modulation)
    total = jnp.einsum("te,tec->tc", weights, value[walks.nodes])
    return total / weights.sum(-1)[:, None]


@jax.custom_vjp
def _walk_attention_host(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    modulation: Float[Array, "l"],
    walks: Walks,
) -> Float[Array, "t c"]:
    return _host_forward(query, key, value, modulation, walks)[0]


def _host_forward(query, key, value, modulation, walks):
    primals = (query, key, value, modulation)
    results = [jax.ShapeDtypeStruct(x.shape, np.float32) for x in (value, walks.num_entries)]
    out, normalizer = host_call(
        walks_host.forward,
        results, *primals, walks.nodes, walks.loads, walks.num_entries,
    )  # fmt: skip
    return out, (primals, walks, (out, normalizer))


def _host_backward(residuals, out_bar):
    primals, walks, saved = residuals
    results = [jax.ShapeDtypeStruct(primal.shape, np.float32) for primal in primals]
    cotangents = host_call(
        walks_host.backward,
        results, *primals, walks.nodes, walks.loads, walks.num_entries,
        walks.incoming, walks.incoming_offsets, *saved, out_bar,
    )  # fmt: skip
    return (*cotangents, None)


_walk_attention_host.defvjp(_host_forward, _host_backward)


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
