"""A particle's neighbours: who is near, who is alike, and what they agree on."""

import dataclasses

import jax
import numpy as np
import scenes

from hdvpd.basics.types import ParticleCloud
from hdvpd.dynamics.surroundings import shared, surroundings


def cloud_of(positions, features):
    positions = np.float32(positions)
    return ParticleCloud(positions, np.float32(features), np.ones(len(positions), bool))


def logits(rgb):
    return np.log(rgb) - np.log1p(-np.asarray(rgb))


@jax.jit
def agreed(cloud, values):
    return shared(values, surroundings(cloud, colors=True))


def test_neighbours_of_one_colour_agree_and_others_do_not_take_part():
    """Red and green points in one place: each colour ends at its own mean."""
    rng = np.random.default_rng(0)
    places = rng.uniform(0, 0.01, (16, 3))
    colors = np.repeat([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1]], 8, axis=0)
    values = np.float32(rng.normal(size=16) + np.repeat([5.0, -5.0], 8))
    told = np.asarray(agreed(cloud_of(places, logits(colors)), values))
    for half in (slice(8), slice(8, 16)):
        assert np.ptp(told[half]) < 0.05 * np.ptp(values[half])
        np.testing.assert_allclose(told[half].mean(), values[half].mean(), atol=0.2)


def test_a_shadow_makes_nothing_another_colour():
    """Half of the points get 70 % of the light."""
    rgb = np.tile([[0.7, 0.3, 0.2]], (16, 1))
    rgb[8:] *= 0.7
    places = np.random.default_rng(0).uniform(0, 0.05, (16, 3))
    around = surroundings(cloud_of(places, logits(rgb)), colors=True)
    assert np.asarray(around.unlike).max() < 0.1
    rgb[8:] = rgb[8:, ::-1]
    around = surroundings(cloud_of(places, logits(rgb)), colors=True)
    assert np.asarray(around.unlike).max() > 1
    around = surroundings(cloud_of(places, logits(rgb)), colors=False)
    np.testing.assert_array_equal(around.unlike, 0)


def test_those_that_are_masked_are_infinitely_far():
    cloud = scenes.random_cloud(0, 20, 4)
    mask = np.arange(20) < 12
    around = surroundings(cloud, colors=True).among(mask)
    distances, indices = np.asarray(around.distances), np.asarray(around.indices)
    np.testing.assert_array_equal(np.isfinite(distances), mask[indices])


def test_sharing_is_finite_with_few_none_or_coincident_particles():
    cloud = scenes.random_cloud(0, 5, 4)
    empty = dataclasses.replace(cloud, mask=np.zeros(5, bool))
    same = dataclasses.replace(cloud, positions=np.zeros_like(cloud.positions))
    for one in (cloud, empty, same):
        assert np.isfinite(np.asarray(agreed(one, np.ones(5, np.float32)))).all()
