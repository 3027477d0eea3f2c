"""Where cameras really stand: registration of all their clouds together, over all moments.

Point-to-plane registration by Gauss-Newton with robust weights: every camera's points are laid on
the surfaces that the others see, where they see them. Free may be the pose of a camera, the scale
and offset of its depth, and its focal length. Open3D registers pairs of rigid clouds; here all
pairs of all moments share the unknowns, some of which are no motion, so that only its search of
nearest points is used, or scipy's. float64.
"""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import scipy.ndimage
from scipy.spatial.transform import Rotation

from hdvpd.data.calibration import limits
from hdvpd.data.calibration.clouds import TANGENT_FOOTPRINTS, Indexer, Surface, observe
from hdvpd.data.calibration.views import Moment, View, locate, project
from hdvpd.types import Float

KINDS = {"pose": range(6), "depth scale": range(6, 7), "depth offset": range(7, 8),
         "focal length": range(8, 9)}  # fmt: skip
"""Numbers of a camera's nine unknowns: turn [rad], move [m], and logarithms but for the offset [m],
in the camera's own axes."""
UNKNOWNS = 9
PRIOR = np.array([0.3] * 3 + [0.3] * 3 + [0.5, 0.2, 0.5])
"""Standard deviations of the unknowns before anything is seen: they decide what nothing shows."""
GATES_M = (*np.geomspace(0.25, 0.04, 20).tolist(), 0.04, 0.04, 0.04)
"""Largest distance of a point from its partner, iteration by iteration [m]."""
FLOORS = {"plane": 1e-3, "point": 3e-3, "colour": 0.1}
"""Least scatter of each kind of distance: to planes [m], to samples without one [m], and between
colours [standard deviations of the grey value]."""
COARSE = {"plane": 0.05, "point": 0.3, "colour": 6.0}
"""The same as a multiple of the gate: at first everything within reach counts."""
COST_SCALES = {"plane": 0.004, "point": 0.01, "colour": 0.3}
"""Distances of each kind that count as one when fits are compared."""
COLOURED_M = 0.18
"""Gate below which colours count: they tell in which direction only once they overlap."""


@dataclass(frozen=True)
class Change:
    """What is to be changed of one camera.

    Attributes:
      pose: multiplies the camera-to-world pose from the right.
      depth_scale: true metres per stored metre.
      depth_offset_m: added after that [m].
      focal: true focal length per stored one.
    """

    pose: Float[np.ndarray, "4 4"] = field(default_factory=lambda: np.eye(4))
    depth_scale: float = 1.0
    depth_offset_m: float = 0.0
    focal: float = 1.0

    def apply(self, view: View) -> View:
        """Return the view with the change."""
        depth = self.depth_scale * view.depth_m + self.depth_offset_m
        return dataclasses.replace(
            view,
            depth_m=np.where((view.depth_m > 0) & (depth > 0), depth, 0.0),
            intrinsics=view.intrinsics
            * np.array([[self.focal, 1, 1], [1, self.focal, 1], [1] * 3]),
            camera_to_world=view.camera_to_world @ self.pose,
        )

    def moved(self, step: Float[np.ndarray, "9"]) -> "Change":
        """Return the change after a step of the unknowns."""
        motion = np.eye(4)
        motion[:3, :3] = Rotation.from_rotvec(step[:3]).as_matrix()
        motion[:3, 3] = step[3:6]
        grown = float(np.exp(step[6]))
        return Change(
            self.pose @ motion,
            self.depth_scale * grown,
            self.depth_offset_m * grown + float(step[7]),
            self.focal * float(np.exp(step[8])),
        )

    @property
    def turn_deg(self) -> Float[np.ndarray, "3"]:
        """Rotation vector about the camera's axes [degrees]."""
        return np.rad2deg(Rotation.from_matrix(self.pose[:3, :3]).as_rotvec())


