"""Host functions are compiled while XLA compiles what calls them, once, for the types they get."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx

from hdvpd.config.experiments import load_config
from hdvpd.kernels.ffi import known
from hdvpd.kernels.host import host_call
from hdvpd.kernels.rehearsal import rehearsals
from hdvpd.kernels.together import compile_together
from hdvpd.model import abstract_model
from hdvpd.training.step import create_train_state, make_train_step

_MODEL = """
import sys

import jax
import jax.numpy as jnp
from numba.core.dispatcher import Dispatcher

from hdvpd.kernels.dense import dense_added, norm_attention_added, norm_dense
from hdvpd.kernels.neighbors import knn
from hdvpd.kernels.together import compile_together


def kernels():
    modules = [m for name, m in sys.modules.items() if name.startswith("hdvpd.kernels")]
    found = {id(x): x for m in modules for x in vars(m).values() if isinstance(x, Dispatcher)}
    return {x.py_func.__module__ + "." + x.__name__: len(x.signatures) for x in found.values()}


def loss(x, points):
    kernel, bias = jnp.ones((64, 64)), jnp.ones(64)
    layers = (jnp.ones((64, 192)), jnp.ones(192)), (kernel, bias)
    x = norm_dense(x, x[0], x[1], 1e-6, kernel, bias)
    x = norm_attention_added(x, x[0], x[1], 1e-6, layers, jnp.ones(len(x), bool), 4, 1e-3)
    x = dense_added(x, x, kernel, bias)
    near = jax.vmap(lambda points: knn(points, points, 3, backend="kdtree").distances)(points)
    return x.sum() + near.sum()


arguments = jnp.ones((4096, 64)), jnp.ones((2, 100, 3))
[program] = compile_together([lambda: jax.jit(jax.value_and_grad(loss)).lower(*arguments)])
rehearsed = kernels()
jax.block_until_ready(program(*arguments))
print(rehearsed == kernels())
for name in ("dense_host.forward", "dense_host.backward", "linear_attention_host.backward",
             "kdtree_search.nearest"):
    print(name, rehearsed["hdvpd.kernels." + name])
"""


def test_calls_compile_no_host_code_after_a_rehearsal():
    done = subprocess.run([sys.executable, "-c", _MODEL], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    same, *counts = done.stdout.split("\n")[:-1]
    assert same == "True"
    # Once each: an array without numbers has the type of one with numbers.
    assert [line.split()[1] for line in counts] == ["1"] * 4


_calls: list[tuple[np.ndarray, ...]] = []


def _remembers(numbers: np.ndarray, rows: np.ndarray, mask: np.ndarray, result: np.ndarray) -> None:
    _calls.append((numbers, rows, mask))
    result[:] = numbers.sum()


def _refuses(numbers: np.ndarray, result: np.ndarray) -> None:
    if np.isnan(numbers).any():
        raise ValueError("not a number")
    result[:] = numbers


def test_nothing_that_a_rehearsal_gives_is_real():
    shape = jax.ShapeDtypeStruct((), np.float32)

    def call(numbers: jax.Array, rows: jax.Array, mask: jax.Array) -> jax.Array:
        return host_call(_remembers, [shape], numbers, rows, mask)[0]

    program = jax.jit(call).lower(jnp.ones(2), jnp.ones((2, 1), int), jnp.ones(3, bool))
    [rehearse] = rehearsals(program)
    assert not _calls
    rehearse()
    [(numbers, rows, mask)] = _calls
    assert np.isnan(numbers).all()
    assert numbers.shape == (2,)
    assert rows.shape == (2, 1)
    assert mask.shape == (3,)
    assert (rows.dtype, mask.dtype) == (np.int32, np.bool_)
    assert not rows.any()
    assert not mask.any()
    assert not numbers.flags.writeable
    assert not rows.flags.writeable
    # What has the same types is not called again, what has others is.
    assert not rehearsals(
        jax.jit(call).lower(jnp.ones(5), jnp.ones((2, 1), int), jnp.ones(3, bool))
    )
    assert rehearsals(
        jax.jit(call).lower(jnp.ones((5, 1)), jnp.ones((2, 1), int), jnp.ones(3, bool))
    )


def test_what_a_function_refuses_in_a_rehearsal_is_no_mistake():
    def call(numbers: jax.Array) -> jax.Array:
        return host_call(_refuses, [jax.ShapeDtypeStruct((3,), np.float32)], numbers)[0]

    [program] = compile_together([lambda: jax.jit(call).lower(jnp.ones(3))])
    np.testing.assert_array_equal(program(jnp.arange(3.0)), np.arange(3.0))
    with pytest.raises(jax.errors.JaxRuntimeError, match="not a number"):
        jax.block_until_ready(program(jnp.full(3, np.nan)))


def test_the_demos_training_step_calls_no_host_code_that_needs_python():
    changes = {"train": {"batch_size": 1, "num_devices": 1}, "data": {"height": 24, "width": 32}}
    config = load_config("demo", changes)
    graphdef = nnx.graphdef(abstract_model(config, scenes.SCENE))
    state = jax.eval_shape(lambda: create_train_state(config, scenes.SCENE)[1])
    batch = jax.eval_shape(lambda: scenes.make_batch(1, 2 + config.train.horizon, 24, 32))
    step = make_train_step(config, graphdef).lower(state, batch, jax.random.key(0))
    called = set(re.findall(r"@hdvpd[.\w]*|@\"(hdvpd[^\"]*)\"", step.as_text()))
    functions = [known(name) for name in called]
    assert len(functions) > 20
    assert [x for x in functions if x is None or not x.compiled] == []
