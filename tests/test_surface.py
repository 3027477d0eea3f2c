"""The surface that particles sample: closed forms, a float64 oracle, symmetry, gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from hdvpd.render.surface import solve_3x3, surface_gate

BANDWIDTH, THICKNESS = 0.02, 0.01
gate = jax.jit(surface_gate, static_argnums=(4, 5))


def among_all(positions, queries, found=None):
    """Return the gate of queries whose neighbours are all particles."""
    positions, queries = (np.asarray(x, np.float32) for x in (positions, queries))
    indices = np.tile(np.arange(len(positions), dtype=np.int32), (len(queries), 1))
    found = np.ones(indices.shape, bool) if found is None else found
    return np.asarray(gate(positions, queries, indices, found, BANDWIDTH, THICKNESS))


def oracle(positions, query):
    offsets = np.float64(positions) - query
    weights = np.exp(-np.sum(offsets**2, -1) / BANDWIDTH**2)
    weights /= weights.sum()
    center = weights @ offsets
    covariance = (weights[:, None] * (offsets - center)).T @ (offsets - center)
    inverse = np.linalg.inv(covariance + THICKNESS**2 * np.eye(3))
    return np.exp(-center @ inverse @ center)


def sheet(spacing=0.02, half=8):
    line = spacing * np.arange(-half, half + 1)
    x, y = np.meshgrid(line, line)
    return np.stack([x, y, 0 * x], -1).reshape(-1, 3)


def test_equals_the_float64_oracle():
    rng = np.random.default_rng(0)
    positions, queries = rng.normal(0, 0.02, (12, 3)), rng.normal(0, 0.03, (30, 3))
    expected = [oracle(positions, query) for query in queries]
    np.testing.assert_allclose(among_all(positions, queries), expected, atol=2e-5)
    assert np.ptp(expected) > 0.1


def test_a_single_particle_is_a_ball():
    distance = np.linspace(0, 0.03, 7)
    queries = np.stack([distance, 0 * distance, 0 * distance], -1)
    expected = np.exp(-((distance / THICKNESS) ** 2))
    np.testing.assert_allclose(among_all([[0.0, 0, 0]], queries), expected, atol=1e-6)


def test_a_sheet_is_as_thick_between_particles_as_on_them():
    """Of particles 2 cm apart: the widest kernel of the papers stands 5 cm in front of them."""
    height = np.linspace(-0.03, 0.03, 13)
    for x, y in ((0.0, 0.0), (0.01, 0.0), (0.01, 0.01), (0.004, 0.007)):
        queries = np.stack([0 * height + x, 0 * height + y, height], -1)
        expected = np.exp(-((height / THICKNESS) ** 2))
        np.testing.assert_allclose(among_all(sheet(), queries), expected, atol=0.02)


def test_does_not_depend_on_place_and_turn():
    rng = np.random.default_rng(1)
    positions, queries = rng.normal(0, 0.02, (12, 3)), rng.normal(0, 0.02, (20, 3))
    turn, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    shift = np.array([0.5, -0.3, 0.8])
    np.testing.assert_allclose(
        among_all(positions, queries),
        among_all(positions @ turn.T + shift, queries @ turn.T + shift),
        atol=2e-4,
    )


def test_missing_neighbours_count_for_nothing():
    rng = np.random.default_rng(2)
    positions, queries = rng.normal(0, 0.02, (8, 3)), rng.normal(0, 0.02, (5, 3))
    found = np.arange(8)[None] < np.array([8, 5, 1, 0, 3])[:, None]
    seen = among_all(positions, queries, found)
    for query, count in enumerate(found.sum(1)):
        expected = oracle(positions[:count], queries[query]) if count else 0.0
        np.testing.assert_allclose(seen[query], expected, atol=2e-5)


def test_gradient_of_positions_is_right():
    rng = np.random.default_rng(3)
    positions, queries = rng.normal(0, 0.02, (6, 3)), rng.normal(0, 0.02, (4, 3))
    indices = np.tile(np.arange(6), (4, 1))

    def total(positions):
        found = np.ones((4, 6), bool)
        scaled = surface_gate(positions, queries / 0.01, indices, found, 2.0, 1.0)
        return scaled.sum()

    check_grads(total, (jnp.float32(positions / 0.01),), 1, modes=["rev"], atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("distance", [0.0, 1e-6, 0.15, 10.0])
def test_values_and_gradients_are_finite(distance):
    """Of coincident particles too, far from all of them, and where there is none."""
    positions = np.zeros((4, 3), np.float32)
    queries = np.asarray([[distance, 0, 0], [distance, 0, 0]], np.float32)
    indices, found = np.tile(np.arange(4), (2, 1)), np.array([[True] * 4, [False] * 4])

    def total(positions):
        return surface_gate(positions, queries, indices, found, BANDWIDTH, THICKNESS).sum()

    value, grad = jax.jit(jax.value_and_grad(total))(positions)
    assert np.isfinite(value)
    assert np.isfinite(grad).all()


def test_small_systems_are_solved():
    rng = np.random.default_rng(4)
    factor = rng.normal(size=(50, 3, 3))
    matrix = (factor @ factor.transpose(0, 2, 1) + np.eye(3)[None]).astype(np.float32)
    vector = rng.normal(size=(50, 3)).astype(np.float32)
    expected = np.linalg.solve(matrix.astype(np.float64), vector.astype(np.float64)[..., None])
    solved = jax.jit(solve_3x3)(matrix, vector)
    np.testing.assert_allclose(solved, expected[..., 0], rtol=1e-4, atol=1e-5)
