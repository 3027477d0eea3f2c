"""What the points of one camera say about another's place: linearised distances, for registration.

All moments of a pair of cameras are one batch. Only the nearest-point search goes moment by moment.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import scipy.ndimage

from hdvpd.basics.types import Bool, Float, Int, Shaped
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.clouds import TANGENT_FOOTPRINTS, Indexer, Scan
from hdvpd.data.calibration.slopes import corners
from hdvpd.data.calibration.views import View

UNKNOWNS = 9
"""Of a camera: turn [rad], move [m], logarithm of the depth scale, depth offset [m], logarithm of
the focal length, in the camera's own axes."""


@dataclass(frozen=True)
class Track:
    """One camera over all moments, in its own axes.

    Attributes:
      scans: by moment; None where nothing can be said.
      poses: camera to world.
      own: samples [m], sorted by moment.
      moment: of each sample.
      shades: grey value of each sample: blurred, or its texture, NaN where it has none.
    """

    scans: Sequence[Scan | None]
    poses: Float[np.ndarray, "m 4 4"]
    own: Float[np.ndarray, "n 3"]
    moment: Int[np.ndarray, "n"]
    shades: Float[np.ndarray, "n"]

    def placed(self, poses: Float[np.ndarray, "m 4 4"]) -> "Track":
        """Return the same at other places."""
        return dataclasses.replace(self, poses=poses)


