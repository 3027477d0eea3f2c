"""What hangs together is told apart by hue and place."""

import functools

import jax
import numpy as np
import pytest
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from hdvpd.basics.types import ParticleCloud
from hdvpd.dynamics import parts
from hdvpd.dynamics.parts import told_apart
from hdvpd.dynamics.surroundings import surroundings

RED, GREEN, BLUE = [3.0, -3.0, -3.0], [-3.0, 3.0, -3.0], [-3.0, -3.0, 3.0]
NEAR_M = 0.015


@functools.partial(jax.jit, static_argnums=2)
def tell(cloud, whole, reach_m=NEAR_M):
    around = surroundings(cloud, colors=True)
    near = around.distances < reach_m
    return (
        told_apart(whole, near, around, cloud.positions[:, :2], cloud.positions[:, 2]),
        around,
        near,
    )


def cloud_of(*parts):
    positions = np.concatenate([np.float32(places) for places, _ in parts])
    features = np.concatenate([np.broadcast_to(np.float32(c), (len(p), 3)) for p, c in parts])
    return ParticleCloud(positions, features, np.ones(len(positions), bool))


def labels(*parts):
    """Labels of parts that hang together, each part's by itself."""
    cloud = cloud_of(*parts)
    label = np.asarray(tell(cloud, np.zeros(len(cloud.mask), np.int32))[0])
    return np.split(label, np.cumsum([len(p) for p, _ in parts])[:-1])


def box(corner, ticks):
    """The top of a box and the side that faces -y, a centimetre apart."""
    x, y, z = (np.arange(n) * 0.01 for n in ticks)
    top = np.stack(np.meshgrid(x, y, z[-1:], indexing="ij"), axis=-1).reshape(-1, 3)
    side = np.stack(np.meshgrid(x, y[:1], z[:-1], indexing="ij"), axis=-1).reshape(-1, 3)
    return np.concatenate([top, side]) + corner


def assert_one(*found):
    assert len(np.unique(np.concatenate(found))) == 1


def test_cubes_side_by_side_are_two_things_and_the_stripe_of_a_block_is_its_own():
    """Both touch what is beside them in another colour, particles a centimetre apart."""
    one, other = labels(
        (box([0, 0, 0.02], (4, 4, 4)), RED), (box([0.04, 0, 0.02], (4, 4, 4)), GREEN)
    )
    assert_one(one)
    assert_one(other)
    assert one[0] != other[0]
    left, stripe, right = (
        box([0, 0, 0.02], (4, 5, 4)),
        box([0.04, 0, 0.02], (3, 5, 4)),
        [0.07, 0, 0.02],
    )
    assert_one(*labels((left, RED), (stripe, GREEN), (box(right, (4, 5, 4)), RED)))


def test_rings_and_lid_of_a_can_are_one_thing():
    angle = np.linspace(0, 2 * np.pi, 20, endpoint=False)
    ring = 0.033 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=-1)
    body = np.concatenate([ring + [0, 0, z] for z in (0.02, 0.03, 0.06, 0.07)])
    stripe = np.concatenate([ring + [0, 0, z] for z in (0.04, 0.05)])
    lid = np.concatenate([ring * s + [0, 0, 0.08] for s in (0.2, 0.5, 0.8)])
    assert_one(*labels((body, RED), (stripe, GREEN), (lid, BLUE)))
    # Of what is seen from one side the middle is far from the lid's.
    assert_one(*labels((body[body[:, 1] < -0.02], RED), (lid, BLUE)))


def test_an_edge_whose_pixels_mix_two_colours_joins_neither_to_the_other():
    """Between two cubes stands a row of particles of the mean colour, like either of them."""
    one, other = box([0, 0, 0.02], (4, 4, 4)), box([0.05, 0, 0.02], (4, 4, 4))
    row = np.asarray([[0.04, 0.01 * k, 0.05] for k in range(4)])
    told = labels((one, RED), (row, [0.0, 0.0, -3.0]), (other, GREEN))
    assert told[0][0] != told[2][0]
    assert set(np.unique(told[1])) <= {told[0][0], told[2][0]}


def test_what_is_too_small_to_have_a_hue_stays_with_the_whole():
    """Few particles see a thing; all of them hang together."""
    rng = np.random.default_rng(0)
    cloud = cloud_of((rng.uniform(0, 0.03, (5, 3)), RED), (rng.uniform(0, 0.03, (5, 3)), GREEN))
    np.testing.assert_array_equal(tell(cloud, np.full(10, 7, np.int32))[0], 7)


def test_nothing_is_told_of_what_is_of_no_thing():
    cloud = cloud_of((box([0, 0, 0.02], (4, 4, 4)), RED))
    whole = np.full(len(cloud.mask), -1, np.int32)
    np.testing.assert_array_equal(tell(cloud, whole)[0], -1)


