"""Means and their 95 % intervals: every "±" of the project comes from here."""

from typing import NamedTuple

import numpy as np
from scipy.special import stdtrit

from hdvpd.basics.types import Float

MIN_SAMPLES = 3
"""Fewer independent values say nothing useful of their spread: two give a factor of 12.7."""

_UPPER = 0.975


class Estimate(NamedTuple):
    """A mean and half the width of its 95 % interval, NaN where there is none; equal shapes."""

    mean: Float[np.ndarray, "..."]
    ci95: Float[np.ndarray, "..."]


def masked_mean(values: Float[np.ndarray, "..."], axis: int) -> Float[np.ndarray, "..."]:
    """Average along an axis, leaving NaN out; NaN where nothing is left."""
    known = np.isfinite(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def student_interval(values: Float[np.ndarray, "samples *columns"]) -> Estimate:
    """Average independent values, with Student's interval of the mean.

    The interval of paired differences is that of the differences.

    Args:
      values: independent samples, such as one number per episode; NaN is left out.

    Returns:
      One mean and half width per column. A half width needs `MIN_SAMPLES` values.
    """
    known = np.isfinite(values)
    count = known.sum(axis=0)
    mean = masked_mean(values, 0)
    freedom = np.maximum(count - 1, 1)
    variance = np.where(known, (values - mean) ** 2, 0.0).sum(axis=0) / freedom
    half_width = stdtrit(freedom, _UPPER) * np.sqrt(variance / np.maximum(count, 1))
    return Estimate(mean, np.where(count >= MIN_SAMPLES, half_width, np.nan))


def crossed_interval(values: Float[np.ndarray, "seeds episodes columns"]) -> Estimate:
    """Average over seeds and episodes, with the interval of the mean.

    The model is value = mean + seed effect + episode effect + rest, all effects random and normal.
    The variance of the mean follows from the mean squares of the two-way table, the quantile from
    Student's distribution with Satterthwaite's degrees of freedom (Biometrics Bulletin 2, 1946).
    An effect whose mean square does not exceed that of the rest counts as absent.

    Args:
      values: a table per column. Episodes in which a number is missing (NaN) are left out.

    Returns:
      One mean and half width per column. A half width needs `MIN_SAMPLES` episodes; with one seed
      it is Student's over episodes and says nothing of other seeds.
    """
    tables = [column[:, np.isfinite(column).all(axis=0)] for column in np.moveaxis(values, -1, 0)]
    mean, variance, freedom = np.transpose([_crossed_mean(table) for table in tables])
    return Estimate(mean, stdtrit(freedom, _UPPER) * np.sqrt(variance))


def _crossed_mean(values: Float[np.ndarray, "seeds episodes"]) -> tuple[float, float, float]:
    """Return the mean, its variance and that variance's degrees of freedom."""
    seeds, episodes = values.shape
    if episodes < MIN_SAMPLES:
        return float(values.mean()) if values.size else np.nan, np.nan, 1.0
    mean = values.mean()
    by_seed, by_episode = values.mean(axis=1) - mean, values.mean(axis=0) - mean
    rest = values - mean - by_seed[:, None] - by_episode
    freedom = np.maximum([seeds - 1, episodes - 1, (seeds - 1) * (episodes - 1)], 1)
    sums = [episodes * (by_seed**2).sum(), seeds * (by_episode**2).sum(), (rest**2).sum()]
    squares = np.array(sums) / freedom
    # The mean's variance times the number of values; the rest is contained in both effects.
    weights = np.append(squares[:2] > squares[2], 0.0)
    weights[2] = 1.0 - weights.sum()
    terms = weights * squares
    variance, spread = terms.sum(), (terms**2 / freedom).sum()
    if variance <= 0.0:
        return float(mean), 0.0, 1.0
    return float(mean), float(variance / values.size), float(variance**2 / spread)
