"""Forward kinematics of the robot that a data set carries, and the command that adds one."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_tools import edit_json, replace_array
from extras import needed
from import_sources import URDF, tool_poses

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data import adding_robot, corrections, setup, writer
from hdvpd.data.calibration import calibrate
from hdvpd.data.corrections import Corrections, JointCorrection
from hdvpd.data.importers.robot_model import Joint, RobotModel, grippers_of
from hdvpd.data.robot import Robot, describe_robot, read_robot
from hdvpd.data.simulation import bimanual, clip, scene, synthetic
from hdvpd.data.store import Dataset
from hdvpd.data.windows import read_window
from hdvpd.training import packed
from hdvpd.world.actions import too_fast

mujoco = needed("mujoco")
FILE = Path("robot.json")


def test_the_two_link_arm_is_where_the_closed_form_says():
    robot = Robot(synthetic.robot(), FILE)
    joints = np.random.default_rng(0).uniform(-1, 1, (2, 5, 3))
    poses = robot.link_poses(joints)
    assert poses.shape == (2, 5, 3, 4, 4)
    expected = synthetic.link_poses(joints.reshape(-1, 3)[:, :2]).reshape(2, 5, 3, 4, 4)
    np.testing.assert_allclose(poses, expected, atol=1e-12)


def test_the_bimanual_arms_are_where_the_whole_scene_has_them():
    draw = scene.draw_scene("push", np.random.default_rng(0))
    model = mujoco.MjModel.from_xml_string(scene.scene_xml(draw, 16, 16))
    rng = np.random.default_rng(1)
    joints = np.clip(rng.normal(0, 0.7, (7, 16)), -1.9, 1.9)
    joints[:, 7::8] = rng.uniform(*scene.OPENING_RANGE, (7, 2))
    states = clip.with_joints(model, np.tile(model.qpos0, (7, 1)), joints)
    robot = Robot(bimanual.robot(), FILE)
    assert robot.links == tuple(scene.link_parents())
    expected = clip.frame_poses(model, states, robot.links)
    np.testing.assert_allclose(robot.link_poses(joints), expected, atol=1e-6)
    np.testing.assert_allclose(robot.limits[:7, 1], scene.LIMITS)
    np.testing.assert_allclose(robot.limits[7], scene.OPENING_RANGE)


def test_the_gripper_of_an_arm_is_its_first_joint_of_that_name_or_unit():
    joints = [Joint("elbow", arm="a"), Joint("Gripper", "m", "a"), Joint("left_finger", "m", "a")]
    joints += [Joint("wrist", arm="b"), Joint("jaw", "1", "b"), Joint("lift", "m", "c")]
    assert grippers_of(joints) == {"a": {"gripper": "Gripper"}, "b": {"gripper": "jaw"}}


def test_a_urdf_keeps_its_mimics_tools_and_base():
    joints = [Joint("shoulder"), Joint("elbow"), Joint("finger", "m")]
    model = RobotModel(URDF, Path("arm.urdf"), joints)
    links = [{"name": link.name, "parent": link.parent} for link in model.links]
    raw = {"name": "arm", "joints": [{"name": j.name, "unit": j.unit} for j in joints]}
    base = np.eye(4)
    base[:3, 3] = 0.1, 0.2, 0.3
    described = describe_robot(raw | {"links": links}, model.text, model.moves(), base)
    robot = Robot(json.loads(json.dumps(described)), FILE)
    values = np.random.default_rng(2).uniform(-1, 1, (4, 3))
    poses = robot.link_poses(values)
    np.testing.assert_allclose(poses, model.link_poses(values, base), atol=1e-12)
    np.testing.assert_allclose(
        poses[:, robot.links.index("tool")], base @ tool_poses(values), atol=1e-9
    )
    # The mirrored finger: 0.001 - x within -1 to 1 bounds nothing that 0 to 0.04 does not.
    np.testing.assert_allclose(robot.limits, [[-3, 3], [-np.inf, np.inf], [0, 0.04]])


def test_points_are_those_that_training_reads(synthetic_dataset, debug_config):
    dataset, robot = Dataset(synthetic_dataset), read_robot(synthetic_dataset)
    assert robot is not None
    window = read_window(dataset, 3, 1, 4, debug_config.data)
    targets = dataset.read(3, "robot/joint_targets", 2, 2)
    points = robot.points(targets)
    np.testing.assert_allclose(points.positions, window.robot.positions[2:], atol=1e-6)
    np.testing.assert_allclose(points.gripper, window.robot.gripper[2:], atol=1e-6)


def test_a_run_knows_robot_cameras_and_pace(small_run, synthetic_dataset):
    found = setup.read_setup(small_run)
    assert found is not None
    assert found.robot is not None
    assert found.robot.joints == found.joints == ("shoulder", "elbow", "grip")
    assert found.rate_hz == 2.0
    assert found.sizes == {"cam0": (32, 40), "cam1": (32, 40)}
    steps = []
    for episode in Dataset(synthetic_dataset).split("train"):
        targets = Dataset(synthetic_dataset).read(episode.number, "robot/joint_targets")
        steps.append(np.abs(np.diff(targets, axis=0)).max(axis=0))
    assert (found.max_step >= np.max(steps, axis=0) - 1e-6).all()
    (_, pose) = synthetic.camera("cam1", 32, 40)
    np.testing.assert_allclose(found.cameras["cam1"].camera_to_world, pose, atol=1e-6)


def test_what_a_lagging_robot_was_told_is_no_extrapolation(synthetic_dataset, tmp_path):
    path = Path(shutil.copytree(synthetic_dataset, tmp_path / "lagging"))
    names = "robot/joint_positions", "robot/joint_targets"
    for episode in Dataset(path).split("train"):
        values = Dataset(path).read(episode.number, names[0])
        replace_array(path, episode.number, names[0], values - np.float32([0.3, 0, 0]))
    dataset = Dataset(path)
    found = setup.parse_setup(setup.describe_setup(dataset), FILE)
    for episode in dataset.split("train"):
        positions, targets = (dataset.read(episode.number, name) for name in names)
        for start in range(episode.length - 1):
            assert too_fast(found, positions[start], targets[start:]) == ""
    far = positions[0] + np.float32([1.2, 0, 0])
    assert "'shoulder' is told to move 1.2" in too_fast(found, positions[0], far[None])


def test_a_run_knows_what_calibration_adds_to_joints(synthetic_dataset, tmp_path):
    path = Path(shutil.copytree(synthetic_dataset, tmp_path / "calibrated"))
    raw = Dataset(path).read(0, "robot/joint_positions")
    moves = JointCorrection(0.05, "elbow", ("elbow", "tcp"), np.array([0, 0, 1.0, 0, 0, 0]))
    found = Corrections(joints={"elbow": moves})
    writer.write_json(path / corrections.FILE_NAME, found.as_plain())
    copy = tmp_path / "copy"
    calibrate.write_corrected(path, copy, found)
    for dataset in (Dataset(path), Dataset(copy)):
        described = json.loads(json.dumps(setup.describe_setup(dataset)))
        offsets = setup.parse_setup(described, FILE).joint_offsets
        np.testing.assert_allclose(offsets, [0, 0.05, 0])
        joints = dataset.read(0, "robot/joint_positions")
        np.testing.assert_allclose(raw + offsets, joints, atol=1e-6)
    del described["joint_offsets"]  # as earlier versions wrote it
    np.testing.assert_array_equal(setup.parse_setup(described, FILE).joint_offsets, np.zeros(3))


@pytest.fixture
def moved(synthetic_dataset, tmp_path):
    """A data set whose calibration has found that the robot stands 5 cm beside and is turned."""
    path = tmp_path / "moved"
    shutil.copytree(synthetic_dataset, path)
    turn = np.eye(4)
    turn[:2, :2], turn[:3, 3] = [[0.8, -0.6], [0.6, 0.8]], (0.05, 0, 0)
    writer.write_json(path / corrections.FILE_NAME, Corrections(robot=turn).as_plain())
    return path


def planned(robot, path):
    """How far links are from where the data have them, all poses and frames [m]."""
    values = Dataset(path).read_many(0, ["robot/joint_positions", "robot/link_to_world"])
    placed = robot.link_poses(values["robot/joint_positions"])
    return np.abs(placed - values["robot/link_to_world"]).max()


def test_own_plans_begin_from_the_corrected_base(moved):
    described = setup.parse_setup(setup.describe_setup(Dataset(moved)), FILE)
    assert planned(described.robot, moved) < 1e-5
    stored = read_robot(moved)
    assert planned(stored, moved) > 0.05
    assert not adding_robot.misfits(Dataset(moved))


@pytest.mark.parametrize("given", [False, True])
def test_a_robot_that_is_added_after_a_calibration_is_not_moved_twice(moved, tmp_path, given):
    file = tmp_path / "arm.urdf"
    file.write_text(urdf())
    adding_robot.add_robot(moved, file if given else None)
    described = setup.parse_setup(setup.describe_setup(Dataset(moved)), FILE)
    assert planned(described.robot, moved) < 2e-3


def test_a_corrected_copy_keeps_its_robot(moved, tmp_path):
    copy = tmp_path / "copy"
    calibrate.write_corrected(moved, copy, Dataset(moved).corrections)
    assert not (copy / corrections.FILE_NAME).exists()
    robot = setup.parse_setup(setup.describe_setup(Dataset(copy)), FILE).robot
    assert planned(robot, copy) < 1e-5
    assert planned(robot, moved) < 1e-5


def test_a_corrected_copy_is_whole_or_refused(moved, tmp_path, monkeypatch):
    copy, write = tmp_path / "copy", writer.write_episode

    def write_one(path, number, meta, arrays):
        if number:
            raise KeyboardInterrupt
        write(path, number, meta, arrays)

    monkeypatch.setattr(writer, "write_episode", write_one)
    with pytest.raises(KeyboardInterrupt):
        calibrate.write_corrected(moved, copy, Dataset(moved).corrections)
    with pytest.raises(UserError, match=r"is incomplete.*calibrate` remove the folder"):
        Dataset(copy)


def test_a_packed_run_keeps_its_setup(small_run, tmp_path):
    packed.pack(small_run, tmp_path / "small.zip")
    packed.unpack(tmp_path / "small.zip", tmp_path / "unpacked")
    kept, found = (f / setup.SETUP_FILE for f in (small_run, tmp_path / "unpacked"))
    assert found.read_text() == kept.read_text()


@pytest.fixture
def older(synthetic_dataset, tmp_path):
    """A data set as earlier versions wrote it: without its robot."""
    path = tmp_path / "older"
    shutil.copytree(synthetic_dataset, path)
    (path / "robot.json").unlink()
    return path


def urdf(reach: float = 0.22) -> str:
    """The arm of the synthetic data as others would describe it, its root at the arm's foot."""
    joint = '<joint name="{}" type="revolute"><parent link="{}"/><child link="{}"/>'
    joint += '<origin xyz="{} 0 0"/><axis xyz="0 0 1"/><limit lower="-2" upper="2"/></joint>'
    fixed = '<joint name="flange" type="fixed"><parent link="elbow"/><child link="tcp"/>'
    fixed += f'<origin xyz="{reach} 0 0"/></joint>'
    links = "".join(f'<link name="{name}"/>' for name in ("root", "base", "elbow", "tcp"))
    moving = joint.format("shoulder", "root", "base", 0) + joint.format(
        "elbow", "base", "elbow", reach
    )
    return f'<robot name="two-link">{links}{moving}{fixed}</robot>'


