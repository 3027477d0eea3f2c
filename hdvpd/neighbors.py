"""Exact k-nearest-neighbour search, usable under jit, vmap and scan.

One function, four backends with the same answer (ties aside): a compiled k-d tree on the host, a
blockwise XLA search whose memory is bounded (for accelerators), open3d and keops where installed.
Indices and distances carry no gradient: callers that need one recompute distances from positions.
"""

import functools
import importlib
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.array_typing import Array, Bool, Float, Int, pytree
from hdvpd.errors import UserError, how_to_install
from hdvpd.host import host_call

Backend = Literal["auto", "kdtree", "xla", "open3d", "keops"]

# Distances held at once by the blockwise search (64 MiB of float32).
_BLOCK_ENTRIES = 1 << 24


@pytree
class Neighbors:
    """Neighbour lists, nearest first.

    Attributes:
      indices: rows of `points`; 0 where fewer than k points were found.
      distances: Euclidean [m]; inf where fewer than k points were found.
    """

    indices: Int[Array, "*batch q k"]
    distances: Float[Array, "*batch q k"]

    @property
    def found(self) -> Bool[Array, "*batch q k"]:
        """True where a neighbour exists."""
        return jnp.isfinite(self.distances)


def knn(
    queries: Float[Array, "q 3"],
    points: Float[Array, "n 3"],
    k: int,
    *,
    mask: Bool[Array, "n"] | None = None,
    max_distance: float = float("inf"),
    max_nearest: float = float("inf"),
    exclude_self: bool = False,
    rows: Int[Array, "q"] | None = None,
    backend: Backend = "auto",
) -> Neighbors:
    """Find the k nearest points of every query.

    Args:
      queries: [m]; non-finite ones find nothing.
      points: [m]; non-finite ones are never found.
      k: neighbours per query.
      mask: points that may be found; all by default.
      max_distance: points farther than this are not found [m].
      max_nearest: queries whose nearest point is farther than this find nothing [m].
      exclude_self: every query is one of the points, and no point is its own neighbour, also among
        coincident points.
      rows: with exclude_self, the row of `points` that each query is; by default its own number.
      backend: which search; auto is kdtree on CPU and xla elsewhere.

    Returns:
      Neighbour lists of static length k, without gradient.

    Raises:
      UserError: the backend's package is not installed.
    """
    queries = jax.lax.stop_gradient(jnp.asarray(queries))
    points = jax.lax.stop_gradient(jnp.asarray(points))
    mask = jnp.ones(points.shape[:1], bool) if mask is None else jnp.asarray(mask)
    mask = mask & jnp.isfinite(points).all(-1)
    if backend == "auto":
        backend = "kdtree" if jax.default_backend() == "cpu" else "xla"
    search = _xla_search if backend == "xla" else functools.partial(_host_search, backend)
    found = search(queries, points, mask, k + exclude_self, (max_distance, max_nearest))
    if not exclude_self:
        return found
    return _drop_self(found, jnp.arange(queries.shape[0]) if rows is None else jnp.asarray(rows))


def _drop_self(found: Neighbors, rows: Int[Array, "q"]) -> Neighbors:
    """Remove each query's own row from its list, or the farthest entry where it is not listed.

    A point may be missing from its own k + 1 list when more than k others coincide with it.
    """
    is_self = found.indices == rows.astype(jnp.int32)[:, None]
    is_self &= found.found
    after_self = jnp.cumsum(is_self[:, :-1], axis=1) > 0
    indices = jnp.where(after_self, found.indices[:, 1:], found.indices[:, :-1])
    distances = jnp.where(after_self, found.distances[:, 1:], found.distances[:, :-1])
    return Neighbors(indices=indices, distances=distances)


