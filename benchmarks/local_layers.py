"""Local layers side by side: time, memory and their growth with the number of tokens, in one run.

Tokens lie on a surface, in Z order as the encoder's particles do, or with --random-order not, which
is the worst case for whatever gathers neighbours. Parts, forward and forward + backward:
- attention alone, queries, keys, values and walks given: GRF attention in each of its forms, and
  linear attention over all tokens with as many heads as the model;
- layers with their projections, plan given: the local layers chosen, the global layer and the
  block's MLP (D -> 2D -> D), gradients to parameters and tokens;
- stacks of whole blocks with the same layout and no, GRF or message-passing local layers, plan
  (neighbour search and walks or anchors) included: the papers' training-speed ratio.

Times are the best of interleaved repeats. Memory is what one call adds to the process at its peak,
results included. "bytes" is the time over that of copying what must move: a forward pass reads its
inputs and used walk entries and writes its result, a backward pass reads both and the cotangent and
writes one cotangent per input, everything once.

Run: python benchmarks/local_layers.py [--sizes 8192 32768 131072] [--random-order] [--layers ...]
"""

import argparse
import dataclasses
import functools
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from timing import added_mib, fitted_exponent, interleaved, return_freed_memory, surface

from hdvpd.attention.graphs import neighbor_graph
from hdvpd.attention.grf import walk_attention
from hdvpd.attention.linear import linear_attention
from hdvpd.basics.machine import keep_freed_memory
from hdvpd.config import Config, ModelConfig, SceneSpec
from hdvpd.config.members import member_names, with_member
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.neighbors import knn
from hdvpd.kernels.walks import Walks, exact_walks
from hdvpd.kernels.z_order import z_order

_MODULATION = np.exp(-0.01 * np.arange(4)).astype(np.float32)
_SCENE = SceneSpec(num_robot_points=1, workspace_min=(0, 0, -1), workspace_max=(1, 1, 1))
_RATIOS = ("/inputs", "/mlp", "/global", "/xla", "/bytes")
_COLUMNS = ("fwd ms", "f+b ms", "fwd MiB", "f+b MiB", *_RATIOS)


@dataclasses.dataclass(frozen=True)
class Part:
    """What is timed: a function of inputs that get gradients and of others that do not."""

    function: Callable[[Any, Any], jax.Array]
    inputs: Any
    fixed: Any

    def calls(self) -> tuple[Callable[[], Any], Callable[[], Any]]:
        """Return the forward and the forward + backward pass, jitted, nothing constant-folded."""
        out = jax.eval_shape(self.function, self.inputs, self.fixed)
        out_bar = jnp.asarray(np.random.default_rng(1).normal(size=out.shape), out.dtype)

        def forward_backward(inputs: Any, fixed: Any, out_bar: jax.Array) -> Any:
            out, pull_back = jax.vjp(lambda inputs: self.function(inputs, fixed), inputs)
            return out, pull_back(out_bar)

        forward, both = jax.jit(self.function), jax.jit(forward_backward)
        return (
            lambda: forward(self.inputs, self.fixed),
            lambda: both(self.inputs, self.fixed, out_bar),
        )

    def moved_bytes(self) -> int:
        """Return what forward + backward must read and write; the rule is at the top."""
        inputs, fixed = num_bytes(self.inputs), num_bytes(self.fixed)
        out = num_bytes(jax.eval_shape(self.function, self.inputs, self.fixed))
        return (inputs + fixed + out) + (2 * inputs + fixed + 2 * out)


def num_bytes(tree: Any) -> int:
    """Return the size of all arrays; of walks, one node, its loads and its slot per used entry."""

    def size(leaf: Any) -> int:
        if isinstance(leaf, Walks):
            return int(leaf.num_entries.sum()) * 4 * (2 + leaf.loads.shape[-1])
        return int(np.prod(leaf.shape)) * leaf.dtype.itemsize

    return sum(map(size, jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, Walks))))


def points(size: int, random_order: bool) -> jax.Array:
    """Return the tokens' positions [m]."""
    positions = jnp.asarray(surface(size))
    return positions if random_order else positions[z_order(positions, jnp.ones((size,), bool))]


