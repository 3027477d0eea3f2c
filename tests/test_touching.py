"""What surroundings say before anything is learned: who went along, and who is touched."""

import dataclasses

import jax
import numpy as np
import pytest
import scenes

from hdvpd.basics.types import ParticleCloud
from hdvpd.dynamics.touching import surroundings, touched, went_along

RED, GREEN, WHITE = [3.0, -3.0, -3.0], [-3.0, 3.0, -3.0], [1.0, 1.0, 1.0]


@jax.jit
def weigh(cloud, other, carried_m):
    around = surroundings(cloud, colors=True)
    return went_along(cloud, other, carried_m, around, colors=True)


@jax.jit
def touch(cloud, robot):
    return touched(cloud, robot, surroundings(cloud, colors=True), colors=True)


def cloud_of(positions, features):
    return ParticleCloud(
        positions=np.asarray(positions, np.float32),
        features=np.asarray(features, np.float32),
        mask=np.ones(len(positions), bool),
    )


def grid(size_m, spacing_m=0.015):
    """Points of a horizontal square from the origin on."""
    ticks = np.arange(0, size_m + spacing_m / 2, spacing_m)
    x, y = np.meshgrid(ticks, ticks, indexing="ij")
    return np.stack([x.ravel(), y.ravel(), np.zeros(x.size)], axis=-1)


def block_on_a_table():
    """A red square of 12 cm, 3 cm above a white table of 30 cm that reaches under and beside it."""
    block, table = grid(0.12) + [[0.1, 0.1, 0.03]], grid(0.3)
    colors = np.concatenate([np.tile(RED, (len(block), 1)), np.tile(WHITE, (len(table), 1))])
    return cloud_of(np.concatenate([block, table]), colors), len(block)


def hand(now, then, opening=0.1):
    """One kinematic point at t - 1 and at t."""
    positions = np.asarray([now, now, then], np.float32)[:, None]
    return scenes.unturned(positions, opening)


def test_evidence_tells_who_went_along_from_who_stood():
    """Two surfaces of other colours in reach of a robot that moved 4 cm: one went, one stood."""
    rng = np.random.default_rng(0)
    surface = np.stack([*rng.uniform(0, 0.1, (2, 200)), np.zeros(200)], -1)
    went, stood = surface[:100], surface[100:] + [[0.0, 0.0, 0.02]]
    colors = np.repeat([[2.0, -2.0, 0.0], [-2.0, 2.0, 0.0]], 100, axis=0)
    motion = np.asarray([0.04, 0.0, 0.0])
    # Sampled anew at the two times, as encoded clouds are.
    shift = rng.normal(0, 0.002, (200, 3))
    before = cloud_of(np.concatenate([went, stood]) + shift, colors)
    now = cloud_of(np.concatenate([went + motion, stood]), colors)
    back = np.repeat(-motion[None], 200, axis=0).astype(np.float32)
    evidence = np.asarray(weigh(now, before, back))
    assert (evidence[:100] > 0).mean() > 0.95
    assert (evidence[100:] < 0).mean() > 0.95


def test_without_motion_or_counterparts_there_is_no_evidence():
    cloud = scenes.random_cloud(0, 30, 4)
    still = np.zeros((30, 3), np.float32)
    np.testing.assert_allclose(weigh(cloud, cloud, still), 0.0, atol=1e-7)
    empty = dataclasses.replace(cloud, mask=np.zeros(30, bool))
    for pair in ((cloud, empty), (empty, cloud), (empty, empty)):
        np.testing.assert_allclose(weigh(*pair, still + 0.1)[~pair[0].mask], 0.0, atol=1e-7)
        assert np.isfinite(np.asarray(weigh(*pair, still + 0.1))).all()


def test_an_object_is_touched_as_a_whole_and_the_table_is_not():
    """The hand comes along x to 1 cm before the block's side, 4 cm above the table.

    By distances alone the touch would spread from the block to the table.
    """
    cloud, size = block_on_a_table()
    told = touch(cloud, hand([0.03, 0.16, 0.04], [0.09, 0.16, 0.04]))
    share, gap = np.asarray(told.share), np.asarray(told.gap_m)
    assert share[:size].min() > 0.1
    np.testing.assert_allclose(share[:size], share[0])
    np.testing.assert_array_equal(share[size:], 0)
    # The nearest of the block's particles decides for all of them.
    apart = np.linalg.norm(np.asarray(cloud.positions) - [[0.09, 0.16, 0.04]], axis=1)
    np.testing.assert_allclose(gap[:size], apart[:size].min(), atol=1e-5)
    np.testing.assert_array_equal(np.unique(np.asarray(told.origin)[:size]), apart[:size].argmin())


