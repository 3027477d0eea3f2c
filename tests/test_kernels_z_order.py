"""The order of points along the Z curve, in both forms."""

import functools

import jax
import numpy as np
import pytest

from hdvpd.kernels import z_order as module
from hdvpd.kernels.z_order import sort_rows

FORMS = pytest.mark.parametrize("kernels", ["host", "xla"])


def z_order(points, mask, kernels):
    return np.asarray(jax.jit(functools.partial(module.z_order, kernels=kernels))(points, mask))


@pytest.mark.parametrize("most", [4, 2**20, 2**32])
@pytest.mark.parametrize("count", [0, 1, 3000])
def test_equal_keys_keep_the_order_of_their_rows(most, count):
    keys = np.random.default_rng(0).integers(0, most, count).astype(np.uint32)
    order = np.empty(count, np.int32)
    sort_rows(keys, order)
    np.testing.assert_array_equal(order, np.argsort(keys, kind="stable"))


@FORMS
def test_visits_the_octants_of_a_grid_one_after_the_other(kernels):
    grid = np.stack(np.meshgrid(*[np.arange(4.0)] * 3, indexing="ij"), -1).reshape(-1, 3)
    shuffled = grid[np.random.default_rng(0).permutation(64)].astype(np.float32)
    order = z_order(0.1 * shuffled - 7, np.ones(64, bool), kernels)
    bits = [[(int(c) >> bit) & 1 for bit in (1, 0) for c in reversed(point)] for point in grid]
    expected = grid[sorted(range(64), key=lambda i: bits[i])]
    np.testing.assert_array_equal(shuffled[order], expected)


@FORMS
def test_puts_near_points_together_and_masked_ones_last(kernels):
    rng = np.random.default_rng(1)
    points, mask = rng.uniform(size=(2000, 3)).astype(np.float32), rng.uniform(size=2000) < 0.8
    points[~mask] = np.nan
    order = z_order(points, mask, kernels)
    assert sorted(order) == list(range(2000))
    np.testing.assert_array_equal(order[mask.sum() :], np.flatnonzero(~mask))
    kept = points[order[: mask.sum()]]
    # Random pairs of points in a unit cube are 0.66 apart, nearest neighbours here about 0.05.
    assert np.linalg.norm(np.diff(kept, axis=0), axis=1).mean() < 0.15


@FORMS
@pytest.mark.parametrize("real", [True, False])
def test_keeps_the_order_of_coincident_points_and_of_masked_ones(kernels, real):
    points = np.full((5, 3), 0.3, np.float32)
    np.testing.assert_array_equal(z_order(points, np.full(5, real), kernels), np.arange(5))


@pytest.mark.parametrize("spread", [1e-30, 1.0, 1e4])
def test_both_forms_are_the_same_to_the_bit(spread):
    rng = np.random.default_rng(2)
    points = (spread * rng.normal(size=(3, 4000, 3)) + 0.1 * spread).astype(np.float32)
    mask = rng.uniform(size=(3, 4000)) < 0.5
    mask[1], points[2, 100] = False, np.inf
    mask[2, 100] = False
    one_by_one = [z_order(*pair, "xla") for pair in zip(points, mask, strict=True)]
    host = jax.vmap(functools.partial(module.z_order, kernels="host"))
    np.testing.assert_array_equal(host(points, mask), one_by_one)
    shared = jax.vmap(functools.partial(module.z_order, kernels="host"), in_axes=(0, None))
    expected = [z_order(x, mask[0] & mask[2], "xla") for x in points]
    np.testing.assert_array_equal(shared(points, mask[0] & mask[2]), expected)
