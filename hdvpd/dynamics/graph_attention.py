"""Local layer that attends under a mask over the neighbour graph.

With `model.local = "grf"` it is the GRF Interlacer's (arXiv 2410.03462, App. C.3).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.array_typing import Array, Bool, Float, JaxArray, PRNGKey
from hdvpd.attention.feature_maps import relu_features
from hdvpd.config import ModelConfig
from hdvpd.dynamics.graph_masks import attend_under, initial_parameters, plan_mask
from hdvpd.dynamics.local_layer import AbstractLocalLayer
from hdvpd.layers import Linear


class GraphAttention(AbstractLocalLayer):
    """Linear attention under a learned graph mask, which all heads share."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs):
        dense = functools.partial(Linear, config.latent_dim, config.latent_dim, rngs=rngs)
        self.query, self.key = dense(use_bias=False), dense(use_bias=False)
        self.value, self.out = dense(), dense()
        self.raw_modulation = nnx.Param(jnp.asarray(initial_parameters(config.local, config)))
        self.config = config

    @staticmethod
    def plan(
        config: ModelConfig, positions: Float[Array, "t 3"], mask: Bool[Array, "t"], key: PRNGKey
    ) -> Any:
        """Prepare the mask over the graph of nearest neighbours."""
        return plan_mask(config.local, config, positions, mask, key)

    def __call__(self, tokens: Float[JaxArray, "t d"], plan: Any) -> Float[JaxArray, "t d"]:
        """Return the update of every token."""
        num_tokens, latent_dim = tokens.shape
        heads = self.config.local_heads
        query, key, value = (
            layer(tokens).reshape(num_tokens, heads, latent_dim // heads)
            for layer in (self.query, self.key, self.value)
        )
        modulation = jax.nn.softplus(self.raw_modulation[...])
        attended = attend_under(
            self.config.local,
            self.config,
            relu_features(query / np.sqrt(query.shape[-1])),
            relu_features(key),
            value,
            jnp.broadcast_to(modulation, (heads, *modulation.shape)),
            plan,
        )
        return self.out(jnp.asarray(attended).reshape(num_tokens, latent_dim))
