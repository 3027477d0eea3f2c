"""Graph random features, one-sided: M = sum_l f_l W^l with f learned (arXiv 2410.03462, Alg. 2)."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from hdvpd.attention.grf import relu_walk_attention, walk_attention
from hdvpd.attention.learned.base import AbstractLearnedMask, raw
from hdvpd.attention.learned.walked import WalkSettings
from hdvpd.attention.masks.walks import SparseMask, walk_rows
from hdvpd.basics.types import Array, Float, JaxArray, PRNGKey
from hdvpd.kernels.choice import use_host_kernels
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks


@dataclass(frozen=True)
class LearnedGrf(WalkSettings, AbstractLearnedMask[Walks]):
    """f_0..f_h, which start at the public code's exp(-0.01 l)."""

    def initial_raw(self, key: PRNGKey) -> Float[Array, "l"]:
        """Return raw f, the same for every head."""
        del key
        return raw(np.exp(-0.01 * np.arange(self.num_hops + 1)))

    def plan(self, graph: SparseRows, key: PRNGKey) -> Walks:
        """Walk on the graph."""
        return self.walk(graph, key)

    def mask(self, parameters: Float[JaxArray, "l"], plan: Walks) -> SparseMask:
        """Return the walks' features, modulated by f."""
        return SparseMask(walk_rows(plan, parameters))

    def attend(
        self,
        query: Float[Array, "t m"],
        key: Float[Array, "t m"],
        value: Float[Array, "t c"],
        parameters: Float[JaxArray, "l"],
        plan: Walks,
    ) -> Float[Array, "t c"]:
        """Attend along the walks, at a cost that does not grow with the features' number."""
        return walk_attention(query, key, value, parameters, plan)

    def attend_projected(
        self,
        queries_keys_values: Float[JaxArray, "t w"],
        parameters: Float[JaxArray, "a l"],
        plan: Walks,
    ) -> Float[JaxArray, "t d"]:
        """Attend along the walks; host code makes one head's features where it reads them."""
        single = parameters.shape[0] == 1 and queries_keys_values.dtype == jnp.float32
        if single and use_host_kernels(plan.kernels):
            return relu_walk_attention(queries_keys_values, parameters[0], plan)
        return super().attend_projected(queries_keys_values, parameters, plan)
