"""The simulated scene against documented numbers and an independent forward kinematics.

The constants of the arm are written out here again on purpose: they come from the recipe of the
scene, not from the module under test.
"""

import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import extras
import numpy as np
import pytest

from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.data import schema, writer
from hdvpd.data.simulation import bimanual, plan, scene
from hdvpd.data.simulation import clip as clips
from hdvpd.data.store import Dataset

mujoco: Any = extras.needed("mujoco")

SIZE = (64, 96)


def _rendering() -> str:
    try:
        clips.check_rendering()
    except UserError as error:
        return extras.reason("sim", str(error))
    return ""


NO_RENDERING = _rendering()
needs_rendering = pytest.mark.skipif(bool(NO_RENDERING), reason=NO_RENDERING)


@pytest.fixture(scope="module")
def clip() -> clips.Clip:
    return clips.simulate_clip("push", steps=20, size=SIZE, seed=(0, 0))


@pytest.fixture(scope="module")
def arrays(clip: clips.Clip) -> dict[str, np.ndarray]:
    if NO_RENDERING:
        pytest.skip(NO_RENDERING)
    return clip.arrays()


def plan_of(task: str, seed: int) -> tuple[Any, np.ndarray]:
    """Model and joint path of the first draw within reach."""
    for attempt in range(100):
        rng = np.random.default_rng([seed, attempt])
        draw = scene.draw_scene(task, rng)
        plans = plan.draw_plan(draw, 20, rng)
        if plan.within_reach(plans):
            model = mujoco.MjModel.from_xml_string(scene.scene_xml(draw, *SIZE))
            path = plan.joint_path(model, plans)
            assert path is not None
            return model, path
    raise AssertionError("no plan within reach")


# --- forward kinematics (invariant K1) ---------------------------------------------------------