def copy_bandwidth(num_bytes: int = 1 << 28) -> float:
    """Return bytes read and written per second by copying on two threads."""
    source, target = (np.ones(num_bytes // 8) for _ in range(2))
    halves = [slice(0, len(source) // 2), slice(len(source) // 2, None)]
    with ThreadPoolExecutor(2) as pool:

        def copy() -> None:
            list(pool.map(lambda half: np.copyto(target[half], source[half]), halves))

        milliseconds = interleaved({"copy": copy}, repeats=5)["copy"]
    return 2 * num_bytes / (1e-3 * milliseconds)


def walks_on(positions: jax.Array, kernels: Kernels) -> Walks:
    """Return the exact walks of three hops on three neighbours."""

    @jax.jit
    def build(positions: jax.Array) -> Walks:
        found = knn(positions, positions, 3, exclude_self=True)
        mask = jnp.ones(positions.shape[:1], bool)
        return exact_walks(neighbor_graph(found, mask, kernels), len(_MODULATION) - 1)

    return build(positions)


def of_member(config: ModelConfig, name: str) -> ModelConfig:
    """Return the configuration with a member's local layer."""
    return with_member(Config(model=config), name).model


def interlacer(config: ModelConfig) -> InterlacerSettings:
    """Return the settings of the Interlacer, which all members here are."""
    assert isinstance(config.dynamics, InterlacerSettings)
    return config.dynamics


def attention_parts(config: ModelConfig, positions: jax.Array, max_gib: float) -> dict[str, Part]:
    """Return attention alone: GRF attention in each form that fits, and linear attention."""
    size, dim = len(positions), config.latent_dim
    rng = np.random.default_rng(0)
    query, key = (jnp.asarray(np.abs(rng.normal(size=(size, dim))), jnp.float32) for _ in range(2))
    value = jnp.asarray(rng.normal(size=(size, dim)), jnp.float32)
    modulation = jnp.asarray(_MODULATION)
    forms: list[Kernels] = ["host"] if jax.default_backend() == "cpu" else ["pallas"]
    # The XLA form holds gathered keys and values, and their cotangents in the backward pass.
    if 2 * 40 * 2 * num_bytes(query) <= max_gib * 2**30:
        forms.append("xla")

    def grf(inputs: Any, walks: Walks) -> jax.Array:
        query, key, value, modulation = inputs
        return jnp.asarray(walk_attention(query, key, value, modulation, walks))

    parts = {
        f"grf attention, {kernels}": Part(
            grf, (query, key, value, modulation), walks_on(positions, kernels)
        )
        for kernels in forms
    }
    num_heads = interlacer(config).attention.num_heads
    heads = (size, num_heads, dim // num_heads)
    inputs = tuple(x.reshape(heads) for x in (query, key, value))
    mask = jnp.ones((size,), bool)

    def linear(inputs: Any, mask: jax.Array) -> jax.Array:
        query, key, value = inputs
        return jnp.asarray(linear_attention(query, key, value, mask))

    parts["linear attention"] = Part(linear, inputs, mask)
    return parts


def layer_parts(
    config: ModelConfig, positions: jax.Array, layers: Sequence[str]
) -> dict[str, Part]:
    """Return the layers of one block with their projections."""
    size = len(positions)
    tokens = jnp.asarray(np.random.default_rng(2).normal(size=(size, config.latent_dim)))
    tokens = tokens.astype(jnp.float32)
    mask = jnp.ones((size,), bool)

    def part(module: nnx.Module, *fixed: Any) -> Part:
        graphdef, params = nnx.split(module)

        def apply(inputs: Any, fixed: Any) -> jax.Array:
            return nnx.merge(graphdef, inputs[0])(inputs[1], *fixed)

        return Part(apply, (params, tokens), fixed)

    def first_block(options: ModelConfig) -> Any:
        return options.dynamics.make(options, _SCENE, rngs=nnx.Rngs(0)).blocks[0]

    block = first_block(config)
    parts = {"mlp": part(block.mlp), "global layer": part(block.global_attention, mask)}
    for name in layers:
        options = of_member(config, name)
        local = interlacer(options).local
        assert local is not None
        plan = functools.partial(local.plan, options, key=jax.random.key(0))
        parts[f"{name} layer"] = part(first_block(options).local, jax.jit(plan)(positions, mask))
    return parts


def measure(
    config: ModelConfig,
    positions: jax.Array,
    layers: Sequence[str],
    repeats: int,
    max_gib: float,
) -> dict[str, Any]:
    """Return milliseconds and MiB of every part, and what its inputs take."""
    keep_freed_memory()
    parts = attention_parts(config, positions, max_gib) | layer_parts(config, positions, layers)
    calls = {name: part.calls() for name, part in parts.items()}
    times = interleaved(
        {f"{name} {i}": call for name, pair in calls.items() for i, call in enumerate(pair)},
        repeats,
    )
    return_freed_memory()
    return {
        name: {
            "fwd ms": times[f"{name} 0"],
            "f+b ms": times[f"{name} 1"],
            "fwd MiB": added_mib(calls[name][0]),
            "f+b MiB": added_mib(calls[name][1]),
            "input MiB": num_bytes(part.inputs) / 2**20,
            "moved GB": part.moved_bytes() / 1e9,
        }
        for name, part in parts.items()
    }


def ratios(rows: dict[str, dict[str, float]], bandwidth: float) -> None:
    """Add to every row what its forward + backward pass is a multiple of."""
    for name, row in rows.items():
        reference = "linear attention" if "attention" in name else "global layer"
        row["/inputs"] = row["f+b MiB"] / row["input MiB"]
        row["/mlp"] = row["f+b ms"] / rows["mlp"]["f+b ms"]
        row["/global"] = row["f+b ms"] / rows[reference]["f+b ms"]
        if "grf attention, xla" in rows and name.startswith("grf attention"):
            row["/xla"] = row["f+b ms"] / rows["grf attention, xla"]["f+b ms"]
        row["/bytes"] = 1e-3 * row["f+b ms"] * bandwidth / (1e9 * row["moved GB"])


def print_rows(size: int, rows: dict[str, dict[str, float]]) -> None:
    """Print one table."""
    print(f"\n{size:,} tokens\n{'':22s}" + "".join(f"{column:>9s}" for column in _COLUMNS))
    for name, row in rows.items():
        cells = [f"{row[c]:9.2f}" if c in row else f"{'-':>9s}" for c in _COLUMNS]
        print(f"{name:22s}" + "".join(cells), flush=True)


def exponents(results: dict[int, dict[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the fitted exponents in the number of tokens, of parts measured at every size."""
    sizes = sorted(results)
    names = [name for name in results[sizes[0]] if all(name in results[n] for n in sizes)]
    return {
        name: {
            column: fitted_exponent(sizes, [results[n][name][column] for n in sizes])
            for column in ("fwd ms", "f+b ms", "f+b MiB")
        }
        for name in names
    }


def time_stacks(
    config: ModelConfig, positions: jax.Array, layers: Sequence[str], repeats: int
) -> dict[str, float]:
    """Return milliseconds of plan, forward and backward pass of all blocks, per local layer."""
    keep_freed_memory()
    size = len(positions)
    mask = jnp.ones((size,), bool)
    tokens = jnp.asarray(np.random.default_rng(3).normal(size=(size, config.latent_dim)))
    tokens = tokens.astype(jnp.float32)

    def call(local: str) -> Callable[[], Any]:
        options = of_member(config, local)
        graphdef, params = nnx.split(options.dynamics.make(options, _SCENE, rngs=nnx.Rngs(0)))

        @jax.jit
        @jax.grad
        def gradient(params: Any, tokens: jax.Array, positions: jax.Array, key: Any) -> Any:
            plan, _ = interlacer(options).plan(options, positions, mask, key)
            for block in nnx.merge(graphdef, params).blocks:
                tokens = block(tokens, mask, plan)
            return (tokens**2).mean()

        return lambda: gradient(params, tokens, positions, jax.random.key(0))

    return interleaved({name: call(name) for name in ("none", *layers)}, repeats)


def main() -> None:
    """Print the tables, the exponents, the ratio of the stacks and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--layers", nargs="+", choices=member_names(), default=["grf", "mp"])
    parser.add_argument("--stack-size", type=int, default=32768, help="0 leaves the stacks out")
    parser.add_argument("--random-order", action="store_true")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--max-gib", type=float, default=8.0, help="of the XLA form")
    arguments = parser.parse_args()
    config = ModelConfig()
    bandwidth = copy_bandwidth()
    print(f"copying moves {1e-9 * bandwidth:.1f} GB/s, read and written")
    results = {}
    for size in arguments.sizes:
        positions = points(size, arguments.random_order)
        results[size] = measure(
            config, positions, arguments.layers, arguments.repeats, arguments.max_gib
        )
        ratios(results[size], bandwidth)
        print_rows(size, results[size])
    fitted = exponents(results) if len(results) > 1 else {}
    if fitted:
        print("\nfitted exponents: fwd ms, f+b ms, f+b MiB")
    for name, row in fitted.items():
        print(f"{name:22s}" + "".join(f"{value:9.2f}" for value in row.values()))
    stacks: dict[str, float] = {}
    if arguments.stack_size:
        positions = points(arguments.stack_size, arguments.random_order)
        stacks = time_stacks(config, positions, arguments.layers, arguments.repeats)
        print(
            f"\n{interlacer(config).num_layers} blocks, plan, forward + backward, "
            f"{arguments.stack_size} tokens"
        )
        slowest = max(stacks.values())
        for name, value in stacks.items():
            print(f"{name:22s}{value:9.1f} ms, speed over the slowest's {slowest / value:.2f}")
    print(json.dumps({
        "device": jax.devices()[0].device_kind, "copy GB/s": 1e-9 * bandwidth,
        "parts": results, "exponents": fitted, "stacks ms": stacks,
    }))  # fmt: skip


if __name__ == "__main__":
    main()
