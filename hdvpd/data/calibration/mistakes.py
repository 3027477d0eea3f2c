"""The usual mistakes, by name.

A mistake is known by its repair: what would undo it.
"""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Float
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.images import sentinel
from hdvpd.data.calibration.views import View
from hdvpd.data.pinhole import AXES, pixel_directions

DEPTH_FACTORS = (1e-3, 1e-4, 2e-4, 2.5e-4, 1e-2, 0.1, 0.0254, 10.0, 100.0, 1e3, 1e4)
"""Metres per declared metre: millimetres, 0.1 mm, 1/5000 m (TUM), 0.25 mm (RealSense L515), ..."""
COMMON_SIZES = (
    (480, 640), (240, 320), (120, 160), (720, 1280), (360, 640), (1080, 1920), (540, 960),
    (480, 848), (240, 424), (800, 1280), (1024, 1024), (512, 512), (256, 256), (224, 224),
    (128, 128), (84, 84), (96, 128),
)  # fmt: skip
"""Rows and columns of images to which unscaled intrinsics may belong."""
LIKE_CORRECTIONS = frozenset(
    {
        "depth along the ray", "invalid depth stored as a code", "negative focal length",
        "unscaled intrinsics", "unshifted principal point",
    }
)  # fmt: skip
"""Mistakes that a small change of pose, depth or focal length resembles."""
ViewRepair = Callable[[View], View | None]
"""Undoes a mistake in one view; None where the view cannot have it."""
Views = Mapping[str, View]
"""All views of a moment, by camera."""


@dataclass(frozen=True)
class Mistake:
    """A hypothesis: these cameras have this mistake.

    Attributes:
      name: of the mistake.
      cameras: that have it.
      fix: what to do.
      repair: returns all views of a moment without the mistake.
    """

    name: str
    cameras: tuple[str, ...]
    fix: str
    repair: Callable[[Views], Views]


def hypotheses(views: Views) -> Iterator[Mistake]:
    """List the mistakes that these cameras may have, the commonest first."""
    names = tuple(views)
    groups = [names] if len(names) == 1 else [names, *((name,) for name in names)]
    for name, fix, repair in _view_repairs(views):
        for cameras in groups:
            if all(repair(views[camera]) is not None for camera in cameras):
                yield Mistake(name, cameras, fix, _on(cameras, repair))
    yield from _swaps(views)


def _on(cameras: Sequence[str], repair: ViewRepair) -> Callable[[Views], Views]:
    return lambda views: {
        name: (repair(view) or view) if name in cameras else view for name, view in views.items()
    }


def _view_repairs(views: Views) -> Iterator[tuple[str, str, ViewRepair]]:
    for factor in DEPTH_FACTORS:
        fix = f"multiply depth_unit_m in dataset.json by {factor:g} (or the stored depth)"
        yield "wrong depth unit", fix, _depth_factor(factor)
    yield from _OF_POSES
    for size in _original_sizes(views):
        fix = _scaling_text(size, views)
        yield "unscaled intrinsics", fix, lambda view, size=size: _rescaled(view, size)
    yield from _OF_IMAGES


def _swaps(views: Views) -> Iterator[Mistake]:
    for pair in itertools.combinations(views, 2):
        first, second = (views[name] for name in pair)
        if first.depth_m.shape == second.depth_m.shape:
            yield Mistake(
                "swapped cameras",
                pair,
                f"exchange the images of {pair[0]} and {pair[1]} (or their intrinsics and poses)",
                _exchange(pair, ("intrinsics", "camera_to_world")),
            )
        yield Mistake(
            "swapped camera poses",
            pair,
            f"exchange camera_to_world of {pair[0]} and {pair[1]}",
            _exchange(pair, ("camera_to_world",)),
        )


def _exchange(pair: tuple[str, str], fields: Sequence[str]) -> Callable[[Views], Views]:
    def apply(views: Views) -> Views:
        first, second = (views[name] for name in pair)
        return {
            **views,
            pair[0]: dataclasses.replace(first, **{f: getattr(second, f) for f in fields}),
            pair[1]: dataclasses.replace(second, **{f: getattr(first, f) for f in fields}),
        }

    return apply


def _depth_factor(factor: float) -> ViewRepair:
    def repair(view: View) -> View | None:
        valid = view.depth_m[view.depth_m > 0]
        low, high = limits.MEDIAN_DEPTH_M
        if not valid.size or not low <= factor * np.median(valid) <= high:
            return None
        return dataclasses.replace(view, depth_m=view.depth_m * factor)

    return repair


def _pose(change: Callable[[np.ndarray], np.ndarray | None]) -> ViewRepair:
    def repair(view: View) -> View | None:
        pose = view.camera_to_world
        if not np.isfinite(pose).all() or abs(np.linalg.det(pose)) < 1e-9:
            return None
        changed = change(pose)
        return None if changed is None else dataclasses.replace(view, camera_to_world=changed)

    return repair


def _transpose_rotation(pose: Float[np.ndarray, "4 4"]) -> Float[np.ndarray, "4 4"]:
    result = pose.copy()
    result[:3, :3] = pose[:3, :3].T
    return result


def _millimetres(pose: Float[np.ndarray, "4 4"]) -> Float[np.ndarray, "4 4"] | None:
    if np.abs(pose[:3, 3]).max() < limits.MEDIAN_DEPTH_M[1]:
        return None
    result = pose.copy()
    result[:3, 3] /= 1000.0
    return result


def _coppelia(view: View) -> View | None:
    pose = _pose(lambda p: p @ AXES["coppeliasim"])(view)
    return None if pose is None else _with_intrinsics(pose, np.abs(view.intrinsics))


