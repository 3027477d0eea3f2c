"""The estimator of general graph random features (arXiv 2310.04859): walks that are sampled.

Walkers choose neighbours uniformly, may stop before every hop, and carry the importance weight of
their path. `hdvpd.kernels.walks` follows every path instead, and merges entries on one node.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.attention.couplings import (
    Coupling,
    antithetic_draws,
    independent_slots,
    repelling_slots,
    uniform,
)
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Bool, Float, Int, JaxArray, PRNGKey, Shaped, pytree
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks, collect_walks

# Pairs of walkers of one token compared at once by the repelling rule (64 MiB of booleans).
_BLOCK_PAIRS = 1 << 26


@pytree
class Walkers:
    """Walkers of one start node, at one hop.

    Attributes:
      nodes: where each stands.
      loads: product over its hops of edge weight / probability of the hop.
      alive: false once it has stopped.
    """

    nodes: Int[JaxArray, "*batch n"]
    loads: Float[JaxArray, "*batch n"]
    alive: Bool[JaxArray, "*batch n"]


def sample_walks(
    graph: SparseRows,
    num_walkers: int,
    num_hops: int,
    key: PRNGKey,
    *,
    halting: float = 0.0,
    coupling: Coupling = "iid",
) -> Walks:
    """Send walkers from every token: rows whose mean over keys is W^0..W^num_hops, for any W.

    A walker on a node without neighbours stops. Tokens are walked in chunks of bounded memory,
    which do not change the result.

    Args:
      graph: any graph; its `kernels` say whether equal nodes are merged, as in `exact_walks`.
      num_walkers: walkers per token. Fewer than a node's neighbours leave some unread in one call.
      num_hops: hops of every walk; with halting the longest walk (i_max), where the series is cut.
      key: random key.
      halting: probability p to stop before each hop, P(l hops or more) = (1 - p)^l; 0 walks all
        hops, 1 none.
      coupling: how the walkers of one token depend on each other.

    Returns:
      1 + num_walkers * num_hops entries per token.

    Raises:
      UserError: there is no walker, a probability outside [0, 1], or an odd number of walkers in
        antithetic pairs.
    """
    _check_sampling(num_walkers, num_hops, halting, coupling)
    graph = jax.tree.map(jnp.asarray, graph)
    num_tokens = graph.num_rows
    starts = jnp.arange(num_tokens, dtype=jnp.int32)
    # All at once: a key per token and hop would cost more than the walks. One number per hop is for
    # the neighbour, another, where walkers may stop, for halting.
    purposes = 2 if halting > 0 else 1
    bits = jax.random.bits(key, (num_tokens, num_hops, purposes, num_walkers), jnp.uint32)
    steps = _walk(graph, starts, bits, halting, coupling)
    # Axes (t l n) to entries, after the one of the token itself.
    visited = jnp.where(steps.alive, steps.nodes, starts[:, None, None]).reshape(num_tokens, -1)
    shares = jnp.where(steps.alive, steps.loads / num_walkers, 0.0).reshape(num_tokens, -1)
    nodes = jnp.concatenate([starts[:, None], visited], axis=1)
    shares = jnp.concatenate([jnp.ones((num_tokens, 1), jnp.float32), shares], axis=1)
    hops = np.repeat(np.arange(num_hops + 1), [1] + [num_walkers] * num_hops)
    return collect_walks(nodes, shares, hops, graph.kernels)


def _check_sampling(num_walkers: int, num_hops: int, halting: float, coupling: Coupling) -> None:
    if num_walkers < 1 or num_hops < 0:
        raise UserError(
            f"num_walkers = {num_walkers}, num_hops = {num_hops}: walks need at least one walker "
            "and no negative number of hops."
        )
    if not 0 <= halting <= 1:
        raise UserError(f"halting = {halting}: a probability lies between 0 and 1.")
    if "antithetic" in coupling and num_walkers % 2:
        raise UserError(
            f"num_walkers = {num_walkers}: antithetic walkers come in pairs; use an even number."
        )


def _walk(
    graph: SparseRows,
    starts: Int[JaxArray, "t"],
    bits: Shaped[JaxArray, "t l _ n"],
    halting: float,
    coupling: Coupling,
) -> Walkers:
    """Return the walkers of every token after each hop, axes (t l n)."""

    def walk(given: tuple[JaxArray, JaxArray]) -> Walkers:
        return _walk_from(graph, *given, halting, coupling)

    # One chunk is not a loop: it compiles faster.
    num_tokens, num_walkers = starts.shape[0], bits.shape[-1]
    block = max(1, _BLOCK_PAIRS // num_walkers**2) if "repelling" in coupling else num_tokens
    if num_tokens <= block:
        return jax.vmap(walk)((starts, bits))
    return jax.lax.map(walk, (starts, bits), batch_size=block)


def _walk_from(
    graph: SparseRows,
    start: Int[JaxArray, ""],
    bits: Shaped[JaxArray, "l _ n"],
    halting: float,
    coupling: Coupling,
) -> Walkers:
    """Return the walkers of one token after each hop, axes (l n)."""

    def hop(walkers: Walkers, bits: Shaped[JaxArray, "_ n"]) -> tuple[Walkers, Walkers]:
        degrees = graph.num_entries[walkers.nodes]
        alive = walkers.alive & (degrees > 0)
        if halting > 0:
            draws = uniform(bits[1])
            draws = antithetic_draws(draws) if "antithetic" in coupling else draws
            alive &= draws >= halting
        if "repelling" in coupling:
            slots = repelling_slots(bits[0], walkers.nodes, alive, degrees)
        else:
            slots = independent_slots(bits[0], degrees)
        walkers = move(graph, walkers, slots, alive, halting)
        return walkers, walkers

    num_walkers = bits.shape[-1]
    first = Walkers(
        nodes=jnp.full((num_walkers,), start),
        loads=jnp.ones((num_walkers,), jnp.float32),
        alive=jnp.ones((num_walkers,), bool),
    )
    return jax.lax.scan(hop, first, bits)[1]


def move(
    graph: SparseRows,
    walkers: Walkers,
    slots: Int[JaxArray, "n"],
    alive: Bool[JaxArray, "n"],
    halting: float,
) -> Walkers:
    """Move the walkers that live to the chosen neighbours: load *= W_uv d_u / (1 - p)."""
    here = walkers.nodes
    odds = graph.num_entries[here] / max(1.0 - halting, np.finfo(np.float32).tiny)
    return Walkers(
        nodes=jnp.where(alive, graph.columns[here, slots], here),
        loads=jnp.where(alive, walkers.loads * graph.values[here, slots] * odds, walkers.loads),
        alive=alive,
    )
