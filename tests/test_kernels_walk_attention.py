"""Attention along walks against the dense masked form and sampled walks; its forms compared."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from threads import check_that_threads_change_nothing

from hdvpd.attention.feature_maps import RELU_LEAST
from hdvpd.attention.graphs import neighbor_graph
from hdvpd.attention.grf import relu_walk_attention, walk_attention
from hdvpd.attention.sampled_walks import sample_walks
from hdvpd.kernels.neighbors import knn
from hdvpd.kernels.walks import exact_walks
from studies.attention.graphs import edge_graph

KERNELS = ("xla", "host")
MODULATION = np.array([1.1, 0.7, 0.4, 0.9], np.float32)


@pytest.fixture(params=KERNELS)
def kernels(request):
    return request.param


@functools.partial(jax.jit, static_argnames="kernels")
def attend(query, key, value, modulation, neighbors, kernels):
    walks = exact_walks(scenes.list_graph(neighbors, kernels), modulation.shape[0] - 1)
    return walk_attention(query, key, value, modulation, walks)


def surface_neighbors(num_tokens, seed=0):
    points = np.random.default_rng(seed).uniform(size=(num_tokens, 3)) * [1, 1, 0]
    return references.nearest(points, points, 3, exclude_self=True)[0].astype(np.int32)


def random_inputs(num_tokens, m=8, channels=5, seed=0):
    """Positive query and key features and values."""
    rng = np.random.default_rng(seed)
    query, key = (np.maximum(rng.normal(size=(num_tokens, m)), 0) + 1e-3 for _ in range(2))
    value = rng.normal(size=(num_tokens, channels))
    return tuple(np.asarray(x, np.float32) for x in (query, key, value))


def dense(query, key, value, modulation, neighbors):
    return references.masked_attention(
        query, key, value, references.walk_mask(neighbors, modulation)
    )


@pytest.fixture(scope="module")
def small():
    """Inputs, neighbours and a cotangent of 24 tokens."""
    cotangent = np.random.default_rng(9).normal(size=(24, 5)).astype(np.float32)
    return (*random_inputs(24), MODULATION), surface_neighbors(24), cotangent


def test_equals_the_dense_masked_form(kernels):
    inputs, neighbors = random_inputs(256), surface_neighbors(256)
    out = attend(*inputs, MODULATION, neighbors, kernels)
    np.testing.assert_allclose(out, dense(*inputs, MODULATION, neighbors), atol=1e-5)


def test_equals_twenty_seven_sampled_repelling_walks(kernels):
    inputs, neighbors = random_inputs(48), surface_neighbors(48)
    out = attend(*inputs, MODULATION, neighbors, kernels)
    for seed in range(2):
        shares = references.repelling_walks(neighbors, 3, 27, np.random.default_rng(seed))
        mask = np.einsum("l,lij->ij", MODULATION, shares)
        np.testing.assert_allclose(out, references.masked_attention(*inputs, mask), atol=1e-5)


@pytest.mark.parametrize(
    ("coupling", "form"),
    [("iid", "xla"), ("antithetic", "host"), ("repelling", "pallas"),
     ("repelling-antithetic", "host")],
)  # fmt: skip
def test_equals_the_dense_form_for_the_same_sampled_walks(coupling, form):
    # A directed graph with a loop, a double edge, an isolated node and a dead end.
    edges = np.array([[1, 1], [1, 2], [1, 2], [2, 3], [3, 2], [4, 0], [4, 1]])
    weights = np.array([0.3, 0.4, 0.2, 0.9, 0.5, 0.7, 0.6])
    graph = edge_graph(6, *edges.T, weights, kernels=form)
    build = jax.jit(lambda key: sample_walks(graph, 4, 3, key, halting=0.3, coupling=coupling))
    walks = build(jax.random.key(2))
    inputs = random_inputs(6)
    mask = np.zeros((6, 6))
    loads = np.float64(walks.loads) @ np.float64(MODULATION)
    np.add.at(mask, (np.arange(6)[:, None], np.asarray(walks.nodes)), loads)
    out = np.asarray(walk_attention(*inputs, MODULATION, walks))
    np.testing.assert_allclose(out, references.masked_attention(*inputs, mask), atol=1e-5)
    np.testing.assert_allclose(out[[0, 5]], inputs[2][[0, 5]], rtol=1e-6)


@pytest.mark.parametrize("form", [*KERNELS, "pallas"])
def test_half_precision_inputs_are_summed_in_float32(form):
    inputs, neighbors = random_inputs(24), surface_neighbors(24)
    half = [jnp.asarray(x, jnp.bfloat16) for x in inputs]

    def total(*inputs):
        return attend(*inputs, MODULATION, neighbors, form).sum()

    out = attend(*half, MODULATION, neighbors, form)
    assert out.dtype == jnp.float32
    rounded = [np.float64(x) for x in half]
    np.testing.assert_allclose(out, dense(*rounded, MODULATION, neighbors), atol=1e-5)
    differentiate = jax.jit(jax.grad(total, (0, 1, 2)))
    exact = differentiate(*(x.astype(jnp.float32) for x in half))
    for grad, expected in zip(differentiate(*half), exact, strict=True):
        assert grad.dtype == jnp.bfloat16
        # Only the result is rounded, to 8 bits.
        np.testing.assert_allclose(np.float32(grad), expected, rtol=2**-8, atol=1e-6)


def test_weights_are_positive_and_sum_to_one(kernels):
    (query, key, value), neighbors = random_inputs(48), surface_neighbors(48)
    constant = attend(query, key, np.full_like(value, 3.7), MODULATION, neighbors, kernels)
    np.testing.assert_allclose(constant, 3.7, rtol=1e-6)
    # With identity values the output rows are the weights themselves.
    weights = np.asarray(attend(query, key, np.eye(48, dtype=np.float32), MODULATION, neighbors,
                                kernels))  # fmt: skip
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)


def test_without_hops_in_the_modulation_every_token_sees_itself(kernels):
    (query, key, value), neighbors = random_inputs(24), surface_neighbors(24)
    out = attend(query, key, value, np.array([2, 0, 0, 0], np.float32), neighbors, kernels)
    np.testing.assert_allclose(out, value, rtol=1e-6)


def test_relabelling_tokens_permutes_outputs(kernels):
    (query, key, value), neighbors = random_inputs(24), surface_neighbors(24)
    order = np.random.default_rng(1).permutation(24)
    rank = np.argsort(order).astype(np.int32)
    out = attend(query, key, value, MODULATION, neighbors, kernels)
    again = attend(
        query[order], key[order], value[order], MODULATION, rank[neighbors[order]], kernels
    )
    np.testing.assert_allclose(again, np.asarray(out)[order], atol=1e-6)


@functools.partial(jax.jit, static_argnums=3)
def gradients(inputs, neighbors, cotangent, kernels):
    def total(inputs):
        return (attend(*inputs, neighbors, kernels) * cotangent).sum()

    return jax.grad(total)(inputs)


def test_gradients_equal_finite_differences_of_the_dense_form(kernels, small):
    inputs, neighbors, cotangent = small
    grads = gradients(inputs, neighbors, cotangent, kernels)
    rng = np.random.default_rng(2)
    inputs = [np.float64(x) for x in inputs]
    for i in range(4):
        directions = [rng.normal(size=x.shape) * (i == j) for j, x in enumerate(inputs)]
        expected = references.directional_derivative(
            lambda *x: (dense(*x, neighbors) * cotangent).sum(), inputs, directions
        )
        assert np.vdot(grads[i], directions[i]) == pytest.approx(expected, rel=2e-4, abs=1e-5)


def transformed(name, kernels, neighbors, cotangent):
    """Return (value, gradients) of inputs with a leading axis of 2, by one of jax's means."""

    def value(inputs):
        return (attend(*inputs, neighbors, kernels) * cotangent).sum()

    def scanned(inputs):
        return jax.lax.scan(lambda carry, x: (carry + value(x), None), 0.0, inputs)[0]

    total = {
        "jit": lambda inputs: sum(value(jax.tree.map(lambda x, b=b: x[b], inputs)) for b in (0, 1)),
        "vmap": lambda inputs: jax.vmap(value)(inputs).sum(),
        "scan": scanned,
        "checkpoint": jax.checkpoint(scanned),
    }[name]
    return jax.jit(jax.value_and_grad(total))


