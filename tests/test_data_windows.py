import collections
import logging
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from data_tools import edit_json, replace_array
from scipy import stats

from hdvpd.basics.errors import UserError
from hdvpd.config import DataConfig
from hdvpd.data import writer
from hdvpd.data.simulation import synthetic
from hdvpd.data.store import Dataset
from hdvpd.data.windows import (
    WindowIndex,
    read_robot,
    read_window,
    select_cameras,
    stack_windows,
)

HEIGHT, WIDTH = 16, 20
CONFIG = DataConfig(height=HEIGHT, width=WIDTH)


def counting_episode(frames: int, episode: int) -> dict[str, np.ndarray]:
    """Arrays whose values say which frame they are of; targets count from 100."""
    rng = np.random.default_rng(0)
    arrays = synthetic.synthetic_episode(rng, frames - 1, HEIGHT, WIDTH)
    count = np.arange(frames, dtype=np.float32)
    for camera in ("cam0", "cam1"):
        arrays[f"cameras/{camera}/rgb"] = np.full((frames, HEIGHT, WIDTH, 3), episode, np.uint8)
        arrays[f"cameras/{camera}/rgb"] += count.astype(np.uint8)[:, None, None, None]
    for key, offset in (("robot/link_to_world", 0), ("robot/target_link_to_world", 100)):
        arrays[key][..., :3, 3] = (count + offset)[:, None, None]
    for key, offset in (("robot/joint_positions", 0), ("robot/joint_targets", 100)):
        arrays[key][:] = (count + offset)[:, None]
    return arrays


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Episodes of 6, 9, 4 (train), 7 (validation) and 5 (test) frames."""
    path = tmp_path_factory.mktemp("windows") / "count"
    (path / "episodes").mkdir(parents=True)
    writer.write_json(path / "dataset.json", synthetic.describe(HEIGHT, WIDTH))
    splits = ["train", "train", "train", "validation", "test"]
    for number, (frames, split) in enumerate(zip((6, 9, 4, 7, 5), splits, strict=True)):
        meta = {"length": frames, "split": split}
        writer.write_episode(path, number, meta, counting_episode(frames, 10 * number))
    return path


@pytest.fixture
def dataset(pristine: Path) -> Dataset:
    return Dataset(pristine)


@pytest.fixture
def path(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "count"))


def test_index_holds_every_window_that_fits_and_no_other(dataset):
    index = WindowIndex(dataset, "train", 4)
    expected = [(0, s) for s in range(3)] + [(1, s) for s in range(6)] + [(2, 0)]
    assert [index[i] for i in range(len(index))] == expected
    for outside in (-1, len(index)):
        with pytest.raises(IndexError):
            index[outside]


@pytest.mark.parametrize(("episode", "start"), [(1, 0), (1, 5), (1, 2)])
def test_a_window_starts_and_ends_where_it_says(dataset, episode, start):
    batch = read_window(dataset, episode, start, 4, CONFIG)
    frames = np.arange(start, start + 4)
    assert (int(batch.episode), int(batch.start)) == (episode, start)
    np.testing.assert_array_equal(batch.frames.rgb[:, 0, 0, 0, 0], frames + 10 * episode)
    assert batch.frames.rgb.shape == (4, 2, HEIGHT, WIDTH, 3)


def test_observed_rows_are_measured_and_later_rows_are_what_was_commanded_for_them(dataset):
    # Frame t is commanded by row t - 1 of the targets, which count from 100.
    batch = read_window(dataset, 1, 2, 5, CONFIG)
    expected = np.array([2, 3, 103, 104, 105], np.float32)
    np.testing.assert_allclose(batch.robot.positions, np.tile(expected[:, None, None], (1, 11, 3)))
    # The opening counts too, in metres; it is handed on in units of 5 cm.
    np.testing.assert_allclose(batch.robot.gripper, np.tile(expected[:, None] / 0.05, (1, 11)))


@pytest.mark.parametrize(("start", "length"), [(6, 4), (-1, 3), (0, 10), (0, 1)])
def test_a_window_outside_the_episode_is_refused(dataset, start, length):
    with pytest.raises(UserError, match="frames 0 to 8"):
        read_window(dataset, 1, start, length, CONFIG)


def test_samples_are_a_pure_function_of_seed_and_step(dataset):
    drawn = [WindowIndex(dataset, "train", 4).sample(5, step, 3) for step in range(40)]
    again = WindowIndex(dataset, "train", 4)
    for step in reversed(range(40)):
        assert again.sample(5, step, 3) == drawn[step]
    assert [again.sample(6, step, 3) for step in range(40)] != drawn


@pytest.mark.parametrize("batch_size", [1, 3, 7])
def test_every_pass_is_a_permutation_of_all_windows(dataset, batch_size):
    index = WindowIndex(dataset, "train", 4)
    steps = range(4 * len(index) // batch_size + 1)
    drawn = [window for step in steps for window in index.sample(0, step, batch_size)]
    everything = sorted(index[i] for i in range(len(index)))
    passes = [drawn[i * len(index) : (i + 1) * len(index)] for i in range(4)]
    for one in passes:
        assert sorted(one) == everything
    assert passes[0] != passes[1]


def test_every_draw_is_uniform_over_windows(dataset):
    # The 5th draw of many seeds: 10 windows, chi-squared at the 0.1 % level with fixed seeds.
    index = WindowIndex(dataset, "train", 4)
    counts = collections.Counter(index.sample(seed, 4, 1)[0] for seed in range(3000))
    assert len(counts) == len(index)
    assert stats.chisquare(list(counts.values())).pvalue > 1e-3


def test_passes_of_different_seeds_are_independent(dataset):
    index = WindowIndex(dataset, "train", 4)
    pairs = [(index.sample(s, 0, 1)[0], index.sample(s + 1, 0, 1)[0]) for s in range(0, 4000, 2)]
    same = sum(a == b for a, b in pairs)
    # Binomial(2000, 1/10): mean 200, standard deviation 13.4.
    assert abs(same - 200) < 5 * 13.4


@pytest.mark.parametrize(
    ("count", "expected"),
    [(1, [(0, 0), (1, 0), (2, 0)]), (3, [(0, 0), (0, 1), (0, 2), (1, 0), (1, 2), (1, 4), (2, 0)])],
)
def test_evaluation_windows_are_spread_evenly_from_frame_0(dataset, count, expected):
    assert WindowIndex(dataset, "train", 4).spread(count) == expected


def test_episodes_shorter_than_a_window_are_left_out_and_named(dataset, caplog):
    with caplog.at_level(logging.WARNING, "hdvpd"):
        index = WindowIndex(dataset, "train", 6)
    assert [e.number for e in index.skipped] == [2]
    assert {index[i][0] for i in range(len(index))} == {0, 1}
    assert "episodes 2 of split 'train'" in caplog.text


def test_no_episode_that_is_long_enough_is_one_message_with_the_longest(dataset):
    with pytest.raises(UserError) as caught:
        WindowIndex(dataset, "train", 10)
    message = str(caught.value)
    for word in (str(dataset.path), "episode 1 with 9", "at most 7 steps", "--steps 9", "'train'"):
        assert word in message


def test_an_empty_split_is_one_message_with_the_counts(path):
    edit_json(path / "episodes/000003/episode.json", split="train")
    with pytest.raises(UserError) as caught:
        WindowIndex(Dataset(path), "validation", 4)
    for word in (str(path), "'validation'", "train 4, validation 0, test 1"):
        assert word in str(caught.value)


def test_cameras_are_read_in_the_order_asked_for(dataset, path):
    replace_array(path, 0, "cameras/cam0/rgb", np.full((6, HEIGHT, WIDTH, 3), 99, np.uint8))
    config = DataConfig(height=HEIGHT, width=WIDTH, cameras=("cam1", "cam0"))
    rgb = read_window(Dataset(path), 0, 0, 3, config).frames.rgb
    assert (rgb[:, 1] == 99).all()
    assert (rgb[:, 0] != 99).all()
    assert select_cameras(dataset, CONFIG) == ("cam0", "cam1")
    with pytest.raises(UserError, match="cam0, cam1"):
        select_cameras(dataset, DataConfig(cameras=("front",)))


def test_integer_depth_is_read_in_metres(path):
    edit = {"height": HEIGHT, "width": WIDTH, "depth_unit_m": 0.001}
    edit_json(path / "dataset.json", cameras={"cam0": edit, "cam1": edit})
    millimetres = np.full((6, HEIGHT, WIDTH), 1234, np.uint16)
    millimetres[:, 0] = 0
    replace_array(path, 0, "cameras/cam0/depth", millimetres)
    depth_m = read_window(Dataset(path), 0, 0, 2, CONFIG).frames.depth_m
    assert depth_m.dtype == np.float32
    np.testing.assert_allclose(depth_m[:, 0, 1:], 1.234, rtol=1e-6)
    np.testing.assert_array_equal(depth_m[:, 0, 0], 0)


def test_nan_infinite_and_negative_depth_become_invalid(path):
    depth = np.ones((6, HEIGHT, WIDTH), np.float32)
    depth[:, 0], depth[:, 1], depth[:, 2] = np.nan, np.inf, -1.0
    replace_array(path, 0, "cameras/cam0/depth", depth)
    read = read_window(Dataset(path), 0, 0, 2, CONFIG).frames.depth_m[:, 0]
    np.testing.assert_array_equal(read[:, :3], 0)
    np.testing.assert_array_equal(read[:, 3:], 1)


POSE = np.eye(4)
FOCAL = np.array([[30.0, 0, 10], [0, 30, 8], [0, 0, 1]])


def _bad_pose(**entries: float) -> np.ndarray:
    pose = np.tile(POSE, (6, 1, 1))
    for key, value in entries.items():
        pose[3, int(key[1]), int(key[2])] = value
    return pose


def _bad_intrinsics(row: int, column: int, value: float) -> np.ndarray:
    matrices = np.tile(FOCAL, (6, 1, 1))
    matrices[3, row, column] = value
    return matrices


def _bad_depth(value: float) -> np.ndarray:
    depth = np.ones((6, HEIGHT, WIDTH), np.float32)
    depth[3] = value
    return depth


def _bad_rows(shape: tuple[int, ...]) -> np.ndarray:
    values = np.ones((6, *shape), np.float32)
    values[3].flat[0] = np.nan
    return values


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("cameras/cam1/depth", _bad_depth(0), ["all zero or NaN"]),
        ("cameras/cam1/depth", _bad_depth(np.nan), ["all zero or NaN"]),
        ("cameras/cam1/depth", _bad_depth(-1), ["all zero or NaN"]),
        ("cameras/cam0/intrinsics", _bad_intrinsics(0, 0, 0), ["[0.0, 30.0] px", "positive"]),
        ("cameras/cam0/intrinsics", _bad_intrinsics(1, 1, -30), ["[30.0, -30.0] px"]),
        ("cameras/cam0/intrinsics", _bad_intrinsics(0, 2, np.nan), ["px"]),
        ("cameras/cam0/intrinsics", _bad_intrinsics(0, 1, 2), ["[[fx, 0, cx]", "skew"]),
        ("cameras/cam0/intrinsics", _bad_intrinsics(2, 2, 2), ["[[fx, 0, cx]"]),
        ("cameras/cam0/camera_to_world", _bad_pose(p00=1.01), ["orthonormal", "0.02"]),
        ("cameras/cam0/camera_to_world", _bad_pose(p22=-1), ["determinant -1"]),
        ("cameras/cam0/camera_to_world", _bad_pose(p03=np.inf), ["NaN or infinite"]),
        ("cameras/cam0/camera_to_world", _bad_pose(p30=0.5), ["0 0 0 1"]),
        ("robot/joint_targets", _bad_rows((3,)), ["NaN or infinite"]),
        ("robot/link_to_world", _bad_rows((3, 4, 4)), ["NaN or infinite"]),
    ],
)
def test_impossible_values_are_one_message_with_file_episode_and_frame(path, name, values, words):
    replace_array(path, 0, name, values)
    with pytest.raises(UserError) as caught:
        read_window(Dataset(path), 0, 2, 3, CONFIG)
    message = str(caught.value)
    assert "\n" not in message
    for word in [str(path / "episodes/000000" / name), "frame 3 of episode 0", *words]:
        assert word in message
    # The frames before the fault still read.
    read_window(Dataset(path), 0, 0, 3, CONFIG)


def test_a_mirrored_or_scaled_pose_is_refused_for_fixed_cameras_too(path):
    replace_array(path, 0, "cameras/cam0/camera_to_world", np.diag([1.0, 1, 1.1, 1]))
    with pytest.raises(UserError, match="frame 1 of episode 0"):
        read_window(Dataset(path), 0, 1, 3, CONFIG)


def test_missing_link_poses_say_what_to_store(path):
    shutil.rmtree(path / "episodes/000000/robot/target_link_to_world")
    with pytest.raises(UserError, match="robot/target_link_to_world"):
        read_window(Dataset(path), 0, 0, 3, CONFIG)


def test_resizing_scales_intrinsics_with_the_image(dataset):
    # The image of a world point moves by exactly the scale of the image.
    point = np.array([0.1, -0.05, 0.02, 1.0])

    def pixel(height: int, width: int) -> np.ndarray:
        config = DataConfig(height=height, width=width)
        batch = read_window(dataset, 0, 0, 2, config)
        assert batch.frames.rgb.shape[2:4] == batch.frames.depth_m.shape[2:4] == (height, width)
        camera = jax.tree.map(lambda x: x[0, 0].astype(np.float64), batch.frames.camera)
        in_camera = np.linalg.inv(camera.camera_to_world) @ point
        image = camera.intrinsics @ in_camera[:3]
        return image[:2] / image[2]

    full, half = pixel(HEIGHT, WIDTH), pixel(HEIGHT // 2, WIDTH * 3)
    np.testing.assert_allclose(half, full * [3, 0.5], rtol=1e-5)


def test_stacked_windows_keep_their_order(dataset):
    batch = stack_windows([read_window(dataset, 1, s, 4, CONFIG) for s in (0, 3)])
    assert batch.robot.positions.shape == (2, 4, 11, 3)
    np.testing.assert_array_equal(batch.start, [0, 3])


def test_the_robot_alone_is_that_of_the_window(dataset):
    jax.tree.map(
        np.testing.assert_array_equal,
        read_robot(dataset, 1, 3, 4),
        read_window(dataset, 1, 3, 4, CONFIG).robot,
    )