@dataclass(frozen=True)
class Fit:
    """A registration.

    Attributes:
      free: what was free, by camera.
      changes: of each camera with anything free.
      errors: standard errors of the nine unknowns of each, from the scatter over moments.
      before_m: median distance of the compared points before [m].
      after_m: and after [m].
      costs: robust distances of all kinds by moment, in units of `COST_SCALES`: to compare fits.
      points: that were compared.
    """

    free: Mapping[str, tuple[str, ...]]
    changes: Mapping[str, Change]
    errors: Mapping[str, Float[np.ndarray, "9"]]
    before_m: float
    after_m: float
    costs: Float[np.ndarray, "m"]
    points: int

    def apply(self, moments: Sequence[Moment]) -> list[Moment]:
        """Return the moments with the changes."""
        return [changed(moment, self.changes) for moment in moments]


def changed(moment: Moment, changes: Mapping[str, Change]) -> Moment:
    """Return a moment whose cameras are changed."""
    views = {n: changes[n].apply(v) if n in changes else v for n, v in moment.views.items()}
    return dataclasses.replace(moment, views=views)


@dataclass(frozen=True)
class _Rows:
    """Linearised distances of the points of one camera from what another sees, at one moment.

    Attributes:
      kind: one of `FLOORS`.
      residuals: signed distances [m].
      source, target: derivatives by the unknowns of the two cameras.
    """

    kind: str
    residuals: Float[np.ndarray, "n"]
    source: Float[np.ndarray, "n 9"]
    target: Float[np.ndarray, "n 9"]


def register(
    moments: Sequence[Moment],
    free: Mapping[str, tuple[str, ...]],
    index: Indexer,
    *,
    max_points: int = 800,
    quick: bool = False,
    last: bool = False,
    start: Mapping[str, Change] | None = None,
) -> Fit:
    """Register the cameras.

    Args:
      moments: what they saw.
      free: kinds of unknowns by camera (`KINDS`); other cameras stay where they are.
      index: makes the nearest-point search.
      max_points: of each image that are laid on another's surface.
      quick: whether half the iterations must do.
      last: whether the cameras stand nearly right, so that the last iterations do.
      start: changes to begin with, likewise.
    """
    gates = GATES_M[14:] if start else GATES_M[6::2] if last else GATES_M[::2] if quick else GATES_M
    names = list(free)
    changes = {name: (start or {}).get(name, Change()) for name in names}
    mask = np.concatenate([_mask(free[name]) for name in names])
    before = np.nan
    error = np.zeros(len(mask))
    rows: list[list[tuple[str, str, _Rows]]] = []
    seen: list[dict[str, Surface | None]] = [{} for _ in moments]
    for number, gate in enumerate((*gates, gates[-1])):
        views = [changed(moment, changes).views for moment in moments]
        reach = _Reach(gate, max_points, gate < COLOURED_M)
        rows = [
            _moment_rows(v, names, reach, _observe_all(v, index, kept, free))
            for v, kept in zip(views, seen, strict=True)
        ]
        residuals = _residuals(rows, "plane", "point")
        if number == 0:
            before = float(np.median(np.abs(residuals))) if len(residuals) else np.nan
        if not len(residuals):
            break
        step, error = _solve(rows, names, mask, gate)
        if number == len(gates):
            break
        if not mask.any():
            continue
        changes = {
            n: changes[n].moved(step[UNKNOWNS * k : UNKNOWNS * (k + 1)])
            for k, n in enumerate(names)
        }
    residuals = _residuals(rows, "plane", "point")
    return Fit(
        free=dict(free),
        changes=changes,
        errors={n: error[UNKNOWNS * k : UNKNOWNS * (k + 1)] for k, n in enumerate(names)},
        before_m=before,
        after_m=float(np.median(np.abs(residuals))) if len(residuals) else np.nan,
        costs=np.array([_cost(moment) for moment in rows]),
        points=len(residuals),
    )


def _cost(rows: Sequence[tuple[str, str, _Rows]]) -> float:
    total = 0.0
    for kind, scale in COST_SCALES.items():
        residuals = _residuals([rows], kind)
        if len(residuals):
            total += float(np.minimum(np.abs(residuals) / scale, 4.0).mean())
    return total


