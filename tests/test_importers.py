"""Every source format, written by its own library, arrives as the analytic truth."""

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import extras
import import_sources as sources
import jax
import lerobot_sources
import numpy as np
import pytest
import scenes

from hdvpd.__main__ import main
from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.config import DataConfig
from hdvpd.config.experiments import read_toml
from hdvpd.data import windows, writer
from hdvpd.data.adding_robot import largest_error, misfits
from hdvpd.data.corrections import CameraCorrection, Corrections
from hdvpd.data.importers import FORMATS, common, conversions, episode, prepare
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.importers.robot_model import Joint, RobotModel
from hdvpd.data.robot import read_robot
from hdvpd.data.simulation import clip
from hdvpd.data.simulation import scene as robot_scene
from hdvpd.data.store import Dataset
from hdvpd.training import step as step_module

h5py: Any = extras.needed("h5py")
mujoco: Any = extras.needed("mujoco")

SCENES = [sources.make_scene(0), sources.make_scene(1)]
WRIST = sources.make_scene(2, wrist=True)


def write_source(name: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """Write both scenes in a format; return what to import and with which options."""
    path = folder / name
    if name == "folder":
        sources.write_folder(path, SCENES)
        return path, {"robot": path / "arm.urdf"}
    if name == "lerobot":
        extras.needed("pyarrow")
        lerobot_sources.write_lerobot(path, SCENES)
        (path / "arm.urdf").write_text(sources.URDF)
        return path, {"robot": path / "arm.urdf"}
    if name == "robotwin":
        sources.write_robotwin(path, SCENES)
        return path, {"rate_hz": sources.RATE}
    if name == "maniskill":
        sources.write_maniskill(path, SCENES)
        return path, {}
    if name == "robomimic":
        path = path.with_suffix(".hdf5")
        sources.write_robomimic(path, {"demo_2": SCENES[0], "demo_10": SCENES[1]})
        return path, {}
    sources.write_rlbench(path, SCENES)
    return path, {"rate_hz": sources.RATE}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Dataset]:
    """Import each format once."""
    made: dict[str, Dataset] = {}
    folder = tmp_path_factory.mktemp("sources")

    def get(name: str) -> Dataset:
        if name not in made:
            path, options = write_source(name, folder)
            import_dataset(name, path, folder / f"{name}-native", **options)
            made[name] = Dataset(folder / f"{name}-native")
        return made[name]

    return get


