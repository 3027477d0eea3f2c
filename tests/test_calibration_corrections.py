"""Corrections of the robot, what registration alone sees, and corrections in an import."""

import dataclasses
import json
import shutil
from pathlib import Path

import import_sources as sources
import numpy as np
import pytest
from data_tools import replace_arrays
from scipy.spatial.transform import Rotation

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data.adding_robot import misfits
from hdvpd.data.calibration import calibrate
from hdvpd.data.calibration.agreement import measure
from hdvpd.data.calibration.calibrate import write_corrected
from hdvpd.data.calibration.clouds import choose_indexer
from hdvpd.data.calibration.drift import with_drift
from hdvpd.data.calibration.recording import MAX_PIXELS, read_sample
from hdvpd.data.calibration.registration import Change, changed
from hdvpd.data.calibration.robot_fit import joint_axes
from hdvpd.data.calibration.sliding import slid
from hdvpd.data.calibration.views import Moment, View, thin
from hdvpd.data.corrections import CameraCorrection, Corrections, JointCorrection
from hdvpd.data.importers.driver import import_dataset
from hdvpd.data.robot import read_robot
from hdvpd.data.simulation import synthetic
from hdvpd.data.store import Dataset

INDEX = choose_indexer("scipy")[1]
SHOULDER = JointCorrection(0.2, "base", ("base", "elbow", "tcp"), np.eye(6)[2])
ELBOW = JointCorrection(-0.3, "elbow", ("elbow", "tcp"), np.eye(6)[2])


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corrections") / "scene"
    synthetic.write_synthetic_dataset(path, episodes=2, steps=10, height=72, width=96, seed=4)
    return path


@pytest.fixture(scope="module")
def moments(good: Path) -> tuple[Moment, ...]:
    return read_sample(Dataset(good), 2, 3).moments


# --- What registration sees where distances pass --------------------------------------------------


def turned(moments: tuple[Moment, ...], degrees: float) -> list[Moment]:
    """Turn cam1 about its optical axis, and about where that meets the table."""
    pose = np.eye(4)
    pose[:3, :3] = Rotation.from_rotvec(np.deg2rad([0, 0, degrees])).as_matrix()
    return [changed(moment, {"cam1": Change(pose)}) for moment in moments]


def test_cameras_that_stand_right_stay_where_they_are(moments):
    (pair,) = with_drift(moments, measure(moments, INDEX), INDEX).pairs
    assert pair.status == "pass"
    assert pair.drift_m < 0.5 * pair.drift_limit_m


def test_a_turn_that_distances_let_pass_fails_by_its_edges(moments):
    wrong = turned(moments, 2.5)
    (before,) = measure(wrong, INDEX).pairs
    (after,) = with_drift(wrong, measure(wrong, INDEX), INDEX).pairs
    assert max(before.median_m / before.median_limit_m, before.p95_m / before.p95_limit_m) < 1
    assert after.status == "fail"
    # A point at 0.3 m from the optical axis moves by 13 mm.
    assert 0.006 < after.drift_m < 0.025


def test_a_shift_along_the_table_is_found_from_afar(moments):
    shift = np.array([0.055, -0.04, 0.0])
    wrong = []
    for moment in moments:
        view = moment.views["cam1"]
        pose = view.camera_to_world.copy()
        pose[:3, 3] += shift
        views = {**moment.views, "cam1": dataclasses.replace(view, camera_to_world=pose)}
        wrong.append(dataclasses.replace(moment, views=views))
    best = slid(wrong, "cam1", Change(), INDEX)[0]
    pose = wrong[0].views["cam1"].camera_to_world
    moved = (pose @ best.pose)[:3, 3] - pose[:3, 3]
    turn = Rotation.from_matrix(best.pose[:3, :3]).magnitude()
    assert turn < 1e-9
    assert np.abs(moved + shift).max() < 0.03
    assert slid(moments, "cam1", Change(), INDEX) == []


