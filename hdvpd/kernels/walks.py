"""Walks on a graph as sparse rows of loads: where they may be after each hop, and how likely.

The rows have one of two forms. *Listed*, every walk or every walker's hop has an entry of its own.
*Merged*, entries of a row on the same node are one; 3 hops on 3-neighbour lists on a surface then
need about 11 entries instead of 40. Forms of the attention that read rows of keys and values per
entry merge once per graph, and the merged rows come with their transpose's order.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, pytree, static
from hdvpd.kernels import walks_host
from hdvpd.kernels.choice import Kernels, use_gpu_kernels, use_host_kernels
from hdvpd.kernels.host import host_call
from hdvpd.kernels.sparse_rows import SparseRows


@pytree
class Incoming:
    """The used entries of merged rows in the order of their nodes, for the transposed product.

    Attributes:
      entries: row * e + column, grouped by node; 0 after the last.
      offsets: first position in `entries` of each node, and the end.
    """

    entries: Int[Array, "*batch a"]
    offsets: Int[Array, "*batch o"]


@pytree
class Walks:
    """Sparse rows of walk features before their modulation, one row of e entries per token.

    Row i of sum_l f_l W^l is, in expectation over walks, sum over entries of f . loads at `nodes`.
    Entry 0 is the token itself with load 1 at hop 0, so no row is empty.

    Attributes:
      nodes: token on which an entry's walkers stand.
      loads: importance-weighted share of walkers there after hop l; zero in unused entries.
      num_entries: entries in use per token; the others repeat the token itself with zero load.
      incoming: order of the entries by node in merged rows; None in listed ones.
      kernels: form in which everything that follows from these walks is computed, as that of their
        graph.
    """

    nodes: Int[Array, "*batch t e"]
    loads: Float[Array, "*batch t e l"]
    num_entries: Int[Array, "*batch t"]
    incoming: Incoming | None = None
    kernels: Kernels = static(default="auto")


def check_modulation(walks: Walks, modulation: Float[Array, "l"]) -> None:
    """Refuse an f of another length: compiled host code would read beyond its end.

    Raises:
      UserError: f is not as long as the walks.
    """
    hops = walks.loads.shape[-1]
    if modulation.shape[0] != hops:
        raise UserError(
            f"modulation of {modulation.shape[0]} values for walks of up to {hops - 1} hops: give "
            f"f_0..f_{hops - 1}, zeros where f ends."
        )


def exact_walks(graph: SparseRows, num_hops: int) -> Walks:
    """Follow every walk of 0..num_hops hops: the rows are W^0..W^num_hops exactly, for any W.

    On a directed graph in which every token has exactly k out-neighbours of weight 1/k, the block
    rule of repelling walks (arXiv 2310.04854) puts exactly k^h (W^l)_ij of k^h walkers on node j
    after l <= h hops. So 27 repelling walkers over 3 hops on 3-neighbour lists need no random
    numbers: they are the 1 + 3 + 9 + 27 = 40 prefixes, one entry each before they are merged.

    Args:
      graph: nodes of one out-degree; others have zero-weight columns. Its `kernels` are "host",
        which merges equal nodes (compiled code), "pallas", which does so in plain JAX, or "xla",
        which lists every walk by itself.
      num_hops: hops of the longest walk.

    Returns:
      sum_l k^l entries per token.
    """
    graph = jax.tree.map(jnp.asarray, graph)
    if use_host_kernels(graph.kernels):
        num_tokens, k = graph.columns.shape
        width = sum(k**hop for hop in range(num_hops + 1))
        results = _merged_shapes(num_tokens, width, num_hops)
        fields = host_call(walks_host.follow, results, graph.columns, graph.values)
        return _in_order(fields, graph.kernels)
    return collect_walks(*_follow(graph, num_hops), graph.kernels)


def collect_walks(
    nodes: Int[Array, "t e"],
    shares: Float[Array, "t e"],
    hops: Int[np.ndarray, "e"],
    kernels: Kernels = "auto",
) -> Walks:
    """Make rows of entries that each stand for one hop, such as those of sampled walkers.

    Args:
      nodes: where an entry's walkers stand; the token itself where it has no load.
      shares: the entry's load.
      hops: (e,) the hop at which it has that load, 0 to the last one.
      kernels: "host" merges equal nodes (compiled code), "pallas" too (plain JAX), "xla" lists
        every entry.
    """
    num_tokens, width = nodes.shape
    num_hops = int(hops.max())
    if use_host_kernels(kernels):
        results = _merged_shapes(num_tokens, width, num_hops)
        fields = host_call(walks_host.merge, results, nodes, shares, hops.astype(np.int32))
        return _in_order(fields, kernels)
    one_hot = np.eye(num_hops + 1, dtype=np.float32)[hops]
    counts = jnp.full((num_tokens,), width, jnp.int32)
    listed = Walks(nodes, shares[..., None] * one_hot[None], counts, kernels=kernels)
    return merged(listed) if use_gpu_kernels(kernels) else listed


def merged(walks: Walks) -> Walks:
    """Return walks in their merged form; listed ones are merged in plain JAX.

    Costs e^2 comparisons per token, fused into reductions: do so once per graph.
    """
    if walks.incoming is not None:
        return walks
    num_tokens, width = walks.nodes.shape
    columns = jnp.arange(width, dtype=jnp.int32)
    loaded = (walks.loads != 0).any(-1)
    same = (walks.nodes[:, :, None] == walks.nodes[:, None]) & loaded[:, None]
    # Of the loaded entries on one node the first stays. Counting those that stay, from the left,
    # gives each its new column, so that the merged row keeps the order of first visits, as the
    # compiled form does.
    first = jnp.argmax(same, axis=2).astype(jnp.int32)
    is_first = loaded & (first == columns[None])
    num_entries = is_first.sum(1, dtype=jnp.int32)
    place = jnp.cumsum(is_first, axis=1, dtype=jnp.int32) - 1
    target = jnp.take_along_axis(place, first, axis=1)
    # arrives[i, new, old]: a mask and a sum over `old` instead of a scatter, which would add in any
    # order and on one thread. Entries without load arrive somewhere too, and add nothing.
    arrives = target[:, None] == columns[None, :, None]

    def collect(values: Float[Array, "t e"]) -> Float[Array, "t e"]:
        return jnp.where(arrives, values[:, None], 0.0).sum(2)

    source = jnp.where(arrives & is_first[:, None], columns[None, None], 0).max(2)
    used = columns[None] < num_entries[:, None]
    own = jnp.arange(num_tokens, dtype=jnp.int32)[:, None]
    nodes = jnp.where(used, jnp.take_along_axis(walks.nodes, source, axis=1), own)
    loads = jax.vmap(collect, in_axes=2, out_axes=2)(jnp.asarray(walks.loads))
    return Walks(nodes, loads, num_entries, _incoming(nodes, used), walks.kernels)


def _follow(graph: SparseRows, num_hops: int) -> tuple[JaxArray, JaxArray, np.ndarray]:
    """Return node, load and hop of every walk, by hops, then in the order of the neighbours."""
    num_tokens = graph.num_rows
    nodes = [jnp.arange(num_tokens, dtype=jnp.int32)[:, None]]
    loads = [jnp.ones((num_tokens, 1), jnp.float32)]
    for _ in range(num_hops):
        here = nodes[-1]
        loads.append((loads[-1][..., None] * graph.values[here]).reshape(num_tokens, -1))
        nodes.append(graph.columns[here].reshape(num_tokens, -1))
    hops = np.repeat(np.arange(num_hops + 1), [level.shape[1] for level in nodes])
    return jnp.concatenate(nodes, axis=1), jnp.concatenate(loads, axis=1), hops


def _incoming(nodes: Int[Array, "t e"], used: Bool[Array, "t e"]) -> Incoming:
    """Order used entries by node with a stable sort, unused ones behind all nodes."""
    num_tokens = nodes.shape[0]
    targets = jnp.where(used, nodes, num_tokens).ravel()
    order = jnp.argsort(targets, stable=True).astype(jnp.int32)
    ends = jnp.arange(num_tokens + 1, dtype=jnp.int32)
    offsets = jnp.searchsorted(targets[order], ends).astype(jnp.int32)
    return Incoming(jnp.where(jnp.arange(order.shape[0]) < offsets[-1], order, 0), offsets)


def _merged_shapes(num_tokens: int, width: int, num_hops: int) -> tuple[jax.ShapeDtypeStruct, ...]:
    return (
        jax.ShapeDtypeStruct((num_tokens, width), np.int32),
        jax.ShapeDtypeStruct((num_tokens, width, num_hops + 1), np.float32),
        jax.ShapeDtypeStruct((num_tokens,), np.int32),
    )


def _in_order(fields: list[JaxArray], kernels: Kernels) -> Walks:
    """Add the order by nodes to merged rows: a call of its own, left out where no gradient asks."""
    nodes, loads, num_entries = fields
    num_tokens, width = nodes.shape
    results = [jax.ShapeDtypeStruct((n,), np.int32) for n in (num_tokens * width, num_tokens + 1)]
    entries, offsets = host_call(walks_host.order, results, nodes, num_entries)
    return Walks(nodes, loads, num_entries, Incoming(entries, offsets), kernels)
