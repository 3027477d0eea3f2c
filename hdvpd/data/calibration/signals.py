"""Are images, robot and commands on the same clock?

Two questions to the time series of an episode: at which lag does the motion in the images follow
the motion of the robot, and how many rows do the targets lead the measured positions?
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri, stdtrit

from hdvpd.basics.types import Float, UInt8
from hdvpd.data.calibration import limits

MAX_LAG = 5
MOVING = 1e-3
"""A joint or coordinate that moves less [rad or m] in an episode stands still."""
LONG_SHARE = 0.75
"""Share of all intervals that episodes long enough for a lag must hold for it to be tried."""
MIN_SAMPLES = 12
MIN_BLOCK = 6
"""Intervals in a piece of an episode that can speak for or against a lag."""


@dataclass(frozen=True)
class Lag:
    """Correlation of image motion with robot motion, by lag.

    Attributes:
      lags: [frames]; positive means that the images are late.
      correlations: at those lags.
      samples: intervals that were compared.
      effective: how many of them are independent, as both signals remember their past (Bartlett).
      blocks: pieces of episodes, longer than that memory, that can agree or not.
      agreement: mean gain of the best lag over lag 0 in the blocks, in its standard errors.
    """

    lags: tuple[int, ...]
    correlations: tuple[float, ...]
    samples: int
    effective: float
    blocks: int
    agreement: float

    @property
    def best(self) -> int:
        """The lag of the highest correlation."""
        return self.lags[int(np.argmax(self.correlations))]

    @property
    def at_zero(self) -> float:
        """Correlation without lag."""
        return self.correlations[self.lags.index(0)]

    @property
    def correlates(self) -> bool:
        """Whether the motion in the images is that of the robot at all, at the best lag."""
        chance = -ndtri(limits.LAG_CHANCE / len(self.lags))
        best = max(self.correlations)
        needed = max(limits.LAG_CORRELATION, np.tanh(chance / np.sqrt(max(self.effective - 3, 1))))
        return bool(self.effective > 4 and best >= needed)

    @property
    def proven(self) -> bool:
        """Whether the best lag, if it is not 0, is more than chance.

        It must be an inner maximum, correlate, and be better than lag 0 in the blocks by more than
        they scatter (Student's t, corrected for the number of lags).
        """
        inner = abs(self.best) < max(self.lags)
        if not (self.correlates and inner) or self.blocks < limits.MIN_LAG_BLOCKS:
            return False
        needed = -stdtrit(self.blocks - 1, limits.LAG_CHANCE / len(self.lags))
        return bool(self.agreement > needed)


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

    Returns:
      Mean distance [m], one per interval.
    """
    return np.linalg.norm(np.diff(points, axis=0), axis=-1).mean(axis=1)


def align(
    robot: Sequence[Float[np.ndarray, "_"]], image: Sequence[Float[np.ndarray, "_"]]
) -> Lag | None:
    """Correlate image motion with robot motion at every lag.

    Returns:
      Correlations over all episodes but a few too short ones, each taken relative to its own mean;
      None if nothing moves, there are too few frames, or the robot's motion is not finite.
    """
    reach = _reach([len(r) for r in robot])
    long = [len(r) >= 3 * reach for r in robot]
    robot, image = list(itertools.compress(robot, long)), list(itertools.compress(image, long))
    if sum(len(r) for r in robot) < MIN_SAMPLES or reach < 1:
        return None
    # Not finite: a finding of its own, which says nothing of time.
    if not np.max([np.ptp(r) for r in robot]) >= MOVING / 10:
        return None
    lags = tuple(range(-reach, reach + 1))
    pairs = [_centred(r, i) for r, i in zip(robot, image, strict=True)]
    # Rows at which every lag can be read, so that all lags are judged by the same.
    products = {
        lag: [r[reach : len(r) - reach] * i[reach + lag : len(i) - reach + lag] for r, i in pairs]
        for lag in lags
    }
    scale = np.sqrt(sum((r**2).sum() for r, _ in pairs) * sum((i**2).sum() for _, i in pairs))
    share = sum(len(r) for r, _ in pairs) / max(sum(len(p) for p in products[0]), 1)
    found = [float(share * sum(p.sum() for p in products[k]) / max(scale, 1e-12)) for k in lags]
    memory = _memory(pairs)
    best = lags[int(np.argmax(found))]
    gains = [
        np.mean(piece)
        for at_best, at_zero in zip(products[best], products[0], strict=True)
        for piece in _pieces(at_best - at_zero, max(MIN_BLOCK, int(np.ceil(2 * memory))))
    ]
    spread = np.std(gains, ddof=1) / np.sqrt(len(gains)) if len(gains) > 1 else np.inf
    samples = sum(len(r) for r in robot)
    agreement = float(np.mean(gains) / max(spread, 1e-12)) if gains else 0.0
    return Lag(lags, tuple(found), samples, samples / memory, len(gains), agreement)


def _reach(lengths: Sequence[int]) -> int:
    """Return the largest lag that most episodes can tell: a short one does not decide for all."""
    needed = LONG_SHARE * sum(lengths)
    reaches = range(MAX_LAG, 0, -1)
    return next((k for k in reaches if sum(n for n in lengths if n >= 3 * k) >= needed), 0)


def _centred(robot: np.ndarray, image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return robot - robot.mean(), image - image.mean()


def _memory(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return how many successive samples count as one, by Bartlett's formula, at least 1."""
    total, shortest = 1.0, min(len(r) for r, _ in pairs)
    for lag in range(1, max(shortest // 2, 2)):
        both = [_autocorrelation([p[k] for p in pairs], lag) for k in (0, 1)]
        if min(both) <= 0.05:
            break
        total += 2 * both[0] * both[1]
    return total


def _autocorrelation(signals: Sequence[np.ndarray], lag: int) -> float:
    power = sum(float((s**2).sum()) for s in signals)
    return sum(float((s[lag:] * s[:-lag]).sum()) for s in signals) / max(power, 1e-12)


def _pieces(values: np.ndarray, length: int) -> list[np.ndarray]:
    """Cut an episode into pieces of at least this length; a short one is a piece of its own."""
    return np.array_split(values, max(len(values) // length, 1)) if len(values) else []


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


def clearly_more(
    first: Float[np.ndarray, "n"], second: Float[np.ndarray, "n"], margin: float
) -> bool:
    """Say whether numbers exceed others, moment by moment, by a margin and more than they scatter.

    Args:
      first: one number per moment; not finite is more than anything.
      second: as many of something else.
      margin: difference of the means that is none.
    """
    if len(first) != len(second) or not np.isfinite(second).all():
        return False
    differences = first - second
    if not np.isfinite(differences).all():
        return True
    if differences.mean() < margin or not len(differences):
        return False
    count = len(differences)
    if count < 2:
        return True
    error = max(float(differences.std(ddof=1)) / np.sqrt(count), 1e-9)
    return bool(differences.mean() / error > -stdtrit(count - 1, 0.01))
