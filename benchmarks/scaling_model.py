"""How well more accelerators would be used: a model of what is computed and what is exchanged.

Nothing is run here. A step's time on one device comes from a measurement: the step, and the share
of it that each of its stages has (`step_parts.py --out FILE`), or from numbers of the reader's
(`--seconds`). Which stage is divided by what:

               windows spread        particles spread
    encode     over the devices      repeated by all
    dynamics   over the devices      over the devices
    render     over the devices      repeated by all
    update     repeated by all       repeated by all

For D devices, seconds e, d, r of a window's stages and u of the update of the parameters:

Windows, b per device and step (weak scaling: the batch grows with D):

    compute   b (e + d + r) + u
    exchange  2 (D - 1) / D * gradient / bandwidth + 2 log2(D) * latency       ring all-reduce
    gradient  4 bytes per parameter, once per step

Particles, of one window (strong scaling: the window stays):

    compute   e + d / D + r + u
    exchange  3 * horizon * ((D - 1) / D * gathered / bandwidth + 2 log2(D) * collectives * latency)
              and the gradient's, as above
    gathered  `hdvpd.dynamics.spread.exchanged_bytes`; thrice for forward, recomputed forward and
              backward, in which keys and values are a reduce-scatter of the same size (the lists of
              neighbours, less than a hundredth of them, are exchanged twice and counted thrice)

Efficiency is compute / (compute + exchange) for the first, and (e + d + r + u) / (D (compute +
exchange)) for the second: exchange hides behind nothing. Up to 8 devices talk over the first
interconnect, more over the second. Bandwidths are data-sheet figures per device and direction:
NVLink 4 of an H100, 400 Gb/s and 100 Gb/s networks; latencies are assumptions.

An accelerator that was not measured is taken to be as many times faster than the measured device,
in every stage alike, as its data sheet allows: the smaller one of the ratios of its operations and
bytes per second (those of `gpu_model.py`) to what was measured of the device in the same run.

That a data-parallel step exchanges the gradient and that a spread rollout and its gradient exchange
what the formula says is tested against XLA's compiled programs (tests/test_parallel.py and
tests/test_spread.py).

Run: python benchmarks/scaling_model.py [paper] (--parts FILE | --seconds E D R U) [--windows 2]
     [--faster X] [--json]
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import jax
from gpu_model import BANDWIDTH, FLOPS

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
STAGES = ("encode", "dynamics", "render", "update")
H100 = "H100, by its data sheet"


def gradient_bytes(config: Config) -> int:
    """Return the bytes of all parameters."""
    state = jax.eval_shape(lambda: create_train_state(config, SCENE)[1])
    return sum(4 * leaf.size for leaf in jax.tree.leaves(state.params))


def stages_of(measured: dict[str, Any]) -> tuple[float, ...]:
    """Return the seconds of a window's stages and of the update, which sum up to the step's.

    Args:
      measured: written by `step_parts.py`. Its stages were timed alone: they are taken for shares.
    """
    alone = [measured["stages"][name] for name in STAGES]
    scale, windows = measured["training step [s]"] / sum(alone), measured["windows"]
    return (*(scale * seconds / windows for seconds in alone[:3]), scale * alone[3])


def model(
    config: Config,
    devices: int,
    place: tuple[float, float],
    stages: tuple[float, ...],
    windows: int,
    gradient: int,
) -> dict[str, dict[str, float]]:
    """Return seconds, bytes and efficiency of both kinds of parallelism.

    Args:
      config: of the model.
      devices: that take part.
      place: bandwidth and latency between them.
      stages: seconds of encoding, dynamics, rendering and update, of one window on one device.
      windows: of every device in data parallelism.
      gradient: its bytes.
    """
    bandwidth, latency = place
    encode_s, dynamics_s, render_s, update_s = stages
    share, hops = (devices - 1) / devices, 2 * math.log2(devices)
    compute_s = windows * (encode_s + dynamics_s + render_s) + update_s
    reduce_s = 2 * share * gradient / bandwidth + hops * latency
    rows = {
        "windows": {
            "bytes": gradient,
            "exchange_s": reduce_s,
            "efficiency": compute_s / (compute_s + reduce_s),
        }
    }
    dynamics = config.model.dynamics
    if isinstance(dynamics, InterlacerSettings):
        particles = -(-config.model.num_particles // devices) * devices
        sizes = exchanged_bytes(particles, dynamics, config.model.latent_dim, devices)
        collectives = IN_BLOCK * dynamics.num_layers
        per_step = share * sizes["all-gather"] + 2 * share * sizes["all-reduce"]
        exchange_s = per_step / bandwidth + hops * collectives * latency
        exchange_s = 3 * config.train.horizon * exchange_s + reduce_s
        total_s = encode_s + dynamics_s / devices + render_s + update_s + exchange_s
        rows["particles"] = {
            "bytes": 3 * config.train.horizon * sum(sizes.values()) + gradient,
            "exchange_s": exchange_s,
            "efficiency": sum(stages) / (devices * total_s),
        }
    return rows


def tables(
    config: Config, stages: tuple[float, ...], machines: dict[str, float], windows: int
) -> dict[str, dict[str, float]]:
    """Return every row by its name.

    Args:
      config: of the model.
      stages: as of `model`, on the measured device.
      machines: how many times faster each kind of device is.
      windows: of every device in data parallelism.
    """
    gradient = gradient_bytes(config)
    found = {}
    for machine, faster in machines.items():
        seconds = tuple(stage / faster for stage in stages)
        for name, (near, far) in INTERCONNECTS.items():
            for devices in DEVICES:
                place = near if devices <= 8 else far
                rows = model(config, devices, place, seconds, windows, gradient)
                for kind, row in rows.items():
                    found[f"{machine}; {name}; {devices:3d} devices; {kind} spread"] = row
    return found


def main() -> None:
    """Print the stages and a table, and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--parts", type=Path, help="what step_parts.py --out has written")
    source.add_argument(
        "--seconds", type=float, nargs=4, metavar=tuple(name.upper() for name in STAGES),
        help="of a window's stages and of the update, on one device",
    )  # fmt: skip
    parser.add_argument("--faster", type=float, help="devices so many times as fast too")
    parser.add_argument("--windows", type=int, default=2, help="of every device and step")
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args()
    machines = {"as measured": 1.0}
    if arguments.faster:
        machines[f"{arguments.faster:g} times as fast"] = arguments.faster
    if arguments.seconds:
        stages = tuple(arguments.seconds)
    else:
        measured = json.loads(arguments.parts.read_text())
        stages = stages_of(measured)
        rates = FLOPS / (1e9 * measured["GFLOP/s"]), BANDWIDTH / (1e9 * measured["GB/s"])
        machines[H100] = min(rates)
    results = tables(load_config(arguments.experiment), stages, machines, arguments.windows)
    if not arguments.json:
        for machine, faster in machines.items():
            each = (f"{name} {s / faster:.3g}" for name, s in zip(STAGES, stages, strict=True))
            print(f"{machine} (x {faster:.3g}): seconds of {', '.join(each)}")
        print(f"{'MB':>9s} {'ms':>9s} {'efficiency':>10s}")
        for name, row in results.items():
            print(
                f"{row['bytes'] / 1e6:9.2f} {1e3 * row['exchange_s']:9.3f} "
                f"{row['efficiency']:10.1%}  {name}"
            )
    about = {"seconds": dict(zip(STAGES, stages, strict=True)), "faster": machines}
    print(json.dumps(about | {"rows": results}))


if __name__ == "__main__":
    main()
