"""Masks over the neighbour graph of all tokens, for the local layer and the global attention.

Positions choose the neighbours and nothing else: no gradient flows through the graph.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from hdvpd.array_typing import Array, Bool, Float, PRNGKey
from hdvpd.attention.graphs import SymmetricPart, neighbor_graph, transition_graph
from hdvpd.attention.grf import walk_attention
from hdvpd.attention.masked import masked_linear_attention
from hdvpd.attention.masks.diffusion import diffusion_mask
from hdvpd.attention.masks.rwgnk import rwgnk_mask
from hdvpd.attention.sampled_walks import sample_walks
from hdvpd.config import ModelConfig
from hdvpd.kernels.neighbors import knn
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks, exact_walks, merged


class GraphMask(NamedTuple):
    """How one mask is learned, prepared and attended under.

    Attributes:
      initial: of the configuration, positive values of the learned parameters at the start.
      prepare: of configuration, graph and random key, what all layers of a call share.
      attend: of configuration, features of queries and keys [t m], values [t c], positive
        parameters and what was prepared, the weighted means of the values.
    """

    initial: Callable[[ModelConfig], Float[np.ndarray, "l"]]
    prepare: Callable[[ModelConfig, SparseRows, PRNGKey], Any]
    attend: Callable[..., Float[Array, "t c"]]


def plan_mask(
    name: str,
    config: ModelConfig,
    positions: Float[Array, "t 3"],
    mask: Bool[Array, "t"],
    key: PRNGKey,
) -> Any:
    """Join every real token to its nearest ones and prepare a mask over that graph.

    Args:
      name: of the mask, in `GRAPH_MASKS`.
      config: of the model.
      positions: of all tokens [m].
      mask: real tokens; others see themselves only.
      key: draws walkers.
    """
    found = knn(
        positions, positions, config.num_neighbors, mask=mask, exclude_self=True, backend=config.knn
    )
    return GRAPH_MASKS[name].prepare(config, neighbor_graph(found, mask, config.kernels), key)


def attend_under(
    name: str,
    config: ModelConfig,
    query: Float[Array, "t a m"],
    key: Float[Array, "t a m"],
    value: Float[Array, "t a w"],
    parameters: Float[Array, "a l"],
    plan: Any,
) -> Float[Array, "t a w"]:
    """Attend with every head under its own mask over one graph.

    Args:
      name: of the mask, in `GRAPH_MASKS`.
      config: of the model.
      query: positive features of the queries.
      key: positive features of the keys.
      value: values.
      parameters: of each head's mask, positive.
      plan: what `plan_mask` returned.

    Returns:
      Weighted means of the values.
    """

    def attend(query: Array, key: Array, value: Array, parameters: Array) -> Float[Array, "t w"]:
        return GRAPH_MASKS[name].attend(config, query, key, value, parameters, plan)

    if query.shape[1] == 1:  # The compiled host code takes one head as it is.
        return attend(query[:, 0], key[:, 0], value[:, 0], parameters[0])[:, None]
    return jax.vmap(attend, in_axes=(1, 1, 1, 0), out_axes=1)(query, key, value, parameters)


def graph_walks(config: ModelConfig, graph: SparseRows, key: PRNGKey) -> Walks:
    """Walk on a graph in the way that the configuration chooses (`model.walks`)."""
    if config.walks == "exact":
        return exact_walks(graph, config.num_hops)
    return sample_walks(
        graph,
        config.num_walkers,
        config.num_hops,
        key,
        halting=config.halting,
        coupling=config.walks,
    )


# Graph random features: f_0..f_h of the one-sided mask, at the public code's initial values.


def _initial_modulation(config: ModelConfig) -> Float[np.ndarray, "l"]:
    return np.exp(-0.01 * np.arange(config.num_hops + 1))


def _attend_grf(config, query, key, value, parameters, plan):
    del config
    return walk_attention(query, key, value, parameters, plan)


# Random-walk graph-node kernel: lambda, with rows of norm one.


def _count_visits(config: ModelConfig, graph: SparseRows, key: PRNGKey) -> Walks:
    return merged(graph_walks(config, transition_graph(graph, config.halting), key))


def _attend_rwgnk(config, query, key, value, parameters, plan):
    del config
    return masked_linear_attention(query, key, value, rwgnk_mask(plan, parameters[0]))


# Diffusion exp(-lambda L D^-1) on the symmetric part of the lists: the time lambda.


def _initial_time(config: ModelConfig) -> Float[np.ndarray, "l"]:
    return np.array([config.max_diffusion_time / 2])


def _symmetric_part(config: ModelConfig, graph: SparseRows, key: PRNGKey) -> SymmetricPart:
    del config, key
    return SymmetricPart(graph)


def _attend_diffusion(config, query, key, value, parameters, plan):
    mask = diffusion_mask(plan, parameters[0], "walk", largest_time=config.max_diffusion_time)
    return masked_linear_attention(query, key, value, mask)


GRAPH_MASKS: dict[str, GraphMask] = {
    "grf": GraphMask(_initial_modulation, graph_walks, _attend_grf),
    "rwgnk": GraphMask(lambda _: np.array([0.5]), _count_visits, _attend_rwgnk),
    "diffusion": GraphMask(_initial_time, _symmetric_part, _attend_diffusion),
}
"""By the names of `model.local` and `model.global_mask`."""


def initial_parameters(name: str, config: ModelConfig) -> Float[np.ndarray, "l"]:
    """Return the raw parameters of a mask at the start; softplus makes them positive."""
    return np.log(np.expm1(GRAPH_MASKS[name].initial(config))).astype(np.float32)
