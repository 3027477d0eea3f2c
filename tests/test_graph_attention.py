"""The GRF layer: what it reaches, and how sampled walkers take the place of all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from flax import nnx

from hdvpd.attention.learned.grf import LearnedGrf
from hdvpd.config import ModelConfig
from hdvpd.dynamics.graph_attention import GraphAttentionSettings
from hdvpd.kernels import dense
from hdvpd.kernels.walks import exact_walks

NUM_TOKENS, NUM_REAL = 24, 18


@functools.cache
def layer(walks, num_walkers=27, halting=0.0, kernels="xla"):
    """Return a jitted layer of positions, tokens and key on a padded cloud."""
    model = ModelConfig(latent_dim=8, kernels=kernels)
    mask = LearnedGrf(walks=walks, num_walkers=num_walkers, halting=halting)
    settings = GraphAttentionSettings(mask=mask)
    graphdef, params = scenes.random_params(lambda: settings.make(model, rngs=nnx.Rngs(0)))
    real = jnp.arange(NUM_TOKENS) < NUM_REAL

    def run(positions, tokens, key):
        plan = settings.plan(model, positions, real, key)
        return scenes.apply(graphdef, params)(tokens, plan)

    return jax.jit(run)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(NUM_TOKENS, 3)).astype(np.float32)
    return positions, rng.normal(size=(NUM_TOKENS, 8)).astype(np.float32)


def test_the_papers_walkers_equal_all_walks(inputs):
    exact = layer("exact")(*inputs, jax.random.key(0))
    for seed in range(2):
        # The host's code merges equal nodes of the walkers before it attends.
        sampled = layer("repelling", kernels="host")(*inputs, jax.random.key(seed))
        np.testing.assert_allclose(sampled, exact, atol=2e-6)


def test_only_sampled_walks_depend_on_the_key(inputs):
    first, second = (jax.random.key(seed) for seed in range(2))
    exact, sampled = layer("exact"), layer("antithetic", 4, 0.3)
    np.testing.assert_array_equal(exact(*inputs, first), exact(*inputs, second))
    one, again, other = (sampled(*inputs, jax.random.key(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, again)
    assert np.abs(one - other).max() > 1e-3


def test_padding_is_inert_for_sampled_walks(inputs):
    positions, tokens = (x.copy() for x in inputs)
    sampled = layer("antithetic", 4, 0.3)
    before = np.asarray(sampled(positions, tokens, jax.random.key(0)))[:NUM_REAL]
    positions[NUM_REAL:], tokens[NUM_REAL:] = 7.0, 1e3
    after = sampled(positions, tokens, jax.random.key(0))[:NUM_REAL]
    np.testing.assert_array_equal(after, before)


def test_coincident_tokens_have_finite_gradients_and_padding_none(inputs):
    sampled, key = layer("antithetic", 4, 0.3), jax.random.key(0)
    real = (np.arange(NUM_TOKENS) < NUM_REAL).astype(np.float32)[:, None]
    run = jax.value_and_grad(lambda x: (real * sampled(np.zeros_like(inputs[0]), x, key)).sum())
    value, gradient = run(inputs[1])
    assert np.isfinite(value)
    assert np.isfinite(gradient).all()
    np.testing.assert_array_equal(gradient[NUM_REAL:], 0)


# All walks of three hops --------------------------------------------------------------------------


def surface_neighbors(num_tokens, seed=0):
    points = np.random.default_rng(seed).uniform(size=(num_tokens, 3)) * [1, 1, 0]
    return references.nearest(points, points, 3, exclude_self=True)[0].astype(np.int32)


@pytest.fixture(params=["xla", "host"])
def on_surface(request):
    """Return the layer as a function of the tokens on a plane."""
    model = ModelConfig(latent_dim=8, kernels=request.param)
    build = lambda: GraphAttentionSettings().make(model, rngs=nnx.Rngs(0))  # noqa: E731
    graphdef, params = scenes.random_params(build)
    walks = exact_walks(scenes.list_graph(surface_neighbors(40), request.param), 3)
    return lambda tokens: scenes.apply(graphdef, params)(tokens, walks)


def test_tokens_beyond_three_hops_have_exactly_no_influence(on_surface):
    tokens = jnp.asarray(np.random.default_rng(3).normal(size=(40, 8)), jnp.float32)
    jacobian = jax.jit(jax.jacrev(lambda x: on_surface(x)[jnp.array([0, 7, 20])]))(tokens)
    seen = np.abs(jacobian).max(axis=(1, 3)) > 0
    reach = references.walk_powers(surface_neighbors(40), 3).sum(0) > 0
    assert reach.mean() < 0.5
    np.testing.assert_array_equal(seen, reach[[0, 7, 20]])


def test_impulse_beyond_three_hops_changes_no_bit(on_surface):
    tokens = np.random.default_rng(3).normal(size=(40, 8)).astype(np.float32)
    apply = jax.jit(on_surface)
    before = np.asarray(apply(tokens))
    tokens[11] += 100.0
    changed = (np.asarray(apply(tokens)) != before).any(1)
    reach = references.walk_powers(surface_neighbors(40), 3).sum(0)[:, 11] > 0
    np.testing.assert_array_equal(changed, reach)


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("least_rows", [1, 10**6])
def test_host_code_after_a_norm_learns_the_same_as_plain_jax(heads, least_rows, monkeypatch):
    monkeypatch.setattr(dense, "LEAST_ROWS", least_rows)
    rng = np.random.default_rng(5)
    positions, tokens, bar = (
        jnp.asarray(rng.normal(size=(40, width)), jnp.float32) for width in (3, 8, 8)
    )
    real = jnp.arange(40) < 33

    def learned(kernels):
        model = ModelConfig(latent_dim=8, kernels=kernels)
        settings = GraphAttentionSettings(num_heads=heads)
        build = lambda: nnx.List(  # noqa: E731
            [settings.make(model, rngs=nnx.Rngs(0)), nnx.LayerNorm(8, rngs=nnx.Rngs(1))]
        )
        graphdef, params = scenes.random_params(build)

        @jax.jit
        def run(params, tokens):
            plan = settings.plan(model, positions, real, jax.random.key(0))
            layer, norm = nnx.merge(graphdef, params)
            return layer.added(tokens, norm, plan)

        result, pull_back = jax.vjp(run, params, tokens)
        return jax.tree.leaves((result, pull_back(bar))), run.lower(params, tokens).as_text()

    (ours, program), (theirs, plain) = learned("host"), learned("xla")
    assert ("walk_attention_host.relu_forward" in program) == (heads == 1)
    assert "walk_attention_host" not in plain
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-5 * np.abs(other).max())


def test_initial_modulation_is_the_public_codes():
    attention = GraphAttentionSettings().make(ModelConfig(latent_dim=8), rngs=nnx.Rngs(0))
    modulation = jax.nn.softplus(attention.raw_modulation[...])
    np.testing.assert_allclose(modulation, np.exp(-0.01 * np.arange(4)), rtol=1e-6)


def test_values_and_gradients_are_finite_over_magnitudes(on_surface):
    run = jax.jit(jax.value_and_grad(lambda x: (on_surface(x) ** 2).mean()))
    direction = np.random.default_rng(4).normal(size=(40, 8)).astype(np.float32)
    for scale in (0.0, 1e-6, 1e-2, 1e2, 1e6):
        value, grads = run(scale * direction)
        assert np.isfinite(value)
        assert np.isfinite(grads).all()
