"""The networks of torch_geometric; skipped without the extra `graphs`."""

import extras
import networkx as nx
import numpy as np
import pytest

from studies.graph_tasks import GraphSet, graph_set
from studies.motifs import make_learner
from studies.settings import MotifSettings

extras.needed("torch_geometric")

NAMES = ("gat", "gcn", "sgc")
PARAMETERS = {
    ("grid", "gat"): 524,
    ("grid", "gcn"): 1314,
    ("grid", "sgc"): 2498,
    # Table 5 of arXiv 2107.07999.
    ("cycle", "gat"): 242,
    ("cycle", "gcn"): 268,
    ("cycle", "sgc"): 236,
}


def _graphs(count: int = 4) -> GraphSet:
    pairs = [(nx.star_graph(5), nx.path_graph(7)) for _ in range(count)]
    graphs = graph_set(pairs, 9, by_neighbors=False)
    noise = np.random.default_rng(0).normal(scale=0.1, size=graphs.features.shape)
    features = graphs.features + noise.astype(np.float32)
    return GraphSet(graphs.adjacency, features, graphs.real, graphs.labels)


@pytest.mark.parametrize("task", ["grid", "cycle"])
@pytest.mark.parametrize("name", NAMES)
def test_sizes_are_the_papers(task, name):
    learner = make_learner(task, name, MotifSettings(), 0)
    assert learner.num_parameters == PARAMETERS[task, name]


@pytest.mark.parametrize("name", NAMES)
def test_scores_do_not_depend_on_the_order_of_nodes_nor_on_padding(name):
    graphs = _graphs()
    learner = make_learner("cycle", name, MotifSettings(), 0)
    order = np.random.default_rng(1).permutation(9)
    real = graphs.real[:, order]
    features = np.where(real[..., None], graphs.features[:, order], np.float32(50))
    permuted = GraphSet(graphs.adjacency[:, order][:, :, order], features, real, graphs.labels)
    expected = learner.evaluate(learner.prepare(graphs))
    found = learner.evaluate(learner.prepare(permuted))
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_learner_learns_goes_back_and_is_decided_by_its_seed(name):
    settings = MotifSettings(learning_rate=0.02)
    learner = make_learner("cycle", name, settings, 0)
    prepared = learner.prepare(_graphs())
    first, start = learner.evaluate(prepared), learner.parameters()
    assert make_learner("cycle", name, settings, 0).evaluate(prepared) == first
    assert make_learner("cycle", name, settings, 1).evaluate(prepared) != first
    learner.train_epoch(prepared, np.tile(np.arange(8), (100, 1)))
    last = learner.evaluate(prepared)
    assert last.accuracy == 1.0
    assert last.loss < 0.5 * first.loss
    learner.restore(start)
    assert learner.evaluate(prepared) == first
