"""GKAT against the dense attention of the package, a float64 kernel, and its symmetries."""

import itertools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
from flax import nnx
from mask_contract import densify

from hdvpd.attention.graphs import transition_graph
from hdvpd.attention.masks.rwgnk import rwgnk_mask
from hdvpd.kernels.walks import exact_walks
from studies.attention.dense import masked_softmax_attention
from studies.attention.graphs import matrix_graph
from studies.fitting import AbstractLearner, Score, fit
from studies.gkat import Gkat, GkatLayer, GkatLearner, kernel_matrices
from studies.graph_tasks import GraphSet
from studies.motifs import make_learner
from studies.settings import MotifSettings


@pytest.fixture(scope="module")
def graph():
    """Adjacency, features and kernel of a random graph with an isolated node."""
    drawn = nx.gnm_random_graph(9, 12, seed=2)
    drawn.remove_edges_from(list(drawn.edges(4)))
    adjacency = nx.to_numpy_array(drawn) > 0
    features = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    return adjacency, features, np.asarray(kernel_matrices(adjacency[None], 3, 0.7)[0])


def test_the_kernel_is_that_of_expected_visits(graph):
    adjacency, _, kernel = graph
    visits = np.eye(9)
    for start in range(9):
        for hop in range(1, 4):
            for path in itertools.product(range(9), repeat=hop):
                steps = list(itertools.pairwise((start, *path)))
                if all(adjacency[step] for step in steps):
                    chance = np.prod([1 / adjacency[node].sum() for node, _ in steps])
                    visits[start, path[-1]] += 0.7**hop * chance
    psi = visits / np.linalg.norm(visits, axis=1, keepdims=True)
    np.testing.assert_allclose(kernel, psi @ psi.T, atol=1e-6)
    np.testing.assert_allclose(np.diagonal(kernel), 1, atol=1e-6)


def test_the_kernel_is_the_mask_of_exact_walks(graph):
    adjacency, _, kernel = graph
    walks = exact_walks(transition_graph(matrix_graph(adjacency.astype(np.float64))), 3)
    mask = rwgnk_mask(walks, jnp.float32(0.7))
    np.testing.assert_allclose(densify(mask), kernel, atol=1e-6)


def test_a_layer_is_masked_softmax_attention_in_every_head(graph):
    _, features, kernel = graph
    layer = GkatLayer(3, 2, 4, rngs=nnx.Rngs(0))
    heads = [
        masked_softmax_attention(
            *(features @ linear.kernel[:, 4 * head : 4 * head + 4]
              for linear in (layer.query, layer.key, layer.value)),
            kernel,
        )
        for head in range(2)
    ]  # fmt: skip
    expected = jax.nn.elu(jnp.concatenate(heads, axis=1))
    np.testing.assert_allclose(jax.jit(layer)(features, kernel), expected, atol=1e-6)


def test_logits_do_not_depend_on_the_order_of_nodes_nor_on_padding(graph):
    adjacency, features, _ = graph
    model = Gkat(3, (2, 1), (4, 2), rngs=nnx.Rngs(0))
    order = np.random.default_rng(1).permutation(12)
    padded = np.pad(adjacency, (0, 3))[order][:, order]
    real = (np.arange(12) < 9)[order]
    rubbish = np.pad(features, ((0, 3), (0, 0)), constant_values=50.0)[order]

    @jax.jit
    def logits(features, adjacency, real):
        return model(features, kernel_matrices(adjacency[None], 3, 0.7)[0], real)

    expected = logits(features, adjacency, np.ones(9, bool))
    np.testing.assert_allclose(logits(rubbish, padded, real), expected, atol=1e-5)
    gradient = jax.grad(lambda x: logits(x, padded, real)[0])(jnp.asarray(rubbish))
    assert not np.asarray(gradient)[~real].any()
    assert np.isfinite(gradient).all()


def test_sizes_are_the_papers():
    settings = MotifSettings()
    assert make_learner("grid", "gkat", settings, 0).num_parameters == 1280
    assert make_learner("cycle", "gkat", settings, 0).num_parameters == 258


def test_a_learner_learns_and_goes_back():
    """Circles of six against two triangles: the kernel alone differs, and a mark shows it."""
    rng = np.random.default_rng(0)
    pairs = [nx.cycle_graph(6), nx.disjoint_union(nx.cycle_graph(3), nx.cycle_graph(3))]
    adjacency = np.stack([nx.to_numpy_array(graph) > 0 for graph in pairs * 8])
    features = np.tile(np.float32(np.eye(6)[:, :1]), (16, 1, 1)) + rng.normal(
        scale=0.01, size=(16, 6, 1)
    ).astype(np.float32)
    graphs = GraphSet(adjacency, features, np.ones((16, 6), bool), np.tile([1, 0], 8))
    learner = GkatLearner(1, (2, 2), (4, 4), walk_length=3, decay=1.0, learning_rate=0.02, seed=0)
    prepared = learner.prepare(graphs)
    first, start = learner.evaluate(prepared), learner.parameters()
    for _ in range(6):
        learner.train_epoch(prepared, np.tile(np.arange(16), (20, 1)))
    last = learner.evaluate(prepared)
    assert last.accuracy == 1.0
    assert last.loss < 0.5 * first.loss
    learner.restore(start)
    assert learner.evaluate(prepared) == first


class Scripted(AbstractLearner):
    """Scores are given; its parameters are the number of epochs it has seen."""

    num_parameters = 0

    def __init__(self, scores):
        self.scores, self.epoch, self.seen = [Score(9.0, 0.0), *scores], 0, []

    def prepare(self, graphs):
        return graphs

    def train_epoch(self, prepared, batches):
        self.epoch += 1
        self.seen.append(batches)

    def evaluate(self, prepared):
        return self.scores[self.epoch]

    def parameters(self):
        return self.epoch

    def restore(self, parameters):
        self.epoch = parameters


def _graphs(count):
    return GraphSet(
        np.zeros((count, 2, 2), bool),
        np.zeros((count, 2, 1), np.float32),
        np.ones((count, 2), bool),
        np.arange(count) % 2,
    )


def test_fitting_stops_when_neither_score_improves_and_keeps_the_lowest_loss():
    losses = [0.7, 0.5, 0.6, 0.6, 0.6, 0.6, 0.1]
    accuracies = [0.5, 0.6, 0.6, 0.7, 0.7, 0.7, 0.9]
    learner = Scripted([Score(*score) for score in zip(losses, accuracies, strict=True)])
    found = fit(learner, _graphs(7), _graphs(2), epochs=7, patience=2, batch_size=3, seed=0)
    assert (found.epochs, found.best_epoch) == (6, 2)
    assert found.validation == Score(0.5, 0.6)
    assert learner.epoch == 2


def test_an_epoch_sees_every_graph_at_most_once_in_an_order_of_the_seed():
    runs = [Scripted([Score(1.0, 0.5)] * 3) for _ in range(3)]
    for learner, seed in zip(runs, (0, 0, 1), strict=True):
        fit(learner, _graphs(7), _graphs(2), epochs=3, patience=9, batch_size=3, seed=seed)
    for batches in runs[0].seen:
        assert batches.shape == (2, 3)
        assert len(np.unique(batches)) == 6
    np.testing.assert_array_equal(runs[0].seen, runs[1].seen)
    assert (np.array(runs[0].seen) != np.array(runs[2].seen)).any()
    assert (runs[0].seen[0] != runs[0].seen[1]).any()
