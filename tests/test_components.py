"""Labels on a graph of neighbours."""

import functools

import jax
import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from hdvpd.dynamics.components import connected_labels, followed

FORMS = pytest.mark.parametrize("kernels", ["host", "xla"])


@FORMS
@pytest.mark.parametrize("shape", [(1500, 1, 1), (50, 30, 1), (12, 12, 10)])
@pytest.mark.parametrize("shuffled", [False, True])
def test_what_hangs_together_has_one_label_whatever_its_shape_and_order(shape, shuffled, kernels):
    """Rows, plates and blocks with gaps, against connected components of the graph of links."""
    rng = np.random.default_rng(0)
    places = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1).reshape(-1, 3)
    places = places + rng.uniform(-0.2, 0.2, places.shape)
    if shuffled:
        places = rng.permutation(places)
    members = rng.uniform(size=len(places)) < 0.97
    distances, indices = cKDTree(places).query(places, 6)
    linked = distances < 1.3
    links = linked & members[indices] & members[:, None]
    rows = np.repeat(np.arange(len(places)), links.sum(axis=1))
    graph = coo_array((np.ones(len(rows)), (rows, indices[links])), shape=(len(places),) * 2)
    _, parts = connected_components(graph, directed=False)
    last = np.full(parts.max() + 1, -1)
    np.maximum.at(last, parts, np.arange(len(places)))
    label = jax.jit(functools.partial(connected_labels, kernels=kernels))
    found = np.asarray(label(members, linked, indices))
    np.testing.assert_array_equal(found, np.where(members, last[parts], -1))


@FORMS
def test_what_hangs_on_no_neighbour_that_has_a_label_gets_none(kernels):
    """A row, of which the first has a label: one more in every round."""
    indices = np.asarray([[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]], np.int32)
    distances, linked = np.ones((5, 2), np.float32), np.ones((5, 2), bool)
    linked[3] = False
    label = np.asarray([0, -1, -1, -1, -1], np.int32)
    for rounds, expected in ((1, [0, 0, -1, -1, -1]), (4, [0, 0, 0, -1, -1])):
        told = followed(label, linked, distances, indices, rounds, kernels)
        np.testing.assert_array_equal(told, expected)


def test_both_forms_follow_the_same_neighbour():
    """Of as near ones the first, also of padded lists, in a random graph."""
    rng = np.random.default_rng(1)
    indices = rng.integers(0, 300, (300, 8)).astype(np.int32)
    distances = rng.integers(1, 5, (300, 8)).astype(np.float32)
    distances[rng.uniform(size=distances.shape) < 0.1] = np.inf
    linked = rng.uniform(size=distances.shape) < 0.4
    label = np.where(rng.uniform(size=300) < 0.1, np.arange(300), -1).astype(np.int32)
    told = [followed(label, linked, distances, indices, 3, form) for form in ("host", "xla")]
    np.testing.assert_array_equal(*told)
    assert (np.asarray(told[0]) >= 0).sum() > (label >= 0).sum() + 50


@FORMS
def test_no_particle_has_no_label(kernels):
    lists = np.zeros((0, 4), bool), np.zeros((0, 4), np.int32)
    assert connected_labels(np.zeros(0, bool), *lists, kernels).shape == (0,)
