"""The neighbour-attender by itself: its plan, and what it does where there is little to read."""

import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from flax import nnx

from hdvpd.basics import sampling
from hdvpd.config import ModelConfig
from hdvpd.dynamics.neighbor_attender import NeighborAttenderSettings, masked_softmax

NUM_TOKENS, DIM = 12, 8
MODEL = ModelConfig(latent_dim=DIM, kernels="xla")
SETTINGS = NeighborAttenderSettings(anchor_fraction=0.25, anchor_neighbors=16)
SCORES = np.random.default_rng(1).random(NUM_TOKENS).astype(np.float32)


def plan(positions, mask, key=None):
    return SETTINGS.plan(MODEL, positions, mask, jax.random.key(0) if key is None else key)


def tokens_and_positions(seed=0):
    rng = np.random.default_rng(seed)
    shapes = (NUM_TOKENS, DIM), (NUM_TOKENS, 3)
    return tuple(
        np.float32(scale * rng.normal(size=shape))
        for shape, scale in zip(shapes, (1, 0.1), strict=True)
    )


@functools.cache
def layer():
    return scenes.random_params(lambda: SETTINGS.make(MODEL, rngs=nnx.Rngs(0)))


@functools.cache
def updates_and_gradients():
    """Return the jitted layer: updates, and gradients of their squares to tokens and positions."""
    graphdef, params = layer()

    def total(moving, mask):
        tokens, positions = moving
        with mock.patch.object(sampling, "_scores", return_value=jnp.asarray(SCORES)):
            out = scenes.apply(graphdef, params)(tokens, plan(positions, mask))
        return (out**2).sum(), out

    return jax.jit(jax.grad(total, has_aux=True))


# More neighbours asked for than there are tokens; few; an anchor without any neighbour; nothing.
@pytest.mark.parametrize("num_real", [12, 5, 2, 1, 0])
def test_few_real_tokens_give_a_defined_result(num_real):
    tokens, positions = tokens_and_positions()
    mask = np.zeros(NUM_TOKENS, bool)
    mask[np.random.default_rng(2).permutation(NUM_TOKENS)[:num_real]] = True
    grads, out = updates_and_gradients()((tokens, positions), mask)
    arguments = (np.float64(tokens), np.float64(positions), mask, SCORES)
    expected = references.neighbor_attender(layer()[1], SETTINGS, *arguments)
    np.testing.assert_allclose(out, expected, atol=1e-5)
    np.testing.assert_array_equal(np.asarray(out)[~mask], 0.0)
    for grad in grads:
        assert np.isfinite(grad).all()
        assert (np.asarray(grad)[~mask] == 0).all()


def test_all_tokens_at_one_place_give_finite_values_and_gradients():
    tokens, positions = tokens_and_positions()
    mask = np.ones(NUM_TOKENS, bool)
    grads, out = updates_and_gradients()((tokens, 0 * positions), mask)
    assert all(np.isfinite(x).all() for x in (out, *grads))


def test_plan_draws_a_fraction_of_the_real_tokens_and_joins_no_padding():
    _, positions = tokens_and_positions()
    positions[:4] = 0.1  # coincident tokens must not hide behind each other
    mask = np.arange(NUM_TOKENS) < 9
    found = jax.jit(plan)(positions, mask, jax.random.key(5))
    anchors = np.asarray(found.anchors)[np.asarray(found.drawn)]
    assert len(set(anchors.tolist())) == 3  # a quarter of nine, rounded up
    assert mask[anchors].all()
    edges = found.neighbors
    for slot in np.flatnonzero(found.drawn):
        neighbors = np.asarray(edges.nodes[slot])[np.asarray(edges.found[slot])]
        assert sorted(neighbors) == [t for t in range(9) if t != found.anchors[slot]]
    assert not np.asarray(edges.found)[~np.asarray(found.drawn)].any()
    np.testing.assert_array_equal(np.asarray(found.nearest.found)[:, 0], mask)
    nearest = np.asarray(found.anchors)[np.asarray(found.nearest.nodes)[:, 0]]
    for token in np.flatnonzero(mask):
        apart = np.linalg.norm(positions[anchors] - positions[token], axis=1)
        to_nearest = np.linalg.norm(positions[nearest[token]] - positions[token])
        assert to_nearest == pytest.approx(apart.min(), abs=1e-6)


def test_masked_softmax_sums_to_one_or_to_nothing():
    logits = jnp.asarray([[1e4, -1e4, 3.0], [0.5, 0.5, 9.0], [1.0, 2.0, 3.0]], jnp.float32)
    mask = jnp.asarray([[True, True, False], [True, True, False], [False] * 3])
    weights = masked_softmax(logits, mask)
    np.testing.assert_allclose(weights, [[1, 0, 0], [0.5, 0.5, 0], [0, 0, 0]], atol=1e-7)
    assert np.isfinite(jax.grad(lambda x: masked_softmax(x, mask)[:, 0].sum())(logits)).all()
