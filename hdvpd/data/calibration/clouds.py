"""Point-cloud work: nearest points, surfaces and their distances, a box around a scene.

The search is Open3D's where it is installed and scipy's otherwise; both are exact and work in
float64, so the numbers are the same.
"""

import collections
import dataclasses
import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.ndimage
from scipy.spatial import KDTree

from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.basics.types import Bool, Float, Int
from hdvpd.data.calibration import Backend
from hdvpd.data.calibration.slopes import averaged, inverse_depth
from hdvpd.data.calibration.views import (
    View,
    continuing,
    nearest_around,
    silhouettes,
    surface_normals,
    whole,
    world_points,
)

Search = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]
"""Takes queries (q, 3), returns distance (q,) and index (q,) of the nearest point of a cloud."""
MAX_KEPT = 192
"""Scans whose searches are kept: a megabyte or two each."""

TANGENT_FOOTPRINTS = 3.0
"""How far beside a query, in pixel footprints, the nearest sample may lie to stand for the plane
under the query. The nearest sample of a surface seen at 75 degrees is at most 2.1 away."""
SCENE_M = 0.3
"""Things within this of the robot's points belong to the scene."""


BLUR_PX = 0.7
"""Of grey values, so that their slopes reach beyond a pixel."""
TEXTURE_PX = 3.5
"""Width of what is taken from grey values: light changes more slowly, texture faster."""


@dataclass(frozen=True)
class Scan:
    """What a camera saw in its own axes: whatever pose is tried, this stays.

    What is not asked for is not computed: most hypotheses fail before any search.
    """

    view: View
    make: Callable[[np.ndarray], Search]

    @functools.cached_property
    def image(self) -> Float[np.ndarray, "h w 3"]:
        """Points of all pixels [m]."""
        return world_points(self.view)

    @functools.cached_property
    def valid(self) -> Bool[np.ndarray, "h w"]:
        """Which pixels are samples."""
        return self.view.depth_m > 0

    @functools.cached_property
    def points(self) -> Float[np.ndarray, "n 3"]:
        """The samples [m], row by row of the image."""
        return self.image[self.valid]

    @functools.cached_property
    def normals(self) -> Float[np.ndarray, "n 3"]:
        """Unit normals of either sign at the samples, 0 where unknown."""
        return surface_normals(self.view, self.image)[self.valid]

    @functools.cached_property
    def footprints(self) -> Float[np.ndarray, "n"]:
        """Width of the pixel behind each sample [m]."""
        return self.view.depth_m[self.valid] * self.view.pixel_angle

    @functools.cached_property
    def front(self) -> Float[np.ndarray, "h w"]:
        """Least valid depth of the 3x3 pixels around each [m], inf without any."""
        return nearest_around(self.view.depth_m)

    @functools.cached_property
    def silhouettes(self) -> Bool[np.ndarray, "h w"]:
        """Whether a surface ends at or beside each pixel."""
        return silhouettes(self.view)

    @functools.cached_property
    def smooth(self) -> Bool[np.ndarray, "h w"]:
        """Whether the surface goes on, without a step or an edge, to all pixels around each."""
        return continuing(self.view)

    @functools.cached_property
    def cells(self) -> Bool[np.ndarray, "h w"]:
        """Whether each pixel, the next right and below, and theirs are one surface."""
        return whole(self.view)

    @functools.cached_property
    def inverse(self) -> tuple[Float[np.ndarray, "h w"], ...]:
        """Inverse depth [1/m], its slopes per row and column, its bends."""
        return inverse_depth(self.view.depth_m, self.smooth, self.cells)

    @functools.cached_property
    def gradients(self) -> tuple[Float[np.ndarray, "h w"], ...]:
        """Blurred grey values of the image in [0, 1], and their slopes per row and column."""
        grey = self.view.rgb.mean(axis=-1, dtype=np.float64) / 255
        grey = scipy.ndimage.gaussian_filter(grey, BLUR_PX)
        if min(grey.shape) < 2:
            return grey, np.zeros_like(grey), np.zeros_like(grey)
        return grey, np.gradient(grey, axis=0), np.gradient(grey, axis=1)

    @functools.cached_property
    def texture(self) -> tuple[Float[np.ndarray, "h w"], ...]:
        """Grey values less those around, on surfaces that go on; and their slopes.

        Light that a surface reflects to one camera more than to another changes slowly along it.
        """
        grey = self.view.rgb.mean(axis=-1, dtype=np.float64) / 255
        fine, wide = (averaged(grey, self.smooth, width) for width in (BLUR_PX, TEXTURE_PX))
        found = np.where(self.smooth, fine - wide, 0.0)
        if min(grey.shape) < 2:
            return found, np.zeros_like(grey), np.zeros_like(grey)
        return found, np.gradient(found, axis=0), np.gradient(found, axis=1)

    @functools.cached_property
    def shades(self) -> Float[np.ndarray, "n"]:
        """The blurred grey value at each sample."""
        return self.gradients[0][self.valid]

    @functools.cached_property
    def search(self) -> Search:
        """Finds the nearest sample."""
        return self.make(self.points)


