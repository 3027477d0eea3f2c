"""How walks are drawn for masks that are made of them."""

from dataclasses import dataclass
from typing import Annotated, Literal

from hdvpd.attention.couplings import Coupling
from hdvpd.attention.sampled_walks import sample_walks
from hdvpd.basics.types import PRNGKey
from hdvpd.config.settings import Count, Limit, Settings, require
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks, exact_walks

# All walks of 3 neighbours and 6 hops have 1,093 entries per token.
_MAX_EXACT_ENTRIES = 4096


@dataclass(frozen=True)
class WalkSettings(Settings):
    """Which walks a mask is made of."""

    num_hops: Count = 3
    """Hops of every walk (paper); with halting the longest walk."""
    walks: Literal["exact", Coupling] = "exact"
    """All walks, which on neighbour lists is what the paper's 27 repelling walkers amount to; or
    sampled ones with this coupling, drawn anew at every step."""
    num_walkers: Count = 27
    """Sampled walkers per token (paper); fewer than num_neighbors leave some unread in a step."""
    halting: Annotated[
        float,
        Limit(
            lambda p: 0 <= p < 1,
            "use a probability between 0 and 1, or 0 for walks of num_hops hops",
        ),
    ] = 0.0
    """Probability that a sampled walker stops before each hop; 0 walks num_hops hops (paper)."""

    def check(self) -> None:
        """Refuse halting that the walks do not know, or that their coupling lacks."""
        antithetic = "antithetic" in self.walks
        require(
            self.walks != "exact" or self.halting == 0,
            "halting",
            self.halting,
            'exact walks do not stop; use 0 or sample, for example walks = "iid"',
        )
        require(
            not antithetic or self.halting > 0,
            "halting",
            self.halting,
            f"walks = {self.walks!r} couples the stopping; use a probability above 0",
        )
        require(
            not antithetic or self.num_walkers % 2 == 0,
            "num_walkers",
            self.num_walkers,
            "antithetic walkers come in pairs; use an even number",
        )

    def check_degree(self, out_degree: int) -> None:
        """Refuse more exact walks than memory should hold.

        Raises:
          SettingError: they are too many.
        """
        entries = sum(out_degree**hop for hop in range(self.num_hops + 1))
        require(
            self.walks != "exact" or entries <= _MAX_EXACT_ENTRIES,
            "num_hops",
            self.num_hops,
            f"exact walks may have {_MAX_EXACT_ENTRIES} entries per token; use fewer hops or "
            'neighbours, or sample, for example walks = "repelling"',
        )

    def walk(self, graph: SparseRows, key: PRNGKey) -> Walks:
        """Walk on a graph."""
        if self.walks == "exact":
            return exact_walks(graph, self.num_hops)
        return sample_walks(
            graph,
            self.num_walkers,
            self.num_hops,
            key,
            halting=self.halting,
            coupling=self.walks,
        )
