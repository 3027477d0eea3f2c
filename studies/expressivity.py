"""`python -m studies expressivity`: which graphs masked attention tells apart.

The pairs below have equal colours under the 1-dimensional Weisfeiler-Lehman test. Three facts about
attention on them, exact and checked on every pair (`exact_rows`):

- Unmasked attention does not read the graph: equal features give equal outputs.
- Attention under a mask that is a power series of W returns equal outputs wherever features depend
  on a node's colour only; constant features come back unchanged. For colours are an equitable
  partition: every power of W has equal sums over each colour in rows of equal colours. So the
  remark of arXiv 2410.03462 (section 5) that masks alone suffice holds only with features that
  say more than colours.
- Marking one node is enough: attention gives back to it the share M_ii / sum_j M_ij of its own
  mark, its return weight, which counts closed walks. Unmasked it is 1/N on every graph.

`sampled_rows` measures how far the difference of return weights rises above the noise of sampled
graph random features.
"""

import functools
import itertools
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from hdvpd.attention.grf import walk_attention
from hdvpd.basics.colors import SERIES
from hdvpd.basics.types import Array, Float, JaxArray, PRNGKey
from hdvpd.kernels.sparse_rows import SparseRows
from studies.attention.dense import linear_attention, masked_linear_attention
from studies.attention.graphs import matrix_graph, symmetric_weights
from studies.attention.power_series import power_series
from studies.grf_measurements import disjoint_copies, sampled_walks
from studies.outputs import (
    Row,
    make_folder,
    mean_and_half_width,
    table,
    transposed,
    write_csv,
    write_settings,
)
from studies.settings import ExpressivitySettings


class Pair(NamedTuple):
    """Two graphs of equal colours that are not isomorphic."""

    name: str
    first: nx.Graph
    second: nx.Graph


def make_pairs() -> tuple[Pair, ...]:
    """Return the pairs; of the last two graphs even return weights are equal."""
    two_triangles = nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))
    two_squares = nx.disjoint_union(nx.cycle_graph(4), nx.cycle_graph(4))
    decalin = nx.cycle_graph(10)
    decalin.add_edge(0, 5)
    bicyclopentyl = nx.disjoint_union(nx.cycle_graph(5), nx.cycle_graph(5))
    bicyclopentyl.add_edge(0, 5)
    skipping_two, skipping_three = (nx.circulant_graph(11, [1, skip]) for skip in (2, 3))
    return (
        Pair("two triangles, hexagon", two_triangles, nx.cycle_graph(6)),
        Pair("two squares, octagon", two_squares, nx.cycle_graph(8)),
        Pair("decalin, bicyclopentyl", decalin, bicyclopentyl),
        Pair("ring of 11 skipping 2, 3", skipping_two, skipping_three),
        Pair("rook's graph, Shrikhande graph", nx.line_graph(nx.complete_bipartite_graph(4, 4)),
             _shrikhande_graph()),
    )  # fmt: skip


def _shrikhande_graph() -> nx.Graph:
    """Return the strongly regular graph of the rook's graph's parameters, on a 4x4 torus."""
    graph = nx.Graph()
    for row in range(4):
        for column in range(4):
            for down, right in ((0, 1), (1, 0), (1, 1)):
                graph.add_edge((row, column), ((row + down) % 4, (column + right) % 4))
    return graph


def main(out: Path, settings: ExpressivitySettings) -> None:
    """Write settings.toml, exact.csv, sampled.csv, summary.csv and separation.png.

    Args:
      out: folder to write to; files of an earlier study are replaced.
      settings: what to measure.

    Raises:
      UserError: `out` cannot be a folder.
    """
    make_folder(out)
    write_settings(out / "settings.toml", settings)
    started = time.monotonic()
    exact, sampled = exact_rows(settings.hops), sampled_rows(settings)
    summary = summarize(sampled)
    for name, rows in (("exact", exact), ("sampled", sampled), ("summary", summary)):
        write_csv(out / f"{name}.csv", rows)
    draw(summary).savefig(out / "separation.png", dpi=130)
    table(transposed(exact), "Largest differences of outputs, exact masks").print()
    print()
    table(summary, "Return weights by sampled graph random features").print()
    print(f"\n{time.monotonic() - started:.0f} s; figure and numbers are in {out}")


# Exact --------------------------------------------------------------------------------------------


