"""Host forms of the neighbour search beside the k-d tree: Open3D and KeOps where installed."""

import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError, how_to_install

# A search among real points: (queries, points, k, max_distance) -> (distances, indices), missing
# ones at infinity.
Search = Callable[[np.ndarray, np.ndarray, int, float], tuple[np.ndarray, np.ndarray]]


def _among_real_points(search: Search) -> Callable[..., None]:
    """Make a search fill in rows of the padded arrays, for queries that are asked only."""

    @functools.wraps(search)
    def fill(
        queries: np.ndarray,
        points: np.ndarray,
        mask: np.ndarray,
        reach: np.ndarray,
        indices: np.ndarray,
        distances: np.ndarray,
    ) -> None:
        indices[:], distances[:] = 0, np.inf
        max_distance, max_nearest = map(float, reach)
        real = np.flatnonzero(mask)
        candidates = points if len(real) == len(points) else points[real]
        asked = np.asarray(np.isfinite(queries).all(-1))
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
        if max_nearest < max_distance:
            missing |= ~(found_distances[:, :1] <= max_nearest)
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

    return fill


@_among_real_points
def open3d(
    queries: np.ndarray, points: np.ndarray, k: int, max_distance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Search with Open3D."""
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


@_among_real_points
def keops(
    queries: np.ndarray, points: np.ndarray, k: int, max_distance: float
) -> tuple[np.ndarray, np.ndarray]:
    """Search with KeOps, by all distances."""
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


SEARCHES: Mapping[str, Callable[..., None]] = {"open3d": open3d, "keops": keops}
"""By the names of `model.knn`: fill in indices and distances, the last two of (queries, points,
mask of the points, (max_distance, max_nearest), indices, distances)."""
