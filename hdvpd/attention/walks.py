"""Walks on a graph: where the walkers of every token are after each hop, with their loads.

`sample_walks` is the estimator of general graph random features (arXiv 2310.04859): walkers choose
neighbours uniformly, may stop before every hop, and carry the importance weight of their path.
`exact_walks` follows every path instead.

On a directed graph in which every token has exactly k out-neighbours of weight 1/k, the block rule
of repelling walks puts exactly k^h (W^l)_ij of k^h walkers on node j after l <= h hops. So 27
repelling walkers over 3 hops on 3-neighbour lists need no random numbers: they are the
1 + 3 + 9 + 27 = 40 prefixes, entry e holding node and hop. Several prefixes often end on one node;
merging them leaves about 12 distinct entries on surfaces.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.array_typing import Array, Bool, Float, Int, JaxArray, PRNGKey, Shaped, pytree
from hdvpd.attention import walks_host
from hdvpd.attention.couplings import (
    Coupling,
    antithetic_draws,
    independent_slots,
    repelling_slots,
    uniform,
)
from hdvpd.attention.graphs import Graph
from hdvpd.errors import UserError
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.host import host_call

# Pairs of walkers of one token compared at once by the repelling rule (64 MiB of booleans).
_BLOCK_PAIRS = 1 << 26


@pytree
class Walks:
    """Sparse rows of walk features before their modulation, one row of e entries per token.

    Row i of sum_l f_l W^l is, in expectation over walks, sum over entries of f . loads at `nodes`.
    Entry 0 is the token itself with load 1 at hop 0, so no row is empty.

    Attributes:
      nodes: token on which an entry's walkers stand.
      loads: importance-weighted share of walkers there after hop l; zero in unused entries.
      num_entries: entries in use per token; the others repeat the token itself with zero load.
      incoming: entries (row * e + column) ordered by node, for the transposed product; empty in
        the unmerged form.
      incoming_offsets: first position in `incoming` of each node, and the end; empty likewise.
    """

    nodes: Int[Array, "*batch t e"]
    loads: Float[Array, "*batch t e l"]
    num_entries: Int[Array, "*batch t"]
    incoming: Int[Array, "*batch a"]
    incoming_offsets: Int[Array, "*batch o"]


def exact_walks(graph: Graph, num_hops: int, kernels: Kernels = "auto") -> Walks:
    """Follow every walk of 0..num_hops hops: the rows are W^0..W^num_hops exactly, for any W.

    Args:
      graph: nodes of one out-degree; others have zero-weight columns.
      num_hops: hops of the longest walk.
      kernels: "host" merges equal nodes (compiled code), "pallas" too (plain JAX); "xla" lists
        every walk by itself.

    Returns:
      sum_l k^l entries per token.
    """
    graph = jax.tree.map(jnp.asarray, graph)
    if use_host_kernels(kernels):
        return _merged_walks(graph, num_hops)
    listed = _listed_walks(graph, num_hops)
    return merge_walks(listed) if kernels == "pallas" else listed


def _listed_walks(graph: Graph, num_hops: int) -> Walks:
    num_tokens = graph.neighbors.shape[0]
    nodes = [jnp.arange(num_tokens, dtype=jnp.int32)[:, None]]
    loads = [jnp.ones((num_tokens, 1), jnp.float32)]
    for _ in range(num_hops):
        here = nodes[-1]
        loads.append((loads[-1][..., None] * graph.weights[here]).reshape(num_tokens, -1))
        nodes.append(graph.neighbors[here].reshape(num_tokens, -1))
    hops = np.repeat(np.arange(num_hops + 1), [level.shape[1] for level in nodes])
    return _list(jnp.concatenate(nodes, axis=1), jnp.concatenate(loads, axis=1), hops, num_hops)


def _merged_walks(graph: Graph, num_hops: int) -> Walks:
    """Return the same rows with equal nodes merged.

    The entries' order by node comes with it, so that the transposed product needs no scatter and
    its result does not depend on the number of threads.
    """
    num_tokens, k = graph.neighbors.shape
    width = sum(k**hop for hop in range(num_hops + 1))
    results = _merged_shapes(num_tokens, width, num_hops)
    call = walks_host.exact_walks
    return Walks(*host_call(call, results, graph.neighbors, graph.weights))


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
    graph: Graph,
    num_walkers: int,
    num_hops: int,
    key: PRNGKey,
    *,
    halting: float = 0.0,
    coupling: Coupling = "iid",
    kernels: Kernels = "auto",
) -> Walks:
    """Send walkers from every token: rows whose mean over keys is W^0..W^num_hops, for any W.

    A walker on a node without neighbours stops. Tokens are walked in chunks of bounded memory,
    which do not change the result.

    Args:
      graph: any graph.
      num_walkers: walkers per token. Fewer than a node's neighbours leave some unread in one call.
      num_hops: hops of every walk; with halting the longest walk (i_max), where the series is cut.
      key: random key.
      halting: probability p to stop before each hop, P(l hops or more) = (1 - p)^l; 0 walks all
        hops, 1 none.
      coupling: how the walkers of one token depend on each other.
      kernels: "host" merges equal nodes (compiled code), "pallas" too (plain JAX); "xla" lists
        every walker's every hop.

    Returns:
      1 + num_walkers * num_hops entries per token.

    Raises:
      UserError: there is no walker, a probability outside [0, 1], or an odd number of walkers in
        antithetic pairs.
    """
    _check_sampling(num_walkers, num_hops, halting, coupling)
    graph = jax.tree.map(jnp.asarray, graph)
    num_tokens = graph.neighbors.shape[0]
    starts = jnp.arange(num_tokens, dtype=jnp.int32)
    # All at once: a key per token and hop would cost more than the walks. One number per hop is for
    # the neighbour, another, where walkers may stop, for halting.
    purposes = 2 if halting > 0 else 1
    bits = jax.random.bits(key, (num_tokens, num_hops, purposes, num_walkers), jnp.uint32)

    def walk(given: tuple[JaxArray, JaxArray]) -> Walkers:
        return _walk_from(graph, *given, halting, coupling)

    # One chunk is not a loop: it compiles faster.
    block = max(1, _BLOCK_PAIRS // num_walkers**2) if "repelling" in coupling else num_tokens
    if num_tokens <= block:
        steps = jax.vmap(walk)((starts, bits))
    else:
        steps = jax.lax.map(walk, (starts, bits), batch_size=block)
    # Axes (t l n) to entries, after the one of the token itself.
    visited = jnp.where(steps.alive, steps.nodes, starts[:, None, None]).reshape(num_tokens, -1)
    shares = jnp.where(steps.alive, steps.loads / num_walkers, 0.0).reshape(num_tokens, -1)
    nodes = jnp.concatenate([starts[:, None], visited], axis=1)
    shares = jnp.concatenate([jnp.ones((num_tokens, 1), jnp.float32), shares], axis=1)
    hops = np.repeat(np.arange(num_hops + 1), [1] + [num_walkers] * num_hops)
    if use_host_kernels(kernels):
        return _merge(nodes, shares, hops, num_hops)
    listed = _list(nodes, shares, hops, num_hops)
    return merge_walks(listed) if kernels == "pallas" else listed


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


def _walk_from(
    graph: Graph,
    start: Int[JaxArray, ""],
    bits: Shaped[JaxArray, "l _ n"],
    halting: float,
    coupling: Coupling,
) -> Walkers:
    """Return the walkers of one token after each hop, axes (l n)."""

    def hop(walkers: Walkers, bits: Shaped[JaxArray, "_ n"]) -> tuple[Walkers, Walkers]:
        degrees = graph.degrees[walkers.nodes]
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
    graph: Graph,
    walkers: Walkers,
    slots: Int[JaxArray, "n"],
    alive: Bool[JaxArray, "n"],
    halting: float,
) -> Walkers:
    """Move the walkers that live to the chosen neighbours: load *= W_uv d_u / (1 - p).

    Args:
      graph: where they walk.
      walkers: before the hop.
      slots: position of each walker's next node in its node's list.
      alive: walkers that have not stopped before this hop.
      halting: p.
    """
    here = walkers.nodes
    odds = graph.degrees[here] / max(1.0 - halting, np.finfo(np.float32).tiny)
    return Walkers(
        nodes=jnp.where(alive, graph.neighbors[here, slots], here),
        loads=jnp.where(alive, walkers.loads * graph.weights[here, slots] * odds, walkers.loads),
        alive=alive,
    )


def _list(
    nodes: Int[JaxArray, "t e"], shares: Float[JaxArray, "t e"], hops: np.ndarray, num_hops: int
) -> Walks:
    """Return one entry per walker and hop, whose hop is `hops`."""
    one_hot = np.eye(num_hops + 1, dtype=np.float32)[hops]
    return Walks(
        nodes=nodes,
        loads=shares[..., None] * one_hot[None],
        num_entries=jnp.full((nodes.shape[0],), len(hops), jnp.int32),
        incoming=jnp.zeros((0,), jnp.int32),
        incoming_offsets=jnp.zeros((0,), jnp.int32),
    )


def _merge(
    nodes: Int[JaxArray, "t e"], shares: Float[JaxArray, "t e"], hops: np.ndarray, num_hops: int
) -> Walks:
    """Return the rows of `_list` with equal nodes merged, and their transpose's order."""
    num_tokens, width = nodes.shape
    results = _merged_shapes(num_tokens, width, num_hops)
    call = walks_host.merge
    return Walks(*host_call(call, results, nodes, shares, hops.astype(np.int32)))


