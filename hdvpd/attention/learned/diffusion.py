"""Graph diffusion with its time learned (arXiv 2107.07999, Sec. 4.1)."""

from dataclasses import dataclass
from typing import Annotated

import numpy as np

from hdvpd.attention.graphs import SymmetricPart
from hdvpd.attention.learned.base import AbstractLearnedMask, raw
from hdvpd.attention.masks.diffusion import DiffusionMask, diffusion_mask
from hdvpd.basics.types import Array, Float, JaxArray, PRNGKey
from hdvpd.config.settings import Limit
from hdvpd.kernels.sparse_rows import SparseRows


@dataclass(frozen=True)
class LearnedDiffusion(AbstractLearnedMask[SymmetricPart]):
    """exp(-lambda L D^-1) on the symmetric part of the graph; lambda starts at half its bound."""

    max_time: Annotated[
        float, Limit(lambda time: 0 < time <= 100, "use a number above 0, at most 100")
    ] = 2.0
    """Bound of the learned time, the mean number of hops; cost grows with it."""

    def initial_raw(self, key: PRNGKey) -> Float[Array, "1"]:
        """Return the raw time, the same for every head."""
        del key
        return raw(np.array([self.max_time / 2]))

    def plan(self, graph: SparseRows, key: PRNGKey) -> SymmetricPart:
        """Take the symmetric part of the graph."""
        del key
        return SymmetricPart(graph)

    def mask(self, parameters: Float[JaxArray, "1"], plan: SymmetricPart) -> DiffusionMask:
        """Return the diffusion of this time."""
        return diffusion_mask(plan, parameters[0], self.max_time)
