"""Masks of graphs: power series, diffusion, walks, random-walk graph-node kernels."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.sparse.linalg
import scipy.special
from mask_contract import attend, check_attention, check_gradient, check_mask, densify, multiply

from hdvpd.attention import graphs, sampled_walks
from hdvpd.attention.graphs import SymmetricPart
from hdvpd.attention.grf import walk_attention
from hdvpd.attention.masks.diffusion import chebyshev_coefficients, chebyshev_degree
from hdvpd.attention.masks.diffusion import diffusion_mask as learned_diffusion
from hdvpd.attention.masks.rwgnk import rwgnk_mask, rwgnk_rows
from hdvpd.attention.masks.walks import SparseMask, WalkMask, walk_rows
from hdvpd.basics.errors import UserError
from hdvpd.kernels import walks as walk_kernels
from studies import grf_measurements as measure
from studies.attention import power_series as series
from studies.attention.graphs import edge_graph, graph_matrix, matrix_graph, symmetric_weights
from studies.attention.masks.diffusion import diffusion_mask, spectral_radius
from studies.attention.masks.series import PowerSeriesMask

MODULATION = np.float32([1.1, 0.7, 0.4])

# One program each: operation by operation these compile up to ninety.
transition_graph = jax.jit(graphs.transition_graph, static_argnums=1)
exact_walks = jax.jit(walk_kernels.exact_walks, static_argnums=1)
sample_walks = jax.jit(sampled_walks.sample_walks, static_argnums=(1, 2), static_argnames="halting")
make_rows = jax.jit(walk_rows)
make_rwgnk = jax.jit(rwgnk_mask, static_argnums=2)


def weighted_adjacency(num_nodes=9, seed=0):
    """Return a symmetric matrix with loops, unequal degrees and an isolated node."""
    rng = np.random.default_rng(seed)
    upper = np.triu(rng.uniform(0.5, 1.5, (num_nodes,) * 2) * (rng.random((num_nodes,) * 2) < 0.4))
    upper[3] = upper[:, 3] = 0
    return upper + np.triu(upper, 1).T


def directed_graph():
    """Return a graph with a loop, a double edge, an isolated node and one-way edges."""
    edges = [(1, 1, 0.3), (1, 2, 0.4), (1, 2, 0.2), (2, 3, 0.9), (3, 2, 0.5), (4, 0, 0.7)]
    sources, targets, weights = (np.array(x) for x in zip(*edges, strict=True))
    return edge_graph(5, sources, targets, weights)


LONELY = matrix_graph(np.zeros((1, 1)))
EDGELESS = matrix_graph(np.zeros((3, 3)))


# Graphs -------------------------------------------------------------------------------------------


def test_products_with_a_graph_are_those_with_its_matrix():
    graph = directed_graph()
    matrix, x = graph_matrix(graph), np.random.default_rng(0).normal(size=(5, 2))
    x = np.float32(x)
    np.testing.assert_allclose(graph @ x, matrix @ x, atol=1e-6)
    np.testing.assert_allclose(graph.transposed_product(x), matrix.T @ x, atol=1e-6)
    np.testing.assert_allclose(SymmetricPart(graph) @ x, (matrix + matrix.T) / 2 @ x, atol=1e-6)


def test_transitions_are_uniform_over_edges_and_make_every_load_one():
    graph = dataclasses.replace(directed_graph(), kernels="xla")
    matrix = graph_matrix(transition_graph(graph))
    np.testing.assert_allclose(matrix.sum(1), [0, 1, 1, 1, 1], atol=1e-7)
    np.testing.assert_allclose(matrix[1], [0, 1 / 3, 2 / 3, 0, 0], atol=1e-7)
    walks = sample_walks(transition_graph(graph, 0.4), 8, 3, jax.random.key(0), halting=0.4)
    loads = np.asarray(walks.loads) * 8
    assert np.isin(loads[:, 1:].round(5), [0, 1]).all()


# Power series -------------------------------------------------------------------------------------


@pytest.mark.parametrize("directed", [False, True])
def test_power_series_is_the_series_of_dense_products(directed):
    graph = directed_graph() if directed else matrix_graph(symmetric_weights(weighted_adjacency()))
    coefficients = series.exponential(9).mask
    matrix = graph_matrix(graph)
    oracle = sum(c * np.linalg.matrix_power(matrix, k) for k, c in enumerate(coefficients))
    mask = PowerSeriesMask(graph, np.float32(coefficients))
    check_mask(mask, oracle)
    check_attention(mask, oracle)


@pytest.mark.parametrize(("graph", "num_terms"), [(LONELY, 1), (EDGELESS, 2)])
def test_power_series_of_graphs_without_edges(graph, num_terms):
    mask = PowerSeriesMask(graph, np.float32([2.0, 1.0])[:num_terms])
    check_mask(mask, 2 * np.eye(graph.num_rows))


def test_power_series_differentiates_in_its_coefficients():
    graph = SymmetricPart(directed_graph())
    x = np.random.default_rng(0).normal(size=(5, 2))
    check_gradient(
        lambda c: ((PowerSeriesMask(graph, jnp.asarray(c)) @ x) ** 2).sum(), [1.0, 0.5, -0.25]
    )


def test_an_empty_series_is_refused():
    with pytest.raises(UserError, match=r"coefficients = \[\].*alpha_0"):
        PowerSeriesMask(LONELY, np.zeros(0, np.float32))


# Diffusion ----------------------------------------------------------------------------------------

GENERATORS = ("laplacian", "walk", "adjacency")


def generator_matrix(adjacency, generator):
    degrees = adjacency.sum(1)
    if generator == "adjacency":
        return -adjacency
    laplacian = np.diag(degrees) - adjacency
    if generator == "laplacian":
        return laplacian
    return laplacian / np.where(degrees > 0, degrees, 1)[None]


@pytest.mark.parametrize(
    ("generator", "time"),
    [("laplacian", 0.0), ("walk", 0.0), ("adjacency", 0.0), ("laplacian", 4.0), ("walk", 4.0),
     ("adjacency", 0.7)],
)  # fmt: skip
def test_diffusion_is_the_matrix_exponential(generator, time):
    adjacency = weighted_adjacency()
    matrix = generator_matrix(adjacency, generator)
    oracle = scipy.linalg.expm(-time * matrix)
    mask = diffusion_mask(matrix_graph(adjacency), time, generator)
    check_mask(mask, oracle)
    if generator == "walk":
        check_attention(mask, oracle, atol=2e-5)
    x = np.float32(np.random.default_rng(0).normal(size=(9, 2)))
    independent = scipy.sparse.linalg.expm_multiply(-time * scipy.sparse.csr_array(matrix), x)
    np.testing.assert_allclose(
        multiply(mask, x), independent, atol=5e-6 * np.abs(independent).max()
    )


@pytest.mark.parametrize("generator", GENERATORS)
def test_diffusion_times_add_and_heat_is_kept(generator):
    graph = matrix_graph(weighted_adjacency())

    def apply(time, x):
        return multiply(diffusion_mask(graph, time, generator), x)

    x = np.float32(np.random.default_rng(0).normal(size=(9, 2)))
    whole = np.asarray(apply(1.2, x))
    np.testing.assert_allclose(apply(0.5, apply(0.7, x)), whole, atol=1e-5 * np.abs(whole).max())
    ones, dense = np.ones((9, 1), np.float32), np.asarray(apply(1.2, np.eye(9, dtype=np.float32)))
    assert dense.min() > -1e-5 * dense.max()
    radius = np.linalg.eigvalsh(weighted_adjacency()).max()
    largest = np.exp(1.2 * radius) if generator == "adjacency" else 1
    np.testing.assert_allclose(dense[3], np.eye(9)[3], atol=2e-6 * largest)
    if generator == "laplacian":
        np.testing.assert_allclose(apply(1.2, ones), ones, atol=2e-6)
    if generator == "walk":
        np.testing.assert_allclose(dense.sum(0), 1, atol=5e-6)


def star(num_nodes):
    adjacency = np.zeros((num_nodes, num_nodes))
    adjacency[0, 1:] = adjacency[1:, 0] = 1
    return adjacency


def random_graph(num_nodes, seed, falling=False):
    """Return a graph with edges of probability 0.1, or falling with both nodes' numbers."""
    rng = np.random.default_rng(seed)
    share = 1 / np.arange(1, num_nodes + 1)
    chance = 20 * share[:, None] * share[None] if falling else 0.1
    edges = np.triu(rng.random((num_nodes,) * 2) < chance, 1)
    return np.float64(edges | edges.T)


