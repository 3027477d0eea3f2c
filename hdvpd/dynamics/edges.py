"""Edges from every query to its nearest nodes, and the layers that message passing puts on them."""

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.geometry import safe_norm
from hdvpd.basics.layers import LayerNorm, Linear
from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, pytree
from hdvpd.dynamics.mlp import Mlp
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.neighbors import Backend, knn

OFFSET_DIM = 4
# Neighbours are centimetres apart: in this unit their offsets are of order one.
_LENGTH_SCALE_M = 0.05


@pytree
class Edges:
    """Nearest nodes of every query.

    Attributes:
      nodes: the nodes, nearest first; any where fewer than k were found.
      found: which edges exist.
      offsets: node less query, and its length, in units of 5 cm; differentiable.
    """

    nodes: Int[Array, "*batch q k"]
    found: Bool[Array, "*batch q k"]
    offsets: Float[Array, "*batch q k 4"]


def nearest_edges(
    queries: Float[Array, "q 3"],
    nodes: Float[Array, "n 3"],
    k: int,
    *,
    query_mask: Bool[Array, "q"],
    node_mask: Bool[Array, "n"],
    exclude_self: bool = False,
    rows: Int[Array, "q"] | None = None,
    backend: Backend,
) -> Edges:
    """Join every real query to its k nearest real nodes.

    Args:
      queries: [m].
      nodes: [m].
      k: edges per query.
      query_mask: real queries; others have no edge.
      node_mask: real nodes; others are on no edge.
      exclude_self: every query is one of the nodes and is not joined to itself.
      rows: with exclude_self, the row of `nodes` that each query is; by default its own number.
      backend: of the search.

    Returns:
      The edges; fewer than k exist where there are fewer nodes.
    """
    found = knn(
        jnp.where(query_mask[:, None], queries, jnp.nan),
        nodes,
        k,
        mask=node_mask,
        exclude_self=exclude_self,
        rows=rows,
        backend=backend,
    )
    offset = nodes[found.indices] - queries[:, None]
    offset = jnp.where(found.found[..., None], offset, 0.0) / _LENGTH_SCALE_M
    offsets = jnp.concatenate([offset, safe_norm(offset)[..., None]], axis=-1)
    return Edges(nodes=found.indices, found=found.found, offsets=offsets)


class EdgeLinear(nnx.Module):
    """One dense layer on [query, node, edge] of every edge.

    Split by its inputs, so that a token is multiplied once and not once per edge; each part is
    initialised by its own width, so that the few numbers of an offset count as much as the tokens.
    """

    def __init__(self, dim: int, edge_dim: int, *, rngs: nnx.Rngs):
        self.query = Linear(dim, dim, rngs=rngs)
        self.node = Linear(dim, dim, use_bias=False, rngs=rngs)
        self.edge = Linear(edge_dim, dim, use_bias=False, rngs=rngs)

    def __call__(
        self,
        query: Float[JaxArray, "q d"],
        node: Float[JaxArray, "n d"],
        edge: Float[JaxArray, "q k e"],
        edges: Edges,
    ) -> Float[JaxArray, "q k d"]:
        """Apply to every edge, also those that do not exist."""
        return self.query(query)[:, None] + self.node(node)[edges.nodes] + self.edge(edge)


class EdgeMlp(nnx.Module):
    """Messages of a MeshGraphNet (arXiv 2010.03409): two layers and LayerNorm on every edge."""

    def __init__(self, dim: int, edge_dim: int, *, rngs: nnx.Rngs):
        self.hidden = EdgeLinear(dim, edge_dim, rngs=rngs)
        self.out = Linear(dim, dim, rngs=rngs)
        self.norm = LayerNorm(dim, rngs=rngs)

    def __call__(
        self,
        query: Float[JaxArray, "q d"],
        node: Float[JaxArray, "n d"],
        edge: Float[JaxArray, "q k e"],
        edges: Edges,
    ) -> Float[JaxArray, "q k d"]:
        """Return the message of every edge; zero where there is no edge."""
        messages = self.norm(self.out(jax.nn.gelu(self.hidden(query, node, edge, edges))))
        return jnp.where(edges.found[..., None], messages, 0.0)


class NormedMlp(nnx.Module):
    """Update of a MeshGraphNet (arXiv 2010.03409): two layers and LayerNorm."""

    def __init__(self, in_dim: int, dim: int, kernels: Kernels, *, rngs: nnx.Rngs):
        self.mlp = Mlp(in_dim, dim, dim, kernels, rngs=rngs)
        self.norm = LayerNorm(dim, rngs=rngs)

    def __call__(self, x: Float[JaxArray, "*batch d"]) -> Float[JaxArray, "*batch o"]:
        """Apply to every row."""
        return self.norm(self.mlp(x))
