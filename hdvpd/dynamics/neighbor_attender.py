"""Local layer of the message-passing Interlacer (HD-VPD, arXiv 2406.19800)."""

import functools
from dataclasses import dataclass
from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.layers import Linear
from hdvpd.basics.sampling import uniform_fraction
from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, PRNGKey, pytree
from hdvpd.config import ModelConfig
from hdvpd.config.settings import Count, Fraction
from hdvpd.dynamics.edges import OFFSET_DIM, EdgeLinear, Edges, nearest_edges
from hdvpd.dynamics.local_layer import AbstractLocalLayer, AbstractLocalSettings
from hdvpd.dynamics.mlp import Mlp


@pytree
class AnchorPlan:
    """Who reads whom in message passing.

    Attributes:
      anchors: tokens that read their neighbours.
      drawn: which slots of `anchors` hold one: a fraction of the real tokens, not of all.
      neighbors: edges from every anchor to its nearest tokens.
      nearest: edge from every token to its nearest anchor.
    """

    anchors: Int[Array, "*batch a"]
    drawn: Bool[Array, "*batch a"]
    neighbors: Edges
    nearest: Edges


@dataclass(frozen=True)
class NeighborAttenderSettings(AbstractLocalSettings[AnchorPlan]):
    """Message passing: some tokens read their neighbours, all others read the nearest of these."""

    anchor_fraction: Fraction = 0.125
    """Share of the tokens that message passing updates from their neighbours."""
    anchor_neighbors: Count = 16
    """Nearest tokens that an anchor reads in message passing."""
    aggregate: Literal["softmax", "mean", "sum"] = "softmax"
    """How an anchor gathers its neighbours' messages."""

    def make(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "NeighborAttender":
        """Return the layer of one block."""
        return NeighborAttender(self, model, rngs=rngs)

    def plan(
        self,
        model: ModelConfig,
        positions: Float[Array, "t 3"],
        mask: Bool[Array, "t"],
        key: PRNGKey,
    ) -> AnchorPlan:
        """Draw the anchors among the real tokens, find their neighbours and everyone's anchor."""
        anchors, drawn = uniform_fraction(mask, self.anchor_fraction, key)
        anchor_positions = positions[anchors]
        search = functools.partial(nearest_edges, backend=model.knn)
        return AnchorPlan(
            anchors=anchors,
            drawn=drawn,
            neighbors=search(
                anchor_positions, positions, self.anchor_neighbors,
                query_mask=drawn, node_mask=mask, exclude_self=True, rows=anchors,
            ),
            nearest=search(positions, anchor_positions, 1, query_mask=mask, node_mask=drawn),
        )  # fmt: skip


class NeighborAttender(AbstractLocalLayer[AnchorPlan]):
    """Update a random subset from its neighbours, and every other token from that subset.

    With r the offset in units of 5 cm, anchors a and their neighbours j, other tokens i:

        u_aj = GELU(W1 [h_j, h_a, r, |r|]),  delta_a = MLP([h_a, W2 sum_j p_aj u_aj])
        delta_i = MLP([h_i, h_a + delta_a, r, |r|])

    p_aj is softmax_j(w3 . u_aj), or the neighbours' mean or sum (`aggregate`). W2 is linear,
    so it follows the sum, which costs k times less. The plan's key draws the anchors, once per
    call. An anchor without neighbours reads nothing but itself; padding has no update.
    """

    def __init__(self, settings: NeighborAttenderSettings, model: ModelConfig, *, rngs: nnx.Rngs):
        dim = model.latent_dim
        dense = functools.partial(Linear, dim, rngs=rngs)
        self.read = EdgeLinear(dim, OFFSET_DIM, rngs=rngs)
        self.score = dense(1, use_bias=False) if settings.aggregate == "softmax" else None
        self.message = dense(dim, use_bias=False)
        self.update = Mlp(2 * dim, dim, dim, model.kernels, rngs=rngs)
        self.spread = EdgeLinear(dim, OFFSET_DIM, rngs=rngs)
        self.out = dense(dim)
        self.settings = settings

    def __call__(self, tokens: Float[JaxArray, "t d"], plan: AnchorPlan) -> Float[JaxArray, "t d"]:
        """Return the update of every token."""
        anchors = tokens[plan.anchors]
        of_anchors = self._gather(tokens, anchors, plan.neighbors)
        others = self._spread(tokens, anchors + of_anchors, plan.nearest)
        # Slots without an anchor write beyond the end, which drops them.
        beyond = tokens.shape[0] + jnp.arange(plan.anchors.shape[0], dtype=jnp.int32)
        slots = jnp.where(plan.drawn, plan.anchors, beyond)
        return others.at[slots].set(of_anchors, mode="drop", unique_indices=True)

    def _gather(
        self, tokens: Float[JaxArray, "t d"], anchors: Float[JaxArray, "a d"], edges: Edges
    ) -> Float[JaxArray, "a d"]:
        """Return the update of every anchor from its neighbours."""
        read = jax.nn.gelu(self.read(anchors, tokens, jnp.asarray(edges.offsets), edges))
        weights = self._weights(read, jnp.asarray(edges.found))
        message = self.message(jnp.einsum("ak,akd->ad", weights, read))
        return self.update(jnp.concatenate([anchors, message], axis=-1))

    def _weights(
        self, read: Float[JaxArray, "a k d"], found: Bool[JaxArray, "a k"]
    ) -> Float[JaxArray, "a k"]:
        """Return the weight of every neighbour; zero where there is none."""
        if self.score is not None:
            return masked_softmax(self.score(read)[..., 0], found)
        weights = found.astype(read.dtype)
        if self.settings.aggregate == "mean":
            weights /= jnp.maximum(weights.sum(-1, keepdims=True), 1.0)
        return weights

    def _spread(
        self, tokens: Float[JaxArray, "t d"], anchors: Float[JaxArray, "a d"], edges: Edges
    ) -> Float[JaxArray, "t d"]:
        """Return the update of every token from its nearest anchor; zero where it has none."""
        hidden = self.spread(tokens, anchors, jnp.asarray(edges.offsets), edges)[:, 0]
        return jnp.where(edges.found, self.out(jax.nn.gelu(hidden)), 0.0)


def masked_softmax(
    logits: Float[JaxArray, "a k"], mask: Bool[JaxArray, "a k"]
) -> Float[JaxArray, "a k"]:
    """Return softmax over the marked entries of every row; zeros where a row has none."""
    # Finite, so that a row without any entry stays finite in value and gradient.
    lowest = jnp.finfo(logits.dtype).min
    return jnp.where(mask, jax.nn.softmax(jnp.where(mask, logits, lowest), axis=-1), 0.0)
