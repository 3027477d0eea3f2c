"""Scores of a window's images and depth against the whitened frames."""

from dataclasses import dataclass

import numpy as np

from hdvpd.basics.types import Batch, Bool, Float, Int
from hdvpd.data.truth import Objects
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.evaluation.metrics import depth_errors, moving_pixels, psnr, score_frame, ssim
from hdvpd.evaluation.pixels import (
    PIXEL_METRICS,
    PixelTruth,
    masked_psnr,
    median_depth_error,
    pixel_truth,
    score_pixels,
    sharpness,
)


@dataclass(frozen=True)
class WindowScores:
    """What a window scored; NaN where a score does not exist.

    Attributes:
      images: `METRICS` of the model, then of every control.
      pixels: `PIXEL_METRICS` likewise.
      depth: `DEPTH_METRICS` of the model.
      reconstruction: `RECONSTRUCTION_METRICS` of the last observed frame.
    """

    images: Float[np.ndarray, "predictors v s 4"]
    pixels: Float[np.ndarray, "predictors v s 5"]
    depth: Float[np.ndarray, "v s 2"]
    reconstruction: Float[np.ndarray, "v 5"]


def score_window(
    images: dict[str, Float[np.ndarray, "s v h w 3"]],
    depth_m: Float[np.ndarray, "s v h w"],
    reconstruction: tuple[Float[np.ndarray, "v h w 3"], Float[np.ndarray, "v h w"]],
    batch: Batch,
    whitened: tuple[Float[np.ndarray, "f v h w 3"], Bool[np.ndarray, "f v h w"]],
    *,
    moving_threshold: float,
    objects: Objects | None,
) -> WindowScores:
    """Score everything that was predicted of a window.

    Args:
      images: frames by predictor.
      depth_m: planar depth of the model's [m].
      reconstruction: colours and planar depth of the last observed frame, from its own particles.
      batch: the window.
      whitened: its frames, and the pixels that are not painted white.
      moving_threshold: see `metrics.moving_pixels`.
      objects: during the window, where they are known.
    """
    (truth, visible), now, first = whitened, OBSERVED_FRAMES - 1, OBSERVED_FRAMES
    shown, measured_m = pixel_truth(batch, visible, objects), np.asarray(batch.frames.depth_m)
    given = images, truth[first:], truth[now], moving_threshold
    owners = None if shown.owners is None else shown.owners[now]
    return WindowScores(
        images=score_images(*given),
        pixels=score_images_by_pixels(*given, shown),
        depth=score_depth(depth_m, measured_m[first:], visible[first:]),
        reconstruction=score_reconstruction(
            *reconstruction, truth[now], measured_m[now], visible[now], owners
        ),
    )


def score_images(
    images: dict[str, Float[np.ndarray, "s v h w 3"]],
    truth: Float[np.ndarray, "s v h w 3"],
    last_observed: Float[np.ndarray, "v h w 3"],
    moving_threshold: float,
) -> Float[np.ndarray, "predictors v s 4"]:
    """Score predictors' images.

    Returns:
      `METRICS` in the order of `images`.
    """
    steps, views = truth.shape[:2]
    scores = np.empty((len(images), views, steps, 4))
    for step, view in np.ndindex(steps, views):
        moving = moving_pixels(truth[step, view], last_observed[view], moving_threshold)
        for i, image in enumerate(images.values()):
            scores[i, view, step] = score_frame(image[step, view], truth[step, view], moving)
    return scores


def score_depth(
    depth_m: Float[np.ndarray, "s v h w"],
    truth_m: Float[np.ndarray, "s v h w"],
    visible: Bool[np.ndarray, "s v h w"],
) -> Float[np.ndarray, "v s 2"]:
    """Score the model's depth where depth was measured and can be rendered.

    Returns:
      `DEPTH_METRICS`.
    """
    steps, views = depth_m.shape[:2]
    scores = np.empty((views, steps, 2))
    for step, view in np.ndindex(steps, views):
        errors = depth_errors(depth_m[step, view], truth_m[step, view], visible[step, view])
        scores[view, step] = errors
    return scores


def score_images_by_pixels(
    images: dict[str, Float[np.ndarray, "s v h w 3"]],
    truth: Float[np.ndarray, "s v h w 3"],
    last_observed: Float[np.ndarray, "v h w 3"],
    moving_threshold: float,
    shown: PixelTruth,
) -> Float[np.ndarray, "predictors v s 5"]:
    """Score predictors' images on the pixels of objects, of the robot and of the rest.

    Returns:
      `PIXEL_METRICS` in the order of `images`.
    """
    steps, views = truth.shape[:2]
    owners = None if shown.owners is None else shown.owners[-steps:]
    scores = np.empty((len(images), views, steps, len(PIXEL_METRICS)))
    for step, view in np.ndindex(steps, views):
        frame = truth[step, view]
        moving = moving_pixels(frame, last_observed[view], moving_threshold)
        own = None if owners is None else owners[step, view]
        robot = shown.robot[step, view]
        for i, image in enumerate(images.values()):
            scores[i, view, step] = score_pixels(image[step, view], frame, moving, robot, own)
    return scores


def score_reconstruction(
    rgb: Float[np.ndarray, "v h w 3"],
    depth_m: Float[np.ndarray, "v h w"],
    truth: Float[np.ndarray, "v h w 3"],
    truth_m: Float[np.ndarray, "v h w"],
    visible: Bool[np.ndarray, "v h w"],
    owners: Int[np.ndarray, "v h w"] | None,
) -> Float[np.ndarray, "v 5"]:
    """Score an observed frame that was rendered from its own particles.

    Returns:
      `RECONSTRUCTION_METRICS`.
    """
    on = np.zeros(visible.shape, bool) if owners is None else owners >= 0
    return np.array(
        [
            [
                ssim(rgb[view], truth[view]),
                psnr(rgb[view], truth[view]),
                masked_psnr(rgb[view], truth[view], on[view]),
                sharpness(rgb[view], truth[view]),
                median_depth_error(depth_m[view], truth_m[view], visible[view]),
            ]
            for view in range(len(rgb))
        ]
    )