@pytest.mark.parametrize(
    ("adjacency", "tolerance"),
    [
        (star(20), 1e-6),
        (star(50), 1e-6),
        (random_graph(60, 0), 1e-6),
        (random_graph(100, 1), 1e-6),
        # Rounding counts lambda r times over, 11.5 and 31.6 here, and over 999 neighbours.
        (random_graph(120, 1, falling=True), 1.5e-6),
        (star(1000), 1e-4),
    ],
    ids=["star 20", "star 50", "random 60", "random 100", "falling", "star 1000"],
)
def test_exponential_of_an_irregular_adjacency_keeps_its_digits(adjacency, tolerance):
    # Largest degrees are up to 32 times the spectral radius; scaled by them no digit was left.
    graph, num_nodes = matrix_graph(adjacency), len(adjacency)
    radius = np.linalg.eigvalsh(adjacency).max()
    assert spectral_radius(graph) == pytest.approx(radius, rel=1e-4)
    oracle = scipy.linalg.expm(adjacency)
    mask = diffusion_mask(graph, 1.0, "adjacency")
    x = np.random.default_rng(0).normal(size=(num_nodes, 4))
    for columns in (np.eye(num_nodes)[:, :4], x):
        expected = oracle @ columns
        error = np.asarray(multiply(mask, np.float32(columns))) - expected
        assert np.linalg.norm(error) < tolerance * np.linalg.norm(expected)
    ones = np.ones((num_nodes, 1), np.float32)
    sums, bound = oracle.sum(1, keepdims=True), np.asarray(mask.rounding_error(ones))
    assert (np.abs(multiply(mask, ones) - sums) < bound).all()
    attended = attend(ones, ones, ones, mask)
    np.testing.assert_allclose(attended, sums > bound, rtol=1e-6)


