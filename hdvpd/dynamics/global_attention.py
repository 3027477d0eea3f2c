"""Global layer of the Interlacer: linear attention over all tokens (docs/equations.md, Dynamics).

A learned mask per head over the graph of nearest tokens can be put over it (not in the papers).
"""

from dataclasses import dataclass
from typing import Annotated, Generic, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.attention.feature_maps import (
    RELU_LEAST,
    elu_features,
    favor_features,
    orthogonal_gaussian,
    relu_features,
)
from hdvpd.attention.learned.base import AbstractLearnedMask, head_keys, positive
from hdvpd.attention.linear import linear_attention
from hdvpd.basics.layers import Linear, split_linear
from hdvpd.basics.types import Array, Bool, Float, JaxArray
from hdvpd.config import ModelConfig
from hdvpd.config.parts import GRAPH_MASKS
from hdvpd.config.settings import Count, CountOrZero, Settings, require
from hdvpd.dynamics.graph_masks import NeighborMask, Plan
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.dense import on_host
from hdvpd.kernels.layers import attention_added


@dataclass(frozen=True)
class GlobalAttentionSettings(Settings, Generic[Plan]):
    """Linear attention over all tokens."""

    num_heads: Count = 4
    """Heads."""
    feature_map: Literal["relu", "elu", "favor"] = "relu"
    """Positive features: ReLU (paper), elu + 1, or FAVOR+, random features whose products are those
    of softmax in expectation."""
    num_random_features: CountOrZero = 0
    """FAVOR+ features per head; 0 means the width of a head, as many as the other maps have."""
    mask: Annotated[AbstractLearnedMask | None, GRAPH_MASKS] = None
    """Mask, learned per head on the graph of nearest neighbours (paper: none)."""
    num_neighbors: Count = 3
    """Out-degree of the mask's graph."""

    @property
    def neighbor_mask(self) -> NeighborMask[Plan] | None:
        """The mask with its graph, if there is one."""
        return None if self.mask is None else NeighborMask(self.mask, self.num_neighbors)

    def check(self) -> None:
        """Let the mask refuse the graph."""
        if self.neighbor_mask is not None:
            self.neighbor_mask.check()

    def check_within(self, outer: ModelConfig) -> None:
        """Refuse a graph with too few particles and heads of unequal width."""
        if self.neighbor_mask is not None:
            self.neighbor_mask.check_within(outer)
        require(
            outer.latent_dim % self.num_heads == 0,
            "num_heads",
            self.num_heads,
            f"it must divide model.latent_dim = {outer.latent_dim}",
        )


class GlobalAttention(nnx.Module, Generic[Plan]):
    """Multi-head linear attention with output projection.

    `seed` draws the random projection of FAVOR+, once and for all: it is no parameter, so nothing
    trains, decays or saves it, and equal configurations have equal projections.
    """

    def __init__(
        self,
        settings: GlobalAttentionSettings[Plan],
        model: ModelConfig,
        *,
        seed: int = 0,
        rngs: nnx.Rngs,
    ):
        dim = model.latent_dim
        self.query_key_value = Linear(dim, 3 * dim, rngs=rngs)
        self.out = Linear(dim, dim, rngs=rngs)
        if settings.mask is None:
            self.raw_mask = None
        else:
            keys = head_keys(rngs, settings.num_heads)
            self.raw_mask = nnx.Param(jnp.stack([*map(settings.mask.initial_raw, keys)]))
        self.settings = settings
        self.head_dim = dim // settings.num_heads
        self.seed = seed
        self.kernels: Kernels = model.kernels

    def __call__(
        self, tokens: Float[JaxArray, "t d"], mask: Bool[Array, "t"], plan: Plan | None = None
    ) -> Float[JaxArray, "t d"]:
        """Return the update of every token.

        Args:
          tokens: what attends.
          mask: real tokens.
          plan: of the learned mask; None without one.
        """
        num_tokens, latent_dim = tokens.shape
        heads = self.settings.num_heads
        query, key, value = (
            part.reshape(num_tokens, heads, self.head_dim)
            for part in split_linear(self.query_key_value, tokens, 3)
        )
        query, key = self._features(query, key, mask)
        if self.settings.mask is None or self.raw_mask is None:
            attended = linear_attention(query, key, value, mask)
        else:
            attended = self.settings.mask.attend_heads(
                query, key, value, positive(self.raw_mask[...]), plan
            )
        return self.out(jnp.asarray(attended).reshape(num_tokens, latent_dim))

    def added(
        self,
        tokens: Float[JaxArray, "t d"],
        norm: nnx.LayerNorm,
        mask: Bool[Array, "t"],
        plan: Plan | None = None,
    ) -> Float[JaxArray, "t d"]:
        """Return tokens + update of norm(tokens); see `__call__`."""
        plain = self.settings.mask is None and self.settings.feature_map == "relu"
        layer = self.query_key_value
        if not plain or layer.dtype is not None or not on_host(self.kernels, tokens):
            return tokens + self(norm(tokens), mask, plan)
        layers, heads = (layer, self.out), self.settings.num_heads
        return attention_added(tokens, norm, layers, mask, heads, RELU_LEAST)

    def _features(
        self, query: Float[Array, "t a w"], key: Float[Array, "t a w"], mask: Bool[Array, "t"]
    ) -> tuple[Float[Array, "t a m"], Float[Array, "t a m"]]:
        if self.settings.feature_map == "favor":
            return favor_features(query, key, self.projection, mask)
        positive = {"relu": relu_features, "elu": elu_features}[self.settings.feature_map]
        return positive(query / np.sqrt(query.shape[-1])), positive(key)

    @property
    def projection(self) -> Float[JaxArray, "a m w"]:
        """Random rows of every head."""
        heads, width = self.settings.num_heads, self.head_dim
        num_features = self.settings.num_random_features or width
        # A constant of the program, not drawn again at every call.
        with jax.ensure_compile_time_eval():
            keys = jax.random.split(jax.random.key(self.seed), heads)
            return jax.vmap(lambda key: orthogonal_gaussian(key, num_features, width))(keys)
