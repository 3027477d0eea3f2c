"""Global linear attention against the dense T x T formula."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from flax import nnx

from hdvpd.attention.linear import linear_attention
from hdvpd.config import ModelConfig
from hdvpd.dynamics.global_attention import GlobalAttention, GlobalAttentionSettings

attend = jax.jit(linear_attention)


def random_inputs(num_tokens, heads=2, m=6, channels=5, seed=0):
    rng = np.random.default_rng(seed)
    shape = (num_tokens, heads, m)
    query, key = (np.maximum(rng.normal(size=shape), 0) + 1e-3 for _ in range(2))
    value = rng.normal(size=(num_tokens, heads, channels))
    mask = rng.random(num_tokens) < 0.7
    return tuple(np.asarray(x, np.float32) for x in (query, key, value)), mask


def dense(query, key, value, mask):
    every = np.broadcast_to(mask[None], (len(mask), len(mask)))
    heads = [
        references.masked_attention(query[:, a], key[:, a], value[:, a], every)
        for a in range(query.shape[1])
    ]
    return np.stack(heads, axis=1)


def test_equals_the_dense_formula():
    inputs, mask = random_inputs(64)
    expected = dense(*inputs, mask)
    np.testing.assert_allclose(attend(*inputs, mask), expected, rtol=1e-5, atol=1e-6)


def test_paper_sized_sums_keep_their_digits():
    (query, key, value), mask = random_inputs(65_788, heads=1)
    value = value + np.float32(10)
    out = np.asarray(attend(query, key, value, mask))
    share = np.float64(key[:, 0]) * mask[:, None]
    summary, normalizer = share.T @ np.float64(value[:, 0]), share.sum(0)
    expected = (query[:, 0] @ summary) / (query[:, 0] @ normalizer)[:, None]
    np.testing.assert_allclose(out[:, 0], expected, rtol=1e-5)


def test_constant_values_come_back():
    (query, key, value), mask = random_inputs(32)
    np.testing.assert_allclose(attend(query, key, np.full_like(value, -2.5), mask), -2.5, rtol=1e-6)


def test_gradients_equal_finite_differences_of_the_dense_form():
    inputs, mask = random_inputs(16)
    cotangent = np.random.default_rng(1).normal(size=inputs[2].shape)
    weights = jnp.asarray(cotangent, jnp.float32)
    gradient = jax.jit(
        jax.grad(lambda x: (linear_attention(*x, jnp.asarray(mask)) * weights).sum())
    )
    grads = gradient(inputs)
    rng = np.random.default_rng(2)
    inputs = [np.float64(x) for x in inputs]
    for i in range(3):
        directions = [rng.normal(size=x.shape) * (i == j) for j, x in enumerate(inputs)]
        expected = references.directional_derivative(
            lambda *x: (dense(*x, mask) * cotangent).sum(), inputs, directions
        )
        assert np.vdot(grads[i], directions[i]) == pytest.approx(expected, rel=2e-4, abs=1e-5)


def test_masked_tokens_are_inert_in_value_and_gradient():
    (query, key, value), mask = random_inputs(32)

    def real_output(key, value):
        out = linear_attention(query, key, value, mask)
        return jnp.where(mask[:, None, None], out, 0.0)

    run = jax.jit(real_output)
    loud = [np.where(mask[:, None, None], x, np.float32(1e6)) for x in (key, value)]
    np.testing.assert_array_equal(run(key, value), run(*loud))
    grads = jax.jit(jax.grad(lambda *x: real_output(*x).sum(), argnums=(0, 1)))(key, value)
    for grad in grads:
        assert (np.asarray(grad)[~mask] == 0).all()
        assert (np.asarray(grad)[mask] != 0).any()


def test_no_real_token_gives_zero_and_finite_gradients():
    inputs, _ = random_inputs(8)
    mask = np.zeros(8, bool)
    np.testing.assert_array_equal(attend(*inputs, mask), 0.0)
    grads = jax.jit(jax.grad(lambda x: (linear_attention(*x, jnp.asarray(mask)) ** 2).sum()))(
        inputs
    )
    assert all(np.isfinite(g).all() for g in grads)


@pytest.fixture(scope="module")
def layer():
    settings, model = GlobalAttentionSettings(num_heads=2), ModelConfig(latent_dim=8)
    build = lambda: GlobalAttention(settings, model, rngs=nnx.Rngs(0))  # noqa: E731
    graphdef, params = scenes.random_params(build)
    return lambda tokens, mask: scenes.apply(graphdef, params)(tokens, mask)


def test_permuting_tokens_permutes_outputs(layer):
    rng = np.random.default_rng(3)
    tokens, mask = rng.normal(size=(30, 8)).astype(np.float32), rng.random(30) < 0.7
    order = rng.permutation(30)
    run = jax.jit(layer)
    again = run(tokens[order], mask[order])
    np.testing.assert_allclose(again, np.asarray(run(tokens, mask))[order], atol=1e-5)


def test_heads_do_not_mix_before_the_output_projection():
    # Scaling one head's value projection must leave the other head's output alone.
    (query, key, value), mask = random_inputs(20)
    scaled = value * np.array([1, 5], np.float32)[None, :, None]
    out, again = attend(query, key, value, mask), attend(query, key, scaled, mask)
    np.testing.assert_array_equal(out[:, 0], again[:, 0])
    np.testing.assert_allclose(5 * np.asarray(out[:, 1]), again[:, 1], rtol=1e-5)


def test_values_and_gradients_are_finite_over_magnitudes(layer):
    mask = np.arange(30) < 25
    run = jax.jit(jax.value_and_grad(lambda x: (layer(x, jnp.asarray(mask)) ** 2).mean()))
    direction = np.random.default_rng(4).normal(size=(30, 8)).astype(np.float32)
    for scale in (0.0, 1e-6, 1e-2, 1e2, 1e6):
        value, grads = run(scale * direction)
        assert np.isfinite(value)
        assert np.isfinite(grads).all()