def modulation(num_hops: int) -> Float[np.ndarray, "l"]:
    """Return f_l = exp(-0.01 l), with which learning starts: nearly a count of walks."""
    return np.exp(-0.01 * np.arange(num_hops + 1))


def weights_of(graph: nx.Graph) -> Float[np.ndarray, "t t"]:
    """Return W_ij = A_ij / sqrt(d_i d_j)."""
    return symmetric_weights(nx.to_numpy_array(graph))


def exact_mask(graph: nx.Graph, num_hops: int) -> Float[np.ndarray, "t t"]:
    """Return sum_l f_l W^l."""
    return np.asarray(power_series(weights_of(graph), modulation(num_hops)), np.float32)


def colors(graph: nx.Graph) -> list[str]:
    """Return every node's colour when refinement has ended, comparable between graphs."""
    alike = graph.copy()
    nx.set_node_attributes(alike, dict.fromkeys(alike, ""), "start")
    refined = nx.weisfeiler_lehman_subgraph_hashes(alike, node_attr="start", iterations=len(graph))
    return [refined[node][-1] for node in graph]


def color_features(graph: nx.Graph, width: int = 4) -> Float[np.ndarray, "t m"]:
    """Return a positive random vector per node that depends on its colour only."""
    seeds = [int(color, 16) for color in colors(graph)]
    vectors = [np.random.default_rng(seed).random(width) for seed in seeds]
    return np.array(vectors, np.float32) + np.float32(0.1)


def return_weights(mask: Float[Array, "t t"]) -> Float[Array, "t"]:
    """Return the share of its own mark that attention with constant features gives each node."""
    ones = jnp.ones((len(mask), 1))
    return jnp.diagonal(masked_linear_attention(ones, ones, jnp.eye(len(mask)), mask))


def output_difference(first: Float[Array, "t c"], second: Float[Array, "t c"]) -> float:
    """Return how far the outputs are apart as unordered collections: largest entry, rows sorted."""
    ordered = [np.asarray(x)[np.lexsort(np.asarray(x).round(4).T)] for x in (first, second)]
    return float(np.abs(ordered[0] - ordered[1]).max())


def exact_rows(num_hops: int) -> list[Row]:
    """Compare attention's outputs on the two graphs of every pair; exact masks, float32."""
    rows: list[Row] = []
    for pair in make_pairs():
        graphs = (pair.first, pair.second)
        masks = [exact_mask(graph, num_hops) for graph in graphs]
        features = [color_features(graph) for graph in graphs]
        constant = np.ones_like(features[0])
        unmasked = [linear_attention(x, x, x) for x in features]
        masked = [masked_linear_attention(x, x, x, m) for x, m in zip(features, masks, strict=True)]
        unchanged = [masked_linear_attention(constant, constant, constant, m) for m in masks]
        returns = [np.sort(return_weights(mask)) for mask in masks]
        no_mask = [np.sort(return_weights(np.ones_like(mask))) for mask in masks]
        rows.append(
            {
                "pair": pair.name,
                "nodes": len(pair.first),
                "same colours": sorted(colors(pair.first)) == sorted(colors(pair.second)),
                "isomorphic": nx.is_isomorphic(*graphs),
                "unmasked, by colour": output_difference(*unmasked),
                "masked, constant": output_difference(*unchanged),
                "masked, by colour": output_difference(*masked),
                "unmasked, marked": float(np.abs(no_mask[0] - no_mask[1]).max()),
                "masked, marked": float(np.abs(returns[0] - returns[1]).max()),
                "mean return weight": float(returns[0].mean()),
                "of the second": float(returns[1].mean()),
            }
        )
    return rows


# Sampled ------------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("num_runs", "num_walkers", "num_hops", "halting"))
def sampled_return_weights(
    graph: SparseRows,
    key: PRNGKey,
    *,
    num_runs: int,
    num_walkers: int,
    num_hops: int,
    halting: float,
) -> Float[JaxArray, "s t"]:
    """Return independent draws of every node's return weight under GRF-masked attention."""
    num_nodes = graph.num_rows
    walks = sampled_walks(
        disjoint_copies(graph, num_runs),
        key,
        num_walkers=num_walkers,
        num_hops=num_hops,
        halting=halting,
        coupling="iid",
    )
    marks = jnp.tile(jnp.eye(num_nodes), (num_runs, 1))
    ones = jnp.ones((len(marks), 1))
    out = walk_attention(ones, ones, marks, modulation(num_hops), walks)
    return jnp.einsum("stt->st", out.reshape(num_runs, num_nodes, num_nodes))


