"""Panels of the videos: where particles and robot points land, and files that open again."""

import imageio.v3 as iio
import numpy as np
import pytest
import scenes
from PIL import Image

from hdvpd.basics.errors import UserError
from hdvpd.basics.geometry import unproject
from hdvpd.basics.types import Camera
from hdvpd.evaluation import videos

HEIGHT, WIDTH = 24, 32


def looking_along_z(offset=(0.0, 0.0, 0.0)):
    pose = np.eye(4, dtype=np.float32)
    pose[:3, 3] = offset
    intrinsics = np.array([[30, 0, WIDTH / 2], [0, 30, HEIGHT / 2], [0, 0, 1]], np.float32)
    return Camera(intrinsics=intrinsics, camera_to_world=pose)


def make_clip(steps=3, cameras=("front", "side"), num_points=5):
    """A tilted coloured wall seen by cameras that stand side by side."""
    rng = np.random.default_rng(0)
    frames, views = 2 + steps, len(cameras)
    single = [looking_along_z((0.1 * view, 0, 0)) for view in range(views)]
    camera = Camera(
        intrinsics=np.stack([[c.intrinsics for c in single]] * frames),
        camera_to_world=np.stack([[c.camera_to_world for c in single]] * frames),
    )
    truth = rng.uniform(size=(frames, views, HEIGHT, WIDTH, 3)).astype(np.float32)
    tilt = np.linspace(1.0, 2.0, WIDTH, dtype=np.float32)
    depth_m = np.broadcast_to(tilt, (frames, views, HEIGHT, WIDTH))
    lifted = [np.asarray(unproject(depth_m[0, v], single[v])).reshape(-1, 3) for v in range(views)]
    positions = np.stack([np.concatenate(lifted)] * frames)
    return videos.Clip(
        title="episode 9",
        cameras=cameras,
        rate_hz=2.0,
        truth=truth,
        depth_m=depth_m,
        camera=camera,
        prediction=rng.uniform(size=(steps, views, HEIGHT, WIDTH, 3)).astype(np.float32),
        ssim=np.full((steps, views), 0.5),
        positions=positions,
        mask=np.ones(positions.shape[:2], bool),
        robot=scenes.unturned(rng.uniform([-0.3, -0.2, 1], [0.3, 0.2, 2], (frames, num_points, 3))),
    )


def test_particles_get_the_colour_of_the_pixel_they_came_from():
    clip = make_clip(cameras=("front",))
    single = [clip.camera_of(0, 0)]
    colors = videos.particle_colors(clip.positions[0], clip.truth[0], clip.depth_m[0], single)
    np.testing.assert_array_equal(colors, clip.truth[0].reshape(-1, 3))


def test_of_two_views_the_one_that_measured_the_particle_gives_its_colour():
    clip = make_clip()
    single = [clip.camera_of(0, view) for view in range(2)]
    colors = videos.particle_colors(clip.positions[0], clip.truth[0], clip.depth_m[0], single)
    expected = clip.truth[0].reshape(-1, 3)
    # The wall is tilted, so the other view measures another depth except at single pixels.
    assert (colors == expected).all(axis=-1).mean() > 0.97


def test_a_particle_covers_its_projection_and_nothing_far_from_it():
    camera = looking_along_z()
    scale = 3
    position = np.array([[0.1, -0.05, 1.0]], np.float32)
    red = np.array([[1.0, 0.0, 0.0]], np.float32)
    picture = videos.splat_particles(position, red, np.ones(1, bool), camera, (24, 32), scale)
    rows, columns = np.nonzero((picture == (255, 0, 0)).all(axis=-1))
    assert picture.shape == (72, 96, 3)
    # x = 30 * 0.1 + 16 = 19 and y = 30 * -0.05 + 12 = 10.5 in pixels of the camera.
    assert (rows.min() + rows.max()) / 2 == pytest.approx(10.5 * scale, abs=1)
    assert (columns.min() + columns.max()) / 2 == pytest.approx(19 * scale, abs=1)
    assert rows.max() - rows.min() <= 2 * scale


@pytest.mark.parametrize("near_first", [True, False])
def test_the_nearer_particle_hides_the_farther_one(near_first):
    positions = np.array([[0, 0, 1.0], [0, 0, 1.5]], np.float32)
    colors = np.array([[1, 0, 0], [0, 0, 1]], np.float32)
    order = [0, 1] if near_first else [1, 0]
    picture = videos.splat_particles(
        positions[order], colors[order], np.ones(2, bool), looking_along_z(), (24, 32), 2
    )
    assert tuple(picture[24, 32]) == (255, 0, 0)
    assert not (picture == (0, 0, 255)).all(axis=-1).any()