# --- The robot ------------------------------------------------------------------------------------


def test_joints_turn_the_links_as_forward_kinematics_does(good):
    joints = Dataset(good).read(0, "robot/joint_positions").astype(np.float64)
    links = synthetic.link_poses(joints[:, :2])
    axes = joint_axes(read_robot(good))
    assert axes.keys() == {"shoulder", "elbow"}
    for name, expected in (("shoulder", SHOULDER), ("elbow", ELBOW)):
        assert axes[name].moves == expected.moves
        np.testing.assert_allclose(axes[name].twist, expected.twist, atol=1e-5)
    both = Corrections({}, np.eye(4), {"elbow": ELBOW, "shoulder": SHOULDER})
    truth = synthetic.link_poses(joints[:, :2] + [SHOULDER.offset, ELBOW.offset])
    np.testing.assert_allclose(both.links(links, synthetic.LINKS), truth, atol=1e-9)
    moved = both.joint_values(joints, ("shoulder", "elbow", "grip"))
    np.testing.assert_allclose(moved - joints, np.tile([0.2, -0.3, 0.0], (len(joints), 1)))


def test_a_joint_that_is_off_is_found_corrected_and_passes(good, tmp_path, capsys):
    path = Path(shutil.copytree(good, tmp_path / "scene"))
    offset = np.deg2rad(20.0)
    for episode in Dataset(path).episodes:
        values = {}
        for joints, links in (("positions", "link"), ("targets", "target_link")):
            stored = Dataset(path).read(episode.number, f"robot/joint_{joints}")
            stored[:, 0] += np.float32(offset)
            values[f"robot/joint_{joints}"] = stored
            poses = synthetic.link_poses(stored[:, :2].astype(np.float64))
            values[f"robot/{links}_to_world"] = poses.astype(np.float32)
        replace_arrays(path, episode.number, values)
    assert main(["data", "calibrate", str(path), "--search", "scipy", "--frames", "3"]) == 0
    printed = capsys.readouterr().out
    assert "joint shoulder plus -" in printed
    assert "cannot tell this from" in printed
    assert "The check then says pass" in printed
    assert Dataset(path).corrections.joints["shoulder"].offset == pytest.approx(-offset, abs=0.02)
    name = "robot/link_to_world"
    corrected, truth = (Dataset(p).read(0, name)[..., :3, 3] for p in (path, good))
    assert np.abs(corrected - truth).max() < 0.01


@pytest.mark.parametrize(
    ("joint", "words"),
    [
        ({"offset": 0.1, "link": "tcp", "moves": ["elbow"], "twist": [0] * 6}, "should hold link"),
        ({"offset": 0.1, "link": "tcp", "moves": ["tcp"], "twist": [0] * 5}, "6 finite numbers"),
        ({"offset": 0.1, "link": "hand", "moves": ["hand"], "twist": [0] * 6}, "'hand'"),
    ],
)
def test_impossible_corrections_of_joints_are_refused(good, tmp_path, joint, words):
    path = Path(shutil.copytree(good, tmp_path / "scene"))
    plain = Corrections().as_plain() | {"robot": {"joints": {"elbow": joint}}}
    (path / "corrections.json").write_text(json.dumps(plain))
    with pytest.raises(UserError, match=r"corrections\.json") as caught:
        Dataset(path)
    assert words in str(caught.value)


# --- A corrected copy -----------------------------------------------------------------------------


