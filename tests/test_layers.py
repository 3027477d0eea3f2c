"""Initial values are flax's own, number by number, from few compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx

from hdvpd.attention.learned.base import head_keys
from hdvpd.basics import layers
from hdvpd.config import Config
from hdvpd.training.step import create_model, create_train_state

SHAPES = [(1, 1), (3, 5), (64, 65), (3, 3, 8, 16), (17,) * 2, (4, 64)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("jit", [False, True])
def test_kernels_are_those_of_flax(shape, jit):
    for ours, theirs in (
        (layers.lecun_normal, nnx.initializers.lecun_normal()),
        (layers.normal(0.02), nnx.initializers.normal(0.02)),
    ):
        run = jax.jit(ours, static_argnums=1) if jit else ours
        with jax.debug_key_reuse(False):
            found, expected = run(jax.random.key(3), shape), theirs(jax.random.key(3), shape)
        assert found.dtype == jnp.float32
        # Fused with the scale inside a program, a number may round otherwise.
        np.testing.assert_allclose(found, expected, rtol=3e-7 if jit else 0)


@pytest.mark.parametrize(
    ("ours", "theirs", "sizes"),
    [
        (layers.Linear, nnx.Linear, (5, 7)),
        (layers.Conv, nnx.Conv, (3, 8, (3, 3))),
        (layers.LayerNorm, nnx.LayerNorm, (6,)),
        (layers.GroupNorm, nnx.GroupNorm, (16, 8)),
    ],
)
def test_layers_are_those_of_flax(ours, theirs, sizes):
    found, expected = (nnx.state(layer(*sizes, rngs=nnx.Rngs(1))) for layer in (ours, theirs))
    found, expected = nnx.to_pure_dict(found), nnx.to_pure_dict(expected)
    jax.tree.map(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("jit", [False, True])
def test_keys_are_those_of_flax(jit):
    def draw(keys):
        return jnp.stack([jax.random.key_data(k) for k in (keys.params(), keys.params())])

    ours, theirs = (lambda: draw(layers.Keys(3))), (lambda: draw(nnx.Rngs(params=3)))
    found, expected = (jax.jit(f)() if jit else f() for f in (ours, theirs))
    assert (found[0] != found[1]).any()
    np.testing.assert_array_equal(found, expected)


def test_a_model_needs_few_compiled_draws_and_its_shapes_none(debug_config: Config):
    draws = (layers._truncated_normal, layers._normal)
    for draw in draws:
        draw.clear_cache()
    nnx.eval_shape(lambda: create_model(debug_config, scenes.SCENE)[1])
    assert [draw._cache_size() for draw in draws] == [0, 0]
    _, params = create_model(debug_config, scenes.SCENE)
    kernels = [leaf for leaf in jax.tree.leaves(params) if leaf.ndim > 1]
    assert len({leaf.shape for leaf in kernels}) > 15
    assert sum(draw._cache_size() for draw in draws) <= 8


def test_the_state_owns_its_arrays(debug_config: Config):
    # The train step gives its buffers away; none may be shared, not even between equal zeros.
    _, state = create_train_state(debug_config, scenes.SCENE)
    places = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
    assert len(set(places)) == len(places)


def test_blocks_of_rows_give_what_all_rows_give(monkeypatch):
    monkeypatch.setattr(layers, "ROWS_AT_ONCE", 4)
    rows = jax.random.normal(jax.random.key(0), (35, 3))  # eight blocks and three rows
    weights = jax.random.normal(jax.random.key(1), (3, 5))
    calls = []

    def function(x):
        calls.append(x.shape)
        return jnp.tanh(x @ weights)

    def blocked(x):
        return layers.by_rows(function, x)

    found, pull_back = jax.vjp(blocked, rows)
    assert {*calls} == {(4, 3), (3, 3)}
    expected, expected_pull_back = jax.vjp(lambda x: jnp.tanh(x @ weights), rows)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        pull_back(found)[0], expected_pull_back(found)[0], rtol=1e-5, atol=1e-6
    )
    assert blocked(rows[:32]).shape == (32, 5)  # no row is left over
    calls.clear()
    blocked(rows[:31])
    assert calls == [(31, 3)]


def test_parts_of_a_dense_layer_are_those_of_its_result(key):
    linear = layers.Linear(6, 9, bias_init=layers.normal(1.0), rngs=nnx.Rngs(0))
    x = jax.random.normal(key, (4, 6))
    found = jnp.concatenate(layers.split_linear(linear, x, 3), axis=1)
    np.testing.assert_allclose(found, linear(x), rtol=1e-6, atol=1e-6)


def test_blocks_of_rows_do_not_hold_what_lies_between_the_layers(monkeypatch):
    monkeypatch.setattr(layers, "ROWS_AT_ONCE", 64)
    weights = jnp.ones((8, 64))

    def temporary(function):
        rows = jax.ShapeDtypeStruct((1024, 8), jnp.float32)
        return jax.jit(function).lower(rows).compile().memory_analysis().temp_size_in_bytes

    def whole(x):
        return jnp.tanh(x @ weights) @ weights.T

    assert temporary(lambda x: layers.by_rows(whole, x)) < temporary(whole) / 2


class Small(nnx.Module):
    def __init__(self):
        rngs = nnx.Rngs(0)
        self.conv = layers.Conv(3, 8, (3, 3), rngs=rngs)
        self.norm = layers.GroupNorm(8, 8, rngs=rngs)
        self.out = layers.Linear(8, 4, rngs=rngs)

    def __call__(self, x):
        return self.out(jax.nn.gelu(self.norm(self.conv(x))))


def test_bfloat16_products_stay_near_float32(key):
    """Stated tolerance: the result and the whole gradient to 2 % of their length."""
    images = jax.random.normal(key, (1, 6, 5, 3))

    def run(module):
        graphdef, state = nnx.split(module)

        def loss(state):
            out = nnx.merge(graphdef, state)(images)
            return (out**2).sum(), out

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(state)

    rounding = Small()
    layers.multiply_in_bfloat16(rounding)
    (_, exact), gradient = run(Small())
    (_, rounded), other = run(rounding)
    assert rounded.dtype == jnp.float32
    assert np.abs(rounded - exact).max() > 1e-5  # it does round
    assert {leaf.dtype for leaf in jax.tree.leaves(other)} == {jnp.dtype("float32")}
    for expected, found in ((exact, rounded), (gradient, other)):
        expected, found = (
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
            for tree in (expected, found)
        )
        assert np.linalg.norm(found - expected) < 0.02 * np.linalg.norm(expected)


@pytest.mark.parametrize("kind", [layers.Keys, nnx.Rngs])
def test_masks_of_different_layers_start_from_different_keys(kind):
    keys = kind(0)
    first = jax.random.key_data(head_keys(keys, 2))
    np.testing.assert_array_equal(jax.random.key_data(head_keys(keys, 2)), first)
    keys.params()
    second = jax.random.key_data(head_keys(keys, 2))
    assert not (second == first).all(axis=-1).any()
