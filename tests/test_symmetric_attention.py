"""Symmetric GRF attention against the dense oracle; the policy of f; no quadratic array."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from mask_contract import check_gradient

from hdvpd.attention.grf import nonnegative_modulation, walk_attention
from hdvpd.attention.sampled_walks import sample_walks
from hdvpd.basics.errors import UserError
from hdvpd.kernels.walks import exact_walks
from studies.attention.dense import feature_matrix, masked_linear_attention
from studies.attention.graphs import edge_graph, graph_matrix, matrix_graph, symmetric_weights
from studies.attention.symmetric import symmetric_walk_attention
from studies.grf_measurements import COUPLINGS, grid

MODULATION = np.float32([1.1, 0.7, 0.4])
KERNELS = ("xla", "host")
attend = jax.jit(symmetric_walk_attention)


def graph_of(num_tokens, kernels="xla"):
    return matrix_graph(symmetric_weights(grid(num_tokens // 4, 4)), kernels=kernels)


@functools.cache
def walk_sets(kernels="xla", coupling="repelling"):
    keys = jax.random.split(jax.random.key(0))
    build = jax.jit(
        lambda key: sample_walks(graph_of(20, kernels), 4, 2, key, halting=0.2, coupling=coupling)
    )
    return tuple(build(key) for key in keys)


def random_inputs(num_tokens=20, m=4, channels=3):
    rng = np.random.default_rng(0)
    query, key = (np.maximum(rng.normal(size=(num_tokens, m)), 0) + 1e-3 for _ in range(2))
    return tuple(np.float32(x) for x in (query, key, rng.normal(size=(num_tokens, channels))))


def mask_of(one, two, modulation):
    left, right = (np.float64(feature_matrix(walks, modulation)) for walks in (one, two))
    return left @ right.T


@pytest.mark.parametrize(
    ("kernels", "coupling"), [("host", "repelling"), *(("xla", coupling) for coupling in COUPLINGS)]
)
def test_equals_the_dense_oracle_for_the_same_walks(kernels, coupling):
    one, two = walk_sets(kernels, coupling)
    inputs = random_inputs()
    expected = references.masked_attention(*inputs, mask_of(one, two, MODULATION))
    np.testing.assert_allclose(attend(*inputs, MODULATION, one, two), expected, atol=1e-5)
    expected = references.masked_attention(*inputs, mask_of(one, one, MODULATION))
    np.testing.assert_allclose(attend(*inputs, MODULATION, one), expected, atol=1e-5)


def test_weights_are_positive_and_sum_to_one():
    query, key, _ = random_inputs()
    weights = np.asarray(attend(query, key, np.eye(20, dtype=np.float32), MODULATION, *walk_sets()))
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(1), 1.0, atol=1e-6)


def test_without_hops_every_token_sees_itself():
    inputs = random_inputs()
    out = attend(*inputs, np.float32([3, 0, 0]), *walk_sets())
    np.testing.assert_allclose(out, inputs[2], rtol=1e-5)


def test_relabelling_tokens_permutes_outputs():
    inputs, (one, two) = random_inputs(), walk_sets()
    order = np.random.default_rng(1).permutation(20)
    rank = np.argsort(order).astype(np.int32)

    def relabel(walks):
        walks = jax.tree.map(lambda x: x[order], walks)
        return dataclasses.replace(walks, nodes=rank[walks.nodes])

    out = attend(*inputs, MODULATION, one, two)
    again = attend(*(x[order] for x in inputs), MODULATION, relabel(one), relabel(two))
    np.testing.assert_allclose(again, np.asarray(out)[order], atol=1e-6)


def test_gradients_equal_finite_differences_of_the_dense_form():
    inputs, (one, two) = (*random_inputs(), MODULATION), walk_sets()
    cotangent = np.random.default_rng(2).normal(size=(20, 3))

    def total(*inputs):
        return (attend(*inputs, one, two) * np.float32(cotangent)).sum()

    def dense(query, key, value, modulation):
        loads = [np.float64(walks.loads) @ modulation for walks in (one, two)]
        factors = np.zeros((2, 20, 20))
        for factor, walks, load in zip(factors, (one, two), loads, strict=True):
            np.add.at(factor, (np.arange(20)[:, None], np.asarray(walks.nodes)), load)
        out = references.masked_attention(query, key, value, factors[0] @ factors[1].T)
        return (out * cotangent).sum()

    grads = jax.jit(jax.grad(total, argnums=(0, 1, 2, 3)))(*inputs)
    rng = np.random.default_rng(3)
    inputs = [np.float64(x) for x in inputs]
    for i in range(4):
        directions = [rng.normal(size=x.shape) * (i == j) for j, x in enumerate(inputs)]
        expected = references.directional_derivative(dense, inputs, directions)
        assert np.vdot(grads[i], directions[i]) == pytest.approx(expected, rel=3e-4, abs=1e-5)


def test_half_precision_inputs_are_summed_in_float32():
    inputs, sets = random_inputs(), walk_sets()
    half = [jnp.asarray(x, jnp.bfloat16) for x in inputs]
    out = attend(*half, MODULATION, *sets)
    assert out.dtype == jnp.float32
    exact = attend(*(x.astype(jnp.float32) for x in half), MODULATION, *sets)
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-6)


def test_gradient_with_respect_to_the_modulation_in_float64():
    query, key, value = (np.float64(x) for x in random_inputs())
    weights = np.random.default_rng(4).normal(size=value.shape)
    one, two = walk_sets()
    for attention in (
        lambda f: symmetric_walk_attention(query, key, value, f, one, two),
        lambda f: walk_attention(query, key, value, f, one),
    ):
        check_gradient(lambda f, attention=attention: (weights * attention(f)).sum(), MODULATION)


# Bad input, and the policy where f could cross zero -----------------------------------------------


def symmetric(query, key, value, modulation, walks):
    return symmetric_walk_attention(query, key, value, modulation, walks)


def asymmetric(query, key, value, modulation, walks):
    return walk_attention(query, key, value, modulation, walks)


@pytest.mark.parametrize("attention", [symmetric, asymmetric])
@pytest.mark.parametrize(
    "modulation", [[1.0, -2.0, 0.5], [-1.0, 0.3, -0.2], [-1.0, -1.0, -1.0], [0.0, 0.0, 0.0]]
)
def test_negative_modulation_is_cut_and_outputs_stay_among_the_values(attention, modulation):
    query, key, value = random_inputs()
    walks = walk_sets()[0]
    modulation = np.float32(modulation)
    out, pull = jax.vjp(lambda *x: attention(*x, walks), query, key, value, modulation)
    cut = nonnegative_modulation(modulation)
    np.testing.assert_array_equal(out, attention(query, key, value, cut, walks))
    tolerance = 1e-5
    assert (out <= value.max(0, keepdims=True) + tolerance).all()
    assert (out >= value.min(0, keepdims=True) - tolerance).all()
    grads = pull(jnp.ones_like(out))
    assert all(np.isfinite(grad).all() for grad in grads)
    np.testing.assert_array_equal(np.asarray(grads[3])[modulation < 0], 0)


@pytest.mark.parametrize("attention", [symmetric, asymmetric])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_modulation_that_is_not_finite_is_refused_or_loud(attention, bad):
    inputs, walks = random_inputs(), walk_sets()[0]
    modulation = np.float32([1.0, bad, 0.5])
    with pytest.raises(UserError, match=r"modulation = .*finite"):
        attention(*inputs, modulation, walks)
    # Inside a compiled step it cannot raise; NaN reaches the loss, and the step is refused there.
    assert np.isnan(jax.jit(attention)(*inputs, modulation, walks)).any()


@pytest.mark.parametrize("length", [0, 2, 4])
def test_modulation_of_another_length_is_refused(length):
    inputs, walks = random_inputs(), walk_sets()[0]
    modulation = np.ones(length, np.float32)
    forms = [lambda: symmetric_walk_attention(*inputs, modulation, walks)]
    # Host code would read beyond the end of a short one.
    forms += [
        lambda kernels=kernels: walk_attention(
            *inputs, modulation, dataclasses.replace(walks, kernels=kernels)
        )
        for kernels in (*KERNELS, "pallas")
    ]
    for form in forms:
        with pytest.raises(UserError, match=rf"modulation of {length} values .* f_0..f_2"):
            form()


def test_asymmetric_weights_have_the_mask_of_their_features():
    # Phi Phi^T is then not the series of W, but it is defined, symmetric and not negative.
    edges = np.array([[0, 1], [1, 2], [2, 0], [0, 3]])
    graph = edge_graph(5, *edges.T, np.array([0.5, 0.3, 0.9, 0.4]), kernels="xla")
    walks = exact_walks(graph, 2)
    query, key, value = (x[:5] for x in random_inputs())
    matrix = graph_matrix(graph)
    phi = MODULATION[0] * np.eye(5) + MODULATION[1] * matrix + MODULATION[2] * matrix @ matrix
    expected = references.masked_attention(query, key, value, phi @ phi.T)
    out = symmetric_walk_attention(query, key, value, MODULATION, walks)
    np.testing.assert_allclose(out, expected, atol=1e-5)


def test_models_modulation_is_untouched():
    modulation = jax.nn.softplus(jnp.array([-3.0, 0.0, 2.0]))
    np.testing.assert_array_equal(nonnegative_modulation(modulation), modulation)


# Cost ---------------------------------------------------------------------------------------------


def largest_array(jaxpr):
    """Return the size of the largest array in a program, its inner programs included."""
    sizes = [
        var.aval.size for eqn in jaxpr.eqns for var in eqn.outvars if hasattr(var.aval, "size")
    ]
    for eqn in jaxpr.eqns:
        for value in jax.tree.leaves(list(eqn.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                sizes.append(largest_array(inner))
    return max(sizes, default=0)


def test_no_array_is_quadratic_in_tokens_nor_holds_all_features_of_all_entries():
    num_tokens, m, channels = 4096, 8, 5
    graph = jax.tree.map(jnp.asarray, graph_of(64))
    graph = jax.tree.map(lambda x: jnp.tile(x, (num_tokens // 64,) + (1,) * (x.ndim - 1)), graph)
    inputs = random_inputs(num_tokens, m, channels)

    def total(query, key, value, modulation):
        walks = sample_walks(graph, 3, 2, jax.random.key(0), halting=0.2, coupling="iid")
        return symmetric_walk_attention(query, key, value, modulation, walks).sum()

    program = jax.make_jaxpr(jax.grad(total, argnums=(0, 1, 2, 3)))(*inputs, MODULATION)
    entries, hops = 1 + 3 * 2, 3
    # The listed loads, or the products kept for the backward pass, are the largest.
    assert largest_array(program.jaxpr) <= num_tokens * max(entries * hops, m * (channels + 1))


def test_dense_reference_is_the_same_function():
    inputs, (one, two) = random_inputs(), walk_sets()
    mask = jnp.asarray(mask_of(one, two, MODULATION), jnp.float32)
    np.testing.assert_allclose(
        masked_linear_attention(*inputs, mask), attend(*inputs, MODULATION, one, two), atol=1e-5
    )
