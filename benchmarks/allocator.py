"""Training steps with glibc's default handling of freed memory and with ours, in one run.

Both are processes of their own, which take turns: the setting cannot be taken back.

Run: python benchmarks/allocator.py [demo] [--rounds 2] [--steps 20] [--train.remat] ...
"""

import argparse
import json
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
from timing import analytic_batch, peak_gib

from hdvpd.commands.flags import read_flags
from hdvpd.config.experiments import load_config
from hdvpd.kernels.memory import keep_freed_memory
from hdvpd.training.step import create_train_state, make_train_step


def measure(experiment: str, flags: list[str], steps: int, keep: bool) -> dict[str, float]:
    """Return seconds per training step after compilation, and peak memory [GiB]."""
    if keep:
        keep_freed_memory()
    config = load_config(experiment, read_flags(flags))
    dataset, batch = analytic_batch(config)
    batch = jax.tree.map(jnp.asarray, batch)
    graphdef, state = create_train_state(config, dataset.scene_spec(config.data))
    step, key = make_train_step(config, graphdef), jax.random.key(0)
    state, metrics = step(state, batch, key)
    jax.block_until_ready(metrics)
    start = time.perf_counter()
    for _ in range(steps):
        state, metrics = step(state, batch, key)
    jax.block_until_ready(metrics)
    return {"seconds": (time.perf_counter() - start) / steps, "peak_gib": peak_gib()}


def main() -> None:
    """Print both and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="demo")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--one", choices=("default", "kept"), help=argparse.SUPPRESS)
    arguments, flags = parser.parse_known_args()
    if arguments.one:
        keep = arguments.one == "kept"
        print(json.dumps(measure(arguments.experiment, flags, arguments.steps, keep)))
        return
    best: dict[str, float] = {}
    for _ in range(arguments.rounds):
        for one in ("default", "kept"):
            command = [sys.executable, *sys.argv, "--one", one]
            output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            result = json.loads(output.splitlines()[-1])
            best[one] = min(best.get(one, float("inf")), result["seconds"])
            print(f"{one:8} {result['seconds']:7.3f} s/step  {result['peak_gib']:6.2f} GiB peak")
    print(f"ratio default / kept: {best['default'] / best['kept']:.2f}")


if __name__ == "__main__":
    main()
