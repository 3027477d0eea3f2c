"""GRF attention against the dense masked form and sampled walks; its two kernels compared."""

import functools

import jax
import jax.numpy as jnp
import numba
import numpy as np
import pytest
import references
import scenes
from flax import nnx

from hdvpd.attention import walks_pallas
from hdvpd.attention.graphs import edge_graph
from hdvpd.attention.grf import walk_attention
from hdvpd.attention.walks import exact_walks, sample_walks
from hdvpd.config import ModelConfig
from hdvpd.dynamics.graph_attention import GraphAttention

KERNELS = ("xla", "host")
MODULATION = np.array([1.1, 0.7, 0.4, 0.9], np.float32)


@pytest.fixture(params=KERNELS)
def kernels(request):
    return request.param


@functools.partial(jax.jit, static_argnames="kernels")
def attend(query, key, value, modulation, neighbors, kernels):
    walks = exact_walks(scenes.list_graph(neighbors), modulation.shape[0] - 1, kernels)
    return walk_attention(query, key, value, modulation, walks, kernels)


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
    graph = edge_graph(6, *edges.T, np.array([0.3, 0.4, 0.2, 0.9, 0.5, 0.7, 0.6]))
    build = jax.jit(lambda key: sample_walks(graph, 4, 3, key, halting=0.3, coupling=coupling,
                                             kernels=form))  # fmt: skip
    walks = build(jax.random.key(2))
    inputs = random_inputs(6)
    mask = np.zeros((6, 6))
    loads = np.float64(walks.loads) @ np.float64(MODULATION)
    np.add.at(mask, (np.arange(6)[:, None], np.asarray(walks.nodes)), loads)
    out = np.asarray(walk_attention(*inputs, MODULATION, walks, form))
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
    for grad, expected in zip(
        jax.grad(total, (0, 1, 2))(*half),
        jax.grad(total, (0, 1, 2))(*(x.astype(jnp.float32) for x in half)),
        strict=True,
    ):
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


def gradients(inputs, neighbors, cotangent, kernels):
    def total(inputs):
        return (attend(*inputs, neighbors, kernels) * cotangent).sum()

    return jax.grad(total)(tuple(jnp.asarray(x) for x in inputs))


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
    listed = exact_walks(scenes.list_graph(neighbors), 3, "xla")

    def pull_back(kernels):
        out, vjp = jax.vjp(
            lambda *x: walk_attention(*x, listed, kernels), *map(jnp.asarray, inputs)
        )
        return out, *vjp(jnp.asarray(cotangent))

    for one, other in zip(
        *(jax.jit(pull_back, static_argnums=0)(k) for k in (form, "xla")), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 11) and jax.default_backend() == "cpu",
    reason="jax 0.11 translates to Triton, deprecated there, only where a GPU is",
)
def test_pallas_form_lowers_to_triton():
    # No GPU is needed to translate the kernels; sizes are no powers of two and no whole blocks.
    walks = jax.eval_shape(lambda x: exact_walks(scenes.list_graph(x), 3, "pallas"),
                           surface_neighbors(37))  # fmt: skip

    @jax.jit
    def gradient(query, key, value, mask, walks):
        return jax.grad(
            lambda *x: walks_pallas.attend(*x, walks, interpret=False).sum(), (0, 1, 2, 3)
        )(query, key, value, mask)

    shapes = [jax.ShapeDtypeStruct((37, width), np.float32) for width in (8, 8, 5, 40)]
    lowered = gradient.trace(*shapes, walks).lower(lowering_platforms=("cuda",))
    text = lowered.as_text()
    assert text.count("gpu.triton") == 3
    # The gathered array of [t, e, c] exists nowhere.
    assert "37x40x8" not in text


def test_host_kernels_do_not_depend_on_the_number_of_threads(small):
    inputs, neighbors, cotangent = small
    threads = numba.get_num_threads()
    results = []
    try:
        for count in {1, threads}:
            numba.set_num_threads(count)
            results.append(gradients(inputs, neighbors, cotangent, "host"))
    finally:
        numba.set_num_threads(threads)
    for one, other in zip(results[0], results[-1], strict=True):
        np.testing.assert_array_equal(one, other)


def layer(kernels, dim=8):
    config = ModelConfig(latent_dim=dim, kernels=kernels)
    graphdef, params = scenes.random_params(lambda: GraphAttention(config, rngs=nnx.Rngs(0)))
    walks = exact_walks(scenes.list_graph(surface_neighbors(40)), 3, kernels)
    return lambda tokens: scenes.apply(graphdef, params)(tokens, walks), walks


def test_tokens_beyond_three_hops_have_exactly_no_influence(kernels):
    apply, _ = layer(kernels)
    tokens = jnp.asarray(np.random.default_rng(3).normal(size=(40, 8)), jnp.float32)
    jacobian = jax.jit(jax.jacrev(lambda x: apply(x)[jnp.array([0, 7, 20])]))(tokens)
    seen = np.abs(jacobian).max(axis=(1, 3)) > 0
    reach = references.walk_powers(surface_neighbors(40), 3).sum(0) > 0
    assert reach.mean() < 0.5
    np.testing.assert_array_equal(seen, reach[[0, 7, 20]])


def test_impulse_beyond_three_hops_changes_no_bit(kernels):
    apply, _ = layer(kernels)
    tokens = np.random.default_rng(3).normal(size=(40, 8)).astype(np.float32)
    apply = jax.jit(apply)
    before = np.asarray(apply(tokens))
    tokens[11] += 100.0
    changed = (np.asarray(apply(tokens)) != before).any(1)
    reach = references.walk_powers(surface_neighbors(40), 3).sum(0)[:, 11] > 0
    np.testing.assert_array_equal(changed, reach)


def test_initial_modulation_is_the_public_codes():
    attention = GraphAttention(ModelConfig(latent_dim=8), rngs=nnx.Rngs(0))
    modulation = jax.nn.softplus(attention.raw_modulation[...])
    np.testing.assert_allclose(modulation, np.exp(-0.01 * np.arange(4)), rtol=1e-6)


def test_values_and_gradients_are_finite_over_magnitudes(kernels):
    apply, _ = layer(kernels)
    run = jax.jit(jax.value_and_grad(lambda x: (apply(x) ** 2).mean()))
    direction = np.random.default_rng(4).normal(size=(40, 8)).astype(np.float32)
    for scale in (0.0, 1e-6, 1e-2, 1e2, 1e6):
        value, grads = run(scale * direction)
        assert np.isfinite(value)
        assert np.isfinite(grads).all()
