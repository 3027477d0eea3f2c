"""Every flag of `hdvpd data import` does what it says, through the command itself."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import extras
import import_sources as sources
import numpy as np
import pytest

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data import metadata, writer
from hdvpd.data.importers import driver
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.store import Dataset

h5py: Any = extras.needed("h5py")
extras.needed("mujoco")

SCENES = [sources.make_scene(k, frames=6) for k in range(4)]
VIEW = "left_view"
MJCF = f"""<mujoco><worldbody><body name="base" pos="{sources.HOME[0]} 0 {sources.HOME[2]}">
  <body name="upper"><joint name="shoulder" axis="0 0 1"/>
    <body name="fore" pos="{sources.LENGTHS[0]} 0 0"><joint name="elbow" axis="0 0 1"/>
      <body name="tool" pos="{sources.LENGTHS[1]} 0 0">
        <body name="finger_a"><joint name="finger" type="slide" axis="0 1 0"/></body>
      </body></body></body></body></worldbody></mujoco>"""


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand in a folder of its own; what is imported goes to `out` in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


def command(*words: str) -> int:
    workers = [] if "--workers" in words else ["--workers", "1"]
    return main(["data", "import", *words, "--out", "out", "--no-check", *workers])


def imported(*words: str) -> Dataset:
    assert command(*words) == 0
    return Dataset("out")


def demos(count: int = 1, **options: Any) -> str:
    named = {f"demo_{k}": scene for k, scene in enumerate(SCENES[:count])}
    sources.write_robomimic(Path("demos.hdf5"), named, **options)
    return "demos.hdf5"


def rgb(dataset: Dataset, camera: str = VIEW) -> np.ndarray:
    return dataset.read(0, f"cameras/{camera}/rgb")


def test_every_flag_reaches_the_importer(out, monkeypatch):
    given: dict[str, Any] = {}
    monkeypatch.setattr(driver, "import_dataset", lambda *a, **k: given.update(k, places=a))
    words = """folder src --episodes 0-2 --cameras a,b --size 96x128 --step 0.25
      --calibration c.json --robot r.xml --workers 3 --skip-bad
      --depth-unit-m 0.001 --action joint-targets --channels bgr --rate 15"""
    assert command(*words.split()) == 0
    assert given == {
        "places": ("folder", Path("src"), Path("out")),
        "episodes": "0-2",
        "cameras": ("a", "b"),
        "size": (96, 128),
        "step_s": 0.25,
        "calibration": Path("c.json"),
        "robot": Path("r.xml"),
        "workers": 3,
        "skip_bad": True,
        "depth_unit_m": 0.001,
        "joint_targets": True,
        "channels": "bgr",
        "rate_hz": 15.0,
    }


def test_episodes_are_chosen_by_their_place_in_the_source(out, capsys):
    dataset = imported("robomimic", demos(4), "--episodes", "0,2-3")
    assert [episode.number for episode in dataset.episodes] == [0, 2, 3]
    joints = dataset.read(3, "robot/joint_positions")[:, :2]
    np.testing.assert_allclose(joints, SCENES[3].joints, atol=1e-6)
    printed = capsys.readouterr().out
    assert "demos.hdf5: 4 episodes of format robomimic" in printed
    assert "imported 3 of 3 episodes" in printed  # progress


def test_cameras_are_chosen_by_name(out):
    dataset = imported("robomimic", demos(), "--cameras", "right_view")
    assert dataset.cameras == ("right_view",)
    np.testing.assert_array_equal(rgb(dataset, "right_view"), SCENES[0].views["right_view"].rgb)


def test_size_rescales_images_and_intrinsics(out):
    dataset = imported("robomimic", demos(), "--size", "48x80")
    assert rgb(dataset).shape == (6, 48, 80, 3)
    assert dataset.read(0, f"cameras/{VIEW}/depth").shape == (6, 48, 80)
    expected = np.diag([80 / 32, 48 / 24, 1.0]) @ SCENES[0].views[VIEW].intrinsics
    np.testing.assert_allclose(dataset.read(0, f"cameras/{VIEW}/intrinsics"), expected, atol=1e-6)


def test_step_and_rate_decide_which_frames_are_taken(out):
    sources.write_rlbench(Path("rl"), SCENES[:1])
    dataset = imported("rlbench", "rl", "--step", "1", "--rate", "2")
    assert dataset.rate_hz == 1.0
    np.testing.assert_allclose(dataset.read(0, "time_s"), [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(rgb(dataset), SCENES[0].views[VIEW].rgb[::2])
    meta = metadata.read_json(writer.episode_folder(out, 0) / "episode.json")
    assert meta["source_frames"] == [0, 2, 4]


def test_a_calibration_file_overrides_the_source(out):
    truth = SCENES[0].views[VIEW]
    pose = truth.poses[0].copy()
    pose[:3, 3] += [0.1, 0.2, 0.3]
    camera = {"image_size": [48, 64], "intrinsics": (np.diag([2.2, 2.2, 1]) @ truth.intrinsics
              * [[1, 1, 2 / 2.2], [1, 1, 2 / 2.2], [1, 1, 1]]).tolist(),
              "camera_to_world": pose.tolist()}  # fmt: skip
    Path("mine.json").write_text(json.dumps({"version": 1, "cameras": {VIEW: camera}}))
    dataset = imported("robomimic", demos(), "--calibration", "mine.json")
    np.testing.assert_allclose(dataset.read(0, f"cameras/{VIEW}/camera_to_world"), pose, atol=1e-6)
    intrinsics = dataset.read(0, f"cameras/{VIEW}/intrinsics")
    assert intrinsics[0, 0] == pytest.approx(1.1 * truth.intrinsics[0, 0])
    np.testing.assert_allclose(intrinsics[:2, 2], truth.intrinsics[:2, 2])
    other = dataset.read(0, "cameras/right_view/camera_to_world")
    np.testing.assert_allclose(other, SCENES[0].views["right_view"].poses[0], atol=1e-6)
    assert "mine.json, sha256" in dataset.info.raw["source"]["options"]["calibration"]


@pytest.mark.parametrize(("name", "text"), [("arm.urdf", sources.URDF), ("arm.xml", MJCF)])
def test_a_robot_is_a_urdf_or_an_mjcf(out, capsys, name, text):
    sources.write_folder(Path("takes"), SCENES[:1])
    Path(name).write_text(text)
    dataset = imported("folder", "takes", "--robot", name)
    tool = dataset.robot.links.index("tool")
    for array, joints in (
        ("link_to_world", SCENES[0].joints),
        ("target_link_to_world", np.vstack([SCENES[0].targets[:-1], SCENES[0].targets[-2]])),
    ):
        poses = dataset.read(0, f"robot/{array}")[:, tool]
        np.testing.assert_allclose(poses, sources.tool_poses(joints), atol=1e-6)
    assert f"joints matched with {name}: shoulder -> shoulder" in capsys.readouterr().out


def test_workers_give_the_same_bytes(out):
    source = demos(2)
    for name, workers in (("one", "1"), ("two", "2")):
        imported("robomimic", source, "--workers", workers)
        out.rename(name)
    files = [f.relative_to("one") for f in Path("one").rglob("*") if f.is_file()]
    assert len(files) > 20
    assert all((Path("one") / f).read_bytes() == (Path("two") / f).read_bytes() for f in files)


def test_skip_bad_decides_whether_a_bad_episode_ends_the_import(out, capsys):
    source = demos(3)
    with h5py.File(source, "a") as file:
        file["data/demo_1/obs/robot0_joint_pos"][4] = np.nan
    assert command("robomimic", source) == 2
    stopped = capsys.readouterr().err
    for words in ("demos.hdf5: episode demo_1, frame 4: joint_positions", "--skip-bad"):
        assert words in stopped
    with pytest.raises(UserError, match="is incomplete"):
        Dataset(out)
    dataset = imported("robomimic", source, "--skip-bad")
    assert [episode.number for episode in dataset.episodes] == [0, 2]
    (listed,) = metadata.read_json(out / driver.QUARANTINE)["episodes"]
    assert (listed["number"], listed["name"]) == (1, "demo_1")
    assert "episode demo_1, frame 4: joint_positions: a value is NaN" in listed["reason"]


def test_a_bad_episode_costs_nothing_of_earlier_imports(out, capsys):
    source = demos(4)
    with h5py.File(source, "a") as file:
        for name in ("demo_1", "demo_3"):
            file[f"data/{name}/obs/robot0_joint_pos"][4] = np.nan
    imported("robomimic", source, "--skip-bad", "--episodes", "0-1")
    assert command("robomimic", source, "--skip-bad", "--episodes", "3") == 2
    message = capsys.readouterr().err
    assert "no episode can be imported" in message
    assert "out keeps its 1 finished before" in message
    assert [episode.number for episode in Dataset(out).episodes] == [0]
    dataset = imported("robomimic", source, "--skip-bad", "--episodes", "2-3")
    assert [episode.number for episode in dataset.episodes] == [0, 2]
    listed = metadata.read_json(out / driver.QUARANTINE)["episodes"]
    assert [entry["number"] for entry in listed] == [1, 3]


def test_depth_unit_is_metres_per_stored_unit(out):
    sources.write_maniskill(Path("ms"), SCENES[:1])
    with h5py.File(next(Path("ms").glob("*.h5")), "a") as file:
        for camera in file["traj_0/obs/sensor_data"].values():
            del camera["depth"]
            depth_m = SCENES[0].views[camera.name.split("/")[-1]].depth_m
            camera["depth"] = (5000 * depth_m).round().astype(np.uint16)[..., None]
    dataset = imported("maniskill", "ms", "--depth-unit-m", "0.0002")
    truth = SCENES[0].views[VIEW].depth_m
    np.testing.assert_allclose(dataset.read(0, f"cameras/{VIEW}/depth"), truth, atol=1.01e-4)


@pytest.mark.parametrize("format", ["robomimic", "maniskill"])
def test_actions_become_targets_where_the_user_says_so(out, format):
    """Robomimic never says what its actions are; this ManiSkill file names another control mode."""
    scene = SCENES[0]
    if format == "robomimic":
        source = demos()
        wanted = np.column_stack([scene.targets, 0.04 * scene.opening])
        with h5py.File(source, "a") as file:
            del file["data/demo_0/actions"]
            file["data/demo_0/actions"] = wanted
    else:
        source = "ms"
        sources.write_maniskill(Path(source), [scene])
        about = next(Path(source).glob("*.json"))
        about.write_text(about.read_text().replace("pd_joint_pos", "pd_joint_other"))
    assert imported(format, source).episode(0).joint_targets_source == "next_positions"
    out.rename("before")
    dataset = imported(format, source, "--action", "joint-targets")
    # Without a robot model nobody knows where a command sends the tool: it is told where it went.
    told = "commanded" if format == "robomimic" else "next_positions"
    assert dataset.episode(0).joint_targets_source == told
    targets = dataset.read(0, "robot/joint_targets")[:-1, :2]
    np.testing.assert_allclose(targets, scene.targets[:-1], atol=1e-6)


def test_channels_say_how_colours_are_stored(out):
    sources.write_folder(Path("takes"), SCENES[:1])
    words = ("folder", "takes", "--robot", "takes/arm.urdf")
    truth = SCENES[0].views[VIEW].rgb
    np.testing.assert_array_equal(rgb(imported(*words, "--channels", "bgr")), truth[..., ::-1])
    out.rename("bgr")
    np.testing.assert_array_equal(rgb(imported(*words, "--channels", "rgb")), truth)


def test_channels_of_a_robotwin_fork_that_writes_rgb(out):
    sources.write_robotwin(Path("rt"), SCENES[:1])
    words = ("robotwin", "rt", "--rate", "2")
    usual = rgb(imported(*words))
    out.rename("usual")
    np.testing.assert_array_equal(rgb(imported(*words, "--channels", "rgb")), usual[..., ::-1])


# --- what every import promises ------------------------------------------------------------------


@pytest.mark.parametrize("format", ["folder", "robotwin", "maniskill", "robomimic", "rlbench"])
def test_a_fault_in_a_later_episode_leaves_nothing_that_passes_for_complete(out, format, capsys):
    """The second episode's third picture is bad; the first is finished by then."""
    source, words = Path("src"), ["--rate", "2"]
    if format == "robomimic":
        source = Path(demos(2))
    else:
        getattr(sources, f"write_{format}")(source, SCENES[:2])
    if format == "folder":
        words = ["--robot", "src/arm.urdf"]
    damaged = _damage(source, format)
    assert command(format, str(source), *words) == 2
    message = capsys.readouterr().err
    assert "frame 2" in message
    assert f"episode {_second(format)}" in message
    assert "1 episodes of out are finished, but the import is incomplete" in message
    assert [f.name for f in (out / "episodes").iterdir()] == ["000000"]  # nothing partial
    for verb in (["data", "inspect"], ["data", "check"], ["train", "debug", "--data.path"]):
        assert main([*verb, "out"]) == 2
        assert "is incomplete" in capsys.readouterr().err
    for file, content in damaged.items():
        file.write_bytes(content)
    assert len(imported(format, str(source), *words).episodes) == 2


