"""Masks over forests against all-pairs distances, the papers' recursions and each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mask_contract import check_attention, check_gradient, check_mask, densify, multiply
from scipy import sparse
from scipy.sparse import csgraph

from hdvpd.basics.errors import UserError
from studies.attention.masks import trees
from studies.attention.masks.centroids import centroid_blocks
from studies.attention.masks.forests import edge_forest
from studies.attention.masks.trees import ExponentialForestMask, TreeMask, tree_mask

FORMS = {"levels": lambda forest: (), "blocks": centroid_blocks}


def edges_of(shape: str, num_tokens: int, seed: int = 0) -> np.ndarray:
    """Edges of one tree, its nodes in random order."""
    rng = np.random.default_rng(seed)
    node = np.arange(1, num_tokens)
    half = -(-num_tokens // 2)
    parents = {
        "path": node - 1,
        "star": 0 * node,
        "binary": (node - 1) // 2,
        "caterpillar": np.where(node < half, node - 1, node - half),
        "random": rng.integers(0, node),
    }[shape]
    return rng.permutation(num_tokens)[np.stack([node, parents], axis=1)]


def several_trees() -> tuple[int, np.ndarray, np.ndarray]:
    """Trees of 12, 5 and 2 nodes and two single nodes, with random lengths."""
    sizes = (("random", 12), ("star", 5), ("path", 1), ("path", 2), ("path", 1))
    starts = np.cumsum([0] + [size for _, size in sizes])
    edges = np.concatenate([start + edges_of(*tree) for start, tree in zip(starts, sizes)])  # noqa: B905
    return int(starts[-1]), edges, np.random.default_rng(1).uniform(0.2, 1.5, len(edges))


def distances(num_tokens: int, edges: np.ndarray, lengths: np.ndarray | None = None) -> np.ndarray:
    """Float64 distances by Floyd and Warshall; infinite between trees."""
    lengths = np.ones(len(edges)) if lengths is None else lengths
    matrix = sparse.csr_array((lengths, tuple(edges.T)), shape=(num_tokens, num_tokens))
    return csgraph.shortest_path(matrix, method="FW", directed=False)


def exponential(distance: np.ndarray, rate: float, offset: float) -> np.ndarray:
    joined = np.isfinite(distance)
    return np.where(joined, np.exp(rate * np.where(joined, distance, 0.0) + offset), 0.0)


def of_distance(values: np.ndarray, distance: np.ndarray) -> np.ndarray:
    joined = np.isfinite(distance)
    return np.where(joined, values[np.where(joined, distance, 0).astype(int)], 0.0)


@pytest.mark.parametrize("rate", [-2.0, -0.7, 0.0, 0.3, 1.5])
def test_exponential(rate):
    num_tokens, edges, lengths = several_trees()
    mask = ExponentialForestMask(edge_forest(num_tokens, edges, lengths), rate, 0.4)
    check_mask(mask, exponential(distances(num_tokens, edges, lengths), rate, 0.4))


@pytest.mark.parametrize("kernels", ["host", "xla"])
@pytest.mark.parametrize("columns", [1, 19])
def test_exponential_with_and_without_host_code(kernels, columns):
    num_tokens, edges, lengths = several_trees()
    forest = edge_forest(num_tokens, edges, lengths, kernels=kernels)
    x, out_bar = np.random.default_rng(2).normal(size=(2, num_tokens, columns)).astype(np.float32)
    expected = exponential(distances(num_tokens, edges, lengths), -0.7, 0.0)

    def with_pull_back(*inputs):
        product, pull = jax.vjp(
            lambda rate, x: ExponentialForestMask(forest, rate, 0.0) @ x, *inputs
        )
        return product, pull(out_bar)

    got, (rate_bar, x_bar) = jax.jit(with_pull_back)(jnp.float32(-0.7), x)
    np.testing.assert_allclose(got, expected @ x, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(x_bar, expected.T @ out_bar, rtol=1e-5, atol=1e-5)
    span = np.where(expected > 0, distances(num_tokens, edges, lengths), 0.0)
    np.testing.assert_allclose(rate_bar, (out_bar * ((span * expected) @ x)).sum(), rtol=1e-4)


def test_attention_under_the_exponential():
    num_tokens, edges, lengths = several_trees()
    mask = ExponentialForestMask(edge_forest(num_tokens, edges, lengths), -0.7, 0.4)
    check_attention(mask, exponential(distances(num_tokens, edges, lengths), -0.7, 0.4))


def two_passes(parents, lengths, x, rate, offset, *, printed=False):
    """The paper's Eq. 11-16 by loops, with a subtraction; parents come before children."""
    factors = np.exp((1 if printed else x.dtype.type(rate)) * lengths.astype(x.dtype))
    up = np.exp(x.dtype.type(offset)) * x
    for node in range(len(x) - 1, 0, -1):
        up[parents[node]] += factors[node] * up[node]
    down = up.copy()
    for node in range(1, len(x)):
        down[node] = factors[node] * (down[parents[node]] - factors[node] * up[node]) + up[node]
    return down


