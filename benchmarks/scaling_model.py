"""How well more accelerators would be used: a model of what is computed and what is exchanged.

Nothing is run. For D devices, with numbers that a reader replaces by their own:

Data parallelism, b windows per device and step (weak scaling: the batch grows with D):

    compute   b * window_s + rest_s
    exchange  2 (D - 1) / D * gradient / bandwidth + 2 log2(D) * latency       ring all-reduce
    gradient  4 bytes per parameter, once per step

Particle parallelism, one window's particles over D devices (strong scaling: the window stays):

    compute   window_s / D + rest_s
    exchange  3 * horizon * ((D - 1) / D * gathered / bandwidth + 2 log2(D) * collectives * latency)
    gathered  `hdvpd.dynamics.spread.exchanged_bytes`; thrice for forward, recomputed forward and
              backward, in which every all-gather is a reduce-scatter of the same size

Efficiency is compute / (compute + exchange) for the first, and window_s / (D * (compute +
exchange)) for the second: exchange hides behind nothing. Up to 8 devices talk over the first
interconnect, more over the second. Bandwidths are data-sheet figures per device and direction:
NVLink 4 of an H100, 400 Gb/s and 100 Gb/s networks; latencies are assumptions.

That a data-parallel step exchanges the gradient and that a spread rollout exchanges what the
formula says is tested against XLA's compiled programs (tests/test_parallel.py and
tests/test_spread.py). `window_s` is a measurement of yours: a step's time of
benchmarks/step_parts.py over its windows.

Run: python benchmarks/scaling_model.py [paper] --window-s 0.25 [--rest-s 0.01] [--json]
"""

import argparse
import json
import math
from typing import Any

import jax

from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import load_config
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.dynamics.spread import exchanged_bytes
from hdvpd.training.step import create_train_state

DEVICES = (8, 16, 32, 64, 128, 256, 512)
INTERCONNECTS = {
    "NVLink, then 400 Gb/s": ((450e9, 5e-6), (50e9, 10e-6)),
    "NVLink, then 100 Gb/s": ((450e9, 5e-6), (12.5e9, 20e-6)),
}
"""Bandwidth [bytes/s] and latency [s] of up to 8 devices, and of more."""
SCENE = SceneSpec(12, workspace_min=(-1.0, -1.0, -1.0), workspace_max=(1.0, 1.0, 1.0))
IN_BLOCK = 6  # collectives of a block: sums, and two parts of keys and of values


def gradient_bytes(config: Config) -> int:
    """Return the bytes of all parameters."""
    state = jax.eval_shape(lambda: create_train_state(config, SCENE)[1])
    return sum(4 * leaf.size for leaf in jax.tree.leaves(state.params))


def model(config: Config, devices: int, place: tuple, seconds: tuple, windows: int) -> dict:
    """Return seconds, bytes and efficiency of both kinds of parallelism.

    Args:
      config: of the model.
      devices: that take part.
      place: bandwidth and latency between them.
      seconds: of a window, and of what every device repeats.
      windows: of every device in data parallelism.
    """
    bandwidth, latency = place
    window_s, rest_s = seconds
    share, hops = (devices - 1) / devices, 2 * math.log2(devices)
    gradient = gradient_bytes(config)
    compute_s = windows * window_s + rest_s
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
        total_s = window_s / devices + rest_s + exchange_s
        rows["particles"] = {
            "bytes": 3 * config.train.horizon * sum(sizes.values()),
            "exchange_s": exchange_s,
            "efficiency": (window_s + rest_s) / (devices * total_s),
        }
    return rows


def main() -> None:
    """Print a table per interconnect, and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    parser.add_argument("--window-s", type=float, default=0.25, help="of one window on one device")
    parser.add_argument("--rest-s", type=float, default=0.0, help="what every device repeats")
    parser.add_argument("--windows", type=int, default=2, help="of every device and step")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args()
    config = load_config(arguments.experiment)
    seconds = arguments.window_s, arguments.rest_s
    results: dict[str, Any] = {}
    for name, (near, far) in INTERCONNECTS.items():
        if not arguments.json:
            print(
                f"{name}\n{'devices':>8s}  {'kind':10s} {'MB':>9s} {'ms':>9s} {'efficiency':>10s}"
            )
        for devices in DEVICES:
            rows = model(config, devices, near if devices <= 8 else far, seconds, arguments.windows)
            for kind, row in rows.items():
                results[f"{name}, {devices} devices, {kind}"] = row
                if not arguments.json:
                    print(
                        f"{devices:8d}  {kind:10s} {row['bytes'] / 1e6:9.2f} "
                        f"{1e3 * row['exchange_s']:9.3f} {row['efficiency']:10.1%}"
                    )
    print(json.dumps(results))


if __name__ == "__main__":
    main()