def test_the_adjacencys_scale_is_known_under_jit_and_follows_the_symmetric_part():
    graph = SymmetricPart(directed_graph())
    radius = np.linalg.eigvalsh(np.asarray(graph.dense(), np.float64)).max()
    assert spectral_radius(graph) == pytest.approx(radius, rel=1e-6)
    oracle = scipy.linalg.expm(0.7 * np.asarray(graph.dense(), np.float64))
    run = jax.jit(lambda t, x: diffusion_mask(graph, t, "adjacency", largest_time=2.0) @ x)
    found = run(0.7, np.eye(5, dtype=np.float32))
    np.testing.assert_allclose(found, oracle, atol=1e-6 * np.exp(2 * radius))


def test_rows_below_the_products_errors_attend_to_nothing_and_say_so(caplog):
    mask = diffusion_mask(matrix_graph(weighted_adjacency()), 8.0, "adjacency")
    assert "1 of its 9 rows" in caplog.text
    caplog.clear()
    diffusion_mask(matrix_graph(weighted_adjacency()), 1.0, "adjacency")
    assert not caplog.text
    ones = np.ones((9, 1), np.float32)
    out = np.asarray(attend(ones, ones, ones, mask))[:, 0]
    # The isolated node's row is one entry of 1 beside entries of e^28.
    assert out[3] == 0
    assert out.max() == pytest.approx(1)


@pytest.mark.parametrize("generator", GENERATORS)
def test_without_edges_nothing_diffuses(generator):
    for graph in (LONELY, EDGELESS):
        identity = np.eye(graph.num_rows, dtype=np.float32)
        mask = diffusion_mask(graph, 2.0, generator)
        np.testing.assert_allclose(multiply(mask, identity), identity, atol=2e-6)
        np.testing.assert_allclose(densify(mask), identity, atol=2e-6)


def test_directed_graphs_diffuse_by_their_symmetric_part():
    graph = directed_graph()
    matrix = (graph_matrix(graph) + graph_matrix(graph).T) / 2
    oracle = scipy.linalg.expm(-generator_matrix(matrix, "walk"))
    mask = diffusion_mask(SymmetricPart(graph), 1.0)
    np.testing.assert_allclose(multiply(mask, np.eye(5, dtype=np.float32)), oracle, atol=2e-6)
    np.testing.assert_allclose(densify(mask), oracle, atol=2e-6)


