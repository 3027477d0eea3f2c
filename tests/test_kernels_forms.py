"""Which form of an operation runs: the choice reaches all, and plain JAX calls no host code.

Programs are translated for CUDA, values and gradients, which needs no GPU.
"""

import functools
import re
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from jax import export
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

from hdvpd.attention.sampled_walks import sample_walks
from hdvpd.basics.layers import Keys
from hdvpd.kernels import walk_attention_pallas
from hdvpd.kernels.annular_sums import annular_sums
from hdvpd.kernels.choice import use_gpu_kernels, use_host_kernels
from hdvpd.kernels.counterparts import counterparts
from hdvpd.kernels.neighbors import knn
from hdvpd.kernels.walk_attention import attend_along_walks
from hdvpd.kernels.walks import exact_walks
from studies.attention.masks.forests import edge_forest
from studies.attention.masks.trees import ExponentialForestMask

NEIGHBORS = np.random.default_rng(0).integers(0, 37, (37, 3)).astype(np.int32)
POINTS = np.random.default_rng(1).normal(size=(37, 3)).astype(np.float32)
X = np.random.default_rng(2).uniform(0.1, 1, (37, 5)).astype(np.float32)
MODULATION = np.float32([1.0, 0.7, 0.4])


def neighbours(kernels, points):
    backend = {"host": "kdtree", "xla": "xla"}[kernels]
    return knn(points, points, 3, exclude_self=True, backend=backend).distances


def annular(kernels, positions, features):
    found = np.ones((37, 3), bool)
    scales = ((0.0, 0.1), (0.1, 0.2))
    return annular_sums(positions, features, POINTS, NEIGHBORS, found, *scales, kernels)


def moved_to_counterparts(kernels, x):
    points, mask = np.tile(POINTS, 2), np.ones(37, bool)
    theirs, _ = counterparts(jnp.tile(x[:, :3], 2), points, mask, mask, kernels)
    return jnp.asarray(points)[theirs][:, :3] - x[:, :3]


def all_walks(kernels, x):
    walks = exact_walks(scenes.list_graph(NEIGHBORS, kernels), 2)
    return attend_along_walks(x, x, x, MODULATION, walks)


def some_walks(kernels, x):
    graph = scenes.list_graph(NEIGHBORS, kernels)
    walks = sample_walks(graph, 4, 2, jax.random.key(0), halting=0.2)
    return attend_along_walks(x, x, x, MODULATION, walks)


def products(kernels, x):
    graph = scenes.list_graph(NEIGHBORS, kernels)
    return graph @ graph.transposed_product(x)


def paths(kernels, rate, x):
    edges = np.stack([np.arange(1, 37), np.arange(36)], axis=1)
    return ExponentialForestMask(edge_forest(37, edges, kernels=kernels), rate, 0.0) @ x


# Arguments, and the host code that runs forward and backward.
OPERATIONS = {
    neighbours: ((POINTS,), {"kdtree.build", "kdtree_search.nearest"}),
    annular: ((POINTS, X), {"annular_sums_host.forward", "annular_sums_host.backward"}),
    moved_to_counterparts: ((X,), {"counterparts_host.find"}),
    all_walks: (
        (X,),
        {
            *("walks_host.follow", "walks_host.order"),
            *("walk_attention_host.forward", "walk_attention_host.backward"),
        },
    ),
    some_walks: (
        (X,),
        {
            *("walks_host.merge", "walks_host.order"),
            *("walk_attention_host.forward", "walk_attention_host.backward"),
        },
    ),
    products: (
        (X,),
        {f"sparse_rows_host.{name}" for name in ("multiply", "multiply_transposed")},
    ),
    paths: ((np.float32(-0.5), X), {"forests_host.weighted_path_sums"}),
}


def gradients(operation, *arguments):
    """Return a compiled function of the arguments: the result and all gradients of its sum."""

    def total(*arguments):
        out = operation(*arguments)
        return (out**2).sum(), out

    return jax.jit(jax.value_and_grad(total, tuple(range(len(arguments))), has_aux=True))


def called(text):
    """Return what a program calls outside of itself."""
    return set(re.findall(r"custom_call @([^\s(]+)", text.replace('"', "")))