def _mask(kinds: Sequence[str]) -> np.ndarray:
    mask = np.zeros(UNKNOWNS, bool)
    for kind in kinds:
        mask[list(KINDS[kind])] = True
    return mask


def _residuals(rows: Sequence[Sequence[tuple[str, str, _Rows]]], *kinds: str) -> np.ndarray:
    found = [r.residuals for moment in rows for _, _, r in moment if r.kind in kinds]
    return np.concatenate(found) if found else np.zeros(0)


@dataclass(frozen=True)
class _Reach:
    """What an iteration compares: distances up to `gate` [m], `max_points`, `colours` or none."""

    gate: float
    max_points: int
    colours: bool


def _observe_all(
    views: Mapping[str, View],
    index: Indexer,
    kept: dict[str, Surface | None],
    free: Mapping[str, tuple[str, ...]],
) -> Mapping[str, Surface | None]:
    """Return every surface in its camera's own axes, where it does not move with the pose."""
    for name, view in views.items():
        if name not in kept or set(free.get(name, ())) - {"pose"}:
            local = dataclasses.replace(view, camera_to_world=np.eye(4))
            kept[name] = observe(local, index) if view.usable else None
    return kept


def _moment_rows(
    views: Mapping[str, View],
    free: Sequence[str],
    reach: _Reach,
    surfaces: Mapping[str, Surface | None],
) -> list[tuple[str, str, _Rows]]:
    found = []
    for a, b in itertools.permutations(surfaces, 2):
        source, target = surfaces[a], surfaces[b]
        if (a in free or b in free) and source is not None and target is not None:
            relative = np.linalg.inv(views[b].camera_to_world) @ views[a].camera_to_world
            found += [(a, b, rows) for rows in _pair_rows(source, target, relative, reach)]
    return found


