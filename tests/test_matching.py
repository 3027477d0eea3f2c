"""The distance between predicted particles and measured points, against a slow numpy version.

Counterparts are found in both forms; compiled host code is the form on CPUs.
"""

import functools

import jax
import numpy as np
import pytest

from hdvpd.dynamics.matching import match_distance
from hdvpd.kernels.counterparts import counterparts

distance = jax.jit(match_distance, static_argnames="kernels")
search = functools.partial(jax.jit, static_argnums=4)(counterparts)
FORMS = ["xla", "host"]


def draw(count, seed):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(0, 0.1, (count, 3)).astype(np.float32),
        rng.uniform(0, 1, (count, 3)).astype(np.float32),
        rng.uniform(size=count) < 0.8,
    )


def one_way(points, colors, mask, others, other_colors, other_mask):
    """Slow: for every real point, the counterpart by place and colour; its distance in space."""
    total = []
    for point, color in zip(points[mask].astype(np.float64), colors[mask], strict=True):
        apart = np.linalg.norm(others[other_mask] - point, axis=1)
        unlike = np.linalg.norm(other_colors[other_mask] - color, axis=1)
        nearest = np.argmin(np.hypot(apart, 0.2 * unlike))
        total.append(np.hypot(apart[nearest], 0.02) - 0.02)
    return np.mean(total)


def apart(first, second):
    """Return the exact squared distances of float32 points, (n, m)."""
    return ((first.astype(np.float64)[:, None] - second[None]) ** 2).sum(-1)


def slow_search(first, second, first_mask, second_mask):
    """Slow: the lowest row of the nearest real point; 0 without one, and for what is not real."""
    squared = np.where(first_mask[:, None] & second_mask[None], apart(first, second), np.inf)
    return squared.argmin(1), squared.argmin(0)


def draw_grid(count, seed):
    """Points in the corners of few cells, whose distances no form rounds: many are as near."""
    rng = np.random.default_rng(seed)
    points = rng.integers(0, 3, (count, 6)).astype(np.float32)
    points[-1] = 3 * count - points[:-1].sum(0)  # the center is a whole number
    return points, rng.uniform(size=count) < 0.7


def draw_surface(count, seed):
    """Points of a table in one colour and of two small things on it."""
    rng = np.random.default_rng(seed)
    place = rng.uniform(0, 1, (count, 3)) * [1, 1, 0.01]
    color = np.full((count, 3), 0.1) + rng.normal(0, 1e-3, (count, 3))
    for thing in range(2):
        some = rng.uniform(size=count) < 0.2
        place[some] = rng.normal(0.5, 0.05, (some.sum(), 3))
        color[some] = 0.2 * thing
    points = np.concatenate([place, color], axis=1).astype(np.float32)
    return points, rng.uniform(size=count) < 0.9


@pytest.mark.parametrize("kernels", FORMS)
@pytest.mark.parametrize("sizes", [(40, 30), (128, 300), (300, 40)])
def test_equals_the_slow_version(sizes, kernels):
    predicted, measured = draw(sizes[0], 0), draw(sizes[1], 1)
    expected = one_way(*predicted, *measured) + one_way(*measured, *predicted)
    found = distance(*predicted, *measured, kernels=kernels)
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("kernels", FORMS)
@pytest.mark.parametrize("sizes", [(1, 1), (1, 50), (17, 16), (131, 700), (700, 131)])
def test_of_counterparts_as_near_the_lowest_row_is_found(sizes, kernels):
    (first, mask), (second, other_mask) = draw_grid(sizes[0], 0), draw_grid(sizes[1], 1)
    expected = slow_search(first, second, mask, other_mask)
    for rows, slow in zip(search(first, second, mask, other_mask, kernels), expected, strict=True):
        np.testing.assert_array_equal(rows, slow)


@pytest.mark.parametrize("kernels", FORMS)
@pytest.mark.parametrize("sizes", [(333, 1000), (2048, 1999)])
def test_counterparts_on_surfaces_are_the_nearest(sizes, kernels):
    (first, mask), (second, other_mask) = draw_surface(sizes[0], 0), draw_surface(sizes[1], 1)
    squared = apart(first, second)
    found = search(first, second, mask, other_mask, kernels)
    expected = slow_search(first, second, mask, other_mask)
    # Plain JAX computes squared distances as differences of squares.
    for way, (rows, slow, real, theirs) in enumerate(
        zip(found, expected, (mask, other_mask), (other_mask, mask), strict=True)
    ):
        far = squared if way == 0 else squared.T
        np.testing.assert_array_equal(np.asarray(rows)[~real], 0)
        assert theirs[np.asarray(rows)[real]].all()
        mine = np.arange(len(rows))[real]
        np.testing.assert_allclose(
            far[mine, np.asarray(rows)[real]], far[mine, slow[real]], rtol=1e-6,
            atol=3e-7 if kernels == "xla" else 0,
        )  # fmt: skip