@pytest.fixture(scope="module")
def pair():
    """Two sets of inputs, stacked."""
    inputs = [(*random_inputs(24, seed=seed), MODULATION + np.float32(seed)) for seed in (0, 1)]
    return tuple(jnp.asarray(np.stack(x)) for x in zip(*inputs, strict=True))


@pytest.fixture(scope="module")
def reference(small, pair):
    """Value and gradients in plain JAX."""
    return transformed("jit", "xla", *small[1:])(pair)


@pytest.mark.parametrize("form", ["xla", "host", "pallas"])
@pytest.mark.parametrize("transform", ["jit", "vmap", "scan", "checkpoint"])
def test_all_forms_agree_under_transformations(small, pair, reference, transform, form):
    value, grads = transformed(transform, form, *small[1:])(pair)
    np.testing.assert_allclose(value, reference[0], rtol=1e-5)
    for one, other in zip(grads, reference[1], strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("form", ["host", "pallas"])
def test_walks_that_are_only_listed_give_the_same(small, form):
    inputs, neighbors, cotangent = small
    listed = exact_walks(scenes.list_graph(neighbors, "xla"), 3)

    def pull_back(kernels):
        walks = dataclasses.replace(listed, kernels=kernels)
        out, vjp = jax.vjp(lambda *x: walk_attention(*x, walks), *map(jnp.asarray, inputs))
        return out, *vjp(jnp.asarray(cotangent))

    for one, other in zip(
        *(jax.jit(pull_back, static_argnums=0)(k) for k in (form, "xla")), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4)


def test_host_kernels_do_not_depend_on_the_number_of_threads(small):
    inputs, neighbors, cotangent = small
    check_that_threads_change_nothing(lambda: gradients(inputs, neighbors, cotangent, "host"))


# Features made by the kernel ----------------------------------------------------------------------


def padded_walks(num_tokens, seed=0, hops=3):
    """Return all walks of three hops on a cloud of which some tokens are padding."""
    rng = np.random.default_rng(seed)
    positions = jnp.asarray(rng.normal(size=(num_tokens, 3)), jnp.float32)
    real = jnp.asarray(rng.random(num_tokens) < 0.8)
    found = knn(positions, positions, 3, mask=real, exclude_self=True)
    return exact_walks(neighbor_graph(found, real, "host"), hops)


def projections(num_tokens, width, seed=0):
    """Return queries, keys and values beside each other, some rows zero, and a cotangent."""
    rng = np.random.default_rng(seed)
    together, bar = (rng.normal(size=(num_tokens, w)) for w in (3 * width, width))
    together[::5, :width] = 0.0
    together[::7, width : 2 * width] = 0.0
    return np.float32(together), np.float32(bar)


def of_projections(together, modulation, nodes, loads):
    query, key, value = jnp.split(together, 3, axis=1)
    query = jax.nn.relu(query / np.sqrt(query.shape[1])) + RELU_LEAST
    key = jax.nn.relu(key) + RELU_LEAST
    weights = jnp.einsum("tm,tem->te", query, key[nodes]) * (loads @ modulation)
    return jnp.einsum("te,tec->tc", weights, value[nodes]) / weights.sum(1, keepdims=True)


@jax.jit
def relu_result_and_gradients(together, modulation, walks, bar):
    attend = functools.partial(relu_walk_attention, walks=walks)
    result, pull_back = jax.vjp(attend, together, modulation)
    return result, *pull_back(bar)


# One block and several, the last one not full; rows of whole vectors and not; hops as usual, more,
# and fewer; entries that fill one vector or several.
@pytest.mark.parametrize(
    ("num_tokens", "width", "hops"),
    [(24, 5, 3), (150, 64, 3), (200, 40, 3), (150, 24, 4), (100, 70, 1)],
)
def test_relu_features_and_their_gradients_equal_a_formula_in_float64(num_tokens, width, hops):
    walks, (together, bar) = padded_walks(num_tokens, hops=hops), projections(num_tokens, width)
    modulation = np.array([*MODULATION, 0.6], np.float32)[: hops + 1]
    found = relu_result_and_gradients(together, modulation, walks, bar)
    nodes, loads = np.asarray(walks.nodes), np.asarray(walks.loads)
    with jax.enable_x64(True):
        inputs = [jnp.asarray(x, jnp.float64) for x in (together, modulation)]
        result, pull_back = jax.vjp(
            lambda *x: of_projections(*x, nodes, jnp.asarray(loads, jnp.float64)), *inputs
        )
        expected = [np.asarray(x) for x in (result, *pull_back(jnp.asarray(bar, jnp.float64)))]
    assert (np.asarray(walks.num_entries) == 1).any()
    assert (np.asarray(walks.num_entries) > 16).any() == (hops > 2 and num_tokens > 24)
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_relu_features_of_what_is_no_number_are_none():
    walks, (together, _) = padded_walks(24), projections(24, 8)
    for column in (0, 8, 16):
        broken = together.copy()
        broken[3, column] = np.nan
        assert np.isnan(relu_walk_attention(broken, MODULATION, walks)[3]).any()


def test_relu_features_mapped_are_one_after_another():
    parts = [(padded_walks(24, seed), *projections(24, 8, seed)) for seed in range(2)]
    walks, together, bar = jax.tree.map(lambda *x: jnp.stack(x), *parts)
    mapped = jax.vmap(relu_result_and_gradients, in_axes=(0, None, 0, 0))(
        together, MODULATION, walks, bar
    )
    for i, (walks, together, bar) in enumerate(parts):
        single = relu_result_and_gradients(together, MODULATION, walks, bar)
        for ours, theirs in zip(mapped, single, strict=True):
            np.testing.assert_array_equal(ours[i], theirs)


def test_relu_features_do_not_depend_on_the_number_of_threads():
    walks, (together, bar) = padded_walks(500), projections(500, 16)
    check_that_threads_change_nothing(
        lambda: relu_result_and_gradients(together, MODULATION, walks, bar)
    )
