"""SSIM, PSNR, moving pixels and depth errors against formulas written out in float64."""

import numpy as np
import pytest
from skimage.metrics import structural_similarity

from hdvpd.basics.errors import UserError
from hdvpd.evaluation import metrics


def reference_ssim(image, truth):
    """SSIM by explicit loops over every window that lies inside the image (Wang et al. 2004)."""
    offsets = np.arange(-5, 6)
    kernel = np.exp(-(offsets**2) / (2 * 1.5**2))
    window = np.outer(kernel, kernel)
    window /= window.sum()
    c1, c2 = 0.01**2, 0.03**2
    height, width, _ = truth.shape
    values = []
    for i in range(5, height - 5):
        for j in range(5, width - 5):
            for c in range(3):
                x = image[i - 5 : i + 6, j - 5 : j + 6, c]
                y = truth[i - 5 : i + 6, j - 5 : j + 6, c]
                mean_x, mean_y = (window * x).sum(), (window * y).sum()
                var_x = (window * (x - mean_x) ** 2).sum()
                var_y = (window * (y - mean_y) ** 2).sum()
                covariance = (window * (x - mean_x) * (y - mean_y)).sum()
                luminance = (2 * mean_x * mean_y + c1) / (mean_x**2 + mean_y**2 + c1)
                structure = (2 * covariance + c2) / (var_x + var_y + c2)
                values.append(luminance * structure)
    return np.mean(values)


def image_pair(seed, height=19, width=23):
    rng = np.random.default_rng(seed)
    truth = rng.uniform(size=(height, width, 3))
    image = np.clip(truth + rng.normal(scale=0.1 * (seed + 1), size=truth.shape), 0, 1)
    return image, truth


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_ssim_is_the_published_formula_over_valid_windows(seed):
    image, truth = image_pair(seed)
    np.testing.assert_allclose(
        metrics.ssim(image, truth), reference_ssim(image, truth), rtol=0, atol=1e-10
    )


def test_ssim_equals_scikit_images_own_mean():
    image, truth = image_pair(3, 30, 41)
    expected = structural_similarity(
        image,
        truth,
        gaussian_weights=True,
        sigma=1.5,
        use_sample_covariance=False,
        data_range=1.0,
        channel_axis=-1,
    )
    assert metrics.ssim(image, truth) == pytest.approx(expected, abs=1e-12)


def test_ssim_ignores_the_precision_of_its_input():
    image, truth = image_pair(4)
    single = metrics.ssim(image.astype(np.float32), truth.astype(np.float32))
    assert single == pytest.approx(metrics.ssim(image, truth), abs=1e-6)


def test_ssim_of_equal_images_is_one_and_it_is_symmetric():
    image, truth = image_pair(5)
    assert metrics.ssim(truth, truth) == pytest.approx(1.0, abs=1e-12)
    assert metrics.ssim(image, truth) == pytest.approx(metrics.ssim(truth, image), abs=1e-12)


def test_ssim_of_two_uniform_images_is_the_luminance_term():
    low, high = np.full((12, 12, 3), 0.2), np.full((12, 12, 3), 0.6)
    expected = (2 * 0.2 * 0.6 + 1e-4) / (0.2**2 + 0.6**2 + 1e-4)
    assert metrics.ssim(low, high) == pytest.approx(expected, abs=1e-9)


def test_a_change_moves_ssim_only_within_the_window():
    truth = np.full((31, 31, 3), 0.5)
    image = truth.copy()
    image[15, 15] = 1.0
    changed = np.abs(metrics.ssim_map(image, truth) - 1.0) > 1e-9
    rows, columns = np.nonzero(changed)
    assert (rows.min(), rows.max()) == (10, 20)
    assert (columns.min(), columns.max()) == (10, 20)


def test_images_smaller_than_the_window_are_refused_with_the_remedy():
    small = np.zeros((10, 40, 3))
    with pytest.raises(UserError, match=r"10x40.*data\.height"):
        metrics.ssim(small, small)


def test_psnr_of_a_constant_error_is_closed_form():
    truth = np.full((12, 14, 3), 0.5)
    assert metrics.psnr(truth + 0.1, truth) == pytest.approx(20.0, abs=1e-9)
    assert metrics.psnr(truth, truth) == 100.0


@pytest.mark.parametrize(
    ("change", "threshold", "moves"),
    [((0.2, 0, 0), 0.1, True), ((0, 0, -0.2), 0.1, True), ((0.09, 0.09, 0.09), 0.1, False)],
)
def test_a_pixel_moves_if_any_channel_differs_by_more_than_the_threshold(change, threshold, moves):
    last = np.full((12, 12, 3), 0.5)
    truth = last.copy()
    truth[3, 7] += change
    moving = metrics.moving_pixels(truth, last, threshold)
    assert moving[3, 7] == moves
    assert moving.sum() == int(moves)


def test_moving_scores_look_at_moving_pixels_only():
    image, truth = image_pair(6)
    moving = np.zeros(truth.shape[:2], bool)
    moving[0, 0] = moving[8, 9] = moving[10, 2] = True
    scores = metrics.score_frame(image, truth, moving)
    errors = np.mean([(image[i, j] - truth[i, j]) ** 2 for i, j in ((0, 0), (8, 9), (10, 2))])
    assert scores.moving_psnr == pytest.approx(-10 * np.log10(errors), abs=1e-10)
    pixel_ssim = metrics.ssim_map(image, truth)
    expected = (pixel_ssim[0, 0] + pixel_ssim[8, 9] + pixel_ssim[10, 2]) / 3
    assert scores.moving_ssim == pytest.approx(expected, abs=1e-12)
    assert scores.ssim == pytest.approx(metrics.ssim(image, truth), abs=1e-12)
    assert scores.psnr == pytest.approx(metrics.psnr(image, truth), abs=1e-12)


def test_moving_psnr_of_all_pixels_is_psnr():
    image, truth = image_pair(7)
    scores = metrics.score_frame(image, truth, np.ones(truth.shape[:2], bool))
    assert scores.moving_psnr == pytest.approx(scores.psnr, abs=1e-12)


def test_a_frame_in_which_nothing_moves_has_no_moving_score():
    image, truth = image_pair(8)
    scores = metrics.score_frame(image, truth, np.zeros(truth.shape[:2], bool))
    assert np.isnan(scores.moving_ssim)
    assert np.isnan(scores.moving_psnr)
    assert np.isfinite([scores.ssim, scores.psnr]).all()


def test_depth_errors_of_known_ratios():
    truth = np.full((2, 3), 2.0)
    predicted = np.array([[2.0, 2.2, 1.8], [2.6, 1.5, 99.0]])
    valid = np.array([[True, True, True], [True, True, False]])
    relative, within = metrics.depth_errors(predicted, truth, valid)
    assert relative == pytest.approx((0 + 0.1 + 0.1 + 0.3 + 0.25) / 5)
    assert within == pytest.approx(3 / 5)


def test_depth_errors_without_a_valid_pixel_or_with_zero_depth():
    truth = np.zeros((2, 2))
    assert np.isnan(metrics.depth_errors(truth, truth, np.zeros((2, 2), bool))).all()
    relative, within = metrics.depth_errors(truth, truth + 1.0, np.ones((2, 2), bool))
    assert relative == pytest.approx(1.0, abs=1e-5)
    assert within == 0.0
