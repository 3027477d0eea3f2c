"""The counted operations of every part (`benchmarks/counts.py`) against XLA's counts."""

import importlib.util
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes

from hdvpd.basics.layers import Keys
from hdvpd.basics.types import ParticleCloud
from hdvpd.dynamics.carrying import carried_motion, held_along
from hdvpd.dynamics.mlp import Mlp
from hdvpd.dynamics.shadow import Shadow
from hdvpd.dynamics.tokens import ReadOut, Tokens
from hdvpd.encoders.unet import UNet
from hdvpd.kernels.annular_sums import annular_sums
from hdvpd.render.compositing import composite

PATH = Path(__file__).parent.parent / "benchmarks" / "counts.py"
SPEC = importlib.util.spec_from_file_location("counts", PATH)
assert SPEC is not None
assert SPEC.loader is not None
counts = importlib.util.module_from_spec(SPEC)
sys.modules["counts"] = counts  # dataclasses look their module up
SPEC.loader.exec_module(counts)

ROWS, POINTS, DIM, HEADS, FEATURES = 96, 24, 64, 4, 6
MODEL = scenes.changed(
    scenes.tiny_config(model={"num_particles": ROWS // 2, "latent_dim": DIM}).model,
    f'kernels = "xla"\nknn = "xla"\n[dynamics.attention]\nnum_heads = {HEADS}',
)


def operations(function, *arguments):
    """Return XLA's count of the operations of a program as it is written, forward and of both."""

    def both(*arguments):
        out, pull = jax.vjp(function, *arguments)
        return out, pull(jax.tree.map(jnp.ones_like, out))

    return [jax.jit(f).lower(*arguments).cost_analysis()["flops"] for f in (function, both)]


def of_module(make, call, *arguments):
    graphdef, params = scenes.random_params(make)
    return operations(lambda p, *x: call(scenes.apply(graphdef, p), *x), params, *arguments)


def zeros(*shape):
    return jnp.zeros(shape, jnp.float32)


def perceptron():
    found = of_module(lambda: Mlp(32, 64, 48, rngs=Keys(0)), lambda m, x: m(x), zeros(ROWS, 32))
    return found, counts.perceptron(ROWS, (32, 64, 48))


def unet():
    graphdef, params = scenes.random_params(lambda: UNet((32, 64), 16, kernels="xla", rngs=Keys(0)))
    image = zeros(1, 64, 96, 3)
    found = operations(lambda p: scenes.apply(graphdef, p)(image), params)
    return found, counts.unet(1, 64, 96, (32, 64), 16)


def block(call, need):
    make = lambda: MODEL.dynamics.make(MODEL, scenes.SCENE, rngs=Keys(0)).blocks[0]  # noqa: E731
    positions = np.random.default_rng(0).normal(size=(ROWS, 3)).astype(np.float32)
    mask = np.ones(ROWS, bool)
    plan = MODEL.dynamics.local.plan(MODEL, positions, mask, jax.random.key(0))
    return of_module(make, lambda b, x: call(b, x, mask, plan), zeros(ROWS, DIM)), need


def global_attention():
    call = lambda b, x, mask, _: b.attended(x, mask)  # noqa: E731
    return block(call, counts.global_attention(ROWS, DIM, HEADS))


def mlp():
    return block(lambda b, x, *_: b.fed_forward(x), counts.mlp(ROWS, DIM, 2 * DIM))


def local_layer():
    # In plain JAX, every one of the 40 walks is an entry of its own.
    call = lambda b, x, _, plan: x + b.local(b.norm_local(x), plan)  # noqa: E731
    return block(call, counts.local_layer(ROWS, DIM, 40, 3))


def clouds(*arrays):
    return [ParticleCloud(*arrays[i : i + 2], np.ones(ROWS, bool)) for i in (0, 2)]


def robot():
    return scenes.unturned(np.zeros((3, POINTS, 3)))


def scene():
    return scenes.SCENE.__class__(POINTS, (-1.0,) * 3, (1.0,) * 3)


def tokens():
    inputs = [zeros(ROWS, n) for n in (3, MODEL.feature_dim) * 2]
    make = lambda: Tokens(MODEL, scene(), rngs=Keys(0))  # noqa: E731
    call = lambda t, *x: t(*clouds(*x), robot())[0]  # noqa: E731
    need = counts.tokens(ROWS, POINTS, DIM, MODEL.feature_dim, MODEL.position_frequencies)
    return of_module(make, call, *inputs), need


def carried():
    def call(positions):
        cloud = ParticleCloud(positions, zeros(ROWS, 1), np.ones(ROWS, bool))
        return carried_motion(cloud, robot(), 1)

    return operations(call, zeros(ROWS, 3)), counts.carried(ROWS, POINTS, 1)


def held():
    def call(positions):
        cloud = ParticleCloud(positions, zeros(ROWS, 1), np.ones(ROWS, bool))
        return held_along(cloud, robot(), 1, 2)

    return operations(call, zeros(ROWS, 3)), counts.held(ROWS, POINTS, 1)


def shadow():
    cloud = ParticleCloud(zeros(ROWS, 3), zeros(ROWS, 3), np.ones(ROWS, bool))
    call = lambda s: s(cloud, robot(), zeros(ROWS, 3))  # noqa: E731
    return of_module(lambda: Shadow(scene(), "xla"), call), counts.shadow(ROWS, POINTS)


def read_out():
    inputs = [zeros(ROWS, n) for n in (DIM, 3, MODEL.feature_dim)]
    call = lambda r, x, *cloud: r(x, ParticleCloud(*cloud, np.ones(ROWS, bool)), robot())  # noqa: E731
    need = counts.read_out(ROWS, DIM, 3 + MODEL.feature_dim)
    return of_module(lambda: ReadOut(MODEL, scenes.SCENE, rngs=Keys(0)), call, *inputs), need


def sums():
    k, radii = 8, (0.0, 0.01, 0.02, 0.05)
    indices = np.arange(ROWS * k, dtype=np.int32).reshape(ROWS, k) % 50
    call = lambda positions, features: annular_sums(  # noqa: E731
        positions, features, zeros(ROWS, 3), indices, np.ones((ROWS, k), bool), radii, radii, "xla"
    )
    need = counts.annular_sums(ROWS * k, ROWS, 4, 16)
    return operations(call, zeros(50, 3), zeros(50, 16)), need


def compositing():
    shape = (32, 24)

    def call(rgb, density):
        return composite(rgb, density, zeros(*shape), zeros(32), 2.0).rgb

    return operations(call, zeros(*shape, 3), zeros(*shape)), counts.compositing(*shape)


# How far XLA's count may lie from ours, below and above. What is made of single numbers is counted
# roughly; XLA also counts what lies at an image's edge less and what derivatives are made of more.
PARTS = {
    perceptron: (0.9, 1.15),
    unet: (0.9, 1.2),
    global_attention: (0.9, 1.15),
    mlp: (0.9, 1.15),
    local_layer: (0.9, 1.2),
    tokens: (0.8, 1.2),
    carried: (0.6, 1.6),
    held: (0.6, 1.6),
    shadow: (0.6, 1.6),
    read_out: (0.8, 1.4),
    sums: (0.7, 1.6),
    compositing: (0.4, 2.0),
}


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_operations_are_those_that_xla_counts(part):
    found, need = part()
    low, high = PARTS[part]
    ratios = [x / cost.flop for x, cost in zip(found, (need.forward, need.both), strict=True)]
    assert all(low < ratio < high for ratio in ratios), ratios


def test_every_byte_is_moved_once_forward():
    """Of a layer from 2 to 3 numbers per row, ten rows; backward twice, and the cotangents."""
    need = counts.perceptron(10, (2, 3))
    assert need.forward.moved == 4 * (20 + 30 + 6)
    assert need.both.moved - need.forward.moved == 4 * (20 + 30 + 20 + 6 + 6)


def test_a_part_takes_the_longer_of_its_operations_and_its_bytes():
    cost = counts.Cost(flop=8.0, moved=6.0)
    assert cost.seconds(4.0, 6.0) == 2
    assert cost.seconds(8.0, 2.0) == 3
    total = counts.in_sum([counts.Need(cost, cost * 2), counts.Need(cost, cost)])
    assert (total.forward, total.both) == (cost * 2, cost * 3)


def test_twice_the_particles_need_twice_as_much():
    parts = (
        lambda n: counts.mlp(n, 64, 128),
        lambda n: counts.global_attention(n, 64, 4),
        lambda n: counts.local_layer(n, 64, 11, 3),
    )
    for part in parts:
        assert part(200).both.flop == 2 * part(100).both.flop
