"""How well more accelerators would be used: a model of what is computed and what is exchanged.

The time of each part of a training step on one device is measured (`--measure`), or given. From
it, for D devices, with numbers that a reader replaces by their own:

Data parallelism, b windows per device and step (weak scaling: the batch grows with D):

    compute   b * (encoder_s + rollout_s + rendering_s) + optimizer_s
    exchange  2 (D - 1) / D * gradient / bandwidth + 2 log2(D) * latency       ring all-reduce
    gradient  4 bytes per parameter, once per step

Particle parallelism, one window's particles over D devices (strong scaling: the window stays); the
rollout alone is spread, and every device encodes and renders the whole:

    compute   rollout_s / D + encoder_s + rendering_s + optimizer_s
    exchange  3 * horizon * ((D - 1) / D * gathered / bandwidth + 2 log2(D) * collectives * latency)
    gathered  `hdvpd.dynamics.spread.exchanged_bytes`; thrice for forward, recomputed forward and
              backward, in which every all-gather is a reduce-scatter of the same size

Efficiency is compute / (compute + exchange) for the first, and one device's compute / (D * (compute
+ exchange)) for the second: exchange hides behind nothing. Up to 8 devices talk over the first
interconnect, more over the second. Bandwidths are data-sheet figures per device and direction:
NVLink 4 of an H100, 400 Gb/s and 100 Gb/s networks; latencies are assumptions.

That a data-parallel step exchanges the gradient and that a spread rollout exchanges what the
formula says is tested against XLA's compiled programs (tests/test_parallel.py and
tests/test_spread.py). `--faster` divides the times, for a guess at a device that is not there.

Run: python benchmarks/scaling_model.py [paper] --measure [--faster 200]
     python benchmarks/scaling_model.py [paper] --parts 1.2 3.4 0.5 0.01
"""

import argparse
import dataclasses
import json
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from timing import analytic_batch

from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import load_config
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.dynamics.rollout import rollout
from hdvpd.dynamics.spread import exchanged_bytes
from hdvpd.kernels.memory import keep_freed_memory
from hdvpd.model import sample_rays
from hdvpd.training.optimizer import create_optimizer
from hdvpd.training.step import create_train_state, make_train_step, merge_model

DEVICES = (8, 16, 32, 64, 128, 256, 512)
INTERCONNECTS = {
    "NVLink, then 400 Gb/s": ((450e9, 5e-6), (50e9, 10e-6)),
    "NVLink, then 100 Gb/s": ((450e9, 5e-6), (12.5e9, 20e-6)),
}
"""Bandwidth [bytes/s] and latency [s] of up to 8 devices, and of more."""
SCENE = SceneSpec(12, workspace_min=(-1.0, -1.0, -1.0), workspace_max=(1.0, 1.0, 1.0))
LONG_S = 5.0
"""What takes longer is measured once."""
IN_BLOCK = 6  # collectives of a block: sums, and two parts of keys and of values


@dataclasses.dataclass(frozen=True)
class Parts:
    """Seconds of one window on one device, forward and backward; of the optimiser, of a step.

    Attributes:
      encoder: images to particles: the U-Net, unprojection, subsampling.
      rollout: the dynamics, all predicted steps.
      rendering: the rays of all predicted steps.
      optimizer: the update of all parameters.
    """

    encoder: float
    rollout: float
    rendering: float
    optimizer: float

    @property
    def window(self) -> float:
        """What a window takes."""
        return self.encoder + self.rollout + self.rendering


def measure(config: Config) -> tuple[Parts, float]:
    """Time every part on jax's first device, and the whole training step of one window [s]."""
    train = dataclasses.replace(config.train, batch_size=1, num_devices=1, accumulate=1)
    config = dataclasses.replace(config, train=train)
    dataset, batch = analytic_batch(config)
    batch, key = jax.tree.map(jnp.asarray, batch), jax.random.key(0)
    graphdef, state = create_train_state(config, dataset.scene_spec(config.data))
    window = jax.tree.map(lambda x: x[0], batch)
    observed = jax.tree.map(lambda x: x[:2], window.frames)
    future = jax.tree.map(lambda x: x[:, 2:], batch.frames)
    last = jax.tree.map(lambda x: x[:, 1:2], batch.frames)

    def encode(params: Any) -> Any:
        return jax.vmap(merge_model(graphdef, params).encode)(observed, jax.random.split(key))

    def roll_out(params: Any, clouds: Any) -> Any:
        previous, current = (jax.tree.map(lambda x, i=i: x[i], clouds) for i in range(2))
        step = merge_model(graphdef, params).dynamics
        return rollout(step, previous, current, window.robot, key, remat=train.remat, unroll=True)

    def render(params: Any, clouds: Any) -> Any:
        model = merge_model(graphdef, params)
        targets = model.white_targets(future), model.white_targets(last)
        rays, _ = sample_rays(future, *targets, train.num_rays, train.moving_ray_weight, key[None])
        rays = jax.tree.map(lambda x: x[0], rays)
        return model.renderer(clouds, rays, jax.random.split(key, train.horizon)).rgb

    optimizer = create_optimizer(train)

    def update(params: Any, opt_state: Any) -> Any:
        updates, opt_state = optimizer.update(params, opt_state, params)
        return optax.apply_updates(params, updates), opt_state

    params, opt_state = state.params, state.opt_state
    clouds = jax.jit(encode)(params)
    predicted = jax.jit(roll_out)(params, clouds)
    found = [
        seconds(gradient_of(encode), params),
        seconds(gradient_of(roll_out), params, clouds),
        seconds(gradient_of(render), params, predicted),
        seconds(update, params, opt_state),
    ]
    whole = seconds(make_train_step(config, graphdef), state, batch, key)
    return Parts(*found), whole