def _pair_rows(
    source: Surface, target: Surface, relative: np.ndarray, reach: _Reach
) -> Iterator[_Rows]:
    step = -(-len(source.points) // reach.max_points)
    own = source.points[step // 2 :: step]
    points = own @ relative[:3, :3].T + relative[:3, 3]
    pixels, depth = project(points, target.view)
    row, column, inside = locate(pixels, target.view)
    seen = target.view.depth_m[row, column]
    used = inside & (seen > 0) & (depth <= seen + max(limits.BEHIND_M, reach.gate))
    beside = target.silhouettes[row, column]
    used &= ~beside | (depth <= target.front[row, column] + limits.SILHOUETTE_M)
    if not used.any():
        return
    distance, nearest = target.search(points[used])
    used[used] = distance < reach.gate
    nearest = nearest[distance < reach.gate]
    own, points, turn = own[used], points[used], relative[:3, :3]
    partner, normals = target.points[nearest], target.normals[nearest]
    off = np.einsum("ni,ni->n", points - partner, normals)
    across = np.linalg.norm(points - partner - off[:, None] * normals, axis=-1)
    flat = (normals != 0).any(axis=-1)
    flat &= across <= TANGENT_FOOTPRINTS * target.footprints[nearest]
    yield _distance_rows("plane", own[flat], points[flat], partner[flat], normals[flat], turn)
    others = own[~flat], points[~flat], partner[~flat]
    for axis in np.eye(3):
        yield _distance_rows("point", *others, np.broadcast_to(axis, others[0].shape), turn)
    if reach.colours and used.sum() > limits.MIN_SHARED_POINTS:
        shades = source.shades[step // 2 :: step][used]
        yield _colour_rows(own, points, pixels[used], shades, target, turn)


def _distance_rows(
    kind: str,
    own: Float[np.ndarray, "n 3"],
    points: Float[np.ndarray, "n 3"],
    partner: Float[np.ndarray, "n 3"],
    normals: Float[np.ndarray, "n 3"],
    turn: Float[np.ndarray, "3 3"],
) -> _Rows:
    return _Rows(
        kind,
        residuals=np.einsum("ni,ni->n", points - partner, normals),
        source=_derivatives(own, own, normals @ turn),
        target=-_derivatives(points, partner, normals),
    )


def _colour_rows(
    own: Float[np.ndarray, "n 3"],
    points: Float[np.ndarray, "n 3"],
    pixels: Float[np.ndarray, "n 2"],
    shades: Float[np.ndarray, "n"],
    target: Surface,
    turn: Float[np.ndarray, "3 3"],
) -> _Rows:
    """Compare grey values where points fall in the other image, each relative to its own spread."""
    at = [pixels[:, 1] - 0.5, pixels[:, 0] - 0.5]
    values, down, right = (
        scipy.ndimage.map_coordinates(image, at, order=1, mode="nearest")
        for image in target.gradients
    )
    theirs, ours = max(values.std(), 1e-3), max(shades.std(), 1e-3)
    focal = np.diagonal(target.view.intrinsics)[:2]
    x, y = (right * focal[0] / points[:, 2], down * focal[1] / points[:, 2])
    slopes = np.stack([x, y, -(x * points[:, 0] + y * points[:, 1]) / points[:, 2]], axis=1)
    slopes /= theirs
    derivatives = -_derivatives(points, points, slopes)
    derivatives[:, 6:8] = 0.0  # the other's depth has no part in where points fall
    return _Rows(
        "colour",
        residuals=(values - values.mean()) / theirs - (shades - shades.mean()) / ours,
        source=_derivatives(own, own, slopes @ turn),
        target=derivatives,
    )


def _derivatives(
    moved: Float[np.ndarray, "n 3"], lifted: Float[np.ndarray, "n 3"], normals: np.ndarray
) -> Float[np.ndarray, "n 9"]:
    """Return the derivatives along the normals: of rigid motion, and of the pixels' points."""
    flat = lifted * np.array([-1.0, -1.0, 0.0])
    return np.concatenate(
        [
            np.cross(moved, normals),
            normals,
            (lifted * normals).sum(axis=1, keepdims=True),
            (lifted / lifted[:, 2:] * normals).sum(axis=1, keepdims=True),
            (flat * normals).sum(axis=1, keepdims=True),
        ],
        axis=1,
    )


def _solve(
    rows: Sequence[Sequence[tuple[str, str, _Rows]]],
    names: Sequence[str],
    mask: np.ndarray,
    gate: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the Gauss-Newton step and the standard errors, 0 where nothing is free."""
    size = len(mask)
    scales = {}
    for kind, least in FLOORS.items():
        floor = max(least, COARSE[kind] * (gate - GATES_M[-1]))
        residuals = np.abs(_residuals(rows, kind))
        scales[kind] = max(1.4826 * float(np.median(residuals)), floor) if len(residuals) else floor
    hessian, gradients = np.zeros((size, size)), []
    for moment in rows:
        gradient = np.zeros(size)
        for a, b, r in moment:
            share = 1 - np.square(r.residuals / (4.685 * scales[r.kind]))
            weights = np.square(np.maximum(share, 0.0)) / scales[r.kind] ** 2
            matrix = np.zeros((len(weights), size))
            for name, part in ((a, r.source), (b, r.target)):
                if name in names:
                    k = names.index(name) * UNKNOWNS
                    matrix[:, k : k + UNKNOWNS] = part
            hessian += matrix.T @ (weights[:, None] * matrix)
            gradient += matrix.T @ (weights * r.residuals)
        gradients.append(gradient)
    total = np.sum(gradients, axis=0)
    prior = np.diag(1 / np.square(np.tile(PRIOR, len(names))))
    inner = np.ix_(mask, mask)
    inverse = np.linalg.inv((hessian + prior)[inner])
    step, error = np.zeros(size), np.zeros(size)
    step[mask] = -inverse @ total[mask]
    each = np.stack(gradients)[:, mask] - total[mask] / len(gradients)
    count = len(gradients)
    spread = inverse @ (each.T @ each) @ inverse * count / max(count - 1, 1)
    error[mask] = np.sqrt(np.maximum(np.diag(spread), np.diag(inverse) * 0.05))
    return step, error
