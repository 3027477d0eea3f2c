"""Global layer of the Interlacer: linear attention over all tokens (docs/equations.md, Dynamics).

`model.global_mask` can put a learned graph mask per head over it.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.array_typing import Array, Bool, Float, JaxArray
from hdvpd.attention.feature_maps import (
    elu_features,
    favor_features,
    orthogonal_gaussian,
    relu_features,
)
from hdvpd.attention.linear import linear_attention
from hdvpd.config import ModelConfig
from hdvpd.dynamics.graph_masks import attend_under, initial_parameters
from hdvpd.layers import Linear


class GlobalAttention(nnx.Module):
    """Multi-head linear attention with output projection.

    `seed` draws the random projection of FAVOR+, once and for all: it is no parameter, so nothing
    trains, decays or saves it, and equal configurations have equal projections.
    """

    def __init__(self, config: ModelConfig, *, seed: int = 0, rngs: nnx.Rngs):
        dim = config.latent_dim
        self.query_key_value = Linear(dim, 3 * dim, rngs=rngs)
        self.out = Linear(dim, dim, rngs=rngs)
        if config.global_mask == "none":
            self.raw_mask = None
        else:
            initial = initial_parameters(config.global_mask, config)
            self.raw_mask = nnx.Param(jnp.tile(initial, (config.num_heads, 1)))
        self.config = config
        self.seed = seed

    def __call__(
        self, tokens: Float[JaxArray, "t d"], mask: Bool[Array, "t"], plan: Any = None
    ) -> Float[JaxArray, "t d"]:
        """Return the update of every token.

        Args:
          tokens: what attends.
          mask: real tokens.
          plan: of `model.global_mask`, from `hdvpd.dynamics.graph_masks.plan_mask`; None without.
        """
        num_tokens, latent_dim = tokens.shape
        heads = self.config.num_heads
        projected = self.query_key_value(tokens).reshape(num_tokens, 3, heads, latent_dim // heads)
        query, key, value = projected[:, 0], projected[:, 1], projected[:, 2]
        query, key = self._features(query, key, mask)
        if self.raw_mask is None:
            attended = linear_attention(query, key, value, mask)
        else:
            name, parameters = self.config.global_mask, jax.nn.softplus(self.raw_mask[...])
            attended = attend_under(name, self.config, query, key, value, parameters, plan)
        return self.out(jnp.asarray(attended).reshape(num_tokens, latent_dim))

    def _features(
        self, query: Float[Array, "t a w"], key: Float[Array, "t a w"], mask: Bool[Array, "t"]
    ) -> tuple[Float[Array, "t a m"], Float[Array, "t a m"]]:
        if self.config.feature_map == "favor":
            return favor_features(query, key, self.projection, mask)
        positive = {"relu": relu_features, "elu": elu_features}[self.config.feature_map]
        return positive(query / np.sqrt(query.shape[-1])), positive(key)

    @property
    def projection(self) -> Float[JaxArray, "a m w"]:
        """Random rows of every head."""
        heads = self.config.num_heads
        width = self.config.latent_dim // heads
        num_features = self.config.num_random_features or width
        # A constant of the program, not drawn again at every call.
        with jax.ensure_compile_time_eval():
            keys = jax.random.split(jax.random.key(self.seed), heads)
            return jax.vmap(lambda key: orthogonal_gaussian(key, num_features, width))(keys)
