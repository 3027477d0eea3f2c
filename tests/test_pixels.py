"""Measures of objects' pixels, colours and sharpness: closed forms and the analytic scene."""

import numpy as np
import pytest
from skimage.color import deltaE_ciede2000, rgb2lab

from hdvpd.config import DataConfig
from hdvpd.data.store import Dataset
from hdvpd.data.truth import read_objects
from hdvpd.data.windows import read_window
from hdvpd.evaluation import pixels


def test_masked_psnr_sees_only_its_pixels():
    truth = np.full((4, 5, 3), 0.5)
    image = truth + 0.1
    image[0] = 1.0
    mask = np.ones((4, 5), bool)
    mask[0] = False
    assert pixels.masked_psnr(image, truth, mask) == pytest.approx(20.0)
    assert np.isnan(pixels.masked_psnr(image, truth, ~mask & mask))


def test_colour_error_is_that_of_the_mean_colours():
    rng = np.random.default_rng(0)
    owners = np.array([[0, 0, 1, -1], [0, 0, 1, -1]])
    truth = np.where((owners == 0)[..., None], [[[0.1, 0.7, 0.2]]], [[[0.8, 0.1, 0.1]]])
    grey = np.full_like(truth, 0.4)
    greens = np.array([[0.1, 0.7, 0.2], [0.4, 0.4, 0.4]])
    reds = np.array([[0.8, 0.1, 0.1], [0.4, 0.4, 0.4]])
    each = [deltaE_ciede2000(*rgb2lab(pair)) for pair in (greens, reds)]
    assert pixels.color_error(grey, truth, owners) == pytest.approx(np.mean(each))
    assert min(each) > 10
    # Pixels may change places within an object, and be of any colour outside.
    shuffled = truth.copy()
    shuffled[owners < 0] = rng.uniform(size=(2, 3))
    shuffled[0, :2] += 0.05
    shuffled[1, :2] -= 0.05
    assert pixels.color_error(shuffled, truth, owners) == pytest.approx(0.0, abs=1e-6)
    assert np.isnan(pixels.color_error(grey, truth, np.full((2, 4), -1)))


def test_sharpness_is_relative_gradient_energy():
    row = np.array([0.0, 1.0, 0.0, 1.0])
    truth = np.repeat(np.tile(row, (3, 1))[..., None], 3, axis=-1)
    # 9 of 17 differences per channel are 1 and the rest 0.
    assert pixels.gradient_energy(truth) == pytest.approx(9 / 17)
    assert pixels.sharpness(truth, truth) == 1.0
    assert pixels.sharpness(0.5 + 0.5 * (truth - 0.5), truth) == pytest.approx(0.25)
    assert np.isnan(pixels.sharpness(truth, np.ones((3, 4, 3))))


def test_median_depth_error_ignores_what_is_not_visible():
    truth = np.full((3, 3), 1.0)
    depth = truth + np.array([[0.01, 0.02, 0.03], [-0.02, 9.0, 9.0], [9.0, 9.0, 9.0]])
    visible = np.zeros((3, 3), bool)
    visible[0] = visible[1, 0] = True
    assert pixels.median_depth_error(depth, truth, visible) == pytest.approx(0.02)
    assert np.isnan(pixels.median_depth_error(depth, truth, visible & ~visible))


def test_pixels_of_the_analytic_scene_show_what_they_should(synthetic_dataset):
    dataset = Dataset(synthetic_dataset)
    batch = read_window(dataset, 9, 0, 4, DataConfig(height=32, width=40))
    visible = batch.frames.depth_m > 0
    truth = pixels.pixel_truth(batch, visible, read_objects(dataset, 9, 0, 4))
    without = pixels.pixel_truth(batch, visible, None)
    assert without.owners is None
    rgb = batch.frames.rgb[2:].astype(int)
    reddish = (rgb[..., 0] > 2 * rgb[..., 1]) & (rgb[..., 0] > 2 * rgb[..., 2])
    owners = truth.owners[2:]
    np.testing.assert_array_equal(owners[reddish], 0)
    # The ball hangs from the tool: near the robot, but no part of it.
    assert (without.robot & reddish).sum() > (truth.robot & reddish).sum()
    # A link's sphere of 3.5 cm is the robot; the sky and resting spheres far away are not.
    spread = rgb.max(axis=-1) - rgb.min(axis=-1)
    grey = visible[2:] & (spread == 0)
    assert grey.sum() > 10
    assert truth.robot[grey].all()
    assert not truth.robot[~visible[2:] & ~visible[1]].any()
    scores = pixels.score_pixels(
        np.full((32, 40, 3), 0.5), rgb[0, 0] / 255, np.ones((32, 40), bool),
        truth.robot[0, 0], owners[0, 0],
    )  # fmt: skip
    assert len(scores) == len(pixels.PIXEL_METRICS)
    assert np.isfinite(scores).all()
