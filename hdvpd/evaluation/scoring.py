"""Scores of a window's images and depth against the whitened frames."""

import numpy as np

from hdvpd.evaluation.metrics import depth_errors, moving_pixels, score_frame
from hdvpd.types import Bool, Float


def score_images(
    images: dict[str, Float[np.ndarray, "s v h w 3"]],
    truth: Float[np.ndarray, "s v h w 3"],
    last_observed: Float[np.ndarray, "v h w 3"],
    moving_threshold: float,
) -> Float[np.ndarray, "predictors v s 4"]:
    """Score predictors' images.

    Args:
      images: frames by predictor.
      truth: the whitened frames they predict.
      last_observed: the whitened last observed frame.
      moving_threshold: see `metrics.moving_pixels`.

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

    Args:
      depth_m: rendered planar depth [m].
      truth_m: measured planar depth [m].
      visible: pixels that are not painted white.

    Returns:
      `DEPTH_METRICS`.
    """
    steps, views = depth_m.shape[:2]
    scores = np.empty((views, steps, 2))
    for step, view in np.ndindex(steps, views):
        errors = depth_errors(depth_m[step, view], truth_m[step, view], visible[step, view])
        scores[view, step] = errors
    return scores
