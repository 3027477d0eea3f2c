"""The Interlacer (HD-VPD, arXiv 2406.19800): global linear attention, then a local layer."""

from typing import Any

import jax
from flax import nnx

from hdvpd.array_typing import Array, Bool, Float, JaxArray, PRNGKey
from hdvpd.config import ModelConfig, SceneSpec
from hdvpd.dynamics.base import AbstractDynamics, Change
from hdvpd.dynamics.global_attention import GlobalAttention
from hdvpd.dynamics.graph_attention import GraphAttention
from hdvpd.dynamics.graph_masks import GRAPH_MASKS, plan_mask
from hdvpd.dynamics.local_layer import AbstractLocalLayer
from hdvpd.dynamics.mlp import Mlp
from hdvpd.dynamics.neighbor_attender import NeighborAttender
from hdvpd.dynamics.tokens import ReadOut, Tokens
from hdvpd.layers import LayerNorm
from hdvpd.types import ParticleCloud, RobotPoints

LOCAL_LAYERS: dict[str, type[AbstractLocalLayer]] = {
    **dict.fromkeys(GRAPH_MASKS, GraphAttention),
    "mp": NeighborAttender,
}


class Block(nnx.Module):
    """Global attention, MLP and the local layer, each pre-normalised and residual."""

    def __init__(self, config: ModelConfig, *, seed: int, rngs: nnx.Rngs):
        dim = config.latent_dim
        self.norm_global = LayerNorm(dim, rngs=rngs)
        self.global_attention = GlobalAttention(config, seed=seed, rngs=rngs)
        self.norm_mlp = LayerNorm(dim, rngs=rngs)
        self.mlp = Mlp(dim, config.mlp_ratio * dim, dim, rngs=rngs)
        if config.local == "none":
            self.norm_local = self.local = None
        else:
            self.norm_local = LayerNorm(dim, rngs=rngs)
            self.local = LOCAL_LAYERS[config.local](config, rngs=rngs)

    def __call__(
        self,
        tokens: Float[JaxArray, "t d"],
        mask: Bool[Array, "t"],
        plan: Any,
        global_plan: Any = None,
    ) -> Float[JaxArray, "t d"]:
        """Apply the block (docs/equations.md, Dynamics).

        Args:
          tokens: of all particles and points.
          mask: real tokens.
          plan: of the local layer; None where there is none.
          global_plan: of `model.global_mask`; None where there is none.
        """
        with jax.named_scope("global_attention"):
            tokens += self.global_attention(self.norm_global(tokens), mask, global_plan)
        with jax.named_scope("mlp"):
            tokens += self.mlp(self.norm_mlp(tokens))
        if self.local is None or self.norm_local is None:
            return tokens
        with jax.named_scope("local"):
            return tokens + self.local(self.norm_local(tokens), plan)


class Interlacer(AbstractDynamics):
    """Tokens, blocks and the bounded read-out of the current particles."""

    def __init__(self, config: ModelConfig, scene: SceneSpec, *, rngs: nnx.Rngs):
        self.tokens = Tokens(config, scene, rngs=rngs)
        layers = range(config.num_layers)
        self.blocks = nnx.List([Block(config, seed=layer, rngs=rngs) for layer in layers])
        self.read_out = ReadOut(config, rngs=rngs)
        self.config = config

    def __call__(
        self, previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints, key: PRNGKey
    ) -> Change:
        """Return the change of `current`; see `AbstractDynamics`."""
        num_particles = current.mask.shape[0]
        tokens, positions, mask = self.tokens(previous, current, robot)
        config = self.config
        plan = global_plan = None
        with jax.named_scope("neighbors"):
            if config.local != "none":
                plan = LOCAL_LAYERS[config.local].plan(config, positions, mask, key)
            if config.global_mask == config.local:
                global_plan = plan
            elif config.global_mask != "none":
                global_plan = plan_mask(config.global_mask, config, positions, mask, key)
        for block in self.blocks:
            tokens = block(tokens, mask, plan, global_plan)
        return self.read_out(tokens[num_particles : 2 * num_particles], current, robot)
