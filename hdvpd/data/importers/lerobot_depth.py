"""What the numbers in a LeRobot depth feature mean."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hdvpd.basics.types import Float, Shaped
from hdvpd.data.importers import base, conversions
from hdvpd.data.importers.faults import SourcePlace
from hdvpd.data.importers.lerobot_info import Camera, Info
from hdvpd.data.importers.video import Picture

CODE_BITS = 12
_UNITS = {"mm": 0.001, "m": 1.0}
_INTEGER_M, _FLOAT_M = 0.001, 1.0
"""LeRobot's units of depth images where info.json names none."""


@dataclass(frozen=True)
class DepthCoding:
    """How depth is stored.

    Attributes:
      meaning: for people.
      unit_m: metres per unit; None for images whose type decides, and for codes.
      table: depth by code [m]; empty where samples are depth in a unit.
    """

    meaning: str
    unit_m: float | None = None
    table: Float[np.ndarray, "n"] = field(default_factory=lambda: np.zeros(0, np.float32))

    def metres(self, samples: Shaped[np.ndarray, "h w"]) -> Float[np.ndarray, "h w"]:
        """Convert samples to metres; 0 is invalid."""
        if len(self.table):
            return self.table[samples]
        unit = self.unit_m
        if unit is None:
            unit = _FLOAT_M if samples.dtype.kind == "f" else _INTEGER_M
        return conversions.metric_depth(samples, unit)

    def checked_samples(
        self, picture: Picture, place: SourcePlace, row: int
    ) -> Shaped[np.ndarray, "h w"]:
        """Return the samples of a video frame.

        Raises:
          BadEpisodeError: they have too few bits, or are no codes.
        """
        if picture.bits <= 8 or (len(self.table) and picture.bits != CODE_BITS):
            expected = f"{CODE_BITS}-bit codes" if len(self.table) else "more than 8"
            raise place.error(
                f"depth has {picture.bits} bits per pixel, expected {expected}",
                "An 8-bit video of depth is for people; store the depth itself.",
                row,
            )
        samples = picture.samples()
        if len(self.table) and samples.max() >= len(self.table):
            raise place.error(f"depth holds the code {samples.max()}, beyond 12 bits", "", row)
        return samples


def depth_coding(info: Info, camera: Camera, options: base.Options, name: str) -> DepthCoding | str:
    """Find out how a camera's depth is stored, or why the camera cannot be imported."""
    if not camera.depth:
        return (
            "it has no depth; most LeRobot data sets drop it: record with a depth feature, or take "
            "another data set"
        )
    about = info.about(camera.depth)
    given = options.sidecar.cameras.get(name)
    unit = options.depth_unit_m or (given and given.depth_unit_m)
    stated = about.get("depth_unit", info.features[camera.depth].get("depth_unit"))
    if info.dtype(camera.depth) == "video" and "video.depth_max" in about:
        return _codes(about)
    if unit is None and stated in _UNITS:
        unit = _UNITS[stated]
    if unit is not None:
        return DepthCoding(f"in units of {unit:g} m", unit)
    if info.dtype(camera.depth) == "video":
        return (
            "info.json does not say what its depth means; give --depth-unit-m, or depth_unit_m in "
            "the calibration file"
        )
    return DepthCoding("images, integers in millimetres or floats in metres")


def _codes(about: Any) -> DepthCoding | str:
    names = ("depth_min", "depth_max", "shift")
    values = [about.get(f"video.{name}", 0.0 if name == "shift" else None) for name in names]
    log = about.get("video.use_log")
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    good = len(numbers) == 3 and np.isfinite(numbers).all() and isinstance(log, bool)
    if not good or not 0 <= numbers[0] < numbers[1] or (log and not numbers[0] + numbers[2] > 0):
        return (
            f"info.json has depth_min, depth_max, shift, use_log = {[*values, log]} for its depth, "
            "which is no range in metres"
        )
    near, far, shift = map(float, numbers)
    kind = f"logarithmic, shift {shift:g} m" if log else "linear"
    return DepthCoding(
        f"12-bit codes from {near:g} to {far:g} m, {kind}",
        table=conversions.depth_of_codes(near, far, shift, logarithmic=bool(log)),
    )