def _merged_shapes(num_tokens: int, width: int, num_hops: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return (
        jax.ShapeDtypeStruct((num_tokens, width), np.int32),
        jax.ShapeDtypeStruct((num_tokens, width, num_hops + 1), np.float32),
        jax.ShapeDtypeStruct((num_tokens,), np.int32),
        jax.ShapeDtypeStruct((num_tokens * width,), np.int32),
        jax.ShapeDtypeStruct((num_tokens + 1,), np.int32),
    )


def merged(walks: Walks) -> Walks:
    """Return walks in their merged form, whatever they are made as."""
    return walks if walks.incoming.shape[0] else merge_walks(walks)


def merge_walks(walks: Walks) -> Walks:
    """Merge entries of one row that stand on one node, in plain JAX, and list the transpose.

    Costs e^2 comparisons per token, fused into reductions: once per graph, for kernels that read
    rows of keys and values per entry.
    """
    num_tokens, width = walks.nodes.shape
    columns = jnp.arange(width, dtype=jnp.int32)
    loaded = (walks.loads != 0).any(-1)
    same = (walks.nodes[:, :, None] == walks.nodes[:, None]) & loaded[:, None]
    first = jnp.argmax(same, axis=2).astype(jnp.int32)
    is_first = loaded & (first == columns[None])
    num_entries = is_first.sum(1, dtype=jnp.int32)
    place = jnp.cumsum(is_first, axis=1, dtype=jnp.int32) - 1
    target = jnp.take_along_axis(place, first, axis=1)
    arrives = target[:, None] == columns[None, :, None]

    def collect(values: Float[Array, "t e"]) -> Float[Array, "t e"]:
        return jnp.where(arrives, values[:, None], 0.0).sum(2)

    source = jnp.where(arrives & is_first[:, None], columns[None, None], 0).max(2)
    used = columns[None] < num_entries[:, None]
    own = jnp.arange(num_tokens, dtype=jnp.int32)[:, None]
    nodes = jnp.where(used, jnp.take_along_axis(walks.nodes, source, axis=1), own)
    loads = jax.vmap(collect, in_axes=2, out_axes=2)(jnp.asarray(walks.loads))
    return Walks(nodes, loads, num_entries, *_incoming(nodes, used))


def _incoming(
    nodes: Int[Array, "t e"], used: Bool[Array, "t e"]
) -> tuple[Int[Array, "a"], Int[Array, "o"]]:
    """Order used entries by node with a stable sort; see `Walks`."""
    num_tokens = nodes.shape[0]
    targets = jnp.where(used, nodes, num_tokens).ravel()
    order = jnp.argsort(targets, stable=True).astype(jnp.int32)
    ends = jnp.arange(num_tokens + 1, dtype=jnp.int32)
    offsets = jnp.searchsorted(targets[order], ends).astype(jnp.int32)
    return jnp.where(jnp.arange(order.shape[0]) < offsets[-1], order, 0), offsets