def _positive(view: View) -> View | None:
    return _with_intrinsics(view, np.abs(view.intrinsics)) if (view.intrinsics < 0).any() else None


def _without_code(view: View) -> View | None:
    code = sentinel(view.depth_m[view.depth_m > 0], view.depth_m.size)
    if code is None:
        return None
    return dataclasses.replace(view, depth_m=np.where(view.depth_m == code, 0.0, view.depth_m))


def _planar(view: View) -> View | None:
    if not view.usable:
        return None
    directions = pixel_directions(view.intrinsics, view.depth_m.shape)
    rays = np.linalg.norm(directions, axis=-1)
    return dataclasses.replace(view, depth_m=view.depth_m / rays)


def _flipped(signs: tuple[float, float]) -> ViewRepair:
    columns, rows = (slice(None, None, int(sign)) for sign in signs)
    return lambda view: dataclasses.replace(
        view, rgb=view.rgb[rows, columns], depth_m=view.depth_m[rows, columns]
    )


def _with_intrinsics(view: View, intrinsics: Float[np.ndarray, "3 3"]) -> View:
    return dataclasses.replace(view, intrinsics=intrinsics)


def _recorded_center(view: View) -> tuple[float, float]:
    """Principal point as stored: x, y in pixels of the recorded image."""
    scale = view.size[0] / view.depth_m.shape[0], view.size[1] / view.depth_m.shape[1]
    return float(view.intrinsics[0, 2] * scale[1]), float(view.intrinsics[1, 2] * scale[0])


def _original_sizes(views: Views) -> list[tuple[float, float]]:
    """List image sizes (rows, columns) to which the stored principal points may belong."""
    sizes: list[tuple[float, float]] = []
    for view in views.values():
        x, y = _recorded_center(view)
        common = [(float(rows), float(columns)) for rows, columns in COMMON_SIZES]
        fitting = [size for size in common if _centers(size, (x, y))]
        sizes += sorted(fitting, key=lambda s, x=x, y=y: abs(s[0] / 2 - y) + abs(s[1] / 2 - x))
        sizes.append((2 * y, 2 * x))
    return list(dict.fromkeys(size for size in sizes if min(size) > 1))


def _centers(size: tuple[float, float], center: tuple[float, float]) -> bool:
    rows, columns = size
    offset = abs(center[0] / columns - 0.5), abs(center[1] / rows - 0.5)
    return max(offset) < limits.CENTER_OFFSET / 2


def _rescaled(view: View, size: tuple[float, float]) -> View | None:
    scale = np.array([view.size[1] / size[1], view.size[0] / size[0], 1.0])
    if np.abs(scale - 1).max() < 0.02 or not _centers(size, _recorded_center(view)):
        return None
    return _with_intrinsics(view, view.intrinsics * scale[:, None])


def _scaling_text(size: tuple[float, float], views: Views) -> str:
    rows, columns = next(iter(views.values())).size
    return (
        f"multiply the first row of the intrinsics by {columns / size[1]:.4g} and the second by "
        f"{rows / size[0]:.4g}: they belong to an image of {size[0]:g}x{size[1]:g} pixels"
    )


def _centered(view: View) -> View | None:
    height, width = view.depth_m.shape
    center = np.array([width / 2, height / 2])
    if np.abs(view.intrinsics[:2, 2] - center).max() < 1:
        return None
    intrinsics = view.intrinsics.copy()
    intrinsics[:2, 2] = center
    return _with_intrinsics(view, intrinsics)


_OF_POSES: tuple[tuple[str, str, ViewRepair], ...] = (
    (
        "inverted extrinsics",
        "store the inverse of camera_to_world: it holds world-to-camera",
        _pose(np.linalg.inv),
    ),
    (
        "transposed extrinsics",
        "transpose the 4x4 camera_to_world: its translation stands in the last row",
        _pose(lambda pose: pose.T if np.abs(pose[3, :3]).max() > 1e-9 else None),
    ),
    (
        "transposed rotation",
        "transpose the 3x3 rotation of camera_to_world and keep its translation",
        _pose(_transpose_rotation),
    ),
    (
        "OpenGL axes",
        "convert to OpenCV axes: camera_to_world @ diag(1, -1, -1, 1)",
        _pose(lambda pose: pose @ AXES["opengl"]),
    ),
    (
        "inverted extrinsics with OpenGL axes",
        "store inv(camera_to_world) @ diag(1, -1, -1, 1): it holds an OpenGL view matrix",
        _pose(lambda pose: np.linalg.inv(pose) @ AXES["opengl"]),
    ),
    (
        "CoppeliaSim axes",
        "convert to OpenCV axes: camera_to_world @ diag(-1, -1, 1, 1), and take |f|",
        _coppelia,
    ),
    (
        "camera position in millimetres",
        "divide the translation of camera_to_world by 1000",
        _pose(_millimetres),
    ),
)
_OF_IMAGES: tuple[tuple[str, str, ViewRepair], ...] = (
    (
        "unshifted principal point",
        "subtract the crop's offset from cx and cy; the image's centre fits",
        _centered,
    ),
    ("negative focal length", "store the absolute value of fx and fy", _positive),
    (
        "depth along the ray",
        "divide depth by sqrt(1 + ((u - cx) / fx)^2 + ((v - cy) / fy)^2): it is the length of the "
        "ray, not planar z",
        _planar,
    ),
    (
        "images mirrored left to right",
        "reverse the columns of rgb and depth",
        _flipped((-1.0, 1.0)),
    ),
    (
        "images upside down",
        "reverse the rows of rgb and depth",
        _flipped((1.0, -1.0)),
    ),
    (
        "invalid depth stored as a code",
        "store 0 where the farthest depth stands, which many pixels hold exactly",
        _without_code,
    ),
)
