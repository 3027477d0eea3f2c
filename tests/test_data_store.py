import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from data_tools import chunk_file, edit_json, replace_array

from hdvpd.basics.errors import UserError
from hdvpd.config import DataConfig
from hdvpd.data import writer
from hdvpd.data.simulation.synthetic import synthetic_episode, write_synthetic_dataset
from hdvpd.data.store import Dataset


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "scene"
    write_synthetic_dataset(path, episodes=3, steps=4, height=16, width=20, seed=1)
    return path


@pytest.fixture
def path(pristine: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(pristine, tmp_path / "scene"))


def refusal(path: Path, episode: int, name: str, start: int = 0, length: int = 5) -> str:
    with pytest.raises(UserError) as caught:
        Dataset(path).read(episode, name, start, length)
    message = str(caught.value)
    assert "\n" not in message
    assert name in message
    assert f"episode {episode}" in message
    return message


def test_every_array_is_read_back_as_it_was_written(path):
    dataset = Dataset(path)
    expected = synthetic_episode(np.random.default_rng([1, 2]), 4, 16, 20)
    for name, values in expected.items():
        stored = dataset.read(2, name)
        assert stored.dtype == values.dtype
        np.testing.assert_array_equal(stored, values)


def test_a_data_set_says_where_targets_and_links_come_from(path):
    dataset = Dataset(path)
    assert dataset.joint_positions_source == "measured"
    assert dataset.joint_targets_source == "commanded"
    assert dataset.links_source == "synthetic-two-link"
    assert dataset.moving_cameras == ()
    edit_json(
        path / "episodes/000001/episode.json",
        joint_targets_source="next_positions",
        links_source="arm.urdf",
    )
    cameras = dataset.info.raw["cameras"]
    cameras = cameras | {"cam1": cameras["cam1"] | {"mount": "tcp"}}
    edit_json(path / "dataset.json", cameras=cameras)
    mixed = Dataset(path)
    assert mixed.joint_targets_source == "commanded, next_positions"
    assert mixed.links_source == "arm.urdf, synthetic-two-link"
    assert mixed.moving_cameras == ("cam1",)


def test_a_window_is_a_slice_and_fixed_cameras_are_whole(path):
    dataset = Dataset(path)
    whole = dataset.read(0, "cameras/cam1/rgb")
    np.testing.assert_array_equal(dataset.read(0, "cameras/cam1/rgb", 1, 3), whole[1:4])
    assert dataset.read(0, "cameras/cam1/intrinsics", 1, 3).shape == (3, 3)


def test_cameras_with_a_row_per_frame_are_sliced_even_in_three_frame_episodes(tmp_path):
    write_synthetic_dataset(tmp_path, episodes=1, steps=2, height=16, width=20, seed=0)
    rows = np.arange(27.0).reshape(3, 3, 3)
    replace_array(tmp_path, 0, "cameras/cam0/intrinsics", rows)
    read = Dataset(tmp_path).read(0, "cameras/cam0/intrinsics", 1, 2)
    np.testing.assert_array_equal(read, rows[1:])
    assert Dataset(tmp_path).read(0, "cameras/cam1/intrinsics", 1, 2).shape == (3, 3)


def test_frames_of_zeros_survive(path):
    zeros = np.zeros((5, 16, 20), np.float32)
    replace_array(path, 0, "cameras/cam0/depth", zeros)
    np.testing.assert_array_equal(Dataset(path).read(0, "cameras/cam0/depth"), zeros)


