"""The graphs to classify have the properties that their labels promise; networkx is the judge."""

import random

import networkx as nx
import numpy as np
import pytest

from studies.graph_tasks import (
    MOTIFS,
    closing_pairs,
    graph_set,
    join_random_graph,
    make_task,
    neighbor_degrees,
    random_binary_tree,
    random_lookalike,
)
from studies.settings import MotifSettings

SMALL = MotifSettings(graphs=8, test_graphs=4, batch_size=4, nodes=20, tree_nodes=12)


@pytest.mark.parametrize("name", MOTIFS)
def test_what_is_planted_stays_what_it_is_in_a_graph_of_equal_mean_degree(name):
    rng = random.Random(0)
    motif = MOTIFS[name]()
    for planted in (motif, random_lookalike(motif, rng)):
        graph = join_random_graph(planted, 100, 0.004, rng)
        inside = range(len(planted))
        rest = graph.subgraph(range(len(planted), len(graph)))
        assert nx.utils.graphs_equal(graph.subgraph(inside), planted)
        assert len(rest) == 100
        assert abs(2 * rest.size() / 100 - 2 * planted.size() / len(planted)) <= 1 / 100
        assert any(neighbor >= len(planted) for node in inside for neighbor in graph[node])


@pytest.mark.parametrize("name", MOTIFS)
def test_a_lookalike_differs_only_in_shape(name):
    motif, rng = MOTIFS[name](), random.Random(1)
    assert len(motif) >= 9
    found = [random_lookalike(motif, rng) for _ in range(5)]
    for graph in found:
        assert (len(graph), graph.size()) == (len(motif), motif.size())
        assert nx.is_connected(graph)
        assert not nx.is_isomorphic(graph, motif)
    assert not nx.utils.graphs_equal(found[0], found[1])


def test_motifs_are_those_of_the_papers_figure():
    caveman = MOTIFS["caveman"]()
    assert sorted(map(len, nx.find_cliques(caveman))) == [3, 3, 3, 3]
    assert nx.is_isomorphic(MOTIFS["circle"](), nx.cycle_graph(10))
    assert {name: nx.degree_histogram(motif()) for name, motif in MOTIFS.items()} == {
        "caveman": [0, 0, 6, 0, 3],
        "circle": [0, 0, 10],
        "grid": [0, 0, 4, 4, 1],
        "ladder": [0, 0, 4, 6],
        "circular-ladder": [0, 0, 0, 10],
    }


def test_joining_the_farthest_nodes_of_a_tree_closes_one_cycle_as_long_as_can_be():
    rng = random.Random(0)
    for _ in range(5):
        tree = random_binary_tree(50, rng)
        assert nx.is_tree(tree)
        assert max(degree for _, degree in tree.degree) <= 3
        assert tree.degree[0] <= 2
        diameter = nx.diameter(tree)
        farthest, others = closing_pairs(tree)
        for pair, longest in ((rng.choice(farthest), True), (rng.choice(others), False)):
            closed = tree.copy()
            closed.add_edge(*pair)
            (cycle,) = nx.cycle_basis(closed)
            assert set(pair) <= set(cycle)
            assert (len(cycle) == diameter + 1) == longest
            assert 3 <= len(cycle) <= diameter + 1
        num_pairs = 50 * 49 // 2
        assert len(farthest) + len(others) == num_pairs - tree.size()


def test_features_are_the_largest_degrees_of_neighbors():
    graph = nx.gnm_random_graph(30, 60, seed=0)
    found = neighbor_degrees(nx.to_numpy_array(graph)[None] > 0)[0]
    for node in graph:
        degrees = sorted((graph.degree[other] for other in graph[node]), reverse=True)
        assert found[node].tolist() == (degrees + [0] * 5)[:5]


def test_arrays_hold_the_graphs_and_padding_is_empty():
    star, path = nx.star_graph(3), nx.path_graph(3)
    graphs = graph_set([(star, path)], 5, by_neighbors=False)
    np.testing.assert_array_equal(graphs.adjacency[0, :4, :4], nx.to_numpy_array(star) > 0)
    assert graphs.adjacency[1].sum() == 4
    assert graphs.real.sum(1).tolist() == [4, 3]
    assert graphs.features[..., 0].tolist() == [[3, 1, 1, 1, 0], [1, 2, 1, 0, 0]]
    assert graphs.labels.tolist() == [1, 0]


@pytest.mark.parametrize("name", ["cycle", "grid"])
def test_a_task_is_balanced_standardised_and_decided_by_its_seed(name):
    task = make_task(name, SMALL, seed=3)
    assert [len(part) for part in (task.train, task.validation, task.test)] == [12, 4, 8]
    for part in (task.train, task.validation, task.test):
        assert part.labels.mean() == 0.5
        assert not part.features[~part.real].any()
        assert not (part.adjacency & ~part.real[:, None]).any()
    nodes = task.train.features[task.train.real]
    np.testing.assert_allclose(nodes.mean(0), 0, atol=1e-5)
    spread = nodes.std(0)
    np.testing.assert_allclose(spread[spread > 0], 1, atol=1e-5)
    # All motifs have one width.
    assert task.train.real.shape[1] == (12 if name == "cycle" else 30)
    again, other = make_task(name, SMALL, seed=3), make_task(name, SMALL, seed=4)
    np.testing.assert_array_equal(again.test.adjacency, task.test.adjacency)
    assert (other.test.adjacency != task.test.adjacency).any()


def test_the_two_graphs_of_a_tree_are_on_one_side():
    task = make_task("cycle", SMALL, seed=0)
    for part in (task.train, task.validation, task.test):
        positive, negative = part.adjacency[0::2], part.adjacency[1::2]
        # One edge each of its own.
        assert ((positive ^ negative).sum((1, 2)) == 4).all()
