"""Masks that vision transformers learn: one for every head, over a grid's cells and a class token.

A learned mask over a grid says how a head's mask follows from its parameters; `HeadMasks` holds the
parameters of all heads of a layer.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.attention.graphs import transition_graph
from hdvpd.attention.learned.base import AbstractLearnedMask, positive, raw
from hdvpd.attention.masks.walks import WalkMask, walk_rows
from hdvpd.attention.sampled_walks import sample_walks
from hdvpd.basics.types import Float, JaxArray, PRNGKey
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks
from studies.attention.graphs import matrix_graph, symmetric_weights
from studies.attention.masks.compose import ClassTokenMask
from studies.attention.masks.low_rank import LowRankMask
from studies.attention.masks.series import PowerSeriesMask
from studies.attention.masks.toeplitz import ToeplitzMask
from studies.grf_measurements import grid

_DECAY = 0.01
_FREE_SPREAD = 0.5


class Frozen(nnx.Variable):
    """What is drawn once and never trained."""


Plan = TypeVar("Plan")
Nothing = tuple[()]
"""The plan of a mask that needs to know no more than the grid."""


@dataclass(frozen=True)
class AbstractGridMask(AbstractLearnedMask[Plan], Generic[Plan]):
    """A learned mask over the cells of a grid.

    Attributes:
      cells: rows and columns of the grid.
    """

    cells: tuple[int, int]


@dataclass(frozen=True)
class Toeplitz(AbstractGridMask[Nothing]):
    """A number for every offset between two cells, all 1 at first (arXiv 2107.07999)."""

    def initial_raw(self, key: PRNGKey) -> Float[JaxArray, "..."]:
        """Return the raw table."""
        del key
        return jnp.full([2 * cells - 1 for cells in self.cells], raw(jnp.ones(())))

    def plan(self, graph: SparseRows, key: PRNGKey) -> Nothing:
        """Prepare nothing."""
        del graph, key
        return ()

    def mask(self, parameters: Float[JaxArray, "..."], plan: Nothing) -> ToeplitzMask:
        """Return the mask with this table."""
        del plan
        return ToeplitzMask(parameters)


@dataclass(frozen=True)
class AbstractSeries(AbstractGridMask[Plan], Generic[Plan]):
    """M_alpha = Phi Phi^T with Phi = sum_l f_l W^l of the grid graph (arXiv 2410.03462, Eq. 4).

    f is learned and positive, so that M_alpha is positive semi-definite and has no entry below 0;
    alpha = f * f, all 2 h + 1 coefficients. Learning starts at f_l = exp(-0.01 l).

    Attributes:
      num_hops: h, the last power in Phi.
    """

    num_hops: int

    def initial_raw(self, key: PRNGKey) -> Float[JaxArray, "..."]:
        """Return raw f."""
        del key
        return jnp.asarray(raw(jnp.exp(-_DECAY * jnp.arange(self.num_hops + 1))))


@dataclass(frozen=True)
class Series(AbstractSeries[Nothing]):
    """The mask itself, by repeated products with W."""

    def plan(self, graph: SparseRows, key: PRNGKey) -> Nothing:
        """Prepare nothing: the graph follows from the grid, and is a constant of the program."""
        del graph, key
        return ()

    def mask(self, parameters: Float[JaxArray, "..."], plan: Nothing) -> PowerSeriesMask:
        """Return M_alpha by repeated products with W."""
        del plan
        return PowerSeriesMask(grid_graph(self.cells), jnp.convolve(parameters, parameters))


@dataclass(frozen=True)
class Walked(AbstractSeries[Walks]):
    """The same with Phi estimated by graph random features of walks that are drawn once.

    One set of walks serves queries and keys, as in the paper's algorithm 1.

    Attributes:
      num_walkers: per cell.
      halting: probability to stop before each hop.
      importance: weigh every walk by its edges' weights over its probability; without, features are
        counts of visits (the ad-hoc ablation, Eq. 21).
    """

    num_walkers: int
    halting: float
    importance: bool

    def plan(self, graph: SparseRows, key: PRNGKey) -> Walks:
        """Draw a head's walks; unused entries are cut off where no row can need them."""
        if not self.importance:
            graph = transition_graph(graph, self.halting)
        walks = _draw_walks(graph, key, self.num_walkers, self.num_hops, self.halting)
        most = min(walks.nodes.shape[1], graph.num_rows)
        # The order of the entries, which numbers them row by row, does not outlive the cut.
        nodes, loads = walks.nodes[:, :most], walks.loads[:, :most]
        return dataclasses.replace(walks, nodes=nodes, loads=loads, incoming=None)

    def mask(self, parameters: Float[JaxArray, "..."], plan: Walks) -> WalkMask:
        """Return Phi Phi^T of the head's walks."""
        rows = walk_rows(plan, parameters)
        return WalkMask(rows, rows)


@dataclass(frozen=True)
class Free(AbstractGridMask[Nothing]):
    """M = F F^T with N learned numbers for every one of N cells (the paper's ablation)."""

    def initial_raw(self, key: PRNGKey) -> Float[JaxArray, "..."]:
        """Return raw F: nearly constant, so that all cells start nearly alike."""
        num_cells = math.prod(self.cells)
        return _FREE_SPREAD * jax.random.normal(key, (num_cells, num_cells))

    def plan(self, graph: SparseRows, key: PRNGKey) -> Nothing:
        """Prepare nothing."""
        del graph, key
        return ()

    def mask(self, parameters: Float[JaxArray, "..."], plan: Nothing) -> LowRankMask:
        """Return F F^T."""
        del plan
        return LowRankMask(parameters, parameters)


class HeadMasks(nnx.Module, Generic[Plan]):
    """The masks of all heads of a layer, each with the class token before the grid's cells."""

    def __init__(self, learned: AbstractGridMask[Plan], num_heads: int, *, rngs: nnx.Rngs):
        self.learned = learned
        # From a stream of their own: models without masks start with the same weights.
        keys = jax.random.split(rngs.masks(), num_heads)
        self.parameters = nnx.Param(jax.vmap(learned.initial_raw)(keys))
        graph = grid_graph(learned.cells)
        drawn = [learned.plan(graph, key) for key in jax.random.split(rngs.masks(), num_heads)]
        self.frozen = Frozen(jax.tree.map(lambda *of_heads: jnp.stack(of_heads), *drawn))

    def map(self, function: Callable[..., JaxArray], *arrays: Float[JaxArray, "a *_"]) -> JaxArray:
        """Return function(mask, *arrays) of every head; the first axis is that of the heads."""

        def of_head(parameters: JaxArray, plan: Plan, *arrays: JaxArray) -> JaxArray:
            mask = self.learned.mask(positive(parameters), plan)
            return function(ClassTokenMask(mask), *arrays)

        return jax.vmap(of_head)(self.parameters[...], self.frozen.get_value(), *arrays)

    def dense(self) -> Float[JaxArray, "a t t"]:
        """Return every head's mask as a matrix."""
        return self.map(lambda mask: mask.dense())


@functools.cache
def grid_graph(cells: tuple[int, int]) -> SparseRows:
    """Return the graph of a grid in row-major order, W_ij = A_ij / sqrt(d_i d_j)."""
    return matrix_graph(symmetric_weights(grid(*cells)))


@functools.partial(jax.jit, static_argnums=(2, 3, 4))
def _draw_walks(
    graph: SparseRows, key: PRNGKey, num_walkers: int, num_hops: int, halting: float
) -> Walks:
    return sample_walks(graph, num_walkers, num_hops, key, halting=halting)
