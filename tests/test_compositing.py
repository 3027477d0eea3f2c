"""Volume compositing against closed forms and the product of transmittances."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references

from hdvpd.render.compositing import composite, compositing_weights

FAR = 2.0
weights_of = jax.jit(compositing_weights, static_argnums=2)
blend = jax.jit(composite, static_argnums=4)


def random_rays(num_rays=6, num_samples=24, seed=0, scale=20.0):
    rng = np.random.default_rng(seed)
    tdist = np.sort(rng.uniform(0.1, FAR, size=(num_rays, num_samples)), axis=1)
    density = scale * rng.exponential(size=tdist.shape) * (rng.random(tdist.shape) < 0.3)
    return rng.uniform(size=(*tdist.shape, 3)), density, tdist, rng.uniform(0.7, 1.0, num_rays)


def as_float32(*arrays):
    return tuple(np.asarray(x, np.float32) for x in arrays)


def test_equals_the_product_of_transmittances():
    rgb, density, tdist, z_scale = as_float32(*random_rays())
    rendering = blend(rgb, density, tdist, z_scale, FAR)
    weights, _ = weights_of(density, tdist, FAR)
    for r in range(len(rgb)):
        ray = (np.float64(x[r]) for x in (rgb, density, tdist))
        colour, distance, opacity, shares = references.composite(*ray, FAR)
        np.testing.assert_allclose(weights[r], shares, atol=1e-6)
        np.testing.assert_allclose(rendering.rgb[r], colour, atol=1e-6)
        np.testing.assert_allclose(rendering.depth_m[r], distance * z_scale[r], atol=1e-6)
        np.testing.assert_allclose(rendering.acc[r], opacity, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-3, 1.0, 1e3, 1e8])
def test_shares_are_not_negative_and_sum_to_one(scale):
    _, density, tdist, _ = as_float32(*random_rays(num_rays=50, scale=scale))
    weights, background = weights_of(density, tdist, FAR)
    assert (np.asarray(weights) >= 0).all()
    assert (np.asarray(background) >= 0).all()
    np.testing.assert_allclose(np.sum(weights, -1) + background, 1.0, atol=1e-6)


def test_empty_space_is_exactly_white_at_the_far_end():
    rgb, _, tdist, z_scale = as_float32(*random_rays())
    rendering = blend(rgb, np.zeros_like(tdist), tdist, z_scale, FAR)
    np.testing.assert_array_equal(rendering.rgb, 1.0)
    np.testing.assert_array_equal(rendering.acc, 0.0)
    np.testing.assert_allclose(rendering.depth_m, FAR * z_scale, rtol=1e-6)


def test_homogeneous_slab_follows_beer_and_lambert():
    # A slab of density 3 from 0.5 to 1.2 m: opacity 1 - exp(-3 * 0.7); its light comes on average
    # from (0.5 - 1.2 e) / (1 - e) + 1 / 3 behind the origin, with e = exp(-3 * 0.7).
    num_samples = 4000
    tdist = np.float32(np.linspace(0.0, FAR, num_samples + 1)[:-1])[None]
    density = np.float32(3.0 * ((tdist >= 0.5) & (tdist < 1.2)))
    rgb = np.broadcast_to(np.float32([0.2, 0.4, 0.6]), (1, num_samples, 3))
    rendering = blend(rgb, density, tdist, np.float32([0.8]), FAR)
    through = np.exp(-3 * 0.7)
    np.testing.assert_allclose(rendering.acc[0], 1 - through, atol=1e-3)
    colour = (1 - through) * np.array([0.2, 0.4, 0.6]) + through
    np.testing.assert_allclose(rendering.rgb[0], colour, atol=1e-3)
    distance = 0.5 - 1.2 * through + (1 - through) / 3 + through * FAR
    np.testing.assert_allclose(rendering.depth_m[0], 0.8 * distance, atol=1e-3)


def test_opaque_sample_hides_everything_behind_it():
    rgb, density, tdist, z_scale = as_float32(*random_rays())
    density[:, :10], density[:, 10] = 0.0, 1e6
    tdist = np.float32(np.broadcast_to(np.linspace(0.1, 1.9, 24), tdist.shape))
    rendering = blend(rgb, density, tdist, z_scale, FAR)
    np.testing.assert_allclose(rendering.rgb, rgb[:, 10], atol=1e-6)
    np.testing.assert_allclose(rendering.depth_m, tdist[:, 10] * z_scale, rtol=1e-6)
    np.testing.assert_allclose(rendering.acc, 1.0, atol=1e-6)


def test_splitting_a_homogeneous_interval_changes_no_light():
    tdist = np.float32([[0.2, 0.8, 1.5]])
    fine = np.float32([[0.2, 0.5, 0.8, 1.0, 1.5, 1.9]])
    one, background = weights_of(np.float32([[2.0, 0.5, 1.0]]), tdist, FAR)
    other, same = weights_of(np.float32([[2.0, 2.0, 0.5, 0.5, 1.0, 1.0]]), fine, FAR)
    np.testing.assert_allclose(np.asarray(other).reshape(3, 2).sum(1), one[0], atol=1e-6)
    np.testing.assert_allclose(background, same, atol=1e-6)


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e4, 1e10])
def test_values_and_gradients_are_finite_over_magnitudes(scale):
    rgb, density, tdist, z_scale = as_float32(*random_rays(scale=scale))
    tdist[:, 5] = tdist[:, 4]  # two samples in one place

    def total(rgb, density):
        rendering = composite(rgb, density, jnp.asarray(tdist), jnp.asarray(z_scale), FAR)
        return rendering.rgb.sum() + rendering.depth_m.sum() + rendering.acc.sum()

    value, grads = jax.jit(jax.value_and_grad(total, argnums=(0, 1)))(rgb, density)
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in grads)


def test_gradients_equal_finite_differences():
    rgb, density, tdist, z_scale = random_rays(scale=2.0)
    density = density + 0.5
    cotangent = np.random.default_rng(1).normal(size=(len(rgb), 3))

    def total(rgb, density):
        rays = range(len(rgb))
        colours = [references.composite(rgb[r], density[r], tdist[r], FAR)[0] for r in rays]
        return (np.array(colours) * cotangent).sum()

    grads = jax.jit(
        jax.grad(lambda x: (composite(*x, *as_float32(tdist, z_scale), FAR).rgb * cotangent).sum())
    )(as_float32(rgb, density))
    rng = np.random.default_rng(2)
    for i in range(2):
        directions = [rng.normal(size=x.shape) * (i == j) for j, x in enumerate((rgb, density))]
        expected = references.directional_derivative(total, (rgb, density), directions)
        assert np.vdot(grads[i], directions[i]) == pytest.approx(expected, rel=1e-3, abs=1e-4)