def _turn(axis: str, angle: float) -> np.ndarray:
    c, s = np.cos(angle), np.sin(angle)
    blocks = {"z": [[c, -s, 0], [s, c, 0], [0, 0, 1]], "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]]}
    pose = np.eye(4)
    pose[:3, :3] = blocks[axis]
    return pose


def _shift(x: float, y: float, z: float) -> np.ndarray:
    pose = np.eye(4)
    pose[:3, 3] = (x, y, z)
    return pose


def forward_kinematics(joints: np.ndarray) -> dict[str, np.ndarray]:
    """Poses of the 28 frames from 16 joints, in float64, from the documented offsets."""
    offsets = (0.1575, 0.2025, 0.2045, 0.2155, 0.1845, 0.2155, 0.081)
    axes = (("z", 1), ("y", 1), ("z", 1), ("y", -1), ("z", 1), ("y", 1), ("z", 1))
    poses = {}
    for arm, own, y in (("L", joints[:8], 0.33), ("R", joints[8:], -0.33)):
        pose = poses[f"{arm}_base"] = _shift(-0.60, y, -0.02)
        for i, (offset, (axis, sign)) in enumerate(zip(offsets, axes, strict=True)):
            pose = pose @ _shift(0, 0, offset) @ _turn(axis, sign * own[i])
            poses[f"{arm}_link{i + 1}"] = pose
        hand = poses[f"{arm}_hand"] = pose @ _shift(0, 0, 0.05)
        poses[f"{arm}_tcp"] = hand @ _shift(0, 0, 0.155)
        for side, sign in (("l", 1), ("r", -1)):
            finger = hand @ _shift(0, sign * own[7], 0.06)
            poses[f"{arm}_finger_{side}"] = finger
            poses[f"{arm}_tip_{side}"] = finger @ _shift(0, sign * 0.007, 0.11)
    return poses


@pytest.mark.parametrize("kind", ["commanded", "measured"])
def test_link_poses_agree_with_a_product_of_transforms(clip, kind):
    links = tuple(scene.link_parents())
    assert len(links) == 28
    joints = clip.states[:, clips.joint_addresses(clip.model)]
    states = clip.states
    if kind == "commanded":
        joints = clip.targets
        states = clips.with_joints(clip.model, states, joints)
    poses = clips.frame_poses(clip.model, states, links)
    for frame in range(len(states)):
        expected = forward_kinematics(joints[frame])
        for k, name in enumerate(links):
            # The measured state has one opening per gripper; the second finger lags the first.
            loose = kind == "measured" and name.endswith("_r")
            tolerance = 5e-3 if loose else 1e-5
            assert np.abs(poses[frame, k] - expected[name]).max() < tolerance, name


def test_random_joints_too(clip):
    rng = np.random.default_rng(0)
    limits = np.deg2rad([170, 120, 170, 120, 170, 120, 175])
    joints = rng.uniform(-1, 1, (20, 16)) * np.tile(np.r_[limits, 0], 2)[None]
    joints[:, [7, 15]] = rng.uniform(0.005, 0.05, (20, 2))
    states = np.repeat(clip.states[:1], 20, axis=0)
    links = tuple(scene.link_parents())
    states = clips.with_joints(clip.model, states, joints)
    poses = clips.frame_poses(clip.model, states, links)
    for row, expected in zip(poses, map(forward_kinematics, joints), strict=True):
        for k, name in enumerate(links):
            assert np.abs(row[k] - expected[name]).max() < 1e-5, name


# --- plans and inverse kinematics --------------------------------------------------------------


def test_reach_rule_measures_shoulder_to_wrist():
    def plans(distance: float) -> dict[str, plan.ArmPlan]:
        shoulder, wrist_above_tool = np.array([-0.60, -0.33, 0.34]), 0.286
        far = shoulder + distance * np.array([0.6, 0.0, -0.8]) - [0, 0, wrist_above_tool]
        near = np.array([-0.1, 0.3, 0.24])
        openings = np.full(2, 0.03)
        right = plan.ArmPlan(np.stack([near * [1, -1, 1], far]), 0.0, openings)
        return {"L": plan.ArmPlan(np.stack([near, near]), 0.0, openings), "R": right}

    assert plan.within_reach(plans(0.8099))
    assert not plan.within_reach(plans(0.8101))


@pytest.mark.parametrize("task", scene.TASKS)
def test_every_plan_within_reach_is_solved_and_rounded(task):
    for seed in range(3):
        _, path = plan_of(task, seed)
        np.testing.assert_array_equal(path, path.round(6))
        limits = np.tile(np.r_[np.deg2rad([170, 120, 170, 120, 170, 120, 175]), np.inf], 2)
        assert (np.abs(path) < limits).all()
        # The gripper points down at every way-point of both arms.
        for row in path:
            poses = forward_kinematics(row)
            for arm in "LR":
                down = poses[f"{arm}_tcp"][:3, 2]
                assert np.arccos(np.clip(-down[2], -1, 1)) < np.deg2rad(0.5)


def test_rounding_hides_what_differs_between_builds_of_linear_algebra(monkeypatch):
    def almost(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return solve(a, b) * (1 + 1e-13 * rng.uniform(-1, 1, b.shape))

    rng, solve = np.random.default_rng(0), np.linalg.solve
    _, expected = plan_of("can", 1)
    monkeypatch.setattr(np.linalg, "solve", almost)
    _, path = plan_of("can", 1)
    np.testing.assert_array_equal(path, expected)
    monkeypatch.setattr(plan, "TARGET_DIGITS", 17)
    _, unrounded = plan_of("can", 1)
    assert (unrounded != expected).any()


def test_an_unreachable_way_point_is_refused_and_not_approximated():
    model, _ = plan_of("push", 0)
    arm = plan.ArmPlan(np.array([[0.5, 0.33, 0.3]]), 0.0, np.array([0.03]))
    other = plan.ArmPlan(np.array([[-0.05, -0.3, 0.24]]), 0.0, np.array([0.03]))
    assert plan.joint_path(model, {"L": arm, "R": other}) is None


@pytest.mark.parametrize("yaw", np.linspace(-7, 7, 29).tolist())
def test_easiest_yaw_is_a_half_turn_away_at_most_from_home(yaw):
    chosen = plan.easiest_yaw(yaw)
    assert abs(chosen - np.pi) <= np.pi / 2 + 1e-9
    assert np.sin(chosen - yaw) == pytest.approx(0, abs=1e-9)


def test_arms_that_touch_are_refused():
    model, _ = plan_of("push", 0)
    start = np.array([[-0.05, 0.15, 0.24], [-0.05, 0.0, 0.24]])
    openings = np.full(2, 0.03)
    plans = {
        "L": plan.ArmPlan(start, 0.0, openings),
        "R": plan.ArmPlan(start * [1, -1, 1], 0.0, openings),
    }
    path = plan.joint_path(model, plans)
    assert path is not None
    assert clips.run_physics(model, path) is None
    assert clips.run_physics(model, path[[0, 0]]) is not None


# --- physics: the recipe's numbers -------------------------------------------------------------


@pytest.mark.parametrize(("task", "tracking"), [("push", 0.018), ("can", 0.025), ("sweep", 0.042)])
def test_objects_move_and_arms_follow_their_targets(task, tracking, long):
    for seed in range(12 if long else 2):
        clip = clips.simulate_clip(task, steps=20, size=SIZE, seed=(seed, 7))
        joints = clip.states[:, clips.joint_addresses(clip.model)]
        lag = np.abs(joints[1:] - clip.targets[:-1])
        assert lag[:, [*range(7), *range(8, 15)]].max() < tracking
        assert lag[:, [7, 15]].max() < 0.014
        poses = clips.frame_poses(clip.model, clip.states, scene.object_names(task))
        place = poses[:, :, :3, 3]
        moved = np.linalg.norm(place[-1, :, :2] - place[0, :, :2], axis=-1).max()
        lifted = (place[..., 2] - place[:1, :, 2]).max()
        low, high = {"push": (0.10, 0.22), "can": (0.0, 0.12), "sweep": (0.05, 0.40)}[task]
        assert low < moved < high
        if task == "can":
            assert 0.10 < lifted < 0.24
        assert clips.is_reached(task, poses)
        # Nothing fell off the table.
        assert place[..., 2].min() > 0.0


@pytest.mark.parametrize(
    ("task", "move", "reached"),
    [
        ("push", (0.06, 0, 0), True),
        ("push", (0.04, 0, 0), False),
        ("push", (0, 0, 0.1), False),
        ("sweep", (0, -0.06, 0), True),
        ("can", (0, 0, 0.06), True),
        ("can", (0.1, 0, 0.04), False),
    ],
)
def test_success_means_a_moved_object_or_a_lifted_can(task, move, reached):
    poses = np.tile(np.eye(4, dtype=np.float32), (3, 2, 1, 1))
    poses[1:, 1, :3, 3] = move
    assert clips.is_reached(task, poses) is reached


# --- images ------------------------------------------------------------------------------------


def unproject(arrays: dict[str, np.ndarray], camera: str) -> np.ndarray:
    """World points of every pixel of a camera (f h w 3), in float64."""
    depth = arrays[f"cameras/{camera}/depth"].astype(np.float64)
    pixels = np.stack(np.meshgrid(np.arange(SIZE[1]) + 0.5, np.arange(SIZE[0]) + 0.5), axis=-1)
    pixels = np.concatenate([pixels, np.ones((*SIZE, 1))], axis=-1)
    rays = pixels @ np.linalg.inv(arrays[f"cameras/{camera}/intrinsics"]).T
    pose = arrays[f"cameras/{camera}/camera_to_world"]
    return (depth[..., None] * rays[None]) @ pose[:3, :3].T + pose[:3, 3]


def table_pixels(clip: clips.Clip, frame: int) -> np.ndarray:
    """Which pixels of every camera show the table's top, by MuJoCo's own geom ids (v h w)."""
    data = mujoco.MjData(clip.model)
    data.qpos[:] = clip.states[frame]
    mujoco.mj_forward(clip.model, data)
    with mujoco.Renderer(clip.model, *SIZE) as renderer:
        renderer.enable_segmentation_rendering()
        ids = []
        for camera in scene.CAMERAS:
            renderer.update_scene(data, camera)
            ids.append(renderer.render()[..., 0].copy())
    return np.stack(ids) == clip.model.geom("table").id


def test_the_table_is_the_plane_z_0_in_both_cameras(clip, arrays):
    table = table_pixels(clip, 0)
    for view, camera in enumerate(scene.CAMERAS):
        points = unproject(arrays, camera)[0][table[view]]
        points = points[(np.abs(points[:, 0]) < 0.53) & (np.abs(points[:, 1]) < 0.73)]
        assert len(points) > 1000
        assert np.abs(points[:, 2]).max() < 3e-6


def test_cameras_agree_on_robot_and_objects(clip, arrays):
    points = unproject(arrays, "cam0")
    off_table = (points[..., 2] > 0.01) & (points[..., 0] > -0.75)
    matrix, pose = (arrays[f"cameras/cam1/{k}"] for k in ("intrinsics", "camera_to_world"))
    frame = np.nonzero(off_table)[0]
    local = (points[off_table] - pose[:3, 3]) @ pose[:3, :3]
    pixel = local @ matrix.T
    j, i = (np.floor(pixel[:, k] / pixel[:, 2]).astype(int) for k in (0, 1))
    seen = (i >= 1) & (i < SIZE[0] - 1) & (j >= 1) & (j < SIZE[1] - 1)
    assert seen.sum() > 5000
    depth = arrays["cameras/cam1/depth"].astype(np.float64)
    depth[depth == 0] = np.inf
    around = [depth[frame[seen], i[seen] + a, j[seen] + b] for a in (-1, 0, 1) for b in (-1, 0, 1)]
    in_front = np.min(around, axis=0) - local[seen, 2]
    # No point of camera 0 floats in front of what camera 1 sees; some show the other side.
    assert in_front.max() < 0.02
    difference = np.abs(depth[frame[seen], i[seen], j[seen]] - local[seen, 2])
    visible = difference < 0.02
    assert np.median(difference[visible]) < 0.006


def test_link_frames_project_behind_the_surface_of_their_own_links(arrays):
    names = list(scene.link_parents())
    # Tool centres and fingertips lie outside the links' bodies.
    inner = [k for k, name in enumerate(names) if "tcp" not in name and "tip" not in name]
    origins = arrays["robot/link_to_world"][..., :3, 3][:, inner].astype(np.float64)
    for camera in scene.CAMERAS:
        matrix, pose = (arrays[f"cameras/{camera}/{k}"] for k in ("intrinsics", "camera_to_world"))
        local = (origins - pose[:3, 3]) @ pose[:3, :3]
        pixel = local @ matrix.T
        j, i = (np.floor(pixel[..., k] / pixel[..., 2]).astype(int) for k in (0, 1))
        seen = (i >= 0) & (i < SIZE[0]) & (j >= 0) & (j < SIZE[1])
        frame = np.nonzero(seen)[0]
        depth = arrays[f"cameras/{camera}/depth"][frame, i[seen], j[seen]]
        assert seen.mean() > 0.5
        # A frame lies inside its link or behind something nearer: never in front of a surface.
        assert (local[seen][:, 2] - depth).min() > 0.02


def test_sky_has_no_depth_and_everything_that_matters_is_in_the_box(clip, arrays):
    low, high = np.array(scene.WORKSPACE_MIN), np.array(scene.WORKSPACE_MAX)
    links = arrays["robot/link_to_world"][..., :3, 3]
    objects = arrays["truth/object_to_world"][..., :3, 3]
    for points in (links, objects, arrays["robot/target_link_to_world"][..., :3, 3]):
        assert (points > low + 0.02).all()
        assert (points < high - 0.02).all()
    depth = arrays["cameras/cam0/depth"]
    assert depth.max() < 11.99
    assert (depth == 0).any()
    # Floor and wall are outside, the table's whole top is inside.
    points = unproject(arrays, "cam0")[0]
    table = table_pixels(clip, 0)[0]
    assert ((points[table] > low) & (points[table] < high)).all()
    assert ((points > low) & (points < high)).all(-1).mean() < 0.95


# --- the data set ------------------------------------------------------------------------------

ARGUMENTS: dict[str, Any] = {"episodes": 4, "steps": 2, "size": (24, 32), "seed": 5}


def content(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if NO_RENDERING:
        pytest.skip(NO_RENDERING)
    path = tmp_path_factory.mktemp("bimanual") / "one-worker"
    bimanual.simulate(path, **ARGUMENTS, workers=1)
    return path


def test_the_data_set_says_what_made_it(reference):
    dataset = Dataset(reference)
    source = dataset.info.raw["source"]
    assert source["mujoco"] == mujoco.__version__
    assert source["numpy"] == np.__version__
    assert (
        "--episodes 4 --steps 2 --tasks push,can,sweep --size 24x32 --seed 5" in (source["command"])
    )
    assert str(reference) not in (reference / "dataset.json").read_text()
    assert [e.task for e in dataset.episodes] == ["push", "can", "sweep", "push"]
    assert [e.split for e in dataset.episodes] == ["train"] * 2 + ["validation", "test"]
    assert {e.length for e in dataset.episodes} == {3}
    assert dataset.rate_hz == 2.0
    np.testing.assert_array_equal(dataset.read(3, "time_s"), [0, 0.5, 1])
    targets = dataset.read(3, "robot/joint_targets")
    np.testing.assert_array_equal(targets[-1], targets[-2])
    assert dataset.read(2, "truth/object_to_world").shape == (3, 6, 4, 4)


def test_every_split_of_a_larger_data_set_meets_every_task():
    job = bimanual._Job(Path(), 60, 20, scene.TASKS, (24, 32), 0)
    for digit in (8, 9):
        assert {job.task(n) for n in range(digit, 60, 10)} == set(scene.TASKS)
    two = bimanual._Job(Path(), 60, 20, ("push", "can"), (24, 32), 0)
    assert {two.task(n) for n in range(9, 60, 10)} == {"push", "can"}


@needs_rendering
def test_a_killed_worker_loses_nothing_and_workers_do_not_change_the_bytes(reference, tmp_path):
    path = tmp_path / "two-workers"
    caught: list[BaseException] = []

    def run() -> None:
        try:
            bimanual.simulate(path, **ARGUMENTS, workers=2)
        except UserError as error:
            caught.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive() and not list(path.glob("episodes/0*")):
        time.sleep(0.005)
    for child in multiprocessing.active_children():
        child.kill()
    thread.join()
    assert "worker was killed" in str(caught[0])
    assert "same command" in str(caught[0])
    finished = {f.name: f.stat().st_mtime_ns for f in path.glob("episodes/0*")}
    assert 1 <= len(finished) < 4
    bimanual.simulate(path, **ARGUMENTS, workers=2)
    assert content(path) == content(reference)
    # What was finished before is kept, not written again.
    assert (
        finished.items() <= {f.name: f.stat().st_mtime_ns for f in path.glob("episodes/0*")}.items()
    )


_RUN = "from hdvpd.data.simulation import bimanual; import sys; bimanual.simulate(sys.argv[1], "
_RUN += "episodes=4, steps=2, size=(24, 32), seed=5, workers=2)"


@needs_rendering
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="needs /proc to list processes")
def test_a_killed_command_leaves_no_processes_and_is_completed_by_running_it_again(
    reference, tmp_path
):
    path = tmp_path / "killed"
    script = tmp_path / "run.py"
    script.write_text(f'if __name__ == "__main__":\n    {_RUN}\n')
    command = subprocess.Popen([sys.executable, str(script), str(path)])
    while not list(path.glob("episodes/0*")):
        assert command.poll() is None
        time.sleep(0.005)
    listed = Path(f"/proc/{command.pid}/task/{command.pid}/children").read_text().split()
    os.kill(command.pid, signal.SIGKILL)
    command.wait()
    while any(_is_running(int(pid)) for pid in listed):
        time.sleep(0.01)
    bimanual.simulate(path, **ARGUMENTS, workers=1)
    assert content(path) == content(reference)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_finished_data_set_is_left_as_it_is(reference):
    before = {f: f.stat().st_mtime_ns for f in reference.rglob("*")}
    bimanual.simulate(reference, **ARGUMENTS, workers=2)
    assert {f: f.stat().st_mtime_ns for f in reference.rglob("*")} == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 3}, ["--steps 2", "--steps 3", "another --out"]),
        ({"seed": 6}, ["--seed 5", "--seed 6"]),
        ({"size": (32, 32)}, ["--size 24x32"]),
        ({"tasks": ("push",)}, ["push,can,sweep"]),
        ({"episodes": 3}, ["--episodes 4", "now 3"]),
        ({"episodes": 12}, ["--episodes 4", "ten or more"]),
    ],
)
def test_another_data_set_in_the_folder_is_refused_and_untouched(reference, change, words):
    before = content(reference)
    with pytest.raises(UserError) as caught:
        bimanual.simulate(reference, **(ARGUMENTS | change), workers=1)
    for word in words:
        assert word in str(caught.value)
    assert content(reference) == before