class Indexer:
    """Makes nearest-point searches, and keeps what was made of a scan.

    The same scans are looked at under many poses; only then is a search made anew that the
    depth or the intrinsics differ.
    """

    def __init__(self, make: Callable[[np.ndarray], Search]) -> None:
        """Keep nothing yet.

        Args:
          make: takes the points (n, 3) of a cloud, at least one.
        """
        self.make = make
        self._kept: collections.OrderedDict[tuple[int, int, bytes], Scan]
        self._kept = collections.OrderedDict()

    def scan(self, view: View) -> Scan:
        """Return what a view saw in its own axes."""
        key = id(view.depth_m), id(view.rgb), view.intrinsics.tobytes()
        found = self._kept.pop(key, None)
        if found is None:
            # It holds the arrays, so that nothing else gets their identity.
            own = dataclasses.replace(view, camera_to_world=np.eye(4))
            found = Scan(own, self.make)
        self._kept[key] = found
        if len(self._kept) > MAX_KEPT:
            self._kept.popitem(last=False)
        return found

    def apart(self) -> "Indexer":
        """Return another that keeps its own scans: for views that are looked at only once."""
        return Indexer(self.make)


@dataclass(frozen=True)
class Surface:
    """The surface that a view saw, in the world.

    Attributes:
      view: whose valid pixels are the samples.
      own: the same in the camera's axes.
    """

    view: View
    own: Scan

    @functools.cached_property
    def points(self) -> Float[np.ndarray, "n 3"]:
        """The samples in the world [m], row by row of the image."""
        return self._placed(self.own.points)

    @functools.cached_property
    def normals(self) -> Float[np.ndarray, "n 3"]:
        """Unit normals of either sign at the samples, 0 where unknown."""
        if not self._rigid:
            return surface_normals(self.view, self._placed(self.own.image))[self.own.valid]
        return self.own.normals @ self.view.camera_to_world[:3, :3].T

    def every(self, step: int) -> Float[np.ndarray, "n 3"]:
        """Return every so many of the samples in the world [m]."""
        return self._placed(self.own.points[step // 2 :: step])

    def nearest(
        self, queries: Float[np.ndarray, "q 3"]
    ) -> tuple[Float[np.ndarray, "q"], Float[np.ndarray, "q"], Int[np.ndarray, "q"]]:
        """Find the nearest sample of points in the world.

        Returns:
          Distance from it, from its plane (NaN where that is unknown) [m], and its number.
        """
        points, normals, search = self.own.points, self.own.normals, self.own.search
        if self._rigid:  # distances are the same in the camera's axes, where all is known
            rotation, center = self.view.camera_to_world[:3, :3], self.view.camera_to_world[:3, 3]
            queries = (queries - center) @ rotation
        else:
            points, normals, search = self.points, self.normals, self.search
        distance, index = search(queries)
        normal = normals[index]
        off_plane = np.abs(np.einsum("qi,qi->q", queries - points[index], normal))
        return distance, np.where((normal != 0).any(axis=1), off_plane, np.nan), index

    @property
    def front(self) -> Float[np.ndarray, "h w"]:
        """Least valid depth of the 3x3 pixels around each [m], inf without any."""
        return self.own.front

    @property
    def silhouettes(self) -> Bool[np.ndarray, "h w"]:
        """Whether a surface ends at or beside each pixel."""
        return self.own.silhouettes

    @functools.cached_property
    def search(self) -> Search:
        """Finds the nearest sample."""
        if not self._rigid:
            return self.own.make(self.points)
        rotation, center = self.view.camera_to_world[:3, :3], self.view.camera_to_world[:3, 3]
        return lambda queries: self.own.search((queries - center) @ rotation)

    @functools.cached_property
    def _rigid(self) -> bool:
        """Whether distances are the same in the world and in the camera's axes."""
        rotation = self.view.camera_to_world[:3, :3]
        return bool(np.allclose(rotation @ rotation.T, np.eye(3), atol=1e-9))

    def _placed(self, points: Float[np.ndarray, "*n 3"]) -> Float[np.ndarray, "*n 3"]:
        pose = self.view.camera_to_world
        return points @ pose[:3, :3].T + pose[:3, 3]


def choose_indexer(backend: Backend = "auto") -> tuple[str, Indexer]:
    """Choose the library that searches; return its name and its indexer.

    Raises:
      UserError: Open3D was asked for and does not import.
    """
    if backend != "scipy":
        try:
            core = importlib.import_module("open3d.core")
            return "open3d", Indexer(functools.partial(_open3d_index, core))
        except (ImportError, OSError) as error:
            if backend == "open3d":
                raise UserError(
                    f"Open3D does not import ({error}): {how_to_install('open3d')}, and install "
                    "the system library libusb-1.0-0, or leave the choice to hdvpd."
                ) from error
    return "scipy", Indexer(_scipy_index)


def _scipy_index(points: np.ndarray) -> Search:
    tree = KDTree(points)

    def search(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        distances, indices = tree.query(queries)
        return np.asarray(distances, np.float64), np.asarray(indices, np.int64)

    return search


def _open3d_index(core: Any, points: np.ndarray) -> Search:
    tree = core.nns.NearestNeighborSearch(core.Tensor(np.ascontiguousarray(points)))
    tree.knn_index()

    def search(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        indices, squared = tree.knn_search(core.Tensor(np.ascontiguousarray(queries)), 1)
        return np.sqrt(squared.numpy()[:, 0]), indices.numpy()[:, 0].astype(np.int64)

    return search


def observe(view: View, index: Indexer) -> Surface | None:
    """Make the surface that a view saw.

    Returns:
      None if no depth is valid or the calibration is not finite.
    """
    if not view.usable or not (view.depth_m > 0).any():
        return None
    return Surface(view, index.scan(view))


def surface_distance(queries: Float[np.ndarray, "q 3"], surface: Surface) -> Float[np.ndarray, "q"]:
    """Measure how far points lie from a seen surface.

    Samples are a pixel's footprint apart, so the distance to the nearest sample says nothing below
    that. The distance to the plane through it does, as long as the sample is beside the query.

    Returns:
      Distances [m]: to the plane of the nearest sample, or to the sample itself where its normal
      is unknown or it lies more than `TANGENT_FOOTPRINTS` beside the query.
    """
    if not len(queries):
        return np.zeros(0)
    distance, off_plane, index = surface.nearest(queries)
    beside = np.sqrt(np.maximum(distance**2 - off_plane**2, 0.0))
    flat = beside <= TANGENT_FOOTPRINTS * surface.own.footprints[index]
    return np.where(flat, off_plane, distance)


def suggest_box(
    cloud: Float[np.ndarray, "n 3"], robot: Float[np.ndarray, "m 3"]
) -> tuple[Float[np.ndarray, "3"], Float[np.ndarray, "3"]] | None:
    """Suggest a workspace box.

    Args:
      cloud: seen points in the world [m].
      robot: kinematic points at all times [m]; may be empty.

    Returns:
      Lower and upper corner [m], multiples of 0.05: all but 0.5 % at each end of what is seen near
      the robot (of everything seen, without a robot) and every point of the robot, with 5 cm to
      spare. None if nothing is seen there.
    """
    if len(robot):
        low, high = robot.min(axis=0) - SCENE_M, robot.max(axis=0) + SCENE_M
        cloud = cloud[((cloud >= low) & (cloud <= high)).all(axis=1)]
    if not len(cloud):
        return None
    low, high = np.percentile(cloud, [0.5, 99.5], axis=0)
    if len(robot):
        low, high = np.minimum(low, robot.min(axis=0)), np.maximum(high, robot.max(axis=0))
    # A thousandth of a step decides nothing: a table at z = -1e-9 is at z = 0.
    low, high = np.floor(low / 0.05 + 1e-3) - 1, np.ceil(high / 0.05 - 1e-3) + 1
    return (0.05 * low).round(2), (0.05 * high).round(2)
