import json
import os
import re
import shutil
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
from data_tools import chunk_file, edit_json, replace_array

from hdvpd.basics.errors import UserError
from hdvpd.data.calibration.calibrate import write_corrected
from hdvpd.data.corrections import Corrections
from hdvpd.data.inspect import contact_sheet, inspect
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset

HEIGHT, WIDTH = 16, 20


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_synthetic_dataset(
        tmp_path / "scene", episodes=3, steps=8, height=HEIGHT, width=WIDTH, seed=1
    )
    return tmp_path / "scene"


def test_the_table_says_what_the_data_set_holds(path, capsys):
    inspect(path)
    words = capsys.readouterr().out
    dataset = Dataset(path)
    for word in (dataset.identity(), "3, of 9 frames", "2 Hz", "CC0-1.0", "cam0", "16x20", "swing",
                 "11 kinematic points", "3 of 3", "measured", "commanded"):  # fmt: skip
        assert word in words
    depth = dataset.read(0, "cameras/cam0/depth")
    nearest, farthest = depth[depth > 0].min(), depth.max()
    assert f"{nearest:.2f} to {farthest:.2f} m" in words


def test_the_contact_sheet_shows_evenly_spread_frames_of_every_camera(path):
    sheet = iio.imread(inspect(path))
    dataset = Dataset(path)
    # Rows of colour and depth per camera, two pixels of gap each; six frames of nine.
    assert sheet.shape == (4 * (HEIGHT + 2), 6 * WIDTH, 3)
    for row, camera in enumerate(dataset.cameras):
        rgb = dataset.read(0, f"cameras/{camera}/rgb")
        top = 2 * row * (HEIGHT + 2)
        for column, frame in enumerate((0, 2, 3, 5, 6, 8)):
            tile = sheet[top : top + HEIGHT, column * WIDTH : (column + 1) * WIDTH]
            np.testing.assert_array_equal(tile, rgb[frame])


def test_depth_tiles_are_brighter_when_nearer_and_black_when_invalid(path):
    depth = np.tile(np.linspace(1, 2, WIDTH, dtype=np.float32), (9, HEIGHT, 1))
    depth[:, 0] = 0
    replace_array(path, 0, "cameras/cam0/depth", depth)
    dataset = Dataset(path)
    sheet = contact_sheet(dataset, dataset.episodes[:1]).astype(int)
    tile = sheet[HEIGHT + 2 : 2 * HEIGHT + 2, :WIDTH]
    assert (tile[0] == 0).all()
    brightness = tile[1].sum(axis=-1)
    assert (np.diff(brightness) <= 0).all()
    assert brightness[0] > brightness[-1] + 100


@pytest.mark.parametrize("name", ["my [old] set", "x[/b]", "[red]", ":robot:"])
def test_names_in_brackets_and_colons_are_shown_as_they_are(path, name, monkeypatch, capsys):
    """They are markup to rich: brackets vanished from the tables or ended in a traceback."""
    monkeypatch.setenv("COLUMNS", "200")
    edit_json(path / "episodes/000000/episode.json", task=f"task {name}")
    content = json.loads((path / "dataset.json").read_text())
    camera = name.replace("/", "")  # its name is that of a folder
    content["cameras"][camera] = content["cameras"].pop("cam1")
    for file in path.glob("episodes/*/cameras/cam1"):
        file.rename(file.with_name(camera))
    edit_json(
        path / "dataset.json", cameras=content["cameras"], licence=f"licence {name}",
        source={f"key {name}": f"value {name}"},
    )  # fmt: skip
    folder = path.parent / f"set {name}"
    folder.parent.mkdir(exist_ok=True)
    inspect(path.rename(folder))
    words = capsys.readouterr().out.replace("\n", "")
    for word in ("licence", "key", "value", "set", "task", "(task"):
        assert f"{word} {name}" in words
    assert re.search(rf" {re.escape(camera)} +│ 16x20", words)


@pytest.mark.parametrize("name", ["cameras/cam1/rgb", "robot/joint_targets", "time_s"])
def test_a_missing_array_of_any_episode_is_named(path, name):
    shutil.rmtree(path / "episodes/000002" / name)
    with pytest.raises(UserError) as caught:
        inspect(path)
    assert name in str(caught.value)
    assert "episode 2" in str(caught.value)


def test_damage_in_what_is_shown_is_named(path):
    file = chunk_file(path, 0, "cameras/cam1/depth")
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(UserError, match="cameras/cam1/depth"):
        inspect(path)


@pytest.mark.parametrize("kept", [100, -2])
def test_a_damaged_robot_model_is_named_with_its_remedy(path, kept):
    file = path / "robot.json"
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"robot\.json cannot be read .*`hdvpd data robot "):
        inspect(path)


def test_a_frame_without_valid_depth_is_named(path):
    depth = np.ones((9, HEIGHT, WIDTH), np.float32)
    depth[8] = np.nan
    replace_array(path, 0, "cameras/cam1/depth", depth)
    with pytest.raises(UserError, match="frame 8 of episode 0"):
        inspect(path)


def test_a_sheet_that_cannot_be_written_is_one_message(path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=r"contact_sheet\.png: No space left"):
        inspect(path)
    assert sorted(f.name for f in path.iterdir()) == ["dataset.json", "episodes", "robot.json"]


def test_malformed_descriptions_are_one_message_and_begin_no_copy(path, tmp_path):
    edit_json(path / "dataset.json", source="recorded in our lab")
    with pytest.raises(UserError, match="source = 'recorded in our lab'"):
        inspect(path)
    with pytest.raises(UserError, match="source = 'recorded in our lab'"):
        write_corrected(path, tmp_path / "corrected", Corrections())
    assert not (tmp_path / "corrected").exists()


def test_a_verdict_that_is_none_is_named_with_its_file(path):
    edit_json(path / "episodes/000001/episode.json", success="yes")
    with pytest.raises(UserError, match=r"000001/episode\.json: success = 'yes'"):
        inspect(path)


def test_json_nested_without_end_is_one_message(path):
    (path / "dataset.json").write_text("[" * 200_000)
    with pytest.raises(UserError, match=r"dataset\.json cannot be read"):
        inspect(path)