def test_a_corrected_copy_holds_what_lies_behind_links(good, tmp_path):
    """As where large arrays lie on another disk; they were left out, and nothing said so."""
    path = Path(shutil.copytree(good, tmp_path / "scene"))
    episode = path / "episodes" / "000000"
    for number, name in enumerate(("cameras/cam0/rgb", "cameras/cam1", "truth")):
        other = tmp_path / "other disk" / str(number)
        shutil.move(episode / name, other)
        (episode / name).symlink_to(other)
    (episode / "robot" / "self").symlink_to(episode)
    corrections = Corrections({"cam1": CameraCorrection(depth_offset_m=0.1)})
    write_corrected(path, tmp_path / "copy", corrections)

    def names(of: Path) -> set[str]:
        folder = of / "episodes" / "000000"
        return {str(f.parent.relative_to(folder)) for f in folder.rglob("zarr.json")}

    assert names(tmp_path / "copy") == names(good)
    copy = Dataset(tmp_path / "copy")
    for name in names(good):
        wanted = Dataset(good, corrections=corrections).read(0, name)
        np.testing.assert_array_equal(copy.read(0, name), wanted)


# --- Imports --------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(72, 96), (150, 200), (240, 320), (481, 642)])
def test_a_correction_of_thinned_images_is_that_of_the_recorded_ones(size):
    old = np.array([[300.0, 0, 150], [0, 310, 100], [0, 0, 1]])
    new = np.array([[330.0, 0, 170], [0, 310, 90], [0, 0, 1]])
    blank = np.zeros((*size, 3), np.uint8), np.ones(size)
    views = [thin(View(*blank, matrix, np.eye(4)), MAX_PIXELS) for matrix in (old, new)]
    correction = calibrate._difference([(views[0], views[1])])
    assert correction is not None
    np.testing.assert_allclose(correction.intrinsics @ old, new)


def test_an_import_applies_corrections_as_a_reader_does(tmp_path):
    source = tmp_path / "source"
    scene = sources.make_scene(1, frames=6)
    sources.write_folder(source, [scene])
    pose = np.eye(4)
    pose[:3, 3] = 0.05, -0.02, 0.01
    moved = ("upper", "fore", "tool", "finger_a", "finger_b")
    corrections = Corrections(
        {
            "left_view": CameraCorrection(
                flip="left to right", depth_scale=1.1, depth_offset_m=0.02, pose=pose
            ),
            "right_view": CameraCorrection(intrinsics=np.diag([0.9, 0.9, 1.0]), lag_s=0.5),
        },
        pose,
        {"shoulder": JointCorrection(0.1, "upper", moved, np.eye(6)[2])},
    )
    arm = source / "arm.urdf"
    import_dataset("folder", source, tmp_path / "plain", robot=arm)
    file = source / "hdvpd_calibration.json"
    content = json.loads(file.read_text()) | {"corrections": corrections.as_plain()}
    file.write_text(json.dumps(content))
    import_dataset("folder", source, tmp_path / "corrected", robot=arm)
    imported = Dataset(tmp_path / "corrected")
    assert not imported.corrections
    assert not misfits(imported)
    read = Dataset(tmp_path / "plain", corrections=corrections)
    stored = Dataset(tmp_path / "plain")
    for name in (
        *(f"cameras/left_view/{key}" for key in ("rgb", "intrinsics", "camera_to_world")),
        *(f"cameras/right_view/{key}" for key in ("intrinsics", "camera_to_world")),
        *(f"robot/{key}" for key in ("joint_positions", "joint_targets", "link_to_world")),
    ):
        wanted, plain = read.read(0, name), stored.read(0, name)
        if len(wanted) == scene.frames:  # of the last step the late camera has no picture
            wanted, plain = wanted[:-1], plain[:-1]
        np.testing.assert_allclose(imported.read(0, name), wanted, atol=1e-6)
        if "rgb" in name or "joint" in name:
            assert np.abs(imported.read(0, name) - plain.astype(float)).max() > 0.05
    metres = read.read(0, "cameras/left_view/depth") * read.info.cameras["left_view"].depth_unit_m
    np.testing.assert_allclose(imported.read(0, "cameras/left_view/depth"), metres[:-1], atol=1e-6)
    # A camera that is late by a step gives the pictures of the next one.
    name = "cameras/right_view/rgb"
    np.testing.assert_array_equal(imported.read(0, name), stored.read(0, name)[1:])
