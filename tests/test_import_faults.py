"""What an import says of faults of the whole source, and of what it leaves out."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import extras
import import_sources as sources
import lerobot_sources
import numpy as np
import pytest
from PIL import Image

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data import writer
from hdvpd.data.importers import FORMATS
from hdvpd.data.importers.driver import import_dataset

h5py: Any = extras.needed("h5py")
extras.needed("mujoco")

SCENES = [sources.make_scene(k, frames=5) for k in range(4)]
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 1234567\n".format(
    64 * "a"
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source of every format with four episodes."""
    path = tmp_path_factory.mktemp("good")
    sources.write_folder(path / "folder", SCENES)
    sources.write_robotwin(path / "robotwin", SCENES)
    sources.write_maniskill(path / "maniskill", SCENES)
    demos = {f"demo_{k}": scene for k, scene in enumerate(SCENES)}
    sources.write_robomimic(path / "robomimic" / "demos.hdf5", demos)
    sources.write_rlbench(path / "rlbench", SCENES)
    return path


@pytest.fixture(scope="module")
def lerobot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    extras.needed("pyarrow")
    path = tmp_path_factory.mktemp("good")
    lerobot_sources.write_lerobot(path / "v3", SCENES[:2])
    lerobot_sources.write_lerobot(path / "v2", SCENES[:2], version="v2.1")
    return path


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run an import of `source` into `out` that fails; return its one line."""
    command = ["data", "import", *words, "--out", "out", "--workers", "1", "--no-check"]
    assert main(command) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    return printed


ROBOT = ("--robot", "source/arm.urdf")
POINTERS = [
    ("folder", "hdvpd_calibration.json", "it", ()),
    ("folder", "*/joints.csv", "joints.csv", ROBOT),
    ("folder", "*/*/rgb/*.png", r"left_view/rgb/000000\.png", ROBOT),
    ("folder", "*/*/depth/*.png", r"left_view/depth/000000\.png", ROBOT),
    ("folder", "arm.urdf", "the robot model", ROBOT),
    ("robotwin", "**/*.hdf5", "it", ()),
    ("maniskill", "*.h5", "it", ()),
    ("maniskill", "*.json", "it", ()),
    ("robomimic", "demos.hdf5", "it", ()),
    ("rlbench", "**/*.pkl", r"low_dim_obs\.pkl", ()),
    ("rlbench", "**/*_depth/*.png", r"left_view_depth/0\.png", ("--rate", "2")),
]


@pytest.mark.parametrize(("format", "pattern", "name", "flags"), POINTERS)
def test_a_git_lfs_pointer_is_named_as_such(format, pattern, name, flags, originals, here, capsys):
    shutil.copytree(originals / format, "source")
    _put_pointers(Path("source"), pattern)
    source = "source/demos.hdf5" if format == "robomimic" else "source"
    _check(refused(capsys, format, source, *flags), name)
    assert [file.name for file in here.iterdir()] == ["source"]


@pytest.mark.parametrize(
    ("version", "pattern", "name"),
    [
        ("v3", "meta/info.json", "it"),
        ("v3", "meta/episodes/*/*.parquet", "it"),
        ("v3", "data/**/*.parquet", "it"),
        ("v3", "videos/**/*.mp4", "the video"),
        ("v2", "meta/episodes.jsonl", "line 1"),
    ],
)
def test_a_git_lfs_pointer_in_a_lerobot_data_set_is_named(
    version, pattern, name, lerobot, here, capsys
):
    shutil.copytree(lerobot / version, "source")
    Path("source/arm.urdf").write_text(sources.URDF)
    _put_pointers(Path("source"), pattern)
    _check(refused(capsys, "lerobot", "source", *ROBOT), name)


def _put_pointers(path: Path, pattern: str) -> None:
    files = list(path.glob(pattern))
    assert files
    for file in files:
        file.write_text(POINTER)


def _check(printed: str, name: str) -> None:
    words = f": {name} is a Git LFS pointer: the 1,234,567 bytes that it stands for were not"
    assert re.search(words, printed), printed
    assert "Run `git lfs pull` in source" in printed
    assert "--skip-bad" not in printed


def test_to_leave_episodes_out_is_advised_only_where_others_are_good(originals, here, capsys):
    shutil.copytree(originals / "robotwin", "source")
    files = sorted(Path("source").rglob("*.hdf5"))
    advice = "or leave bad episodes out with --skip-bad"
    files[0].write_bytes(files[0].read_bytes()[:3000])
    assert advice in refused(capsys, "robotwin", "source", "--rate", "2")
    only = refused(capsys, "robotwin", "source", "--rate", "2", "--episodes", "0")
    assert "damaged" in only
    assert "--skip-bad" not in only
    for file in files[1:]:
        file.write_bytes(file.read_bytes()[:3000])
    everything = refused(capsys, "robotwin", "source", "--rate", "2")
    assert "--skip-bad" not in everything
    listed = [str(file.relative_to("source")) for file in files[1:]]
    assert f"The others that were tried ({', '.join(listed)}) cannot be imp" in everything
    assert not Path("out").exists()


def test_a_wrong_unit_of_depth_is_known_as_a_mistake_of_all_episodes(originals, here, capsys):
    """It shows only in the pictures."""
    shutil.copytree(originals / "maniskill", "source")
    printed = refused(capsys, "maniskill", "source", "--depth-unit-m", "1")
    assert "the median depth is" in printed
    assert "cannot be imported either" in printed
    assert "--skip-bad" not in printed


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("obs", ["it holds no observations. Write observations with pictures and depth"]),
        ("images", ["its observations hold no pictures. Write observations"]),
        ("depth", ["it has no depth; write the observations again"]),
        ("env_args", ["as robosuite writes it: first `python conversion/convert_robosuite.py"]),
    ],
)
def test_a_robomimic_file_without_observations_says_what_writes_them(missing, words, here, capsys):
    sources.write_robomimic(here / "demo.hdf5", {"demo_0": SCENES[0], "demo_1": SCENES[1]})
    with h5py.File("demo.hdf5", "a") as file:
        for demo in file["data"].values():
            for name in list(demo["obs"]):
                if missing in ("obs", "env_args") or name.endswith(
                    {"images": ("_image", "_depth"), "depth": "_depth"}[missing]
                ):
                    del demo[f"obs/{name}"]
            if not len(demo["obs"]):
                del demo["obs"]
        if missing == "env_args":
            del file["data"].attrs["env_args"]
    printed = refused(capsys, "robomimic", "demo.hdf5")
    command = "`python dataset_states_to_obs.py --dataset demo.hdf5 --output_name demo_depth.hdf5"
    for word in (*words, command, "--depth`"):
        assert word in printed
    assert "--skip-bad" not in printed


def test_folder_names_the_pictures_that_it_leaves_out(originals, here, capsys):
    shutil.copytree(originals / "folder", "source")
    for folder in ("top/rgb", "top/depth", "left_view/extra"):
        for take in Path("source").glob("take*"):
            (take / folder).mkdir(parents=True)
            Image.fromarray(np.zeros((4, 5), np.uint8)).save(take / folder / "000000.png")
    command = ["data", "import", "folder", "source", "--out", "out", "--workers", "1", "--no-check"]
    assert main([*command, *ROBOT, "--cameras", "left_view"]) == 0
    printed = capsys.readouterr().out
    expected = [
        f"pictures in {folder} are left out: hdvpd_calibration.json names no camera for them"
        for folder in ("left_view/extra", "top/depth", "top/rgb")
    ]
    assert [line.strip() for line in printed.splitlines() if "pictures in" in line] == expected
    meta = json.loads((writer.episode_folder(Path("out"), 1) / "episode.json").read_text())
    assert meta["warnings"] == expected


def test_an_unknown_format_is_said_before_anything_else(here, capsys):
    with pytest.raises(UserError, match="imports no format 'foo'; choose one of folder, lerobot"):
        import_dataset("foo", "bar", "out", calibration="gone.json", episodes="x", step_s=-1.0)
    assert main(["data", "import", "foo", "bar", "--out", "out"]) == 2
    printed = capsys.readouterr().err
    assert "'foo'" in printed
    assert all(name in printed for name in FORMATS)
    assert "bar" not in printed


def turned(change: Any) -> None:
    """Write the source's tables with other shoulder angles, measured and commanded."""
    for table in Path("source").glob("take*/joints.csv"):
        first, *rows = table.read_text().splitlines()
        columns = [k for k, name in enumerate(first.split(",")) if name.startswith("shoulder")]
        cells = [row.split(",") for row in rows]
        for row in cells:
            for k in columns:
                row[k] = repr(change(float(row[k])))
        table.write_text("\n".join([first, *map(",".join, cells)]) + "\n")