def on_cuda(function, *arguments):
    """Return the text of a program for GPUs; jax refuses one that calls back into Python."""
    text = export.export(function, platforms=["cuda"])(*arguments).mlir_module()
    assert "callback" not in text
    assert not any(".kernels." in name for name in called(text))
    return text


@pytest.mark.parametrize("operation", OPERATIONS)
def test_plain_jax_runs_on_a_gpu_without_the_host(operation):
    arguments, _ = OPERATIONS[operation]
    on_cuda(gradients(functools.partial(operation, "xla"), *arguments), *arguments)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_host_code_runs_where_it_is_chosen(operation):
    arguments, expected = OPERATIONS[operation]
    program = gradients(functools.partial(operation, "host"), *arguments)
    names = called(program.trace(*arguments).lower().as_text())
    assert {name.partition(".kernels.")[2] for name in names if ".kernels." in name} == expected


def test_entries_of_walks_are_put_in_order_for_gradients_alone():
    program = jax.jit(functools.partial(all_walks, "host")).lower(X).compile()
    assert "walks_host.follow" in program.as_text()
    assert "walks_host.order" not in program.as_text()


@pytest.mark.parametrize("learned", ["grf", "rwgnk", "diffusion"])
def test_setting_of_the_model_reaches_the_masks_of_its_layers(learned):
    mask, tokens = np.arange(37) < 30, np.tile(X, (1, 2))[:, :8]

    def program(kernels, knn):
        config = scenes.changed(
            scenes.tiny_config(model={"latent_dim": 8, "kernels": kernels, "knn": knn}).model,
            f'dynamics.local.mask = "{learned}"',
        )
        local = config.dynamics.local
        graphdef, params = scenes.random_params(lambda: local.make(config, rngs=Keys(0)))

        def layer(tokens):
            plan = local.plan(config, jnp.asarray(POINTS), mask, jax.random.key(0))
            return scenes.apply(graphdef, params)(tokens, plan)

        return gradients(layer, tokens)

    on_cuda(program("xla", "xla"), tokens)
    names = called(program("host", "kdtree").trace(tokens).lower().as_text())
    assert any("kdtree" in name for name in names)
    assert any("_host.multiply" in name or "_host.follow" in name for name in names)


@pytest.mark.parametrize(
    ("backend", "kind", "expected"),
    [
        ("cpu", "cpu", (True, False)),
        ("gpu", "NVIDIA H100 80GB HBM3", (False, True)),
        ("gpu", "gfx942", (False, False)),
        ("tpu", "TPU v5 lite", (False, False)),
    ],
)
def test_the_device_decides_which_form_runs(monkeypatch, backend, kind, expected):
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "devices", lambda: [SimpleNamespace(device_kind=kind)])
    for kernels, (on_host, on_gpu) in {
        "auto": expected, "host": (True, False), "xla": (False, False), "pallas": (False, True)
    }.items():  # fmt: skip
        assert (use_host_kernels(kernels), use_gpu_kernels(kernels)) == (on_host, on_gpu)


# jax 0.11 says that it will drop this way to a GPU.
@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated:DeprecationWarning")
def test_pallas_form_lowers_to_triton():
    # Sizes are no powers of two and no whole blocks.
    walks = exact_walks(scenes.list_graph(NEIGHBORS, "pallas"), 3)

    @jax.jit
    def gradient(query, key, value, mask, walks):
        return jax.grad(
            lambda *x: walk_attention_pallas.attend(*x, walks, interpret=False).sum(),
            (0, 1, 2, 3),
        )(query, key, value, mask)

    # From 0.11 on, jax asks for which GPU, if it finds none.
    device = AbstractDevice(device_kind="NVIDIA H100 80GB HBM3", num_cores=132, platform="gpu")
    triton = "__gpu$xla.gpu.triton"  # jax promises no compatibility of what it saves to a file
    translate = export.export(
        gradient,
        platforms=["cuda"],
        disabled_checks=[export.DisabledSafetyCheck.custom_call(triton)],
    )
    shapes = [jax.ShapeDtypeStruct((37, width), np.float32) for width in (8, 8, 5, 40)]
    with use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        text = translate(*shapes, walks).mlir_module()
    assert len(re.findall(rf"custom_call @{re.escape(triton)}", text)) == 3
    # The gathered array of [t, e, c] exists nowhere.
    assert "37x40x8" not in text
