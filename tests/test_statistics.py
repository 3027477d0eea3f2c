"""Intervals of means: closed forms, scipy's tests, and coverage by simulation."""

import math

import numpy as np
import pytest
from scipy import stats

from hdvpd.basics.statistics import crossed_interval, masked_mean, student_interval

RNG = np.random.default_rng(0)
SEED_EFFECTS, EPISODE_EFFECTS = RNG.normal(size=3), RNG.normal(size=7)


def one_column(values):
    mean, ci95 = crossed_interval(np.asarray(values, float)[..., None])
    return mean.item(), ci95.item()


def half_width(sample):
    """Of Student's interval of a mean."""
    low, high = stats.t.interval(0.95, len(sample) - 1, np.mean(sample), stats.sem(sample))
    return (high - low) / 2


@pytest.mark.parametrize("samples", [3, 6, 20])
def test_interval_covers_the_true_mean_as_often_as_it_says(samples):
    values = np.random.default_rng(samples).normal(2.0, 3.0, size=(samples, 4000))
    mean, ci95 = student_interval(values)
    # 0.95 with a standard error of 0.0034.
    assert 0.93 < np.mean(np.abs(mean - 2.0) <= ci95) < 0.97


def test_interval_is_scipys():
    values = RNG.normal(size=(6, 3, 2))
    mean, ci95 = student_interval(values)
    for column in np.ndindex(3, 2):
        sample = values[:, *column]
        interval = stats.ttest_1samp(sample, 0).confidence_interval(0.95)
        assert mean[column] - ci95[column] == pytest.approx(interval.low)
        assert mean[column] + ci95[column] == pytest.approx(interval.high)


def test_below_three_values_there_is_no_interval():
    values = RNG.normal(size=(3, 2))
    values[1, 0] = np.nan
    mean, ci95 = student_interval(values)
    assert mean[0] == pytest.approx((values[0, 0] + values[2, 0]) / 2)
    assert math.isnan(ci95[0])
    assert ci95[1] == pytest.approx(half_width(values[:, 1]))
    for count in (1, 2):
        assert np.isnan(student_interval(values[:count, 1]).ci95)
    assert np.isnan(student_interval(np.full((4, 1), np.nan))).all()


def test_values_left_out_do_not_count():
    values = RNG.normal(size=5)
    holes = np.insert(values, 2, np.nan)
    np.testing.assert_allclose(student_interval(holes), student_interval(values))
    assert masked_mean(holes, 0) == pytest.approx(values.mean())


def test_equal_values_have_an_interval_without_width():
    np.testing.assert_allclose(student_interval(np.full(7, 0.3)), (0.3, 0.0), atol=1e-15)


def test_interval_of_a_table_computed_by_hand():
    # Mean squares 9 (seeds), 16 (episodes) and 4 (rest): the mean's variance is (9 + 16 - 4) / 6.
    values = 5 + np.array([[-1], [1]]) * math.sqrt(1.5) + np.array([-1, 0, 1]) * math.sqrt(8)
    values = values + np.array([[1, -2, 1], [-1, 2, -1]]) * math.sqrt(2 / 3)
    freedom = 21**2 / (9**2 + 16**2 / 2 + 4**2 / 2)
    expected = stats.t.ppf(0.975, freedom) * math.sqrt(21 / 6)
    assert one_column(values) == pytest.approx((5, expected))


def test_interval_of_one_effect_is_students():
    by_seed = np.repeat(SEED_EFFECTS[:, None], 7, axis=1)
    assert one_column(by_seed) == pytest.approx((SEED_EFFECTS.mean(), half_width(SEED_EFFECTS)))
    expected = EPISODE_EFFECTS.mean(), half_width(EPISODE_EFFECTS)
    assert one_column(np.repeat(EPISODE_EFFECTS[None], 3, axis=0)) == pytest.approx(expected)
    assert one_column(EPISODE_EFFECTS[None]) == pytest.approx(expected)


def test_interval_of_two_added_effects_is_welchs():
    # The mean of a_i + b_j is the difference of the means of a and -b.
    welch = stats.ttest_ind(SEED_EFFECTS, -EPISODE_EFFECTS, equal_var=False)
    low, high = welch.confidence_interval(0.95)
    found = one_column(SEED_EFFECTS[:, None] + EPISODE_EFFECTS)
    assert found == pytest.approx(((low + high) / 2, (high - low) / 2))


@pytest.mark.parametrize("spreads", [(1, 1, 1), (2, 0.3, 0.5), (0, 1, 0.5), (0, 0, 1)])
def test_interval_of_a_table_covers_the_truth_as_often_as_it_says(spreads):
    trials = 2000
    rng = np.random.default_rng(1)
    seed, episode, rest = (
        spread * rng.normal(size=shape)
        for spread, shape in zip(spreads, [(3, 1), (1, 8), (3, 8)], strict=True)
        for shape in [(*shape, trials)]
    )
    mean, ci95 = crossed_interval(seed + episode + rest)
    covered = np.mean(np.abs(mean) <= ci95)
    # Satterthwaite's quantile is approximate and an absent effect makes it wider, never narrower:
    # 0.95, less four standard errors of 2000 trials, or more.
    assert covered > 0.95 - 4 * math.sqrt(0.95 * 0.05 / trials)
    assert covered < 0.99


def test_episodes_without_a_score_are_left_out_of_a_table():
    values = SEED_EFFECTS[:, None] + EPISODE_EFFECTS
    holes = values.copy()
    holes[:, 2] = np.nan
    assert one_column(holes) == pytest.approx(one_column(np.delete(values, 2, axis=1)))
    assert np.isnan(one_column(np.full((2, 3), np.nan))).all()


@pytest.mark.parametrize("episodes", [1, 2])
def test_a_table_of_fewer_than_three_episodes_has_no_interval(episodes):
    values = SEED_EFFECTS[:, None] + EPISODE_EFFECTS[:episodes]
    mean, ci95 = one_column(values)
    assert mean == pytest.approx(values.mean())
    assert math.isnan(ci95)
