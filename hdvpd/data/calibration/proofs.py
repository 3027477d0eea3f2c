"""What the robot proves that cameras cannot: that the world is no mirror image, and its scale.

Cameras that agree with each other still agree when the whole world is mirrored or scaled about
them. The robot's points then lie elsewhere: each question compares how near they are to what is
seen, as stored and in the other world.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from hdvpd.basics.types import Float
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.clouds import Indexer, observe
from hdvpd.data.calibration.views import Moment, View, locate, project

FAR_M = 0.15
"""Points farther than this from everything seen, hidden or outside the image count as this far."""
MARGIN_M = 0.005
"""By how much nearer the robot must be to what is seen in one world than in the other [m]."""
SCALES = (1.05, 1.1, 1.2, 1.35)
"""Errors of scale that are tried, either way."""
FLIPS = {"left to right": (-1.0, 1.0), "upside down": (1.0, -1.0)}


@dataclass(frozen=True)
class WorldProofs:
    """What the robot says of the world as a whole.

    Attributes:
      flips: by kind of mirror image, how much farther the robot is from what is seen there than as
        stored, in standard errors; negative speaks for the mirror image.
      mirrored: the kind of mirror image that fits the robot clearly better than the world as
        stored, or None.
      scale: the least error of scale that the robot excludes either way, as a factor; None if
        none of `SCALES` is.
    """

    flips: Mapping[str, float]
    mirrored: str | None
    scale: float | None

    @property
    def handedness(self) -> bool:
        """Whether the robot proves that the world is not mirrored."""
        return bool(self.flips) and min(self.flips.values()) > 0 and self.mirrored is None


def world_proofs(moments: Sequence[Moment], index: Indexer) -> WorldProofs | None:
    """Ask the robot about the world's handedness and scale.

    Returns:
      None without a robot model: a few tool centres may lie anywhere between fingers.
    """
    known = [m for m in moments if m.robot is not None and len(m.robot) >= limits.MIN_SKELETON]
    if not known:
        return None
    worlds: dict[str, Callable[[View, np.ndarray], np.ndarray]] = {"stored": lambda _, p: p}
    for kind, signs in FLIPS.items():
        worlds[kind] = lambda view, points, signs=signs: mirror(points, view, signs)
    for scale in SCALES:
        for factor in (scale, 1 / scale):
            worlds[f"{factor}"] = lambda view, p, f=factor: _scaled(p, view, f)
    away = _distances(known, worlds, index)
    if not len(away["stored"]):
        return None
    better = {kind: _clearly(away[kind] - away["stored"]) for kind in worlds if kind != "stored"}
    mirrored = [kind for kind in FLIPS if better[kind] < 0]
    excluded = [s for s in SCALES if min(better[f"{s}"], better[f"{1 / s}"]) > 0]
    return WorldProofs(
        flips={kind: better[kind] for kind in FLIPS},
        mirrored=min(mirrored, key=lambda kind: away[kind].mean(), default=None),
        scale=min(excluded, default=None),
    )


def mirror(
    points: Float[np.ndarray, "p 3"], view: View, signs: tuple[float, float]
) -> Float[np.ndarray, "p 3"]:
    """Return where points would be seen if the image were mirrored in x or y.

    Args:
      points: in the world [m].
      view: whose image.
      signs: -1 for an axis of the image that is mirrored.
    """
    rotation, center = view.camera_to_world[:3, :3], view.camera_to_world[:3, 3]
    local = (points - center) @ rotation
    sizes = np.array([view.depth_m.shape[1], view.depth_m.shape[0]])
    focal = np.diagonal(view.intrinsics)[:2]
    turned = local[:, 2:] * (sizes - 2 * view.intrinsics[:2, 2]) / focal - local[:, :2]
    local[:, :2] = np.where(np.array(signs) < 0, turned, local[:, :2])
    return local @ rotation.T + center


def _scaled(points: np.ndarray, view: View, factor: float) -> np.ndarray:
    center = view.camera_to_world[:3, 3]
    return center + (points - center) / factor


def _distances(
    moments: Sequence[Moment],
    worlds: Mapping[str, Callable[[View, np.ndarray], np.ndarray]],
    index: Indexer,
) -> dict[str, Float[np.ndarray, "n"]]:
    """Return for every world the mean distance of the robot's points, by moment and camera."""
    found: dict[str, list[float]] = {name: [] for name in worlds}
    for moment in moments:
        for view in moment.views.values():
            surface = observe(view, index)
            if surface is None or moment.robot is None:
                continue
            values = {}
            for name, world in worlds.items():
                points = world(view, moment.robot)
                pixels, depth = project(points, view)
                row, column, inside = locate(pixels, view)
                seen = inside & (depth < surface.front[row, column] + limits.LINK_DEPTH_M)
                away = np.full(len(points), FAR_M)
                if seen.any():
                    away[seen] = np.minimum(surface.search(points[seen])[0], FAR_M)
                values[name] = away
            if any((values[name] < FAR_M).any() for name in ("stored", *FLIPS)):
                for name, away in values.items():
                    found[name].append(float(away.mean()))
    return {name: np.array(values) for name, values in found.items()}


def _clearly(differences: Float[np.ndarray, "n"]) -> float:
    """Return the mean in standard errors, 0 if it is not clearly positive or negative."""
    count = len(differences)
    if count < 3 or abs(differences.mean()) < MARGIN_M:
        return 0.0
    error = max(differences.std(ddof=1) / np.sqrt(count), 1e-6)
    sigmas = float(differences.mean() / error)
    needed = -stdtrit(count - 1, limits.LAG_CHANCE)
    return sigmas if abs(sigmas) > needed else 0.0