@pytest.mark.parametrize("time", [1.0, 5.0])
def test_models_diffuse_by_the_same_mask(time):
    columns = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    graph = SymmetricPart(directed_graph())
    expected = diffusion_mask(graph, min(time, 2.0), largest_time=2.0)
    mask = jax.jit(learned_diffusion, static_argnums=2)(graph, time, 2.0)
    np.testing.assert_array_equal(mask @ columns, expected @ columns)
    np.testing.assert_array_equal(mask.rounding_error(columns), expected.rounding_error(columns))
    np.testing.assert_allclose(mask.dense(), expected.dense(), atol=1e-6)


def test_diffusion_differentiates_in_its_time():
    graph = matrix_graph(weighted_adjacency())
    x = np.random.default_rng(0).normal(size=(9, 2))
    for generator in GENERATORS:
        check_gradient(
            lambda time, g=generator: (
                (diffusion_mask(graph, time, g, largest_time=2.0) @ x) ** 2
            ).sum(),
            0.8,
        )


@pytest.mark.parametrize(("exponent", "degree"), [(2.0, 8), (8.0, 16), (30.0, 32)])
def test_chebyshev_coefficients_are_bessels_and_few_suffice(exponent, degree):
    assert chebyshev_degree(exponent) <= degree
    orders = np.arange(degree + 1)
    expected = 2 * (-1.0) ** orders * scipy.special.ive(orders, exponent)
    expected[0] /= 2
    with jax.enable_x64(True):
        found = chebyshev_coefficients(jnp.float64(exponent), degree + 1)
        np.testing.assert_allclose(found, expected, atol=1e-14)


def test_a_traced_time_is_cut_to_its_bounds():
    graph = matrix_graph(weighted_adjacency())
    x = np.ones((9, 1), np.float32)
    run = jax.jit(lambda time: diffusion_mask(graph, time, largest_time=1.0) @ x)
    np.testing.assert_allclose(run(5.0), run(1.0))
    np.testing.assert_allclose(run(-1.0), x, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ({"time": -0.5}, "time = -0.5"),
        ({"time": float("nan")}, "time = nan"),
        ({"time": 3.0, "largest_time": 2.0}, "largest_time = 2"),
        ({"time": 100.0, "generator": "adjacency"}, "too large for float32"),
        ({"graph": directed_graph()}, "A[0, 4] = 0 but A[4, 0] = 0.7"),
        ({"graph": matrix_graph(-weighted_adjacency())}, "weights >= 0"),
        ({"graph": SymmetricPart(matrix_graph(-weighted_adjacency()))}, "weights >= 0"),
        # A Laplacian in the place of A, one that is not symmetric too.
        ({"graph": matrix_graph(generator_matrix(weighted_adjacency(), "laplacian"))}, "Laplacian"),
        ({"graph": matrix_graph(generator_matrix(weighted_adjacency(), "walk"))}, "Laplacian"),
    ],
)
def test_impossible_diffusions_are_refused(arguments, part):
    settings = {"graph": matrix_graph(weighted_adjacency()), "time": 1.0, **arguments}
    with pytest.raises(UserError) as caught:
        diffusion_mask(**settings)
    assert part in str(caught.value)


def test_what_must_be_known_before_tracing_is_said():
    graph = jax.tree.map(jnp.asarray, matrix_graph(weighted_adjacency()))
    with pytest.raises(UserError, match="largest_time: give a bound"):
        jax.jit(lambda time: diffusion_mask(graph, time) @ jnp.ones((9, 1)))(1.0)
    with pytest.raises(UserError, match="must be known before tracing"):
        jax.jit(lambda graph: diffusion_mask(graph, 1.0, "laplacian") @ jnp.ones((9, 1)))(graph)


# Walks --------------------------------------------------------------------------------------------


@functools.cache
def walk_sets():
    graph = matrix_graph(symmetric_weights(weighted_adjacency()), kernels="xla")
    build = jax.jit(lambda key: sample_walks(graph, 3, 2, key, halting=0.2))
    return tuple(build(key) for key in jax.random.split(jax.random.key(0)))


def features(walks, modulation):
    """Return Phi in float64."""
    matrix = np.zeros((len(walks.nodes),) * 2)
    loads = np.float64(walks.loads) @ np.float64(modulation)
    np.add.at(matrix, (np.arange(len(matrix))[:, None], np.asarray(walks.nodes)), loads)
    return matrix


