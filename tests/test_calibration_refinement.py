"""The last step of a registration: parts of a pixel, and how well they are known."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hdvpd.data.calibration.agreement import measure
from hdvpd.data.calibration.clouds import choose_indexer
from hdvpd.data.calibration.correspondence import track
from hdvpd.data.calibration.drift import with_drift
from hdvpd.data.calibration.estimate import estimate
from hdvpd.data.calibration.recording import read_sample
from hdvpd.data.calibration.refinement import between_pixels, refine
from hdvpd.data.calibration.registration import Change, Fit, changed
from hdvpd.data.calibration.slopes import inverse_depth
from hdvpd.data.calibration.views import Moment, View, continuing, whole
from hdvpd.data.pinhole import looking_at, pixel_directions
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset

INDEX = choose_indexer("scipy")[1]


@pytest.fixture(scope="module")
def moments(tmp_path_factory: pytest.TempPathFactory) -> tuple[Moment, ...]:
    path: Path = tmp_path_factory.mktemp("refinement") / "scene"
    write_synthetic_dataset(path, episodes=3, steps=7, height=80, width=104, seed=5)
    return read_sample(Dataset(path), 3, 3).moments


def motion(turn_deg: tuple[float, ...], move_m: tuple[float, ...]) -> np.ndarray:
    pose = np.eye(4)
    pose[:3, :3] = Rotation.from_rotvec(np.deg2rad(turn_deg)).as_matrix()
    pose[:3, 3] = move_m
    return pose


def noisy(moments: tuple[Moment, ...], sigma_m: float) -> list[Moment]:
    rng = np.random.default_rng(3)

    def sensed(view: View) -> View:
        depth = view.depth_m + sigma_m * view.depth_m**2 * rng.normal(size=view.depth_m.shape)
        return dataclasses.replace(view, depth_m=np.where(view.depth_m > 0, depth, 0.0))

    return [
        dataclasses.replace(m, views={n: sensed(v) for n, v in m.views.items()}) for m in moments
    ]


def start(pose: np.ndarray) -> Fit:
    return Fit(
        {"cam1": ("pose",)}, {"cam1": Change(pose)}, {"cam1": np.zeros(9)}, 0.0, 0.0, np.zeros(9), 1
    )  # fmt: skip


def off(pose: np.ndarray) -> tuple[float, float]:
    """Return the size of a motion [degrees, m]."""
    turned = np.rad2deg(Rotation.from_matrix(pose[:3, :3]).magnitude())
    return float(turned), float(np.linalg.norm(pose[:3, 3]))


def plane_view(height_m: float = 1.0, size: tuple[int, int] = (24, 32)) -> View:
    """Return an oblique view of the plane z = 0."""
    matrix = np.array([[40.0, 0, size[1] / 2], [0, 40.0, size[0] / 2], [0, 0, 1]])
    pose = looking_at((1.0, 0.3, height_m), (0.0, 0.0, 0.0))
    rays = pixel_directions(matrix, size) @ pose[:3, :3].T
    depth = -pose[2, 3] / rays[..., 2]
    return View(np.full((*size, 3), 90, np.uint8), depth, matrix, pose)


def test_points_on_a_plane_are_on_it_between_the_pixels():
    """Inverse depth is linear in the image, so that the distance is exact, not sampled."""
    first, second = plane_view(), plane_view(1.3)
    lifted = dataclasses.replace(first, camera_to_world=first.camera_to_world.copy())
    lifted.camera_to_world[2, 3] += 0.004
    tracks = [track([view], INDEX, 400, between=True) for view in (first, lifted, second)]
    for source, height in zip(tracks, (0.0, 0.004)):  # noqa: B905 - the third is the target
        rows, missed = between_pixels(source, tracks[2], 0.02)
        planes = rows[0]
        assert len(planes.residuals) > 100
        assert missed.sum() == 0
        # Distances far away count less, as noise is larger there.
        normal = np.linalg.norm(planes.source[:, 3:6], axis=1)
        np.testing.assert_allclose(np.abs(planes.residuals) / normal, height, atol=2e-5)


def test_derivatives_are_those_of_finite_differences(moments):
    """By the unknowns of either camera, on the curved surfaces of the scene."""
    views = [[m.views[n] for m in moments[:2]] for n in ("cam0", "cam1")]
    source, target = (track(v, INDEX, 300, between=True) for v in views)
    (rows, *_), _ = between_pixels(source, target, 0.02)
    step = 1e-6
    for column in range(6):
        unknowns = np.zeros(9)
        unknowns[column] = step
        small = Change().moved(unknowns).pose
        for moved, expected in (
            ((source.placed(source.poses @ small), target), rows.source),
            ((source, target.placed(target.poses @ small)), rows.target),
        ):
            (after, *_), _ = between_pixels(*moved, 0.02)
            slope = (after.residuals - rows.residuals) / step
            # Slopes of the surface are averages, and pixels change; most rows must agree.
            assert np.median(np.abs(slope - expected[:, column])) < 0.03
            share = np.mean(np.abs(slope - expected[:, column]) < 0.2)
            assert share > 0.9


def test_a_surface_ends_at_a_step_an_edge_and_a_hole():
    view = plane_view()
    assert continuing(view)[1:-1, 1:-1].all()
    depth = view.depth_m.copy()
    depth[:, 20:] -= 0.1
    depth[5, 5] = 0.0
    found = continuing(dataclasses.replace(view, depth_m=depth))
    assert not found[1:-1, 19:21].any()
    assert not found[4:7, 4:7].any()
    assert found[10:20, 5:18].all()
    assert found[10:20, 22:30].all()


@pytest.mark.parametrize("sigma_m", [0.0, 0.002])
def test_a_camera_is_brought_to_a_part_of_a_pixel_within_the_stated_errors(moments, sigma_m):
    """Pixels are 14 mm wide; 2 mm of noise are those of a good depth camera at 1 m."""
    fit = refine(noisy(moments, sigma_m), start(motion((0.2, -0.2, 0.1), (0.004, -0.003, 0.003))),
                 INDEX)  # fmt: skip
    turned, moved = off(fit.changes["cam1"].pose)
    errors = fit.errors["cam1"]
    assert turned < 0.15
    assert moved < 0.0025
    assert turned < 2 * np.rad2deg(np.linalg.norm(errors[:3])) < 1.0
    assert moved < 2 * np.linalg.norm(errors[3:6]) < 0.02


@pytest.mark.parametrize(("sigma_m", "slid_m"), [(0.001, 0.006), (0.0, 0.018)])
def test_small_things_alone_say_that_a_camera_slid_along_a_table(moments, sigma_m, slid_m):
    """Nothing is painted, and spheres of 3 to 4 pixels are seen from 80 degrees apart."""
    grey = [
        dataclasses.replace(
            m,
            views={
                n: dataclasses.replace(v, rgb=np.full_like(v.rgb, 90)) for n, v in m.views.items()
            },
        )
        for m in noisy(moments, sigma_m)
    ]
    pose = moments[0].views["cam1"].camera_to_world
    slide = np.eye(4)
    slide[:2, 3] = slid_m * np.array([0.6, -0.8])
    fit = refine(grey, start(np.linalg.inv(pose) @ slide @ pose), INDEX)
    turned, moved = off(fit.changes["cam1"].pose)
    assert turned < 0.15
    assert moved < 0.002


def test_slopes_of_a_noisy_plane_are_its_own_and_those_of_a_curve_too():
    """By the scatter of 2 mm of noise per pixel they would be off by a sixth and more."""
    view = plane_view()
    rng = np.random.default_rng(1)
    row, column = np.indices(view.depth_m.shape)
    away = np.hypot(row - 12, column - 20)
    dome = 0.02 * np.sqrt(np.maximum(1 - (away / 5.5) ** 2, 0.0))
    for rise, least in ((0.0 * dome, 0.0), (dome, 1.0)):
        exact = View(view.rgb, view.depth_m - rise, view.intrinsics, view.camera_to_world)
        depth = exact.depth_m + 0.001 * rng.normal(size=row.shape)
        noised = dataclasses.replace(exact, depth_m=depth)
        found = inverse_depth(depth, continuing(noised), whole(noised))
        for axis in (0, 1):
            slope = np.gradient(1 / exact.depth_m, axis=axis)
            plain = np.gradient(1 / depth, axis=axis)
            kept = continuing(noised) & (away < 4)
            wrong = np.std((found[1 + axis] - slope)[kept])
            assert wrong < (0.25 if not least else 0.75) * np.std((plain - slope)[kept])


def test_a_sphere_is_whole_almost_to_its_outline_and_a_step_is_not():
    row, column = np.indices((24, 32)) + 0.5
    matrix = np.array([[40.0, 0, 16], [0, 40.0, 12], [0, 0, 1]])
    ahead = np.stack([(column - 16) / 40, (row - 12) / 40, np.ones_like(row)], axis=-1)
    # A sphere of 0.1 m, 1 m away: 4 pixels.
    along, square = ahead @ np.array([0, 0, 1.0]), (ahead**2).sum(axis=-1)
    under = along**2 - square * (1 - 0.1**2)
    depth = np.where(under > 0, (along - np.sqrt(np.maximum(under, 0))) / square, 1.5)
    view = View(np.zeros((24, 32, 3), np.uint8), depth, matrix, np.eye(4))
    cells, ball = whole(view), depth < 1.2
    within = ball[:-1, :-1] & ball[:-1, 1:] & ball[1:, :-1] & ball[1:, 1:]
    across = (ball[:-1, :-1] | ball[:-1, 1:] | ball[1:, :-1] | ball[1:, 1:]) & ~within
    assert not cells[:-1, :-1][across].any()
    assert cells[:-1, :-1][within].mean() > 0.6
    assert cells[:-1, :-1][within].sum() > 1.5 * (continuing(view) & ball).sum()


def test_a_camera_that_shares_nothing_stays(moments):
    away = motion((0.0, 0.0, 0.0), (0.0, 0.0, -30.0))
    fit = start(away)
    assert refine(moments, fit, INDEX) is fit


def test_a_move_along_the_axis_is_not_taken_for_a_scale_of_depth(moments):
    change = Change(motion((0, 0, 0), (0.0, 0.007, 0.008)))
    wrong = [changed(m, {"cam1": change}) for m in noisy(moments[::2], 0.001)]
    evidence = with_drift(wrong, measure(wrong, INDEX), INDEX)
    assert evidence.status("cam1") == "fail"
    found = estimate(wrong, evidence, INDEX)
    assert found is not None
    assert set(found.fit.free.values()) == {("pose",)}
    pose = found.fit.changes["cam1"].pose if "cam1" in found.fit.changes else None
    if pose is not None:
        turned, moved = off(change.pose @ pose)
        assert turned < 0.3
        assert moved < 0.003


@pytest.mark.parametrize("sigma_m", [0.0, 0.002])
def test_cameras_that_stand_right_drift_by_a_quarter_of_a_pixel_at_most(
    moments, sigma_m, monkeypatch
):
    """Whether or not the other place is better by more than chance."""
    monkeypatch.setattr("hdvpd.data.calibration.drift.clearly_more", lambda *_: True)
    seen = noisy(moments, sigma_m)
    (pair,) = with_drift(seen, measure(seen, INDEX), INDEX).pairs
    assert pair.drift_m < 0.25 * pair.spacing_m < pair.drift_limit_m
