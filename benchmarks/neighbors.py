"""Neighbour search against the libraries called directly, in one run.

Prints milliseconds to build and query k = 3 neighbours (besides the point itself) of N = 32,768
points on a surface, and the ratio of `knn`'s default on CPU to the fastest library. Where the tree
is kept, the same points are asked again.

Run: python benchmarks/neighbors.py [--points 32768] [--k 3] [--xla]
"""

import argparse
import json
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pynanoflann
from scipy.spatial import KDTree as ScipyTree
from timing import interleaved, surface

from hdvpd.kernels import neighbors_host
from hdvpd.kernels.neighbors import Backend, knn


def scipy_search(points: np.ndarray, k: int) -> np.ndarray:
    """Search with scipy's k-d tree on all cores."""
    tree = ScipyTree(points, balanced_tree=False, compact_nodes=False)
    return np.asarray(tree.query(points, k, workers=-1)[1])


def nanoflann_search(points: np.ndarray, k: int) -> np.ndarray:
    """Search with nanoflann."""
    tree = pynanoflann.KDTree(n_neighbors=k, metric="L2", leaf_size=10)
    tree.fit(points)
    return tree.kneighbors(points)[1]


def pykdtree_search(points: np.ndarray, k: int) -> np.ndarray:
    """Search with pykdtree."""
    # Here, behind hdvpd: its threads wait as hdvpd's do, instead of spinning behind each search.
    from pykdtree.kdtree import KDTree

    return KDTree(points).query(points, k)[1]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=32768)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--xla", action="store_true", help="also time the blockwise XLA search")
    arguments = parser.parse_args()
    points, k = surface(arguments.points), arguments.k
    on_device = jnp.asarray(points)

    def ours(backend: Backend, *, anew: bool = True) -> Callable[[], object]:
        search = jax.jit(lambda x: knn(x, x, k, exclude_self=True, backend=backend).indices)

        def found() -> object:
            if anew:
                neighbors_host._trees.clear()
            return search(on_device).block_until_ready()

        return found

    functions = {
        "scipy KDTree": lambda: scipy_search(points, k + 1),
        "pykdtree": lambda: pykdtree_search(points, k + 1),
        "nanoflann": lambda: nanoflann_search(points, k + 1),
        "hdvpd kdtree (jitted)": ours("kdtree"),
        "hdvpd, tree kept": ours("kdtree", anew=False),
    }
    if arguments.xla:
        functions["hdvpd xla (jitted)"] = ours("xla")
    times = interleaved(functions, arguments.repeats)
    for name, value in times.items():
        print(f"{name:24s} {value:9.1f} ms")
    fastest = min(times[name] for name in ("scipy KDTree", "pykdtree", "nanoflann"))
    ratio = times["hdvpd kdtree (jitted)"] / fastest
    print(f"ratio to the fastest library: {ratio:.2f}")
    print(json.dumps({"ms": times, "ratio to the fastest library": ratio}))


if __name__ == "__main__":
    main()
