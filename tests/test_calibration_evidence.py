"""Corrections of a calibration: estimated, written, applied; and what must not be blamed."""

import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from data_tools import edit_json, replace_arrays
from scipy.spatial.transform import Rotation

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data.calibration.agreement import Evidence, PairEvidence, measure, shared_points
from hdvpd.data.calibration.calibrate import corrections_of
from hdvpd.data.calibration.check import check
from hdvpd.data.calibration.clouds import choose_indexer, observe
from hdvpd.data.calibration.estimate import describe_fit, estimate
from hdvpd.data.calibration.explanation import explain, odd_episodes
from hdvpd.data.calibration.proof_findings import world_findings
from hdvpd.data.calibration.proofs import world_proofs
from hdvpd.data.calibration.recording import read_sample
from hdvpd.data.calibration.registration import LAST_M, Change, changed, register
from hdvpd.data.calibration.report import make_pictures, worst_moments
from hdvpd.data.calibration.views import Moment
from hdvpd.data.calibration.wording import diagnosis_lines
from hdvpd.data.corrections import CameraCorrection, Corrections
from hdvpd.data.importers.proof import prove
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset

INDEX = choose_indexer("scipy")[1]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("evidence") / "scene"
    write_synthetic_dataset(path, episodes=3, steps=7, height=80, width=104, seed=5)
    return path


@pytest.fixture
def path(good: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(good, tmp_path / "scene"))


@pytest.fixture(scope="module")
def moments(good: Path) -> tuple[Moment, ...]:
    return read_sample(Dataset(good), 3, 3).moments


def motion(turn_deg: tuple[float, ...], move_m: tuple[float, ...]) -> np.ndarray:
    pose = np.eye(4)
    pose[:3, :3] = Rotation.from_rotvec(np.deg2rad(turn_deg)).as_matrix()
    pose[:3, 3] = move_m
    return pose


def damaged(moments: tuple[Moment, ...], camera: str, change: Change) -> list[Moment]:
    return [changed(moment, {camera: change}) for moment in moments]


POSE = motion((2.0, -3.0, 3.0), (0.03, -0.03, 0.02))


def test_a_displaced_camera_is_registered_to_millimetres(moments):
    """Turned by 4.7 degrees and moved by 4.7 cm."""
    fit = register(damaged(moments, "cam1", Change(POSE)), {"cam1": ("pose",)}, INDEX)
    left = POSE @ fit.changes["cam1"].pose
    assert np.rad2deg(Rotation.from_matrix(left[:3, :3]).magnitude()) < 0.2
    assert np.linalg.norm(left[:3, 3]) < 0.003
    assert fit.after_m < 1e-3 < 0.02 < fit.before_m


def test_registration_leaves_cameras_that_stand_right(moments):
    fit = register(moments, {"cam0": ("pose",)}, INDEX, gates=LAST_M)
    assert np.linalg.norm(fit.changes["cam0"].pose - np.eye(4)) < 0.003


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        (Change(depth_scale=0.9), "depth_scale", "depth times 1.111"),
        (Change(focal=1.1), "focal", "focal length times 0.909"),
        (Change(depth_offset_m=0.04), "depth_offset_m", "depth plus -40.0"),
    ],
)
def test_one_number_that_is_wrong_is_found_and_not_taken_for_a_pose(moments, change, field, words):
    wrong = damaged(moments, "cam1", change)
    found = estimate(wrong, measure(wrong, INDEX), INDEX)
    assert list(found.fit.changes) == ["cam1"]
    value, stored = getattr(found.fit.changes["cam1"], field), getattr(change, field)
    if field == "depth_offset_m":
        assert value == pytest.approx(-stored, abs=2e-3)
    else:
        assert value == pytest.approx(1 / stored, rel=5e-3)
    assert words in describe_fit(found.fit)[0]
    assert found.evidence.status("cam1") == "pass"


def test_without_a_robot_the_camera_that_moved_cannot_be_told_and_both_are_listed(moments):
    alone = tuple(dataclasses.replace(m, robot=None) for m in moments)
    wrong = damaged(alone, "cam1", Change(POSE))
    evidence = measure(wrong, INDEX)
    assert [evidence.status(name) for name in ("cam0", "cam1")] == ["fail", "fail"]
    found = estimate(wrong, evidence, INDEX)
    (other,) = found.alternatives
    assert {*found.fit.changes, *other.changes} == {"cam0", "cam1"}