def content(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def rowwise(values: np.ndarray, frames: int) -> np.ndarray:
    return np.broadcast_to(values, (frames, *values.shape[-2:]))


def on_plane(depth_m: np.ndarray, intrinsics: np.ndarray, pose: np.ndarray) -> np.ndarray:
    """Heights of all valid pixels above the table [m]."""
    i, j = np.nonzero(depth_m)
    pixels = np.stack([j + 0.5, i + 0.5, np.ones(len(i))])
    points = np.linalg.inv(intrinsics) @ pixels * depth_m[i, j]
    return (pose[:3, :3] @ points)[2] + pose[2, 3]


STORAGE_STEP = {"folder": 5e-4, "robotwin": 1e-6, "maniskill": 5e-4, "robomimic": 1e-6,
                "rlbench": 4.0 / 2**24, "lerobot": 1.3e-3}  # fmt: skip
"""Half a step of stored depth [m], or float32's error."""


@pytest.mark.parametrize("name", FORMATS)
def test_cameras_and_depth_arrive_as_the_truth(name, imported):
    dataset = imported(name)
    assert set(dataset.cameras) == set(SCENES[0].views)
    for number, scene in enumerate(SCENES):
        assert dataset.episode(number).length == scene.frames
        for camera, truth in scene.views.items():
            rgb, depth, intrinsics, pose = (
                dataset.read(number, f"cameras/{camera}/{key}")
                for key in ("rgb", "depth", "intrinsics", "camera_to_world")
            )
            np.testing.assert_allclose(intrinsics, truth.intrinsics, atol=1e-6)
            np.testing.assert_allclose(pose, truth.poses[0], atol=1e-6)
            np.testing.assert_allclose(depth, truth.depth_m, atol=1.1 * STORAGE_STEP[name])
            assert ((depth == 0) == (truth.depth_m == 0)).all()
            # A step of stored depth along the ray is at most a step of height.
            table = (truth.rgb == 120).all(-1) & (truth.depth_m > 0)
            heights = on_plane(np.where(table[0], depth[0], 0), intrinsics, pose)
            assert np.abs(heights).max() < 1e-3
            if name == "robotwin":  # JPEG
                red = truth.rgb[..., 0] > 200
                assert rgb[red][:, 0].mean() > 180
                assert rgb[red][:, 2].mean() < 80
            else:
                np.testing.assert_array_equal(rgb, truth.rgb)


@pytest.mark.parametrize("name", FORMATS)
def test_joints_times_and_links_arrive_as_the_truth(name, imported):
    dataset = imported(name)
    copies = 2 if name == "robotwin" else 1
    for number, scene in enumerate(SCENES):
        time = dataset.read(number, "time_s")
        np.testing.assert_allclose(time, np.arange(scene.frames) / sources.RATE)
        episode = dataset.episode(number)
        joints = dataset.read(number, "robot/joint_positions")
        targets = dataset.read(number, "robot/joint_targets")
        tool = dataset.robot.links.index(
            {"folder": "tool", "lerobot": "tool", "maniskill": "tcp", "rlbench": "panda_tip",
             "robotwin": "left_endpose", "robomimic": "robot0_tool"}[name]
        )  # fmt: skip
        links = dataset.read(number, "robot/link_to_world")[:, tool]
        following = dataset.read(number, "robot/target_link_to_world")[:, tool]
        commanded = np.concatenate([scene.targets[:-1], scene.targets[-2:-1]])
        realised = np.concatenate([scene.joints[1:], scene.joints[-1:]])
        expected = realised if name in ("robomimic", "rlbench") else commanded
        # Commands of joints without a robot model: what is told of the tool is where it went.
        told = "commanded" if name in ("folder", "lerobot") else "next_positions"
        assert episode.joint_targets_source == dataset.joint_targets_source == told
        assert dataset.links_source == {
            "folder": "arm.urdf",
            "lerobot": "arm.urdf",
            "robomimic": "robot model of the source",
        }.get(name, "end effectors of the source")
        np.testing.assert_allclose(targets[:, :2], expected, atol=1e-6)
        if name == "robotwin":
            assert episode.joint_positions_source == "targets"
            led_here = np.concatenate([scene.joints[:1], scene.targets[:-1]])
            np.testing.assert_allclose(joints[:, :2], led_here, atol=1e-6)
        else:
            assert episode.joint_positions_source == "measured"
            np.testing.assert_allclose(joints[:, :2], scene.joints, atol=1e-6)
        assert joints.shape[1] == 3 * copies
        np.testing.assert_allclose(links, sources.tool_poses(scene.joints), atol=1e-6)
        where = commanded if name in ("folder", "lerobot") else realised
        np.testing.assert_allclose(following, sources.tool_poses(where), atol=1e-6)


@pytest.mark.parametrize("name", FORMATS)
def test_what_was_done_is_recorded(name, imported):
    dataset = imported(name)
    source = dataset.info.raw["source"]
    assert source["options"]["step_s"] == 0.5
    assert set(SCENES[0].views) <= set(source["fields"])
    assert {"hdvpd", "numpy", "pillow", "scipy"} <= set(source)
    meta = json.loads((writer.episode_folder(dataset.path, 1) / "episode.json").read_text())
    assert meta["source_frames"] == list(range(sources.FRAMES))
    assert meta["source"]
    assert {e.split for e in dataset.episodes} == (
        {"train", "validation"} if name == "robomimic" else {"train", "test"}
    )


@pytest.mark.parametrize("name", FORMATS)
def test_the_robot_model_goes_with_the_data(name, imported):
    dataset = imported(name)
    robot = read_robot(dataset.path)
    if name not in ("folder", "lerobot", "robomimic"):
        assert robot is None
        return
    assert robot is not None
    assert robot.joints == dataset.robot.joints
    assert largest_error(dataset, robot)[0] < 1e-6
    assert misfits(dataset) == []
    for number in (0, 1):
        targets = dataset.read(number, "robot/joint_targets")
        commanded = dataset.read(number, "robot/target_link_to_world")
        if name != "robomimic":  # which has no commands of joints
            np.testing.assert_allclose(robot.link_poses(targets), commanded, atol=1e-6)
    description = sealed.loads((dataset.path / "robot.json").read_text())
    description["base_to_world"][0][3] += 0.01
    (line,) = misfits_of(dataset, description)
    assert "10 mm away" in line


def misfits_of(dataset: Dataset, description: dict) -> list[str]:
    """The warning with another robot in the data set's place."""
    file = dataset.path / "robot.json"
    before = file.read_text()
    file.write_text(json.dumps(description))
    try:
        return misfits(dataset)
    finally:
        file.write_text(before)


@pytest.mark.parametrize("name", FORMATS)
def test_windows_of_imported_data_are_read(name, imported):
    dataset = imported(name)
    config = DataConfig(path=str(dataset.path), height=24, width=32)
    batch = windows.read_window(dataset, 0, 1, 4, config)
    assert batch.frames.rgb.shape == (4, 2, 24, 32, 3)
    assert np.isfinite(batch.robot.positions).all()
    low, high = np.array(dataset.workspace_min), np.array(dataset.workspace_max)
    assert ((batch.robot.positions > low) & (batch.robot.positions < high)).all()
    if name != "robotwin":  # its fixture has the same arm twice, each with its own gripper
        openings = batch.robot.gripper / (0.04 if name in ("maniskill", "robomimic") else 1)
        assert np.ptp(openings) > 0 or name == "maniskill"


# --- the wrist camera, the robot model ----------------------------------------------------------


def test_a_wrist_camera_follows_the_robot_model_of_the_file(tmp_path):
    sources.write_robomimic(tmp_path / "demos.hdf5", {"demo_0": WRIST})
    import_dataset("robomimic", tmp_path / "demos.hdf5", tmp_path / "out")
    dataset = Dataset(tmp_path / "out")
    truth = WRIST.views["eye_in_hand"]
    assert dataset.info.cameras["eye_in_hand"].mount == "robot0_tool"
    pose = dataset.read(0, "cameras/eye_in_hand/camera_to_world")
    np.testing.assert_allclose(pose, truth.poses, atol=1e-6)
    intrinsics = dataset.read(0, "cameras/eye_in_hand/intrinsics")
    np.testing.assert_allclose(intrinsics, truth.intrinsics, atol=1e-6)


def test_a_wrist_camera_without_robot_model_is_left_out_or_refused_with_the_reason(tmp_path):
    file = tmp_path / "demos.hdf5"
    sources.write_robomimic(file, {"demo_0": WRIST}, model=False)
    import_dataset("robomimic", file, tmp_path / "out")
    dataset = Dataset(tmp_path / "out")
    assert dataset.cameras == ("left_view", "right_view")
    assert dataset.robot.links == ("robot0_eef",)
    meta = json.loads((writer.episode_folder(dataset.path, 0) / "episode.json").read_text())
    assert "eye_in_hand is left out: it moves with the robot" in meta["warnings"][0]
    with pytest.raises(UserError, match="'eye_in_hand' cannot be imported: it moves with"):
        import_dataset("robomimic", file, tmp_path / "other", cameras=["eye_in_hand"])


def test_cameras_come_from_the_model_where_camera_info_is_missing(tmp_path, imported):
    file = tmp_path / "old.hdf5"
    sources.write_robomimic(file, {"demo_0": SCENES[0]}, camera_info=False)
    import_dataset("robomimic", file, tmp_path / "out")
    dataset = Dataset(tmp_path / "out")
    assert dataset.cameras == ("left_view",)  # the model has no right_view
    for key in ("intrinsics", "camera_to_world"):
        name = f"cameras/left_view/{key}"
        np.testing.assert_allclose(
            dataset.read(0, name), imported("robomimic").read(0, name), atol=1e-6
        )


JOINTS = (Joint("shoulder"), Joint("elbow"), Joint("grip", "1", "", {"finger": 0.04}))


def test_kinematics_of_a_urdf_without_its_meshes():
    model = RobotModel(sources.URDF, Path("arm.urdf"), JOINTS)
    values = np.array([[0.3, -0.5, 0.0], [-1.2, 0.4, 1.0]])
    base = np.eye(4)
    base[:3, 3] = 0.1, 0.2, 0.3
    poses = model.link_poses(values, base)
    names = [link.name for link in model.links]
    assert names == ["upper", "fore", "tool", "finger_a", "finger_b"]
    expected = base @ sources.tool_poses(values)
    np.testing.assert_allclose(poses[:, names.index("tool")], expected, atol=1e-9)
    for name, place in (("finger_a", [0, 0.04]), ("finger_b", [0.001, 0.001 - 0.04])):
        inside = np.linalg.inv(poses[:, names.index("tool")]) @ poses[:, names.index(name)]
        np.testing.assert_allclose(inside[:, 1, 3], place, atol=1e-9)
    assert model.skeleton(JOINTS)["segments"] == [["upper", "fore"], ["fore", "tool"]]
    assert "grip -> finger (x 0.04)" in model.report[0]


def test_a_mimic_of_a_mimic_adds_both_offsets_wherever_it_stands():
    third = """<link name="finger_c"/>
  <joint name="finger_third" type="prismatic"><parent link="tool"/><child link="finger_c"/>
    <axis xyz="0 1 0"/><limit lower="-1" upper="1" effort="1" velocity="1"/>
    <mimic joint="finger_mirror" multiplier="2" offset="0.5"/></joint>
  <joint name="finger" """
    text = sources.URDF.replace('<joint name="finger" ', third)
    model = RobotModel(text, Path("arm.urdf"), JOINTS)
    poses = model.link_poses(np.array([[0.0, 0.0, 1.0]]), np.eye(4))
    names = [link.name for link in model.links]
    inside = np.linalg.inv(poses[0, names.index("tool")]) @ poses[0, names.index("finger_c")]
    np.testing.assert_allclose(inside[1, 3], 0.5 + 2 * (0.001 - 0.04), atol=1e-9)


def test_kinematics_of_an_mjcf_equal_those_of_the_whole_model():
    draw = robot_scene.draw_scene("can", np.random.default_rng(0))
    text = robot_scene.scene_xml(draw, 24, 32)
    joints = tuple(
        Joint(name, "m", "", {f"{name}_l": 1.0, f"{name}_r": 1.0})
        if name.endswith("grip")
        else Joint(name)
        for name in robot_scene.joint_names()
    )
    model = RobotModel(text, Path("scene.xml"), joints)
    values = np.random.default_rng(1).uniform(0.0, 0.04, (3, len(joints)))
    whole = mujoco.MjModel.from_xml_string(text)
    states = clip.with_joints(whole, np.tile(whole.qpos0, (3, 1)), values)
    names = [link.name for link in model.links]
    assert len(names) > 14
    expected = clip.frame_poses(whole, states, names)
    np.testing.assert_allclose(model.link_poses(values, np.eye(4)), expected, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "millimetres"),
    [
        (lambda joints: joints, 0.0),
        (lambda joints: joints[:, ::-1], None),
        (lambda joints: -joints, None),
        (lambda joints: np.rad2deg(joints), None),
    ],
)
def test_a_recorded_tool_shows_whether_the_model_fits(change, millimetres):
    model = RobotModel(sources.URDF, Path("arm.urdf"), JOINTS[:2])
    joints = np.random.default_rng(3).uniform(-1, 1, (12, 2))
    tool = sources.tool_poses(joints) @ sources.CAMERA_TO_TOOL
    poses = model.link_poses(change(joints), np.eye(4))
    text = prepare.compare_tool("hand", tool, [link.name for link in model.links], poses)
    found = re.fullmatch(r"recorded hand moves with link (\w+) .* to ([\d.]+) mm(; is .*)?", text)
    assert found
    if millimetres is None:
        assert float(found[2]) > 10
        assert found[3]
    else:
        assert found[1] in ("fore", "tool", "finger_a", "finger_b")  # one rigid body
        assert float(found[2]) == millimetres
        assert not found[3]


