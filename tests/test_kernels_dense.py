"""Dense layers and linear attention as host code, against plain formulas in float64."""

import functools

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from threads import check_that_threads_change_nothing

from hdvpd.encoders import unet
from hdvpd.kernels import convolution, dense, linear_attention_host, onednn
from hdvpd.kernels.dense import (
    dense_added,
    dense_gelu,
    norm_attention_added,
    norm_dense,
    norm_dense_beside,
    norm_mlp_added,
    on_host,
)
from hdvpd.training.step import create_model, merge_model

EPSILON, LEAST = 1e-6, 1e-3
# One block, several in one part, and several parts.
ROWS = (1, 7, 300, 2500)


def random(*shapes, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(size=shape).astype(np.float32) for shape in shapes]


def gelu(x):
    return 0.5 * x * (1 + jnp.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def plain_norm_dense(x, scale, offset, kernel, bias):
    mean = x.mean(1, keepdims=True)
    variance = ((x - mean) ** 2).mean(1, keepdims=True)
    normed = (x - mean) / jnp.sqrt(variance + EPSILON)
    return (normed * scale[None] + offset[None]) @ kernel + bias[None]


def plain_attention(together, mask, num_heads):
    """Divide, for every token and head, two sums over all real tokens."""
    width = together.shape[1] // 3
    each, results = width // num_heads, []
    for head in range(num_heads):
        query, key, value = (
            together[:, part * width + head * each : part * width + (head + 1) * each]
            for part in range(3)
        )
        weights = (jax.nn.relu(query / np.sqrt(each)) + LEAST) @ (jax.nn.relu(key) + LEAST).T
        weights = weights * mask[None]
        total = weights.sum(1, keepdims=True)
        results.append(weights @ value / jnp.where(total > 0, total, 1))
    return jnp.concatenate(results, axis=1)


def host_norm_dense(x, scale, offset, kernel, bias):
    return norm_dense(x, scale, offset, EPSILON, kernel, bias)


FORMS = {
    "norm": (host_norm_dense, plain_norm_dense, lambda t: [(t, 12), (12,), (12,), (12, 20), (20,)]),
    "added": (
        dense_added,
        lambda r, x, w, b: r + x @ w + b[None],
        lambda t: [(t, 9), (t, 16), (16, 9), (9,)],
    ),
    "gelu": (
        lambda x, w, b: dense_gelu(x / 4, w, b),
        lambda x, w, b: gelu(x / 4 @ w + b[None]),
        lambda t: [(t, 12), (12, 20), (20,)],
    ),
    # Numbers as large as a norm's: where GELU's slope is flat, rounding is much of what is left.
    "mlp": (
        lambda x, scale, offset, *layers: norm_mlp_added(
            x, scale / 4, offset / 4, EPSILON, (layers[:2], layers[2:])
        ),
        lambda x, scale, offset, w, b, v, c: (
            x + gelu(plain_norm_dense(x, scale / 4, offset / 4, w, b)) @ v + c[None]
        ),
        lambda t: [(t, 12), (12,), (12,), (12, 20), (20,), (20, 12), (12,)],
    ),
}


def result_and_gradients(function, arguments, bar):
    result, back = jax.vjp(function, *arguments)
    return [result, *back(bar)]


def in_float64(function, arguments, bar):
    with jax.enable_x64(True):
        arrays = [jnp.asarray(x, jnp.float64) for x in (*arguments, bar)]
        found = result_and_gradients(function, arrays[:-1], arrays[-1])
        return [np.asarray(x) for x in found]


def assert_near(found, expected, tolerance=1e-5):
    for ours, theirs in zip(found, expected, strict=True):
        scale = max(np.abs(theirs).max(initial=0), 1e-6)
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", ROWS)
def test_layers_and_gradients_equal_formulas_in_float64(form, rows):
    host, plain, shapes = FORMS[form]
    *arguments, bar = random(*shapes(rows), (rows, shapes(rows)[-1][0]))
    found = jax.jit(functools.partial(result_and_gradients, host))(arguments, bar)
    assert_near(found, in_float64(plain, arguments, bar))


# Columns: less than a vector, all of one, of one or two and some of the next.
@pytest.mark.parametrize("columns", [1, 3, 16, 17, 32, 33, 64, 100])
@pytest.mark.parametrize("form", ["norm", "mlp"])
def test_rows_may_have_any_number_of_columns(form, columns):
    host, plain, _ = FORMS[form]
    shapes = [(300, columns), (columns,), (columns,), (columns, 50), (50,)]
    if form == "mlp":
        shapes += [(50, columns), (columns,)]
    *arguments, bar = random(*shapes, (300, *shapes[-1]))
    arguments[3] /= np.sqrt(columns)  # as for "mlp" above
    found = jax.jit(functools.partial(result_and_gradients, host))(arguments, bar)
    assert_near(found, in_float64(plain, arguments, bar))


def host_attention(x, scale, offset, *layers, mask, num_heads):
    layers = layers[:2], layers[2:]
    return norm_attention_added(x, scale, offset, EPSILON, layers, mask, num_heads, LEAST)


def plain_attention_added(x, scale, offset, kernel, bias, out_kernel, out_bias, mask, num_heads):
    together = plain_norm_dense(x, scale, offset, kernel, bias)
    return x + plain_attention(together, mask, num_heads) @ out_kernel + out_bias[None]


def attention_shapes(rows, width):
    norm = [(rows, width), (width,), (width,)]
    return [*norm, (width, 3 * width), (3 * width,), (width, width), (width,)]


@pytest.mark.parametrize("rows", ROWS)
# Columns of a head: some of a vector, all of one, all of two, of one and some of the next.
@pytest.mark.parametrize(("heads", "each"), [(1, 8), (4, 2), (3, 12), (4, 16), (2, 32), (2, 20)])
@pytest.mark.parametrize("share", [1.0, 0.6, 0.0])
def test_attention_and_its_gradient_equal_a_formula_in_float64(rows, heads, each, share):
    *arguments, bar = random(*attention_shapes(rows, heads * each), (rows, heads * each))
    for kernel in (3, 5):
        arguments[kernel] /= np.sqrt(heads * each)
    mask = np.random.default_rng(1).random(rows) < share
    host = functools.partial(host_attention, mask=mask, num_heads=heads)
    plain = functools.partial(plain_attention_added, mask=mask, num_heads=heads)
    found = jax.jit(functools.partial(result_and_gradients, host))(arguments, bar)
    # Where all features of a query are small, and rows hardly vary, rounding is enlarged.
    assert_near(found, in_float64(plain, arguments, bar), 5e-5)
    if share == 0:
        np.testing.assert_allclose(found[0], arguments[0] + arguments[6][None], rtol=1e-6)
        np.testing.assert_array_equal(found[1], bar)


@pytest.mark.parametrize("rows", ROWS)
def test_rows_beside_a_layer_add_their_cotangent(rows):
    def beside(x, scale, offset, kernel, bias):
        result, same = norm_dense_beside(x, scale, offset, EPSILON, kernel, bias)
        return jnp.concatenate([result, same], axis=1)

    def plain(x, *layer):
        return jnp.concatenate([plain_norm_dense(x, *layer), x], axis=1)

    *arguments, bar = random((rows, 12), (12,), (12,), (12, 20), (20,), (rows, 32))
    found = jax.jit(functools.partial(result_and_gradients, beside))(arguments, bar)
    assert_near(found, in_float64(plain, arguments, bar))
    np.testing.assert_array_equal(found[0][:, 20:], arguments[0])


def test_no_rows_have_no_gradient():
    arguments = random((0, 12), (12,), (12,), (12, 5), (5,))
    found = result_and_gradients(host_norm_dense, arguments, np.ones((0, 5), np.float32))
    assert all((x == 0).all() for x in found)


def test_a_constant_row_has_a_finite_gradient():
    arguments = random((3, 12), (12,), (12,), (12, 5), (5,))
    arguments[0][1] = 7.0
    found = result_and_gradients(host_norm_dense, arguments, np.ones((3, 5), np.float32))
    assert all(np.isfinite(x).all() for x in found)


@pytest.mark.parametrize("shared", [True, False])
def test_mapped_is_one_after_another(shared):
    num, shapes = 3, [(40, 12), (12,), (12,), (12, 5), (5,)]
    arguments = random(*[(num, *shape) for shape in shapes])
    axes = [0] * 5
    if shared:
        arguments = [arguments[0], *(x[0] for x in arguments[1:])]
        axes = [0, None, None, None, None]
    (bar,) = random((num, 40, 5), seed=1)
    run = functools.partial(result_and_gradients, host_norm_dense)
    mapped = jax.jit(jax.vmap(run, in_axes=(axes, 0)))(arguments, bar)
    for i in range(num):
        single = [x if axis is None else x[i] for x, axis in zip(arguments, axes, strict=True)]
        for ours, theirs in zip(mapped, run(single, bar[i]), strict=True):
            np.testing.assert_array_equal(ours[i], theirs)


def test_mapped_attention_is_one_after_another():
    xs, bars = random((2, 40, 8), (2, 40, 8))
    _, *layers = random(*attention_shapes(40, 8))
    masks = np.random.default_rng(1).random((2, 40)) < 0.5

    def run(x, mask, bar):
        host = functools.partial(host_attention, mask=mask, num_heads=2)
        return result_and_gradients(host, [x, *layers], bar)

    mapped = jax.jit(jax.vmap(run))(xs, masks, bars)
    for i in range(2):
        for ours, theirs in zip(mapped, run(xs[i], masks[i], bars[i]), strict=True):
            # Last digits may depend on where the arrays lie.
            np.testing.assert_array_equal(ours[i], theirs)
    # Two compiled forms, one for either, might round otherwise.
    for kernel in (linear_attention_host.forward, linear_attention_host.backward):
        assert len(kernel.signatures) == 1


def test_results_do_not_depend_on_the_number_of_threads():
    layers = [(24, 40), (40,), (40, 24), (24,)]
    attention = attention_shapes(5000, 24)[3:]
    arguments = random((5000, 24), (24,), (24,), *layers, *attention)
    (bar,) = random((5000, 40), seed=1)

    def run():
        def both(x, scale, offset, *layers):
            norm = scale, offset
            x = norm_mlp_added(x, *norm, EPSILON, (layers[:2], layers[2:4]))
            x = host_attention(x, *norm, *layers[4:], mask=np.ones(5000, bool), num_heads=2)
            return host_norm_dense(x, *norm, *layers[:2])

        return [np.asarray(x) for x in result_and_gradients(both, arguments, bar)]

    check_that_threads_change_nothing(run)


def test_a_model_learns_the_same_with_host_code_and_in_plain_jax(monkeypatch):
    batch = scenes.make_batch(2, 4, 12, 16)
    for module, name in ((convolution, "PRODUCTS"), (unet, "NORMED")):
        monkeypatch.setattr(module, f"LEAST_{name}", 1)

    def slopes(host):
        model = {"kernels": "host", "knn": "kdtree", "position_frequencies": 2}
        model |= {"carry": True, "contact": True, "colors": True, "up": "z"}
        graphdef, params = create_model(scenes.tiny_config(model=model), scenes.SCENE)
        monkeypatch.setattr(onednn, "available", lambda: host)
        monkeypatch.setattr(dense, "LEAST_ROWS", 1 if host else 10**9)

        @jax.jit
        @jax.value_and_grad
        def loss(params):
            return merge_model(graphdef, params).loss(batch, jax.random.key(1)).mean()

        program = loss.lower(params)
        called = {
            module
            for module in (
                *("dense_host", "mlp_host", "gelu_dense_host", "linear_attention_host"),
                *("convolution_host", "group_norm", "gaussian_mean_host"),
            )
            if module in program.as_text()
        }
        return *loss(params), called

    ours, our_bars, used = slopes(host=True)
    theirs, their_bars, unused = slopes(host=False)
    assert len(used) == 7
    assert not unused
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    bars = [jax.flatten_util.ravel_pytree(x)[0] for x in (our_bars, their_bars)]
    assert np.linalg.norm(bars[0] - bars[1]) < 1e-3 * np.linalg.norm(bars[1])


@pytest.mark.parametrize(("python", "least"), [(False, 128), (True, 2048)])
def test_host_code_is_for_many_rows_of_float32(python, least, monkeypatch):
    monkeypatch.setattr(dense, "without_python", lambda: not python)
    many = jnp.zeros((least, 2))
    assert on_host("host", many)
    assert not on_host("xla", many)
    assert not on_host("host", many[1:])
    assert not on_host("host", many.astype(jnp.bfloat16))
