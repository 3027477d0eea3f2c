"""Local layer that attends under a learned mask over the neighbour graph.

With graph random features it is the GRF Interlacer's (arXiv 2410.03462, App. C.3).
"""

import functools
from dataclasses import dataclass, field
from typing import Annotated, Generic

import jax.numpy as jnp
from flax import nnx

from hdvpd.attention.learned.base import AbstractLearnedMask, head_keys, positive
from hdvpd.attention.learned.grf import LearnedGrf
from hdvpd.basics.layers import Linear
from hdvpd.basics.types import Array, Bool, Float, JaxArray, PRNGKey
from hdvpd.config import ModelConfig
from hdvpd.config.parts import GRAPH_MASKS
from hdvpd.config.settings import Count, require
from hdvpd.dynamics.graph_masks import NeighborMask, Plan
from hdvpd.dynamics.local_layer import AbstractLocalLayer, AbstractLocalSettings
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.layers import added, normed_beside


@dataclass(frozen=True)
class GraphAttentionSettings(AbstractLocalSettings[Plan], Generic[Plan]):
    """Attention under a learned mask over the graph of nearest neighbours."""

    num_heads: Count = 1
    """Heads, all under one mask (paper: 1). The cost of every mask but grf's falls as their number
    grows."""
    num_neighbors: Count = 3
    """Out-degree of the graph (paper)."""
    mask: Annotated[AbstractLearnedMask, GRAPH_MASKS] = field(default_factory=LearnedGrf)
    """Mask: graph random features (paper), a random-walk graph-node kernel, or graph diffusion."""

    @property
    def neighbor_mask(self) -> NeighborMask[Plan]:
        """The mask with its graph."""
        return NeighborMask(self.mask, self.num_neighbors)

    def make(self, model: ModelConfig, *, rngs: nnx.Rngs) -> "GraphAttention[Plan]":
        """Return the layer of one block."""
        return GraphAttention(self, model, rngs=rngs)

    def plan(
        self,
        model: ModelConfig,
        positions: Float[Array, "t 3"],
        mask: Bool[Array, "t"],
        key: PRNGKey,
    ) -> Plan:
        """Prepare the mask over the graph."""
        return self.neighbor_mask.plan(model, positions, mask, key)

    def check(self) -> None:
        """Let the mask refuse the graph."""
        self.neighbor_mask.check()

    def check_within(self, outer: ModelConfig) -> None:
        """Refuse a graph with too few particles and heads of unequal width."""
        self.neighbor_mask.check_within(outer)
        require(
            outer.latent_dim % self.num_heads == 0,
            "num_heads",
            self.num_heads,
            f"it must divide model.latent_dim = {outer.latent_dim}",
        )


class GraphAttention(AbstractLocalLayer[Plan]):
    """Linear attention under a learned graph mask, which all heads share."""

    def __init__(
        self, settings: GraphAttentionSettings[Plan], model: ModelConfig, *, rngs: nnx.Rngs
    ):
        dense = functools.partial(Linear, model.latent_dim, model.latent_dim, rngs=rngs)
        self.query, self.key = dense(use_bias=False), dense(use_bias=False)
        self.value, self.out = dense(), dense()
        initial = settings.mask.initial_raw(head_keys(rngs, 1)[0])
        self.raw_modulation = nnx.Param(jnp.asarray(initial))
        self.settings = settings
        self.kernels: Kernels = model.kernels

    def __call__(self, tokens: Float[JaxArray, "t d"], plan: Plan) -> Float[JaxArray, "t d"]:
        """Return the update of every token."""
        projected = jnp.concatenate([layer(tokens) for layer in self._projections], axis=1)
        return self.out(self._attend(projected, plan))

    def added(
        self, tokens: Float[JaxArray, "t d"], norm: nnx.LayerNorm, plan: Plan
    ) -> Float[JaxArray, "t d"]:
        """Return tokens + update of norm(tokens); see `AbstractLocalLayer`."""
        projected, tokens = normed_beside(norm, self._projections, tokens, self.kernels)
        return added(tokens, self.out, self._attend(projected, plan), self.kernels)

    @property
    def _projections(self) -> tuple[nnx.Linear, nnx.Linear, nnx.Linear]:
        return self.query, self.key, self.value

    def _attend(self, projected: Float[JaxArray, "t w"], plan: Plan) -> Float[JaxArray, "t d"]:
        parameters = positive(self.raw_modulation[...])
        of_heads = jnp.broadcast_to(parameters, (self.settings.num_heads, *parameters.shape))
        return self.settings.mask.attend_projected(projected, of_heads, plan)
