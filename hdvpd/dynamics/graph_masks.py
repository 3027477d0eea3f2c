"""Learned masks over the graph of nearest tokens, for the local layer and the global attention.

Positions choose the neighbours and nothing else: no gradient flows through the graph.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from hdvpd.attention.graphs import neighbor_graph
from hdvpd.attention.learned.base import AbstractLearnedMask
from hdvpd.basics.types import Array, Bool, Float, PRNGKey
from hdvpd.config import ModelConfig
from hdvpd.config.settings import SettingError, require
from hdvpd.kernels.neighbors import knn

Plan = TypeVar("Plan")


@dataclass(frozen=True)
class NeighborMask(Generic[Plan]):
    """A learned mask, and the number of neighbours that each token has in its graph.

    Equal ones have equal plans, which layers may share.

    Attributes:
      learned: the mask.
      num_neighbors: out-degree of the graph.
    """

    learned: AbstractLearnedMask[Plan]
    num_neighbors: int

    def plan(
        self,
        model: ModelConfig,
        positions: Float[Array, "t 3"],
        mask: Bool[Array, "t"],
        key: PRNGKey,
    ) -> Plan:
        """Join every real token to its nearest ones and prepare the mask over that graph.

        Args:
          model: which search and which kernels.
          positions: of all tokens [m].
          mask: real tokens; others see themselves only.
          key: draws walkers.
        """
        found = knn(
            positions,
            positions,
            self.num_neighbors,
            mask=mask,
            exclude_self=True,
            backend=model.knn,
        )
        return self.learned.plan(neighbor_graph(found, mask, model.kernels), key)

    def check(self) -> None:
        """Let the mask refuse the graph's out-degree.

        Raises:
          SettingError: it does; the key is that of settings whose field `mask` is the mask.
        """
        try:
            self.learned.check_degree(self.num_neighbors)
        except SettingError as error:
            raise error.within("mask") from None

    def check_within(self, model: ModelConfig) -> None:
        """Refuse more neighbours than there are particles.

        Raises:
          SettingError: there are more.
        """
        require(
            self.num_neighbors < model.num_particles,
            "num_neighbors",
            self.num_neighbors,
            f"a particle has fewer neighbours than model.num_particles = {model.num_particles}",
        )
