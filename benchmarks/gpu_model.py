"""What neighbour search and walk attention should cost on a GPU, and with --measure what they do.

For each form the operations and the bytes that it moves are counted from its shapes; a form takes
at least the longer of operations / rate and bytes / bandwidth, at the figures of NVIDIA's data
sheet of the H100 SXM: 67 TFLOP/s in float32, 3.35 TB/s. Launches, atomics, the second-level cache
(50 MB) and imperfect use are left out, so real times lie above. Tokens are two particle clouds and
the robot's points, as in the dynamics.

Search, per query of N tokens, k neighbours:

    dense   all distances in blocks, then the k smallest: written once, read once by the selection
            and once more to find the places.
    boxes   tokens cut into boxes of 32 by sorts that cut into four (four radix passes over key and
            row each), then 16 boxes read twice per group of 32 queries and neighbour
            (`hdvpd.kernels.neighbors_xla`, which runs on accelerators)

Walk attention, e entries per token, width c, one head, forward:

    plain   gathers keys and values as [t, e, c]: each read, written, and read again
    pallas  reads each row where it is needed and writes only the result

With --measure each form also runs on this machine's device, on points of two wavy surfaces, all in
one run, all distances of few tokens only.

Run: python benchmarks/gpu_model.py [paper] [--particles 32768 131072 1000000] [--json | --measure]
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from timing import all_distances, best_of, surface

from hdvpd.attention.graphs import neighbor_graph
from hdvpd.config import Kernels
from hdvpd.config.experiments import load_config
from hdvpd.kernels.neighbors import Neighbors, knn
from hdvpd.kernels.walk_attention import attend_along_walks
from hdvpd.kernels.walks import exact_walks

FLOPS, BANDWIDTH = 67e12, 3.35e12
ENTRIES = 40  # of 27 walks over 3 hops: 1 + 3 + 9 + 27
FLOAT = INDEX = 4


def dense_search(tokens: int, neighbors: int) -> tuple[float, float]:
    """Return operations and bytes of all distances in blocks."""
    squared = tokens * tokens
    return 8.0 * squared, FLOAT * 3.0 * squared + tokens * neighbors * (FLOAT + INDEX)


def box_search(
    tokens: int, neighbors: int, size: int = 32, looked: int = 16
) -> tuple[float, float]:
    """Return operations and bytes of a search in boxes."""
    turns = neighbors + 1  # the token itself is found too
    sort = math.log2(tokens / size) / 2 * 4 * 2 * (FLOAT + INDEX) * tokens
    candidates = looked * size
    read = tokens / size * candidates * (3 * FLOAT + INDEX) * 2 * turns
    # The distance and its comparison, anew for the value and the row of every neighbour.
    operations = tokens * candidates * 12.0 * 2 * turns
    return operations, sort + read + tokens * neighbors * (FLOAT + INDEX)


def walk_attention(tokens: int, width: int, *, gathered: bool) -> tuple[float, float]:
    """Return operations and bytes of attention along walks."""
    operations = tokens * ENTRIES * (2.0 * width + 2 * 4 + 2 * width)
    rows = 2 * tokens * ENTRIES * width * FLOAT
    moved = rows * (3 if gathered else 1)
    walks = tokens * ENTRIES * (INDEX + 4 * FLOAT)
    return operations, moved + walks + 2 * tokens * width * FLOAT


def seconds(operations: float, moved: float) -> float:
    """Return the least time of a form [s]."""
    return max(operations / FLOPS, moved / BANDWIDTH)


def table(experiment: str, particles: list[int]) -> list[dict[str, float | str]]:
    """Return a row per form and number of particles."""
    config = load_config(experiment)
    width, robot = config.model.latent_dim, 1000  # few beside the particles
    rows = []
    for count in particles:
        tokens = 2 * count + robot
        forms = {
            "search, dense": dense_search(tokens, 3),
            "search, boxes": box_search(tokens, 3),
            "walks, plain": walk_attention(tokens, width, gathered=True),
            "walks, pallas": walk_attention(tokens, width, gathered=False),
        }
        for form, (operations, moved) in forms.items():
            least = seconds(operations, moved)
            rows.append(
                {
                    "particles": count,
                    "form": form,
                    "gflop": operations / 1e9,
                    "gb": moved / 1e9,
                    "ms": 1e3 * least,
                    "bound": "bytes" if moved / BANDWIDTH >= least else "operations",
                }
            )
    return rows


DENSE_AT_MOST = 300_000
"""Tokens of which all distances are still computed."""


def measured(width: int, particles: int, repeats: int = 5) -> Iterator[tuple[str, float]]:
    """Yield each form's name and its best time on this machine's device [ms]."""
    apart = np.array([0, 0, 5e-4], np.float32)
    tokens = np.concatenate([surface(particles), surface(particles) + apart])
    positions, everywhere = jnp.asarray(tokens), jnp.ones(len(tokens), bool)

    def milliseconds(function: Callable[..., Any], *arguments: object) -> float:
        return 1e3 * best_of(jax.jit(function), *arguments, repeats=repeats)

    def among(x: jax.Array) -> Neighbors:
        return knn(x, x, 3, exclude_self=True, backend="xla")

    if len(tokens) <= DENSE_AT_MOST:
        yield "search, dense", milliseconds(lambda x: all_distances(x, x, 4), positions)
    yield "search, boxes", milliseconds(among, positions)
    found = jax.jit(among)(positions)
    rows = jnp.abs(jax.random.normal(jax.random.key(0), (len(tokens), width))) + 0.1
    forms: dict[str, Kernels] = {"walks, plain": "xla", "walks, pallas": "pallas"}
    for form, kernels in forms.items():
        walks = exact_walks(neighbor_graph(found, everywhere, kernels), 3)
        yield (
            form,
            milliseconds(lambda x, w: attend_along_walks(x, x, x, jnp.ones(4), w), rows, walks),
        )


def main() -> None:
    """Print the table, or one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    parser.add_argument("--particles", type=int, nargs="+", default=[32768, 131072, 1_000_000])
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    parser.add_argument("--measure", action="store_true", help="also run the forms")
    arguments = parser.parse_args()
    rows = table(arguments.experiment, arguments.particles)
    if not arguments.json:
        print(f"{'particles':>10s}  {'form':14s} {'GFLOP':>10s} {'GB':>10s} {'ms':>10s}  bound by")
        for row in rows:
            print(
                f"{row['particles']:10d}  {row['form']:14s} {row['gflop']:10.2f} "
                f"{row['gb']:10.3f} {row['ms']:10.3f}  {row['bound']}"
            )
    if arguments.measure:
        print(f"measured on {jax.devices()[0].device_kind}")
        width = load_config(arguments.experiment).model.latent_dim
        for count in arguments.particles:
            for form, took in measured(width, count):
                print(f"{count:10d}  {form:14s} {took:10.3f} ms", flush=True)
    named = {
        f"{row['form']}, {row['particles']} particles": {k: row[k] for k in ("gflop", "gb", "ms")}
        for row in rows
    }
    print(json.dumps({"FLOP/s": FLOPS, "bytes/s": BANDWIDTH, **named}))


if __name__ == "__main__":
    main()
