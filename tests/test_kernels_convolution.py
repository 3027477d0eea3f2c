"""Convolutions by oneDNN and GroupNorm with GELU as host code, against formulas in float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_kernels_dense import assert_near, gelu, in_float64, random, result_and_gradients
from threads import check_that_threads_change_nothing

from hdvpd.kernels import convolution, convolution_host, ffi, onednn, onednn_native
from hdvpd.kernels.convolution import convolve, group_norm_gelu, on_host

pytestmark = pytest.mark.skipif(not onednn.available(), reason="oneDNN is not installed")

EPSILON = 1e-6


def plain_convolve(images, kernel):
    """Add products of shifted images, row by row of the kernel."""
    rows, columns = kernel.shape[:2]
    before = ((rows - 1) // 2, rows // 2), ((columns - 1) // 2, columns // 2)
    padded = jnp.pad(images, ((0, 0), *before, (0, 0)))
    height, width = images.shape[1:3]
    return sum(
        padded[:, i : i + height, j : j + width] @ kernel[i, j]
        for i in range(rows)
        for j in range(columns)
    )


def plain_norm(x, bias, scale, offset, groups):
    x = x + bias[None, None, None]
    grouped = x.reshape(*x.shape[:3], groups, -1)
    mean = grouped.mean((1, 2, 4), keepdims=True)
    variance = ((grouped - mean) ** 2).mean((1, 2, 4), keepdims=True)
    normed = ((grouped - mean) / jnp.sqrt(variance + EPSILON)).reshape(x.shape)
    return gelu(normed * scale[None, None, None] + offset[None, None, None])


@pytest.mark.parametrize(
    ("images", "kernel"),
    [
        ((2, 12, 16), (3, 3, 3, 8)),
        ((1, 9, 7), (3, 3, 8, 16)),
        ((3, 5, 6), (3, 3, 5, 7)),
        ((1, 1, 1), (3, 3, 4, 4)),
        ((2, 6, 5), (1, 1, 6, 3)),
        ((2, 6, 5), (2, 4, 6, 3)),
    ],
)
def test_convolution_and_its_gradients_equal_sums_of_shifted_images(images, kernel):
    *arguments, bar = random((*images, kernel[2]), kernel, (*images, kernel[3]))
    found = jax.jit(functools.partial(result_and_gradients, convolve))(arguments, bar)
    assert_near(found, in_float64(plain_convolve, arguments, bar))


# Less than a row, rows and parts that are not whole, and pixels that are longer than a row.
@pytest.mark.parametrize(
    "shape", [(2, 12, 16, 16), (1, 3, 5, 8), (2, 47, 65, 8), (3, 40, 33, 24), (1, 9, 7, 520)]
)
@pytest.mark.parametrize("groups", [1, 8])
def test_norm_and_its_gradients_equal_a_formula_in_float64(shape, groups):
    channels = (shape[-1],)
    x, bias, scale, offset, bar = random(shape, channels, channels, channels, shape)
    arguments = [3 + 2 * x, bias, scale, offset]
    host = functools.partial(group_norm_gelu, num_groups=groups, epsilon=EPSILON)
    found = jax.jit(functools.partial(result_and_gradients, host))(arguments, bar)
    expected = in_float64(functools.partial(plain_norm, groups=groups), arguments, bar)
    assert_near(found[:2] + found[3:], expected[:2] + expected[3:])
    # What is added to all of a group is taken away again: what is left is small beside its terms.
    np.testing.assert_allclose(found[2], expected[2], atol=1e-5 * np.abs(expected[1]).sum())


def test_norm_does_not_depend_on_the_number_of_threads():
    x, bias, scale, offset, bar = random((2, 47, 65, 8), (8,), (8,), (8,), (2, 47, 65, 8))

    def run():
        host = functools.partial(group_norm_gelu, num_groups=8, epsilon=EPSILON)
        return [np.asarray(x) for x in result_and_gradients(host, [x, bias, scale, offset], bar)]

    check_that_threads_change_nothing(run)


def test_images_without_contrast_have_finite_gradients():
    arguments = [np.full((2, 4, 4, 8), 0.3, np.float32), *random((8,), (8,), (8,))]
    host = functools.partial(group_norm_gelu, num_groups=8, epsilon=EPSILON)
    found = result_and_gradients(host, arguments, np.ones((2, 4, 4, 8), np.float32))
    assert all(np.isfinite(x).all() for x in found)


def test_mapped_is_one_after_another():
    images, kernel, bias, scale, offset = random((3, 2, 9, 7, 8), (3, 3, 8, 8), (8,), (8,), (8,))
    (bar,) = random((3, 2, 9, 7, 8), seed=1)

    def run(images, bar):
        def layer(images, kernel, *numbers):
            return group_norm_gelu(convolve(images, kernel), *numbers, 4, EPSILON)

        return result_and_gradients(layer, [images, kernel, bias, scale, offset], bar)

    mapped = jax.jit(jax.vmap(run))(images, bar)
    for i in range(3):
        for ours, theirs in zip(mapped, run(images[i], bar[i]), strict=True):
            np.testing.assert_array_equal(ours[i], theirs)


def test_calls_at_once_do_not_share_memory():
    # Equal shapes share an operation; a program may call it twice at the same time.
    pairs = [random((2, 40, 30, 8), (3, 3, 8, 8), seed=i) for i in range(8)]

    @jax.jit
    def together(pairs):
        return [convolve(*pair) for pair in pairs]

    for pair, found in zip(pairs, together(pairs), strict=True):
        np.testing.assert_array_equal(found, convolve(*map(jnp.asarray, pair)))


def test_what_waits_is_run_by_compiled_code_unless_it_is_in_use(monkeypatch):
    for module in (ffi, onednn_native):
        monkeypatch.setattr(module, "usable_cores", lambda: 2)
    table, threads = onednn_native.table(), onednn.threads()
    images, kernel, other = random((2, 12, 16, 3), (3, 3, 3, 8), (2, 12, 17, 3))
    operation = convolution_host._operation(images.shape, kernel.shape, threads)

    def filled(fill):
        result = np.full((2, 12, 16, 8), np.nan, np.float32)
        fill(images, kernel, result)
        np.testing.assert_array_equal(result, expected)

    expected = np.empty((2, 12, 16, 8), np.float32)
    operation(images, kernel, expected)
    with pytest.raises(LookupError):
        onednn_native.run(table, images, kernel, expected.copy())
    for count in (1, 2, 2):
        filled(lambda *arrays: onednn_native.run_and_add(table, operation, arrays))
        assert table[0, 0] == count
    for in_use in ([], [1], [2]):
        table[1:3, 0] = [row in in_use for row in (1, 2)]
        filled(functools.partial(onednn_native.run, table))
        assert list(np.flatnonzero(table[1:3, 0]) + 1) == in_use
    table[1:3, 0] = 1
    with pytest.raises(LookupError):
        onednn_native.run(table, images, kernel, expected.copy())
    table[1:3, 0] = 0
    with pytest.raises(LookupError):
        onednn_native.run(table, other, kernel, np.empty((2, 12, 17, 8), np.float32))
    try:
        onednn.take_threads(threads + 1)
        with pytest.raises(LookupError):
            onednn_native.run(table, images, kernel, expected.copy())
    finally:
        onednn.take_threads(threads)


def test_host_code_is_for_many_products_in_float32(monkeypatch):
    kernel = jnp.zeros((3, 3, 64, 64))
    images = jnp.zeros((1, 1, convolution.LEAST_PRODUCTS // kernel.size + 1, 64))
    assert on_host("host", images, kernel)
    assert not on_host("xla", images, kernel)
    assert not on_host("host", images[:, :, 1:], kernel)
    assert not on_host("host", images.astype(jnp.bfloat16), kernel.astype(jnp.bfloat16))
    monkeypatch.setattr(onednn, "available", lambda: False)
    assert not on_host("host", images, kernel)


def test_a_refusal_names_the_function_of_the_library():
    with pytest.raises(RuntimeError, match=r"dnnl_engine_create of oneDNN refuses with status \d"):
        onednn.make("dnnl_engine_create", 77, 0)