@pytest.mark.parametrize("kernels", FORMS)
def test_counterparts_of_coincident_points_are_the_first(kernels):
    first, second = np.ones((40, 6), np.float32), np.ones((70, 6), np.float32)
    masks = np.arange(40) >= 3, np.arange(70) >= 21
    theirs, ours = search(first, second, *masks, kernels)
    np.testing.assert_array_equal(theirs, np.where(masks[0], 21, 0))
    np.testing.assert_array_equal(ours, np.where(masks[1], 3, 0))


@pytest.mark.parametrize("kernels", FORMS)
def test_counterparts_of_several_clouds_are_those_of_each(kernels):
    """Mapped over two axes; one cloud is compared with all."""
    clouds = [[draw_surface(50, 3 * i + j) for j in range(3)] for i in range(2)]
    points, masks = (np.stack([[x[k] for x in row] for row in clouds]) for k in range(2))
    other, other_mask = draw_surface(77, 9)
    one = functools.partial(counterparts, kernels=kernels)
    together = jax.jit(jax.vmap(jax.vmap(one, (0, None, 0, None)), (0, None, 0, None)))
    found = together(points, other, masks, other_mask)
    for i, j in np.ndindex(2, 3):
        alone = search(points[i, j], other, masks[i, j], other_mask, kernels)
        for rows, expected in zip(found, alone, strict=True):
            np.testing.assert_array_equal(rows[i, j], expected)


def test_what_is_no_number_and_what_is_huge_is_found_nowhere_or_in_range():
    first, mask = draw_surface(60, 0)
    second, other_mask = draw_surface(60, 1)
    first[:9, 2], second[5, 0] = np.nan, np.inf
    theirs, ours = search(first, second, mask, other_mask, "host")
    finite = mask & np.isfinite(first).all(1), other_mask & np.isfinite(second).all(1)
    with np.errstate(invalid="ignore"):
        expected = slow_search(
            np.where(finite[0][:, None], first, 0), np.where(finite[1][:, None], second, 0),
            *finite,
        )  # fmt: skip
    np.testing.assert_array_equal(theirs, expected[0])
    np.testing.assert_array_equal(ours, expected[1])
    first[20:] = np.float32(3e38) * np.sign(first[20:] - 0.1)
    for rows in search(first, second, mask, other_mask, "host"):
        assert ((rows >= 0) & (rows < 60)).all()


def test_equal_clouds_are_at_distance_zero_and_padding_counts_nowhere():
    cloud = draw(20, 2)
    np.testing.assert_allclose(distance(*cloud, *cloud), 0.0, atol=1e-7)
    other = [x.copy() for x in cloud]
    other[0][~cloud[2]] += 5.0
    np.testing.assert_allclose(distance(*other, *cloud), 0.0, atol=1e-7)


def test_a_block_is_pulled_to_its_colour_and_not_to_the_table_below_it():
    """A red particle left behind on a brown table goes to where red is now, 5 cm further on."""
    table = np.stack([*np.meshgrid(np.arange(10) / 50, np.arange(10) / 50), np.zeros((10, 10))], -1)
    table = table.reshape(-1, 3).astype(np.float32)
    brown, red = np.full((100, 3), 0.4, np.float32), np.asarray([[0.9, 0.1, 0.1]], np.float32)
    block = np.asarray([[0.05, 0.05, 0.03]], np.float32)
    colors, mask = np.concatenate([brown, red]), np.ones(101, bool)

    def loss(place):
        now = np.concatenate([table, block + np.float32([[0.05, 0, 0]])])
        return match_distance(
            jax.numpy.concatenate([table, place]), colors, mask, now, colors, mask
        )

    gradient = np.asarray(jax.jit(jax.grad(loss))(block))[0]
    assert gradient[0] < 0
    np.testing.assert_allclose(gradient[1:], 0, atol=1e-7)


@pytest.mark.parametrize("kernels", FORMS)
def test_nothing_to_compare_with_is_no_distance_and_no_gradient(kernels):
    predicted, measured = draw(5, 3), draw(5, 4)
    nothing = np.zeros(5, bool)
    for masks in ((nothing, measured[2]), (predicted[2], nothing), (nothing, nothing)):
        value, gradient = jax.jit(
            jax.value_and_grad(
                lambda x, masks=masks: match_distance(
                    x, predicted[1], masks[0], *measured[:2], masks[1], kernels
                )
            )
        )(predicted[0])
        assert value == 0
        np.testing.assert_array_equal(gradient, 0)
        clouds = (np.tile(cloud[0], 2) for cloud in (predicted, measured))
        for rows in search(*clouds, *masks, kernels):
            np.testing.assert_array_equal(rows, 0)
