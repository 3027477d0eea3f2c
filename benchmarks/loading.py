"""The training loader at the paper's size: batches per second, their scaling, and memory.

A batch is 16 windows of 8 frames of two cameras of 240x320. A recording of a textured scene is
imported into the native format; then a process of its own, bound to so many cores, draws batches
as training does. `--windows` reads so many random windows one after the other and prints resident
memory along the way, which must stay level.

Run: python benchmarks/loading.py [--cores 1 2] [--batches 40] [--windows 10000]
"""

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from importing import RATE_HZ, in_own_process, write_robomimic

from hdvpd.config import DataConfig
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.loader import Loader
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window
from hdvpd.kernels.memory import keep_freed_memory

SIZE = (240, 320)
WINDOW, BATCH = 8, 16
TARGET, TARGET_CORES = 12.0, 16
"""Batches per second wanted, and on how many cores."""


def write(folder: Path, frames: int) -> Path:
    """Write a data set of one long episode."""
    source, options = write_robomimic(folder, SIZE, frames)
    out = folder / "native"
    import_dataset("robomimic", source, out, step_s=1 / RATE_HZ, **options)
    source.unlink()
    return out


def draw(path: Path, cores: int, threads: int, batches: int) -> tuple[float, float]:
    """Return batches per second of wall-clock and of CPU time (all threads together)."""
    os.sched_setaffinity(0, range(cores))
    keep_freed_memory()  # as training does
    config = DataConfig(path=str(path), num_workers=threads, prefetch=2 * threads)
    dataset = Dataset(path)
    index = WindowIndex(dataset, "train", WINDOW)
    with Loader(dataset, index, config, batch_size=BATCH, seed=0) as loader:
        for _ in range(config.prefetch):
            next(loader)
        start = time.perf_counter(), time.process_time()
        for _ in range(batches):
            next(loader)
        wall, cpu = time.perf_counter() - start[0], time.process_time() - start[1]
    return batches / wall, batches / cpu


def read_many(path: Path, windows: int) -> list[tuple[int, float]]:
    """Read random windows; return resident memory [MiB] after so many of them."""
    config = DataConfig(path=str(path))
    dataset = Dataset(path)
    index = WindowIndex(dataset, "train", WINDOW)
    found = []
    for k, position in enumerate(np.random.default_rng(0).integers(len(index), size=windows), 1):
        read_window(dataset, *index[int(position)], WINDOW, config)
        if k % max(windows // 10, 1) == 0:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            found.append((k, pages * os.sysconf("SC_PAGE_SIZE") / 2**20))
    return found


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--frames", type=int, default=400)
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--windows", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = in_own_process(write, Path(folder), arguments.frames)
        print(
            f"\n{'cores':>5} {'threads':>7} {'batches/s':>10} {'per core':>9} {'of CPU time':>12}"
        )
        for cores in arguments.cores:
            runs = [
                in_own_process(draw, path, cores, cores, arguments.batches)
                for _ in range(arguments.repeats)
            ]
            wall, cpu = max(run[0] for run in runs), max(run[1] for run in runs)
            print(f"{cores:5d} {cores:7d} {wall:10.2f} {wall / cores:9.2f} {cpu:12.2f}")
        print(f"wanted per core: {TARGET / TARGET_CORES:.2f}")
        if arguments.windows:
            for count, resident in in_own_process(read_many, path, arguments.windows):
                print(f"{count:6d} windows read: {resident:5.0f} MiB resident")


if __name__ == "__main__":
    main()
