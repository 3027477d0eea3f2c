"""The random-walk graph-node kernel with its decay learned (arXiv 2107.07999, Sec. 4.2)."""

from dataclasses import dataclass

import numpy as np

from hdvpd.attention.graphs import transition_graph
from hdvpd.attention.learned.base import AbstractLearnedMask, raw
from hdvpd.attention.learned.walked import WalkSettings
from hdvpd.attention.masks.rwgnk import rwgnk_mask
from hdvpd.attention.masks.walks import WalkMask
from hdvpd.basics.types import Array, Float, JaxArray, PRNGKey
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks, merged


@dataclass(frozen=True)
class LearnedRwgnk(WalkSettings, AbstractLearnedMask[Walks]):
    """The decay lambda, which starts at 1/2; rows have norm one."""

    def initial_raw(self, key: PRNGKey) -> Float[Array, "1"]:
        """Return raw lambda, the same for every head."""
        del key
        return raw(np.array([0.5]))

    def plan(self, graph: SparseRows, key: PRNGKey) -> Walks:
        """Count visits of walks that take every edge of a node alike."""
        return merged(self.walk(transition_graph(graph, self.halting), key))

    def mask(self, parameters: Float[JaxArray, "1"], plan: Walks) -> WalkMask:
        """Return the kernel with this decay."""
        return rwgnk_mask(plan, parameters[0])