def test_a_robot_model_that_does_not_fit_is_refused_with_both_lists():
    with pytest.raises(UserError) as caught:
        RobotModel(sources.URDF, Path("arm.urdf"), (Joint("j1"), Joint("elbow")))
    for word in ("arm.urdf has no joint 'j1'", "shoulder, elbow, finger", "data's are j1, elbow"):
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('multiplier="-1"', 'multiplier="nan"', "a <mimic> of the robot model is no number"),
        ('offset="0.001"', 'offset="inf"', "a <mimic> of the robot model is no number"),
        (f'xyz="{sources.LENGTHS[1]} 0 0"', 'xyz="nan 0 0"', "link 'tool' at NaN or infinity"),
    ],
)
def test_numbers_of_a_robot_model_that_are_none_are_refused(tmp_path, monkeypatch, old, new, words):
    monkeypatch.chdir(tmp_path)
    assert old in sources.URDF

    def poses() -> np.ndarray:
        model = RobotModel(sources.URDF.replace(old, new), Path("arm.urdf"), JOINTS)
        return model.link_poses(np.zeros((2, 3)), np.eye(4))

    with pytest.raises(UserError, match=words):
        poses()
    assert not list(tmp_path.iterdir())  # no MUJOCO_LOG.TXT


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is no XML"),
        ("<sdf/>", "begins with <sdf>"),
        ("<mujoco><include file='/etc/passwd'/></mujoco>", "uses <include>"),
        ("<robot name='x'><link name='a'/><link name='a'/></robot>", "cannot compile"),
        ("<mujoco><worldbody/></mujoco>", "has no joint 'shoulder'"),
    ],
)
def test_a_broken_robot_model_is_one_message(text, words):
    with pytest.raises(UserError, match=words) as caught:
        RobotModel(text, Path("arm.xml"), JOINTS)
    assert "\n" not in str(caught.value)


