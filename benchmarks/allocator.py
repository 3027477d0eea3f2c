"""Training steps under several ways of handing out memory, in one run.

Each is a process of its own, and they take turns: the settings cannot be taken back.

    default    glibc as it is
    main       freed memory is kept, in the main thread's arena only
    one arena  freed memory is kept, in one arena for all threads
    kept       hdvpd.basics.machine.keep_freed_memory: that, and huge pages
    settled    the same, and hdvpd.basics.machine.settle_memory: no holes, and room apart
               for what is small
    preload    another allocator, given by --preload /path/to/libjemalloc.so.2 or the like

Run: python benchmarks/allocator.py [demo] [--rounds 3] [--steps 12] [--train.remat] ...
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import time
from typing import cast

import jax
import jax.numpy as jnp
from timing import analytic_batch, peak_gib

from hdvpd.basics.machine import keep_freed_memory, settle_memory
from hdvpd.commands.flags import read_flags
from hdvpd.config.experiments import load_config
from hdvpd.training.step import create_train_state, make_train_step

_MAIN_ARENA = ((-1, -1), (-2, 64 * 2**20), (-4, 0))  # trim threshold, top pad, mapped blocks
_FORMS = {
    "default": (),
    "main": _MAIN_ARENA,
    "one arena": (*_MAIN_ARENA, (-8, 1)),
    "kept": (),
    "settled": (),
    "preload": (),
}


def measure(experiment: str, flags: list[str], steps: int, form: str) -> dict[str, float]:
    """Return the cost of a training step after compilation, and peak memory [GiB]."""
    for setting in _FORMS[form]:
        ctypes.CDLL(None).mallopt(*setting)
    if form in ("kept", "settled"):
        keep_freed_memory()
    config = load_config(experiment, read_flags(flags))
    dataset, batch = analytic_batch(config)
    batch = jax.tree.map(jnp.asarray, batch)
    graphdef, state = create_train_state(config, dataset.scene_spec(config.data))
    key = jax.random.key(0)
    train_step = cast(jax.stages.Wrapped, make_train_step(config, graphdef))
    step = train_step.lower(state, batch, key).compile()
    if form == "settled":
        settle_memory()
    seconds, usage = [], []
    for _ in range(steps + 2):  # the first two fill the arenas
        usage.append(resource.getrusage(resource.RUSAGE_SELF))
        start = time.perf_counter()
        state, metrics = step(state, batch, key)
        jax.block_until_ready(metrics)
        seconds.append(time.perf_counter() - start)
    first, last = usage[2], resource.getrusage(resource.RUSAGE_SELF)
    cpu = last.ru_utime + last.ru_stime - first.ru_utime - first.ru_stime
    return {
        "best [s]": min(seconds[2:]),
        "CPU [s]": cpu / steps,
        "page faults": (last.ru_minflt - first.ru_minflt) / steps,
        "peak [GiB]": peak_gib(),
    }


def main() -> None:
    """Print the rows of every form, and the ratios of the first to the others."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="demo")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--preload", help="shared library of another allocator")
    parser.add_argument("--forms", nargs="+", choices=_FORMS, default=list(_FORMS))
    parser.add_argument("--one", choices=_FORMS, help=argparse.SUPPRESS)
    arguments, flags = parser.parse_known_args()
    if arguments.one:
        print(json.dumps(measure(arguments.experiment, flags, arguments.steps, arguments.one)))
        return
    rows: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.rounds):
        for form in arguments.forms:
            if form == "preload" and not arguments.preload:
                continue
            preload = {"LD_PRELOAD": arguments.preload} if form == "preload" else {}
            command = [sys.executable, *sys.argv, "--one", form]
            output = subprocess.run(
                command, check=True, stdout=subprocess.PIPE, text=True, env=os.environ | preload
            ).stdout
            row = json.loads(output.splitlines()[-1])
            rows.setdefault(form, []).append(row)
            print(f"{form:10}", "  ".join(f"{k} {v:.2f}" for k, v in row.items()), flush=True)
    for name in ("best [s]", "CPU [s]"):
        first = [row[name] for row in rows[next(iter(rows))]]
        for form in list(rows)[1:]:
            ratios = [a / row[name] for a, row in zip(first, rows[form], strict=True)]
            print(f"{name:9} {next(iter(rows))} / {form:10} {min(ratios):.2f} to {max(ratios):.2f}")


if __name__ == "__main__":
    main()
