"""GRF-masked linear attention, asymmetric form (arXiv 2410.03462, Alg. 2 and App. C.3).

The walks of the query's token choose the keys; the mask sum_l f_l W^l multiplies the linear
attention scores. The printed algorithm divides by (S_i * n); numerator and S_i are both sums over
the walkers, so dividing by S_i is what normalises (checked against the dense form).
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.array_typing import Array, Float, Int, JaxArray
from hdvpd.dynamics.walks import WalkGraph, enumerate_walks, merge_walks
from hdvpd.host import Kernels, host_call, use_host_kernels
from hdvpd.numerics import relu_features


def walk_graph(neighbors: Int[Array, "t k"], num_hops: int, kernels: Kernels = "auto") -> WalkGraph:
    """Build the walk graph in the form that `walk_attention` reads with the same `kernels`."""
    build = merge_walks if use_host_kernels(kernels) else enumerate_walks
    return build(neighbors, num_hops)


def walk_attention(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    modulation: Float[Array, "l"],
    graph: WalkGraph,
    kernels: Kernels = "auto",
) -> Float[Array, "t c"]:
    """Attend along walks: out_i = sum_e c_e v_e / sum_e c_e, c_e = (q_i . k_e) sum_l f_l W^l_ie.

    Args:
      query: positive feature map of the queries.
      key: positive feature map of the keys.
      value: values.
      modulation: f_0..f_h, positive, so that the normaliser cannot vanish.
      graph: entries of every token, from `walk_graph` with the same `kernels`.
      kernels: compiled host code (differentiable, never materialises [t, e, c]) or plain JAX.

    Returns:
      Weighted means of the values; weights sum to one.
    """
    if use_host_kernels(kernels):
        return _walk_attention_host(query, key, value, modulation, graph)
    scores = jnp.einsum("tm,tem->te", query, key[graph.nodes])
    weights = scores * (graph.shares @ modulation)
    total = jnp.einsum("te,tec->tc", weights, value[graph.nodes])
    return total / weights.sum(-1)[:, None]


@jax.custom_vjp
def _walk_attention_host(
    query: Float[Array, "t m"],
    key: Float[Array, "t m"],
    value: Float[Array, "t c"],
    modulation: Float[Array, "l"],
    graph: WalkGraph,
) -> Float[Array, "t c"]:
    return _host_forward(query, key, value, modulation, graph)[0]


def _host_forward(query, key, value, modulation, graph):
    def on_host(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        from hdvpd.dynamics import walks_host

        return walks_host.forward(*arrays)

    inputs = (query, key, value, modulation, graph.nodes, graph.shares, graph.num_entries)
    results = (
        jax.ShapeDtypeStruct(value.shape, np.float32),
        jax.ShapeDtypeStruct(graph.nodes.shape, np.float32),
        jax.ShapeDtypeStruct(graph.num_entries.shape, np.float32),
    )
    out, weights, normalizer = host_call(on_host, results, *inputs)
    return out, ((query, key, value, modulation), graph, (out, weights, normalizer))


def _host_backward(residuals, out_bar):
    primals, graph, saved = residuals

    def on_host(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        from hdvpd.dynamics import walks_host

        return walks_host.backward(*arrays)

    results = tuple(jax.ShapeDtypeStruct(primal.shape, np.float32) for primal in primals)
    graph_arrays = (
        graph.nodes,
        graph.shares,
        graph.num_entries,
        graph.incoming,
        graph.incoming_offsets,
    )
    cotangents = host_call(on_host, results, *primals, *graph_arrays, *saved, out_bar)
    return (*cotangents, None)


_walk_attention_host.defvjp(_host_forward, _host_backward)


class GrfAttention(nnx.Module):
    """Local layer of the GRF Interlacer: one head, dense projections, learned modulation."""

    def __init__(self, latent_dim: int, num_hops: int, *, kernels: Kernels, rngs: nnx.Rngs):
        dense = functools.partial(nnx.Linear, latent_dim, latent_dim, rngs=rngs)
        self.query, self.key = dense(use_bias=False), dense(use_bias=False)
        self.value, self.out = dense(), dense()
        # softplus(raw) = exp(-0.01 l) at the start, the public code's initial value.
        initial = np.exp(-0.01 * np.arange(num_hops + 1))
        self.raw_modulation = nnx.Param(jnp.asarray(np.log(np.expm1(initial)), jnp.float32))
        self.kernels: Kernels = kernels

    def __call__(self, tokens: Float[JaxArray, "t d"], graph: WalkGraph) -> Float[JaxArray, "t d"]:
        """Return the update of every token (spec 5.2, `grf`)."""
        query = relu_features(self.query(tokens) / np.sqrt(tokens.shape[-1]))
        key = relu_features(self.key(tokens))
        modulation = jax.nn.softplus(self.raw_modulation[...])
        attended = walk_attention(query, key, self.value(tokens), modulation, graph, self.kernels)
        return self.out(jnp.asarray(attended))