def test_no_flipped_bit_is_ever_read_as_data(path, long):
    name = "cameras/cam0/rgb"
    truth = Dataset(path).read(1, name)
    file = chunk_file(path, 1, name)
    content = file.read_bytes()
    rng = np.random.default_rng(0)
    for position in rng.integers(0, 8 * len(content), 500 if long else 60):
        damaged = bytearray(content)
        damaged[position // 8] ^= 1 << (position % 8)
        file.write_bytes(damaged)
        message = refusal(path, 1, name)
        assert "damaged" in message
        assert "frame" in message
    file.write_bytes(content)
    np.testing.assert_array_equal(Dataset(path).read(1, name), truth)


def test_the_damaged_frame_is_named_and_windows_without_it_still_read(path):
    name = "cameras/cam0/rgb"
    good = Dataset(path).read(1, name)
    file = chunk_file(path, 1, name)
    content = bytearray(file.read_bytes())
    content[5] ^= 1  # the first bytes of a shard are those of its first frame
    file.write_bytes(content)
    assert "frame 0 is damaged" in refusal(path, 1, name, 0, 3)
    np.testing.assert_array_equal(Dataset(path).read(1, name, 1, 4), good[1:])


@pytest.mark.parametrize("name", ["cameras/cam1/depth", "robot/link_to_world", "time_s"])
@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_truncated_file_is_refused(path, name, kept):
    file = chunk_file(path, 2, name)
    file.write_bytes(file.read_bytes()[: int(kept * file.stat().st_size)])
    message = refusal(path, 2, name)
    assert "damaged" in message
    assert str(path / "episodes" / "000002") in message


@pytest.mark.parametrize("name", ["cameras/cam1/rgb", "robot/joint_positions"])
def test_a_missing_chunk_does_not_read_as_zeros(path, name):
    chunk_file(path, 0, name).unlink()
    assert "data are missing" in refusal(path, 0, name)


def test_a_missing_array_is_named(path):
    shutil.rmtree(path / "episodes/000001/cameras/cam1/depth")
    assert "it is missing" in refusal(path, 1, "cameras/cam1/depth")


@pytest.mark.parametrize(
    ("name", "values", "found", "expected"),
    [
        ("cameras/cam0/rgb", np.zeros((5, 16, 20, 3), np.float32), "float32", "uint8"),
        ("cameras/cam0/rgb", np.zeros((5, 16, 21, 3), np.uint8), "(5, 16, 21, 3)", "16, 20, 3)"),
        ("cameras/cam0/depth", np.zeros((4, 16, 20), np.float32), "(4, 16, 20)", "(5, 16, 20)"),
        ("cameras/cam0/depth", np.zeros((5, 16, 20), np.float64), "float64", "float32 or uint16"),
        ("cameras/cam1/intrinsics", np.zeros((4, 4)), "(4, 4)", "(3, 3) or (5, 3, 3)"),
        ("robot/joint_targets", np.zeros((5, 4), np.float32), "(5, 4)", "(5, 3)"),
        ("robot/link_to_world", np.zeros((5, 2, 4, 4), np.float32), "(5, 2, 4, 4)", "(5, 3, 4, 4)"),
    ],
)
def test_a_wrong_type_or_shape_is_refused(path, name, values, found, expected):
    replace_array(path, 0, name, values)
    message = refusal(path, 0, name)
    assert found in message
    assert expected in message


@pytest.mark.parametrize("content", ["", "{", "[]", '{"length": 5}'])
def test_a_damaged_episode_description_is_named(path, content):
    file = path / "episodes/000001/episode.json"
    file.write_text(content)
    with pytest.raises(UserError) as caught:
        Dataset(path)
    assert str(file) in str(caught.value)


def test_a_missing_episode_description_is_named(path):
    file = path / "episodes/000001/episode.json"
    file.unlink()
    with pytest.raises(UserError, match=r"episode\.json is missing"):
        Dataset(path)


def test_a_missing_data_set_says_how_to_make_one(tmp_path):
    with pytest.raises(UserError, match="hdvpd data simulate --out"):
        Dataset(tmp_path / "nowhere")


def test_a_data_set_without_episodes_is_refused(path):
    shutil.rmtree(path / "episodes")
    with pytest.raises(UserError, match="no finished episode"):
        Dataset(path)


def test_an_unknown_episode_is_refused(path):
    with pytest.raises(UserError, match="no episode 7"):
        Dataset(path).episode(7)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([0, 1, 2, 3], "0 to 3."),
        ([0, 2, 3, 9], "0, 2 to 3, 9."),
        ([5], "5."),
        ([0, 1, 1_000_000, 1_000_001], "0 to 1, 1000000 to 1000001."),
        (list(range(0, 40, 2)), "0, 2, 4, 6, 8, ..., 38."),
    ],
)
def test_the_episodes_there_are_named(path, numbers, words):
    dataset = Dataset(path)
    dataset.episodes = tuple(replace(dataset.episodes[0], number=n) for n in numbers)
    dataset._by_number = {}
    with pytest.raises(UserError) as caught:
        dataset.episode(7)
    assert str(caught.value).endswith(f"has no episode 7; it has {words}")


def test_an_episode_that_is_no_whole_number_is_refused(path):
    # In a process of its own, as users have it: here annotations are checked too.
    program = """
import sys
import numpy as np
from hdvpd.basics.errors import UserError
from hdvpd.data.store import Dataset
dataset = Dataset(sys.argv[1])
assert dataset.episode(np.int64(1)).number == 1
for number in ("0", 0.0, None):
    try:
        dataset.episode(number)
    except UserError as error:
        print(error)
"""
    words = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    found = [line.rpartition("such as 0, not by ")[2] for line in done.stdout.splitlines()]
    assert found == ["'0' (str).", "0.0 (float).", "None (NoneType)."]


