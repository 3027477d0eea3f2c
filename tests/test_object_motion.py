"""Windows in which an object moves, and the order in which they are drawn."""

import dataclasses
from collections import Counter

import numpy as np
import pytest
from data_tools import edit_json, replace_array

from hdvpd import train
from hdvpd.basics.errors import UserError
from hdvpd.basics.geometry import unproject
from hdvpd.config import DataConfig
from hdvpd.data.object_motion import moving_windows, objects_move
from hdvpd.data.shapes import Shape
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.truth import Objects
from hdvpd.data.windows import WindowIndex, read_window

CONFIG = DataConfig(height=24, width=32)


@pytest.fixture
def dataset(tmp_path):
    path = tmp_path / "scene"
    write_synthetic_dataset(path, episodes=2, steps=7, height=24, width=32, seed=0)
    return path


def test_an_object_moves_if_it_leaves_its_place_after_the_last_observed_frame():
    poses = np.tile(np.eye(4), (6, 2, 1, 1))
    poses[3:, 1, 0, 3] = 0.02
    objects = Objects(("a", "b"), (Shape("sphere", (0.1,)),) * 2, poses)
    moves = [objects_move(objects, last, last + 3) for last in range(4)]
    assert moves == [False, True, True, False]


def test_by_truth_the_ball_moves_in_every_window(dataset):
    opened = Dataset(dataset)
    index = WindowIndex(opened, "train", 4)
    assert moving_windows(opened, index, CONFIG) == list(range(len(index)))


@pytest.mark.parametrize(("on_robot", "moving"), [(True, []), (False, [2, 3])])
def test_without_truth_a_change_away_from_the_robot_counts(dataset, on_robot, moving):
    for file in dataset.glob("episodes/*/episode.json"):
        edit_json(file, objects=[])
    opened = Dataset(dataset)
    whole = read_window(opened, 0, 0, 8, CONFIG)
    points = np.asarray(unproject(whole.frames.depth_m, whole.frames.camera))[4:6, 0]
    link = whole.robot.positions[5, 1]
    distance = np.linalg.norm(points - link, axis=-1).max(axis=0)
    known = (whole.frames.depth_m[4:6, 0] > 0).all(axis=0)
    spot = known & (distance < 0.1 if on_robot else points[..., 0].min(axis=0) > 0.3)
    assert spot.sum() > 2
    # Everything rests but for one change from frame 4 to frame 5.
    for camera in ("cam0", "cam1"):
        colors = np.repeat(opened.read(0, f"cameras/{camera}/rgb")[:1], 8, axis=0)
        if camera == "cam0":
            colors[5:, spot] = 255 - colors[5:, spot]
        replace_array(dataset, 0, f"cameras/{camera}/rgb", colors)
    opened = Dataset(dataset)
    # A window from frame s predicts frames s + 2 and s + 3.
    assert moving_windows(opened, WindowIndex(opened, "train", 4), CONFIG) == moving


def test_favoured_windows_get_their_share_in_passes_of_their_own(synthetic_dataset):
    index = WindowIndex(Dataset(synthetic_dataset), "train", 4)
    plain = [index.sample(3, step, 2) for step in range(40)]
    favoured = [5, 9, 11]
    index.favour(favoured, 0.25)
    drawn = [window for step in range(60) for window in index.sample(3, step, 2)]
    own = drawn[3::4]
    assert Counter(own) == dict.fromkeys([index[number] for number in favoured], 10)
    assert all(len(set(own[i : i + 3])) == 3 for i in range(0, 30, 3))
    # The others are those that would be drawn without, in the same order.
    rest = [window for i, window in enumerate(drawn) if i % 4 != 3]
    assert rest[:80] == [window for step in plain for window in step][:80]
    # Pure: whatever was drawn before, and however draws are dealt out to steps.
    assert index.sample(3, 7, 2) == drawn[14:16]
    assert [w for step in range(15) for w in index.sample(3, step, 8)] == drawn
    index.favour(favoured, 1.0)
    assert set(index.sample(0, 0, 9)) == {index[number] for number in favoured}


def test_training_draws_the_share_that_it_is_told(dataset, debug_config, capsys):
    config = dataclasses.replace(
        debug_config,
        data=dataclasses.replace(CONFIG, path=str(dataset)),
        train=dataclasses.replace(
            debug_config.train, horizon=2, moving_window_share=0.5, validate_every=0
        ),
    )
    windows = train.open_data(config).windows
    assert "5 of 5 with a moving object: 50% of the draws" in capsys.readouterr().out
    drawn = [window for step in range(10) for window in windows.sample(0, step, 1)]
    assert set(drawn[::2]) == set(drawn[1::2]) == {(0, start) for start in range(5)}
    for file in dataset.glob("episodes/*/episode.json"):
        edit_json(file, objects=[])
    for camera in ("cam0", "cam1"):
        colors = np.zeros((8, 24, 32, 3), np.uint8)
        replace_array(dataset, 0, f"cameras/{camera}/rgb", colors)
    with pytest.raises(UserError, match=r"moving_window_share = 0\.5 .* none does"):
        train.open_data(config)
