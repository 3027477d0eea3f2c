"""A training step of several clones of the project, a few steps of each in turn, in one run.

A machine's hours can differ by more than what a change is worth. So every clone has a process, all
are made ready first, and then one goes on for a few steps while the others wait. A process that has
compiled its programs is slower than one that has loaded them, so all load what a first start of
each clone has kept on disk. Ratios are to the first clone, round by round. With --one-core a single
window is trained on one core: what devices cost each other is then left out.

Run: python benchmarks/in_turn.py OLD . [--experiment demo] [--data data/demo] [--rounds 12]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import jax

from hdvpd.basics.machine import keep_freed_memory, settle_memory
from hdvpd.commands.flags import read_flags
from hdvpd.config.experiments import load_config
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window, stack_windows
from hdvpd.kernels.kept_programs import keep_programs
from hdvpd.training.parallel import make_layout, offer_cores
from hdvpd.training.step import create_train_state, make_train_step

# Of the project only what older clones have, too: each imports its own.
_ALONE = ["--train.batch-size", "1", "--train.num-devices", "1"]


def answer(experiment: str, data: Path, steps: int, flags: list[str]) -> None:
    """Print the times of a few steps [ms] for every line that comes in."""
    config = load_config(experiment, read_flags(flags))
    keep_programs()
    keep_freed_memory()
    offer_cores(config.train)
    dataset, length = Dataset(data), config.train.horizon + 2
    windows = WindowIndex(dataset, "train", length).sample(0, 0, config.train.batch_size)
    batch = stack_windows([read_window(dataset, *w, length, config.data) for w in windows])
    graphdef, state = create_train_state(config, dataset.scene_spec(config.data))
    step, layout = make_train_step(config, graphdef), make_layout(config.train)
    placed = layout.place_batch(batch), layout.place_everywhere(jax.random.key(0))
    state = layout.place_state(state)

    def timed() -> float:
        nonlocal state
        start = time.perf_counter()
        state, metrics = step(state, *placed)
        jax.block_until_ready((state, metrics))
        return 1e3 * (time.perf_counter() - start)

    for _ in range(3):
        timed()
    settle_memory()
    print("ready", flush=True)
    for _ in sys.stdin:
        timed()  # the caches are the others'
        print(*(f"{timed():.2f}" for _ in range(steps)), flush=True)


def main() -> None:
    """Print a line for each clone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("code", nargs="*", type=Path, help="folders; the first is compared with")
    parser.add_argument("--experiment", default="demo")
    parser.add_argument("--data", type=Path, default=Path("data/demo"))
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=7, help="of a round")
    parser.add_argument("--one-core", action="store_true")
    arguments, flags = parser.parse_known_args()
    if not arguments.code:
        return answer(arguments.experiment, arguments.data, arguments.steps, flags)
    options = ["--experiment", arguments.experiment, "--data", str(arguments.data.resolve())]
    options += ["--steps", str(arguments.steps), *flags]
    if arguments.one_core:
        core = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {core})
        options += _ALONE
    for code in arguments.code:
        _start(code, options).communicate()
    running = [_start(code, options) for code in arguments.code]
    rounds: list[list[list[float]]] = [[] for _ in running]
    for _ in range(arguments.rounds):
        for process, times in zip(running, rounds, strict=True):
            assert process.stdin is not None
            print(file=process.stdin, flush=True)
            times.append([float(x) for x in _line(process).split()])
    for process in running:
        process.communicate()
    print("| clone | best [ms] | median [ms] | of the first's best, median of rounds |")
    print("|---|---|---|---|")
    for code, times in zip(arguments.code, rounds, strict=True):
        all_times = [x for some in times for x in some]
        ratio = statistics.median(
            min(x) / min(first) for x, first in zip(times, rounds[0], strict=True)
        )
        print(
            f"| {code} | {min(all_times):.1f} | {statistics.median(all_times):.1f} | {ratio:.3f} |"
        )


def _start(code: Path, options: list[str]) -> subprocess.Popen[str]:
    """Return a process of a clone that is ready."""
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).resolve()), *options],
        env=os.environ | {"PYTHONPATH": str(code.resolve())}, text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    if _line(process) != "ready":
        raise SystemExit(f"{code} trains no step; its message is above.")
    return process


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


if __name__ == "__main__":
    main()