def track(views: Sequence[View], index: Indexer, max_points: int, *, between: bool) -> Track:
    """Make the track of a camera.

    Args:
      views: by moment.
      index: keeps what is made of them.
      max_points: samples of each at most.
      between: whether samples are only where a surface goes on, with its texture.
    """
    scans, own, shades, moments = [], [np.zeros((0, 3))], [np.zeros(0)], [np.zeros(0, int)]
    for number, view in enumerate(views):
        scan = index.scan(view) if _seen(view) else None
        scans.append(scan)
        if scan is not None:
            points, grey = scan.points, scan.shades
            if between:
                on = corners(scan.cells)[scan.valid]
                painted = np.where(scan.smooth, scan.texture[0], np.nan)[scan.valid]
                points, grey = points[on], painted[on]
            step = max(-(-len(points) // max_points), 1)
            own.append(points[step // 2 :: step])
            shades.append(grey[step // 2 :: step])
            moments.append(np.full(len(own[-1]), number))
    poses = np.stack([view.camera_to_world if _seen(view) else np.eye(4) for view in views])
    points, moment, grey = (np.concatenate(parts) for parts in (own, moments, shades))
    return Track(scans, poses, points, moment, grey)


def _seen(view: View) -> bool:
    """Say whether a view shows anything, from a place that is one."""
    if not view.usable or not (view.depth_m > 0).any():
        return False
    return bool(abs(np.linalg.det(view.camera_to_world)) > 1e-9)


@dataclass(frozen=True)
class Rows:
    """Linearised distances of the points of one camera from what another sees.

    Attributes:
      kind: "plane", "point" [m] or "colour" [standard deviations of the grey value].
      residuals: signed distances.
      source: derivatives by the unknowns of the camera whose points they are.
      target: derivatives by the unknowns of the other.
      moment: of each.
      points: that were compared, in the other's axes [m].
    """

    kind: str
    residuals: Float[np.ndarray, "n"]
    source: Float[np.ndarray, "n 9"]
    target: Float[np.ndarray, "n 9"]
    moment: Int[np.ndarray, "n"]
    points: Float[np.ndarray, "n 3"]


@dataclass(frozen=True)
class Reach:
    """What an iteration compares.

    Attributes:
      gate: largest distance of a point from its partner [m].
      colours: whether grey values are compared, too.
    """

    gate: float
    colours: bool


@dataclass(frozen=True)
class Falls:
    """Where samples of one camera fall in the images of another.

    Attributes:
      scans: of the other, by moment.
      ends: of each moment's samples: those of moment m are ends[m] to ends[m + 1].
      points: in the other's axes [m].
      pixels: (x, y) there.
      row: of the pixel, 0 outside.
      column: likewise.
      inside: whether it falls into the image.
    """

    scans: Sequence[Scan | None]
    ends: Int[np.ndarray, "_"]
    points: Float[np.ndarray, "n 3"]
    pixels: Float[np.ndarray, "n 2"]
    row: Int[np.ndarray, "n"]
    column: Int[np.ndarray, "n"]
    inside: Bool[np.ndarray, "n"]

    def look(
        self, image: Callable[[Scan], Shaped[np.ndarray, "h w"]], missing: float
    ) -> Shaped[np.ndarray, "n"]:
        """Return what an image of the other's scan holds where each sample falls."""
        found = np.full(len(self.points), missing)
        for k, scan in enumerate(self.scans):
            part = slice(self.ends[k], self.ends[k + 1])
            if scan is not None and part.start < part.stop:
                found[part] = image(scan)[self.row[part], self.column[part]]
        return found


def fall(source: Track, target: Track) -> tuple[Falls, Float[np.ndarray, "m 4 4"]]:
    """Project all samples of one camera into the images of another; return the relative poses."""
    relative = np.linalg.inv(target.poses) @ source.poses
    points, pixels = np.empty_like(source.own), np.full((len(source.own), 2), np.nan)
    row, column = np.zeros((2, len(points)), np.int64)
    inside = np.zeros(len(points), bool)
    ends = np.searchsorted(source.moment, np.arange(len(source.scans) + 1))
    for k, scan in enumerate(target.scans):
        part = slice(ends[k], ends[k + 1])
        points[part] = source.own[part] @ relative[k, :3, :3].T + relative[k, :3, 3]
        if scan is None or part.start == part.stop:
            continue
        height, width = scan.view.depth_m.shape
        z = points[part, 2]
        matrix = scan.view.intrinsics
        safe = np.where(z > 1e-9, z, np.nan)
        x = points[part, 0] / safe * matrix[0, 0] + matrix[0, 2]
        y = points[part, 1] / safe * matrix[1, 1] + matrix[1, 2]
        good = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        row[part], column[part] = (np.where(good, v, 0.0).astype(np.int64) for v in (y, x))
        pixels[part, 0], pixels[part, 1] = x, y
        inside[part] = good
    return Falls(target.scans, ends, points, pixels, row, column, inside), relative


def pair_rows(source: Track, target: Track, reach: Reach) -> tuple[list[Rows], np.ndarray]:
    """Compare the samples of one camera with what another sees.

    Returns:
      The rows, and how many samples by moment should have a partner within reach and have none.
    """
    falls, relative = fall(source, target)
    depth, seen = falls.points[:, 2], falls.look(lambda scan: scan.view.depth_m, 0.0)
    used = falls.inside & (seen > 0) & (depth <= seen + max(limits.BEHIND_M, reach.gate))
    beside = falls.look(lambda scan: scan.silhouettes, 0.0) > 0
    front = falls.look(lambda scan: scan.front, np.inf)
    used &= ~beside | (depth <= front + limits.SILHOUETTE_M)
    near, partner, normals, footprints = _partners(source, target, falls.points, used, reach.gate)
    count = len(target.scans)
    missed = np.bincount(source.moment[used & ~near], minlength=count)
    own, points, moment = source.own[near], falls.points[near], source.moment[near]
    if not len(own):
        return [], missed
    turn = relative[moment, :3, :3]
    off = np.einsum("ni,ni->n", points - partner, normals)
    across = np.linalg.norm(points - partner - off[:, None] * normals, axis=-1)
    flat = (normals != 0).any(axis=-1) & (across <= TANGENT_FOOTPRINTS * footprints)
    some = (own, points, partner, turn, moment)
    rows = [distance_rows("plane", normals[flat], *(values[flat] for values in some))]
    rough = [np.tile(values[~flat], (3, *[1] * (values.ndim - 1))) for values in some]
    rows.append(distance_rows("point", np.repeat(np.eye(3), int((~flat).sum()), axis=0), *rough))
    if reach.colours:
        images = [None if scan is None else scan.gradients for scan in target.scans]
        rows += colour_rows(falls.pixels[near], source.shades[near], target, images, *some)
    return rows, missed


def _partners(
    source: Track, target: Track, points: np.ndarray, used: np.ndarray, gate: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return which points have a partner, and of those partner, normal and pixel width."""
    near = used.copy()
    partners, normals, footprints = [np.zeros((0, 3))], [np.zeros((0, 3))], [np.zeros(0)]
    ends = np.searchsorted(source.moment, np.arange(len(target.scans) + 1))
    for k, scan in enumerate(target.scans):
        at = ends[k] + np.flatnonzero(used[ends[k] : ends[k + 1]])
        if scan is None or not len(at):
            near[at] = False
            continue
        distance, nearest = scan.search(points[at])
        close = distance < gate
        near[at] = close
        partners.append(scan.points[nearest[close]])
        normals.append(scan.normals[nearest[close]])
        footprints.append(scan.footprints[nearest[close]])
    return near, np.concatenate(partners), np.concatenate(normals), np.concatenate(footprints)


def distance_rows(
    kind: str,
    normals: Float[np.ndarray, "n 3"],
    own: Float[np.ndarray, "n 3"],
    points: Float[np.ndarray, "n 3"],
    partner: Float[np.ndarray, "n 3"],
    turn: Float[np.ndarray, "n 3 3"],
    moment: Int[np.ndarray, "n"],
) -> Rows:
    """Linearise distances along the normals; points, partners and normals in the other's axes."""
    return Rows(
        kind,
        residuals=np.einsum("ni,ni->n", points - partner, normals),
        source=_derivatives(own, own, np.einsum("ni,nij->nj", normals, turn)),
        target=-_derivatives(points, partner, normals),
        moment=moment,
        points=points,
    )


def colour_rows(
    pixels: Float[np.ndarray, "n 2"],
    shades: Float[np.ndarray, "n"],
    target: Track,
    images: Sequence[tuple[np.ndarray, ...] | None],
    own: Float[np.ndarray, "n 3"],
    points: Float[np.ndarray, "n 3"],
    _: Float[np.ndarray, "n 3"],
    turn: Float[np.ndarray, "n 3 3"],
    moment: Int[np.ndarray, "n"],
) -> Iterator[Rows]:
    """Compare grey values where points fall in the other image, each relative to its own spread."""
    count = len(target.scans)
    values, down, right, focal = (np.zeros((len(own), *tail)) for tail in ((), (), (), (2,)))
    for k in np.unique(moment):
        scan, found, mine = target.scans[k], images[k], moment == k
        if scan is None or found is None:
            continue
        at = [pixels[mine, 1] - 0.5, pixels[mine, 0] - 0.5]
        values[mine], down[mine], right[mine] = (
            scipy.ndimage.map_coordinates(image, at, order=1, mode="nearest") for image in found
        )
        focal[mine] = np.diagonal(scan.view.intrinsics)[:2]
    enough = np.bincount(moment, minlength=count)[moment] > limits.MIN_SHARED_POINTS
    if not enough.any():
        return
    (theirs, spread), (ours, own_spread) = (_standard(v, moment, count) for v in (values, shades))
    x, y = right * focal[:, 0] / points[:, 2], down * focal[:, 1] / points[:, 2]
    slopes = np.stack([x, y, -(x * points[:, 0] + y * points[:, 1]) / points[:, 2]], axis=1)
    slopes /= spread[:, None]
    derivatives = -_derivatives(points, points, slopes)
    derivatives[:, 6:8] = 0.0  # the other's depth has no part in where points fall
    source = _derivatives(own, own, np.einsum("ni,nij->nj", slopes, turn))
    residuals = theirs / spread - ours / own_spread
    parts = (residuals, source, derivatives, moment, points)
    yield Rows("colour", *(values[enough] for values in parts))


def _standard(values: np.ndarray, moment: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return values less their mean in the moment, and their standard deviation there."""
    number = np.maximum(np.bincount(moment, minlength=count), 1)
    off = values - (np.bincount(moment, values, count) / number)[moment]
    spread = np.sqrt(np.bincount(moment, off**2, count) / number)
    return off, np.maximum(spread, 1e-3)[moment]


def _derivatives(
    moved: Float[np.ndarray, "n 3"], lifted: Float[np.ndarray, "n 3"], normals: np.ndarray
) -> Float[np.ndarray, "n 9"]:
    """Return the derivatives along the normals: of rigid motion, and of the pixels' points."""
    a, b, c = moved.T
    x, y, z = normals.T
    found = np.empty((len(moved), UNKNOWNS))
    found[:, 0], found[:, 1], found[:, 2] = b * z - c * y, c * x - a * z, a * y - b * x
    found[:, 3:6] = normals
    found[:, 6] = (lifted * normals).sum(axis=1)
    found[:, 7] = found[:, 6] / np.maximum(lifted[:, 2], 1e-9)
    found[:, 8] = -lifted[:, 0] * x - lifted[:, 1] * y
    return found
