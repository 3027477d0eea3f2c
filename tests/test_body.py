"""The robot's body: distances to boxes, and boxes that recordings tell."""

import jax
import numpy as np
import pytest

from hdvpd.basics.types import RobotPoints
from hdvpd.dynamics.body import NEAR_M, Body, Boxes, approach, body_distance
from hdvpd.training.body import fit_boxes, links_of


def rotation(rng):
    """A random turn."""
    q, r = np.linalg.qr(rng.normal(size=(3, 3)))
    q = q * np.sign(np.diag(r))
    return q if np.linalg.det(q) > 0 else -q


def box_distance(place, low, high):
    """Signed distance to an axis-aligned box, case by case in float64."""
    outside = np.maximum(np.maximum(low - place, place - high), 0.0)
    if outside.any():
        return np.linalg.norm(outside)
    return -min((place - low).min(), (high - place).min())


def test_distance_is_that_of_the_nearest_box_in_float64():
    rng = np.random.default_rng(0)
    points = rng.uniform(-0.2, 0.2, (5, 3))
    axes = np.stack([rotation(rng) for _ in range(5)])
    low, high = -rng.uniform(0, 0.1, (5, 3)), rng.uniform(0, 0.1, (5, 3))
    places = rng.uniform(-0.3, 0.3, (200, 3))
    every = np.asarray([
        [box_distance(axes[k].T @ (x - points[k]), low[k], high[k]) for k in range(5)]
        for x in places
    ])  # fmt: skip
    boxes = Boxes(np.float32(low), np.float32(high))
    found = jax.jit(body_distance)(boxes, *map(np.float32, (places, points, axes)))
    np.testing.assert_allclose(found, every.min(axis=1), atol=1e-5)
    assert (every.min(axis=1) < 0).any()


def test_until_it_has_learned_the_body_is_all_that_is_near():
    body = Body(1)
    places = np.float32([[0, 0, 0], [NEAR_M, 0, 0], [NEAR_M + 0.01, 0, 0]])
    origin, axes = np.zeros((1, 3), np.float32), np.eye(3, dtype=np.float32)[None]
    found = body_distance(body.boxes, places, origin, axes)
    np.testing.assert_allclose(found, [-NEAR_M, 0, 0.01], atol=1e-6)
    gradient = jax.grad(lambda x: body_distance(body.boxes, x, origin, axes).sum())(places)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("able", [[1.0, 1.0], [0.0, 1.0], [0.5, 0.25]])
def test_a_body_enters_a_margin_when_sampled_times_say_so(able):
    """Boxes that go and turn a little; the time is linear in between, so that turns are small."""
    rng = np.random.default_rng(0)
    places = rng.uniform(-0.1, 0.1, (300, 3))
    axes = np.stack([rotation(rng) for _ in range(2)])
    points = rng.uniform(-0.1, 0.1, (3, 2, 3))
    low, high = -rng.uniform(0.01, 0.03, (2, 3)), rng.uniform(0.01, 0.03, (2, 3))
    robot = RobotPoints(
        np.float32(points), np.tile(np.float32(axes), (3, 1, 1, 1)), np.zeros((3, 2), np.float32)
    )
    margins = rng.uniform(0.0, 0.01, 300)
    told = jax.jit(approach)(
        Boxes(np.float32(low), np.float32(high)),
        *(np.float32(places), robot, np.float32(margins), np.float32(able)),
    )
    margin = margins[:, None, None]
    times = np.linspace(0, 1, 401)
    within = np.zeros(300)
    for k in range(2):
        at = points[1, k] + times[:, None] * (points[2, k] - points[1, k])
        local = (places[:, None] - at) @ axes[k]
        inside = ((local > low[k] - margin) & (local < high[k] + margin)).all(axis=-1)
        left = np.where(inside.any(axis=1), 1.0 - times[inside.argmax(axis=1)], 0.0)
        within = np.maximum(within, able[k] * left)
    expected = 1.0 - within
    np.testing.assert_allclose(told.entered, expected, atol=0.006)
    assert 0.05 < (expected < 1).mean() < 0.95
    for found, at in ((told.now_m, 1), (told.then_m, 2)):
        every = [
            [box_distance(axes[k].T @ (x - points[at, k]), low[k], high[k]) for k in range(2)]
            for x in places
        ]
        np.testing.assert_allclose(found, np.min(every, axis=1), atol=1e-5)


HAND = np.asarray([0.0362, 0.0738, 0.0312])
FINGER = np.asarray([0.014, 0.007, 0.05])


def recordings(rng, frames=60, seen=500):
    """A hand with a point at its middle and one below, and two fingers that slide apart.

    The finger's own point is at its lower end; most of its surface is nearer to the hand's.
    """
    positions, frame, points, axes = [], [], [], []
    for number in range(frames):
        turn, shift = rotation(rng), rng.uniform(-0.3, 0.3, 3)
        apart = rng.uniform(0.01, 0.05)
        middles = np.asarray([[0, 0, 0], [0, apart, -0.08], [0, -apart, -0.08]])
        own = np.asarray([[0, 0, 0], [0, 0, -0.08], [0, apart, -0.13], [0, -apart, -0.13]])
        # The hand's surface is larger than a finger's.
        halves, counts = (HAND, FINGER, FINGER), (3 * seen, seen, seen)
        for middle, half, count in zip(middles, halves, counts, strict=True):
            surface = rng.uniform(-1, 1, (count, 3))
            side = rng.integers(0, 3, count)
            surface[np.arange(count), side] = rng.choice([-1.0, 1.0], count)
            positions.append((surface * half + middle) @ turn.T + shift)
        # A few are of something that was near by chance.
        positions.append(rng.uniform(-0.12, 0.12, (seen // 50, 3)) @ turn.T + shift)
        frame.append(np.full(5 * seen + seen // 50, number))
        points.append(own @ turn.T + shift)
        axes.append(np.tile(turn, (4, 1, 1)))
    return np.concatenate(positions), np.concatenate(frame), np.stack(points), np.stack(axes)


def test_boxes_hold_the_surface_that_stays_the_same_in_a_links_axes():
    positions, frame, points, axes = recordings(np.random.default_rng(0))
    boxes = fit_boxes(positions, frame, points, axes)
    np.testing.assert_allclose(boxes.low[0], -HAND, atol=0.006)
    np.testing.assert_allclose(boxes.high[0], HAND, atol=0.006)
    # The hand's second point has no surface of its own: what is nearest to it slides.
    np.testing.assert_array_equal(boxes.low[1], 0)
    for finger in (2, 3):
        np.testing.assert_allclose(boxes.low[finger], [-0.014, -0.007, 0.0], atol=0.004)
        np.testing.assert_allclose(boxes.high[finger], [0.014, 0.007, 0.1], atol=0.006)


def test_points_of_one_link_are_those_that_never_move_from_each_other():
    _, _, points, axes = recordings(np.random.default_rng(0), seen=3)
    np.testing.assert_array_equal(links_of(points, axes), [0, 0, 2, 3])


def test_nothing_seen_is_no_body():
    points, axes = np.zeros((4, 3, 3)), np.tile(np.eye(3), (4, 3, 1, 1))
    boxes = fit_boxes(np.zeros((0, 3)), np.zeros(0, int), points, axes)
    np.testing.assert_array_equal(boxes.low, np.zeros((3, 3)))
    np.testing.assert_array_equal(boxes.high, np.zeros((3, 3)))
