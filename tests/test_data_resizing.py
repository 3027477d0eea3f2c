"""Resized images against an analytic plane, an edge, and an independent area average."""

import numpy as np
import pytest
from skimage.transform import resize_local_mean

from hdvpd.data.pinhole import scale_intrinsics
from hdvpd.data.resizing import resize_depth, resize_rgb

OLD = (60, 80)
INTRINSICS = np.array([[90.0, 0, 41.3], [0, 95.0, 28.2], [0, 0, 1]])
NORMAL, DISTANCE = np.array([0.25, -0.45, 0.86]), 0.8
"""An oblique plane in front of the camera: normal . point = distance [m]."""
SIZES = [(30, 40), (20, 16), (45, 50), (24, 32), (60, 33), (120, 100), (13, 200)]


def plane_depth(size: tuple[int, int], intrinsics: np.ndarray) -> np.ndarray:
    """Depth of the plane at every pixel centre, in closed form [m]."""
    return DISTANCE / (directions(size, intrinsics) @ NORMAL)


def directions(size: tuple[int, int], intrinsics: np.ndarray) -> np.ndarray:
    rows, columns = np.indices(size) + 0.5
    pixels = np.stack([columns, rows, np.ones(size)], axis=-1)
    return pixels @ np.linalg.inv(intrinsics).T


def off_plane(depth_m: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Unproject resized depth with resized intrinsics; signed distances from the plane [m]."""
    points = directions(size, scale_intrinsics(INTRINSICS, OLD, size)) * depth_m[..., None]
    return points @ NORMAL / np.linalg.norm(NORMAL) - DISTANCE / np.linalg.norm(NORMAL)


def nearest(depth_m: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    rows, columns = (
        ((np.arange(new) + 0.5) * old / new).astype(int) for new, old in zip(size, OLD, strict=True)
    )
    return depth_m[rows[:, None], columns[None]]


@pytest.mark.parametrize("size", SIZES)
def test_resized_depth_of_a_plane_lies_on_the_plane(size):
    exact = plane_depth(OLD, INTRINSICS)
    assert 0.5 < exact.min() < exact.max() < 2
    resized = resize_depth(exact.astype(np.float32)[None], *size)[0]
    assert resized.dtype == np.float32
    # At the border there is no neighbour on one side: the pixel stays as it is.
    inside = np.s_[3:-3, 3:-3] if max(size) > 100 else np.s_[1:-1, 1:-1]
    error = np.abs(off_plane(resized, size)[inside])
    assert error.max() < 2e-5
    if size[0] % 20:  # sizes with an odd factor keep old centres, which are exact anyway
        assert np.abs(off_plane(nearest(exact, size), size)[inside]).mean() > 5e-4


def test_millimetres_on_a_plane_keep_their_rounding_and_get_no_offset():
    """Depth of real sensors is rounded; the slope follows it and the mean stays on the plane."""
    stored = (1000 * plane_depth(OLD, INTRINSICS)).round().astype(np.float32) / 1000
    size = (30, 40)
    error = off_plane(resize_depth(stored[None], *size)[0], size)[1:-1, 1:-1]
    plain = off_plane(nearest(stored, size), size)[1:-1, 1:-1]
    assert abs(error.mean()) < 0.1 * abs(plain.mean())
    assert np.abs(error).max() < 1.5e-3


@pytest.mark.parametrize("size", SIZES)
def test_an_edge_stays_an_edge(size):
    depth_m = np.full((1, *OLD), 0.9, np.float32)
    depth_m[:, 20:41, 33:52] = 0.6
    resized = resize_depth(depth_m, *size)
    np.testing.assert_array_equal(resized[0], nearest(depth_m[0], size))


@pytest.mark.parametrize("size", SIZES)
def test_an_edge_between_oblique_surfaces_belongs_to_one_of_them(size):
    far = plane_depth(OLD, INTRINSICS)
    near = far - 0.08
    mask = np.zeros(OLD, bool)
    mask[20:41, 33:52] = True
    resized = resize_depth(np.where(mask, near, far).astype(np.float32)[None], *size)[0]
    own = np.where(nearest(mask, size), nearest(near, size), nearest(far, size))
    other = np.where(nearest(mask, size), nearest(far, size), nearest(near, size))
    assert (np.abs(resized - own) < 0.4 * np.abs(resized - other)).all()


def test_unknown_depth_stays_unknown_and_lends_its_neighbours_nothing():
    rng = np.random.default_rng(0)
    exact = plane_depth(OLD, INTRINSICS).astype(np.float32)
    holes = rng.uniform(size=OLD) < 0.3
    size = (30, 40)
    resized = resize_depth(np.where(holes, 0, exact)[None], *size)[0]
    np.testing.assert_array_equal(resized == 0, nearest(holes, size))
    known = resized > 0
    assert np.abs(off_plane(resized, size))[known].max() < 0.02  # half a pixel of the plane
    lone = np.where(np.indices(OLD).sum(0) % 2, 0, exact)[None]  # no pixel has a known neighbour
    np.testing.assert_array_equal(resize_depth(lone, *size)[0], nearest(lone[0], size))


@pytest.mark.parametrize("size", [(1, 1), (2, 3), (200, 300)])
def test_any_depth_at_any_size_is_positive_and_near_its_pixel(size):
    """The value moves at most half the way to each neighbour, however wild the image."""
    depth_m = np.exp(np.random.default_rng(1).uniform(-5, 3, (3, *OLD))).astype(np.float32)
    resized = resize_depth(depth_m, *size)
    assert np.isfinite(resized).all()
    assert (resized > 0).all()
    for image, own in zip(depth_m, resized, strict=True):
        inverse = 1 / nearest(image, size)
        assert (1 / own > -1e-6).all()
        assert (np.abs(1 / own - inverse) <= (1 / image).max()).all()
    assert resize_depth(depth_m, *OLD) is depth_m


@pytest.mark.parametrize("size", [size for size in SIZES if size[0] <= 60 and size[1] <= 80])
def test_shrunk_colours_are_the_mean_over_the_area_of_each_pixel(size):
    rgb = np.random.default_rng(0).integers(0, 256, (2, *OLD, 3)).astype(np.uint8)
    for image, own in zip(rgb, resize_rgb(rgb, *size), strict=True):
        expected = resize_local_mean(
            image.astype(np.float64), size, channel_axis=-1, preserve_range=True
        )
        assert np.abs(own - expected).max() < 0.51


def test_a_ramp_of_colours_stays_where_it_is():
    ramp = np.tile(np.arange(0, 240, 3, dtype=np.uint8)[None, None, :, None], (1, 60, 1, 3))
    for width in (40, 50, 33, 200):
        centres = (np.arange(width) + 0.5) * 80 / width - 0.5
        shown = resize_rgb(ramp, 30, width)[0, 7, :, 0]
        inside = (centres > 1) & (centres < 78)
        np.testing.assert_allclose(shown[inside], 3 * centres[inside], atol=1)


def test_colours_of_the_same_size_are_left_alone():
    rgb = np.zeros((1, *OLD, 3), np.uint8)
    assert resize_rgb(rgb, *OLD) is rgb