def test_identity_follows_content_and_not_place(path, tmp_path):
    identity = Dataset(path).identity()
    elsewhere = Path(shutil.copytree(path, tmp_path / "elsewhere"))
    assert Dataset(elsewhere).identity() == identity
    edit_json(elsewhere / "episodes/000000/episode.json", split="test")
    assert Dataset(elsewhere).identity() != identity
    changed = Path(shutil.copytree(path, tmp_path / "changed"))
    edit_json(changed / "dataset.json", rate_hz=3.0)
    assert Dataset(changed).identity() != identity


def test_scene_spec_takes_the_box_of_the_configuration_or_of_the_data_set(path):
    dataset = Dataset(path)
    spec = dataset.scene_spec(DataConfig())
    assert spec.num_robot_points == 11
    assert spec.workspace_min == (-0.5, -0.5, -0.05)
    box = DataConfig(workspace_min=(-1.0, 0.0, 0.0), workspace_max=(1.0, 2.0, 3.0))
    own = dataset.scene_spec(box)
    assert (own.workspace_min, own.workspace_max) == (box.workspace_min, box.workspace_max)


def test_unfinished_episodes_are_invisible_and_those_of_dead_writers_are_cleared(path):
    # The number is this process's own: a reused pid does not keep what a dead writer left.
    dead = path / "episodes" / f".partial-000003-{os.getpid()}"
    alive = path / "episodes" / ".partial-000004-1"
    for folder in (dead, alive):
        shutil.copytree(path / "episodes/000000", folder)
    assert [e.number for e in Dataset(path).episodes] == [0, 1, 2]
    lock = "import fcntl, os, sys; f = os.open(sys.argv[1], os.O_RDONLY)\n"
    lock += "fcntl.flock(f, fcntl.LOCK_EX); print('locked', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", lock, str(alive)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as live:
        assert live.stdout is not None
        live.stdout.readline()
        writer.clear_partial_episodes(path)
        assert not dead.exists()
        assert alive.exists()
        live.kill()
    writer.clear_partial_episodes(path)
    assert not alive.exists()


def test_an_episode_is_locked_while_it_is_written(path):
    with writer.new_episode(path, 5, {"length": 1, "split": "train"}):
        writer.clear_partial_episodes(path)
    assert Dataset(path).episode(5).length == 1


def test_a_finished_episode_is_never_overwritten(path):
    before = (path / "episodes/000000/episode.json").read_bytes()
    writer.write_episode(path, 0, {"length": 1, "split": "train"}, {"time_s": np.zeros(1)})
    assert (path / "episodes/000000/episode.json").read_bytes() == before
    assert not list((path / "episodes").glob(".partial*"))


_FULL_DISK = """
import resource, signal, sys
import numpy as np
from hdvpd.data import writer
from hdvpd.basics.errors import UserError
from pathlib import Path
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4000, 4000))
noise = np.random.default_rng(0).integers(0, 255, (3, 50, 50, 3)).astype(np.uint8)
try:
    writer.write_episode(Path(sys.argv[1]), 9, {"length": 3}, {"cameras/a/rgb": noise})
except UserError as error:
    print(error)
"""


def test_a_write_that_fails_leaves_no_episode_behind(path):
    # A limit on the size of files fails the write as a full disk does.
    done = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )
    assert "Could not write episode 9" in done.stdout
    assert "same command continues" in done.stdout
    assert sorted(f.name for f in (path / "episodes").iterdir()) == ["000000", "000001", "000002"]
    assert len(Dataset(path).episodes) == 3


@pytest.mark.parametrize(
    ("kind", "size", "compression"), [("rgb", [16, 20, 3], "zstd"), ("depth", [16, 20], "blosc")]
)
def test_files_are_plain_zarr_v3_with_a_checksum_per_frame(path, kind, size, compression):
    meta = json.loads((path / f"episodes/000000/cameras/cam0/{kind}/zarr.json").read_text())
    assert meta["zarr_format"] == 3
    assert meta["dimension_names"] == ["time", "row", "column", "channel"][: 1 + len(size)]
    (shard,) = meta["codecs"]
    assert shard["configuration"]["chunk_shape"] == [1, *size]
    names = [codec["name"] for codec in shard["configuration"]["codecs"]]
    assert names == ["bytes", compression, "crc32c"]
