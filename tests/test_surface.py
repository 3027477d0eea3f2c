"""The sheet that particles sample: closed forms, a float64 oracle, symmetries, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads
from scipy.special import erfinv

from hdvpd.basics.geometry import solve_3x3
from hdvpd.basics.types import Rays
from hdvpd.render.compositing import composite
from hdvpd.render.rays import Samples, samples_at
from hdvpd.render.surface import light_stopped

BANDWIDTH, THICKNESS = 0.03, 0.005
# Of a sheet that hardly stops light: its middle is on the surface.
THIN = 1.0
stopped = jax.jit(light_stopped, static_argnums=(5, 6))


def among_all(positions, samples, found=None, density=THIN):
    """Return what is stopped at samples, axes (q), whose neighbours are all particles."""
    count = len(samples.before)
    indices = np.tile(np.arange(len(positions), dtype=np.int32), (count, 1))
    found = np.ones(indices.shape, bool) if found is None else found
    density = np.full(count, density, np.float32)
    arrays = jax.tree.map(np.float32, (density, np.asarray(positions), samples))
    mean, ahead = stopped(*arrays, indices, found, BANDWIDTH, THICKNESS)
    return np.asarray(mean), np.asarray(ahead)


def short_parts(points, direction=(0.0, 0.0, 1.0), half=1e-4):
    """Return samples that stand for so little of their rays that density is one number there."""
    points = np.asarray(points)
    directions = np.broadcast_to(np.asarray(direction), points.shape)
    half = np.full(len(points), half)
    return Samples(points, directions, before=-half, after=half)


def gate(positions, points, found=None, density=THIN, direction=(0.0, 0.0, 1.0)):
    """Return the density at points over the full one."""
    return among_all(positions, short_parts(points, direction), found, density)[0] / density


def oracle(positions, query, density=THIN, direction=(0.0, 0.0, 1.0)):
    offsets = np.float64(positions) - query
    direction = np.asarray(direction)
    weights = np.exp(-np.sum(offsets**2, -1) / BANDWIDTH**2)
    weights /= weights.sum()
    center = weights @ offsets
    covariance = (weights[:, None] * (offsets - center)).T @ (offsets - center)
    inverse = np.linalg.inv(covariance + THICKNESS**2 * np.eye(3))
    approach = direction - 2 / BANDWIDTH**2 * covariance @ direction
    width = (approach @ inverse @ approach) ** -0.5
    along = np.linspace(-0.5, 0.5, 20001)[:, None] * approach - center
    peak = np.exp(-np.einsum("si,ij,sj->s", along, inverse, along)).max()
    depth = np.sqrt(np.pi) * THICKNESS * density * peak
    if depth > 2 * np.log(2):
        center = center + width * erfinv(1 - 2 * np.log(2) / depth) * approach
    return np.exp(-center @ inverse @ center) * THICKNESS / width


def sheet(spacing=0.02, half=8):
    line = spacing * np.arange(-half, half + 1)
    x, y = np.meshgrid(line, line)
    return np.stack([x, y, 0 * x], -1).reshape(-1, 3)


def test_equals_the_float64_oracle():
    rng = np.random.default_rng(0)
    positions, points = rng.normal(0, 0.02, (12, 3)), rng.normal(0, 0.03, (30, 3))
    direction = np.array([2.0, -1.0, 2.0]) / 3
    for density in (THIN, 400.0, 4000.0):
        expected = [oracle(positions, point, density, direction) for point in points]
        seen = gate(positions, points, density=density, direction=direction)
        np.testing.assert_allclose(seen, expected, atol=5e-3)
        assert np.ptp(expected) > 0.05


def test_a_single_particle_is_a_ball():
    distance = np.linspace(0, 0.02, 7)
    points = np.stack([distance, 0 * distance, 0 * distance], -1)
    expected = np.exp(-((distance / THICKNESS) ** 2))
    for direction in ((0.0, 0.0, 1.0), (1.0, 0.0, 0.0)):
        seen = gate([[0.0, 0, 0]], points, direction=direction)
        np.testing.assert_allclose(seen, expected, atol=2e-3)


def test_a_sheet_is_as_thick_between_particles_as_on_them():
    """Of particles 2 cm apart: the widest kernel of the papers stands 5 cm in front of them."""
    height = np.linspace(-0.015, 0.015, 13)
    for x, y in ((0.0, 0.0), (0.01, 0.0), (0.01, 0.01), (0.004, 0.007)):
        points = np.stack([0 * height + x, 0 * height + y, height], -1)
        expected = np.exp(-((height / THICKNESS) ** 2))
        np.testing.assert_allclose(gate(sheet(), points), expected, atol=0.02)


def ray_through(point, direction, distances):
    """Return samples at distances from a camera 1 m before a point."""
    direction = np.asarray(direction)
    one = Rays(np.asarray(point) - direction, direction, np.ones(()))
    return samples_at(jnp.asarray(distances), one, 0.5, 1.5)


@pytest.mark.parametrize("density", [600.0, 2000.0, 20000.0])
@pytest.mark.parametrize("tilt", [0.0, 0.6, 1.0])
def test_half_of_the_light_stops_before_the_surface(density, tilt):
    """Of opaque sheets, however dense, from wherever seen and wherever samples happen to be."""
    direction = np.array([np.sin(tilt), 0.0, np.cos(tilt)])
    for x, y in ((0.0, 0.0), (0.01, 0.01), (0.004, 0.007)):
        ends = np.array([0.7, 0.98, 1.02, 1.3])
        # One part of the ray ends at the surface, the next begins there.
        samples = ray_through([x, y, 0], direction, ends)
        mean, _ = among_all(sheet(), samples, density=density)
        through = np.exp(-np.cumsum(mean * np.asarray(samples.after - samples.before)))
        assert through[1] == pytest.approx(0.5, abs=0.05)
        assert through[3] < 0.05


@pytest.mark.parametrize("number", [3, 4, 7, 30, 300])
def test_what_is_seen_does_not_depend_on_the_samples(number):
    """The optical depth of a flat sheet, and its depth, from few samples as from many."""
    rng = np.random.default_rng(number)
    direction = np.array([0.6, 0.0, 0.8])
    distances = np.sort(rng.uniform(0.93, 1.07, number))
    samples = ray_through([0.003, 0.008, 0.0], direction, distances)
    mean, ahead = among_all(sheet(), samples, density=2000.0)
    total = np.sum(mean * np.asarray(samples.after - samples.before))
    expected = np.sqrt(np.pi) * THICKNESS * 2000.0
    assert total == pytest.approx(expected, rel=0.05)
    starts = distances + np.asarray(samples.before)
    rgb = np.ones((number, 3))
    seen = jax.jit(composite, static_argnums=4)(
        rgb, mean, starts, np.ones(()), 1.5, distances + ahead
    )
    assert float(seen.depth_m) == pytest.approx(1.0, abs=0.004)


def test_a_sheet_is_not_wider_for_being_opaque():
    """Beyond an edge it stops as large a share of its density as where it stops little light."""
    line = 0.02 * np.arange(-8, 9)
    half = np.stack(np.meshgrid(line[:9], line, 0.0), -1).reshape(-1, 3)
    beyond = np.linspace(0.0, 0.06, 13)[:, None] * [1.0, 0, 0]
    whole = short_parts(beyond, half=0.5)
    profiles = [among_all(half, whole, density=density)[0] / density for density in (THIN, 3000.0)]
    np.testing.assert_allclose(profiles[1], profiles[0], rtol=1e-4)
    assert profiles[0][-1] < 0.1 * profiles[0][0]


def test_a_round_body_is_no_wider_than_its_surface_is_thick():
    """Rays that graze a tube stop as if they crossed a flat sheet at that distance."""
    around = np.linspace(0.0, 2 * np.pi, 25)[:-1]
    ring = 0.08 * np.stack([np.cos(around), 0 * around, np.sin(around)], -1)
    tube = np.concatenate([ring + [0.0, y, 0.0] for y in 0.02 * np.arange(-4, 5)])
    distances = np.linspace(0.85, 1.15, 40)

    def passes(x):
        samples = ray_through([x, 0.0, 0.0], [0.0, 0.0, 1.0], distances)
        mean, _ = among_all(tube, samples, density=900.0)
        return np.exp(-np.sum(mean * np.asarray(samples.after - samples.before)))

    assert passes(0.05) < 0.01
    # Twice the thickness beyond the surface a flat sheet lets 0.86 pass. The sagitta of the
    # particles' surroundings is as long again.
    assert passes(0.08 + 3 * THICKNESS) > 0.86
    assert passes(0.08 + 4 * THICKNESS) > 0.99


def test_does_not_depend_on_place_and_turn():
    rng = np.random.default_rng(1)
    positions, points = rng.normal(0, 0.02, (12, 3)), rng.normal(0, 0.02, (20, 3))
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    shift, direction = np.array([0.5, -0.3, 0.8]), np.array([0.6, 0.0, 0.8])
    moved = positions @ turn.T + shift, points @ turn.T + shift
    np.testing.assert_allclose(
        gate(positions, points, density=1000.0, direction=direction),
        gate(*moved, density=1000.0, direction=turn @ direction),
        atol=1e-3,
    )


def test_missing_neighbours_count_for_nothing():
    rng = np.random.default_rng(2)
    positions, points = rng.normal(0, 0.02, (8, 3)), rng.normal(0, 0.02, (5, 3))
    found = np.arange(8)[None] < np.array([8, 5, 1, 0, 3])[:, None]
    seen = gate(positions, points, found)
    for query, count in enumerate(found.sum(1)):
        expected = oracle(positions[:count], points[query]) if count else 0.0
        np.testing.assert_allclose(seen[query], expected, atol=5e-3)


def test_gradients_are_right():
    rng = np.random.default_rng(3)
    positions, points = rng.normal(0, 2, (6, 3)), rng.normal(0, 2, (4, 3))
    samples = jax.tree.map(np.float32, short_parts(points, (0.6, 0.0, 0.8), half=2.0))
    indices, found = np.tile(np.arange(6), (4, 1)), np.ones((4, 6), bool)

    def total(positions, density):
        mean, ahead = light_stopped(density, positions, samples, indices, found, 2.0, 1.0)
        return jnp.sum(mean * np.arange(1.0, 5.0)) + jnp.sum(ahead)

    args = jnp.float32(positions), jnp.full(4, 3.0)
    check_grads(jax.jit(total), args, 1, modes=["rev"], atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("distance", [0.0, 1e-6, 0.15, 10.0])
def test_values_and_gradients_are_finite(distance):
    """Of coincident particles too, far from all of them, and where there is none."""
    positions = np.zeros((4, 3), np.float32)
    points = np.asarray([[distance, 0, 0], [distance, 0, 0]], np.float32)
    indices, found = np.tile(np.arange(4), (2, 1)), np.array([[True] * 4, [False] * 4])

    def total(positions, density, samples):
        args = (density, positions, samples, indices, found, BANDWIDTH, THICKNESS)
        return sum(x.sum() for x in light_stopped(*args))

    run = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))
    for density in (0.0, 1e-6, 1e3, 1e8):
        for direction in ((0.0, 0.0, 1.0), (0.0, 0.0, 0.0)):
            for half in (0.0, 0.01):
                samples = jax.tree.map(np.float32, short_parts(points, direction, half))
                value, grads = run(positions, np.full(2, density, np.float32), samples)
                assert np.isfinite(value)
                assert all(np.isfinite(x).all() for x in grads)


def test_small_systems_are_solved():
    rng = np.random.default_rng(4)
    factor = rng.normal(size=(50, 3, 3))
    matrix = (factor @ factor.transpose(0, 2, 1) + np.eye(3)[None]).astype(np.float32)
    vector = rng.normal(size=(50, 3)).astype(np.float32)
    expected = np.linalg.solve(matrix.astype(np.float64), vector.astype(np.float64)[..., None])
    solved = jax.jit(solve_3x3)(matrix, vector)
    np.testing.assert_allclose(solved, expected[..., 0], rtol=1e-4, atol=1e-5)
