"""The Interlacer (HD-VPD, arXiv 2406.19800): global linear attention, then a local layer."""

import functools
from dataclasses import dataclass, field
from typing import Annotated, Generic, TypeVar

import jax
from flax import nnx

from hdvpd.basics.layers import LayerNorm, by_rows
from hdvpd.basics.types import Array, Bool, Float, JaxArray, ParticleCloud, PRNGKey, RobotPoints
from hdvpd.config import AbstractDynamicsSettings, ModelConfig, SceneSpec
from hdvpd.config.parts import LOCAL_LAYERS
from hdvpd.config.settings import Count
from hdvpd.dynamics.base import AbstractDynamics, Change, Known, Step
from hdvpd.dynamics.global_attention import GlobalAttention, GlobalAttentionSettings
from hdvpd.dynamics.graph_attention import GraphAttentionSettings
from hdvpd.dynamics.local_layer import AbstractLocalSettings
from hdvpd.dynamics.mlp import Mlp
from hdvpd.dynamics.tokens import ReadOut, Tokens
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.layers import mlp_added

LocalPlan = TypeVar("LocalPlan")
MaskPlan = TypeVar("MaskPlan")


@dataclass(frozen=True)
class InterlacerSettings(AbstractDynamicsSettings, Generic[LocalPlan, MaskPlan]):
    """Blocks of global attention, MLP and a local layer."""

    num_layers: Count = 4
    """Blocks."""
    mlp_ratio: Count = 2
    """Hidden width of a block's MLP over the token width."""
    attention: GlobalAttentionSettings = field(default_factory=GlobalAttentionSettings)
    """Global attention."""
    local: Annotated[AbstractLocalSettings | None, LOCAL_LAYERS] = field(
        default_factory=GraphAttentionSettings
    )
    """Local layer: attention under a graph mask (paper: with graph random features), message
    passing by the neighbour-attender (paper), or none (unmasked transformer)."""

    def make(self, model: ModelConfig, scene: SceneSpec, *, rngs: nnx.Rngs) -> "Interlacer":
        """Return the model."""
        return Interlacer(self, model, scene, rngs=rngs)

    def plan(
        self,
        model: ModelConfig,
        positions: Float[Array, "t 3"],
        mask: Bool[Array, "t"],
        key: PRNGKey,
    ) -> tuple[LocalPlan | None, MaskPlan | None]:
        """Prepare the local layers and the global mask of one call.

        Args:
          model: what all parts share.
          positions: of all tokens [m].
          mask: real tokens.
          key: draws walkers or anchors.

        Returns:
          The plan of all local layers and that of all global attentions, None where there is no
          such layer or mask; one and the same where both lie under equal masks.
        """
        global_mask = self.attention.neighbor_mask
        local_key, global_key = (key, key) if global_mask is None else jax.random.split(key)
        plan = None if self.local is None else self.local.plan(model, positions, mask, local_key)
        if global_mask is None:
            return plan, None
        if (
            isinstance(self.local, GraphAttentionSettings)
            and self.local.neighbor_mask == global_mask
        ):
            return plan, plan
        return plan, global_mask.plan(model, positions, mask, global_key)


class Block(nnx.Module, Generic[LocalPlan, MaskPlan]):
    """Global attention, MLP and the local layer, each pre-normalised and residual."""

    def __init__(
        self,
        settings: InterlacerSettings[LocalPlan, MaskPlan],
        model: ModelConfig,
        *,
        seed: int,
        rngs: nnx.Rngs,
    ):
        dim = model.latent_dim
        self.norm_global = LayerNorm(dim, rngs=rngs)
        self.global_attention = GlobalAttention(settings.attention, model, seed=seed, rngs=rngs)
        self.norm_mlp = LayerNorm(dim, rngs=rngs)
        self.kernels: Kernels = model.kernels
        self.mlp = Mlp(dim, settings.mlp_ratio * dim, dim, model.kernels, rngs=rngs)
        if settings.local is None:
            self.norm_local = self.local = None
        else:
            self.norm_local = LayerNorm(dim, rngs=rngs)
            self.local = settings.local.make(model, rngs=rngs)

    def __call__(
        self,
        tokens: Float[JaxArray, "t d"],
        mask: Bool[Array, "t"],
        plan: LocalPlan | None,
        global_plan: MaskPlan | None = None,
    ) -> Float[JaxArray, "t d"]:
        """Apply the block (docs/equations.md, Dynamics).

        Args:
          tokens: of all particles and points.
          mask: real tokens.
          plan: of the local layer; None where there is none.
          global_plan: of the mask over the global attention; None where there is none.
        """
        with jax.named_scope("global_attention"):
            tokens = self.attended(tokens, mask, global_plan)
        with jax.named_scope("mlp"):
            tokens = self.fed_forward(tokens)
        if self.local is None or self.norm_local is None:
            return tokens
        with jax.named_scope("local"):
            return self.local.added(tokens, self.norm_local, plan)

    def attended(
        self,
        tokens: Float[JaxArray, "t d"],
        mask: Bool[Array, "t"],
        global_plan: MaskPlan | None = None,
    ) -> Float[JaxArray, "t d"]:
        """Return tokens after the global attention; see `__call__`."""
        return self.global_attention.added(tokens, self.norm_global, mask, global_plan)

    def fed_forward(self, tokens: Float[JaxArray, "t d"]) -> Float[JaxArray, "t d"]:
        """Return tokens after the MLP."""
        layers = self.mlp.hidden, self.mlp.out
        return by_rows(lambda x: mlp_added(x, self.norm_mlp, layers, self.kernels), tokens)


class Interlacer(AbstractDynamics):
    """Tokens, blocks and the bounded read-out of the current particles."""

    def __init__(
        self,
        settings: InterlacerSettings,
        model: ModelConfig,
        scene: SceneSpec,
        *,
        rngs: nnx.Rngs,
    ):
        self.tokens = Tokens(model, scene, rngs=rngs)
        layers = range(settings.num_layers)
        self.blocks = nnx.List([Block(settings, model, seed=n, rngs=rngs) for n in layers])
        self.read_out = ReadOut(model, scene, rngs=rngs)
        self.settings = settings
        self.model = model

    def know(self, current: ParticleCloud, robot: RobotPoints, key: PRNGKey) -> Known | None:
        """Say what stays as it is during a rollout; see `AbstractDynamics`."""
        return self.read_out.know(current, robot, key)

    def begin(self, known: Known | None) -> Step:
        """Return the step of a rollout; see `AbstractDynamics`."""
        return functools.partial(self, known=known)

    def __call__(
        self,
        previous: ParticleCloud,
        current: ParticleCloud,
        robot: RobotPoints,
        key: PRNGKey,
        known: Known | None = None,
    ) -> Change:
        """Return the change of `current`; see `AbstractDynamics` and `ReadOut`."""
        num_particles = current.mask.shape[0]
        tokens, positions, mask = self.tokens(previous, current, robot)
        with jax.named_scope("neighbors"):
            plan, global_plan = self.settings.plan(self.model, positions, mask, key)
        for block in self.blocks:
            tokens = block(tokens, mask, plan, global_plan)
        return self.read_out(tokens[num_particles : 2 * num_particles], current, robot, known)