def test_of_more_parts_than_are_compared_the_rest_are_things(monkeypatch):
    """One stripe is compared with itself alone; the others are things of their own."""
    monkeypatch.setattr(parts, "_MOST_PARTS", 1)
    tops = [(box([0.04 * k, 0, 0.02], (4, 5, 4)), c) for k, c in enumerate((RED, GREEN, RED))]
    cloud = cloud_of(*tops)
    around = surroundings(cloud, colors=True)
    whole = np.zeros(len(cloud.mask), np.int32)
    places, height = cloud.positions[:, :2], cloud.positions[:, 2]
    label = np.asarray(told_apart(whole, around.distances < NEAR_M, around, places, height))
    found = np.split(label, 3)
    for one in found:
        assert_one(one)
    assert len({one[0] for one in found}) == 3


def by_definition(cloud, whole, around, near):
    """The same by loops over parts, in float64."""
    n = len(whole)
    indices, distances = np.asarray(around.indices), np.asarray(around.distances)
    unlike, hue = np.asarray(around.unlike), np.float64(around.hue)
    places = np.float64(cloud.positions)[:, :2]
    member = whole >= 0
    near = np.asarray(near) & (whole[indices] == whole[:, None]) & member[:, None]
    like = near & (unlike < 0.5)
    core = member & (like.sum(1) >= 0.6 * near.sum(1)) & (like.sum(1) >= 3)

    def components(count, rows, columns):
        graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(count, count))
        return connected_components(graph, directed=False)[1]

    def follow(label, allowed):
        for _ in range(3):
            now = label.copy()
            for i in np.flatnonzero(label < 0):
                options = [
                    (distances[i, k], k)
                    for k in np.flatnonzero(allowed[i])
                    if label[indices[i, k]] >= 0
                ]
                if options:
                    now[i] = label[indices[i, min(options)[1]]]
            label = now
        return label

    rows, k = np.nonzero(like & core[indices] & core[:, None])
    label = follow(np.where(core, components(n, rows, indices[rows, k]), -1), like)
    for part in np.unique(label[label >= 0]):
        if (label == part).sum() < 6:
            label[label == part] = -1
    label = follow(label, near)
    names = [int(x) for x in np.unique(label[label >= 0])]

    def about(names, label):
        return {
            p: (places[label == p].mean(0), hue[label == p].mean(0), whole[label == p][0])
            for p in names
        }

    known = about(names, label)
    pairs = [
        (a, b)
        for a, p in enumerate(names)
        for b, q in enumerate(names)
        if known[p][2] == known[q][2]
        and ((known[p][1] - known[q][1]) ** 2).sum() < 0.5
        and ((known[p][0] - known[q][0]) ** 2).sum() < 0.12**2
    ]
    group = components(len(names), [a for a, _ in pairs], [b for _, b in pairs])
    grouped = np.full(n, -1)
    for part, number in zip(names, group, strict=True):
        grouped[label == part] = number
    names = [int(x) for x in np.unique(group)]
    known = about(names, grouped)
    size = {p: ((places[grouped == p] - known[p][0]) ** 2).sum(1).mean() + 9e-6 for p in names}
    heights = np.asarray(cloud.positions)[:, 2]
    lies = {p: heights[grouped == p].min() > 0.03 for p in names}
    into = {}
    for p in names:
        away = {
            q: ((known[p][0] - known[q][0]) ** 2).sum() / max(size[p], size[q])
            for q in names
            if known[p][2] == known[q][2] and (not lies[q], size[q]) > (not lies[p], size[p])
        }
        best = min(away, key=away.__getitem__, default=None)
        if best is not None and away[best] < (4.0 if lies[p] else 1.6):
            into[p] = best
    final = grouped.copy()
    for p in names:
        root = p
        while root in into:
            root = into[root]
        final[grouped == p] = root
    return final


@pytest.mark.parametrize("seed", range(4))
def test_heaps_are_told_apart_as_defined(seed):
    """Boxes of random colours and places, noise in both; most of a heap hangs together."""
    rng = np.random.default_rng(seed)
    boxes = []
    for _ in range(9):
        places = box([*rng.uniform(0, 0.15, 2), rng.choice([0.01, 0.04])], rng.integers(3, 6, 3))
        colour = rng.uniform(-2, 2, 3) + rng.normal(0, 0.3, (len(places), 3))
        boxes.append((places + rng.normal(0, 0.001, places.shape), colour))
    cloud = cloud_of(*boxes)
    # Two heaps that are near each other, and some particles of neither.
    whole = np.where(cloud.positions[:, 0] < 0.1, 0, len(cloud.mask) - 1)
    first, last = np.flatnonzero(whole == 0)[-1], np.flatnonzero(whole > 0)[-1]
    whole = np.where(whole == 0, first, last)
    whole[rng.integers(0, len(whole), 10)] = -1
    whole[[first, last]] = [first, last]
    label, around, near = tell(cloud, np.int32(whole))
    label, expected = np.asarray(label), by_definition(cloud, whole, around, near)
    np.testing.assert_array_equal(label < 0, whole < 0)
    some = expected >= 0
    same = label[some][:, None] == label[some][None]
    np.testing.assert_array_equal(same, expected[some][:, None] == expected[some][None])
    assert len(np.unique(expected[some])) > 2
    # The number of a thing is that of one of its particles.
    held = np.unique(label[label >= 0])
    np.testing.assert_array_equal(label[held], held)