def test_a_calibration_file_names_joints_and_stands_the_robot(tmp_path, imported):
    path, _ = write_source("maniskill", tmp_path)
    base = np.eye(4)
    base[0, 3] = 0.25
    joints = [dict(joint) for joint in sources.CALIBRATION_JOINTS]
    joints[2] |= {"unit": "m", "drives": {"finger": 1.0}}
    calibration = tmp_path / "mine.json"
    calibration.write_text(
        json.dumps({"version": 1, "joints": joints, "robot": {"base_to_world": base.tolist()}})
    )
    (tmp_path / "arm.urdf").write_text(sources.URDF)
    import_dataset(
        "maniskill", path, tmp_path / "out", robot=tmp_path / "arm.urdf", calibration=calibration
    )
    dataset = Dataset(tmp_path / "out")
    tool = dataset.robot.links.index("tool")
    expected = base @ sources.tool_poses(SCENES[0].joints)
    links = dataset.read(0, "robot/link_to_world")[:, tool]
    np.testing.assert_allclose(links, expected, atol=1e-6)


def test_one_action_for_two_fingers_commands_the_arm_only(tmp_path):
    path, _ = write_source("maniskill", tmp_path)
    (file,) = path.glob("*.h5")
    with h5py.File(file, "a") as stream:
        for trajectory in stream.values():
            qpos = trajectory["obs/agent/qpos"][()]
            del trajectory["obs/agent/qpos"]
            trajectory["obs/agent/qpos"] = np.hstack([qpos, qpos[:, 2:]])
    import_dataset("maniskill", path, tmp_path / "out")
    dataset = Dataset(tmp_path / "out")
    targets = dataset.read(0, "robot/joint_targets")[:-1]
    np.testing.assert_allclose(targets[:, :2], SCENES[0].targets[:-1], atol=1e-6)
    np.testing.assert_allclose(targets[:, 3], 0.04 * SCENES[0].opening[1:], atol=1e-6)
    fields = dataset.info.raw["source"]["fields"]
    assert fields["joint_targets"] == "actions; next positions for the last 2 joints"


def test_actions_of_a_controller_are_not_taken_for_targets():
    positions = np.linspace(0, 1, 8).reshape(4, 2)
    for actions in (np.full((3, 2), 0.9), np.zeros((3, 6)), np.full((3, 2), np.nan)):
        targets, meaning = common.targets_from_actions(actions, positions)
        assert targets is None
        assert meaning.startswith("next positions, because")


def test_measured_joints_of_a_robotwin_fork_are_preferred(tmp_path):
    path, options = write_source("robotwin", tmp_path)
    for file, scene in zip(sorted(path.rglob("*.hdf5")), SCENES, strict=True):
        with h5py.File(file, "a") as stream:
            for arm in ("left", "right"):
                stream[f"joint_state/{arm}_arm"] = scene.joints
                stream[f"joint_state/{arm}_gripper"] = scene.opening
    import_dataset("robotwin", path, tmp_path / "out", **options)
    dataset = Dataset(tmp_path / "out")
    assert dataset.episode(0).joint_positions_source == "measured"
    joints = dataset.read(0, "robot/joint_positions")
    np.testing.assert_allclose(joints[:, 3:5], SCENES[0].joints, atol=1e-6)
    targets = dataset.read(0, "robot/joint_targets")[:-1]
    np.testing.assert_allclose(targets[:, 3:5], SCENES[0].targets[:-1], atol=1e-6)


