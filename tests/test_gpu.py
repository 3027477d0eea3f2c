"""On a GPU: what is computed there is what host code computes. Skipped where there is none.

Run with JAX_PLATFORMS=cuda,cpu. Products are exact here (`jax.default_matmul_precision`), so that
what differs is the order of sums.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from test_kernels_neighbors import search_tree
from test_kernels_walk_attention import MODULATION, random_inputs, surface_neighbors

from hdvpd.attention.grf import walk_attention
from hdvpd.config.experiments import load_config
from hdvpd.kernels.neighbors import knn
from hdvpd.kernels.walks import exact_walks
from hdvpd.training.step import create_model, merge_model

pytestmark = pytest.mark.gpu


def far_apart(tree, other):
    """Return the distance of two trees of arrays over the size of the second."""
    trees = [np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (tree, other)]
    return np.linalg.norm(trees[0] - trees[1]) / np.linalg.norm(trees[1])


def published():
    return scenes.tiny_config()


def with_rules():
    """Return the demo's model, small."""
    config, tiny = load_config("demo"), scenes.tiny_config()
    return dataclasses.replace(
        config,
        data=tiny.data,
        model=dataclasses.replace(
            config.model, num_particles=48, feature_dim=6, unet_channels=(8, 8), latent_dim=16
        ),
        train=dataclasses.replace(tiny.train, num_rays=16),
    )


def make_slopes(config, device):
    """Return a function that returns the loss of a batch and its gradient."""
    graphdef, params = create_model(config, scenes.SCENE)

    @jax.jit
    @jax.value_and_grad
    def loss(params, batch):
        return merge_model(graphdef, params).loss(batch, jax.random.key(1)).mean()

    def slopes(batch):
        with jax.default_device(device), jax.default_matmul_precision("highest"):
            return jax.device_get(loss(*jax.device_put((params, batch), device)))

    return slopes


@pytest.mark.parametrize("make", [published, with_rules])
def test_a_loss_and_its_gradient_are_those_of_the_host(make):
    batch, config = scenes.make_batch(2, 4, 12, 16), make()
    slopes = make_slopes(config, jax.devices()[0])
    model = dataclasses.replace(config.model, kernels="host", knn="kdtree")
    config = dataclasses.replace(config, model=model)
    on_gpu, on_host = slopes(batch), make_slopes(config, jax.devices("cpu")[0])(batch)
    np.testing.assert_allclose(on_gpu[0], on_host[0], rtol=1e-4)
    if make is published:  # in so small a scene the rules leave no gradient
        # Half a micrometre in depth decides what a ray meets: on a CPU gradients are up to 1.5 %
        # apart, where losses are the same to 1e-6. What rounds differently is no farther.
        rng, apart = np.random.default_rng(0), []
        for _ in range(8):
            shift = rng.uniform(-1, 1, batch.frames.depth_m.shape) * 2**-21
            depth_m = (batch.frames.depth_m * (1 + shift)).astype(np.float32)
            frames = dataclasses.replace(batch.frames, depth_m=depth_m)
            moved = slopes(dataclasses.replace(batch, frames=frames))
            apart.append(far_apart(moved[1], on_gpu[1]))
        assert far_apart(on_gpu[1], on_host[1]) < 2 * max(apart)


def test_a_search_at_the_paper_s_size_is_that_of_the_tree():
    rng = np.random.default_rng(0)
    points = rng.uniform(size=(65_788, 3)).astype(np.float32) * np.float32([1, 1, 0.01])
    found = jax.jit(lambda x: knn(x, x, 3, exclude_self=True))(points)
    rows, distances = np.empty((len(points), 4), np.int32), np.empty((len(points), 4), np.float32)
    everywhere = np.ones(len(points), bool), np.full(2, np.inf, np.float32)
    search_tree(points, points, *everywhere, rows, distances)
    np.testing.assert_allclose(found.distances, distances[:, 1:], rtol=1e-5)
    assert (np.asarray(found.indices) == rows[:, 1:]).mean() > 0.999


@pytest.mark.parametrize("kernels", ["xla", "pallas"])
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_attention_along_walks_is_that_of_the_dense_form(kernels):
    inputs, neighbors = random_inputs(300, m=64, channels=64), surface_neighbors(300)

    @jax.jit
    def both(inputs, modulation):
        def total(*inputs):
            walks = exact_walks(scenes.list_graph(neighbors, kernels), 3)
            out = walk_attention(*inputs, modulation, walks)
            return jnp.sum(out**2), out

        return jax.grad(total, (0, 1, 2), has_aux=True)(*inputs)

    def dense(*inputs):
        mask = references.walk_mask(neighbors, MODULATION)
        return references.masked_attention(*inputs, mask)

    with jax.default_matmul_precision("highest"):
        slopes, out = both(inputs, MODULATION)
    expected = dense(*inputs)
    assert far_apart(out, expected) < 1e-5
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        wide = [jnp.asarray(x, jnp.float64) for x in inputs]
        mask = jnp.asarray(references.walk_mask(neighbors, MODULATION))

        def total(query, key, value):
            weights = (query @ key.T) * mask
            return jnp.sum((weights @ value / weights.sum(1, keepdims=True)) ** 2)

        exact = jax.grad(total, (0, 1, 2))(*wide)
    assert far_apart(slopes, exact) < 1e-4