def test_joints_in_degrees_are_refused_by_the_limits_of_the_model(originals, here, capsys):
    shutil.copytree(originals / "folder", "source")
    turned(lambda angle: 53 + 40 * angle)
    printed = refused(capsys, "folder", "source", *ROBOT)
    found = r"episode take0, frame \d: joint_positions: joint 'shoulder' is [3-9]\d"
    assert re.search(found, printed), printed
    assert "but the model's shoulder goes from -3 to 3 rad. Degrees? Joints are radians" in printed
    assert not Path("out").exists()


@pytest.mark.parametrize(("beyond", "lines"), [(0.25, 0), (0.6, 1)])
def test_a_joint_a_little_beyond_its_limit_is_at_most_one_warning(
    beyond, lines, originals, here, capsys
):
    shutil.copytree(originals / "folder", "source")
    turned(lambda angle: min(3 + beyond, 4 + angle))
    command = ["data", "import", "folder", "source", "--out", "out", "--workers", "1", "--no-check"]
    assert main([*command, *ROBOT]) == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if "beyond the lim" in line]
    assert len(printed) == lines
    if lines:
        words = "warning: joints beyond the limits of the robot model in 4 of 4 episodes; the first"
        assert printed[0].startswith(f"{words}: episode take0, frame 0: ")
        assert "'shoulder' is 3.6, but the model's shoulder goes from -3 to 3 rad" in printed[0]


def test_what_readers_would_refuse_is_refused_before_anything_is_written(
    originals, here, capsys, monkeypatch
):
    """A source that names a joint twice left a data set with which the command failed for ever."""
    from hdvpd.data.importers import sidecar

    monkeypatch.setattr(sidecar, "_require_unique", lambda *_: None)
    shutil.copytree(originals / "folder", "source")
    file = Path("source/hdvpd_calibration.json")
    raw = json.loads(file.read_text())
    raw["joints"].append({"name": "elbow"})
    file.write_text(json.dumps(raw))
    printed = refused(capsys, "folder", "source", *ROBOT)
    assert "source: robot.joints names 'elbow' twice" in printed
    assert not Path("out/dataset.json").exists()