def test_a_recorded_tool_stands_in_for_a_missing_robot_model(tmp_path):
    path, _ = write_source("folder", tmp_path)
    file = path / "hdvpd_calibration.json"
    raw = json.loads(file.read_text()) | {"end_effectors": [{"name": "tool"}]}
    file.write_text(json.dumps(raw))
    for number, scene in enumerate(SCENES):
        table = path / f"take{number}" / "joints.csv"
        header, *rows = table.read_text().splitlines()
        tool = sources.tool_poses(scene.joints)[:, :3, 3]
        rows = [f"{r},{x!r},{y!r},{z!r}" for r, (x, y, z) in zip(rows, tool.tolist(), strict=True)]
        table.write_text("\n".join([f"{header},tool.x,tool.y,tool.z", *rows]))
    (path / "take0" / "episode.json").write_text("{}")  # whose keys are all optional
    import_dataset("folder", path, tmp_path / "out")
    dataset = Dataset(tmp_path / "out")
    assert dataset.robot.links == ("tool",)
    links = dataset.read(0, "robot/link_to_world")[:, 0]
    tool = sources.tool_poses(SCENES[0].joints)[:, :3, 3]
    np.testing.assert_allclose(links[:, :3, 3], tool, atol=1e-6)
    following = dataset.read(0, "robot/target_link_to_world")[:-1, 0]
    np.testing.assert_allclose(following[:, :3, 3], tool[1:], atol=1e-6)
    assert dataset.robot.skeleton.grippers == (2,)


# --- time, size, shards -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lags_s", "kept", "left", "right"),
    [
        ((0.5, 0.0), [0, 5, 10, 15], [5, 10, 15, 20], [0, 5, 10, 15]),
        ((-0.5, 0.0), [5, 10, 15, 20], [0, 5, 10, 15], [5, 10, 15, 20]),
        ((0.7, -0.2), [5, 10], [12, 17], [3, 8]),
        ((0.1, 0.1), [0, 5, 10, 15], [1, 6, 11, 16], [1, 6, 11, 16]),
        ((0.04, -0.04), [0, 5, 10, 15, 20], [0, 5, 10, 15, 20], [0, 5, 10, 15, 20]),
    ],
)
def test_steps_whose_late_pictures_were_not_recorded_are_left_out(
    tmp_path, capsys, lags_s, kept, left, right
):
    path, out = tmp_path / "source", tmp_path / "out"
    scene = sources.make_scene(3, frames=21)
    sources.write_folder(path, [scene], np.arange(21) / 10)
    correct_lags(path, lags_s)
    import_dataset("folder", path, out, robot=path / "arm.urdf")
    dataset = Dataset(out)
    np.testing.assert_allclose(dataset.read(0, "time_s"), np.array(kept) / 10)
    np.testing.assert_allclose(
        dataset.read(0, "robot/joint_positions")[:, :2], scene.joints[kept], atol=1e-6
    )
    commands = [min(row + 4, 19) for row in kept]  # also of the last, if a frame follows it
    np.testing.assert_allclose(
        dataset.read(0, "robot/joint_targets")[:, :2], scene.targets[commands], atol=1e-6
    )
    for name, rows in zip(scene.views, (left, right), strict=True):
        shown = dataset.read(0, f"cameras/{name}/rgb")
        np.testing.assert_array_equal(shown, scene.views[name].rgb[rows])
    said = f"{5 - len(kept)} of 5 control steps are left out: lag_s of the cameras leads out"
    assert (said in capsys.readouterr().out) == (len(kept) < 5)


def test_a_lag_as_long_as_the_recording_is_refused(tmp_path):
    path = tmp_path / "source"
    sources.write_folder(path, [sources.make_scene(3, frames=5)])
    correct_lags(path, (1.8, 0.0))
    with pytest.raises(UserError, match="its 5 frames last 2 s, once lag_s of") as caught:
        import_dataset("folder", path, tmp_path / "out", robot=path / "arm.urdf")
    assert "less than one control step" in str(caught.value)


def correct_lags(path: Path, lags_s: tuple[float, float]) -> None:
    """Write into a calibration file by how much the two cameras are late."""
    file = path / "hdvpd_calibration.json"
    raw = json.loads(file.read_text())
    pairs = zip(raw["cameras"], lags_s, strict=True)
    late = Corrections({name: CameraCorrection(lag_s=lag_s) for name, lag_s in pairs})
    file.write_text(json.dumps(raw | {"corrections": late.as_plain()}))


