"""The U-Net against a plain numpy U-Net, its receptive field and its resolution contract."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import references
import scenes
from flax import nnx

from hdvpd.encoders.unet import UNet

FEATURES = 6


def make_unet(channels=(8, 16, 8)):
    return scenes.random_params(lambda: UNet(channels, FEATURES, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def unet():
    """Jitted U-Net of three levels and its parameters."""
    graphdef, params = make_unet()
    return jax.jit(lambda params, x: scenes.apply(graphdef, params)(x)), params


def random_images(*shape, seed=1):
    return np.random.default_rng(seed).uniform(-1, 1, size=(*shape, 3)).astype(np.float32)


@pytest.mark.parametrize(("height", "width"), [(8, 12), (9, 7)])
def test_equals_the_numpy_unet(unet, height, width):
    apply, params = unet
    image = random_images(1, height, width)
    np.testing.assert_allclose(
        apply(params, image)[0], references.unet(params, image[0]), atol=2e-5, rtol=1e-4
    )


@pytest.mark.parametrize(("height", "width"), [(8, 12), (9, 7), (6, 5)])
def test_gradients_are_the_slopes_of_the_numpy_unet(unet, height, width):
    apply, params = unet
    image, bar = (
        random_images(1, height, width),
        random_images(height, width, FEATURES // 3, seed=2),
    )
    bar = bar.reshape(height, width, FEATURES)
    # Along a random direction: a step of it, and how the features change.
    rng = np.random.default_rng(3)
    at = jax.tree.map(lambda x: np.asarray(x, np.float64), (params, image[0]))
    step = jax.tree.map(lambda x: 1e-6 * rng.normal(size=x.shape), at)

    def value(sign):
        moved = jax.tree.map(lambda x, dx: x + sign * dx, at, step)
        return (references.unet(*moved) * bar).sum()

    gradients = jax.grad(lambda params, image: (apply(params, image)[0] * bar).sum(), (0, 1))
    params_bar, image_bar = jax.jit(gradients)(params, image)
    products = jax.tree.map(lambda x, dx: (x * dx).sum(), (params_bar, image_bar[0]), step)
    found, sizes = sum(jax.tree.leaves(products)), np.abs(jax.tree.leaves(products)).sum()
    np.testing.assert_allclose(found, (value(1) - value(-1)) / 2, atol=1e-4 * sizes)


@pytest.mark.parametrize(("height", "width"), [(16, 20), (15, 17), (5, 4), (1, 1)])
def test_output_has_one_feature_vector_per_pixel_at_any_size(height, width):
    graphdef, params = make_unet()

    def apply(params, x):
        return scenes.apply(graphdef, params)(x)

    out = jax.eval_shape(apply, params, jax.ShapeDtypeStruct((2, height, width, 3), jnp.float32))
    assert out.shape == (2, height, width, FEATURES)


def test_weights_are_shared_and_images_do_not_mix(unet):
    apply, params = unet
    image = random_images(8, 12)
    other = random_images(8, 12, seed=2)
    pair, swapped = apply(params, np.stack([image, other])), apply(params, np.stack([other, image]))
    np.testing.assert_array_equal(pair[0], swapped[1])
    np.testing.assert_array_equal(pair[1], swapped[0])
    assert np.abs(pair[0] - pair[1]).max() > 0.1


@pytest.mark.parametrize(("row", "column"), [(16, 15), (0, 31)])
def test_receptive_field_is_that_of_the_convolutions(monkeypatch, row, column):
    # GroupNorm's statistics see the whole image; without them the impulse response is local.
    monkeypatch.setattr(nnx.GroupNorm, "__call__", lambda self, x: x)
    graphdef, params = make_unet(channels=(8, 8))
    size = 32

    def seen(image):
        return scenes.apply(graphdef, params)(image[None])[0, row, column].sum()

    grads = jax.jit(jax.grad(seen))(random_images(size, size))
    expected = references.receptive_field(size, size, row, column, num_levels=2)
    assert expected.sum() < size**2
    np.testing.assert_array_equal(np.abs(grads).max(-1) > 0, expected)


def test_uniform_image_gives_finite_features_and_gradients(unet):
    apply, params = unet
    # A constant image has next to no variance for GroupNorm to divide by.
    gradient = jax.jit(jax.grad(lambda params, image: (apply(params, image) ** 2).sum()))
    for level in (-1.0, 0.0, 1.0):
        grads = gradient(params, np.full((1, 8, 12, 3), level, np.float32))
        assert all(np.isfinite(g).all() for g in jax.tree.leaves(grads))


def test_default_size_is_the_documented_one():
    unet = nnx.eval_shape(lambda: UNet((32, 64, 128, 128), 16, rngs=nnx.Rngs(0)))
    count = sum(x.size for x in jax.tree.leaves(nnx.state(unet)))
    assert count == pytest.approx(1.2e6, rel=0.05)