def test_nothing_is_estimated_where_cameras_agree(moments):
    assert estimate(moments, measure(moments, INDEX), INDEX) is None


# --- Blame ----------------------------------------------------------------------------------------


def pair(cameras: tuple[str, str], median_m: float) -> PairEvidence:
    return PairEvidence(cameras, 1000, 1000, median_m, 2 * median_m, 0.0, 0.001, 0.001)


def test_the_camera_without_which_the_others_agree_is_blamed():
    evidence = Evidence(
        (pair(("a", "b"), 0.0005), pair(("a", "c"), 0.02), pair(("b", "c"), 0.03)), {}
    )
    assert [evidence.status(name) for name in "abc"] == ["pass", "pass", "fail"]


def test_of_two_cameras_neither_is_blamed_alone():
    evidence = Evidence((pair(("a", "b"), 0.02),), {})
    assert [evidence.status(name) for name in "ab"] == ["fail", "fail"]
    assert evidence.blamed == (frozenset("a"), frozenset("b"))


def test_what_some_moments_say_needs_no_second_measurement(moments):
    wrong = damaged(moments, "cam1", Change(POSE))
    found, again = measure(wrong, INDEX).of([1, 2]), measure(wrong[1:3], INDEX)
    assert found.pairs == again.pairs
    assert found.robots == again.robots
    assert found.pairs != measure(wrong, INDEX).pairs