def test_the_nearest_frame_is_taken_and_the_last_command_before_the_next(tmp_path):
    scene = sources.make_scene(3, frames=20)
    time = np.arange(20) * 0.13 + np.random.default_rng(0).uniform(-0.03, 0.03, 20) + 100.0
    sources.write_folder(tmp_path / "source", [scene], time)
    import_dataset(
        "folder", tmp_path / "source", tmp_path / "out", robot=tmp_path / "source" / "arm.urdf"
    )
    dataset = Dataset(tmp_path / "out")
    grid = np.arange(time[0], time[-1] + 0.125, 0.5)
    rows = [int(np.abs(time - t).argmin()) for t in grid]
    meta = json.loads((writer.episode_folder(dataset.path, 0) / "episode.json").read_text())
    assert meta["source_frames"] == rows
    np.testing.assert_array_equal(dataset.read(0, "time_s"), time[rows])
    view = scene.views["left_view"]
    np.testing.assert_array_equal(dataset.read(0, "cameras/left_view/rgb"), view.rgb[rows])
    targets = dataset.read(0, "robot/joint_targets")[:-1, :2]
    expected = scene.targets[np.array(rows[1:]) - 1]
    np.testing.assert_allclose(targets, expected, atol=1e-6)


def product(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Hamilton's product of quaternions w x y z."""
    w = p[0] * q[0] - p[1:] @ q[1:]
    return np.r_[w, p[0] * q[1:] + q[0] * p[1:] + np.cross(p[1:], q[1:])]


def test_poses_from_quaternions_turn_points_as_hamilton_says():
    rng = np.random.default_rng(0)
    quaternions, points = rng.normal(size=(20, 4)), rng.normal(size=(20, 3))
    place = rng.normal(size=(20, 3))
    poses = conversions.pose_from_quaternion(np.hstack([place, quaternions]), "wxyz")
    rolled = np.roll(quaternions, -1, axis=1)
    other = conversions.pose_from_quaternion(np.hstack([place, rolled]), "xyzw")
    np.testing.assert_array_equal(poses, other)
    for pose, q, point, at in zip(poses, quaternions, points, place, strict=True):
        q = q / np.linalg.norm(q)
        turned = product(product(q, np.r_[0, point]), q * [1, -1, -1, -1])[1:]
        np.testing.assert_allclose(pose @ np.r_[point, 1], np.r_[turned + at, 1], atol=1e-12)
    bad = np.array([[1.0, 2, 3, 0, 0, 0, 0], [1, 2, 3, np.nan, 0, 0, 1], [1, 2, 3, 0, 0, 0, 5]])
    finite = np.isfinite(conversions.pose_from_quaternion(bad, "xyzw")).all(axis=(1, 2))
    np.testing.assert_array_equal(finite, [False, False, True])


@pytest.mark.parametrize("count", [1, 2, 40])
def test_nearest_rows_against_a_search_of_every_frame(count):
    rng = np.random.default_rng(count)
    time = np.cumsum(rng.uniform(0.01, 0.2, count))
    rows, offsets = conversions.nearest_rows(time, 0.25)
    for step, (row, offset) in enumerate(zip(rows, offsets, strict=True)):
        distance = np.abs(time - (time[0] + 0.25 * step))
        assert distance[row] == distance.min()
        assert abs(offset) == pytest.approx(distance.min())


def test_intrinsics_follow_the_size_of_the_images(tmp_path, imported):
    path, options = write_source("maniskill", tmp_path)
    import_dataset("maniskill", path, tmp_path / "out", size=(12, 24), **options)
    dataset, full = Dataset(tmp_path / "out"), imported("maniskill")
    for camera, truth in SCENES[0].views.items():
        intrinsics = dataset.read(0, f"cameras/{camera}/intrinsics")
        scale = np.diag([24 / 32, 12 / 24, 1.0])
        np.testing.assert_allclose(intrinsics, scale @ truth.intrinsics, atol=1e-6)
        config = DataConfig(path=str(full.path), height=12, width=24, cameras=(camera,))
        direct = windows.read_window(full, 0, 0, 2, config).frames
        own = windows.read_window(
            dataset, 0, 0, 2, DataConfig(height=12, width=24, cameras=(camera,))
        ).frames
        np.testing.assert_array_equal(own.depth_m, direct.depth_m)
        np.testing.assert_array_equal(own.rgb, direct.rgb)
        np.testing.assert_allclose(own.camera.intrinsics, direct.camera.intrinsics, rtol=1e-6)


def test_long_episodes_are_streamed_shard_by_shard(tmp_path, imported, monkeypatch):
    path, options = write_source("robomimic", tmp_path)
    monkeypatch.setattr(writer, "MAX_SHARD_FRAMES", 3)
    largest = []
    write_frames = writer.EpisodeWriter.write_frames

    def watch(self: Any, start: int, arrays: dict[str, np.ndarray]) -> None:
        largest.append(max(len(values) for values in arrays.values()))
        write_frames(self, start, arrays)

    monkeypatch.setattr(writer.EpisodeWriter, "write_frames", watch)
    import_dataset("robomimic", path, tmp_path / "out", **options)
    assert largest == [3, 3, 2] * 2
    dataset = Dataset(tmp_path / "out")
    for name in ("rgb", "depth"):
        array = f"cameras/right_view/{name}"
        np.testing.assert_array_equal(dataset.read(1, array), imported("robomimic").read(1, array))


def test_channels_can_be_exchanged(tmp_path):
    path, options = write_source("maniskill", tmp_path)
    import_dataset("maniskill", path, tmp_path / "out", channels="bgr", **options)
    rgb = Dataset(tmp_path / "out").read(0, "cameras/left_view/rgb")
    np.testing.assert_array_equal(rgb, SCENES[0].views["left_view"].rgb[..., ::-1])


@pytest.mark.parametrize(("protocol", "two_arms"), [(2, False), (5, False), (4, True)])
def test_rlbench_pickles_of_every_kind(tmp_path, protocol, two_arms):
    sources.write_rlbench(tmp_path / "source", SCENES[:1], protocol, two_arms)
    import_dataset("rlbench", tmp_path / "source", tmp_path / "out", rate_hz=2.0)
    dataset = Dataset(tmp_path / "out")
    joints = dataset.read(0, "robot/joint_positions")
    np.testing.assert_allclose(joints[:, -3:-1], SCENES[0].joints, atol=1e-6)
    assert joints.shape[1] == (6 if two_arms else 3)
    links = dataset.read(0, "robot/link_to_world")[:, -1]
    np.testing.assert_allclose(links, sources.tool_poses(SCENES[0].joints), atol=1e-6)
    assert dataset.info.licence.startswith("RLBench licence: non-commercial")


# --- interruption, workers, bad episodes --------------------------------------------------------


def test_an_interrupted_import_is_refused_by_readers_and_completed_to_the_same_bytes(
    tmp_path, imported, monkeypatch, capsys
):
    reference = imported("maniskill").path
    path = reference.parent / "maniskill"
    with monkeypatch.context() as patch:
        real = episode._write_images

        def stop_in_the_second(
            target: Any, recording: Any, prepared: Any, place: Any, *rest: Any
        ) -> None:
            real(target, recording, prepared, place, *rest)
            if place.episode.endswith("traj_1"):
                raise KeyboardInterrupt

        patch.setattr(episode, "_write_images", stop_in_the_second)
        with pytest.raises(KeyboardInterrupt):
            import_dataset("maniskill", path, tmp_path / "out")
    assert "1 episodes" in capsys.readouterr().out
    assert [f.name for f in (tmp_path / "out" / "episodes").iterdir()] == ["000000"]
    with pytest.raises(UserError, match="is incomplete"):
        Dataset(tmp_path / "out")
    before = content(tmp_path / "out")
    import_dataset("maniskill", path, tmp_path / "out")
    assert content(tmp_path / "out") == content(reference)
    kept = {n: data for n, data in before.items() if n.startswith("episodes/000000/")}
    assert kept.items() <= content(tmp_path / "out").items()


def test_workers_and_growing_selections_do_not_change_the_bytes(tmp_path, imported):
    reference = imported("maniskill").path
    path = reference.parent / "maniskill"
    import_dataset("maniskill", path, tmp_path / "one", episodes="0")
    assert [e.number for e in Dataset(tmp_path / "one").episodes] == [0]
    import_dataset("maniskill", path, tmp_path / "one")
    assert content(tmp_path / "one") == content(reference)
    import_dataset("maniskill", path, tmp_path / "two", workers=2)
    assert content(tmp_path / "two") == content(reference)


def test_an_import_killed_before_its_first_episode_can_begin_again(tmp_path, imported):
    (tmp_path / "out" / "episodes").mkdir(parents=True)
    (tmp_path / "out" / writer.INCOMPLETE).write_text("{}")
    (tmp_path / "out" / ".partial-dataset.json-1").write_text("{")
    import_dataset("maniskill", imported("maniskill").path.parent / "maniskill", tmp_path / "out")
    assert len(Dataset(tmp_path / "out").episodes) == 2
    assert not list((tmp_path / "out").glob(".partial-*"))


def test_another_import_into_the_same_folder_is_refused(tmp_path, imported):
    path = imported("maniskill").path
    shutil.copytree(path, tmp_path / "out")
    with pytest.raises(UserError, match=r"holds another data set: its source\.options"):
        import_dataset("maniskill", path.parent / "maniskill", tmp_path / "out", step_s=1.0)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "one.tex").write_text("precious")
    with pytest.raises(UserError, match="is no data set"):
        import_dataset("maniskill", path.parent / "maniskill", tmp_path / "thesis")
    assert [f.name for f in (tmp_path / "thesis").iterdir()] == ["one.tex"]