def _second(format: str) -> str:
    return {"folder": "take1", "robotwin": "push_block/demo_clean/data/episode1.hdf5",
            "maniskill": "traj_1", "robomimic": "demo_1",
            "rlbench": "push_buttons/all_variations/episodes/episode1"}[format]  # fmt: skip


def _damage(source: Path, format: str) -> dict[Path, bytes]:
    """Spoil one picture of the second episode; return what the files were."""
    if format in ("folder", "rlbench"):
        name = {"folder": "left_view/depth/000002.png", "rlbench": "left_view_depth/2.png"}
        file = source / _second(format) / name[format]
        before = {file: file.read_bytes()}
        file.write_bytes(before[file][:60])
        return before
    file = source
    if source.is_dir():
        file = next(source.rglob({"robotwin": "episode1.hdf5", "maniskill": "*.h5"}[format]))
    before = {file: file.read_bytes()}
    group = {
        "robotwin": "observation/left_view/depth",
        "robomimic": "data/demo_1/obs/left_view_depth",
        "maniskill": "traj_1/obs/sensor_data/left_view/depth",
    }[format]
    with h5py.File(file, "a") as stream:
        values = stream[group][()]
        values[2] = 0
        stream[group][...] = values
    return before


KILLED = """
import os
from hdvpd.data.importers import driver, episode
real = episode._write_images
def write(target, recording, prepared, place, *rest):
    real(target, recording, prepared, place, *rest)
    if place.episode == "demo_1":
        os._exit(9)  # as if killed: the images are written, the episode is not finished
episode._write_images = write
driver.import_dataset("robomimic", "demos.hdf5", "out")
"""