def test_padding_and_particles_behind_the_camera_are_not_painted():
    positions = np.array([[0, 0, 1.0], [0, 0, -1.0], [np.inf, 0, 1.0]], np.float32)
    picture = videos.splat_particles(
        positions,
        np.ones((3, 3), np.float32),
        np.array([False, True, True]),
        looking_along_z(),
        (24, 32),
        1,
    )
    assert (picture == picture[0, 0]).all()


def test_robot_points_are_drawn_where_they_project():
    clip = make_clip(num_points=1)
    clip.robot.positions[3, 0] = (0.1, -0.05, 1.0)
    panel = videos.draw_robot(clip, 3, 0)
    x, y = int(19 * clip.scale), int(10.5 * clip.scale)
    assert tuple(panel[y, x]) == (255, 140, 0)
    plain = videos.to_uint8(0.15 + 0.4 * clip.truth[3, 0]).repeat(clip.scale, 0)
    np.testing.assert_array_equal(panel[::, 0], plain[:, 0])


def test_colours_are_rounded_and_clipped():
    values = np.array([-0.5, 0.0, 0.5, 1.0, 1.5, 100 / 255])
    np.testing.assert_array_equal(videos.to_uint8(values), [0, 0, 128, 255, 255, 100])


@pytest.mark.parametrize("cameras", [("front",), ("front", "side")])
def test_a_frame_holds_truth_and_prediction_unchanged(cameras):
    clip = make_clip(cameras=cameras)
    picture = videos.compose_frame(clip, 3)
    assert picture.shape[0] % 16 == 0
    assert picture.shape[1] % 16 == 0
    height, width = HEIGHT * clip.scale, WIDTH * clip.scale
    for panel, image in ((0, clip.truth[3, 0]), (1, clip.prediction[1, 0])):
        left = 4 + panel * (width + 4)
        shown = picture[46 : 46 + height, left : left + width]
        expected = videos.enlarge(videos.to_uint8(image), clip.scale)
        # The tags cover the upper left corner.
        np.testing.assert_array_equal(shown[40:], expected[40:])


def test_observed_frames_show_the_observation_in_place_of_a_prediction():
    clip = make_clip()
    picture = videos.compose_frame(clip, 1)
    width = WIDTH * clip.scale
    left, right = (picture[100:200, x : x + width] for x in (4, 8 + width))
    np.testing.assert_array_equal(left, right)


def test_video_and_frames_open_again(tmp_path):
    clip = make_clip()
    path = tmp_path / "clip.mp4"
    videos.write_clip(clip, path, tmp_path / "frames")
    expected = videos.compose_frame(clip, 4)
    meta = iio.immeta(path, plugin="pyav")
    assert (meta["codec"], meta["fps"], meta["video_format"]) == ("h264", 2.0, "yuv420p")
    frames = iio.imread(path, plugin="pyav")
    assert frames.shape == (2 + 3 + 2, *expected.shape)
    # Browsers can begin before the file has ended.
    data = path.read_bytes()
    assert 0 < data.index(b"moov") < data.index(b"mdat")
    poster = iio.imread(path.with_suffix(".jpg"))
    assert np.abs(poster.astype(float) - videos.compose_frame(clip, 4)).mean() < 20
    # Compression of noise is lossy, but a shifted or scaled picture would be off by 60 or more.
    assert np.abs(frames[4].astype(float) - expected).mean() < 20
    composed = np.asarray(Image.open(tmp_path / "frames" / "step-02.png"))
    np.testing.assert_array_equal(composed, expected)
    raw = np.asarray(Image.open(tmp_path / "frames" / "side-step-02-prediction.png"))
    np.testing.assert_array_equal(raw, videos.to_uint8(clip.prediction[2, 1]))
    assert len(list((tmp_path / "frames").iterdir())) == 5 + 3 * 2 * 2


def test_speed_is_real_time_within_reason():
    assert [videos.frames_per_second(rate) for rate in (0.5, 2.0, 2.8, 30.0)] == [2, 2, 3, 4]


def test_a_video_that_cannot_be_written_says_so(tmp_path):
    (tmp_path / "clip.mp4").mkdir()
    frame = np.zeros((32, 32, 3), np.uint8)
    with pytest.raises(UserError, match=r"clip\.mp4: could not write this video"):
        videos.write_video(tmp_path / "clip.mp4", [frame], 2)