def test_bad_episodes_are_left_out_with_their_reason(tmp_path, capsys):
    scenes = [sources.make_scene(k) for k in range(4)]
    sources.write_robotwin(tmp_path / "source", scenes)
    files = sorted((tmp_path / "source").rglob("*.hdf5"))
    for file in (files[0], files[2]):
        file.write_bytes(file.read_bytes()[:3000])
    with pytest.raises(UserError, match=r"episode0\.hdf5: episode .*damaged .*--skip-bad"):
        import_dataset("robotwin", tmp_path / "source", tmp_path / "out", rate_hz=2.0)
    assert not (tmp_path / "out").exists()
    import_dataset("robotwin", tmp_path / "source", tmp_path / "out", rate_hz=2.0, skip_bad=True)
    dataset = Dataset(tmp_path / "out")
    assert [e.number for e in dataset.episodes] == [1, 3]
    listed = json.loads((tmp_path / "out" / "quarantine.json").read_text())["episodes"]
    assert [(e["number"], "damaged" in e["reason"]) for e in listed] == [(0, True), (2, True)]
    printed = capsys.readouterr().out
    assert "2 left out" in printed
    # The files were repaired: the same command takes them in.
    sources.write_robotwin(tmp_path / "again", scenes)
    for file in (files[0], files[2]):
        repaired = tmp_path / "again" / file.relative_to(tmp_path / "source")
        shutil.copy(repaired, file)
    import_dataset("robotwin", tmp_path / "source", tmp_path / "out", rate_hz=2.0, skip_bad=True)
    assert len(Dataset(tmp_path / "out").episodes) == 4
    assert not (tmp_path / "out" / "quarantine.json").exists()


