"""What points say to particles as host code, against a formula in float64 and plain JAX."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx
from threads import check_that_threads_change_nothing

from hdvpd.basics.layers import multiply_in_bfloat16
from hdvpd.dynamics.contact import PointEdges
from hdvpd.kernels import dense
from hdvpd.kernels.point_edges import WIDTH, attend_to_points

UNIT_M, FADE = 0.05, 4.0
POINTS, ABOUT, DIM = 9, 5, 12
# Less than a block, several in one part, and several parts.
PARTICLES = (1, 7, 300, 1100)


def plain(near, about, points, positions, kernel, bias, score, out):
    offset = (points[near] - positions[:, None]) / UNIT_M
    away = jnp.sqrt(jnp.sum(offset**2, axis=-1, keepdims=True) + 1e-12)
    rows = jnp.concatenate([about[near], offset, away], axis=-1) / (1 + away / FADE)
    rows = rows @ kernel + bias[None, None]
    hidden = 0.5 * rows * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (rows + 0.044715 * rows**3)))
    weights = jax.nn.softmax(hidden @ score, axis=1)
    return jnp.sum(weights * hidden, axis=1) @ out


def host(near, about, points, positions, *layers):
    return attend_to_points(about, points, positions, near, *layers, unit_m=UNIT_M, fade=FADE)


def inputs(particles, neighbors=4, seed=0, size=0.3):
    """Points of every particle, what is differentiated, and a cotangent of the result."""
    rng = np.random.default_rng(seed)

    def draw(scale, *shape):
        return (scale * rng.normal(size=shape)).astype(np.float32)

    near = rng.integers(0, POINTS, (particles, neighbors)).astype(np.int32)
    moving = [
        draw(1, POINTS, ABOUT), draw(size, POINTS, 3), draw(size, particles, 3),
        draw(0.4, ABOUT + 4, WIDTH), draw(0.4, WIDTH), draw(0.4, WIDTH, 1), draw(0.4, WIDTH, DIM),
    ]  # fmt: skip
    return near, moving, draw(1, particles, DIM)


def result_and_gradients(function, near, moving, bar):
    result, back = jax.vjp(functools.partial(function, near), *moving)
    return [result, *back(bar)]


found_by_host = jax.jit(functools.partial(result_and_gradients, host))


def in_float64(near, moving, bar):
    with jax.enable_x64(True):
        *moving, bar = (jnp.asarray(x, jnp.float64) for x in (*moving, bar))
        return [np.asarray(x) for x in result_and_gradients(plain, near, moving, bar)]


def assert_near(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        scale = max(np.abs(theirs).max(initial=0), 1e-6)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * scale)


@pytest.mark.parametrize("neighbors", [1, 4])
@pytest.mark.parametrize("particles", PARTICLES)
def test_values_and_all_gradients_equal_a_formula_in_float64(particles, neighbors):
    case = inputs(particles, neighbors)
    assert_near(found_by_host(*case), in_float64(*case))


def test_particles_on_points_and_points_on_each_other():
    near, moving, bar = inputs(40)
    _, points, positions, *_ = moving
    points[3:6] = points[3]
    positions[:] = points[near[:, 0]]
    near[::2] = near[::2, :1]
    found = found_by_host(near, moving, bar)
    assert all(np.isfinite(x).all() for x in found)
    assert_near(found, in_float64(near, moving, bar))


def test_padded_and_far_particles_have_finite_values_and_gradients():
    near, moving, bar = inputs(40)
    positions = moving[2]
    positions[10:20] = 0
    positions[20:30] *= 1e4
    positions[30:] *= 1e12
    bar[10:20] = 0
    found = found_by_host(near, moving, bar)
    assert all(np.isfinite(x).all() for x in found)
    assert_near(found, in_float64(near, moving, bar))
    assert (found[3][10:20] == 0).all()


@pytest.mark.parametrize("scale", [1e-20, 30.0, 1e5])
def test_hidden_numbers_and_scores_of_any_size(scale):
    """Far beyond where GELU is 0 or its argument, and where one edge has all the weight."""
    near, moving, bar = inputs(50)
    moving[3] *= scale
    moving[4] *= scale
    found = found_by_host(near, moving, bar)
    assert all(np.isfinite(x).all() for x in found)
    assert_near(found[:1], in_float64(near, moving, bar)[:1])
    if scale < 1e3:  # beyond, slopes are as large as what rounds to nothing beside them
        assert_near(found, in_float64(near, moving, bar))


def test_what_is_nowhere_changes_no_other_particle():
    near, moving, bar = inputs(40)
    expected = np.asarray(found_by_host(near, moving, bar)[0])
    moving[2][[3, -1]] = np.nan
    found = np.asarray(found_by_host(near, moving, bar)[0])
    assert np.isnan(found[[3, -1]]).all()
    others = np.delete(np.arange(40), [3, 39])
    np.testing.assert_array_equal(found[others], expected[others])


@pytest.mark.parametrize(("particles", "neighbors"), [(0, 4), (5, 0)])
def test_nothing_says_nothing(particles, neighbors):
    found = found_by_host(*inputs(particles, neighbors))
    assert found[0].shape == (particles, DIM)
    assert all((x == 0).all() for x in found)


@pytest.mark.parametrize("shared", [True, False])
def test_mapped_is_one_after_another(shared):
    cases = [inputs(150, seed=seed) for seed in range(3)]
    near, moving, bar = jax.tree.map(lambda *x: np.stack(x), *cases)
    axes = [0, 0, 0, *[None if shared else 0] * 4]
    moving = [x[0] if axis is None else x for x, axis in zip(moving, axes, strict=True)]
    run = functools.partial(result_and_gradients, host)
    mapped = jax.jit(jax.vmap(run, in_axes=(0, axes, 0)))(near, moving, bar)
    for i in range(3):
        single = [x if axis is None else x[i] for x, axis in zip(moving, axes, strict=True)]
        for ours, theirs in zip(mapped, found_by_host(near[i], single, bar[i]), strict=True):
            np.testing.assert_allclose(ours[i], theirs, rtol=1e-5, atol=1e-6)


def test_results_do_not_depend_on_the_number_of_threads():
    case = inputs(3000)
    check_that_threads_change_nothing(lambda: found_by_host(*case))


def edges(kernels, change=None):
    made = PointEdges(12, 4, kernels, rngs=nnx.Rngs(0))
    if change is not None:
        change(made)
    return nnx.split(made)


def gradients(kernels, change=None):
    """What `PointEdges` gives, and all its gradients: a compiled program and its arguments."""
    graphdef, params = edges(kernels, change)
    cloud, robot = scenes.random_cloud(0, 300, 3), scenes.random_robot(1, 7)
    identity, bar = (
        np.random.default_rng(2).normal(size=shape).astype(np.float32)
        for shape in ((robot.positions.shape[1], 4), (300, 12))
    )

    def run(params, positions, points, gripper, identity):
        moved = dataclasses.replace(cloud, positions=positions)
        there = dataclasses.replace(robot, positions=points, gripper=gripper)
        return nnx.merge(graphdef, params)(moved, there, 1, identity)

    def both(*arguments):
        result, back = jax.vjp(run, *arguments)
        return result, back(jnp.asarray(bar, result.dtype))

    arguments = params, cloud.positions, robot.positions, robot.gripper, identity
    return jax.jit(both), jax.tree.map(jnp.asarray, arguments)


def test_edges_learn_the_same_with_host_code_and_in_plain_jax(monkeypatch):
    monkeypatch.setattr(dense, "LEAST_ROWS", 1)
    results = []
    for kernels in ("host", "xla"):
        run, arguments = gradients(kernels)
        assert ("point_edges_host" in run.lower(*arguments).as_text()) == (kernels == "host")
        results.append(jax.tree.leaves(run(*arguments)))
    # Bias, kernels of three layers, positions, points, gripper and identity.
    assert len(results[0]) == 9
    assert_near(*results)


def test_host_code_is_for_float32_and_for_many_particles(monkeypatch):
    monkeypatch.setattr(dense, "LEAST_ROWS", 10**9)
    run, arguments = gradients("host")
    assert "point_edges_host" not in run.lower(*arguments).as_text()
    monkeypatch.setattr(dense, "LEAST_ROWS", 1)
    run, arguments = gradients("host", multiply_in_bfloat16)
    assert "point_edges_host" not in run.lower(*arguments).as_text()


def test_another_width_is_refused():
    near, moving, _ = inputs(5)
    *first, kernel, bias, score, out = moving
    with pytest.raises(ValueError, match="32 wide, not 8"):
        jax.eval_shape(host, near, *first, kernel[:, :8], bias[:8], score[:8], out[:8])