def long_tree(num_tokens: int, mean: float) -> tuple[np.ndarray, np.ndarray]:
    """Parents and lengths in a tree in which each node hangs from one of the three before it."""
    rng = np.random.default_rng(2)
    node = np.arange(num_tokens)
    parents = np.maximum(node - rng.integers(1, 4, num_tokens), 0)
    return parents, np.where(node > 0, mean * rng.uniform(0.5, 1.5, num_tokens), 0.0)


@pytest.mark.parametrize("rate", [-0.7, 0.3, 1.0])
def test_printed_recursion_of_the_exponential_is_right_for_rate_one_only(rate):
    parents, lengths = long_tree(20, 1.0)
    x = np.random.default_rng(3).uniform(0.5, 1.5, 20)
    edges = np.stack([np.arange(1, 20), parents[1:]], axis=1)
    mask = ExponentialForestMask(edge_forest(20, edges, lengths[1:]), rate, 0.4)
    expected = np.asarray(multiply(mask, np.float32(x[:, None])))[:, 0]
    np.testing.assert_allclose(two_passes(parents, lengths, x, rate, 0.4), expected, rtol=1e-5)
    printed = two_passes(parents, lengths, x, rate, 0.4, printed=True)
    assert np.allclose(printed, expected, rtol=1e-5) == (rate == 1.0)


def test_growing_exponential_is_exact_in_float32_where_subtraction_is_not():
    parents, lengths = long_tree(400, 0.2)
    x = np.random.default_rng(3).uniform(0.5, 1.5, 400)
    edges = np.stack([np.arange(1, 400), parents[1:]], axis=1)
    expected = exponential(distances(400, edges, lengths[1:]), 1.5, 0.0) @ x
    mask = ExponentialForestMask(edge_forest(400, edges, lengths[1:]), 1.5, 0.0)
    np.testing.assert_allclose(multiply(mask, np.float32(x[:, None]))[:, 0], expected, rtol=1e-4)
    subtracted = two_passes(parents, lengths, np.float32(x), 1.5, 0.0)
    assert np.abs(subtracted / expected - 1).max() > 0.9


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("shape", "num_tokens"),
    [("path", 1), ("path", 2), ("path", 3), ("path", 13), ("star", 13), ("binary", 13),
     ("caterpillar", 13), ("random", 13)],
)  # fmt: skip
def test_any_function_of_the_distance(shape, num_tokens, form):
    edges = edges_of(shape, num_tokens)
    distance = distances(num_tokens, edges)
    values = np.random.default_rng(4).normal(size=int(distance.max()) + 1).astype(np.float32)
    forest = edge_forest(num_tokens, edges)
    assert forest.diameter == distance.max()
    mask = TreeMask(forest, values, FORMS[form](forest))
    expected = of_distance(values, distance)
    np.testing.assert_allclose(densify(mask), expected, rtol=1e-7)
    x = np.random.default_rng(5).normal(size=(num_tokens, 2)).astype(np.float32)
    scale = np.abs(expected @ x).max()
    np.testing.assert_allclose(multiply(mask, x), expected @ x, atol=2e-6 * scale)


@pytest.mark.parametrize("form", FORMS)
def test_functions_of_the_distance_over_several_trees(form):
    # The lengths of the edges do not count, nor do values beyond the largest distance.
    num_tokens, edges, lengths = several_trees()
    forest = edge_forest(num_tokens, edges, lengths)
    values = np.random.default_rng(5).uniform(0.1, 1, forest.diameter + 4).astype(np.float32)
    mask = TreeMask(forest, values, FORMS[form](forest))
    oracle = of_distance(values, distances(num_tokens, edges))
    check_mask(mask, oracle)
    check_attention(mask, oracle)


