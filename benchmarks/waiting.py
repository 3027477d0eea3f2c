"""Processor time of a neighbour search and of other work behind it, by how OpenMP's threads wait.

Threads that spin behind a parallel loop take the core that the rest of the program would run on.
Each row is a process of its own on all cores: a search for 4 neighbours of 4,096 points, then 4 ms
of work in one thread, repeated; processor time of all threads.

Run: python benchmarks/waiting.py [--rounds 100] [--repeats 2]
"""

import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

# As libgomp does by itself, and as `hdvpd.kernels` asks for.
POLICIES = {"spinning": "", "passive": "passive"}


def work(seconds: float) -> None:
    """Keep one thread busy."""
    start = time.thread_time()
    while time.thread_time() - start < seconds:
        pass


def measure(rounds: int) -> dict[str, float]:
    """Return milliseconds of a round by the clock and of the processor, in this process."""
    from pykdtree.kdtree import KDTree

    points = np.random.default_rng(0).uniform(size=(4096, 3)).astype(np.float32)
    tree = KDTree(points, leafsize=16)
    tree.query(points, 4)
    clock, processor = time.perf_counter(), time.process_time()
    for _ in range(rounds):
        tree.query(points, 4)
        work(0.004)
    ends = time.perf_counter() - clock, time.process_time() - processor
    return {"clock": 1e3 * ends[0] / rounds, "processor": 1e3 * ends[1] / rounds}


def main() -> None:
    """Print one row per process and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--here", action="store_true", help="measure in this process")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure(given.rounds)))
        return
    rows = []
    for name in [*POLICIES] * given.repeats:
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        if POLICIES[name]:
            environment["OMP_WAIT_POLICY"] = POLICIES[name]
        command = [sys.executable, __file__, "--here", "--rounds", str(given.rounds)]
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        rows.append({"threads": name, **json.loads(done.stdout)})
        print(
            f"{name:9s} {rows[-1]['clock']:7.1f} ms by the clock "
            f"{rows[-1]['processor']:7.1f} ms of processor time",
            flush=True,
        )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
