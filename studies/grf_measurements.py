"""What the study of the GRF estimator measures; every function returns rows of a table.

Truth is the dense power series in float64, cut at the longest walk as the estimator is, so that no
difference is due to truncation. Kernels are estimated as Phi^ Phi^T with one walk set, diagonal
included, unless a row says otherwise.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial import KDTree

from hdvpd.attention.couplings import Coupling
from hdvpd.attention.graphs import transition_graph
from hdvpd.attention.linear import linear_attention
from hdvpd.attention.sampled_walks import sample_walks
from hdvpd.basics.types import Array, Float, JaxArray, PRNGKey
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks, merged
from studies.attention.dense import softmax_attention
from studies.attention.graphs import edge_graph, graph_matrix, matrix_graph, symmetric_weights
from studies.attention.power_series import exponential, power_series
from studies.attention.symmetric import symmetric_walk_attention
from studies.costs import fastest
from studies.outputs import Row

COUPLINGS: tuple[Coupling, ...] = get_args(Coupling)
AD_HOC = "counts without importance weights"

Matrix = Float[np.ndarray, "t t"]


# Graphs -------------------------------------------------------------------------------------------


def grid(height: int, width: int) -> Matrix:
    """Return the adjacency of a grid with four neighbours inside."""
    row, column = np.divmod(np.arange(height * width), width)
    steps = np.abs(row[:, None] - row[None]) + np.abs(column[:, None] - column[None])
    return (steps == 1).astype(np.float64)


def circulant(num_nodes: int, degree: int) -> Matrix:
    """Return the adjacency of a ring in which each node knows its degree / 2 next on both sides."""
    distance = np.abs(np.arange(num_nodes)[:, None] - np.arange(num_nodes)[None])
    distance = np.minimum(distance, num_nodes - distance)
    return ((distance > 0) & (distance <= degree // 2)).astype(np.float64)


def erdos_renyi(num_nodes: int, probability: float, rng: np.random.Generator) -> Matrix:
    """Return the adjacency of a random graph in which each edge exists with this probability."""
    upper = np.triu(rng.random((num_nodes, num_nodes)) < probability, k=1)
    return (upper | upper.T).astype(np.float64)


def benchmark_graphs(seed: int) -> dict[str, Matrix]:
    """Return the adjacencies of the four graphs on which couplings are compared, by name."""
    rng = np.random.default_rng(seed)
    return {
        "grid 8x8": grid(8, 8),
        "circulant 100, d = 10": circulant(100, 10),
        "Erdos-Renyi 20, p = 0.2": erdos_renyi(20, 0.2, rng),
        "Erdos-Renyi 100, p = 0.5": erdos_renyi(100, 0.5, rng),
    }


def surface_graph(num_points: int, num_neighbors: int, seed: int) -> SparseRows:
    """Return the directed graph of nearest neighbours of points on a square, weights 1/k."""
    points = np.random.default_rng(seed).random((num_points, 2))
    found = np.asarray(KDTree(points).query(points, num_neighbors + 1)[1])[:, 1:]
    sources = np.repeat(np.arange(num_points), num_neighbors)
    return edge_graph(num_points, sources, found.ravel(), np.full(found.size, 1 / num_neighbors))


def disjoint_copies(graph: SparseRows, number: int) -> SparseRows:
    """Return several copies of a graph side by side."""
    num_nodes = graph.num_rows
    offsets = num_nodes * np.repeat(np.arange(number, dtype=np.int32), num_nodes)
    return SparseRows(
        columns=jnp.tile(graph.columns, (number, 1)) + offsets[:, None],
        values=jnp.tile(graph.values, (number, 1)),
        num_entries=jnp.tile(graph.num_entries, number),
        kernels=graph.kernels,
    )


# Estimates ----------------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnames=("num_walkers", "num_hops", "halting", "coupling"))
def sampled_walks(
    graph: SparseRows,
    key: PRNGKey,
    *,
    num_walkers: int,
    num_hops: int,
    halting: float,
    coupling: Coupling,
) -> Walks:
    """Return walks in their listed form."""
    listed = dataclasses.replace(graph, kernels="xla")
    return sample_walks(listed, num_walkers, num_hops, key, halting=halting, coupling=coupling)


@functools.partial(
    jax.jit, static_argnames=("num_runs", "num_walkers", "num_hops", "halting", "coupling")
)
def sampled_features(
    graph: SparseRows,
    modulation: Float[Array, "l"],
    key: PRNGKey,
    num_runs: int,
    *,
    num_walkers: int,
    num_hops: int,
    halting: float,
    coupling: Coupling,
) -> Float[JaxArray, "s t t"]:
    """Return independent estimates of Phi, all walked at once on copies of the graph."""
    num_nodes = graph.num_rows
    walks = sampled_walks(
        disjoint_copies(graph, num_runs),
        key,
        num_walkers=num_walkers,
        num_hops=num_hops,
        halting=halting,
        coupling=coupling,
    )
    features = walks.loads @ jnp.asarray(modulation, jnp.float32)
    rows = jnp.arange(num_runs * num_nodes)[:, None]
    dense = jnp.zeros((num_runs * num_nodes, num_nodes))
    dense = dense.at[jnp.broadcast_to(rows, features.shape), walks.nodes % num_nodes].add(features)
    return dense.reshape(num_runs, num_nodes, num_nodes)


def _float64(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def relative_error(estimate: Array, truth: Array) -> np.ndarray:
    """Return the squared relative Frobenius error, sum (K - K^)^2 / sum K^2, per leading axis."""
    difference, truth = _float64(estimate) - truth, _float64(truth)
    return np.asarray((difference**2).sum((-2, -1)) / (truth**2).sum())


def standard_scores(samples: Array, truth: Array) -> np.ndarray:
    """Return (mean - truth) / standard error over axis 0; 0 where all samples equal the truth."""
    samples, truth = _float64(samples), _float64(truth)
    error = samples.std(0, ddof=1) / math.sqrt(len(samples))
    difference = samples.mean(0) - truth
    # Entries without variance, such as unreachable ones, must agree up to rounding.
    exact = error <= 1e-6 * np.abs(truth)
    scores = np.where(np.abs(difference) <= 1e-5 * np.abs(truth), 0.0, np.inf)
    return np.divide(difference, error, out=scores, where=~exact)


# Measurements -------------------------------------------------------------------------------------


def unbiasedness(seed: int, *, num_runs: int = 4000) -> list[Row]:
    """Measure the bias of features, of the mask off its diagonal and on it.

    A random graph of 12 nodes with unequal weights, exp(W), 4 walkers, p = 0.3, at most 4 hops.
    """
    rng = np.random.default_rng(seed)
    adjacency = np.maximum(erdos_renyi(12, 0.3, rng), circulant(12, 2))
    weights = np.triu(rng.uniform(0.5, 1.5, adjacency.shape), k=1)
    matrix = symmetric_weights(adjacency * (weights + weights.T))
    modulation = exponential(5).modulation
    phi = power_series(matrix, modulation)
    mask, off_diagonal = phi @ phi.T, ~np.eye(12, dtype=bool)
    rows: list[Row] = []
    for coupling, key in zip(COUPLINGS, jax.random.split(jax.random.key(seed), 4), strict=True):
        one, two = (
            _float64(
                sampled_features(
                    matrix_graph(matrix),
                    modulation,
                    set_key,
                    num_runs,
                    num_walkers=4,
                    num_hops=4,
                    halting=0.3,
                    coupling=coupling,
                )
            )
            for set_key in jax.random.split(key)
        )
        gram = one @ one.swapaxes(1, 2)
        bias = (np.trace(gram, axis1=1, axis2=2) - np.trace(mask)) / 12
        crossed = (np.einsum("sij,sij->s", one, two) - np.trace(mask)) / 12
        rows.append(
            {
                "coupling": coupling,
                "runs": num_runs,
                "max |z| of 144 features": np.abs(standard_scores(one, phi)).max(),
                "max |z| of 132 mask entries": np.abs(
                    standard_scores(gram[:, off_diagonal], mask[off_diagonal])
                ).max(),
                "diagonal": np.trace(mask) / 12,
                "bias, one set": bias.mean(),
                "sum of variances": one.var(0, ddof=1).sum() / 12,
                "bias, two sets": crossed.mean(),
                "its standard error": crossed.std(ddof=1) / math.sqrt(num_runs),
            }
        )
    return rows


def exactness(seed: int) -> list[Row]:
    """Measure when repelling walks are the power series itself: 200 points on a plane, 3 hops."""
    directed = surface_graph(200, 3, seed)
    adjacency = graph_matrix(directed) > 0
    symmetric = matrix_graph(symmetric_weights((adjacency | adjacency.T).astype(np.float64)))
    weights = np.random.default_rng(seed).random((200, 3)).astype(np.float32)
    unequal = dataclasses.replace(directed, values=weights)
    cases: tuple[tuple[str, SparseRows, Coupling, int], ...] = (
        ("directed", directed, "repelling", 27),
        ("directed", directed, "repelling", 54),
        ("directed", directed, "repelling", 26),
        ("directed", directed, "repelling", 9),
        ("directed", directed, "iid", 27),
        ("symmetrised", symmetric, "repelling", 27),
        ("directed, random weights", unequal, "repelling", 27),
    )
    rows: list[Row] = []
    for name, graph, coupling, num_walkers in cases:
        features = sampled_features(
            graph,
            np.ones(4),
            jax.random.key(seed),
            4,
            num_walkers=num_walkers,
            num_hops=3,
            halting=0.0,
            coupling=coupling,
        )
        truth = power_series(graph_matrix(graph), np.ones(4))
        errors = np.sqrt(relative_error(features, truth))
        degrees = np.asarray(graph.num_entries)
        rows.append(
            {
                "graph": name,
                "out-degrees": f"{degrees.min()}-{degrees.max()}",
                "coupling": coupling,
                "walkers": num_walkers,
                "relative error (not squared)": errors.mean(),
                "exact": bool(errors.max() < 1e-6),
            }
        )
    return rows


def coupling_errors(
    seed: int,
    *,
    walkers: tuple[int, ...] = (2, 4, 8, 16, 32, 64),
    couplings: tuple[Coupling, ...] = COUPLINGS,
    num_runs: int = 16,
) -> list[Row]:
    """Measure the error of exp(0.25 W) per coupling and number of walkers, p = 0.5, at most 8 hops.

    Also of the ad-hoc estimator, which counts visits without importance weights.
    """
    adjacencies = benchmark_graphs(seed)
    modulation = exponential(9, time=0.25).modulation
    largest = max(len(adjacency) for adjacency in adjacencies.values())
    width = max(int(adjacency.sum(1).max()) for adjacency in adjacencies.values())
    weights = {name: symmetric_weights(adjacency) for name, adjacency in adjacencies.items()}
    padded = [
        matrix_graph(np.pad(matrix, (0, largest - len(matrix))), width)
        for matrix in weights.values()
    ]
    counting = [transition_graph(graph, 0.5) for graph in padded]
    estimators: list[tuple[str, list[SparseRows], Coupling]] = [
        (coupling, padded, coupling) for coupling in couplings
    ]
    estimators.append((AD_HOC, counting, "iid"))
    rows: list[Row] = []
    for estimator, graphs, coupling in estimators:
        for num_walkers in walkers:
            for index, (name, matrix) in enumerate(weights.items()):
                features = sampled_features(
                    graphs[index],
                    modulation,
                    jax.random.fold_in(jax.random.key(seed), num_walkers * 8 + index),
                    num_runs,
                    num_walkers=num_walkers,
                    num_hops=8,
                    halting=0.5,
                    coupling=coupling,
                )
                phi = power_series(matrix, modulation)
                estimate = _float64(features)[:, : len(phi), : len(phi)]
                errors = relative_error(estimate @ estimate.swapaxes(1, 2), phi @ phi.T)
                rows.append(
                    {
                        "graph": name,
                        "estimator": estimator,
                        "walkers": num_walkers,
                        "squared relative error": errors.mean(),
                        "standard error": errors.std(ddof=1) / math.sqrt(num_runs),
                    }
                )
    return rows


def concentration(
    seed: int, *, walkers: tuple[int, ...] = (4, 16, 64), num_runs: int = 1024
) -> list[Row]:
    """Measure how often a mask entry off the diagonal is far from its mean, against the bound.

    P(|phi_i . phi_j - M_ij| > t) <= 2 exp(-t^2 n^3 / (2 (2n-1)^2 c^4)) with
    c = sum_k |f_k| (max W_ij d_i / (1-p))^k: ring of 16 nodes with 4 neighbours each, exp(W),
    p = 0.1, at most 8 hops. The tail is that of the pair with the heaviest one.
    """
    matrix = symmetric_weights(circulant(16, 4))
    modulation = exponential(9).modulation
    phi = power_series(matrix, modulation)
    largest_factor = (matrix * 4).max() / 0.9
    norm = float(modulation @ largest_factor ** np.arange(9))
    off_diagonal = ~np.eye(16, dtype=bool)
    rows: list[Row] = []
    for num_walkers in walkers:
        features = _float64(
            sampled_features(
                matrix_graph(matrix),
                modulation,
                jax.random.key(seed),
                num_runs,
                num_walkers=num_walkers,
                num_hops=8,
                halting=0.1,
                coupling="iid",
            )
        )
        gram = features @ features.swapaxes(1, 2)
        deviation = np.abs(gram - phi @ phi.T)[:, off_diagonal]
        for distance in np.linspace(0.05, 4.0, 80):
            exponent = distance**2 * num_walkers**3 / (2 * (2 * num_walkers - 1) ** 2 * norm**4)
            rows.append(
                {
                    "walkers": num_walkers,
                    "t": distance,
                    "tail": (deviation > distance).mean(0).max(),
                    "bound": min(1.0, 2 * math.exp(-exponent)),
                    "largest row sum of a feature": features.sum(2).max(),
                    "c": norm,
                }
            )
    return rows


def sparsity(
    seed: int,
    *,
    cases: tuple[tuple[float, int], ...] = ((0.1, 4), (0.25, 4), (0.5, 4), (0.5, 16)),
    num_runs: int = 64,
    probability: float = 0.9,
) -> list[Row]:
    """Measure visited nodes on the 8x8 grid against the bound of arXiv 2410.03462.

    With probability at least 1 - delta all n walks of a node visit at most
    b = ceil(ln(1 - (1-delta)^(1/n)) / ln(1-p)) nodes each, the start included, which leaves at most
    1 + n (b - 1) nonzeros. (Unrounded, as printed, b is too small: see docs/equations.md.)
    """
    graph = matrix_graph(symmetric_weights(grid(8, 8)))
    many = disjoint_copies(graph, num_runs)
    rows: list[Row] = []
    for halting, num_walkers in cases:
        num_hops = 12 if halting == 0.5 else 48
        walks = sampled_walks(
            many,
            jax.random.key(seed),
            num_walkers=num_walkers,
            num_hops=num_hops,
            halting=halting,
            coupling="iid",
        )
        moved = np.asarray(walks.loads[:, 1:].sum(-1) > 0)
        visits = 1 + moved.reshape(len(moved), num_hops, num_walkers).sum(1)
        printed = math.log(1 - probability ** (1 / num_walkers)) / math.log(1 - halting)
        bound = math.ceil(printed)
        nonzeros = distinct_nodes(np.asarray(walks.nodes))
        rows.append(
            {
                "p": halting,
                "walkers": num_walkers,
                "b": bound,
                "all walks within b": (visits.max(1) <= bound).mean(),
                "promised": probability,
                "within printed b": (visits.max(1) <= printed).mean(),
                "mean nonzeros": nonzeros.mean(),
                "nonzeros within bound": (nonzeros <= 1 + num_walkers * (bound - 1)).mean(),
                "bound of nonzeros": 1 + num_walkers * (bound - 1),
            }
        )
    return rows


def distinct_nodes(nodes: np.ndarray) -> np.ndarray:
    """Count the distinct nodes of every row of listed walks."""
    return 1 + (np.diff(np.sort(nodes, axis=1), axis=1) > 0).sum(1)


def flop_counts(seed: int, *, exponents: Sequence[int] = range(1, 17)) -> list[Row]:
    """Count FLOP against tokens on a 1-D grid as in Fig. 3 of arXiv 2410.03462.

    n = 4, p = 0.5, d = m = 8, at most 16 hops, nonzeros counted from sampled walks. The counting
    rule: a multiply-add is 2 FLOP and the normaliser is not counted, so softmax attention is
    4 N^2 d, linear attention 4 N m d and symmetric GRF-masked attention 4 nnz m d.
    """
    width = 8
    rows: list[Row] = []
    for exponent in exponents:
        tokens = 2**exponent
        nonzeros = int(path_walks(tokens, seed).num_entries.sum())
        rows.append(
            {
                "tokens": tokens,
                "softmax": 4 * tokens**2 * width,
                "linear": 4 * tokens * width**2,
                "grf": 4 * nonzeros * width**2,
                "nonzeros per token": nonzeros / tokens,
            }
        )
    return rows


def path_walks(num_tokens: int, seed: int) -> Walks:
    """Return the walks of Fig. 3 of arXiv 2410.03462 on a 1-D grid, merged."""
    node = np.arange(num_tokens - 1)
    sources, targets = np.concatenate([node, node + 1]), np.concatenate([node + 1, node])
    degrees = np.bincount(sources, minlength=num_tokens)
    weights = 1 / np.sqrt(degrees[sources] * degrees[targets])
    graph = edge_graph(num_tokens, sources, targets, weights)
    walk = functools.partial(sample_walks, graph, 4, 16, halting=0.5)
    return merged(jax.jit(walk)(jax.random.key(seed)))


def attention_seconds(seed: int, rows: Sequence[Row], *, largest_softmax: int = 4096) -> list[Row]:
    """Add to the rows of `flop_counts` the time of each attention, NaN where softmax is too large.

    Best of five calls, forward, one head, walks given; processor time over all threads, which a
    busy machine hardly changes.
    """
    timed: list[Row] = []
    for row in rows:
        tokens = row["tokens"]
        rng = np.random.default_rng(seed)
        query, key, value = rng.random((3, tokens, 8), np.float32)
        modulation = exponential(17).modulation.astype(np.float32)
        walks = path_walks(tokens, seed)
        calls: dict[str, Callable[[], Any]] = {
            "linear": functools.partial(
                jax.jit(linear_attention),
                *(x[:, None] for x in (query, key, value)), np.ones(tokens, bool),
            ),
            "grf": functools.partial(
                jax.jit(symmetric_walk_attention), query, key, value, modulation, walks
            ),
        }  # fmt: skip
        if tokens <= largest_softmax:
            calls["softmax"] = functools.partial(jax.jit(softmax_attention), query, key, value)
        seconds = dict(zip(calls, fastest(list(calls.values()), 5), strict=True))
        columns = {
            f"{name} seconds": seconds[name].cpu if name in seconds else math.nan
            for name in ("softmax", "linear", "grf")
        }
        timed.append(row | columns)
    return timed


def nonzeros_against_walkers(seed: int) -> list[Row]:
    """Count visited nodes per token against walkers: path of 64 nodes, p = 0.5, as in Fig. 7."""
    most, num_hops = 256, 16
    walks = sampled_walks(
        disjoint_copies(matrix_graph(symmetric_weights(grid(1, 64))), 8),
        jax.random.key(seed),
        num_walkers=most,
        num_hops=num_hops,
        halting=0.5,
        coupling="iid",
    )
    nodes = np.asarray(walks.nodes)
    start, visited = nodes[:, :1], nodes[:, 1:].reshape(len(nodes), num_hops, most)
    rows: list[Row] = []
    for num_walkers in (2, 4, 8, 16, 32, 64, 128, 256):
        # Independent walkers: the first n of 256 are n walkers.
        some = visited[:, :, :num_walkers].reshape(len(nodes), -1)
        count = distinct_nodes(np.concatenate([start, some], axis=1)).mean()
        rows.append({"walkers": num_walkers, "nonzeros per token": count})
    return rows