def gradient_of(part: Callable[..., Any]) -> Callable[..., Any]:
    """Return the gradient of the sum of what a part makes, to everything that it is given."""

    def total(arguments: Any) -> jax.Array:
        made = jax.tree.leaves(part(*arguments))
        return sum((x.sum() for x in made if x.dtype == jnp.float32), jnp.zeros(()))

    return lambda *arguments: jax.grad(total, allow_int=True)(arguments)


def seconds(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the time of a call, compiled before: the quickest of three, of one if it is long."""
    compiled, times = jax.jit(function).lower(*arguments).compile(), []
    while len(times) < 3 and sum(times) < LONG_S:
        begin = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        times.append(time.perf_counter() - begin)
    return min(times)


def model(config: Config, devices: int, place: tuple, parts: Parts, windows: int) -> dict:
    """Return seconds, bytes and efficiency of both kinds of parallelism.

    Args:
      config: of the model.
      devices: that take part.
      place: bandwidth and latency between them.
      parts: seconds of a window's parts on one device.
      windows: of every device in data parallelism.
    """
    bandwidth, latency = place
    share, hops = (devices - 1) / devices, 2 * math.log2(devices)
    gradient = gradient_bytes(config)
    compute_s = windows * parts.window + parts.optimizer
    exchange_s = 2 * share * gradient / bandwidth + hops * latency
    rows: dict[str, Any] = {
        "windows": {
            "bytes": gradient,
            "exchange_s": exchange_s,
            "efficiency": compute_s / (compute_s + exchange_s),
        }
    }
    dynamics = config.model.dynamics
    if isinstance(dynamics, InterlacerSettings):
        particles = -(-config.model.num_particles // devices) * devices
        sizes = exchanged_bytes(particles, dynamics, config.model.latent_dim, devices)
        collectives = IN_BLOCK * dynamics.num_layers
        per_step = share * sizes["all-gather"] + 2 * share * sizes["all-reduce"]
        exchange_s = per_step / bandwidth + hops * collectives * latency
        exchange_s *= 3 * config.train.horizon
        alone_s = parts.window + parts.optimizer
        spread_s = alone_s - parts.rollout + parts.rollout / devices + exchange_s
        rows["particles"] = {
            "bytes": 3 * config.train.horizon * sum(sizes.values()),
            "exchange_s": exchange_s,
            "efficiency": alone_s / (devices * spread_s),
        }
    return rows


def known_parts(arguments: argparse.Namespace, config: Config) -> Parts:
    """Measure the parts or take those given; print them."""
    if arguments.measure:
        keep_freed_memory()  # as `hdvpd train` does
        parts, whole = measure(config)
        print(f"measured on {jax.devices()[0].device_kind}, one window [s]")
        for name, value in dataclasses.asdict(parts).items():
            print(f"  {name:12s} {value:9.4f}")
        print(f"  {'whole step':12s} {whole:9.4f}")
    else:
        parts = Parts(*arguments.parts)
    return Parts(*(value / arguments.faster for value in dataclasses.astuple(parts)))


def main() -> None:
    """Print a table per interconnect, and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    given = parser.add_mutually_exclusive_group(required=True)
    given.add_argument("--measure", action="store_true", help="time the parts on this device")
    given.add_argument(
        "--parts", type=float, nargs=4, help="seconds of encoder, rollout, rendering, optimizer",
        metavar=("ENCODER", "ROLLOUT", "RENDERING", "OPTIMIZER"),
    )  # fmt: skip
    parser.add_argument("--faster", type=float, default=1.0, help="divide these times by this")
    parser.add_argument("--windows", type=int, default=2, help="of every device and step")
    arguments = parser.parse_args()
    config = load_config(arguments.experiment)
    parts = known_parts(arguments, config)
    results: dict[str, Any] = {"parts": dataclasses.asdict(parts)}
    for name, (near, far) in INTERCONNECTS.items():
        print(f"{name}\n{'devices':>8s}  {'kind':10s} {'MB':>9s} {'ms':>9s} {'efficiency':>10s}")
        for devices in DEVICES:
            rows = model(config, devices, near if devices <= 8 else far, parts, arguments.windows)
            for kind, row in rows.items():
                results[f"{name}, {devices} devices, {kind}"] = row
                print(
                    f"{devices:8d}  {kind:10s} {row['bytes'] / 1e6:9.2f} "
                    f"{1e3 * row['exchange_s']:9.3f} {row['efficiency']:10.1%}"
                )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
