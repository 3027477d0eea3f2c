"""What one camera's images say alone: depth values, intrinsics, order of the channels."""

from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Float, Int, Shaped
from hdvpd.data.calibration import limits
from hdvpd.data.calibration.views import View, locate, project, world_points

MIN_CHROMA = 40
"""Red and blue of a reference colour must differ by this much [0..255] to tell their order."""


@dataclass(frozen=True)
class DepthValues:
    """What the stored depth of a camera looks like.

    Attributes:
      valid: share of finite, positive pixels without the sentinel.
      nan: share of NaN and infinite pixels.
      negative: share of negative pixels.
      low_m: 1st percentile of valid depth [m]; 0 without any.
      median_m: median of valid depth [m].
      high_m: 99th percentile of valid depth [m].
      sentinel_m: depth [m] that seems to be a code for "invalid", or None.
      z_buffer: whether it looks like a z-buffer in [0, 1] instead of metres.
    """

    valid: float
    nan: float
    negative: float
    low_m: float
    median_m: float
    high_m: float
    sentinel_m: float | None
    z_buffer: bool

    @property
    def plausible(self) -> bool:
        """Whether the unit can be right."""
        low, high = limits.MEDIAN_DEPTH_M
        return low <= self.median_m <= high


def depth_values(stored: Shaped[np.ndarray, "f h w"], unit_m: float) -> DepthValues:
    """Describe stored depth."""
    values = stored.astype(np.float64) * unit_m
    finite = np.isfinite(values)
    good = values[finite & (np.where(finite, values, 0) > 0)]
    code = sentinel(good, values.size) or _code_of_frames(values)
    good = good if code is None else good[good != code]
    low, median, high = np.percentile(good, [1, 50, 99]) if good.size else (0.0, 0.0, 0.0)
    return DepthValues(
        valid=good.size / values.size,
        nan=float(1 - finite.mean()),
        negative=float((values[finite] < 0).sum() / values.size),
        low_m=float(low),
        median_m=float(median),
        high_m=float(high),
        sentinel_m=code,
        z_buffer=bool(good.size and good.min() > 0.9 and good.max() <= 1.0),
    )


def _code_of_frames(values: Float[np.ndarray, "f h w"]) -> float | None:
    """Return the code for "invalid" that most frames have alone: what stands still repeats."""
    codes = [sentinel(frame[np.isfinite(frame) & (frame > 0)], frame.size) for frame in values]
    found = {code for code in codes if code is not None}
    most = 2 * sum(code is not None for code in codes) > len(codes)
    return found.pop() if most and len(found) == 1 else None


def sentinel(valid_m: Float[np.ndarray, "n"], pixels: int) -> float | None:
    """Find a depth that is a code for "invalid".

    Args:
      valid_m: positive depths [m].
      pixels: in all, invalid ones included.

    Returns:
      The farthest depth, if many pixels hold exactly it and it lies far beyond all others; or
      beyond them at all, where no other depth is found twice.
    """
    if not valid_m.size:
        return None
    farthest = valid_m.max()
    same = valid_m == farthest
    if same.sum() < limits.SENTINEL_SHARE * pixels:
        return None
    others = valid_m[~same]
    # A wall may be flat and far; a code lies far beyond everything. But an image with a surface
    # that is parallel to it has others whose depths repeat, too: floors before walls, tables.
    beyond = not others.size or farthest > 2 * others.max()
    if not beyond and farthest > limits.SENTINEL_GAP * others.max():
        beyond = len(np.unique(others)) > limits.SENTINEL_DISTINCT * others.size
    return float(farthest) if beyond else None


def intrinsics_faults(
    intrinsics: Float[np.ndarray, "3 3"], height: int, width: int
) -> tuple[list[str], list[str]]:
    """Judge whether intrinsics can belong to images of a size: what cannot be, what is unusual."""
    fx, fy, cx, cy = intrinsics[[0, 1, 0, 1], [0, 1, 2, 2]]
    faults, oddities = [], []
    if not (0 < cx < width and 0 < cy < height):
        faults.append(
            f"the principal point ({cx:.1f}, {cy:.1f}) lies outside the {height}x{width} image: "
            "intrinsics of another size, or of an uncropped image"
        )
    elif max(abs(cx / width - 0.5), abs(cy / height - 0.5)) > limits.CENTER_OFFSET:
        oddities.append(
            f"the principal point ({cx:.1f}, {cy:.1f}) is far from the centre of the "
            f"{height}x{width} image: cropped or resized without its intrinsics?"
        )
    if abs(fx / fy - 1) > limits.ASPECT:
        oddities.append(
            f"fx / fy = {fx / fy:.3f}: resized by different factors in x and y, or an error"
        )
    return faults, oddities


def color_preference(
    view: View, origin: Float[np.ndarray, "3"], reference: Int[np.ndarray, "3"]
) -> float | None:
    """Ask whether an object of known colour looks so as RGB or as BGR.

    The pixels asked are those whose points lie about as near to the object's origin as the nearest.
    Only the direction of a colour counts, not its brightness, and the best quarter of the pixels,
    as objects have marks of other colours.

    Args:
      view: the camera's image.
      origin: of the object in the world [m].
      reference: its declared RGB colour, 0 to 255.

    Returns:
      Angle to the swapped colour minus angle to the declared one [rad]: positive speaks for RGB.
      None if the camera does not see the object, or its colour does not tell.
    """
    red, _, blue = reference
    if abs(int(red) - int(blue)) < MIN_CHROMA or not view.usable:
        return None
    pixels, depth = project(origin[None], view)
    row, column, inside = locate(pixels, view)
    seen = view.depth_m[row[0], column[0]]
    if not inside[0] or seen <= 0 or not 0 <= depth[0] - seen <= limits.LINK_DEPTH_M:
        return None
    away = np.linalg.norm(world_points(view) - origin, axis=-1)
    away = np.where(view.depth_m > 0, away, np.inf)
    colors = view.rgb[away <= 1.3 * away.min() + 0.005].astype(np.float64) + 1e-3
    colors /= np.linalg.norm(colors, axis=1, keepdims=True)
    declared = reference / np.linalg.norm(reference)
    angles = [
        np.percentile(np.arccos(np.clip(colors @ wanted, -1, 1)), 25)
        for wanted in (declared, declared[::-1])
    ]
    return float(angles[1] - angles[0])
