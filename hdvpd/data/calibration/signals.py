"""Are images, robot and commands on the same clock?

Two questions to the time series of an episode: at which lag does the motion in the images follow
the motion of the robot, and how many rows do the targets lead the measured positions?
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hdvpd.types import Float, UInt8

MAX_LAG = 5
MOVING = 1e-3
"""A joint or coordinate that moves less [rad or m] in an episode stands still."""
MIN_SAMPLES = 12


@dataclass(frozen=True)
class Lag:
    """Correlation of image motion with robot motion, by lag.

    Attributes:
      lags: [frames]; positive means that the images are late.
      correlations: at those lags.
      samples: frames that were compared at lag 0.
    """

    lags: tuple[int, ...]
    correlations: tuple[float, ...]
    samples: int

    @property
    def best(self) -> int:
        """The lag of the highest correlation."""
        return self.lags[int(np.argmax(self.correlations))]

    @property
    def at_zero(self) -> float:
        """Correlation without lag."""
        return self.correlations[self.lags.index(0)]


@dataclass(frozen=True)
class Lead:
    """Distance of targets from later positions, by the number of rows between them.

    Attributes:
      leads: rows [frames]; positive means that the target comes first.
      errors: mean distance of the target of row t from the position of row t + lead, in units of
        the range of motion; 0 is an exact match.
      samples: rows that were compared.
    """

    leads: tuple[int, ...]
    errors: tuple[float, ...]
    samples: int

    @property
    def best(self) -> int:
        """The lead of the smallest distance."""
        return self.leads[int(np.argmin(self.errors))]

    @property
    def error(self) -> float:
        """The smallest distance."""
        return min(self.errors)


def image_motion(rgb: UInt8[np.ndarray, "f h w 3"]) -> Float[np.ndarray, "s"]:
    """Measure how much the image changes from frame to frame.

    Returns:
      Mean absolute difference of grey values in [0, 1], one per interval.
    """
    step = max(1, int(np.sqrt(rgb.shape[1] * rgb.shape[2] / 20000)))
    gray = rgb[:, ::step, ::step].astype(np.float32).mean(axis=-1) / 255
    return np.abs(np.diff(gray, axis=0)).mean(axis=(1, 2)).astype(np.float64)


def point_motion(points: Float[np.ndarray, "f p 3"]) -> Float[np.ndarray, "s"]:
    """Measure how far the robot's points move from frame to frame.

    Args:
      points: kinematic points [m].

    Returns:
      Mean distance [m], one per interval.
    """
    return np.linalg.norm(np.diff(points, axis=0), axis=-1).mean(axis=1)


def align(
    robot: Sequence[Float[np.ndarray, "_"]], image: Sequence[Float[np.ndarray, "_"]]
) -> Lag | None:
    """Correlate image motion with robot motion at every lag.

    Args:
      robot: motion of the robot per interval, one array per episode.
      image: motion of the image, likewise.

    Returns:
      Correlations over all episodes, each taken relative to its own mean; None if nothing moves or
      there are too few frames.
    """
    shortest = min((len(r) for r in robot), default=0)
    reach = min(MAX_LAG, shortest // 3)
    if sum(len(r) for r in robot) < MIN_SAMPLES or reach < 1:
        return None
    if max(float(np.ptp(r)) for r in robot) < MOVING / 10:
        return None
    lags = tuple(range(-reach, reach + 1))
    found = tuple(_correlation(robot, image, lag) for lag in lags)
    return Lag(lags, found, sum(len(r) for r in robot))


def _correlation(robot: Sequence[np.ndarray], image: Sequence[np.ndarray], lag: int) -> float:
    first, second = [], []
    for r, i in zip(robot, image, strict=True):
        # Positive lag: what the robot did at t shows in the image at t + lag.
        r, i = (r[: len(r) - lag], i[lag:]) if lag >= 0 else (r[-lag:], i[:lag])
        first.append(r - r.mean())
        second.append(i - i.mean())
    x, y = np.concatenate(first), np.concatenate(second)
    scale = np.sqrt((x**2).sum() * (y**2).sum())
    return float((x * y).sum() / scale) if scale > 0 else 0.0


def target_lead(
    positions: Sequence[Float[np.ndarray, "_ d"]], targets: Sequence[Float[np.ndarray, "_ d"]]
) -> Lead | None:
    """Compare targets with positions of earlier and later rows.

    Args:
      positions: measured, one array per episode; any unit per column.
      targets: commanded, likewise. The last row repeats the one before and is not used.

    Returns:
      Distances over all episodes; None if no column moves or episodes are too short.
    """
    longest = max((len(p) for p in positions), default=0)
    reach = min(MAX_LAG, (longest - 2) // 3)
    if reach < 1:
        return None
    leads = tuple(range(-reach, reach + 1))
    errors = np.zeros(len(leads))
    samples = 0
    for p, t in zip(positions, targets, strict=True):
        extent = np.ptp(p, axis=0)
        moving = extent > MOVING
        rows = np.arange(reach, len(p) - reach)
        rows = rows[rows < len(p) - 1]
        if not moving.any() or not len(rows):
            continue
        samples += len(rows)
        for k, lead in enumerate(leads):
            off = np.abs(t[rows] - p[rows + lead])[:, moving] / extent[moving]
            errors[k] += off.mean(axis=1).sum()
    if not samples:
        return None
    return Lead(leads, tuple(float(e) for e in errors / samples), samples)