def _xla_search(
    queries: Float[Array, "q 3"],
    points: Float[Array, "n 3"],
    mask: Bool[Array, "n"],
    k: int,
    reach: tuple[float, float],
) -> Neighbors:
    """Search in blocks of queries; holds at most _BLOCK_ENTRIES distances, never q x n."""
    num_queries, num_points = queries.shape[0], points.shape[0]
    block = min(num_queries, max(1, _BLOCK_ENTRIES // max(num_points, 1)))
    num_kept = min(k, num_points)

    def nearest(query: Float[Array, "3"]) -> tuple[jax.Array, jax.Array]:
        # Differences, not |q|^2 - 2 q.p + |p|^2, which loses millimetres to cancellation.
        squared = sum((query[axis] - points[:, axis]) ** 2 for axis in range(3))
        squared = jnp.where(mask, squared, jnp.inf)
        negative, indices = jax.lax.top_k(-squared, num_kept)
        return jnp.sqrt(-negative), indices

    distances, indices = jax.lax.map(nearest, queries, batch_size=block)
    max_distance, max_nearest = reach
    # Masked points and queries that are no numbers come out as inf and NaN.
    missing = ~(jnp.isfinite(distances) & (distances <= max_distance))
    missing |= distances[:, :1] > max_nearest
    pad = ((0, 0), (0, k - num_kept))
    return Neighbors(
        indices=jnp.pad(jnp.where(missing, 0, indices).astype(jnp.int32), pad),
        distances=jnp.pad(jnp.where(missing, jnp.inf, distances), pad, constant_values=jnp.inf),
    )


def _host_search(
    backend: str,
    queries: Float[Array, "q 3"],
    points: Float[Array, "n 3"],
    mask: Bool[Array, "n"],
    k: int,
    reach: tuple[float, float],
) -> Neighbors:
    shape = (queries.shape[0], k)
    results = (jax.ShapeDtypeStruct(shape, np.int32), jax.ShapeDtypeStruct(shape, np.float32))
    function = f"hdvpd.neighbors:search_{backend}"
    limits = np.asarray(reach, np.float32)
    return Neighbors(*host_call(function, results, queries, points, mask, limits))


# A compiled search: (queries, points, k, max_distance) -> (distances, indices), missing ones inf.
HostSearch = Callable[[np.ndarray, np.ndarray, int, float], tuple[np.ndarray, np.ndarray]]


def _search_real(
    search: HostSearch,
    queries: np.ndarray,
    points: np.ndarray,
    mask: np.ndarray,
    reach: np.ndarray,
    indices: np.ndarray,
    distances: np.ndarray,
) -> None:
    """Search among the real points only, and fill in rows of the padded array."""
    indices[:], distances[:] = 0, np.inf
    max_distance, max_nearest = map(float, reach)
    real = np.flatnonzero(mask)
    candidates = points if len(real) == len(points) else points[real]
    asked = np.asarray(np.isfinite(queries).all(-1))
    if max_nearest < max_distance and len(real) and asked.any():
        # Most samples of a ray are far from everything, and one neighbour is found sooner than k.
        nearest, _ = search(queries[asked], candidates, 1, max_nearest)
        asked[asked] = np.ravel(nearest) <= max_nearest
    num_kept = min(indices.shape[1], len(real))
    if num_kept == 0 or not asked.any():
        return
    everyone = bool(asked.all())
    found_distances, found = search(
        queries if everyone else queries[asked], candidates, num_kept, max_distance
    )
    found_distances = np.asarray(found_distances, np.float32).reshape(-1, num_kept)
    found = np.asarray(found).reshape(-1, num_kept)
    missing = ~(found_distances <= min(max_distance, np.finfo(np.float32).max))
    some_missing = bool(missing.any())
    if some_missing:
        found = np.where(missing, 0, found)
    if candidates is not points:
        found = real[found]
    if some_missing:
        found = np.where(missing, 0, found)
        found_distances = np.where(missing, np.float32(np.inf), found_distances)
    rows = slice(None) if everyone else asked
    distances[rows, :num_kept] = found_distances
    indices[rows, :num_kept] = found


def _kdtree(
    queries: np.ndarray, points: np.ndarray, k: int, max_distance: float
) -> tuple[np.ndarray, np.ndarray]:
    from pykdtree.kdtree import KDTree

    bound = None if np.isinf(max_distance) else max_distance * (1 + 1e-6)
    tree = KDTree(np.ascontiguousarray(points, np.float32), leafsize=16)
    return tree.query(np.ascontiguousarray(queries, np.float32), k, distance_upper_bound=bound)


def _open3d(
    queries: np.ndarray, points: np.ndarray, k: int, max_distance: float
) -> tuple[np.ndarray, np.ndarray]:
    del max_distance  # filtered by the caller
    try:
        o3c: Any = importlib.import_module("open3d.core")
    except (ImportError, OSError) as error:
        raise UserError(
            f"model.knn = 'open3d' needs Open3D, which does not import ({error}): "
            f"{how_to_install('open3d')}, and install the system library libusb-1.0-0."
        ) from error
    search = o3c.nns.NearestNeighborSearch(o3c.Tensor(np.ascontiguousarray(points)))
    search.knn_index()
    indices, squared = search.knn_search(o3c.Tensor(np.ascontiguousarray(queries)), k)
    return np.sqrt(squared.numpy()), indices.numpy()


def _keops(
    queries: np.ndarray, points: np.ndarray, k: int, max_distance: float
) -> tuple[np.ndarray, np.ndarray]:
    del max_distance  # filtered by the caller
    try:
        from pykeops.numpy import LazyTensor
    except ImportError as error:
        raise UserError(
            f"model.knn = 'keops' needs KeOps, which does not import ({error}): "
            f"{how_to_install('keops')}, and install a C++ compiler."
        ) from error
    lazy_queries = LazyTensor(np.ascontiguousarray(queries)[:, None, :])
    lazy_points = LazyTensor(np.ascontiguousarray(points)[None, :, :])
    indices = ((lazy_queries - lazy_points) ** 2).sum(-1).argKmin(K=k, dim=1)
    indices = np.asarray(indices).astype(np.int64).reshape(-1, k)
    return np.linalg.norm(queries[:, None] - points[indices], axis=-1), indices


search_kdtree = functools.partial(_search_real, _kdtree)
search_open3d = functools.partial(_search_real, _open3d)
search_keops = functools.partial(_search_real, _keops)
"""The searches as compiled host functions."""
