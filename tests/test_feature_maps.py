"""Feature maps: positive, FAVOR+ unbiased, its stabilisation without effect, extremes finite."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from flax import nnx

from hdvpd.attention.feature_maps import (
    elu_features,
    favor_features,
    orthogonal_gaussian,
    relu_features,
    softmax_exponents,
)
from hdvpd.attention.linear import linear_attention
from hdvpd.config import ModelConfig
from hdvpd.dynamics.global_attention import GlobalAttention, GlobalAttentionSettings

WIDTH = 4
MODEL = ModelConfig(latent_dim=8)


@pytest.mark.parametrize("features", [relu_features, elu_features])
def test_entrywise_maps_are_positive_and_as_defined(features):
    x = np.float32([-1e6, -100, -20, -1, -1e-3, 0, 1e-3, 1, 20, 1e6])
    out = np.asarray(features(jnp.asarray(x)))
    assert (out > 0).all()
    exact = np.float64(x)
    below = np.expm1(np.minimum(exact, 0))
    defined = (
        np.maximum(exact, 0) if features is relu_features else np.maximum(exact, 0) + below + 1
    )
    np.testing.assert_allclose(out, defined, rtol=1e-6, atol=1.1e-3)
    if features is elu_features:
        np.testing.assert_allclose(out[1:], defined[1:], rtol=1e-6, atol=1.2e-6)


def pair():
    """Return a query, a key and their exact kernel; longer ones have a heavy-tailed estimate."""
    query, key = np.array([0.4, 0.4, 0.4, 0.3]), np.array([0.4, 0.4, 0.3, 0.4])
    return query, key, np.exp(query @ key / np.sqrt(WIDTH))


def estimates(projections):
    """Return mean_r of phi(q) . phi(k) for every projection, unstabilised, in float64."""
    query, key, _ = pair()
    out = []
    for x in (query, key):
        z = x / WIDTH**0.25
        out.append(np.exp(np.float64(projections) @ z - z @ z / 2))
    return (out[0] * out[1]).mean(1)


@functools.cache
def drawn_projections(count=10_000, num_features=WIDTH):
    keys = jax.random.split(jax.random.key(0), count)
    draw = jax.jit(jax.vmap(lambda key: orthogonal_gaussian(key, num_features, WIDTH)))
    return np.asarray(draw(keys))


def test_favor_is_unbiased():
    _, _, exact = pair()
    values = estimates(drawn_projections())
    error = values.std() / np.sqrt(len(values))
    assert error < 0.01 * exact
    # Four standard errors: a correct estimator fails one key in 16,000.
    assert values.mean() == pytest.approx(exact, abs=4 * error)


def test_without_the_sign_correction_favor_is_biased():
    # LAPACK's Q alone, as in public Performer code: not uniform over rotations.
    rng = np.random.default_rng(1)
    count = len(drawn_projections())
    rotation = np.linalg.qr(rng.normal(size=(count, WIDTH, WIDTH)))[0]
    lengths = np.linalg.norm(rng.normal(size=(count, WIDTH, WIDTH)), axis=-1)
    values = estimates(rotation * lengths[..., None])
    _, _, exact = pair()
    assert abs(values.mean() - exact) > 10 * values.std() / np.sqrt(count)


def test_projections_are_orthogonal_in_blocks_with_gaussian_lengths():
    rows = np.asarray(orthogonal_gaussian(jax.random.key(1), 2 * WIDTH + 3, WIDTH))
    assert rows.shape == (2 * WIDTH + 3, WIDTH)
    for block in np.split(rows, [WIDTH, 2 * WIDTH]):
        products = block @ block.T
        np.testing.assert_allclose(products - np.diag(np.diag(products)), 0, atol=1e-5)
    lengths = np.linalg.norm(drawn_projections(), axis=-1).ravel()
    # chi(4): mean 3 sqrt(2 pi) / 4, second moment 4; five standard errors of 40,000 draws.
    assert lengths.mean() == pytest.approx(0.75 * np.sqrt(2 * np.pi), abs=5 * 0.7 / 200)
    assert (lengths**2).mean() == pytest.approx(WIDTH, abs=5 * np.sqrt(8) / 200)


def random_heads(num_tokens=24, scale=1.0):
    rng = np.random.default_rng(5)
    query, key, value = (rng.normal(size=(num_tokens, 2, WIDTH)) for _ in range(3))
    mask = rng.random(num_tokens) < 0.7
    query, key, value = (np.asarray(x, np.float32) for x in (scale * query, scale * key, value))
    return query, key, value, mask


PROJECTION = jnp.stack([orthogonal_gaussian(jax.random.key(i), 6, WIDTH) for i in range(2)])


@jax.jit
def favor_attention(query, key, value, mask):
    return linear_attention(*favor_features(query, key, PROJECTION, mask), value, mask)


def test_exponents_are_the_logarithm_of_the_features():
    query, *_ = random_heads()
    z = np.float64(query[3, 1]) / WIDTH**0.25
    expected = np.float64(PROJECTION[1]) @ z - z @ z / 2
    np.testing.assert_allclose(softmax_exponents(query, PROJECTION)[3, 1], expected, atol=1e-5)


def test_stabilisation_does_not_change_attention():
    query, key, value, mask = random_heads()
    out = favor_attention(query, key, value, mask)
    config = GlobalAttentionSettings(feature_map="favor")
    every = np.broadcast_to(mask[None], (len(mask), len(mask)))
    for a in range(2):
        features = references.attention_features(
            config, np.float64(query[:, a]), np.float64(key[:, a]), np.float64(PROJECTION[a])
        )
        expected = references.masked_attention(*features, value[:, a], every)
        np.testing.assert_allclose(out[:, a], expected, atol=2e-5)


def test_gradients_of_favor_attention_are_its_derivatives():
    # Also through the maxima, which do not cancel altogether.
    query, key, value, mask = random_heads(scale=2.0)
    cotangent = np.random.default_rng(6).normal(size=value.shape)
    with jax.enable_x64(True):
        arguments = [jnp.asarray(x, jnp.float64) for x in (query, key, value)]
        projection = jnp.asarray(PROJECTION, jnp.float64)

        @jax.jit
        def total(*arguments):
            query, key, value = arguments
            features = favor_features(query, key, projection, mask)
            return (linear_attention(*features, value, mask) * cotangent).sum()

        grads = jax.jit(jax.grad(total, argnums=(0, 1, 2)))(*arguments)
        rng = np.random.default_rng(7)
        for i in range(3):
            direction = [rng.normal(size=x.shape) * (i == j) for j, x in enumerate(arguments)]
            expected = references.directional_derivative(total, arguments, direction)
            assert np.vdot(grads[i], direction[i]) == pytest.approx(float(expected), rel=1e-6)


def test_sums_of_linear_attention_are_float64_for_float64_and_float32_for_less():
    query, key, value, mask = random_heads()
    query, key = np.abs(query) + 0.1, np.abs(key) + 0.1
    with jax.enable_x64(True):
        wide = [jnp.asarray(x, jnp.float64) for x in (query, key, value)]
        out = jax.jit(linear_attention)(*wide, mask)
        assert out.dtype == jnp.float64
    every = np.broadcast_to(mask[None], (len(mask), len(mask)))
    for a in range(2):
        expected = references.masked_attention(
            *(np.float64(x[:, a]) for x in (query, key, value)), every
        )
        np.testing.assert_allclose(out[:, a], expected, rtol=1e-12, atol=1e-12)
    half = jax.jit(linear_attention)(*(jnp.asarray(x, jnp.bfloat16) for x in wide), mask)
    assert half.dtype == jnp.float32


def test_favor_features_are_positive_at_any_scale():
    for scale in (1e-3, 1.0, 30.0, 1e4):
        query, key, _, mask = random_heads(scale=scale)
        phi_query, phi_key = favor_features(query, key, PROJECTION, mask)
        assert (np.asarray(phi_query) > 0).all()
        assert (np.asarray(phi_key)[mask] > 0).all()


def test_masked_keys_are_inert_whatever_they_hold():
    query, key, value, mask = random_heads()
    loud = np.where(mask[:, None, None], key, np.float32(1e5))
    np.testing.assert_array_equal(
        favor_attention(query, key, value, mask), favor_attention(query, loud, value, mask)
    )
    nothing = favor_attention(query, key, value, np.zeros_like(mask))
    np.testing.assert_array_equal(nothing, 0.0)


@pytest.mark.parametrize("feature_map", ["elu", "favor"])
def test_values_and_gradients_of_the_layer_are_finite_at_extreme_inputs(feature_map):
    settings = GlobalAttentionSettings(num_heads=2, feature_map=feature_map)
    build = lambda: GlobalAttention(settings, MODEL, rngs=nnx.Rngs(0))  # noqa: E731
    graphdef, params = scenes.random_params(build)
    layer = scenes.apply(graphdef, params)
    run = jax.jit(jax.value_and_grad(lambda x, mask: (layer(x, mask) ** 2).mean()))
    direction = np.random.default_rng(4).normal(size=(30, 8)).astype(np.float32)
    for mask in (np.arange(30) < 25, np.zeros(30, bool)):
        for scale in (0.0, 1e-6, 1e-2, 1.0, 1e2, 1e6):
            value, grads = run(scale * direction, mask)
            assert np.isfinite(value)
            assert np.isfinite(grads).all()


def test_the_projection_is_no_parameter_and_differs_by_layer_and_head():
    settings = GlobalAttentionSettings(num_heads=2, feature_map="favor")

    def project(seed):
        build = lambda: GlobalAttention(settings, MODEL, seed=seed, rngs=nnx.Rngs(0))  # noqa: E731
        graphdef, params = scenes.random_params(build)
        assert set(params) == {"query_key_value", "out"}
        return np.asarray(scenes.apply(graphdef, params).projection)

    one, same, other = (project(seed) for seed in (0, 0, 1))
    assert one.shape == (2, 4, 4)  # as many features as a head is wide, by default
    np.testing.assert_array_equal(one, same)
    assert np.abs(one - other).min() > 0
    assert np.abs(one[0] - one[1]).min() > 0