def test_walk_masks_are_products_of_their_features():
    one, two = walk_sets()
    left, right = (make_rows(walks, MODULATION) for walks in (one, two))
    phi, psi = (features(walks, MODULATION) for walks in (one, two))
    for mask, oracle in ((SparseMask(left), phi), (WalkMask(left, left), phi @ phi.T),
                         (WalkMask(left, right), phi @ psi.T)):  # fmt: skip
        check_mask(mask, oracle)


@pytest.mark.parametrize("directed", [False, True])
def test_features_of_two_modulations_have_their_convolution_as_mask(directed):
    # Phi_1 Phi_2^T with f_1 * f_2 = alpha; keys without walks, f_2 = (1, 0, 0), need no symmetry.
    graph = directed_graph() if directed else matrix_graph(symmetric_weights(weighted_adjacency()))
    walks = exact_walks(graph, 2)
    one, two = MODULATION, np.float32([1, 0, 0] if directed else [0.8, 0.5, 0.3])
    matrix = graph_matrix(graph)
    alpha = np.convolve(np.float64(one), np.float64(two))
    oracle = sum(c * np.linalg.matrix_power(matrix, k) for k, c in enumerate(alpha))
    check_mask(WalkMask(make_rows(walks, one), make_rows(walks, two)), oracle)


def test_walk_masks_differentiate_in_their_modulation():
    one, two = walk_sets()
    x = np.random.default_rng(0).normal(size=(9, 2))
    for symmetric in (False, True):

        def total(modulation, symmetric=symmetric):
            rows = walk_rows(one, modulation)
            mask = WalkMask(rows, walk_rows(two, modulation)) if symmetric else rows
            return ((mask @ x) ** 2).sum()

        check_gradient(total, [1.0, 0.5, 0.25])


def test_the_direct_contraction_is_attention_under_the_one_sided_mask():
    walks = walk_sets()[0]
    rng = np.random.default_rng(0)
    query, key = (np.float32(np.maximum(rng.normal(size=(9, 4)), 0) + 1e-3) for _ in range(2))
    value = np.float32(rng.normal(size=(9, 3)))
    mask = SparseMask(make_rows(walks, MODULATION))
    expected = attend(query, key, value, mask)
    for kernels in ("xla", "host"):
        form = dataclasses.replace(walks, kernels=kernels)
        direct = jax.jit(walk_attention)(query, key, value, MODULATION, form)
        np.testing.assert_allclose(direct, expected, atol=1e-5)


# Random-walk graph-node kernels -------------------------------------------------------------------


def irregular_adjacency():
    """Return a path with two chords: degrees 1 to 3."""
    adjacency = measure.grid(1, 7)
    adjacency[1, 3] = adjacency[3, 1] = adjacency[2, 5] = adjacency[5, 2] = 1
    return adjacency


@pytest.mark.parametrize(("kernels", "norm_power"), [("host", 0.0), ("host", 0.5), ("xla", 1.0)])
def test_rwgnk_of_all_walks_is_its_closed_form(kernels, norm_power):
    adjacency = irregular_adjacency()
    walks = exact_walks(transition_graph(matrix_graph(adjacency, kernels=kernels)), 3)
    matrix = adjacency / adjacency.sum(1, keepdims=True)
    psi = sum(0.6**e * np.linalg.matrix_power(matrix, e) for e in range(4))
    psi /= np.linalg.norm(psi, axis=1, keepdims=True) ** norm_power
    mask = make_rwgnk(walks, np.float32(0.6), norm_power)
    check_mask(mask, psi @ psi.T)
    check_attention(mask, psi @ psi.T)
    if norm_power == 1:
        matrix = np.asarray(densify(mask))
        np.testing.assert_allclose(np.diag(matrix), 1, rtol=1e-6)
        assert matrix.max() < 1 + 1e-6


def test_rwgnk_lies_within_the_papers_bounds():
    adjacency = irregular_adjacency()
    # rho^8 / (1 - rho) < 1e-5 is what seven hops leave out.
    rho, degrees = 0.2, adjacency.sum(1)
    walks = exact_walks(transition_graph(matrix_graph(adjacency)), 6)
    kernel = np.asarray(densify(make_rwgnk(walks, np.float32(rho), 0.0)))
    lower, upper = (
        np.linalg.matrix_power(np.linalg.inv(np.eye(7) - rho * adjacency / degree), 2)
        for degree in (degrees.max(), degrees.min())
    )
    slack = 1e-4
    assert (kernel >= lower - slack).all()
    assert (kernel <= upper + slack).all()
    assert (upper - lower).max() > 100 * slack


