"""Exact k-nearest-neighbour search, usable under jit, vmap and scan.

One function, four backends with the same answer (ties aside): a compiled k-d tree on the host, a
search by boxes in plain JAX whose memory is bounded (for accelerators), open3d and keops where
installed.
Indices and distances carry no gradient: callers that need one recompute distances from positions.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Bool, Float, Int, pytree
from hdvpd.config import Backend
from hdvpd.kernels import kdtree, kdtree_search, neighbors_xla
from hdvpd.kernels.host import host_call
from hdvpd.kernels.neighbors_host import SEARCHES


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


@pytree
class PointIndex:
    """Points that can be searched.

    Attributes:
      points: [m].
      mask: those that may be found.
      tree: what the backend has prepared, if anything.
    """

    points: Float[Array, "*batch n 3"]
    mask: Bool[Array, "*batch n"]
    tree: tuple[Any, ...]


def index_points(
    points: Float[Array, "n 3"],
    *,
    mask: Bool[Array, "n"] | None = None,
    backend: Backend = "auto",
) -> PointIndex:
    """Prepare points for several searches; what `knn` does itself for one.

    Equal calls in one program are one; a loop that searches is given what this returns.

    Args:
      points: as of `knn`.
      mask: likewise.
      backend: the one that searches.
    """
    points = jax.lax.stop_gradient(jnp.asarray(points))
    mask = jnp.ones(points.shape[:1], bool) if mask is None else jnp.asarray(mask)
    mask = mask & jnp.isfinite(points).all(-1)
    if _chosen(backend) != "kdtree":
        return PointIndex(points, mask, ())
    tree = host_call(kdtree.build, kdtree.arrays(len(points)), points, mask)
    return PointIndex(points, mask, tuple(tree))


def knn(
    queries: Float[Array, "q 3"],
    points: Float[Array, "n 3"] | PointIndex,
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
      points: [m]; non-finite ones are never found. Or what `index_points` returned for them.
      k: neighbours per query.
      mask: points that may be found; all by default. An index has its own.
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
      ValueError: an index comes with a mask, or was made for another backend.
    """
    queries = jax.lax.stop_gradient(jnp.asarray(queries))
    backend = _chosen(backend)
    index = points
    if not isinstance(index, PointIndex):
        index = index_points(index, mask=mask, backend=backend)
    elif mask is not None:
        raise ValueError("an index has its own mask: give it to index_points.")
    elif backend == "kdtree" and not index.tree:
        raise ValueError("the index was made for another backend than kdtree.")
    search = _xla_search if backend == "xla" else _host_search
    found = search(backend, queries, index, k + exclude_self, (max_distance, max_nearest))
    if not exclude_self:
        return found
    return _drop_self(found, jnp.arange(queries.shape[0]) if rows is None else jnp.asarray(rows))


def _chosen(backend: Backend) -> Backend:
    if backend != "auto":
        return backend
    return "kdtree" if jax.default_backend() == "cpu" else "xla"


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
    backend: Backend,
    queries: Float[Array, "q 3"],
    index: PointIndex,
    k: int,
    reach: tuple[float, float],
) -> Neighbors:
    """Search several clouds, a mapped axis, one after another: what is held is that of one."""
    del backend
    search = functools.partial(neighbors_xla.search, k=k, reach=reach)
    search = jax.custom_batching.sequential_vmap(search)
    return Neighbors(*search(queries, index.points, index.mask))


def _host_search(
    backend: Backend,
    queries: Float[Array, "q 3"],
    index: PointIndex,
    k: int,
    reach: tuple[float, float],
) -> Neighbors:
    shape = (queries.shape[0], k)
    results = (jax.ShapeDtypeStruct(shape, np.int32), jax.ShapeDtypeStruct(shape, np.float32))
    limits = np.asarray(reach, np.float32)
    if backend == "kdtree":
        return Neighbors(*host_call(kdtree_search.nearest, results, *index.tree, queries, limits))
    search = SEARCHES[backend]
    return Neighbors(*host_call(search, results, queries, index.points, index.mask, limits))
