"""Coefficients of masks against closed forms, matrix functions and each other."""

import functools
import math

import numpy as np
import pytest
import scipy.linalg
import scipy.special

from hdvpd.basics.errors import UserError
from studies.attention import power_series as series

SERIES = {
    "exp": series.exponential(12),
    "exp 0.25": series.exponential(12, time=0.25),
    "exp -0.5": series.exponential(12, time=-0.5),
    "heat": series.heat(12, time=1.7),
    "inverse 1": series.inverse_power(12, 1.0),
    "inverse 2": series.inverse_power(12, 2.0),
    "inverse 3": series.inverse_power(12, 3.0),
    "binomial 2": series.binomial_power(12, 2.0),
    "binomial 3": series.binomial_power(12, 3.0),
    "cos + sin": series.cosine_plus_sine(12, radius=0.4),
}


@pytest.mark.parametrize("name", SERIES)
def test_recursion_reproduces_the_closed_form_and_convolution_inverts_it(name):
    mask, modulation = SERIES[name]
    np.testing.assert_allclose(series.deconvolve(mask), modulation, atol=1e-14, rtol=1e-13)
    np.testing.assert_allclose(series.convolve(modulation), mask, atol=1e-14, rtol=1e-13)


def test_closed_forms_of_the_papers_table():
    # Written out from arXiv 2410.03462 and 2310.04859, independently of the cumulative products.
    order = np.arange(12)
    factorial = scipy.special.factorial(order)
    odd = np.array([scipy.special.factorial2(2 * k - 1) if k else 1.0 for k in order])
    even = np.array([scipy.special.factorial2(2 * k) if k else 1.0 for k in order])
    heat = np.exp(-0.85) * 0.85**order / factorial
    expected = {
        "exp": (1 / factorial, 1 / (2.0**order * factorial)),
        "exp 0.25": (0.25**order / factorial, 0.125**order / factorial),
        "exp -0.5": ((-0.5) ** order / factorial, (-0.25) ** order / factorial),
        "heat": (np.exp(-1.7) * 1.7**order / factorial, heat),
        "inverse 1": (np.ones(12), odd / even),
        "inverse 2": (order + 1, np.ones(12)),
        "inverse 3": ((order + 1) * (order + 2) / 2, scipy.special.poch(1.5, order) / factorial),
        "binomial 2": (scipy.special.binom(2, order), [1, 1, *[0] * 10]),
        "binomial 3": (scipy.special.binom(3, order), scipy.special.binom(1.5, order)),
    }
    for name, (mask, modulation) in expected.items():
        np.testing.assert_allclose(SERIES[name].mask, mask, rtol=1e-13, atol=1e-15)
        np.testing.assert_allclose(SERIES[name].modulation, modulation, rtol=1e-12, atol=1e-15)
    signs = [(-1) ** (k // 2) / math.factorial(k) for k in order]
    np.testing.assert_allclose(SERIES["cos + sin"].mask, signs, rtol=1e-14)
    np.testing.assert_allclose(
        SERIES["cos + sin"].modulation[:5], [1, 0.5, -0.375, 0.104167, -0.101563], atol=1e-6
    )


def test_dense_series_are_the_matrix_functions_and_factorise():
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(6, 6))
    matrix = matrix + matrix.T
    matrix *= 0.4 / np.abs(np.linalg.eigvalsh(matrix)).max()
    identity = np.eye(6)
    cosine_plus_sine = functools.partial(series.cosine_plus_sine, radius=0.4)
    expected = {
        series.exponential: scipy.linalg.expm(matrix),
        series.heat: scipy.linalg.expm(matrix - identity),
        series.inverse_power: np.linalg.inv(identity - matrix),
        series.binomial_power: (identity + matrix) @ (identity + matrix),
        cosine_plus_sine: scipy.linalg.cosm(matrix) + scipy.linalg.sinm(matrix),
    }
    for build, truth in expected.items():
        mask, modulation = build(45)
        np.testing.assert_allclose(series.power_series(matrix, mask), truth, atol=1e-12)
        factor = series.power_series(matrix, modulation)
        np.testing.assert_allclose(factor @ factor.T, truth, atol=1e-12)


def test_the_factor_of_cosine_plus_sine_converges_below_a_quarter_of_pi_only():
    z = -0.75
    for num_terms, error in ((50, 1e-2), (400, 1e-9)):
        factor = series.cosine_plus_sine(num_terms, radius=-z).modulation
        assert abs(np.polyval(factor[::-1], z) - np.sqrt(np.cos(z) + np.sin(z))) < error
    # Beyond, the terms grow, though those of the mask's own series do not.
    mask, factor = series.cosine_plus_sine(400, radius=0.0)
    powers = 0.85 ** np.arange(400)
    assert np.abs((factor * powers)[350:]).max() > 10 * np.abs((factor * powers)[50:100]).max()
    assert np.abs(mask * powers)[50:].max() < 1e-60
    for radius in (np.pi / 4, 1.0, np.nan, -0.1):
        with pytest.raises(UserError, match=r"radius = .*pi/4"):
            series.cosine_plus_sine(12, radius=radius)


def test_one_term_is_a_multiple_of_the_identity():
    np.testing.assert_array_equal(
        series.power_series(np.ones((3, 3)), np.array([2.0])), 2 * np.eye(3)
    )


@pytest.mark.parametrize("mask", [[0.0, 1.0], [-1.0, 1.0], [1.0, np.nan], [np.inf, 1.0]])
def test_coefficients_without_a_deconvolution_are_refused(mask):
    with pytest.raises(UserError, match=r"finite and the first positive"):
        series.deconvolve(np.array(mask))
