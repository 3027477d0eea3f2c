"""The training loader at the paper's size: batches per second by threads and by processes.

A batch is 16 windows of 8 frames of two cameras of 240x320. A recording of a textured scene is
imported into the native format; then a process of its own, bound to so many cores, draws batches
as training does, with one worker per core: threads, then processes (`data.workers`), in turns.
`--windows` reads so many random windows one after the other and prints resident
memory along the way, which must stay level.

Run: python benchmarks/loading.py [--cores 1 2] [--batches 40] [--windows 10000]
"""

import argparse
import os
import tempfile
import time
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from importing import RATE_HZ, in_own_process, write_robomimic

from hdvpd.basics.machine import keep_freed_memory
from hdvpd.basics.types import Batch
from hdvpd.config import DataConfig
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.loader import Loader
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window

SIZE = (240, 320)
WINDOW, BATCH = 8, 16
Workers = Literal["threads", "processes"]
TARGET, TARGET_CORES = 12.0, 16
"""Batches per second wanted, and on how many cores."""


def write(folder: Path, frames: int) -> Path:
    """Write a data set of one long episode."""
    source, options = write_robomimic(folder, SIZE, frames)
    out = folder / "native"
    import_dataset("robomimic", source, out, step_s=1 / RATE_HZ, **options)
    source.unlink()
    return out


def draw(path: Path, cores: int, workers: Workers, batches: int) -> float:
    """Return batches per second of wall-clock time."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    keep_freed_memory()  # as training does
    config = DataConfig(path=str(path), num_workers=cores, prefetch=2 * cores, workers=workers)
    dataset = Dataset(path)
    index = WindowIndex(dataset, "train", WINDOW)
    with Loader(dataset, index, config, batch_size=BATCH, seed=0) as loader:
        for _ in range(config.prefetch):
            next(loader)
        start = time.perf_counter()
        for _ in range(batches):
            touch(next(loader)[1])
        return batches / (time.perf_counter() - start)


def touch(batch: Batch) -> None:
    """Read one byte of every page of a batch, as copying it to a device would."""
    for leaf in (batch.frames.rgb, batch.frames.depth_m):
        np.asarray(leaf).reshape(-1).view(np.uint8)[::4096].sum()


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
        print(f"\nbatches/s  {'workers':>7} {'threads':>8} {'processes':>10} {'ratio':>6}")
        for cores in arguments.cores:
            best = dict.fromkeys(get_args(Workers), 0.0)
            for _ in range(arguments.repeats):
                for kind, rate in best.items():
                    drawn = in_own_process(draw, path, cores, kind, arguments.batches)
                    best[kind] = max(rate, drawn)
            threads, processes = best["threads"], best["processes"]
            print(f"{cores:18d} {threads:8.2f} {processes:10.2f} {processes / threads:6.2f}")
        print(f"wanted per core: {TARGET / TARGET_CORES:.2f}")
        if arguments.windows:
            for count, resident in in_own_process(read_many, path, arguments.windows):
                print(f"{count:6d} windows read: {resident:5.0f} MiB resident")


if __name__ == "__main__":
    main()