@needs_rendering
def test_other_versions_may_not_complete_a_data_set(reference, tmp_path):
    path = Path(shutil.copytree(reference, tmp_path / "old"))
    shutil.rmtree(path / "episodes/000003")
    raw = sealed.loads((path / "dataset.json").read_text())
    raw["source"]["mujoco"] = "3.3.0"
    (path / "dataset.json").write_text(json.dumps(raw))
    with pytest.raises(UserError, match=r"source\.mujoco is '3\.3\.0'"):
        bimanual.simulate(path, **ARGUMENTS, workers=1)


def test_a_data_set_of_ten_can_grow_and_equals_one_written_at_once(tmp_path, monkeypatch):
    def write(job: Any, number: int) -> int:
        meta = {"length": 3, "split": schema.split_of(number, job.episodes)}
        writer.write_episode(job.out, number, meta, {"time_s": np.arange(3.0)})
        return number

    monkeypatch.setattr(bimanual, "_write_clip", write)
    monkeypatch.setattr(bimanual, "check_rendering", lambda: "")
    bimanual.simulate(tmp_path / "grown", episodes=10)
    bimanual.simulate(tmp_path / "grown", episodes=23)
    bimanual.simulate(tmp_path / "at-once", episodes=23)
    assert content(tmp_path / "grown") == content(tmp_path / "at-once")