def test_if_no_episode_is_left_nothing_is(tmp_path):
    sources.write_robotwin(tmp_path / "source", SCENES, depth=False)
    with pytest.raises(UserError, match=r"no episode can be imported.*depth: true"):
        import_dataset(
            "robotwin", tmp_path / "source", tmp_path / "out", rate_hz=2.0, skip_bad=True
        )
    assert not (tmp_path / "out").exists()


# --- the check at the end -----------------------------------------------------------------------


def imported_and_checked(path: Path, out: Path, *flags: str) -> dict[str, Any]:
    assert main(["data", "import", "maniskill", str(path), "--out", str(out), *flags]) == 0
    return json.loads((out / "dataset.json").read_text())["source"]


def test_an_import_ends_with_a_proof_of_its_calibration(tmp_path, capsys):
    path, out = write_source("maniskill", tmp_path)[0], tmp_path / "out"
    recorded = imported_and_checked(path, out)["calibration"]
    cameras = dict.fromkeys(SCENES[0].views, "pass")
    nothing = {"mistakes": [], "corrections": []}
    assert recorded == {"episodes": [0, 1], "passed": True, "cameras": cameras, **nothing}
    printed = capsys.readouterr().out
    assert "PASS: the calibration is proven for left_view, right_view (8 frames of 2" in printed
    assert f"Report with pictures: {out / 'check' / 'check.html'}" in printed
    assert "warning" not in printed
    found = json.loads((out / "check" / "check.json").read_text())
    assert found["passed"]
    assert found["identity"] == Dataset(out).identity()
    before = content(out)
    assert imported_and_checked(path, out)["calibration"] == recorded
    assert content(out) == before


def test_a_wrong_calibration_is_a_warning_with_the_fix_and_not_a_lost_import(tmp_path, capsys):
    path, out = write_source("maniskill", tmp_path)[0], tmp_path / "out"
    with h5py.File(next(path.glob("*.h5")), "a") as file:
        for trajectory in file.values():
            for camera in trajectory["obs/sensor_param"].values():
                del camera["cam2world_gl"]
                camera["extrinsic_cv"][...] = np.linalg.inv(camera["extrinsic_cv"][()])
    recorded = imported_and_checked(path, out)["calibration"]
    assert not recorded["passed"]
    assert recorded["mistakes"] == ["inverted extrinsics (left_view, right_view)"]
    printed = capsys.readouterr().out
    warning = "warning: the import is complete, but the calibration is not proven"
    for words in ("store the inverse of camera_to_world", "FAIL: ", "check.html", warning):
        assert words in printed
    assert len(Dataset(out).episodes) == 2
    assert list((out / "check").glob("check-*-repaired.png"))


def test_the_check_can_be_left_out(tmp_path, capsys):
    path, out = write_source("maniskill", tmp_path)[0], tmp_path / "out"
    assert "calibration" not in imported_and_checked(path, out, "--no-check")
    assert not (out / "check").exists()
    assert "verdict" not in capsys.readouterr().out


TINY = """--data.height 24 --data.width 32 --model.num-particles 96 --model.dynamics.num-layers 1
  --model.unet-channels 8 --model.latent-dim 16 --model.dynamics.attention.num-heads 2
  --render.num-samples 8
  --render.num-proposals 4 --render.mlp-width 16 --train.num-rays 16 --train.horizon 1
  --train.num-steps 2 --train.warmup-steps 0 --train.validate-every 0"""


def train(name, data, folder):
    """Train a format's experiment at tiny sizes; return the losses."""
    words = ["train", name, "--runs-dir", str(folder), "--data.path", str(data.path)]
    assert main([*words, *TINY.split()]) == 0
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    return [record["loss"] for record in map(json.loads, lines) if record["kind"] == "train"]


def test_training_on_imported_data_needs_no_code(imported, tmp_path, capsys):
    assert np.isfinite(train("folder", imported("folder"), tmp_path)).all()


@pytest.mark.parametrize("name", sorted(set(FORMATS) - {"folder"}))
def test_every_format_trains_as_the_folder_does(name, imported, tmp_path, capsys, monkeypatch):
    """A linear model learns from it, and the real one would get the same arrays."""
    monkeypatch.setattr(step_module, "Model", scenes.TinyModel)
    assert np.isfinite(train(name, imported(name), tmp_path)).all()
    config = read_toml(tmp_path / name / "config.toml").data
    window, like = (windows.read_window(imported(n), 0, 0, 3, config) for n in (name, "folder"))
    assert all(np.isfinite(array).all() for array in jax.tree.leaves(window))
    assert array_types(window) == array_types(like)


def array_types(window):
    """Shape and type of every array of a window, and of one point of its robot."""
    robot = jax.tree.map(lambda x: x[:, :1], window.robot)
    one_point = dataclasses.replace(window, robot=robot)
    return jax.tree.map(lambda x: (x.shape, str(x.dtype)), one_point)
