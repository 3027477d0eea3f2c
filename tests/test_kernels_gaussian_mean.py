"""Weighted means over points as host code against a formula in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from threads import check_that_threads_change_nothing

from hdvpd.kernels import dense
from hdvpd.kernels.gaussian_mean import gaussian_mean

BANDWIDTH = 0.07


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch):
    monkeypatch.setattr(dense, "LEAST_ROWS", 0)


def inputs(count, points=21, columns=12, seed=0):
    rng = np.random.default_rng(seed)
    places, points_ = rng.uniform(-0.2, 0.2, (count, 3)), rng.uniform(-0.2, 0.2, (points, 3))
    table, shares = rng.normal(size=(points, columns)), rng.uniform(0.01, 1.0, points)
    bar = rng.normal(size=(count, columns))
    return [x.astype(np.float32) for x in (places, points_, shares, table, bar)]


def formula(places, points, shares, table):
    squared = jnp.sum((places[:, None] - points[None]) ** 2, axis=-1)
    weights = shares[None] * jnp.exp((squared.min(axis=1)[:, None] - squared) / BANDWIDTH**2)
    return weights @ table / weights.sum(axis=1, keepdims=True), squared.min(axis=1)


def mean_and_gradients(places, points, shares, table, bar):
    def function(shares, table):
        return gaussian_mean(places, points, shares, table, BANDWIDTH)

    (mean, least), back = jax.vjp(function, shares, table)
    return mean, least, *back((bar, jnp.zeros_like(least)))


def in_float64(*arguments):
    with jax.enable_x64(True):
        places, points, shares, table, bar = (jnp.asarray(x, jnp.float64) for x in arguments)
        (mean, least), back = jax.vjp(lambda *x: formula(places, points, *x), shares, table)
        return [np.asarray(x) for x in (mean, least, *back((bar, jnp.zeros_like(least))))]


def assert_near(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        scale = max(np.abs(theirs).max(initial=0), 1e-2)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * scale)


# Places: none, one, less than a block, whole blocks, some of another.
@pytest.mark.parametrize("count", [0, 1, 20, 128, 2500])
@pytest.mark.parametrize(("points", "columns"), [(2, 1), (5, 12), (84, 12)])
def test_means_and_gradients_equal_a_formula_in_float64(count, points, columns):
    arguments = inputs(count, points, columns)
    assert_near(jax.jit(mean_and_gradients)(*arguments), in_float64(*arguments))


def test_far_from_all_points_the_nearest_decides():
    places, points, shares, table, bar = inputs(3)
    places[:] = [[9.0, 0.0, 0.0], [0.0, 900.0, 0.0], points[4]]
    found = jax.jit(mean_and_gradients)(places, points, shares, table, bar)
    assert_near(found, in_float64(places, points, shares, table, bar))
    assert float(found[1][2]) == 0.0


def test_where_points_coincide_their_shares_decide():
    places, points, shares, table, bar = inputs(70, 5)
    points[:] = points[0]
    mean, _, shares_bar, table_bar = jax.jit(mean_and_gradients)(places, points, shares, table, bar)
    expected = np.broadcast_to(shares @ table / shares.sum(), mean.shape)
    np.testing.assert_allclose(mean, expected, atol=1e-6)
    assert np.isfinite(shares_bar).all()
    np.testing.assert_allclose(table_bar.sum(0), bar.sum(0), atol=1e-4)


def test_mapped_is_one_after_another():
    drawn = [inputs(100, seed=seed) for seed in range(3)]
    mapped = jax.jit(jax.vmap(mean_and_gradients))(*map(np.stack, zip(*drawn, strict=True)))
    for i, arguments in enumerate(drawn):
        for ours, theirs in zip(mapped, mean_and_gradients(*arguments), strict=True):
            np.testing.assert_array_equal(ours[i], theirs)


def test_results_do_not_depend_on_the_number_of_threads():
    arguments = inputs(3000)
    check_that_threads_change_nothing(
        lambda: [np.asarray(x) for x in mean_and_gradients(*arguments)]
    )
