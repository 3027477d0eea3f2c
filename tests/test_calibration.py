"""`hdvpd data check`: numbers against the analytic scene, and every mistake by its name."""

import dataclasses
import io
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import extras
import numpy as np
import pytest
import rich.console
from data_tools import edit_json, replace_arrays

from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data.calibration import proof_findings, signals
from hdvpd.data.calibration.agreement import RobotPoint, measure, robot_points, shared_points
from hdvpd.data.calibration.check import Report, check
from hdvpd.data.calibration.clouds import choose_indexer, observe, suggest_box, surface_distance
from hdvpd.data.calibration.diagnosis import diagnose
from hdvpd.data.calibration.images import depth_values, intrinsics_faults
from hdvpd.data.calibration.recording import read_snapshot
from hdvpd.data.calibration.report import print_report
from hdvpd.data.calibration.views import Moment, View, project, thin, world_points
from hdvpd.data.calibration.wording import diagnosis_lines
from hdvpd.data.pinhole import AXES
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset

HEIGHT, WIDTH = 48, 64
CAMERAS = ("cam0", "cam1")
INDEX = choose_indexer("scipy")[1]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / "scene"
    write_synthetic_dataset(path, episodes=3, steps=11, height=HEIGHT, width=WIDTH, seed=3)
    return path


