"""The distance between predicted particles and measured points, against a slow numpy version."""

import jax
import numpy as np
import pytest

from hdvpd.dynamics.matching import match_distance

distance = jax.jit(match_distance)


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


@pytest.mark.parametrize("sizes", [(40, 30), (128, 300), (300, 40)])
def test_equals_the_slow_version(sizes):
    predicted, measured = draw(sizes[0], 0), draw(sizes[1], 1)
    expected = one_way(*predicted, *measured) + one_way(*measured, *predicted)
    np.testing.assert_allclose(distance(*predicted, *measured), expected, rtol=1e-4)


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


def test_nothing_to_compare_with_is_no_distance_and_no_gradient():
    predicted, measured = draw(5, 3), draw(5, 4)
    nothing = np.zeros(5, bool)
    for masks in ((nothing, measured[2]), (predicted[2], nothing), (nothing, nothing)):
        value, gradient = jax.jit(
            jax.value_and_grad(
                lambda x, masks=masks: match_distance(
                    x, predicted[1], masks[0], *measured[:2], masks[1]
                )
            )
        )(predicted[0])
        assert value == 0
        np.testing.assert_array_equal(gradient, 0)
