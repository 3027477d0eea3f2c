"""Which particles are one thing."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
import scenes

from hdvpd.basics.types import ParticleCloud
from hdvpd.dynamics.segments import segments
from hdvpd.dynamics.surroundings import surroundings

RED, GREEN, WHITE = [3.0, -3.0, -3.0], [-3.0, 3.0, -3.0], [1.0, 1.0, 1.0]
SPACING_M = 0.01


@functools.partial(jax.jit, static_argnums=1)
def found(cloud, up="z"):
    return segments(cloud, surroundings(cloud, colors=True), up=up)


def cube(corner, size_m=0.05):
    """Points of a cube's surface, a centimetre apart."""
    ticks = np.arange(0, size_m + 1e-6, SPACING_M)
    grid = np.stack(np.meshgrid(ticks, ticks, ticks, indexing="ij"), axis=-1).reshape(-1, 3)
    return grid[np.abs(grid - size_m / 2).max(1) > size_m / 2 - 1e-6] + np.asarray(corner)


def table(size_m=0.4):
    ticks = np.arange(0, size_m, SPACING_M)
    x, y = np.meshgrid(ticks, ticks, indexing="ij")
    return np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=-1) - [0.1, 0.1, 0]


def cloud_of(*parts):
    """A cloud of (positions, colour)."""
    positions = np.float32(np.concatenate([places for places, _ in parts]))
    features = np.concatenate([np.broadcast_to(c, (len(p), 3)) for p, c in parts])
    return ParticleCloud(positions, np.float32(features), np.ones(len(positions), bool))


def labels(cloud, sizes, up="z"):
    """Labels of the parts of a cloud."""
    label = np.asarray(found(cloud, up).label)
    return np.split(label, np.cumsum(sizes)[:-1])


def test_a_cube_on_a_table_is_one_thing_down_to_its_edge():
    parts = (cube([0, 0, 0.002]), RED), (table(), WHITE)
    thing, support = labels(cloud_of(*parts), [len(p) for p, _ in parts])
    assert len(np.unique(thing)) == 1
    count = len(thing) + len(support)
    assert thing[0] < count
    np.testing.assert_array_equal(support, count)


def test_stripes_are_of_one_thing_and_neighbours_are_two():
    """Of two colours side by side, what touches is one thing; 2 cm apart are two."""
    upper = cube([0, 0, 0.002])
    stripe = (upper[:, 0] > 0.015) & (upper[:, 0] < 0.035)
    other = cube([0.07, 0, 0.002])
    parts = (upper[~stripe], RED), (upper[stripe], GREEN), (other, GREEN), (table(), WHITE)
    sizes = [len(p) for p, _ in parts]
    plain, striped, second, _ = labels(cloud_of(*parts), sizes)
    # The lowest edge of the stripe may be taken for the table's.
    assert set(np.unique(np.append(plain, striped[upper[stripe][:, 2] > 0.015]))) == {plain[0]}
    assert set(np.unique(second)) == {second[0]}
    assert plain[0] != second[0]


def test_height_is_above_the_lowest_that_is_near():
    parts = (cube([0, 0, 0.102]), RED), (table(), WHITE)
    height = np.asarray(found(cloud_of(*parts)).height_m)
    np.testing.assert_allclose(height[: len(parts[0][0])], parts[0][0][:, 2], atol=1e-6)
    np.testing.assert_allclose(height[len(parts[0][0]) :], 0, atol=1e-6)


def test_without_an_axis_hue_tells_and_what_is_wide_is_no_thing():
    parts = (cube([0, 0, 0.002]), RED), (table(), WHITE)
    thing, support = labels(cloud_of(*parts), [len(p) for p, _ in parts], up="none")
    assert len(np.unique(thing)) == 1
    assert thing[0] < len(thing) + len(support)
    np.testing.assert_array_equal(support, len(thing) + len(support))


@pytest.mark.parametrize("up", ["x", "-y"])
def test_no_axis_is_special_and_no_order(up):
    cloud = cloud_of((cube([0, 0, 0.002]), RED), (cube([0.1, 0, 0.0]), GREEN), (table(), WHITE))
    first = np.asarray(found(cloud).label)
    order = np.random.default_rng(0).permutation(len(first))
    axis = "xyz".index(up[-1])
    turned = np.roll(cloud.positions, axis - 2, axis=1) * (-1 if up[0] == "-" else 1)
    other = ParticleCloud(turned[order], cloud.features[order], cloud.mask[order])
    second = np.asarray(found(other, up).label)
    np.testing.assert_array_equal(second < len(order), (first < len(order))[order])
    same = first[:, None] == first[None]
    np.testing.assert_array_equal(second[:, None] == second[None], same[order][:, order])


def test_sums_and_means_are_of_things():
    cloud = cloud_of((cube([0, 0, 0.002]), RED), (cube([0.1, 0, 0.0]), GREEN), (table(), WHITE))
    told = found(cloud)
    label = np.asarray(told.label)
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=(len(label), 2)), rng.uniform(size=len(label))
    mean = np.asarray(told.mean(np.float32(values), np.float32(weights)))
    least, most = (np.asarray(f(np.float32(values[:, 0]))) for f in (told.min, told.max))
    for number in np.unique(label[label < len(label)]):
        own = label == number
        expected = np.average(values[own], axis=0, weights=weights[own])
        np.testing.assert_allclose(mean[own], np.tile(expected, (own.sum(), 1)), atol=1e-5)
        np.testing.assert_allclose(least[own], values[own, 0].min(), rtol=1e-6)
        np.testing.assert_allclose(most[own], values[own, 0].max(), rtol=1e-6)


@pytest.mark.parametrize("up", ["z", "none"])
def test_padding_is_not_asked_how_far_particles_are_apart(up):
    cloud = scenes.random_cloud(0, 60, 3)
    places = np.asarray(cloud.positions) + np.float32([2, 0, 0])
    cloud = dataclasses.replace(cloud, positions=places, mask=np.ones(60, bool))
    padded = ParticleCloud(
        positions=np.pad(places, ((0, 90), (0, 0))),
        features=np.pad(cloud.features, ((0, 90), (0, 0))),
        mask=np.pad(cloud.mask, (0, 90)),
    )
    assert found(padded, up).reach_m == found(cloud, up).reach_m > 0


@pytest.mark.parametrize("up", ["z", "none"])
def test_padding_belongs_to_nothing(up):
    cloud = scenes.random_cloud(0, 6, 3)
    for one in (
        dataclasses.replace(cloud, mask=np.zeros(6, bool)),
        dataclasses.replace(cloud, positions=np.zeros_like(cloud.positions)),
    ):
        told = found(one, up)
        assert np.isfinite(np.asarray(told.height_m)).all()
        np.testing.assert_array_equal(np.asarray(told.label)[~one.mask], 6)