def test_a_killed_import_is_refused_and_completed_by_the_same_command(out, capsys):
    source = demos(3)
    assert subprocess.run([sys.executable, "-c", KILLED], check=False).returncode == 9
    left = sorted(f.name for f in (out / "episodes").iterdir())
    assert left[0].startswith(".partial-")
    assert left[1:] == ["000000"]
    for verb in ("inspect", "check"):
        assert main(["data", verb, "out"]) == 2
        assert "is incomplete" in capsys.readouterr().err
    assert len(imported("robomimic", source).episodes) == 3
    assert "out has 1 episodes; importing 2 more" in capsys.readouterr().out
    assert sorted(f.name for f in (out / "episodes").iterdir()) == ["000000", "000001", "000002"]
    out.rename("continued")
    imported("robomimic", source)
    files = [f.relative_to(out) for f in out.rglob("*") if f.is_file()]
    assert all((out / f).read_bytes() == (Path("continued") / f).read_bytes() for f in files)


def test_memory_does_not_grow_with_the_length_of_an_episode(out):
    """Held at once: some shards of 64 frames of 11 kB, not the 8 MB of the longer episode."""
    peaks = {}
    # The first import loads libraries.
    for name, frames in (("warm", 12), ("short", 192), ("long", 768)):
        # The same few pictures over and over; only their number matters.
        scene, repeat = SCENES[0], np.arange(frames) % 6
        views = {
            camera: sources.View(
                view.intrinsics, view.poses[repeat], view.rgb[repeat], view.depth_m[repeat]
            )
            for camera, view in scene.views.items()
        }
        longer = sources.Scene(scene.joints[repeat], scene.opening[repeat], views)
        sources.write_robomimic(Path(f"{name}.hdf5"), {"demo_1": longer})
        tracemalloc.start()
        import_dataset("robomimic", f"{name}.hdf5", name, step_s=1 / sources.RATE)
        peaks[name] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert Dataset(name).episode(0).length == frames
    assert peaks["long"] - peaks["short"] < 1.5e6


def test_two_arms_of_the_robomimic_family(out):
    """As DexMimicGen and two-arm robosuite record: robot0 and robot1."""
    source = demos(model=False)
    with h5py.File(source, "a") as file:
        obs = file["data/demo_0/obs"]
        for key in ("joint_pos", "gripper_qpos", "eef_pos", "eef_quat"):
            obs[f"robot1_{key}"] = obs[f"robot0_{key}"][()] * (0.5 if key == "joint_pos" else 1)
    dataset = imported("robomimic", source)
    joints = dataset.read(0, "robot/joint_positions")
    assert joints.shape == (6, 6)
    np.testing.assert_allclose(joints[:, :2], SCENES[0].joints, atol=1e-6)
    np.testing.assert_allclose(joints[:, 3:5], 0.5 * SCENES[0].joints, atol=1e-6)
    assert dataset.robot.links == ("robot0_eef", "robot1_eef")
