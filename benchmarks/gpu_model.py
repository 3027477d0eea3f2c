"""What neighbour search and walk attention should cost on a GPU: a model, not a measurement.

For each form the operations and the bytes that it moves are counted from its shapes; a form takes
at least the longer of operations / rate and bytes / bandwidth, at the figures of NVIDIA's data
sheet of the H100 SXM: 67 TFLOP/s in float32, 3.35 TB/s. Launches, atomics, the second-level cache
(50 MB) and imperfect use are left out, so real times lie above. Tokens are two particle clouds and
the robot's points, as in the dynamics.

Search, per query of N tokens, k neighbours:

    dense   all distances in blocks, then the k smallest: written once, read once by the selection
            and once more to find the places. The form that runs today on accelerators.
    grid    tokens sorted by cell (radix sort, four passes over key and row), then 27 cells of
            `per_cell` tokens read per query. Not written; it is what would replace the other.

Walk attention, e entries per token, width c, one head, forward:

    plain   gathers keys and values as [t, e, c]: each read, written, and read again
    pallas  reads each row where it is needed and writes only the result

Run: python benchmarks/gpu_model.py [paper] [--particles 32768 131072 1000000] [--json]
"""

import argparse
import json

from hdvpd.config.experiments import load_config

FLOPS, BANDWIDTH = 67e12, 3.35e12
ENTRIES = 40  # of 27 walks over 3 hops: 1 + 3 + 9 + 27
FLOAT = INDEX = 4


def dense_search(tokens: int, neighbors: int) -> tuple[float, float]:
    """Return operations and bytes of all distances in blocks."""
    squared = tokens * tokens
    return 8.0 * squared, FLOAT * 3.0 * squared + tokens * neighbors * (FLOAT + INDEX)


def grid_search(tokens: int, neighbors: int, per_cell: float = 8.0) -> tuple[float, float]:
    """Return operations and bytes of a search among 27 cells."""
    candidates = 27 * per_cell
    sort = 4 * 2 * (FLOAT + INDEX) * tokens
    read = tokens * candidates * 3 * FLOAT
    # Every candidate's distance, and a comparison with each of the k that are kept.
    operations = tokens * candidates * (8 + neighbors)
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
            "search, grid": grid_search(tokens, 3),
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


def main() -> None:
    """Print the table, or one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("experiment", nargs="?", default="paper")
    parser.add_argument("--particles", type=int, nargs="+", default=[32768, 131072, 1_000_000])
    parser.add_argument("--json", action="store_true", help="print the JSON line only")
    arguments = parser.parse_args()
    rows = table(arguments.experiment, arguments.particles)
    if not arguments.json:
        print(f"{'particles':>10s}  {'form':14s} {'GFLOP':>10s} {'GB':>10s} {'ms':>10s}  bound by")
        for row in rows:
            print(
                f"{row['particles']:10d}  {row['form']:14s} {row['gflop']:10.2f} "
                f"{row['gb']:10.3f} {row['ms']:10.3f}  {row['bound']}"
            )
    named = {
        f"{row['form']}, {row['particles']} particles": {k: row[k] for k in ("gflop", "gb", "ms")}
        for row in rows
    }
    print(json.dumps({"FLOP/s": FLOPS, "bytes/s": BANDWIDTH, **named}))


if __name__ == "__main__":
    main()
