"""The one interface of every local layer of the Interlacer: its settings, and the layer itself."""

import abc
from dataclasses import dataclass
from typing import Generic, TypeVar

from flax import nnx

from hdvpd.basics.types import Array, Bool, Float, JaxArray, PRNGKey
from hdvpd.config import ModelConfig
from hdvpd.config.settings import Settings

Plan = TypeVar("Plan")


class AbstractLocalLayer(nnx.Module, Generic[Plan]):
    """Updates every token from the tokens near it in space."""

    @abc.abstractmethod
    def __call__(self, tokens: Float[JaxArray, "t d"], plan: Plan) -> Float[JaxArray, "t d"]:
        """Return the update of every token."""

    def added(
        self, tokens: Float[JaxArray, "t d"], norm: nnx.LayerNorm, plan: Plan
    ) -> Float[JaxArray, "t d"]:
        """Return tokens + update of norm(tokens)."""
        return tokens + self(norm(tokens), plan)


@dataclass(frozen=True)
class AbstractLocalSettings(Settings, abc.ABC, Generic[Plan]):
    """Settings of a local layer: what all blocks prepare together, and how a block's is made."""

    @abc.abstractmethod
    def make(self, model: ModelConfig, *, rngs: nnx.Rngs) -> AbstractLocalLayer[Plan]:
        """Return the layer of one block."""

    @abc.abstractmethod
    def plan(
        self,
        model: ModelConfig,
        positions: Float[Array, "t 3"],
        mask: Bool[Array, "t"],
        key: PRNGKey,
    ) -> Plan:
        """Find out who reads whom, once for all blocks of a call: positions do not change in it.

        Args:
          model: what all parts share.
          positions: of all tokens [m].
          mask: real tokens; others read nobody and nobody reads them.
          key: draws walkers or anchors.

        Returns:
          A pytree that every layer of the call gets.
        """
