"""Initial values are flax's own, number by number, from few compiled programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx

from hdvpd import layers
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