def test_the_command_adds_the_robot_of_simulated_data(older, synthetic_dataset, capsys):
    assert main(["data", "robot", str(older)]) == 0
    assert "within 0.00 mm" in capsys.readouterr().out
    same = (synthetic_dataset / "robot.json").read_text()
    assert (older / "robot.json").read_text() == same


def test_the_command_finds_the_base_of_a_urdf(older, tmp_path):
    file = tmp_path / "arm.urdf"
    file.write_text(urdf())
    assert main(["data", "robot", str(older), "--robot", str(file)]) == 0
    robot = read_robot(older)
    assert robot is not None
    np.testing.assert_allclose(
        np.array(robot.description["base_to_world"])[:3, 3], synthetic.BASE, atol=1e-6
    )


def test_a_model_that_does_not_fit_is_refused(older, tmp_path, capsys):
    file = tmp_path / "arm.urdf"
    file.write_text(urdf(reach=0.25))
    assert main(["data", "robot", str(older), "--robot", str(file)]) == 2
    message = capsys.readouterr().err
    assert "arm.urdf: the model puts link 'tcp' in frame" in message
    assert "mm away" in message
    assert not (older / "robot.json").exists()


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('name="elbow" type', 'name="elbo" type', "has no joint 'elbow', which the data move"),
        ('<link name="tcp"/>', '<link name="tool"/>', "no body or site 'tcp'"),
        ("<robot", "<rabbit", "is no XML"),
    ],
)
def test_names_that_do_not_match_get_one_message(older, tmp_path, capsys, old, new, words):
    file = tmp_path / "arm.urdf"
    text = urdf().replace(old, new)
    if "tool" in new:
        text = text.replace('child link="tcp"', 'child link="tool"')
    file.write_text(text)
    assert main(["data", "robot", str(older), "--robot", str(file)]) == 2
    assert words in capsys.readouterr().err
    assert not (older / "robot.json").exists()


def test_data_of_others_need_a_file(older, capsys):
    edit_json(older / "dataset.json", source={"command": "recorded"})
    assert main(["data", "robot", str(older)]) == 2
    assert "give a URDF or MJCF with --robot FILE" in capsys.readouterr().err


@pytest.mark.parametrize(
    "text", ["{", "[]", "[" * 100_000, '{"format": "hdvpd-robot", "version": 9}']
)
def test_a_damaged_robot_file_is_named(older, text):
    (older / "robot.json").write_text(text)
    with pytest.raises(UserError, match=r"robot\.json"):
        read_robot(older)
