"""Annular kernels against the sum over all particles, closed forms, and both kernels compared."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
from threads import check_that_threads_change_nothing

from hdvpd.kernels.annular_sums import annular_sums
from hdvpd.kernels.gaussian import gaussian
from hdvpd.kernels.neighbors import knn
from hdvpd.render.interpolation import annular_features

RADII, BANDWIDTHS = (0.0, 0.01, 0.02, 0.05), (0.01, 0.01, 0.01, 0.05)
KERNELS = ("xla", "host")
CHANNELS = 3


@pytest.fixture(params=KERNELS)
def kernels(request):
    return request.param


def sums_of(positions, features, queries, indices, found, kernels):
    return annular_sums(positions, features, queries, indices, found, RADII, BANDWIDTHS, kernels)


jitted_sums = functools.partial(jax.jit, static_argnames="kernels")(sums_of)
jitted_features = jax.jit(annular_features)


def random_scene(num_particles=12, num_queries=20, seed=0, spread=0.03):
    rng = np.random.default_rng(seed)
    positions, queries = (
        spread * rng.normal(size=(n, 3)).astype(np.float32) for n in (num_particles, num_queries)
    )
    return positions, rng.normal(size=(num_particles, CHANNELS)).astype(np.float32), queries


def everyone(num_queries, num_particles):
    indices = np.tile(np.arange(num_particles, dtype=np.int32), (num_queries, 1))
    return indices, np.ones((num_queries, num_particles), bool)


def all_particles(positions, features, queries):
    """Reference sums over every particle, (q a c+1)."""
    rows = []
    for query in np.float64(queries):
        weighted, total = references.annular_sums(positions, features, query, RADII, BANDWIDTHS)
        rows.append(np.concatenate([weighted, total[:, None]], axis=1))
    return np.array(rows)


def test_sixteen_neighbours_equal_the_sum_over_at_most_sixteen_particles(kernels):
    scene = random_scene()
    found = knn(scene[2], scene[0], 16)
    sums = jitted_sums(*scene, found.indices, found.found, kernels)
    expected = all_particles(*scene)
    np.testing.assert_allclose(sums, expected, rtol=1e-4, atol=1e-6)
    inputs = jitted_features(sums)
    for q in range(len(expected)):
        row = references.annular_features(expected[q, :, :-1], expected[q, :, -1])
        np.testing.assert_allclose(inputs[q], row, rtol=1e-3, atol=1e-5)


def test_nearest_sixteen_of_many_are_what_is_summed(kernels):
    positions, features, queries = random_scene(num_particles=60)
    found = knn(queries, positions, 16)
    sums = jitted_sums(positions, features, queries, found.indices, found.found, kernels)
    for q in range(len(queries)):
        chosen = np.argsort(np.linalg.norm(positions - queries[q : q + 1], axis=1))[:16]
        expected = all_particles(positions[chosen], features[chosen], queries[q : q + 1])[0]
        np.testing.assert_allclose(sums[q], expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("channels", [1, 16, 35])
def test_many_queries_of_any_number_of_channels_with_gaps(kernels, channels):
    positions, _, queries = random_scene(num_particles=30, num_queries=150, spread=0.06)
    rng = np.random.default_rng(8)
    features = rng.normal(size=(30, channels)).astype(np.float32)
    indices = rng.integers(0, 30, (150, 7)).astype(np.int32)
    found = rng.random(indices.shape) < 0.7
    sums = jitted_sums(positions, features, queries, indices, found, kernels)
    for q in range(0, 150, 7):
        chosen = indices[q][found[q]]
        expected = all_particles(positions[chosen], features[chosen], queries[q : q + 1])[0]
        np.testing.assert_allclose(sums[q], expected, rtol=1e-4, atol=1e-6)


def test_gaussians_are_exact_to_rounding_and_zero_far_away():
    x = np.concatenate([np.linspace(-12, 12, 5001), [0, 1e-30, 1e19, 3e38, np.inf, -np.inf]])
    x = x.astype(np.float32)
    powers, result = np.empty_like(x), np.empty_like(x)
    gaussian(x, powers, result)
    near = np.float64(x) ** 2 < 79.99
    np.testing.assert_allclose(result[near], np.exp(-(np.float64(x[near]) ** 2)), rtol=1e-5)
    close = np.abs(x) < 1
    np.testing.assert_allclose(result[close], np.exp(-(np.float64(x[close]) ** 2)), rtol=3e-7)
    assert (result[np.float64(x) ** 2 > 80.01] == 0).all()


@pytest.mark.parametrize("kernel", range(4))
def test_particle_on_an_annulus_has_weight_one(kernels, kernel):
    # One bandwidth away from the annulus the weight is 1/e.
    positions = np.zeros((1, 3), np.float32)
    places = RADII[kernel] + np.array([0.0, BANDWIDTHS[kernel]])
    queries = np.stack([places, 0 * places, 0 * places], axis=1).astype(np.float32)
    features = np.full((1, CHANNELS), 2.0, np.float32)
    sums = jitted_sums(positions, features, queries, *everyone(2, 1), kernels)[:, kernel]
    np.testing.assert_allclose(sums[0], [2, 2, 2, 1], rtol=1e-4)
    np.testing.assert_allclose(sums[1], np.array([2, 2, 2, 1]) / np.e, rtol=1e-3)
    density = jitted_features(jnp.broadcast_to(sums[:1, None], (1, 4, CHANNELS + 1)))[0, CHANNELS]
    assert density == pytest.approx(1.0, abs=1e-5)


def test_equal_features_are_reproduced_wherever_weights_are(kernels):
    positions, _, queries = random_scene(num_queries=60, spread=0.06)
    features = np.tile(np.array([[0.3, -1.7, 5.0]], np.float32), (len(positions), 1))
    sums = jitted_sums(positions, features, queries, *everyone(60, len(positions)), kernels)
    inputs = np.asarray(jitted_features(sums)).reshape(60, 4, CHANNELS + 1)
    total = np.asarray(sums)[..., -1:]
    expected = features[:1, None] * total / (total + 1e-8)
    np.testing.assert_allclose(inputs[..., :-1], expected, rtol=1e-4, atol=1e-6)
    assert (total < 1e-8).any()
    assert (total > 1e-4).any()


def test_far_from_everything_there_are_no_features_and_no_density(kernels):
    positions, features, _ = random_scene()
    queries = np.array([[10.0, 0, 0], [0.0, 0, 0]], np.float32)
    indices, found = everyone(2, len(positions))
    found[1] = False
    sums = jitted_sums(positions, features, queries, indices, found, kernels)
    inputs = np.asarray(jitted_features(sums))
    np.testing.assert_allclose(inputs, 0.0, atol=1e-6)


@functools.partial(jax.jit, static_argnums=4)
def gradients(scene, indices, found, cotangent, kernels):
    def total(positions, features):
        sums = jitted_sums(positions, features, scene[2], indices, found, kernels)
        return (annular_features(sums) * cotangent).sum()

    return jax.grad(total, argnums=(0, 1))(*scene[:2])


def test_gradients_equal_finite_differences(kernels):
    scene = random_scene(spread=0.02)
    indices, found = everyone(20, 12)
    cotangent = np.random.default_rng(1).normal(size=(20, 4 * (CHANNELS + 1)))
    grads = gradients(scene, indices, found, np.float32(cotangent), kernels)

    def total(positions, features):
        sums = all_particles(positions, features, scene[2])
        rows = [references.annular_features(s[:, :-1], s[:, -1]) for s in sums]
        return (np.array(rows) * cotangent).sum()

    rng = np.random.default_rng(2)
    arguments = [np.float64(x) for x in scene[:2]]
    for i in range(2):
        directions = [rng.normal(size=x.shape) * (i == j) for j, x in enumerate(arguments)]
        expected = references.directional_derivative(
            total, arguments, [1e-3 * d for d in directions]
        )
        assert np.vdot(grads[i], 1e-3 * directions[i]) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("distance", [0.0, 1e-7, 0.01, 0.02, 0.05, 0.3, 10.0, 1e6])
def test_values_and_gradients_are_finite_at_any_distance(kernels, distance):
    positions = np.array([[distance, 0, 0], [distance, 0, 0]], np.float32)
    features = np.array([[1.0, -2, 3], [1e3, 1e-3, 0]], np.float32)
    scene = (positions, features, np.zeros((1, 3), np.float32))
    indices, found = everyone(1, 2)
    sums = jitted_sums(*scene, indices, found, kernels)
    assert np.isfinite(jitted_features(sums)).all()
    for grad in gradients(scene, indices, found, np.ones((1, 16), np.float32), kernels):
        assert np.isfinite(grad).all()


def test_neighbours_that_do_not_exist_are_inert(kernels):
    scene = random_scene()
    indices, found = everyone(20, 12)
    found = np.random.default_rng(3).random(found.shape) < 0.5
    found[:, 0] = False
    cotangent = np.ones((20, 16), np.float32)
    sums = jitted_sums(*scene, indices, found, kernels)
    elsewhere = np.where(found, indices, 0)
    np.testing.assert_array_equal(sums, jitted_sums(*scene, elsewhere, found, kernels))
    for grad in gradients(scene, elsewhere, found, cotangent, kernels):
        assert (np.asarray(grad)[0] == 0).all()


def test_queries_carry_no_gradient(kernels):
    positions, features, queries = random_scene()
    indices, found = everyone(20, 12)

    def total(queries):
        return jitted_sums(positions, features, queries, indices, found, kernels).sum()

    assert (np.asarray(jax.jit(jax.grad(total))(queries)) == 0).all()


@pytest.mark.parametrize("transform", ["jit", "vmap", "scan", "checkpoint"])
def test_host_and_xla_agree_under_transformations(transform):
    pair = [random_scene(seed=seed, spread=0.02) for seed in (0, 1)]
    *moving, queries = (jnp.asarray(np.stack(x)) for x in zip(*pair, strict=True))
    indices, found = everyone(20, 12)
    found = np.random.default_rng(4).random(found.shape) < 0.8
    cotangent = np.random.default_rng(5).normal(size=(20, 4, CHANNELS + 1)).astype(np.float32)

    def run(kernels):
        def value(x):
            positions, features, queries = x
            return (
                sums_of(positions, features, queries, indices, found, kernels) * cotangent
            ).sum()

        def scanned(x):
            return jax.lax.scan(lambda carry, x: (carry + value(x), None), 0.0, x)[0]

        total = {
            "jit": lambda x: sum(value(jax.tree.map(lambda y, b=b: y[b], x)) for b in (0, 1)),
            "vmap": lambda x: jax.vmap(value)(x).sum(),
            "scan": scanned,
            "checkpoint": jax.checkpoint(scanned),
        }[transform]
        return jax.jit(jax.value_and_grad(lambda moving: total((*moving, queries))))(tuple(moving))

    (xla, xla_grads), (host, host_grads) = (run(kernels) for kernels in KERNELS)
    np.testing.assert_allclose(host, xla, rtol=1e-4, atol=1e-4)
    for one, other in zip(host_grads, xla_grads, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4 * np.abs(other).max())


def test_host_kernels_do_not_depend_on_the_number_of_threads():
    scene = random_scene()
    indices, found = everyone(20, 12)
    cotangent = np.random.default_rng(6).normal(size=(20, 16)).astype(np.float32)
    check_that_threads_change_nothing(lambda: gradients(scene, indices, found, cotangent, "host"))
