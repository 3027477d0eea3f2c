"""Image and depth metrics, one declared definition each.

Images are RGB in [0, 1], channel last. Everything is computed in float64 whatever comes in, so
that a number does not depend on the precision of the model that made the image.

SSIM is the one of Wang et al. 2004: 11x11 Gaussian window with sigma 1.5, K1 = 0.01, K2 = 0.03,
population covariance, data range 1, the mean over RGB, and the mean over the pixels whose window
lies inside the image ("valid" borders, 5 pixels less on every side). scikit-image computes it;
its defaults (7x7 uniform window, sample covariance) give other numbers.
"""

from typing import NamedTuple

import numpy as np
from skimage.metrics import structural_similarity

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Bool, Float

WINDOW = 11
SIGMA = 1.5

SSIM_SETTINGS: dict[str, str | int | float | bool] = {
    "implementation": "skimage.metrics.structural_similarity",
    "window": "gaussian",
    "window_size": WINDOW,
    "sigma": SIGMA,
    "k1": 0.01,
    "k2": 0.03,
    "use_sample_covariance": False,
    "data_range": 1.0,
    "channels": "mean over RGB",
    "borders": "valid",
    "moving_pixels": "map at every moving pixel, windows at the border reflected",
}
"""What has to stand beside an SSIM for it to mean something; written into metrics.json."""

MIN_MSE = 1e-10
"""Identical images score 100 dB instead of infinity, so that means over frames stay finite."""


class FrameScores(NamedTuple):
    """Scores of one image against its truth; the moving ones are NaN when nothing moves."""

    ssim: float
    psnr: float
    moving_ssim: float
    moving_psnr: float


def ssim_map(
    image: Float[Array, "h w 3"], truth: Float[Array, "h w 3"]
) -> Float[np.ndarray, "h w"]:
    """Compute the SSIM of every pixel, averaged over RGB.

    The windows of the outermost 5 pixels reach beyond the image and are reflected there.

    Args:
      image: the image to score, in [0, 1].
      truth: the image to compare with, in [0, 1].

    Returns:
      SSIM per pixel, at most 1.

    Raises:
      UserError: the images are smaller than the window.
    """
    height, width = truth.shape[:2]
    if min(height, width) < WINDOW:
        raise UserError(
            f"Images of {height}x{width} pixels are too small for SSIM, whose window has "
            f"{WINDOW}x{WINDOW} pixels: use data.height and data.width of at least {WINDOW}."
        )
    result = structural_similarity(
        np.asarray(image, np.float64),
        np.asarray(truth, np.float64),
        gaussian_weights=True,
        sigma=SIGMA,
        use_sample_covariance=False,
        data_range=1.0,
        channel_axis=-1,
        full=True,
    )
    return np.asarray(result[1]).mean(axis=-1)


def valid_mean(pixel_ssim: Float[np.ndarray, "h w"]) -> float:
    """Average an SSIM map over the pixels whose window lies inside the image."""
    border = WINDOW // 2
    return float(pixel_ssim[border:-border, border:-border].mean())


def ssim(image: Float[Array, "h w 3"], truth: Float[Array, "h w 3"]) -> float:
    """Compute the SSIM of two images: 1 for equal ones, symmetric in its arguments."""
    return valid_mean(ssim_map(image, truth))


def psnr_of_mse(mse: float) -> float:
    """Convert a mean squared error of colours in [0, 1] to decibels, at most 100 (`MIN_MSE`)."""
    return float(10.0 * np.log10(1.0 / max(mse, MIN_MSE)))


def psnr(image: Float[Array, "h w 3"], truth: Float[Array, "h w 3"]) -> float:
    """Compute the PSNR of one frame [dB]; average frames' PSNRs, never their errors."""
    difference = np.asarray(image, np.float64) - np.asarray(truth, np.float64)
    return psnr_of_mse(float(np.mean(difference**2)))


def moving_pixels(
    truth: Float[Array, "h w 3"], last_observed: Float[Array, "h w 3"], threshold: float
) -> Bool[np.ndarray, "h w"]:
    """Find the pixels in which the truth has moved away from the last observed frame.

    Args:
      truth: whitened frame of one rollout step.
      last_observed: whitened last observed frame of the same camera.
      threshold: a pixel moves if any channel differs by more than this.
    """
    difference = np.abs(np.asarray(truth, np.float64) - np.asarray(last_observed, np.float64))
    return np.max(difference, axis=-1) > threshold


def score_frame(
    image: Float[Array, "h w 3"],
    truth: Float[Array, "h w 3"],
    moving: Bool[np.ndarray, "h w"],
) -> FrameScores:
    """Score one image, on the full frame and on the pixels that move.

    Args:
      image: the prediction, in [0, 1].
      truth: the whitened frame it predicts.
      moving: where the truth moves (`moving_pixels`); equal for all predictors of a frame.

    Returns:
      The four scores. A frame without moving pixels has NaN there, to be left out of means.
    """
    pixel_ssim = ssim_map(image, truth)
    square = (np.asarray(image, np.float64) - np.asarray(truth, np.float64)) ** 2
    moves = bool(moving.any())
    return FrameScores(
        ssim=valid_mean(pixel_ssim),
        psnr=psnr_of_mse(float(square.mean())),
        moving_ssim=float(pixel_ssim[moving].mean()) if moves else float("nan"),
        moving_psnr=psnr_of_mse(float(square[moving].mean())) if moves else float("nan"),
    )


def depth_errors(
    depth_m: Float[Array, "h w"],
    truth_m: Float[Array, "h w"],
    valid: Bool[np.ndarray, "h w"],
) -> tuple[float, float]:
    """Compare rendered with measured planar depth.

    Args:
      depth_m: rendered depth [m].
      truth_m: measured depth [m], positive where valid.
      valid: pixels that count: measured, inside the workspace box and within reach.

    Returns:
      The mean absolute error relative to the measured depth, and the share of pixels whose ratio
      of depths is below 1.25 either way. Both are NaN without a valid pixel.
    """
    if not valid.any():
        return float("nan"), float("nan")
    predicted = np.asarray(depth_m, np.float64)[valid]
    measured = np.asarray(truth_m, np.float64)[valid]
    # A rendered depth of zero is infinitely wrong in ratio, not a division by zero.
    predicted = np.maximum(predicted, 1e-6)
    ratio = np.maximum(predicted / measured, measured / predicted)
    relative = np.abs(predicted - measured) / measured
    return float(relative.mean()), float((ratio < 1.25).mean())