def test_large_blocks_go_by_fourier_transform():
    edges = edges_of("caterpillar", 300)
    forest = edge_forest(300, edges)
    blocks = centroid_blocks(forest)
    assert max(block.size for block in blocks) > 64
    values = np.random.default_rng(4).normal(size=forest.diameter + 1).astype(np.float32)
    distance = distances(300, edges).astype(int)
    check_mask(TreeMask(forest, values, blocks), of_distance(values, distance))
    # The product is linear in f: its derivative sums the pairs of tokens at each distance.
    x, weights = np.random.default_rng(5).normal(size=(2, 300, 1)).astype(np.float32)
    pulled = jax.jit(jax.grad(lambda f: jnp.vdot(weights, TreeMask(forest, f, blocks) @ x)))
    got = pulled(values)
    expected = np.bincount(distance.ravel(), (weights @ x.T).ravel())
    np.testing.assert_allclose(got, expected, atol=1e-5 * np.abs(expected).max())


def test_two_parts_of_a_tree_interact_through_the_node_they_share():
    # Lemma 6.1: y_i = y1_i + sum_j f(dist(i, v) + dist(v, j)) x_j, and f(0) x_v counts once at v.
    first, second = np.arange(8), np.arange(7, 13)  # v = 7
    parts = [first[edges_of("random", 8)], second[edges_of("random", 6)]]
    rng = np.random.default_rng(6)
    values, x = (rng.normal(size=(13, 1)).astype(np.float32) for _ in range(2))

    def product(num_tokens, edges, x):
        forest = edge_forest(num_tokens, edges)
        return np.asarray(multiply(tree_mask(forest, values[:, 0]), x))

    whole = product(13, np.concatenate(parts), x)
    alone = product(8, parts[0], x[first])
    other = product(6, parts[1] - 7, x[second])
    distance = distances(13, np.concatenate(parts))
    hankel = values[(distance[:7, 7, None] + distance[None, 7, 8:]).astype(int), 0]
    np.testing.assert_allclose(whole[:7], alone[:7] + hankel @ x[8:], atol=1e-5)
    np.testing.assert_allclose(whole[7], alone[7] + other[0] - values[0] * x[7], atol=1e-5)


def test_gradients_with_respect_to_rate_and_offset():
    num_tokens, edges, lengths = several_trees()
    forest = edge_forest(num_tokens, edges, lengths)
    x, weights = np.random.default_rng(7).normal(size=(2, num_tokens, 2))

    def exponential(parameters):
        return (weights * (ExponentialForestMask(forest, *parameters) @ jnp.asarray(x))).sum()

    check_gradient(exponential, [0.5, -0.2])


@pytest.mark.parametrize("form", FORMS)
def test_gradients_with_respect_to_the_function(form):
    forest = edge_forest(7, edges_of("binary", 7))
    blocks = FORMS[form](forest)
    x, weights = np.random.default_rng(7).normal(size=(2, 7, 2))

    def any_function(values):
        return (weights * (TreeMask(forest, values, blocks) @ jnp.asarray(x))).sum()

    check_gradient(any_function, np.random.default_rng(8).normal(size=forest.diameter + 1))


def test_columns_in_groups():
    matrix, x, weights = np.random.default_rng(9).normal(size=(3, 5, 5)).astype(np.float32)

    def product(matrix, x):
        return trees._by_columns(lambda columns: matrix @ columns, x, 2)

    got, pull = jax.vjp(product, matrix, x)
    expected, pull_whole = jax.vjp(jnp.matmul, matrix, x)
    np.testing.assert_allclose(got, expected, atol=1e-5)
    for one, other in zip(pull(weights), pull_whole(weights), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_memory_of_gradients_is_not_quadratic():
    num_tokens = 2048
    forest = edge_forest(num_tokens, edges_of("path", num_tokens))
    blocks = centroid_blocks(forest)
    x = np.ones((num_tokens, 1), np.float32)

    def exponential(rate, x):
        return (ExponentialForestMask(forest, rate, 0.0) @ x).sum()

    def any_function(values, x):
        return (TreeMask(forest, values, blocks) @ x).sum()

    for function, parameters in ((exponential, -1.0), (any_function, np.ones(num_tokens, "f"))):
        compiled = jax.jit(jax.grad(function, (0, 1))).lower(parameters, x).compile()
        memory = compiled.memory_analysis()
        assert memory is not None
        assert memory.temp_size_in_bytes < 4 * num_tokens**2 / 4


def test_empty_function_is_refused_of_one_token():
    with pytest.raises(UserError, match="0 values, but distances reach 0: give 1"):
        TreeMask(edge_forest(1, np.zeros((0, 2), int)), np.zeros(0, np.float32))


def test_short_function_is_refused():
    forest = edge_forest(4, edges_of("path", 4))
    with pytest.raises(UserError, match="3 values, but distances reach 3: give 4"):
        TreeMask(forest, np.ones(3, np.float32))