@pytest.fixture
def path(good: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    shutil.copytree(good, tmp_path / "scene")
    return tmp_path / "scene"


@pytest.fixture(scope="module")
def moments(good: Path) -> list[Moment]:
    dataset = Dataset(good)
    return [
        read_snapshot(dataset, e, f).moment
        for e, f in zip(dataset.episodes, (0, 5, 8), strict=True)
    ]


def change(path: Path, function: Callable[[np.ndarray], np.ndarray], *names: str) -> None:
    """Replace arrays of every episode by a function of them."""
    dataset = Dataset(path)
    for episode in dataset.episodes:
        values = dataset.read_many(episode.number, list(names))
        changed = {name: function(value) for name, value in values.items()}
        replace_arrays(path, episode.number, changed)


def quick(path: Path) -> Report:
    """Check a data set on few frames."""
    return check(path, episodes=2, frames=2, backend="scipy")


def change_views(
    moments: list[Moment], cameras: tuple[str, ...], function: Callable[[View], View]
) -> list[Moment]:
    return [
        dataclasses.replace(
            m, views={n: function(v) if n in cameras else v for n, v in m.views.items()}
        )
        for m in moments
    ]


def with_pose(function: Callable[[np.ndarray], np.ndarray]) -> Callable[[View], View]:
    return lambda v: dataclasses.replace(v, camera_to_world=function(v.camera_to_world))


def statuses(report: Report) -> dict[str, str]:
    return {name: camera.status for name, camera in report.cameras.items()}


def texts(report: Report, topic: str) -> str:
    findings = [f for camera in report.cameras.values() for f in camera.findings]
    return "\n".join(f.text for f in (*findings, *report.findings) if f.topic == topic)


# --- Geometry and measures against closed forms ---------------------------------------------------


def test_points_of_the_table_lie_in_its_plane_and_project_back(moments):
    for view in moments[0].views.values():
        points = world_points(view)
        table = (view.depth_m > 0) & (np.abs(points[..., 2]) < 1e-3)
        assert table.mean() > 0.2
        assert np.abs(points[table][:, 2]).max() < 1e-6
        pixels, depth = project(points[table], view)
        row, column = np.nonzero(table)
        np.testing.assert_allclose(pixels, np.stack([column, row], axis=1) + 0.5, atol=1e-9)
        np.testing.assert_allclose(depth, view.depth_m[table], atol=1e-12)


@pytest.mark.parametrize(("max_pixels", "side"), [(HEIGHT * WIDTH, 1), (400, 3), (100, 7)])
def test_thinning_keeps_points_where_they_are(moments, max_pixels, side):
    view = moments[0].views["cam0"]
    thinned = thin(view, max_pixels)
    kept = slice(side // 2, None, side)
    height, width = thinned.depth_m.shape
    assert height * width <= max_pixels
    expected = world_points(view)[kept, kept][:height, :width]
    np.testing.assert_allclose(world_points(thinned), expected, atol=1e-12)
    assert thinned.size == (HEIGHT, WIDTH)
    # Rows that fill no block are left over.
    assert thinned.thinning == pytest.approx(side, rel=0.2)


@pytest.mark.parametrize("backend", ["scipy", "open3d"])
def test_a_lifted_camera_is_off_by_as_much_as_it_was_lifted(moments, backend):
    if backend == "open3d":
        extras.needed("open3d")
    name, index = choose_indexer(backend)
    assert name == backend

    def lift(pose: np.ndarray) -> np.ndarray:
        return pose + 0.012 * np.outer(np.eye(4)[2], np.eye(4)[3])

    views = change_views(moments, ("cam1",), with_pose(lift))[0].views
    first, second = (observe(views[camera], index) for camera in CAMERAS)
    found = shared_points(first, second, 10_000)
    table = np.abs(found.points[:, 2]) < 1e-6
    assert table.sum() > 100
    # Exact wherever the nearest sample has a plane, which at this size rims and spheres lack.
    exact = np.abs(found.distances[table] - 0.012) < 1e-6
    assert exact.mean() > 0.75


def test_open3d_and_scipy_give_the_same_numbers(moments):
    extras.needed("open3d")
    wrong = change_views(moments, ("cam0",), with_pose(np.linalg.inv))
    for scene in (moments, wrong):
        first, second = (measure(scene, choose_indexer(b)[1]) for b in ("scipy", "open3d"))
        for a, b in zip(
            (*first.pairs, *first.robots.values()),
            (*second.pairs, *second.robots.values()),
            strict=True,
        ):
            assert a.status == b.status
            for field in ("median_m", "p95_m"):
                np.testing.assert_allclose(getattr(a, field), getattr(b, field), atol=1e-9)


def test_surface_distance_falls_back_to_the_sample(moments):
    view = moments[0].views["cam0"]
    surface = observe(view, INDEX)
    above = surface.points[surface.normals[:, 2] > 0.99][:20] + [0, 0, 0.004]
    np.testing.assert_allclose(surface_distance(above, surface), 0.004, atol=1e-6)
    far = np.array([[5.0, 0.0, 0.0]])
    nearest = np.linalg.norm(surface.points - far, axis=1).min()
    np.testing.assert_allclose(surface_distance(far, surface), nearest)


def test_points_in_hidden_free_and_solid_space_are_told_apart(moments):
    moment = moments[0]
    view = moment.views["cam0"]
    eye = view.camera_to_world[:3, 3]
    joint = moment.robot[2]
    toward = (eye - joint) / np.linalg.norm(eye - joint)
    probes = np.stack([joint, joint + 0.3 * toward, joint - 0.3 * toward, eye + toward])
    states, _ = robot_points(probes, observe(view, INDEX))
    assert [RobotPoint(s).name for s in states] == ["COVERED", "DETACHED", "HIDDEN", "OUTSIDE"]


# --- The good scene -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report(good):
    return check(good, backend="scipy")


def test_the_exact_scene_passes_with_exact_numbers(report):
    assert report.passed
    assert statuses(report) == dict.fromkeys(CAMERAS, "pass")
    (pair,) = report.evidence.pairs
    # Planes agree to rounding; spheres and rims, sampled once per pixel, make the tail.
    assert pair.median_m < 1e-5
    assert pair.p95_m < 1.5 * pair.footprint_m
    assert pair.in_front == 0
    assert pair.shared > 5000
    for robot in report.evidence.robots.values():
        assert robot.detached == 0
        # The points lie within spheres of 35 mm or on the 110 mm between two of them.
        assert 0.01 < robot.median_m < 0.05
    assert report.found.evidence is None
    assert diagnosis_lines(report) == []


def test_the_exact_scene_is_on_one_clock_and_its_targets_lead(report):
    assert {name: camera.lag.best for name, camera in report.cameras.items()} == {
        "cam0": 0,
        "cam1": 0,
    }
    assert {name: lead.best for name, lead in report.leads.items()} == {
        "joints": 1,
        "kinematic points": 1,
    }
    assert max(lead.error for lead in report.leads.values()) < 1e-5
    assert all(camera.color > 0.3 for camera in report.cameras.values())


def test_the_suggested_workspace_holds_table_and_robot(report):
    low, high = report.workspace
    robot = np.concatenate([moment.robot for moment in report.moments])
    assert (robot > low).all()
    assert (robot < high).all()
    assert low[2] == pytest.approx(-0.05)
    assert 0.3 < high[0] < 0.6


# --- Mistakes by name -----------------------------------------------------------------------------


def transpose_rotation(pose: np.ndarray) -> np.ndarray:
    result = pose.copy()
    result[:3, :3] = pose[:3, :3].T
    return result


def unscaled(rows: float, columns: float) -> Callable[[View], View]:
    scale = np.array([[columns / WIDTH], [rows / HEIGHT], [1.0]])
    return lambda v: dataclasses.replace(v, intrinsics=v.intrinsics * scale)


def ray_length(view: View) -> View:
    u, v = np.meshgrid(np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5)
    k = view.intrinsics
    rays = np.hypot(np.hypot((u - k[0, 2]) / k[0, 0], (v - k[1, 2]) / k[1, 1]), 1)
    return dataclasses.replace(view, depth_m=view.depth_m * rays)


def shift_center(view: View) -> View:
    offset = np.array([[0, 0, 12.0], [0, 0, -9.0], [0, 0, 0]])
    return dataclasses.replace(view, intrinsics=view.intrinsics + offset)


RAY = "depth along the ray"
VIEW_MISTAKES: dict[str, Callable[[View], View]] = {
    "wrong depth unit": lambda v: dataclasses.replace(v, depth_m=v.depth_m * 1000),
    "inverted extrinsics": with_pose(np.linalg.inv),
    "transposed extrinsics": with_pose(lambda p: p.T.copy()),
    "transposed rotation": with_pose(transpose_rotation),
    "OpenGL axes": with_pose(lambda p: p @ AXES["opengl"]),
    "inverted extrinsics with OpenGL axes": with_pose(lambda p: np.linalg.inv(p @ AXES["opengl"])),
    "CoppeliaSim axes": with_pose(lambda p: p @ np.diag([-1.0, -1.0, 1.0, 1.0])),
    "camera position in millimetres": with_pose(
        lambda p: p * np.array([[1, 1, 1, 1000.0]] * 3 + [[1, 1, 1, 1]])
    ),
    "unscaled intrinsics": unscaled(480, 640),
    "unshifted principal point": shift_center,
    RAY: ray_length,
}


@pytest.mark.parametrize(
    ("name", "cameras"),
    # Both cameras with lengths of rays still agree to half a pixel in images as small as these.
    [(n, c) for n in VIEW_MISTAKES for c in (CAMERAS, ("cam1",)) if n != RAY or c != CAMERAS],
)
def test_each_mistake_is_named_and_undone(moments, name, cameras):
    wrong = change_views(moments, cameras, VIEW_MISTAKES[name])
    before = measure(wrong, INDEX)
    assert any(before.status(camera) != "pass" for camera in cameras)
    diagnosis = diagnose(wrong, INDEX)
    assert [(m.name, m.cameras) for m in diagnosis.mistakes] == [(name, cameras)]
    repaired = diagnosis.repair(wrong)
    for camera in CAMERAS:
        found, truth = repaired[0].views[camera], moments[0].views[camera]
        np.testing.assert_allclose(found.intrinsics, truth.intrinsics, atol=1e-9)
        np.testing.assert_allclose(found.camera_to_world, truth.camera_to_world, atol=1e-9)
        np.testing.assert_allclose(found.depth_m, truth.depth_m, atol=1e-9)
    after = measure(repaired, INDEX)
    assert [after.status(camera) for camera in CAMERAS] == ["pass", "pass"]


@pytest.mark.parametrize("fields", [("rgb", "depth_m"), ("camera_to_world",)])
def test_swapped_cameras_are_named(moments, fields):
    wrong = []
    for moment in moments:
        a, b = moment.views.values()
        views = {
            "cam0": dataclasses.replace(a, **{f: getattr(b, f) for f in fields}),
            "cam1": dataclasses.replace(b, **{f: getattr(a, f) for f in fields}),
        }
        wrong.append(dataclasses.replace(moment, views=views))
    diagnosis = diagnose(wrong, INDEX)
    assert [(m.name, m.cameras) for m in diagnosis.mistakes] == [("swapped cameras", CAMERAS)]
    # The cameras have equal intrinsics, so nothing tells the two apart.
    assert diagnosis.alternatives == ("swapped camera poses",)


def test_a_code_for_invalid_depth_is_named(moments):
    holes = np.add.outer(np.arange(HEIGHT) // 8, np.arange(WIDTH) // 8) % 4 == 0
    wrong = change_views(
        moments,
        ("cam1",),
        lambda v: dataclasses.replace(v, depth_m=np.where(holes, 65.535, v.depth_m)),
    )
    diagnosis = diagnose(wrong, INDEX)
    assert [m.name for m in diagnosis.mistakes] == ["invalid depth stored as a code"]
    repaired = diagnosis.repair(wrong)[0].views["cam1"].depth_m
    truth = moments[0].views["cam1"].depth_m
    np.testing.assert_array_equal(repaired, np.where(holes, 0, truth))


def test_without_a_robot_two_cameras_are_enough(moments):
    alone = [dataclasses.replace(m, robot=None) for m in moments]
    wrong = change_views(alone, ("cam1",), VIEW_MISTAKES["OpenGL axes"])
    (mistake,) = diagnose(wrong, INDEX).mistakes
    assert (mistake.name, mistake.cameras) == ("OpenGL axes", ("cam1",))


def test_with_a_robot_one_camera_is_enough(moments):
    alone = [dataclasses.replace(m, views={"cam0": m.views["cam0"]}) for m in moments]
    for name in ("wrong depth unit", "inverted extrinsics", "OpenGL axes"):
        wrong = change_views(alone, ("cam0",), VIEW_MISTAKES[name])
        (mistake,) = diagnose(wrong, INDEX).mistakes
        assert (mistake.name, mistake.cameras) == (name, ("cam0",))


def test_two_mistakes_at_once_are_both_named(moments):
    wrong = change_views(moments[:2], CAMERAS, VIEW_MISTAKES["wrong depth unit"])
    wrong = change_views(wrong, CAMERAS, VIEW_MISTAKES["OpenGL axes"])
    diagnosis = diagnose(wrong, INDEX)
    assert {m.name for m in diagnosis.mistakes} == {"wrong depth unit", "OpenGL axes"}
    after = measure(diagnosis.repair(wrong), INDEX)
    assert all(after.status(camera) == "pass" for camera in CAMERAS)


def test_a_repair_that_parts_cameras_which_agree_is_no_explanation(moments):
    """The robot alone is wrong, and would fit cam1 if that camera were turned about its axis."""
    turned = []
    for moment in moments:
        pose = moment.views["cam1"].camera_to_world
        move = pose @ np.diag([-1.0, -1.0, 1.0, 1.0]) @ np.linalg.inv(pose)
        turned.append(
            dataclasses.replace(moment, robot=moment.robot @ move[:3, :3].T + move[:3, 3])
        )
    (pair,) = measure(turned, INDEX).pairs
    assert pair.status == "pass"
    flipped = change_views(turned, ("cam1",), VIEW_MISTAKES["CoppeliaSim axes"])
    assert measure(flipped, INDEX).status("cam1") == "pass"
    assert diagnose(turned, INDEX) is None


def test_an_unknown_mistake_is_called_unknown(moments):
    turn = np.eye(4)
    turn[:2, :2] = [[0.8, -0.6], [0.6, 0.8]]
    wrong = change_views(moments[:2], ("cam0",), with_pose(lambda p: turn @ p))
    assert measure(wrong, INDEX).status("cam0") == "fail"
    assert diagnose(wrong, INDEX) is None


# --- Whole data sets, damaged on disk -------------------------------------------------------------

DISK_MISTAKES = {
    "wrong depth unit": ("cameras/cam0/depth", lambda d: d * np.float32(1000)),
    "inverted extrinsics": ("cameras/cam1/camera_to_world", np.linalg.inv),
    "transposed extrinsics": ("cameras/cam0/camera_to_world", lambda p: p.T.copy()),
    "OpenGL axes": ("cameras/cam0/camera_to_world", lambda p: p @ AXES["opengl"]),
    "unscaled intrinsics": (
        "cameras/cam1/intrinsics",
        lambda k: k * np.array([[10.0], [10.0], [1.0]]),
    ),
    "negative focal length": (
        "cameras/cam1/intrinsics",
        lambda k: k * np.array([[-1.0, 1, 1], [1, -1.0, 1], [1, 1, 1]]),
    ),
    "swapped RGB/BGR": ("cameras/cam0/rgb", lambda x: x[..., ::-1].copy()),
}
FIXES = {
    "wrong depth unit": "multiply depth_unit_m in dataset.json by 0.001",
    "inverted extrinsics": "store the inverse of camera_to_world",
    "transposed extrinsics": "transpose the 4x4 camera_to_world",
    "OpenGL axes": "camera_to_world @ diag(1, -1, -1, 1)",
    "unscaled intrinsics": "multiply the first row of the intrinsics by 0.1 and the second by 0.1",
    "negative focal length": "store the absolute value of fx and fy",
    "swapped RGB/BGR": "reverse the last axis of rgb",
}
INVERSES = {
    "wrong depth unit": lambda d: d / np.float32(1000),
    "unscaled intrinsics": lambda k: k * np.array([[0.1], [0.1], [1.0]]),
}


def printed(report: Report) -> str:
    console = rich.console.Console(width=200, record=True, file=io.StringIO())
    print_report(report, console)
    return console.export_text()


@pytest.mark.parametrize("name", ["my [old] set", "x[/b]", ":robot:"])
def test_names_in_brackets_and_colons_are_printed_as_they_are(path, name):
    """They are markup to rich: brackets vanished, or ended in a traceback."""
    content = json.loads((path / "dataset.json").read_text())
    camera = name.replace("/", "")  # its name is that of a folder
    content["cameras"][camera] = content["cameras"].pop("cam1") | {"depth_unit_m": 1000.0}
    for file in path.glob("episodes/*/cameras/cam1"):
        file.rename(file.with_name(camera))
    edit_json(path / "dataset.json", cameras=content["cameras"])
    folder = path.parent / f"set {name}"
    folder.parent.mkdir(exist_ok=True)
    words = printed(quick(path.rename(folder)))
    assert f"set {name} (" in words.replace("\n", "")
    assert re.search(rf"│ {re.escape(camera)} +│ ", words)
    assert re.search(rf"^fail {re.escape(camera)}, \w+: ", words, re.MULTILINE)
    assert f"({camera}). Fix: " in words


@pytest.mark.parametrize("name", list(DISK_MISTAKES))
def test_a_damaged_data_set_is_named_and_passes_with_its_fix(path, name):
    array, damage = DISK_MISTAKES[name]
    change(path, damage, array)
    report = quick(path)
    assert not report.passed
    text = printed(report)
    for words in (name, FIXES[name], "FAIL"):
        assert words in text
    change(path, INVERSES.get(name, damage), array)
    assert quick(path).passed


def test_swapped_cameras_on_disk_are_named_with_the_fix(path):
    dataset = Dataset(path)
    for episode in dataset.episodes:
        names = [f"cameras/{camera}/{key}" for camera in CAMERAS for key in ("rgb", "depth")]
        values = dataset.read_many(episode.number, names)
        replace_arrays(
            path,
            episode.number,
            dict(zip(names, [*values.values()][2:] + [*values.values()][:2], strict=True)),
        )
    report = quick(path)
    assert statuses(report) == dict.fromkeys(CAMERAS, "fail")
    text = printed(report)
    assert "Diagnosis: swapped cameras (cam0, cam1). Fix: exchange the images of cam0 and" in text
    assert "cam0 and cam1 then agree to 0.0 mm" in text
    assert "FAIL" in text


def test_every_mistake_is_documented():
    page = (Path(__file__).parent.parent / "docs" / "calibration.md").read_text()
    for name in (*VIEW_MISTAKES, *DISK_MISTAKES, "swapped cameras", "swapped camera poses"):
        assert f"| {name} |" in page or f"{name}," in page or f", {name} |" in page


def test_the_report_is_complete_and_needs_nothing_else(path, tmp_path, capsys):
    words = ["data", "check", str(path), "--search", "scipy"]
    assert main(words) == 0
    assert "PASS" in capsys.readouterr().out
    mine = tmp_path / "mine" / "check-list.png"
    mine.parent.mkdir()
    mine.write_text("")
    assert main([*words, "--out", str(mine.parent)]) == 0
    assert mine.exists()
    capsys.readouterr()
    change(path, np.linalg.inv, "cameras/cam0/camera_to_world")
    shutil.rmtree(path / "check")
    out = tmp_path / "out"
    assert main([*words, "--out", str(out)]) == 1
    assert "FAIL" in capsys.readouterr().out
    assert not (path / "check").exists()
    content = json.loads((out / "check.json").read_text())
    assert content["passed"] is False
    assert content["cameras"]["cam0"]["status"] == "fail"
    assert content["diagnosis"]["mistakes"][0]["name"] == "inverted extrinsics"
    repaired = content["diagnosis"]["repaired"]["views"][0]
    assert repaired["status"] == "pass"
    assert repaired["median_m"] < 1e-5
    page = (out / "check.html").read_text()
    assert not re.search(r'(src|href)="(?!data:)', page)
    assert "inverted extrinsics" in page
    names = {f.name for f in out.glob("*.png")}
    expected = {"check-signals.png"}
    for suffix in ("", "-repaired"):
        expected |= {f"check-robot-{camera}{suffix}.png" for camera in CAMERAS}
        expected |= {f"check-cam0-in-cam1{suffix}.png", f"check-cam1-in-cam0{suffix}.png"}
    assert names == expected
    assert page.count("data:image/png") == len(expected)
    assert not list(out.glob(".partial*"))


def test_mistakes_of_the_user_are_status_2(path, tmp_path, capsys):
    assert main(["data", "check", str(tmp_path / "nothing")]) == 2
    assert main(["data", "check", str(path), "--frames", "0"]) == 2
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert main(["data", "check", str(path), "--out", str(blocked), "--search", "scipy"]) == 2
    assert "--out" in capsys.readouterr().err
    shutil.rmtree(path / "episodes/000001/cameras/cam0/depth")
    assert main(["data", "check", str(path)]) == 2
    assert "cameras/cam0/depth" in capsys.readouterr().err


# --- Less than everything -------------------------------------------------------------------------


def drop_camera(path: Path, name: str) -> None:
    cameras = json.loads((path / "dataset.json").read_text())["cameras"]
    del cameras[name]
    edit_json(path / "dataset.json", cameras=cameras)


def drop_links(path: Path) -> None:
    for folder in path.glob("episodes/*/robot/*link_to_world"):
        shutil.rmtree(folder)


def test_one_camera_is_proven_by_the_robot(path):
    drop_camera(path, "cam1")
    # Few frames do not tell one camera's picture of this robot from its mirror image.
    few = check(path, episodes=2, frames=1, backend="scipy")
    assert few.verdict == "unproven"
    assert few.world is not None
    assert not few.world.handedness
    report = check(path, backend="scipy")
    assert report.passed
    assert "single camera" in texts(report, "views")


def test_one_camera_without_link_poses_is_unproven(path):
    drop_camera(path, "cam1")
    drop_links(path)
    report = quick(path)
    assert not report.passed
    assert statuses(report) == {"cam0": "unproven"}
    assert "no robot/link_to_world" in texts(report, "robot")
    assert "training needs both" in texts(report, "actions")
    assert "known mistakes" in diagnosis_lines(report)[0]


def test_two_cameras_without_link_poses_prove_each_other(path):
    drop_links(path)
    report = quick(path)
    assert report.passed
    # Joint motion stands in for the motion of the points.
    assert "image motion follows robot motion" in texts(report, "time")


def test_cameras_without_overlap_rest_on_the_robot(path):
    row, column = np.arange(HEIGHT)[:, None] - HEIGHT // 2, np.arange(WIDTH) - WIDTH // 2
    corner = (row == 0) & (column == 0)
    change(path, lambda d: np.where(corner, d, np.float32(0)), "cameras/cam1/depth")
    report = quick(path)
    assert "too little seen by both" in texts(report, "views")
    assert report.cameras["cam0"].status == "pass"
    assert report.cameras["cam1"].status in ("fail", "unproven")


def test_a_robot_that_stands_still_leaves_time_and_actions_open(path):
    def freeze(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values[:1], values.shape).copy()

    names = [f"cameras/{c}/{key}" for c in CAMERAS for key in ("rgb", "depth")]
    names += ["robot/joint_positions", "robot/joint_targets"]
    names += ["robot/link_to_world", "robot/target_link_to_world"]
    change(path, freeze, *names)
    report = quick(path)
    assert report.passed
    assert "nothing moves" in texts(report, "time")
    assert "does not move" in texts(report, "actions")


def test_a_camera_without_any_valid_depth_fails_by_frame(path):
    change(path, lambda d: np.full_like(d, np.nan), "cameras/cam1/depth")
    report = quick(path)
    assert report.cameras["cam1"].status == "fail"
    assert "frame 3 of episode 0" in texts(report, "depth")
    assert report.cameras["cam0"].status == "pass"


@pytest.mark.parametrize("name", ["joint_positions", "link_to_world"])
def test_robot_arrays_must_be_finite(path, name):
    change(path, lambda x: x * np.float32(np.nan), f"robot/{name}")
    report = quick(path)
    assert not report.passed
    assert f"robot/{name}: a value is NaN" in texts(report, "structure")


@pytest.mark.parametrize("size", [(1, 1), (2, 2)])
def test_tiny_images_and_episodes_prove_nothing(tmp_path, size):
    write_synthetic_dataset(
        tmp_path / "tiny", episodes=1, steps=1, height=size[0], width=size[1], seed=3
    )
    assert not quick(tmp_path / "tiny").passed


@pytest.mark.parametrize("key", ["intrinsics", "camera_to_world"])
@pytest.mark.parametrize("factor", [0.0, np.nan])
def test_matrices_that_are_none_are_named(path, key, factor):
    change(path, lambda x: x * factor, f"cameras/cam0/{key}")
    report = quick(path)
    assert statuses(report) == {"cam0": "fail", "cam1": "pass"}
    assert f"cameras/cam0/{key}" in texts(report, "structure")


def test_without_a_declared_colour_the_channels_are_not_judged(path):
    for file in path.glob("episodes/*/episode.json"):
        edit_json(file, objects=[{"name": "ball"}])
    report = quick(path)
    assert report.passed
    assert "no object with a declared colour" in texts(report, "colour")


@pytest.mark.parametrize("objects", [[{"name": "ball", "rgb": [300, 0, 0]}], "ball", [{}]])
def test_impossible_objects_are_refused(path, objects):
    edit_json(path / "dataset.json", objects=objects)
    with pytest.raises(UserError, match=r"dataset\.json.*objects"):
        check(path)


# --- Clocks and actions ---------------------------------------------------------------------------


@pytest.mark.parametrize("late", [-2, 1])
def test_images_off_by_frames_are_found(path, late):
    images = [f"cameras/{camera}/{key}" for camera in CAMERAS for key in ("rgb", "depth")]
    change(path, lambda x: x[np.clip(np.arange(12) - late, 0, 11)], *images)
    report = check(path, episodes=3, frames=12, backend="scipy")
    word = "late" if late > 0 else "early"
    for camera in report.cameras.values():
        assert camera.shift.lag == pytest.approx(late, abs=0.1)
    assert len(re.findall(rf"images are .* frames .* s\) {word}", texts(report, "time"))) == 2
    assert "None of the known mistakes" not in printed(report)
    assert not report.passed


def lag_verdict(robot: list[np.ndarray], image: list[np.ndarray]) -> str:
    lags = {"cam": signals.align(robot, image)}
    return proof_findings.lag_finding("cam", lags, None, 2.0).verdict


@pytest.mark.parametrize("samples", [12, 40, 160])
def test_signals_that_have_nothing_in_common_are_no_fault_of_the_clock(samples):
    """As with a robot that moves at constant speed: the best of many lags is good by chance."""
    rng = np.random.default_rng(samples)
    signals_of = [rng.normal(size=(2, 2, samples // 2)) for _ in range(300)]
    assert "fail" not in [lag_verdict([*robot], [*image]) for robot, image in signals_of]


def smooth(rng: np.random.Generator, count: int, width: int) -> np.ndarray:
    """A signal that remembers its past, as the speed of a robot does."""
    return np.convolve(rng.normal(size=count + 4 * width), np.hanning(width + 2), "valid")[:count]


@pytest.mark.parametrize("width", [3, 8])
def test_smooth_signals_and_few_episodes_name_no_lag(width):
    """Four episodes of few steps once gave 'one frame early' at a correlation of 0.8."""
    rng = np.random.default_rng(width)
    verdicts = []
    for _ in range(200):
        robot = [smooth(rng, 12, width) for _ in range(4)]
        image = [0.7 * r + 0.7 * smooth(rng, 12, width) for r in robot]
        verdicts.append(lag_verdict(robot, image))
    assert "fail" not in verdicts


def test_a_lag_at_the_edge_of_the_search_is_none():
    rng = np.random.default_rng(0)
    robot = [rng.normal(size=60) for _ in range(8)]
    for late, verdict in ((3, "fail"), (signals.MAX_LAG, "unproven")):
        assert lag_verdict(robot, [np.roll(r, late) for r in robot]) == verdict


@pytest.mark.parametrize("short", [2, 4, 14])
def test_a_short_episode_leaves_the_lag_of_the_others_proven(short):
    rng = np.random.default_rng(0)
    robot = [rng.normal(size=n) for n in (*[60] * 8, short)]
    for late in (2, -signals.MAX_LAG + 1):
        lag = signals.align(robot, [np.roll(r, late) for r in robot])
        assert lag.proven
        assert lag.best == late


def test_many_short_episodes_are_not_left_out_for_a_long_one():
    rng = np.random.default_rng(0)
    robot = [rng.normal(size=n) for n in (*[14] * 20, 15)]
    lag = signals.align(robot, [np.roll(r, 2) for r in robot])
    assert (lag.samples, lag.best, lag.proven) == (295, 2, True)
    assert signals.align([np.ones(0), np.ones(2)], [np.ones(0), np.ones(2)]) is None
    assert signals.align([], []) is None


def test_cameras_that_do_not_agree_on_a_lag_have_none():
    rng = np.random.default_rng(0)
    robot = [rng.normal(size=60) for _ in range(8)]
    lags = {
        name: signals.align(robot, [np.roll(r, late) for r in robot])
        for name, late in (("a", 3), ("b", -1))
    }
    assert all(lag.proven for lag in lags.values())
    finding = proof_findings.lag_finding("a", lags, None, 2.0)
    assert finding.verdict == "unproven"
    assert "do not agree" in finding.text


def test_targets_that_do_not_lead_are_found(path):
    change(path, lambda t: np.concatenate([t[:1], t[:-1]]), "robot/joint_targets")
    report = check(path, backend="scipy")
    assert report.leads["joints"].best == 0
    assert "shift the targets by 1 rows" in texts(report, "actions")
    assert not report.passed


def test_time_must_increase_at_the_rate(path):
    change(path, lambda t: 2 * t, "time_s")
    assert "rate_hz = 2 means 0.5 s" in texts(quick(path), "time")
    change(path, lambda t: np.where(np.arange(len(t)) == 5, t[3], t), "time_s")
    report = quick(path)
    assert "does not increase after frame 4" in texts(report, "time")
    assert not report.passed


def test_lag_and_lead_of_made_up_signals():
    rng = np.random.default_rng(0)
    robot = [rng.uniform(0, 1, 40) for _ in range(3)]
    image = [np.roll(r, 3) + 0.05 * rng.normal(size=40) for r in robot]
    lag = signals.align(robot, image)
    assert lag.best == 3
    assert max(lag.correlations) > 0.95
    path = np.cumsum(rng.normal(size=(50, 4)), axis=0)
    lead = signals.target_lead([path[:-2]], [path[2:]])
    assert (lead.best, lead.error) == (2, 0.0)
    assert signals.align([np.ones(40)], [np.ones(40)]) is None
    assert signals.target_lead([path[:3]], [path[1:4]]) is None


# --- Depth values, intrinsics, workspace ----------------------------------------------------------


def test_suspicious_depth_values_are_recognised():
    wall = np.tile(np.linspace(0.5, 1.5, 100), (4, 100, 1))
    plain = depth_values(wall.astype(np.float32), 1.0)
    assert plain.plausible
    assert plain.sentinel_m is None
    assert plain.median_m == pytest.approx(1.0)
    coded = np.round(1000 * wall).astype(np.uint16)
    coded[:, :5] = 65535
    found = depth_values(coded, 0.001)
    assert found.sentinel_m == pytest.approx(65.535)
    assert not depth_values(coded, 1.0).plausible
    # The end of a sensor's range, little beyond what it sees; and a wall behind a table, which is
    # parallel to it and repeats as well.
    clipped = np.repeat(np.random.default_rng(0).uniform(0.5, 3.2, (1, 100, 100)), 4, axis=0)
    assert depth_values(np.where(clipped > 3.0, 4.0, clipped), 1.0).sentinel_m == 4.0
    assert depth_values(np.where(clipped > 2.0, 2.5, 1.9), 1.0).sentinel_m is None
    holes = wall.copy()
    holes[:, :10], holes[:, 10:30] = np.nan, -1
    found = depth_values(holes, 1.0)
    assert (found.valid, found.nan, found.negative) == pytest.approx((0.7, 0.1, 0.2))
    assert depth_values(0.95 + 0.04 * wall / 1.5, 1.0).z_buffer
    assert depth_values(np.zeros((1, 2, 2)), 1.0).valid == 0


@pytest.mark.parametrize(
    ("matrix", "faults", "oddities"),
    [
        ([[60, 0, 32], [0, 60, 24], [0, 0, 1.0]], 0, 0),
        ([[60, 0, 64], [0, 60, 24], [0, 0, 1.0]], 1, 0),
        ([[60, 0, 16], [0, 60, 12], [0, 0, 1.0]], 0, 1),
        ([[80, 0, 32], [0, 60, 24], [0, 0, 1.0]], 0, 1),
    ],
)
def test_intrinsics_must_fit_the_image(matrix, faults, oddities):
    found = intrinsics_faults(np.array(matrix), HEIGHT, WIDTH)
    assert (len(found[0]), len(found[1])) == (faults, oddities)


def test_the_box_holds_the_robot_and_what_is_near_it():
    cloud = np.random.default_rng(0).uniform([-3, -3, 0], [3, 3, 0.02], (100_000, 3))
    robot = np.array([[0.0, 0.0, 0.5], [0.4, 0.2, 0.1]])
    low, high = suggest_box(cloud, robot)
    np.testing.assert_allclose(low, [-0.35, -0.35, -0.05], atol=0.051)
    np.testing.assert_allclose(high, [0.75, 0.55, 0.55], atol=0.051)
    assert suggest_box(np.zeros((0, 3)), robot) is None
    assert suggest_box(cloud + 100, robot) is None
    low, high = suggest_box(cloud, np.zeros((0, 3)))
    np.testing.assert_allclose(high - low, [6.0, 6.0, 0.1], atol=0.21)
