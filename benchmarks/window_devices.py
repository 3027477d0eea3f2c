"""A training step of several windows: on one CPU device, and with a device for each window.

The same batch with all windows on one device at once, with one after another (`train.accumulate`),
and with each on a device of its own (`train.num_devices`), which share the same cores. Then what
runs that need nothing of each other, as those of `hdvpd compare`, could do: a process for each
window, bound to a core of its own. Every form has processes of its own, so that peak memory is its
own; forms in turn, twice, and the best step of each counts: seconds per window, on the clock and of
the processor. `paper` predicts one step.

Run: python benchmarks/window_devices.py [paper] [--devices 2] [--data DIR] [--repeats 3] ...
"""

import argparse
import concurrent.futures
import json
import multiprocessing
import os
import time

import jax
from floor import read_batch
from timing import peak_gib

from hdvpd.basics.machine import keep_freed_memory, usable_cores
from hdvpd.commands.flags import read_flags
from hdvpd.config.experiments import load_config
from hdvpd.kernels.kept_programs import keep_programs
from hdvpd.training.parallel import make_layout, offer_cores
from hdvpd.training.step import create_train_state, make_train_step

SHORTER = {"paper": ["--train.horizon", "1"]}
"""What is changed of an experiment so that its training step fits this machine."""


def measure(
    experiment: str, data: str | None, repeats: int, flags: list[str], cores: list[int]
) -> tuple[float, float, float]:
    """Return seconds of a step on the clock and of the processor, and the peak memory [GiB]."""
    os.sched_setaffinity(0, cores)
    config = load_config(experiment, read_flags([*SHORTER.get(experiment, []), *flags]))
    keep_freed_memory()  # as `hdvpd train` does
    keep_programs()
    offer_cores(config.train)
    dataset, batch = read_batch(config, data)
    layout = make_layout(config.train)
    graphdef, state = create_train_state(config, dataset.scene_spec(config.data))
    step, state = make_train_step(config, graphdef), layout.place_state(state)
    placed = layout.place_batch(batch), layout.place_everywhere(jax.random.key(0))
    best = float("inf"), float("inf")
    for repeat in range(repeats + 1):
        wall, processor = time.perf_counter(), time.process_time()
        state, metrics = step(state, *placed)
        jax.block_until_ready((state, metrics))
        if repeat:  # the first one compiles
            best = min(best, (time.perf_counter() - wall, time.process_time() - processor))
    return *best, peak_gib()


def in_own_processes(
    experiment: str, data: str | None, repeats: int, flags: list[str], shares: list[list[int]]
) -> tuple[float, float, float]:
    """Measure in a process per share of the cores at the same time: the slowest, and sums."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(len(shares), mp_context=context) as pool:
        started = [
            pool.submit(measure, experiment, data, repeats, flags, cores) for cores in shares
        ]
        walls, processors, peaks = zip(*(one.result() for one in started), strict=True)
    return max(walls), sum(processors), sum(peaks)


def main() -> None:
    """Print a row per form and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    parser.add_argument("--devices", type=int, default=usable_cores())
    parser.add_argument("--data", help="data set to take windows of, instead of the analytic one")
    parser.add_argument("--repeats", type=int, default=3)
    arguments, flags = parser.parse_known_args()
    count, cores = arguments.devices, sorted(os.sched_getaffinity(0))
    batch = ["--train.batch-size", str(count), "--train.num-devices", "1", *flags]
    forms = {
        "one device": (batch, [cores]),
        "one device, one after another": ([*batch, "--train.accumulate", str(count)], [cores]),
        "a device each": ([*batch, "--train.num-devices", str(count)], [cores]),
        "a process each": (
            [*batch, "--train.batch-size", "1"],
            [[cores[i % len(cores)]] for i in range(count)],
        ),
    }
    best: dict[str, tuple[float, float, float]] = {}
    for name in [*forms, *forms]:
        given = arguments.experiment, arguments.data, arguments.repeats
        found = in_own_processes(*given, *forms[name])
        best[name] = min(best.get(name, found), found)
    first = best["one device"][0]
    rows = [
        {
            "windows": name,
            "seconds per window": round(wall / count, 3),
            "of the processor": round(processor / count, 3),
            "against one device": round(wall / first, 3),
            "peak memory [GiB]": round(peak, 2),
        }
        for name, (wall, processor, peak) in best.items()
    ]
    for row in rows:
        print("  ".join(f"{key}: {value}" for key, value in row.items()))
    print(json.dumps({"experiment": arguments.experiment, "flags": flags, "rows": rows}))


if __name__ == "__main__":
    main()
