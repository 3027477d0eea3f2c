"""Neighbour search against the libraries called directly, in one run.

Prints milliseconds to build and query k = 3 neighbours (besides the point itself) of N = 32,768
points on a surface, and the ratio of `knn`'s default on CPU to the fastest library. Where the tree
is kept, the same points are asked again.

With --rays the samples of an image do: 48 on each of 2,048 rays onto 2,048 points of the surface,
between half a metre before and behind it, look for 16 within 0.3 m; a library keeps its tree, too.

With --plain the search in plain JAX, that of accelerators, is compared with one that computes all
distances in blocks of queries and takes the `top_k` of each: two clouds of --points and 252 points
in the air among themselves, and samples in the air, as many as 1,536 rays have, that look for eight
neighbours.

Run: python benchmarks/neighbors.py [--points 32768] [--k 3] [--rays] [--plain]
"""

import argparse
import json

import jax
import jax.numpy as jnp
import numpy as np
import pynanoflann
from scipy.spatial import KDTree as ScipyTree
from timing import all_distances, interleaved, surface

from hdvpd.kernels.neighbors import index_points, knn


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


def compare_plain(num_points: int, k: int, repeats: int) -> None:
    """Print how long either plain search takes [ms], and whether they agree."""
    apart = np.array([0, 0, 5e-4], np.float32)
    rng, low, high = np.random.default_rng(0), [0.0, 0.0, -0.2], [1.0, 1.0, 0.6]
    robot = rng.uniform(low, high, (252, 3)).astype(np.float32)
    clouds = surface(num_points), surface(num_points) + apart, robot
    tokens = jnp.asarray(np.concatenate(clouds))
    samples = jnp.asarray(rng.uniform(low, high, (1536 * 64, 3)), jnp.float32)
    boxes = jax.jit(lambda x: knn(x, x, k, exclude_self=True, backend="xla").indices)
    seen = jax.jit(
        lambda q, x: knn(q, x, 8, max_distance=0.1, max_nearest=0.05, backend="xla").indices
    )
    dense = jax.jit(all_distances, static_argnums=2)
    times = interleaved(
        {
            "tokens, boxes": lambda: boxes(tokens),
            "tokens, all distances": lambda: dense(tokens, tokens, k + 1),
            "samples, boxes": lambda: seen(samples, tokens[:num_points]),
            "samples, all distances": lambda: dense(samples, tokens[:num_points], 8),
        },
        repeats,
    )
    same = (boxes(tokens) == dense(tokens, tokens, k + 1)[:, 1:]).mean()
    for name, value in times.items():
        print(f"{name:24s} {value:9.2f} ms")
    print(f"of {len(tokens)} tokens, {float(same):.5f} of the rows are the same")
    print(json.dumps({"device": jax.devices()[0].device_kind, "points": num_points, "ms": times}))


def compare_along_rays(repeats: int) -> None:
    """Print how long samples along rays look for their neighbours [ms]."""
    k, reach, points = 16, 0.3, surface(2048)
    across = np.linspace(-0.5, 0.5, 48, dtype=np.float32)
    samples = np.repeat(surface(4096)[2048:, None], len(across), axis=1)
    samples[..., 1:] += across[None, :, None] * np.array([0.6, 0.8], np.float32)
    samples = samples.reshape(-1, 3)
    from pykdtree.kdtree import KDTree

    scipy_tree, tree, on_device = ScipyTree(points), KDTree(points), jnp.asarray(samples)
    index = index_points(jnp.asarray(points), backend="kdtree")
    ours = jax.jit(
        lambda q, index: knn(q, index, k, max_distance=reach, backend="kdtree").distances
    )
    functions = {
        "scipy KDTree": lambda: scipy_tree.query(
            samples, k, distance_upper_bound=reach, workers=-1
        )[0],
        "pykdtree": lambda: tree.query(samples, k, distance_upper_bound=reach)[0],
        "hdvpd kdtree (jitted)": lambda: ours(on_device, index).block_until_ready(),
    }
    for name, search in functions.items():
        found = np.asarray(search())
        np.testing.assert_allclose(found, functions["scipy KDTree"](), rtol=1e-4, err_msg=name)
    times = interleaved(functions, repeats)
    for name, value in times.items():
        print(f"{name:24s} {value:9.1f} ms")
    ratio = times["hdvpd kdtree (jitted)"] / min(times["scipy KDTree"], times["pykdtree"])
    print(f"ratio to the fastest library: {ratio:.2f}")
    print(json.dumps({"ms": times, "ratio to the fastest library": ratio}))


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=32768)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--plain", action="store_true", help="plain JAX against all distances")
    parser.add_argument("--rays", action="store_true", help="samples along rays")
    arguments = parser.parse_args()
    if arguments.rays:
        compare_along_rays(arguments.repeats)
        return
    if arguments.plain:
        compare_plain(arguments.points, arguments.k, arguments.repeats)
        return
    points, k = surface(arguments.points), arguments.k
    on_device = jnp.asarray(points)

    search = jax.jit(lambda x, index: knn(x, index, k, exclude_self=True, backend="kdtree").indices)
    index = index_points(on_device, backend="kdtree")

    functions = {
        "scipy KDTree": lambda: scipy_search(points, k + 1),
        "pykdtree": lambda: pykdtree_search(points, k + 1),
        "nanoflann": lambda: nanoflann_search(points, k + 1),
        "hdvpd kdtree (jitted)": lambda: search(on_device, on_device).block_until_ready(),
        "hdvpd, tree kept": lambda: search(on_device, index).block_until_ready(),
    }
    times = interleaved(functions, arguments.repeats)
    for name, value in times.items():
        print(f"{name:24s} {value:9.1f} ms")
    fastest = min(times[name] for name in ("scipy KDTree", "pykdtree", "nanoflann"))
    ratio = times["hdvpd kdtree (jitted)"] / fastest
    print(f"ratio to the fastest library: {ratio:.2f}")
    print(json.dumps({"ms": times, "ratio to the fastest library": ratio}))


if __name__ == "__main__":
    main()
