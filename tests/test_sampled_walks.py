"""Sampled walks: loads, couplings, exactness, bad input (W2-W5, W7, W8 of the estimator)."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
import scipy.stats

from hdvpd.attention.couplings import antithetic_draws, repelling_slots
from hdvpd.attention.sampled_walks import Walkers, move, sample_walks
from hdvpd.basics.errors import UserError
from hdvpd.kernels.walks import collect_walks
from studies import grf_measurements as measure
from studies.attention.dense import feature_matrix
from studies.attention.graphs import edge_graph, graph_matrix, matrix_graph, symmetric_weights
from studies.attention.power_series import power_series

ONES = np.ones(4, np.float32)


def fixed_key():
    return jax.random.key(7)


@functools.partial(jax.jit, static_argnames=("num_walkers", "num_hops", "halting", "coupling"))
def sample(graph, key, num_walkers, *, num_hops=3, halting=0.0, coupling="repelling"):
    listed = dataclasses.replace(graph, kernels="xla")
    return sample_walks(listed, num_walkers, num_hops, key, halting=halting, coupling=coupling)


def surface_graph(num_tokens=40, seed=1, k=3):
    points = np.random.default_rng(seed).uniform(size=(num_tokens, 3)) * [1, 1, 0]
    found = references.nearest(points, points, k, exclude_self=True)[0]
    return scenes.list_graph(found.astype(np.int32))


def relative_error(walks, graph):
    ones = np.ones(walks.loads.shape[-1], np.float32)
    truth = power_series(graph_matrix(graph), np.float64(ones))
    return np.sqrt(measure.relative_error(feature_matrix(walks, ones), truth))


# Loads --------------------------------------------------------------------------------------------

# What `walk_to_loads_list` of google-research/scenic (branch test_648653048, commit 178541322f80,
# scenic/model_lib/layers/random_walk_utils.py) returns for these walks on the 3x3 grid, p = 0.3:
# with its normalised weights, and with weights (1 + (7 u + 3 v) mod 5) / 10.
PUBLIC_LOADS = {
    (0, 1, 4, 3, 4, 7): (
        [1.0, 1.1664236870396087, 1.443075063646016, 2.380456504162468, 2.945051150297993,
         4.858074498290753],
        [1.0, 1.142857142857143, 2.4489795918367347, 4.198250728862974, 7.197001249479386,
         20.562860712798244],
    ),
    (4, 5, 8, 7, 6, 3): (
        [1.0, 1.6495721976846454, 2.886150127292032, 3.3664738728258077, 5.890102300595984,
         6.87035484250165],
        [1.0, 2.285714285714286, 4.8979591836734695, 4.198250728862974, 5.397750937109538,
         3.0844291069197363],
    ),
    (2, 5, 4, 1, 0, 3): (
        [1.0, 1.1664236870396087, 1.443075063646016, 2.380456504162468, 4.164931278633905,
         4.858074498290752],
        [1.0, 1.4285714285714286, 1.8367346938775508, 2.099125364431487, 2.698875468554769,
         3.85553638364967],
    ),
}  # fmt: skip


@pytest.mark.parametrize("weighting", [0, 1])
# The public program computes in float64: in that type ours has its numbers, in float32 close.
@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 1e-15)])
def test_loads_of_fixed_walks_are_the_public_programs(weighting, dtype, rtol):
    with jax.enable_x64(dtype == np.float64):
        check_public_loads(weighting, dtype, rtol)


def check_public_loads(weighting, dtype, rtol):
    adjacency = measure.grid(3, 3)
    source, target = np.mgrid[:9, :9]
    unequal = adjacency * (1 + (7 * source + 3 * target) % 5) / 10
    matrix = (symmetric_weights(adjacency), unequal)[weighting]
    graph = matrix_graph(matrix)
    weights = np.take_along_axis(matrix, graph.columns, axis=1).astype(dtype)
    graph = jax.tree.map(jnp.asarray, dataclasses.replace(graph, values=weights))
    paths = np.array(list(PUBLIC_LOADS))
    walkers = Walkers(
        nodes=jnp.asarray(paths[:, 0], jnp.int32),
        loads=jnp.ones(3, dtype),
        alive=jnp.ones(3, bool),
    )
    loads = [walkers.loads]
    one_hop = jax.jit(move, static_argnums=4)
    for here, there in itertools.pairwise(paths.T):
        slots = np.argmax(np.asarray(graph.columns)[here] == there[:, None], axis=1)
        walkers = one_hop(graph, walkers, jnp.asarray(slots), walkers.alive, 0.3)
        np.testing.assert_array_equal(walkers.nodes, there)
        loads.append(walkers.loads)
    expected = [both[weighting] for both in PUBLIC_LOADS.values()]
    np.testing.assert_allclose(np.stack(loads, axis=1), expected, rtol=rtol)


def test_walkers_that_stopped_stay_and_keep_their_load():
    graph = jax.tree.map(jnp.asarray, matrix_graph(measure.grid(1, 3)))
    before = Walkers(
        nodes=jnp.array([0, 1]), loads=jnp.array([2.0, 3.0]), alive=jnp.array([True, True])
    )
    after = move(graph, before, jnp.array([0, 1]), jnp.array([True, False]), 0.5)
    np.testing.assert_array_equal(after.nodes, [1, 1])
    np.testing.assert_array_equal(after.loads, [4.0, 3.0])
    np.testing.assert_array_equal(after.alive, [True, False])


# Couplings ----------------------------------------------------------------------------------------


def repelling_law(num_walkers, degree):
    """Return the probability of every tuple of slots under the rule of blocks, in float64."""
    if num_walkers <= degree:
        cells = num_walkers * degree
        # The tuple is constant between multiples of 1 / cells: middles stand for all u.
        outcomes = [
            tuple(int(((j / num_walkers + (c + 0.5) / cells) % 1) * degree)
                  for j in range(num_walkers))
            for c in range(cells)
        ]  # fmt: skip
    else:
        sizes = [degree] * (num_walkers // degree) + [num_walkers % degree]
        shifts = itertools.product(range(degree), repeat=len(sizes))
        outcomes = [
            tuple((j + shift) % degree for size, shift in zip(sizes, drawn, strict=True)
                  for j in range(size))
            for drawn in shifts
        ]  # fmt: skip
    return {x: outcomes.count(x) / len(outcomes) for x in set(outcomes)}


def test_repelling_slots_follow_the_rule_exactly():
    pairs = [(2, 3), (3, 3), (3, 5), (4, 4), (5, 3), (7, 3), (6, 3), (1, 4)]
    num_draws = 4000
    # Two groups at a time: the second one's walkers are interleaved and must not be counted.
    nodes = np.tile([5, 9], 7)
    alive = np.array([np.repeat(np.arange(7) < m, 2) for m, _ in pairs])
    degrees = np.array([np.full(14, d) for _, d in pairs])
    bits = jax.random.bits(fixed_key(), (len(pairs), num_draws, 14))
    draw = jax.vmap(repelling_slots, (0, None, None, None))
    slots = jax.jit(jax.vmap(draw, (0, None, 0, 0)))(bits, jnp.asarray(nodes), alive, degrees)
    for (m, d), drawn in zip(pairs, np.asarray(slots), strict=True):
        law = repelling_law(m, d)
        for group in (drawn[:, 0::2][:, :m], drawn[:, 1::2][:, :m]):
            counts = dict.fromkeys(law, 0)
            for outcome in group.tolist():
                counts[tuple(outcome)] += 1  # a KeyError is an impossible outcome
            expected = [num_draws * probability for probability in law.values()]
            assert scipy.stats.chisquare(list(counts.values()), expected).pvalue > 1e-4
            if m <= d:
                assert all(len(set(row)) == m for row in group.tolist())
            else:
                block = np.sort(group[:, : m // d * d].reshape(num_draws, -1, d), axis=2)
                assert (block == np.arange(d)).all()
            for walker in range(m):
                uniform = np.bincount(group[:, walker], minlength=d)
                assert scipy.stats.chisquare(uniform).pvalue > 1e-4
        # Groups are independent of each other.
        if m > 1:
            joint = np.histogram2d(drawn[:, 0], drawn[:, 1], bins=d)[0]
            assert scipy.stats.chi2_contingency(joint).pvalue > 1e-4


def test_antithetic_pairs_never_stop_together_up_to_one_half():
    uniform = jax.random.uniform(fixed_key(), (4000, 6))
    draws = np.asarray(jax.vmap(antithetic_draws)(uniform))
    first, second = draws[:, :3], draws[:, 3:]
    for halting in (0.1, 0.3, 0.5):
        assert not ((first < halting) & (second < halting)).any()
        assert (second < halting).mean() == pytest.approx(halting, abs=4 * 0.5 / np.sqrt(12000))
    together = ((first < 0.6) & (second < 0.6)).mean()
    assert together == pytest.approx(0.2, abs=4 * 0.4 / np.sqrt(12000))


def test_walk_lengths_are_geometric_and_antithetic_pairs_differ():
    graph = measure.disjoint_copies(matrix_graph(measure.circulant(10, 4)), 100)
    walks = sample(graph, fixed_key(), 8, num_hops=12, halting=0.5, coupling="antithetic")
    moved = np.asarray(walks.loads[:, 1:].sum(-1) > 0).reshape(1000, 12, 8)
    lengths = moved.sum(1)
    for hop in range(1, 6):
        assert (lengths >= hop).mean() == pytest.approx(0.5**hop, abs=0.02)
    assert not ((lengths[:, :4] == lengths[:, 4:]) & (lengths[:, :4] < 12)).any()


def test_twenty_seven_repelling_walkers_are_exact_on_three_neighbours():
    graph = surface_graph()
    assert relative_error(sample(graph, fixed_key(), 27), graph) < 1e-6


@pytest.mark.parametrize(("k", "num_hops", "num_walkers"), [(3, 3, 54), (2, 4, 16), (4, 2, 16)])
def test_multiples_of_all_paths_are_exact(k, num_hops, num_walkers):
    graph = surface_graph(k=k)
    walks = sample(graph, fixed_key(), num_walkers, num_hops=num_hops)
    assert relative_error(walks, graph) < 1e-6


@pytest.mark.parametrize("num_walkers", [9, 26])
def test_other_numbers_of_walkers_are_not_exact(num_walkers):
    graph = surface_graph()
    assert 5e-3 < relative_error(sample(graph, fixed_key(), num_walkers), graph) < 2e-1


def test_exactness_needs_equal_weights_and_equal_degrees():
    graph = surface_graph()
    weights = np.random.default_rng(0).random(graph.values.shape).astype(np.float32)
    unequal = dataclasses.replace(graph, values=weights)
    adjacency = graph_matrix(graph) > 0
    symmetric = matrix_graph(symmetric_weights(np.float64(adjacency | adjacency.T)))
    assert 5e-3 < relative_error(sample(unequal, fixed_key(), 27), unequal) < 2e-1
    assert 1e-2 < relative_error(sample(symmetric, fixed_key(), 27), symmetric) < 5e-1


# Bias ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bias():
    return measure.unbiasedness(3, num_runs=3000)


def test_features_and_mask_are_unbiased_off_the_diagonal(bias):
    assert [row["coupling"] for row in bias] == list(measure.COUPLINGS)
    for row in bias:
        # Of 144 normal numbers one in a hundred times one is beyond 4.
        assert row["max |z| of 144 features"] < 4.2
        assert row["max |z| of 132 mask entries"] < 4.2


def test_one_walk_set_biases_the_diagonal_by_the_features_variance_and_two_do_not(bias):
    for row in bias:
        error = row["its standard error"]
        assert row["bias, one set"] > 10 * error
        assert row["bias, one set"] == pytest.approx(row["sum of variances"], abs=6 * error)
        assert abs(row["bias, two sets"]) < 4 * error
    bias_of = {row["coupling"]: row["bias, one set"] for row in bias}
    assert bias_of["repelling-antithetic"] < bias_of["repelling"] < bias_of["iid"]


# Kernels, shapes and edge cases -------------------------------------------------------------------


def odd_graph():
    """0 isolated, 1 with a loop and a double edge to 2, 2 to 3 and back, 4 only points at 0."""
    edges = [(1, 1, 0.3), (1, 2, 0.4), (1, 2, 0.2), (2, 3, 0.9), (3, 2, 0.5), (4, 0, 0.7)]
    sources, targets, weights = (np.array(x) for x in zip(*edges, strict=True))
    return edge_graph(5, sources, targets, weights)


@pytest.mark.parametrize("coupling", measure.COUPLINGS)
def test_isolated_nodes_loops_and_double_edges(coupling):
    graph = odd_graph()
    samples = measure.sampled_features(
        graph, ONES, fixed_key(), 2000, num_walkers=4, num_hops=3, halting=0.3,
        coupling=coupling,
    )  # fmt: skip
    truth = power_series(graph_matrix(graph), np.ones(4))
    np.testing.assert_array_equal(np.asarray(samples)[:, 0], np.eye(5)[[0] * 2000])
    assert np.abs(measure.standard_scores(samples, truth)).max() < 4


@pytest.mark.parametrize("coupling", measure.COUPLINGS)
def test_one_token(coupling):
    num_walkers = 2 if "antithetic" in coupling else 1
    lonely, loop = (matrix_graph(np.full((1, 1), weight)) for weight in (0.0, 0.5))
    walks = sample(lonely, fixed_key(), num_walkers, num_hops=2, halting=0.5, coupling=coupling)
    np.testing.assert_array_equal(feature_matrix(walks, ONES[:3]), [[1.0]])
    # Around a loop there is one path only: without halting every walk is the whole series.
    walks = sample(loop, fixed_key(), num_walkers, num_hops=2, coupling=coupling)
    np.testing.assert_array_equal(feature_matrix(walks, ONES[:3]), [[1.75]])


@pytest.mark.parametrize("coupling", measure.COUPLINGS)
def test_walkers_that_always_stop_see_their_own_token_only(coupling):
    walks = sample(surface_graph(6), fixed_key(), 2, halting=1.0, coupling=coupling)
    np.testing.assert_array_equal(feature_matrix(walks, 0.7 * ONES), np.float32(0.7) * np.eye(6))


def test_walks_of_no_hop_are_their_start():
    walks = sample(surface_graph(6), fixed_key(), 2, num_hops=0)
    np.testing.assert_array_equal(feature_matrix(walks, ONES[:1]), np.eye(6))


def test_fewer_walkers_than_neighbours_take_different_ones():
    graph = matrix_graph(measure.circulant(12, 8))
    walks = sample(graph, fixed_key(), 5, num_hops=1)
    assert all(len(set(row)) == 6 for row in np.asarray(walks.nodes).tolist())
    np.testing.assert_allclose(walks.loads.sum((1, 2)), 1 + 8, rtol=1e-6)


def test_merged_rows_are_the_listed_ones_and_their_transpose_is_complete():
    listed = sample(odd_graph(), fixed_key(), 6, halting=0.2)
    hops = np.repeat(np.arange(4), [1, 6, 6, 6])
    merged = collect_walks(listed.nodes, listed.loads.sum(-1), hops, "host")
    merged = jax.tree.map(np.asarray, merged)
    for hop in range(4):
        one_hot = np.float32(np.arange(4) == hop)
        np.testing.assert_allclose(
            feature_matrix(merged, one_hot), feature_matrix(listed, one_hot), rtol=1e-6
        )
    used = np.arange(merged.nodes.shape[1])[None] < merged.num_entries[:, None]
    assert merged.num_entries.tolist()[0] == 1
    for row, count in zip(merged.nodes, merged.num_entries, strict=True):
        assert len(set(row[:count].tolist())) == count
    entries, offsets = merged.incoming.entries, merged.incoming.offsets
    for node in range(5):
        slots = entries[offsets[node] : offsets[node + 1]]
        np.testing.assert_array_equal(
            slots, np.flatnonzero(used.ravel() & (merged.nodes.ravel() == node))
        )


def test_vmap_and_chunks_change_nothing(monkeypatch):
    graph = dataclasses.replace(surface_graph(10), kernels="xla")
    build = functools.partial(sample_walks, graph, 4, 2, halting=0.5, coupling="repelling")
    together = jax.jit(jax.vmap(build))(jax.random.split(fixed_key(), 2))
    monkeypatch.setattr("hdvpd.attention.sampled_walks._BLOCK_PAIRS", 3 * 4**2)
    chunked = jax.jit(build)
    for b, key in enumerate(jax.random.split(fixed_key(), 2)):
        alone = chunked(key)
        jax.tree.map(lambda x, y, b=b: np.testing.assert_array_equal(x[b], y), together, alone)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"num_walkers": 0}, "num_walkers = 0"),
        ({"num_hops": -1}, "num_hops = -1"),
        ({"halting": 1.5}, "halting = 1.5"),
        ({"halting": -0.1}, "halting = -0.1"),
        ({"halting": float("nan")}, "halting = nan"),
        ({"num_walkers": 3, "coupling": "antithetic"}, "num_walkers = 3"),
        ({"num_walkers": 5, "coupling": "repelling-antithetic"}, "even number"),
    ],
)
def test_impossible_walks_are_refused(arguments, part):
    settings = {"num_walkers": 4, "num_hops": 2, **arguments}
    with pytest.raises(UserError) as caught:
        sample_walks(surface_graph(6), key=fixed_key(), **settings)
    assert part in str(caught.value)
