"""Graph constructors: lists and dense W are the same thing."""

import jax.numpy as jnp
import numpy as np
import pytest

from hdvpd.attention.graphs import neighbor_graph
from hdvpd.basics.errors import UserError
from hdvpd.kernels.neighbors import knn
from studies.attention.graphs import edge_graph, graph_matrix, matrix_graph, symmetric_weights


def test_matrix_to_lists_and_back():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(9, 9)) * (rng.random((9, 9)) < 0.3)
    matrix[4] = 0
    graph = matrix_graph(matrix)
    np.testing.assert_array_equal(graph.num_entries, (matrix != 0).sum(1))
    np.testing.assert_allclose(graph_matrix(graph), matrix, rtol=1e-6)
    assert graph.columns.shape == (9, (matrix != 0).sum(1).max())
    unused = np.arange(graph.columns.shape[1])[None] >= graph.num_entries[:, None]
    assert (graph.values[unused] == 0).all()
    np.testing.assert_array_equal(graph_matrix(matrix_graph(matrix, width=9)), graph_matrix(graph))


def test_edges_keep_their_order_and_may_repeat():
    graph = edge_graph(
        3, np.array([2, 0, 2, 2]), np.array([1, 0, 0, 1]), np.array([0.5, 2.0, 0.25, 1.0])
    )
    np.testing.assert_array_equal(graph.num_entries, [1, 0, 3])
    np.testing.assert_array_equal(graph.columns[2], [1, 0, 1])
    np.testing.assert_array_equal(graph.values[2], [0.5, 0.25, 1.0])
    np.testing.assert_array_equal(graph_matrix(graph), [[2, 0, 0], [0, 0, 0], [0.25, 1.5, 0]])


def test_a_graph_may_have_no_edge_at_all():
    graph = matrix_graph(np.zeros((2, 2)))
    np.testing.assert_array_equal(graph.num_entries, [0, 0])
    assert graph.columns.shape == (2, 1)


def test_symmetric_weights_have_their_spectrum_within_one():
    rng = np.random.default_rng(1)
    upper = np.triu(rng.random((12, 12)) < 0.3, 1).astype(np.float64)
    adjacency = upper + upper.T
    adjacency[3] = adjacency[:, 3] = 0
    weights = symmetric_weights(adjacency)
    np.testing.assert_array_equal(weights, weights.T)
    assert (weights[3] == 0).all()
    values = np.linalg.eigvalsh(weights)
    assert values.min() >= -1 - 1e-12
    assert values.max() == pytest.approx(1.0)
    degrees = adjacency.sum(1)
    i, j = np.argwhere(adjacency)[0]
    assert weights[i, j] == pytest.approx(1 / np.sqrt(degrees[i] * degrees[j]))


def test_more_neighbours_than_real_particles_stay_row_stochastic():
    points = jnp.asarray(np.random.default_rng(2).normal(size=(4, 3)), jnp.float32)
    mask = jnp.asarray([True, True, True, False])
    found = knn(points, points, 6, mask=mask, exclude_self=True)
    matrix = graph_matrix(neighbor_graph(found, mask))
    np.testing.assert_allclose(matrix.sum(1), 1.0, rtol=1e-6)
    np.testing.assert_array_equal(matrix[:3, 3], 0)
    np.testing.assert_allclose(matrix[3], [0, 0, 0, 1], rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "parts"),
    [
        (lambda: matrix_graph(np.array([[0.0, np.nan], [1.0, 0.0]])), ["0 -> 1", "nan"]),
        (lambda: matrix_graph(np.ones((3, 3)), width=2), ["width = 2", "3"]),
        (lambda: edge_graph(2, np.array([0]), np.array([2]), np.array([1.0])), ["2", "0 to 1"]),
        (lambda: matrix_graph(np.zeros((0, 0))), ["num_tokens = 0", "at least one node"]),
        (
            lambda: symmetric_weights(np.array([[0.0, 1.0], [0.0, 0.0]])),
            ["A[0, 1] = 1", "A[1, 0] = 0", "symmetric"],
        ),
        (lambda: symmetric_weights(np.array([[1.0, -1.0], [-1.0, 1.0]])), ["-1 to 1", "Laplacian"]),
        (lambda: symmetric_weights(np.array([[np.nan]])), ["nan", "finite"]),
    ],
)
def test_bad_graphs_are_named(build, parts):
    with pytest.raises(UserError) as caught:
        build()
    assert all(part in str(caught.value) for part in parts)