def test_the_share_is_that_of_the_way_within_the_radius():
    """The eight nearest in a square grid of 1.5 cm reach 2.12 cm: the radius is 3.24 cm."""
    cloud = cloud_of(grid(0.12), np.tile(RED, (9 * 9, 1)))
    for way_m, end_m in ((0.05, 0.01), (0.05, 0.02), (0.05, 0.04), (0.01, 0.01)):
        end = np.asarray([0.06, 0.06, end_m])
        told = touch(cloud, hand(end + [0, 0, way_m], end))
        open_by = 1 / (1 + np.exp((0.1 - 0.65) / 0.05))
        expected = np.clip((0.025 + 0.35 * 0.015 * 2**0.5 - end_m) / way_m, 0, 1) * open_by
        np.testing.assert_allclose(told.share, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("then", "opening"), [([0.09, 0.16, 0.04], 1.0), ([0.04, 0.16, 0.04], 0.1)]
)
def test_an_open_hand_and_one_that_stays_away_touch_nothing(then, opening):
    cloud, _ = block_on_a_table()
    told = touch(cloud, hand([0.03, 0.16, 0.04], then, opening))
    np.testing.assert_allclose(told.share, 0, atol=1e-3)


def test_a_shadow_on_an_object_does_not_end_it():
    """Half of the block gets 70 % of the light; were it green, it would be another object."""
    cloud, size = block_on_a_table()
    features = cloud.features.copy()
    lit = 1 / (1 + np.exp(-features[:size]))
    far = cloud.positions[:size, 0] > 0.155
    dim = 0.7 * lit
    features[:size][far] = np.log(dim / (1 - dim))[far]
    robot = hand([0.03, 0.16, 0.04], [0.09, 0.16, 0.04])
    shaded = touch(dataclasses.replace(cloud, features=features), robot)
    assert np.asarray(shaded.share)[:size].min() > 0.1
    features[:size][far] = GREEN
    other = np.asarray(touch(dataclasses.replace(cloud, features=features), robot).share)
    assert other[:size][~far].min() > 0.1
    np.testing.assert_array_equal(other[:size][far], 0)


def test_touches_turn_with_the_scene_and_follow_the_order_of_particles():
    cloud, _ = block_on_a_table()
    robot = hand([0.03, 0.16, 0.04], [0.09, 0.15, 0.04])
    share = np.asarray(touch(cloud, robot).share)
    turn, shift = (
        np.asarray([[0, 1, 0], [-1, 0, 0], [0, 0, 1]], np.float32),
        np.full(3, 2.0, np.float32),
    )
    order = np.random.default_rng(0).permutation(len(share))
    other = ParticleCloud(
        positions=(cloud.positions @ turn.T + shift)[order],
        features=cloud.features[order],
        mask=cloud.mask[order],
    )
    there = dataclasses.replace(robot, positions=robot.positions @ turn.T + shift)
    np.testing.assert_allclose(touch(other, there).share, share[order], atol=1e-4)


def test_touches_are_finite_with_few_or_no_or_coincident_particles():
    cloud, robot = scenes.random_cloud(0, 5, 4), scenes.random_robot(1, 3)
    empty = dataclasses.replace(cloud, mask=np.zeros(5, bool))
    same = dataclasses.replace(cloud, positions=np.zeros_like(cloud.positions))
    for one in (cloud, empty, same):
        for x in jax.tree.leaves(touch(one, robot)):
            assert np.isfinite(np.asarray(x)).all()


def test_without_colours_a_touch_does_not_spread():
    cloud, size = block_on_a_table()
    robot = hand([0.03, 0.16, 0.04], [0.09, 0.16, 0.04])
    around = surroundings(cloud, colors=False)
    told = touched(cloud, robot, around, colors=False)
    share = np.asarray(told.share)[:size]
    assert share.max() > 0.1
    assert (share > 0).mean() < 0.2
    np.testing.assert_array_equal(told.origin, np.arange(len(cloud.mask)))
