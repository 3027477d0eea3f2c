"""Walks against powers of the transition matrix and against simulated repelling walks."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes

from hdvpd.attention.graphs import neighbor_graph
from hdvpd.kernels.neighbors import knn
from hdvpd.kernels.walks import exact_walks
from studies.attention.graphs import edge_graph, matrix_graph

KERNELS = ("xla", "host")


@functools.partial(jax.jit, static_argnums=(1, 2))
def walk(neighbors, num_hops, kernels):
    """Follow all walks on lists of equal weights."""
    return exact_walks(scenes.list_graph(neighbors, kernels), num_hops)


@pytest.fixture(params=KERNELS)
def kernels(request):
    return request.param


def surface_neighbors(num_tokens, k, seed=0):
    """Neighbour lists of points on a plane, where walks meet often."""
    points = np.random.default_rng(seed).uniform(size=(num_tokens, 3)) * [1, 1, 0]
    return references.nearest(points, points, k, exclude_self=True)[0].astype(np.int32)


def dense(walks):
    """Return the rows of walks as matrices per hop, axes (l t t)."""
    nodes, loads = np.asarray(walks.nodes), np.asarray(walks.loads, np.float64)
    matrices = np.zeros((loads.shape[-1], len(nodes), len(nodes)))
    for token, entry in np.ndindex(nodes.shape):
        matrices[:, token, nodes[token, entry]] += loads[token, entry]
    return matrices


@pytest.mark.parametrize(("k", "num_hops"), [(3, 3), (2, 4), (4, 1), (3, 0)])
def test_entries_are_the_powers_of_the_transition_matrix(kernels, k, num_hops):
    neighbors = surface_neighbors(40, k)
    walks = walk(neighbors, num_hops, kernels)
    expected = references.walk_powers(neighbors, num_hops)
    np.testing.assert_allclose(dense(walks), expected, atol=1e-6)
    np.testing.assert_allclose(np.asarray(walks.loads).sum(1), 1.0, atol=1e-6)


def test_three_neighbours_and_hops_have_forty_entries_and_fewer_when_merged():
    neighbors = surface_neighbors(256, 3)
    assert walk(neighbors, 3, "xla").nodes.shape == (256, 40)
    merged = walk(neighbors, 3, "host")
    distinct = [(row > 0).sum() for row in references.walk_powers(neighbors, 3).sum(0)]
    np.testing.assert_array_equal(merged.num_entries, distinct)
    # Spec 5.2: 10.6 distinct nodes on average on a uniform surface.
    assert np.mean(distinct) == pytest.approx(10.6, abs=1.0)


def test_unused_merged_entries_are_inert_and_the_transpose_lists_every_used_one():
    neighbors = surface_neighbors(50, 3)
    walks = jax.tree.map(np.asarray, walk(neighbors, 3, "host"))
    used = np.arange(walks.nodes.shape[1])[None] < walks.num_entries[:, None]
    assert (walks.loads[~used] == 0).all()
    assert (walks.loads[used].sum(-1) > 0).all()
    np.testing.assert_array_equal(walks.nodes[~used], np.where(~used)[0])
    entries, offsets = walks.incoming.entries, walks.incoming.offsets
    assert offsets[0] == 0
    assert offsets[-1] == used.sum()
    for node in range(50):
        slots = entries[offsets[node] : offsets[node + 1]]
        expected = np.flatnonzero(used.ravel() & (walks.nodes.ravel() == node))
        np.testing.assert_array_equal(slots, expected)


@pytest.mark.parametrize("batched", [False, True])
def test_merging_in_plain_jax_equals_the_host_code(batched):
    neighbors = np.stack([surface_neighbors(50, 3, seed) for seed in range(2)])
    neighbors[0, 7] = 7  # a walker that waits
    for one in neighbors if not batched else [neighbors]:
        merged, expected = (
            jax.vmap(lambda x, k=kernels: walk(x, 3, k))(one) if batched else walk(one, 3, kernels)
            for kernels in ("pallas", "host")
        )
        for one_leaf, values in zip(*map(jax.tree.leaves, (merged, expected)), strict=True):
            np.testing.assert_allclose(one_leaf, values, atol=1e-6)


@pytest.mark.parametrize(("k", "num_hops", "num_walkers"), [(3, 3, 27), (3, 3, 54), (2, 4, 16)])
def test_repelling_walks_are_exactly_the_enumeration(kernels, k, num_hops, num_walkers):
    neighbors = surface_neighbors(30, k, seed=1)
    matrices = dense(walk(neighbors, num_hops, kernels))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        sampled = references.repelling_walks(neighbors, num_hops, num_walkers, rng)
        np.testing.assert_allclose(matrices, sampled, atol=1e-6)


def test_twenty_six_repelling_walkers_are_not_exact():
    # The fact needs a multiple of k^h; otherwise sampling shows, so the simulation is a real one.
    neighbors = surface_neighbors(30, 3, seed=1)
    sampled = references.repelling_walks(neighbors, 3, 26, np.random.default_rng(0))
    difference = sampled.sum(0) - references.walk_powers(neighbors, 3).sum(0)
    relative = np.linalg.norm(difference) / np.linalg.norm(sampled.sum(0))
    assert 5e-3 < relative < 1e-1


def test_missing_neighbours_let_the_walker_wait():
    points = jnp.asarray(np.random.default_rng(2).normal(size=(4, 3)), jnp.float32)
    mask = jnp.asarray([True, True, False, False])
    found = knn(points, points, 3, mask=mask, exclude_self=True)
    neighbors = np.asarray(neighbor_graph(found, mask).columns)
    np.testing.assert_array_equal(neighbors[0], [1, 0, 0])
    np.testing.assert_array_equal(neighbors[1], [0, 1, 1])
    np.testing.assert_array_equal(neighbors[2:], [[2] * 3, [3] * 3])


def test_vmap_and_scan_equal_a_loop(kernels):
    neighbors = np.stack([surface_neighbors(12, 2, seed) for seed in range(3)])
    mapped = jax.jit(jax.vmap(lambda x: walk(x, 2, kernels)))(neighbors)
    _, scanned = jax.jit(
        lambda xs: jax.lax.scan(lambda carry, x: (carry, walk(x, 2, kernels)), None, xs)
    )(neighbors)
    for b in range(3):
        alone = walk(neighbors[b], 2, kernels)
        for walks in (mapped, scanned):
            one = jax.tree.map(lambda x, b=b: x[b], walks)
            jax.tree.map(np.testing.assert_array_equal, one, alone)


def test_every_walk_is_exact_for_unequal_weights_too(kernels):
    rng = np.random.default_rng(5)
    neighbors = surface_neighbors(30, 3, seed=2)
    weights = np.asarray(rng.uniform(size=neighbors.shape), np.float32)
    matrix = np.zeros((30, 30))
    np.add.at(matrix, (np.arange(30)[:, None], neighbors), weights)
    graph = dataclasses.replace(scenes.list_graph(neighbors, kernels), values=weights)
    expected = [np.linalg.matrix_power(matrix, hop) for hop in range(4)]
    np.testing.assert_allclose(dense(exact_walks(graph, 3)), expected, atol=1e-5)


@pytest.mark.parametrize("form", [*KERNELS, "pallas"])
def test_every_walk_is_exact_where_degrees_differ(form):
    # 0 isolated, 1 with a loop and a double edge to 2, 2 and 3 joined, 4 only points at 0; N = 1.
    odd = np.zeros((5, 5))
    odd[[1, 1, 2, 3, 4], [1, 2, 3, 2, 0]] = [0.3, 0.6, 0.9, 0.5, 0.7]
    sources, targets = np.array([1, 1, 1, 2, 3, 4]), np.array([1, 2, 2, 3, 2, 0])
    weights = np.array([0.3, 0.4, 0.2, 0.9, 0.5, 0.7])
    loop = np.full((1, 1), 0.5)
    follow = jax.jit(exact_walks, static_argnums=1)
    for graph, matrix in (
        (edge_graph(5, sources, targets, weights, kernels=form), odd),
        (matrix_graph(loop, kernels=form), loop),
    ):
        expected = [np.linalg.matrix_power(matrix, hop) for hop in range(4)]
        np.testing.assert_allclose(dense(follow(graph, 3)), expected, atol=1e-6)