def test_the_worst_moment_of_a_failing_pair_is_shown(moments):
    wrong = list(moments)
    wrong[2] = changed(moments[2], {"cam1": Change(POSE)})
    shown = [worst_moments(measure(m, INDEX), range(len(m))) for m in (moments, wrong)]
    assert shown == [{("cam0", "cam1"): len(moments) // 2}, {("cam0", "cam1"): 2}]


def test_episodes_that_differ_are_listed_and_explained(moments):
    wrong = []
    for moment in moments:
        a, b = moment.views["cam0"], moment.views["cam1"]
        if moment.episode == 1:
            swapped = a.camera_to_world, b.camera_to_world
            a = dataclasses.replace(a, camera_to_world=swapped[1])
            b = dataclasses.replace(b, camera_to_world=swapped[0])
        wrong.append(dataclasses.replace(moment, views={"cam0": a, "cam1": b}))
    assert odd_episodes(wrong, measure(wrong, INDEX)) == (1,)
    found = explain(wrong, measure(wrong, INDEX), INDEX)
    (mistake,) = found.diagnosis.mistakes
    assert mistake.name in ("swapped cameras", "swapped camera poses")


def test_points_beside_a_silhouette_say_nothing(moments):
    """A wrist camera sees a thin thing close by: its rim stands before everything else."""
    view = moments[0].views["cam0"]
    depth = np.full_like(view.depth_m, 1.0)
    depth[:, 40:44] = 0.4
    target = observe(dataclasses.replace(view, depth_m=depth, camera_to_world=np.eye(4)), INDEX)
    behind = np.full_like(view.depth_m, 0.0)
    behind[:, 44] = 0.44
    source = observe(dataclasses.replace(view, depth_m=behind, camera_to_world=np.eye(4)), INDEX)
    found = shared_points(source, target, 10_000)
    assert not (found.distances[found.points[:, 2] > 0.411] > 0.03).any()


# --- The world as a whole -------------------------------------------------------------------------


def test_the_robot_proves_handedness_and_scale(moments):
    world = world_proofs(moments, INDEX)
    assert world.handedness
    assert world.scale <= 1.2


@pytest.mark.parametrize("kind", ["left to right", "upside down"])
def test_a_mirrored_world_never_passes_with_a_robot(moments, kind):
    rows, columns = (slice(None), slice(None, None, -1))[:: 1 if kind == "left to right" else -1]
    wrong = [
        dataclasses.replace(
            m,
            views={
                name: dataclasses.replace(
                    v, rgb=v.rgb[rows, columns], depth_m=v.depth_m[rows, columns]
                )
                for name, v in m.views.items()
            },
        )
        for m in moments
    ]
    world = world_proofs(wrong, INDEX)
    assert not world.handedness
    assert world.mirrored == kind


def test_without_a_robot_handedness_is_said_to_be_open(path):
    for folder in path.glob("episodes/*/robot/*link_to_world"):
        shutil.rmtree(folder)
    report = check(path, episodes=2, frames=2, backend="scipy")
    assert report.passed
    assert report.world is None
    assert any("handedness and scale are not proven" in f.text for f in report.findings)


def test_what_is_lacking_is_said_by_what_there_is_of_the_robot():
    def text(points: int, has_model: bool) -> str:
        (finding,) = world_findings(None, displaced=False, points=points, has_model=has_model)
        assert finding.text.startswith("handedness and scale are not proven")
        return finding.text

    assert "--robot at import" in text(0, False)
    assert "--robot at import" in text(1, False)  # tool centres alone
    for points, words in [(3, "only 3 kinematic points and 8 are needed"), (20, "is it in view?")]:
        assert words in text(points, True)
        assert "--robot" not in text(points, True)


def test_a_robot_that_no_camera_sees_is_not_asked_for_again(path):
    """Data with a robot model, whose arm is out of all images: that --robot lacks is not said."""
    dataset = Dataset(path)
    for episode in dataset.episodes:
        for name in ("robot/link_to_world", "robot/target_link_to_world"):
            poses = dataset.read(episode.number, name).copy()
            poses[..., :3, 3] += 50
            replace_arrays(path, episode.number, {name: poses})
    report = check(path, episodes=2, frames=2, backend="scipy")
    assert report.world is None
    (text,) = (f.text for f in report.findings if f.topic == "world")
    assert "--robot" not in text
    assert "no camera has anything near its kinematic points" in text


def test_a_workspace_without_any_of_the_robot_fails_with_its_remedy(path):
    edit_json(path / "dataset.json", workspace={"min": [5.0] * 3, "max": [6.0] * 3})
    report = check(path, episodes=2, frames=2, backend="scipy")
    assert report.verdict == "fail"
    (found,) = (f for f in report.findings if f.topic == "workspace" and f.verdict == "fail")
    assert "holds 0.0 % of the robot's points" in found.text
    assert "Correct workspace in dataset.json" in found.text


# --- Corrections ----------------------------------------------------------------------------------


def change_pose(path: Path, camera: str, pose: np.ndarray, *episodes: int) -> None:
    """Change it in some episodes, or in all."""
    dataset, name = Dataset(path), f"cameras/{camera}/camera_to_world"
    for episode in dataset.episodes:
        if episodes and episode.number not in episodes:
            continue
        stored = dataset.read(episode.number, name)
        replace_arrays(path, episode.number, {name: stored @ pose})


def test_calibrate_writes_what_every_reader_applies(path, good, tmp_path, capsys):
    change_pose(path, "cam1", POSE)
    words = ["data", "calibrate", str(path), "--search", "scipy", "--episodes", "3"]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert re.search(r"cam1: turned by 4\.[67]", printed)
    assert "The check then says pass" in printed
    name = "cameras/cam1/camera_to_world"
    corrected, truth = Dataset(path).read(0, name), Dataset(good).read(0, name)
    stored = Dataset(path, corrections=Corrections()).read(0, name)
    assert np.abs(corrected - truth).max() < 0.005
    assert np.abs(stored - truth).max() > 0.02
    assert Dataset(path).identity() != Dataset(path, corrections=Corrections()).identity()
    assert main([*words, "--out", str(tmp_path / "copy")]) == 0
    copy = Dataset(tmp_path / "copy")
    assert not copy.corrections
    np.testing.assert_array_equal(copy.read(0, name), corrected)
    for array in ("cameras/cam0/depth", "robot/joint_targets", "truth/object_to_world"):
        np.testing.assert_array_equal(copy.read(2, array), Dataset(path).read(2, array))


def test_the_page_shows_a_pair_before_and_after_the_correction(path):
    change_pose(path, "cam1", POSE)
    report = check(path, episodes=3, frames=2, backend="scipy")
    assert report.found.diagnosis is None
    captions = {name: caption for name, (caption, _) in make_pictures(report).items()}
    for pair in ("cam0-in-cam1", "cam1-in-cam0"):
        assert "as stored" in captions[f"check-{pair}.png"]
        assert "after the correction" in captions[f"check-{pair}-repaired.png"]


def test_what_holds_in_some_episodes_only_is_said_and_not_offered(path):
    change_pose(path, "cam1", POSE, 1)
    report = check(path, episodes=3, frames=2, backend="scipy")
    lines = diagnosis_lines(report)
    assert "Only episodes 1 fail; what follows is about them." in lines
    assert any(line.startswith("Correction: ") for line in lines)
    assert not any("data calibrate" in line for line in lines)
    assert not corrections_of(report)[0]


def test_an_import_looks_at_the_first_the_middle_and_the_last_episode(tmp_path, capsys):
    path = tmp_path / "imported"
    write_synthetic_dataset(path, episodes=5, steps=7, height=64, width=80, seed=5)
    names = [f"cameras/{camera}/camera_to_world" for camera in ("cam0", "cam1")]
    poses = [Dataset(path).read(4, name) for name in names]
    replace_arrays(path, 4, dict(zip(names, poses[::-1], strict=True)))
    edit_json(path / "dataset.json", source={})
    prove(path)
    printed = capsys.readouterr().out
    assert "Only episodes 4 fail" in printed
    assert "the calibration is not proven" in printed
    recorded = json.loads((path / "dataset.json").read_text())["source"]["calibration"]
    assert recorded["episodes"] == [0, 2, 4]
    assert not recorded["passed"]


def test_what_needs_no_correction_gets_none(path, capsys):
    before = {f: f.read_bytes() for f in path.rglob("*") if f.is_file()}
    assert main(["data", "calibrate", str(path), "--search", "scipy", "--episodes", "2"]) == 0
    assert "no correction is needed" in capsys.readouterr().out
    assert {f: f.read_bytes() for f in path.rglob("*") if f.is_file()} == before


def test_corrections_of_every_kind_are_applied_to_every_array(path):
    name = "cameras/cam0/depth"
    raw = Dataset(path)
    stored, matrix = raw.read(0, name), raw.read(0, "cameras/cam0/intrinsics")
    correction = CameraCorrection(
        flip="upside down",
        intrinsics=np.diag([1.1, 1.2, 1.0]),
        depth_scale=1.25,
        depth_offset_m=0.01,
    )
    robot = motion((0.0, 0.0, 90.0), (1.0, 0.0, 0.0))
    plain = Corrections({"cam0": correction}, robot).as_plain()
    (path / "corrections.json").write_text(json.dumps(plain))
    dataset = Dataset(path)
    assert dataset.info.cameras["cam0"].depth_unit_m == 1.25
    assert dataset.info.cameras["cam1"].depth_unit_m == 1.0
    metres = dataset.read(0, name) * dataset.info.cameras["cam0"].depth_unit_m
    expected = np.where(stored > 0, 1.25 * stored + 0.01, 0.0)[:, ::-1]
    np.testing.assert_allclose(metres, expected, atol=1e-6)
    corrected = dataset.read(0, "cameras/cam0/intrinsics")
    np.testing.assert_allclose(corrected, np.diag([1.1, 1.2, 1.0]) @ matrix)
    rgb = raw.read(0, "cameras/cam0/rgb")
    np.testing.assert_array_equal(dataset.read(0, "cameras/cam0/rgb"), rgb[:, ::-1])
    links = raw.read(0, "robot/link_to_world")
    np.testing.assert_allclose(dataset.read(0, "robot/link_to_world"), robot @ links, atol=1e-6)
    # Some frames are corrected as all are.
    np.testing.assert_array_equal(dataset.read(0, name, 3, 2), dataset.read(0, name)[3:5])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ('{"format": "hdvpd-corrections", "version": 9, "cameras": {}}', "version 9"),
        ('{"format": "hdvpd-corrections", "version": 1}', "lack 'cameras'"),
        (
            '{"format": "hdvpd-corrections", "version": 1, "cameras": {"cam0": {"tilt": 1}}}',
            "unknown key 'tilt'",
        ),
        (
            '{"format": "hdvpd-corrections", "version": 1, "cameras": {"top": {}}}',
            "camera 'top'",
        ),
        (
            '{"format": "hdvpd-corrections", "version": 1, "cameras": {"cam0": {"pose": [1]}}}',
            "4x4 finite numbers",
        ),
    ],
)
def test_impossible_corrections_are_refused_by_name(path, content, words):
    (path / "corrections.json").write_text(content)
    with pytest.raises(UserError, match=r"corrections\.json") as caught:
        Dataset(path)
    assert words in str(caught.value)
