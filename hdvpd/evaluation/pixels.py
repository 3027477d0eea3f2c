"""Measures of images beyond whole frames: objects, the robot, the rest that moves, sharpness.

A pixel belongs to what it truly shows: its measured depth gives a point, and that point lies on an
object (where the data set knows them), near the robot's kinematic points, or on neither. Images are
RGB in [0, 1], channel last, computed in float64.
"""

from dataclasses import dataclass

import numpy as np
from scipy.spatial import KDTree
from skimage.color import deltaE_ciede2000, rgb2lab

from hdvpd.basics.geometry import unproject
from hdvpd.basics.types import Array, Batch, Bool, Float, Int
from hdvpd.data.truth import Objects
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.evaluation.metrics import psnr_of_mse

RECONSTRUCTION_METRICS = ("ssim", "psnr", "object_psnr", "sharpness", "depth_error_m")
"""Of the last observed frame, rendered from its particles: as of predicted frames, and the median
error of the rendered depth."""
PIXEL_METRICS = ("object_psnr", "object_color_error", "robot_psnr", "rest_psnr", "sharpness")
"""PSNR and colour error on objects' pixels; PSNR on the moving pixels that show or showed the
robot, and on all other moving pixels; gradient energy relative to the truth's."""
NEAR_ROBOT_M = 0.10
"""A pixel shows the robot if its point is this near to a kinematic point and on no object: a link's
surface is up to 9 cm from its axis. The table right under a hand counts as robot."""


@dataclass(frozen=True)
class PixelTruth:
    """What the pixels of a window show.

    Attributes:
      owners: number of the object, -1 for none, in every frame of the window; None where objects
        are not known.
      robot: the robot, in this predicted frame or in the last observed one.
    """

    owners: Int[np.ndarray, "f v h w"] | None
    robot: Bool[np.ndarray, "s v h w"]


def pixel_truth(
    batch: Batch, visible: Bool[np.ndarray, "f v h w"], objects: Objects | None
) -> PixelTruth:
    """Say what every pixel of a window shows.

    Args:
      batch: a window without a batch axis, numpy arrays.
      visible: pixels that are not painted white.
      objects: during the window, where they are known.
    """
    points = np.asarray(unproject(batch.frames.depth_m, batch.frames.camera))
    owners = np.full(visible.shape, -1)
    if objects is not None:
        owners = np.stack([objects.owners(f, frame) for f, frame in enumerate(points)])
        owners = np.where(visible, owners, -1)
    robot = np.stack(
        [near_points(p, r) for p, r in zip(points, np.asarray(batch.robot.positions), strict=True)]
    )
    robot &= visible & (owners < 0)
    last = OBSERVED_FRAMES - 1
    return PixelTruth(
        owners=None if objects is None else owners,
        robot=robot[OBSERVED_FRAMES:] | robot[last : last + 1],
    )


def near_points(
    places: Float[Array, "*batch 3"],
    points: Float[np.ndarray, "p 3"],
    near_m: float = NEAR_ROBOT_M,
) -> Bool[np.ndarray, "*batch"]:
    """Say which places lie nearer than `near_m` to one of some points [m]."""
    places = np.asarray(places)
    distance, _ = KDTree(points).query(places.reshape(-1, 3), distance_upper_bound=near_m, eps=0.0)
    return np.isfinite(distance).reshape(places.shape[:-1])


def masked_psnr(
    image: Float[np.ndarray, "h w 3"],
    truth: Float[np.ndarray, "h w 3"],
    mask: Bool[np.ndarray, "h w"],
) -> float:
    """Compute the PSNR of some pixels of a frame [dB]; NaN if there are none."""
    if not mask.any():
        return float("nan")
    difference = np.asarray(image, np.float64)[mask] - np.asarray(truth, np.float64)[mask]
    return psnr_of_mse(float(np.mean(difference**2)))


def color_error(
    image: Float[np.ndarray, "h w 3"],
    truth: Float[np.ndarray, "h w 3"],
    owners: Int[np.ndarray, "h w"],
) -> float:
    """Compare the mean colours of objects: place and sharpness hardly count, hue does.

    Args:
      image: the prediction.
      truth: what it predicts.
      owners: number of the object that a pixel truly shows, or -1.

    Returns:
      CIEDE2000 of an object's mean colour in the image against that in the truth, both over the
      pixels that truly show it; the mean over objects, NaN without one. About 2 is just seen, 10 is
      seen at a glance.
    """
    errors = []
    for number in np.unique(owners[owners >= 0]):
        own = owners == number
        pair = [np.asarray(x, np.float64)[own].mean(axis=0) for x in (image, truth)]
        lab = [rgb2lab(np.clip(color, 0.0, 1.0)) for color in pair]
        errors.append(float(deltaE_ciede2000(*lab)))
    return float(np.mean(errors)) if errors else float("nan")


def gradient_energy(image: Float[np.ndarray, "h w 3"]) -> float:
    """Return the mean square of the differences between neighbouring pixels."""
    image = np.asarray(image, np.float64)
    rows, columns = np.diff(image, axis=0), np.diff(image, axis=1)
    return float((np.sum(rows**2) + np.sum(columns**2)) / (rows.size + columns.size))


def sharpness(image: Float[np.ndarray, "h w 3"], truth: Float[np.ndarray, "h w 3"]) -> float:
    """Return an image's gradient energy relative to the truth's: 1 is as sharp, less is blurred.

    Noise counts as sharpness, so it says something only beside SSIM. NaN for a truth of one colour.
    """
    energy = gradient_energy(truth)
    return gradient_energy(image) / energy if energy > 0 else float("nan")


def score_pixels(
    image: Float[np.ndarray, "h w 3"],
    truth: Float[np.ndarray, "h w 3"],
    moving: Bool[np.ndarray, "h w"],
    robot: Bool[np.ndarray, "h w"],
    owners: Int[np.ndarray, "h w"] | None,
) -> tuple[float, ...]:
    """Score one image.

    Returns:
      `PIXEL_METRICS`; NaN where there is nothing of a kind.
    """
    if owners is None:
        on_objects = (float("nan"), float("nan"))
    else:
        psnr = masked_psnr(image, truth, owners >= 0)
        on_objects = (psnr, color_error(image, truth, owners))
    return (
        *on_objects,
        masked_psnr(image, truth, moving & robot),
        masked_psnr(image, truth, moving & ~robot),
        sharpness(image, truth),
    )


def median_depth_error(
    depth_m: Float[np.ndarray, "h w"],
    truth_m: Float[np.ndarray, "h w"],
    visible: Bool[np.ndarray, "h w"],
) -> float:
    """Return the median of |rendered - measured| planar depth where it is visible [m], or NaN."""
    if not visible.any():
        return float("nan")
    error = np.asarray(depth_m, np.float64)[visible] - np.asarray(truth_m, np.float64)[visible]
    return float(np.median(np.abs(error)))