def sampled_rows(settings: ExpressivitySettings) -> list[Row]:
    """Measure return weights from sampled walks, per pair, number of walkers and seed.

    The separation is the difference of the two graphs' means over the pooled standard deviation of
    a draw, a draw being the mean over all nodes; `right` is the probability that a draw of the
    graph with the larger exact value exceeds one of the other (1/2 says nothing).
    """
    pairs = make_pairs()
    size = max(len(pair.first) for pair in pairs)
    width = max(degree for pair in pairs for _, degree in pair.first.degree)
    rows: list[Row] = []
    for index, pair in enumerate(pairs):
        num_nodes = len(pair.first)
        # Isolated nodes fill up, so that all pairs share one compiled program.
        padded = [
            matrix_graph(np.pad(weights_of(graph), (0, size - num_nodes)), width)
            for graph in (pair.first, pair.second)
        ]
        exact = [float(return_weights(exact_mask(graph, settings.hops)).mean())
                 for graph in (pair.first, pair.second)]  # fmt: skip
        for walkers in (int(word) for word in settings.walkers.split(",")):
            for seed in range(settings.seeds):
                keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), index))
                draws = [
                    np.asarray(
                        sampled_return_weights(
                            graph,
                            key,
                            num_runs=settings.runs,
                            num_walkers=walkers,
                            num_hops=settings.hops,
                            halting=settings.halting,
                        )
                    )[:, :num_nodes].mean(1, dtype=np.float64)
                    for graph, key in zip(padded, keys, strict=True)
                ]
                row = {"pair": pair.name, "walkers": walkers, "seed": seed}
                rows.append(row | compare_draws(*draws, larger_first=exact[0] >= exact[1]))
    return rows


def compare_draws(
    first: Float[np.ndarray, "s"], second: Float[np.ndarray, "s"], *, larger_first: bool
) -> Row:
    """Return means, noise, separation and `right` of two samples; see `sampled_rows`."""
    noise = np.sqrt((first.var(ddof=1) + second.var(ddof=1)) / 2)
    sign = 1 if larger_first else -1
    above = np.sign(sign * (first[:, None] - second[None]))
    return {
        "mean of the first": first.mean(),
        "of the second": second.mean(),
        "noise": noise,
        "separation": sign * (first.mean() - second.mean()) / max(noise, 1e-12),
        "right": 0.5 + above.mean() / 2,
    }


def summarize(rows: list[Row]) -> list[Row]:
    """Return means over seeds with half widths of 95 % intervals."""
    summary: list[Row] = []
    for pair, walkers in dict.fromkeys((row["pair"], row["walkers"]) for row in rows):
        some = [row for row in rows if (row["pair"], row["walkers"]) == (pair, walkers)]
        separation = mean_and_half_width([row["separation"] for row in some])
        right = mean_and_half_width([row["right"] for row in some])
        summary.append(
            {
                "pair": pair,
                "walkers": walkers,
                "separation": separation[0],
                "+-": separation[1],
                "right": right[0],
                "+- of right": right[1],
            }
        )
    return summary


def draw(summary: list[Row]) -> Figure:
    """Draw separation and right answers against walkers, a line per pair."""
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = list(dict.fromkeys(row["pair"] for row in summary))
    for name, color in zip(names, itertools.cycle(SERIES), strict=False):
        some = [row for row in summary if row["pair"] == name]
        walkers = [row["walkers"] for row in some]
        for axes, mean, half_width in (
            (left, "separation", "+-"),
            (right, "right", "+- of right"),
        ):
            axes.errorbar(walkers, [row[mean] for row in some], [row[half_width] for row in some],
                          fmt="o-", color=color, capsize=3, markersize=4, label=name)  # fmt: skip
    ticks = sorted({row["walkers"] for row in summary})
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()
        axes.set_xlabel("walkers per node")
        axes.grid(alpha=0.25)
    left.set(ylabel="difference of return weights / noise of a draw")
    left.set_yscale("symlog", linthresh=1)
    left.legend(fontsize="small", loc="upper left")
    # Room for the legend above the highest curve.
    left.set_ylim(-0.5, 100)
    right.set(ylabel="probability that a draw of each\norders them right", ylim=(0.4, 1.03))
    return figure