def test_an_interrupt_says_what_is_kept_and_is_passed_on(tmp_path, monkeypatch, capsys):
    def write(job: Any, number: int) -> int:
        if number == 2:
            raise KeyboardInterrupt
        writer.write_episode(job.out, number, {"length": 1, "split": "train"}, {})
        return number

    monkeypatch.setattr(bimanual, "_write_clip", write)
    monkeypatch.setattr(bimanual, "check_rendering", lambda: "")
    with pytest.raises(KeyboardInterrupt):
        bimanual.simulate(tmp_path / "new", episodes=5)
    words = capsys.readouterr().out
    assert "2 of 5 episodes" in words
    assert "the same command continues" in words


def test_a_folder_that_is_no_data_set_is_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="is no data set"):
        bimanual.simulate(tmp_path, **ARGUMENTS)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tasks": ("push", "pull")}, ["'pull'", "push, can, sweep"]),
        ({"tasks": ()}, ["--tasks"]),
        ({"tasks": ("push", "push")}, ["once each"]),
        ({"size": (8, 99)}, ["8x99", "16"]),
        ({"episodes": 0}, ["--episodes = 0", "at least 1"]),
        ({"steps": 1}, ["--steps = 1"]),
        ({"workers": 0}, ["--workers = 0"]),
        ({"seed": -1}, ["--seed = -1"]),
    ],
)
def test_impossible_arguments_are_one_message_and_write_nothing(tmp_path, change, words):
    with pytest.raises(UserError) as caught:
        bimanual.simulate(tmp_path / "new", **(ARGUMENTS | change))
    for word in words:
        assert word in str(caught.value)
    assert not (tmp_path / "new").exists()


def test_without_mujoco_the_remedy_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mujoco", None)
    with pytest.raises(UserError, match=r"in the clone, run: pip install .* -e '\.\[sim\]'"):
        bimanual.simulate(tmp_path / "new", **ARGUMENTS)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("backend", ["nonsense", "disable"])
def test_without_a_rendering_backend_the_remedy_is_named_once(tmp_path, backend):
    code = (
        "from hdvpd.data.simulation import bimanual\nfrom hdvpd.basics.errors import UserError\n"
        "import sys\n"
        "try:\n  bimanual.simulate(sys.argv[1], episodes=2, workers=2)\n"
        "except UserError as error:\n  print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "new")],
        env=os.environ | {"MUJOCO_GL": backend},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"MUJOCO_GL={backend}" in done.stdout
    assert "apt-get install libegl1" in done.stdout
    assert done.stdout.count("\n") == 1
    assert not (tmp_path / "new").exists()