def test_rwgnk_features_of_sampled_walks_are_unbiased():
    adjacency = irregular_adjacency()
    halting, decay, num_runs, num_hops = 0.3, 0.6, 2000, 12
    graph = transition_graph(matrix_graph(adjacency, kernels="xla"), halting)
    samples = measure.sampled_features(
        graph, decay ** np.arange(num_hops + 1), jax.random.key(3), num_runs,
        num_walkers=3, num_hops=num_hops, halting=halting, coupling="iid",
    )  # fmt: skip
    matrix = adjacency / adjacency.sum(1, keepdims=True)
    truth = np.linalg.inv(np.eye(7) - (1 - halting) * decay * matrix)
    assert np.abs(measure.standard_scores(samples, truth)).max() < 4
    # The same walks by the mask's own rows.
    walks = sample_walks(graph, 3, num_hops, jax.random.key(3), halting=halting)
    rows = densify(jax.jit(rwgnk_rows, static_argnums=2)(walks, np.float32(decay), 0.0))
    np.testing.assert_allclose(rows, features(walks, decay ** np.arange(num_hops + 1)), atol=1e-6)


@pytest.mark.parametrize("norm_power", [0.0, 1.0])
def test_rwgnk_differentiates_in_its_decay(norm_power):
    walks = exact_walks(transition_graph(matrix_graph(irregular_adjacency())), 2)
    x = np.random.default_rng(0).normal(size=(7, 2))
    check_gradient(
        lambda decay: ((rwgnk_mask(walks, decay, norm_power) @ x) ** 2).sum(), 0.6, eps=1e-3
    )


def test_rwgnk_at_its_edges():
    walks = exact_walks(transition_graph(EDGELESS), 2)
    np.testing.assert_array_equal(densify(make_rwgnk(walks, np.float32(0.5))), np.eye(3))
    walks = exact_walks(transition_graph(matrix_graph(irregular_adjacency())), 2)
    np.testing.assert_array_equal(densify(make_rwgnk(walks, np.float32(0))), np.eye(7))
    slope = jax.jit(jax.grad(lambda decay: rwgnk_mask(walks, decay).dense().sum()))(0.0)
    assert np.isfinite(slope)
    assert slope > 0
    with pytest.raises(UserError, match=r"decay = -0.1"):
        rwgnk_mask(walks, jnp.float32(-0.1))


# Graphs in several parts --------------------------------------------------------------------------


@functools.cache
def parts_masks():
    """Return every mask of a graph of two parts, three and four nodes."""
    adjacency = scipy.linalg.block_diag(measure.grid(1, 3), measure.grid(2, 2))
    graph, weights = matrix_graph(adjacency), matrix_graph(symmetric_weights(adjacency))
    rows = make_rows(sample_walks(weights, 3, 2, jax.random.key(0)), MODULATION)
    visits = exact_walks(transition_graph(graph), 3)
    return {
        **{generator: diffusion_mask(graph, 0.9, generator) for generator in GENERATORS},
        "power series": PowerSeriesMask(weights, MODULATION),
        "one-sided walks": SparseMask(rows),
        "walks": WalkMask(rows, rows),
        "RWGNK": make_rwgnk(visits, np.float32(0.6)),
    }


@pytest.mark.parametrize("name", [*GENERATORS, "power series", "one-sided walks", "walks", "RWGNK"])
def test_parts_of_a_graph_do_not_see_each_other(name):
    mask = parts_masks()[name]
    matrix = np.asarray(multiply(mask, np.eye(7, dtype=np.float32)))
    np.testing.assert_array_equal(matrix[:3, 3:], 0)
    np.testing.assert_array_equal(matrix[3:, :3], 0)
    # No row is lost: each part attends within itself.
    ones, value = np.ones((7, 1), np.float32), np.float32([[1]] * 3 + [[2]] * 4)
    np.testing.assert_allclose(attend(ones, ones, value, mask), value, rtol=1e-5)
