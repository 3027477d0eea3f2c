"""Every jitted entry point is translated for CUDA: no call to the host, no buffer of N x N.

Only shapes are needed, so N is large enough that a square would stand out from everything else.
"""

import functools
import math
import re

import jax
import pytest
import scenes
from flax import nnx
from jax import export

from hdvpd.model import abstract_model
from hdvpd.model.compiled import make_compiler
from hdvpd.training.step import create_train_state, make_train_step, make_validate

NUM_PARTICLES, HEIGHT, WIDTH, STEPS = 8192, 64, 80, 2
BYTES = {"f32": 4, "i32": 4, "ui32": 4, "f64": 8, "i64": 8, "ui8": 1, "i8": 1, "i1": 1}


@pytest.fixture(scope="module")
def config():
    settings = {"kernels": "xla", "knn": "xla", "num_particles": NUM_PARTICLES}
    data, train = {"height": HEIGHT, "width": WIDTH}, {"batch_size": 1, "horizon": STEPS}
    return scenes.tiny_config(model=settings, data=data, train=train)


@pytest.fixture(scope="module")
def entries(config):
    """Every entry point by name, and the shapes of its arguments."""
    model = abstract_model(config, scenes.SCENE)
    state = jax.eval_shape(lambda: create_train_state(config, scenes.SCENE)[1])
    graphdef = nnx.graphdef(model)
    larger = {12: HEIGHT, 16: WIDTH}  # of these rows and columns, the same windows
    batch = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(tuple(larger.get(n, n) for n in x.shape), x.dtype),
        scenes.make_batch(1, 2 + STEPS, 12, 16),
    )
    key = jax.eval_shape(lambda: jax.random.key(0))
    window = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), batch)
    observed = jax.tree.map(lambda x: jax.ShapeDtypeStruct((2, *x.shape[1:]), x.dtype), window)
    parts = make_compiler(model)(model)
    encode, rollout, render = (f.func for f in (parts.encode, parts.rollout, parts.render))
    params = nnx.state(model)
    clouds = jax.eval_shape(encode, params, observed.frames, observed.robot, key)
    future = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((STEPS, *x.shape[1:]), x.dtype), window.frames.camera
    )
    return {
        "train step": (make_train_step(config, graphdef), (state, batch, key)),
        "validation": (make_validate(graphdef), (state.params, batch, key)),
        "encode": (encode, (params, observed.frames, observed.robot, key)),
        "rollout": (rollout, (params, clouds, window.robot, key)),
        "render": (render, (params, clouds, future)),
        "whiten": (parts.whiten, (window.frames,)),
    }


@functools.cache
def dimensions(kind):
    *sizes, dtype = kind.split("x")
    return [int(size) for size in sizes], BYTES.get(dtype, 4)


@pytest.mark.parametrize(
    "name", ["train step", "validation", "encode", "rollout", "render", "whiten"]
)
def test_an_entry_point_runs_on_a_gpu_alone_and_holds_no_square(entries, name):
    function, arguments = entries[name]
    exported = export.export(function, platforms=["cuda"])(*arguments)
    text = exported.mlir_module()
    called = set(re.findall(r"custom_call @([^\s(]+)", text.replace('"', "")))
    assert "callback" not in text
    assert not any("hdvpd" in target for target in called)
    buffers = [dimensions(kind) for kind in set(re.findall(r"tensor<(\d[\dx]*x\w+)>", text))]
    assert buffers
    for sizes, _ in buffers:
        assert sum(size >= NUM_PARTICLES // 2 for size in sizes) < 2, sizes
        assert math.prod(sizes) < NUM_PARTICLES**2, sizes
    given = sum(math.prod(a.shape) * 4 for a in exported.in_avals)
    largest = max(math.prod(sizes) * size for sizes, size in buffers)
    print(f"{name}: {given / 2**20:.1f} MiB of arguments, largest buffer {largest / 2**20:.1f} MiB")
