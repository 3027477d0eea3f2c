"""The heat kernel of the hypercube against the exponential of its Laplacian."""

import numpy as np
import pytest
from mask_contract import check_attention, check_gradient, check_mask
from scipy.linalg import expm

from hdvpd.basics.errors import UserError
from studies.attention.masks.hypercube import hypercube_mask


def heat_kernel(num_tokens, diffusion_time):
    joined = np.array([
        [(i ^ j).bit_count() == 1 for j in range(num_tokens)] for i in range(num_tokens)
    ], float)  # fmt: skip
    return expm(-diffusion_time * (np.diag(joined.sum(1)) - joined))


# 64 corners take one pass over their bits, 256 two.
@pytest.mark.parametrize(
    ("num_tokens", "diffusion_time"), [(1, 0.5), (2, 0.0), (64, 0.3), (256, 0.2)]
)
def test_product_and_dense_form(num_tokens, diffusion_time):
    mask = hypercube_mask(num_tokens, diffusion_time)
    check_mask(mask, heat_kernel(num_tokens, diffusion_time))


def test_diffusion_times_add_and_heat_is_kept():
    x = np.random.default_rng(1).normal(size=(16, 2)).astype(np.float32)
    twice = hypercube_mask(16, 0.5) @ (hypercube_mask(16, 0.7) @ x)
    np.testing.assert_allclose(hypercube_mask(16, 1.2) @ x, twice, atol=1e-6)
    np.testing.assert_array_equal(hypercube_mask(16, 0.0) @ x, x)
    np.testing.assert_allclose(hypercube_mask(16, 1.2).dense().sum(1), 1, rtol=1e-6)


def test_attention():
    check_attention(hypercube_mask(8, 0.4), heat_kernel(8, 0.4))


def test_gradient_with_respect_to_the_diffusion_time():
    x, weights = np.random.default_rng(0).normal(size=(2, 8, 2))
    check_gradient(lambda time: (weights * (hypercube_mask(8, time) @ x)).sum(), 0.6)


@pytest.mark.parametrize("num_tokens", [0, -4, 3, 12])
def test_number_of_corners_that_is_no_power_of_two_is_refused(num_tokens):
    with pytest.raises(UserError, match="2\\^q corners"):
        hypercube_mask(num_tokens, 1.0)


@pytest.mark.parametrize("diffusion_time", [-0.1, float("nan"), float("inf")])
def test_negative_diffusion_time_is_refused(diffusion_time):
    with pytest.raises(UserError, match="must be finite and >= 0"):
        hypercube_mask(4, diffusion_time)
