"""Forests as they are prepared: what is refused, and that the work is linear in every shape."""

import numpy as np
import pytest
from test_masks_trees import edges_of

from hdvpd.basics.errors import UserError
from studies.attention.masks.centroids import centroid_blocks
from studies.attention.masks.forests import edge_forest


@pytest.mark.parametrize(
    ("num_tokens", "edges", "lengths", "message"),
    [
        (0, np.zeros((0, 2), int), None, "num_tokens = 0; a forest has at least one node"),
        (3, [[0, 1], [1, 3]], None, "edge 1, 1 - 3, leaves the nodes 0 to 2"),
        (3, [[0, 1], [-1, 2]], None, "edge 1, -1 - 2, leaves"),
        (3, [[0, 1], [2, 2]], None, "edge 1, 2 - 2, joins a node to itself"),
        (3, [[0, 1], [1, 2], [1, 0]], None, "edge 2, 1 - 0, is given twice"),
        (5, [[3, 4], [0, 1], [1, 2], [2, 0]], None, "edge [123], . - ., closes a cycle"),
        (3, [[0, 1], [1, 2]], [1.0, 0.0], "edge 1, 1 - 2, has length 0.0"),
        (3, [[0, 1], [1, 2]], [-1.0, 2.0], "edge 0, 0 - 1, has length -1.0"),
        (3, [[0, 1], [1, 2]], [1.0, np.nan], "edge 1, 1 - 2, has length nan"),
        (3, [[0, 1], [1, 2]], [np.inf, 1.0], "edge 0, 0 - 1, has length inf"),
    ],
)
def test_what_is_no_forest_is_refused(num_tokens, edges, lengths, message):
    lengths = None if lengths is None else np.array(lengths)
    with pytest.raises(UserError, match=message):
        edge_forest(num_tokens, np.array(edges), lengths)


@pytest.mark.parametrize("shape", ["path", "star", "binary", "caterpillar", "random"])
def test_work_is_linear_in_every_shape(shape):
    num_tokens = 3000
    forest = edge_forest(num_tokens, edges_of(shape, num_tokens))
    num_chunks, width = forest.above.shape
    assert forest.above.size <= 6 * num_tokens  # three slots a node, one joint a token
    assert len(np.unique(forest.slots)) == num_tokens
    # Half of the diameter, as roots are centres, and the logarithm of the degree.
    assert num_chunks <= 2 * (forest.diameter // 2 + 2 + np.log2(num_tokens))
    # Whoever is above comes in an earlier chunk, whoever is below in a later one.
    chunk = np.arange(num_chunks)[:, None]
    assert ((forest.above // width < chunk) | (forest.above == forest.above.size)).all()
    assert (forest.below // width > chunk[..., None]).all()
    roots = forest.parents < 0
    assert roots.sum() == 1
    entries = sum(block.tokens.size for block in centroid_blocks(forest))
    assert entries <= 2 * num_tokens * np.log2(2 * num_tokens)


def test_several_trees_and_single_nodes():
    forest = edge_forest(6, np.array([[4, 1], [1, 5], [0, 2]]), np.array([1.0, 2.0, 3.0]))
    assert forest.diameter == 2
    assert forest.parents[[1, 3]].tolist() == [-1, -1]
    assert forest.parents[[4, 5]].tolist() == [1, 1]
    assert forest.lengths[[4, 5]].tolist() == [1.0, 2.0]
    assert sorted(forest.lengths[[0, 2]].tolist()) == [0.0, 3.0]
