"""A trained model in use: states, rollouts of any joint targets, editing, files."""

import dataclasses
import functools
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
from data_tools import replace_arrays
from extras import needed
from flax import nnx
from PIL import Image

import hdvpd
from hdvpd.__main__ import main
from hdvpd.basics.errors import UserError
from hdvpd.data import corrections, writer
from hdvpd.data.corrections import Corrections, JointCorrection
from hdvpd.data.pinhole import scale_intrinsics
from hdvpd.data.store import Dataset
from hdvpd.data.windows import read_window
from hdvpd.dynamics.tracking import Tracking
from hdvpd.evaluation.rollouts import window_keys
from hdvpd.model.compiled import make_compiler
from hdvpd.planning.costs import GoalImage
from hdvpd.viewing import rollouts
from hdvpd.world import actions, command
from hdvpd.world.base import World
from hdvpd.world.truth import read_truth, score

needed("mujoco")
EPISODE = 9
STEPS = 4


@pytest.fixture(scope="module")
def state(small_world, synthetic_dataset):
    return small_world.state_from(synthetic_dataset, EPISODE)


@pytest.fixture(scope="module")
def targets(small_world, synthetic_dataset):
    return small_world.recorded_targets(synthetic_dataset, EPISODE, 0, STEPS)


@pytest.fixture(scope="module")
def future(small_world, state, targets):
    return small_world.rollout(state, targets)


def test_a_rollout_is_that_of_an_evaluation(small_world, synthetic_dataset, state, future):
    config = small_world.config
    batch = read_window(Dataset(synthetic_dataset), EPISODE, 0, 2 + STEPS, config.data)
    compiled = make_compiler(small_world.model)(small_world.model)
    encode_key, rollout_key = window_keys(config.eval.seed, batch)
    observed = compiled.encode(
        *jax.tree.map(lambda x: x[:2], (batch.frames, batch.robot)), encode_key
    )
    np.testing.assert_allclose(state.current.positions, observed.positions[1], atol=1e-6)
    clouds = compiled.rollout(observed, batch.robot, rollout_key)
    np.testing.assert_allclose(future.positions, clouds.positions, atol=1e-5)
    np.testing.assert_allclose(future.features, clouds.features, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(future.kinematic_points, batch.robot.positions[2:], atol=1e-6)


def test_shapes_and_types_are_as_documented(small_world, state, future):
    particles = small_world.config.model.num_particles
    assert len(future) == STEPS
    assert future.plans is None
    assert future.positions.shape == (STEPS, particles, 3)
    assert future.features.shape == (STEPS, particles, 16)
    assert future.kinematic_points.shape == (STEPS, small_world.scene.num_robot_points, 3)
    frames = future.render("cam0")
    assert frames.shape == (STEPS, 16, 20, 3)
    assert frames.dtype == np.uint8
    assert future.colors.shape == (particles, 3)
    assert list(state.cameras) == list(small_world.cameras) == ["cam0", "cam1"]
    np.testing.assert_allclose(
        small_world.cameras["cam1"].intrinsics, state.cameras["cam1"].intrinsics
    )


def test_a_batch_of_plans_in_chunks_is_each_plan_alone(small_world, state, targets, future):
    still = np.repeat(state.joints[-1:], STEPS, axis=0)
    plans = small_world.rollout(state, np.stack([targets, still, targets]), chunk=2)
    assert plans.plans == 3
    for plan in (0, 2):
        np.testing.assert_allclose(plans[plan].positions, future.positions, atol=1e-5)
    assert np.abs(plans[1].positions - future.positions).max() > 1e-4
    np.testing.assert_array_equal(plans[1].joint_targets, still)
    with pytest.raises(UserError, match="single plan"):
        plans[0][0]


def test_without_features_there_is_nothing_to_render(small_world, state, targets, future):
    light = small_world.rollout(state, targets, features=False)
    np.testing.assert_array_equal(light.positions, future.positions)
    with pytest.raises(UserError, match="without features"):
        light.render("cam0")


def test_steps_one_by_one_are_the_rollout(small_world, state, targets, future):
    first = small_world.rollout(state, targets[:1]).last()
    assert first.start == state.start + 1
    np.testing.assert_allclose(first.current.positions, future.positions[0], atol=1e-5)
    np.testing.assert_array_equal(first.previous.positions, state.current.positions)
    second = small_world.rollout(first, targets[1:2])
    np.testing.assert_allclose(second.positions[0], future.positions[1], atol=2e-5)
    np.testing.assert_array_equal(first.joints, [state.joints[-1], targets[0]])


def test_a_robot_that_lags_goes_on_from_where_it_is_expected(small_world, state, targets):
    model = nnx.merge(*nnx.split(small_world.model))
    points = small_world.scene.num_robot_points
    tracking = Tracking(points)
    tracking.learn(np.full(points, 0.7))
    model.tracking = nnx.data(tracking)
    lagging = World(
        model, small_world.config, small_world.scene, 0, small_world.folder, small_world.setup
    )
    whole, stepped = lagging.rollout(state, targets), state
    planned, expected = whole.kinematic_points, np.asarray(whole.expected.positions)
    before = state.kinematic_points + 0.7 * (planned[0] - state.kinematic_points)
    np.testing.assert_allclose(expected[0], before, atol=1e-6)
    for step, target in enumerate(targets):
        stepped = lagging.rollout(stepped, target[None]).last()
        np.testing.assert_allclose(stepped.kinematic_points, expected[step], atol=1e-5)
        np.testing.assert_allclose(stepped.current.positions, whole.positions[step], atol=5e-5)
    assert np.abs(stepped.kinematic_points - planned[-1]).max() > 1e-3
    both = lagging.rollout(state, np.stack([targets, targets[::-1]]))
    np.testing.assert_allclose(both[0].expected.positions, expected, atol=1e-6)


def test_an_observed_camera_shows_the_same_view_at_another_size(small_world, state, future):
    size = (2 * state.size[0], 3 * state.size[1])
    lens = scale_intrinsics(np.asarray(state.cameras["cam0"].intrinsics), state.size, size)
    own = dataclasses.replace(state.cameras["cam0"], intrinsics=lens.astype(np.float32))
    for subject in (state, future):
        seen = functools.partial(small_world.render, state) if subject is state else future.images
        np.testing.assert_array_equal(seen("cam0", size).depth_m, seen(own, size).depth_m)
    small, large = (small_world.render(state, "cam0", s).depth_m for s in (None, size))
    pooled = large.reshape(state.size[0], 2, state.size[1], 3).mean(axis=(1, 3))
    assert np.median(np.abs(pooled - small)) < 0.02
    cost = GoalImage("cam0", future.images("cam0", size).rgb[-1])
    plans = small_world.rollout(state, np.stack([future.joint_targets] * 2))
    np.testing.assert_allclose(cost(plans), 0, atol=1e-6)


def test_a_camera_on_a_link_goes_where_the_plan_takes_it(small_world, state, future):
    carried = dataclasses.replace(
        future, start=dataclasses.replace(state, mounts={"cam0": "elbow"})
    )
    poses = np.stack([c.camera_to_world for c in carried.cameras_over_time("cam0", STEPS)])
    robot, link = small_world.robot, small_world.robot.links.index("elbow")
    before = robot.link_poses(state.joints[-1])[link]
    after = robot.link_poses(future.joint_targets)[:, link]
    on_link = np.linalg.inv(before) @ state.cameras["cam0"].camera_to_world
    np.testing.assert_allclose(np.linalg.inv(after) @ poses, [on_link] * STEPS, atol=1e-6)
    still = future.cameras_over_time("cam0", STEPS)
    assert all(camera is state.cameras["cam0"] for camera in still)


def test_arrays_give_the_state_of_the_episode(small_world, synthetic_dataset, state):
    data = Dataset(synthetic_dataset)
    names = ("cam0", "cam1")
    rgb, depth_m = (
        np.stack([data.read(EPISODE, f"cameras/{n}/{key}", 0, 2) for n in names], axis=1)
        for key in ("rgb", "depth")
    )
    cameras = {
        n: hdvpd.Camera(*(data.read(EPISODE, f"cameras/{n}/{key}") for key in _CALIBRATION))
        for n in names
    }
    observed = small_world.observe(rgb, depth_m, cameras, state.joints)
    np.testing.assert_allclose(observed.kinematic_points, state.kinematic_points, atol=1e-6)
    for name in names:
        assert np.allclose(observed.cameras[name].intrinsics, state.cameras[name].intrinsics)
    # Drawn by another key, so the particles are others of the same surfaces.
    low, high = state.positions.min(axis=0), state.positions.max(axis=0)
    assert (observed.positions > low - 0.1).all()
    assert (observed.positions < high + 0.1).all()
    for change, words in _MISTAKES.items():
        given = {"rgb": rgb, "depth_m": depth_m, "cameras": cameras, "joints": state.joints}
        with pytest.raises(UserError, match=words):
            small_world.observe(**(given | change(given)))


_CALIBRATION = ("intrinsics", "camera_to_world")
_FIVE = hdvpd.Camera(*(np.tile(np.eye(n), (5, 1, 1)) for n in (3, 4)))
_MISTAKES = {
    lambda g: {"rgb": g["rgb"].astype(np.float32)}: "type float32",
    lambda g: {"depth_m": g["depth_m"][:, :1]}: r"expected \(2, 2, height, width\)",
    lambda g: {"depth_m": np.zeros_like(g["depth_m"])}: "no pixel has valid depth",
    lambda g: {"joints": g["joints"][:, :2]}: "the robot has 3 joints",
    lambda g: {"joints": np.full((2, 3), np.nan)}: "'shoulder' in row 0 is NaN",
    lambda g: {"joints": g["joints"][None]}: "a row for each of the 2",
    lambda g: {"joints": np.degrees(g["joints"]) + 30}: r"row \d, its limits .*degrees",
    lambda g: {"depth_m": 1000 * g["depth_m"]}: "Nothing that was observed .*in metres",
    lambda g: {"cameras": dict.fromkeys(g["cameras"], _FIVE)}: r"intrinsics has shape \(5, 3, 3\)",
}


def test_a_state_of_another_model_is_refused(small_world, state, targets):
    other = dataclasses.replace(
        state, robot=jax.tree.map(lambda x: np.repeat(x, 2, axis=1), state.robot)
    )
    for use in (
        lambda: small_world.rollout(other, targets),
        lambda: small_world.render(other, "cam0"),
    ):
        with pytest.raises(UserError, match="encoded by another model: it has 22 kinematic points"):
            use()


def test_particles_carry_the_colour_they_were_seen_in(state):
    frames = state.frames
    seen = {tuple(color) for color in np.asarray(frames.rgb[1]).reshape(-1, 3)}
    colors = {tuple(color) for color in state.colors}
    assert colors <= seen
    assert len(colors) > 10


def test_colours_belong_to_positions_whatever_is_edited(state, small_world, targets, tmp_path):
    known = dict(zip(map(tuple, state.positions), map(tuple, state.colors), strict=True))
    box = hdvpd.inside((0.1, -0.6, -0.1), (0.6, 0.6, 0.6))
    without, only = state.remove(box), state.keep(box)
    without.save(tmp_path / "without.npz")
    read = hdvpd.State.load(tmp_path / "without.npz")
    for edited in (without, only, without.merge(only), without.thinned(30), read):
        pairs = zip(map(tuple, edited.positions), map(tuple, edited.colors), strict=True)
        assert all(known[place] == color for place, color in pairs)
    future = small_world.rollout(without, targets)
    np.testing.assert_array_equal(future.colors[future.mask], without.colors)
    assert (future.colors[~future.mask] == 0).all()
    assert not future.mask.all()


def test_editing_by_place_changes_both_clouds(state):
    box = hdvpd.inside((0.1, -0.6, -0.1), (0.6, 0.6, 0.6))
    there = int(box(state.positions).sum())
    assert 0 < there < len(state.positions)
    without, only = state.remove(box), state.keep(box)
    assert len(only.positions) == there
    assert len(without.positions) == len(state.positions) - there
    assert not box(without.previous.positions[without.previous.mask]).any()
    back = without.merge(only)
    assert sorted(map(tuple, back.positions)) == sorted(map(tuple, state.positions))
    assert back.current.mask.shape == (256,)  # room grows in steps
    moved = state.move(box, (0.0, 0.0, 0.5))
    np.testing.assert_allclose(moved.positions.sum(0) - state.positions.sum(0),
                               [0, 0, 0.5 * there], atol=1e-3)  # fmt: skip
    turn = np.diag([-1.0, -1.0, 1.0, 1.0])
    turned = state.copy(box, turn)
    assert len(turned.positions) == len(state.positions) + there
    np.testing.assert_allclose(turned.positions[-there:], state.keep(box).positions * [-1, -1, 1])
    np.testing.assert_array_equal(turned.features[-there:], state.keep(box).features)
    for state_, value in ((state, len(state.positions)), (moved, len(state.positions))):
        assert len(state_.positions) == value  # nothing changed in place


def test_a_thinned_state_is_the_same_scene_with_fewer_particles(state):
    few = state.thinned(40)
    for cloud, whole in ((few.previous, state.previous), (few.current, state.current)):
        assert cloud.mask.shape == (40,)
        assert cloud.mask.all()
        known = {tuple(row) for row in np.asarray(whole.positions)[whole.mask].tolist()}
        kept = cloud.positions.tolist()
        assert {tuple(row) for row in kept} <= known
        assert len({tuple(row) for row in kept}) == 40
    reach = np.linalg.norm(few.positions[:, None] - state.positions[None], axis=-1).min(0)
    assert reach.max() < 0.5 * np.ptp(state.positions, axis=0).max()  # no part is left out
    more = state.thinned(200)
    np.testing.assert_array_equal(more.positions, state.positions)
    assert more.current.mask.shape == state.current.mask.shape


def test_an_edited_state_is_rolled_out_and_rendered(small_world, state, targets):
    copied = state.copy(hdvpd.near((0.25, -0.25, 0.0), 0.2), (0.0, 0.05, 0.0))
    future = small_world.rollout(copied, targets)
    assert np.isfinite(future.positions).all()
    view = hdvpd.look_at((0.9, 0.1, 0.7), (0.0, 0.0, 0.0), size=(16, 20))
    pictures = small_world.render(copied, view), small_world.render(state, view)
    assert (pictures[0].rgb != pictures[1].rgb).any()
    assert future.images(view).depth_m.shape == (STEPS, 16, 20)


def test_the_field_of_view_is_that_from_the_upper_to_the_lower_edge():
    view = hdvpd.look_at((0.9, 0.1, 0.7), (0.0, 0.0, 0.0), size=(16, 20), field_of_view_deg=90.0)
    np.testing.assert_allclose(np.diagonal(view.intrinsics), (8.0, 8.0, 1.0), rtol=1e-6)


def test_another_seed_draws_other_particles(small_world, state, synthetic_dataset):
    drawn = [small_world.state_from(synthetic_dataset, EPISODE, seed=seed) for seed in (0, 1)]
    assert (drawn[0].positions == state.positions).all()
    assert (drawn[1].positions != state.positions).any()


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (lambda s: s.remove(hdvpd.near((5.0, 5.0, 5.0), 0.1)), "No particle of the state lies"),
        (lambda s: s.move(hdvpd.inside((-9.0,) * 3, (9.0,) * 3), (1.0, 2.0)), r"shape \(2,\)"),
        (lambda s: s.thinned(0), r"thinned\(0\) would keep no particle"),
        (lambda s: s.thinned(-3), r"thinned\(-3\) would keep no particle"),
        (lambda s: s.save("particles.obj"), r"\.npz or \.ply"),
        (lambda s: hdvpd.State.load("nothing.npz"), "cannot be read as particles"),
        (lambda s: hdvpd.look_at((0.0, 0.0, 1.0), (0.0, 0.0, 0.0), size=(8, 8)), "upright"),
    ],
)
def test_mistakes_with_states_get_one_message(state, what, words):
    with pytest.raises(UserError, match=words):
        what(state)


def test_states_and_futures_are_saved_and_read(state, future, tmp_path):
    state.save(tmp_path / "state.npz")
    read = hdvpd.State.load(tmp_path / "state.npz")
    for a, b in zip(jax.tree.leaves((state.previous, state.current, state.robot, state.cameras)),
                    jax.tree.leaves((read.previous, read.current, read.robot, read.cameras)),
                    strict=True):  # fmt: skip
        np.testing.assert_array_equal(a, b)
    assert (read.size, read.episode, read.frames) == (state.size, EPISODE, None)
    future.save(tmp_path / "future.npz")
    with np.load(tmp_path / "future.npz") as arrays:
        np.testing.assert_array_equal(arrays["positions"], future.positions)
        np.testing.assert_array_equal(arrays["joint_targets"], future.joint_targets)
    with pytest.raises(UserError, match="expected"):
        hdvpd.State.load(tmp_path / "future.npz")
    written = [file.name for file in future.save(tmp_path / "p.ply")]
    assert written == [f"p-{step:02d}.ply" for step in range(STEPS)]


def test_point_clouds_are_read_by_others(state, tmp_path):
    open3d = needed("open3d")
    state.save(tmp_path / "state.ply")
    cloud = open3d.io.read_point_cloud(str(tmp_path / "state.ply"))
    np.testing.assert_allclose(np.asarray(cloud.points), state.positions, atol=1e-7)
    colors = np.rint(np.asarray(cloud.colors) * 255)
    np.testing.assert_array_equal(colors, state.colors)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (np.zeros((2, 4)), r"shape \(2, 4\) does not fit; the robot has 3 joints"),
        (np.zeros(3), "does not fit"),
        (np.zeros((1, 1, 1, 3)), "does not fit"),
        (np.zeros((0, 3)), "does not fit"),
        ([[0, 0, 0], [0, np.inf, 0]], "'elbow' in row 1 is NaN or infinite"),
        ([[0, 0, 0], [0, 2.5, 0]], r"'elbow' is told to go to 2.5 rad in row 1.*-1.5 to 2"),
    ],
)
def test_impossible_targets_get_one_message(small_world, state, values, words):
    with pytest.raises(UserError, match=words):
        small_world.rollout(state, np.asarray(values, np.float32))


def test_impossible_sizes_get_one_message(small_world, state, targets, future):
    with pytest.raises(UserError, match=r"chunk=0.*1 or more"):
        small_world.rollout(state, targets, chunk=0)
    above = hdvpd.look_at((0.9, 0.1, 0.7), (0.0, 0.0, 0.0), size=(16, 20))
    for camera, size in (("cam0", (0, 10)), (above, (0, 10)), ("cam0", (10, -1))):
        for render in (functools.partial(small_world.render, state), future.render):
            with pytest.raises(UserError, match=r"size=.* is none of an image"):
                render(camera, size)


@pytest.fixture
def copied(synthetic_dataset, tmp_path):
    """A data set to be calibrated."""
    return Path(shutil.copytree(synthetic_dataset, tmp_path / "copied"))


def correct(data, **what):
    """Calibrate a data set as `hdvpd data calibrate` would."""
    writer.write_json(data / corrections.FILE_NAME, Corrections(**what).as_plain())


def test_a_robot_that_was_moved_since_the_training_does_not_jump(
    small_world, small_run, copied, tmp_path, targets
):
    base = np.eye(4)
    base[1, 3] = 0.1
    correct(copied, robot=base)
    state = small_world.state_from(copied, EPISODE)
    words = r"10\.0 cm away.*setup\.json.*can be rolled out"
    for start in (state, state.thinned(40)):
        with pytest.raises(UserError, match=words) as told:
            small_world.rollout(start, targets)
        assert str(small_run) in str(told.value)
        assert str(copied) in str(told.value)
    state.save(tmp_path / "state.npz")
    with pytest.raises(UserError, match=r"10\.0 cm away"):
        small_world.rollout(hdvpd.State.load(tmp_path / "state.npz"), targets)
    # What was recorded goes on from where the robot is.
    recorded = small_world.recorded_points(copied, EPISODE, 0, STEPS)
    assert len(small_world.rollout_points(state, recorded)) == STEPS
    base[1, 3] = 0.005  # as far as a model may be off
    correct(copied, robot=base)
    near = small_world.state_from(copied, EPISODE)
    assert len(small_world.rollout(near, targets)) == STEPS


def test_joints_that_were_corrected_since_the_training_are_where_the_model_has_them(
    small_world, copied
):
    moves = {"shoulder": ("base", "elbow", "tcp"), "elbow": ("elbow", "tcp")}
    found = {
        joint: JointCorrection(0.2, links[0], links, np.array([0, 0, 1.0, 0, 0, 0]))
        for joint, links in moves.items()
    }
    before = small_world.state_from(copied, EPISODE)
    correct(copied, joints=found)
    state = small_world.state_from(copied, EPISODE)
    assert np.abs(state.kinematic_points - before.kinematic_points).max() > 0.05
    assert len(small_world.rollout(state, state.joints[-1:])) == 1


def test_a_state_of_a_robot_with_other_joints_is_refused(small_world, state, targets):
    other = dataclasses.replace(state, joints=np.zeros((2, 5)))
    with pytest.raises(UserError, match=r"a robot with 3 joints, the data set .* one with 5"):
        small_world.rollout(other, targets)


def test_faster_than_any_training_data_is_told_with_the_number(small_world, state):
    calm = np.repeat(state.joints[-1:], 2, axis=0)
    assert actions.too_fast(small_world.setup, state.joints[-1], calm) == ""
    fast = calm + [[0, 0, 0], [0.9, 0, 0]]
    told = actions.too_fast(small_world.setup, state.joints[-1], fast)
    assert "'shoulder' is told to move 0.9 in one control step of 0.5 s" in told


def test_a_run_without_robot_model_says_how_to_add_one(small_world, state):
    world = small_world
    setup = dataclasses.replace(world.setup, robot=None)
    bare = type(world)(world.model, world.config, world.scene, world.step, world.folder, setup)
    with pytest.raises(UserError, match=r"has no robot model.*hdvpd data robot"):
        bare.rollout(state, np.zeros((1, 3)))


def test_an_episode_too_short_is_named(small_world, synthetic_dataset):
    with pytest.raises(UserError, match=r"has 7 frames.*at most 5 steps"):
        small_world.recorded_targets(synthetic_dataset, EPISODE, 0, 6)
    with pytest.raises(UserError, match="does not fit"):
        small_world.state_from(synthetic_dataset, EPISODE, 6)


def test_truth_scores_itself_perfectly(small_world, synthetic_dataset, future):
    truth = read_truth(small_world, Dataset(synthetic_dataset), EPISODE, 0, STEPS)
    perfect = [
        hdvpd.Images(truth.rgb[2:, v], truth.depth_m[2:, v], truth.visible[2:, v] + 0.0)
        for v in range(2)
    ]
    rows = score(truth, perfect, ("cam0", "cam1"), 0.1)
    own = [row for row in rows if row["predictor"] == "model"]
    assert len(own) == 2 * STEPS
    assert all(row["ssim"] == pytest.approx(1) and row["depth_abs_rel"] == 0 for row in own)


@pytest.fixture
def loaded(small_world, monkeypatch):
    """Commands take the model that is compiled already."""
    monkeypatch.setattr(command, "load", lambda *_: small_world)


def rollout(small_run, out, *words):
    return main(["rollout", str(small_run), "--episode", "9", "--out", str(out), *words])


def test_the_command_writes_plans_side_by_side(loaded, small_run, state, tmp_path, capsys):
    names = ["elbow", "grip", "shoulder"]
    rows = [[state.joints[-1][1], 0.03, state.joints[-1][0]]] * STEPS
    lines = [",".join(names), *(",".join(map(str, row)) for row in rows)]
    (tmp_path / "wait.csv").write_text("\n".join(lines), encoding="utf-8-sig")
    fast = np.repeat(state.joints[-1:], STEPS, axis=0)
    fast[1:, 0] -= 0.9
    np.save(tmp_path / "fast<b>.npy", fast)
    out = tmp_path / "out"
    files = [str(tmp_path / "wait.csv"), str(tmp_path / "fast<b>.npy")]
    assert rollout(small_run, out, "--steps", str(STEPS), "--actions", "9", *files) == 0
    said = capsys.readouterr().out
    assert "warning: fast<b>: joint 'shoulder' is told to move 0.9" in said
    about = json.loads((out / "rollout.json").read_text())
    assert [p["name"] for p in about["plans"]] == ["recorded", "wait", "fast<b>"]
    page = (out / "index.html").read_text()
    assert page.count("<video") == 3
    assert "<b>" not in page
    for name in ("recorded", "wait"):
        folder = out / name
        assert (folder / "video.mp4").stat().st_size > 500
        assert (folder / "particles.npz").is_file()
        assert (folder / "particles-01.ply").is_file()
        with Image.open(folder / "cam1" / "depth-01.png") as depth:
            assert depth.size == (20, 16)
            assert np.asarray(depth).max() > 500
        with Image.open(folder / "cam1" / "rgb-01.png") as picture:
            assert picture.mode == "RGB"
    assert len((out / "recorded" / "metrics.csv").read_text().splitlines()) == 1 + 2 * 2 * STEPS
    assert not (out / "wait" / "metrics.csv").exists()
    assert not list(tmp_path.glob(".*"))
    # A rollout may be replaced, anything else not.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("precious")
    assert rollout(small_run, tmp_path / "mine") == 2
    assert "no earlier rollout" in capsys.readouterr().err
    for unnamed in (".", "out/.."):
        assert rollout(small_run, unnamed) == 2
        assert "give a folder by its name" in capsys.readouterr().err


def test_what_the_robot_did_is_seen_by_the_cameras_that_it_carried(
    loaded, small_world, small_run, synthetic_dataset, tmp_path, monkeypatch
):
    data, out = Path(shutil.copytree(synthetic_dataset, tmp_path / "data")), tmp_path / "out"
    still = Dataset(data).read(EPISODE, "cameras/cam1/camera_to_world")
    went = np.stack([still] * Dataset(data).episode(EPISODE).length)
    went[:, 0, 3] += 0.02 * np.arange(len(went))
    replace_arrays(data, EPISODE, {"cameras/cam1/camera_to_world": went.astype(still.dtype)})
    words = ("--steps", str(STEPS), "--data", str(data))
    assert rollout(small_run, out, *words) == 0
    monkeypatch.setattr(rollouts, "load", lambda *_: small_world)
    recording = rollouts.RolloutSource(out).load(0)
    seen = np.asarray(recording.camera.camera_to_world)[2:, 1]
    np.testing.assert_allclose(seen, went[2 : 2 + STEPS], atol=1e-6)
    state = small_world.state_from(data, EPISODE)
    points = small_world.recorded_points(data, EPISODE, 0, STEPS)
    last = small_world.rollout_points(state, points).cloud(STEPS - 1)
    pose = went[1 + STEPS].astype(np.float32)
    view = dataclasses.replace(state.cameras["cam1"], camera_to_world=pose)
    expected = small_world.render(dataclasses.replace(state, current=last), view).rgb
    with Image.open(out / "recorded" / "cam1" / f"rgb-{STEPS - 1:02d}.png") as picture:
        np.testing.assert_array_equal(np.asarray(picture), expected)


def test_a_rollout_leaves_those_alone_whose_names_go_on(loaded, small_run, tmp_path):
    others = tmp_path / ".partial-out-2-4711"
    others.mkdir()
    (tmp_path / ".partial-out-4711").mkdir()
    assert rollout(small_run, tmp_path / "out", "--steps", str(STEPS)) == 0
    assert others.is_dir()
    assert not (tmp_path / ".partial-out-4711").exists()


def test_plans_have_names_of_their_own():
    assert command._distinct(["a", "a", "a-2", "b", "a"]) == ["a", "a-3", "a-2", "b", "a-4"]
    files = ["state.npz", "index.html", "rollout.json", ".", ".."]
    assert command._distinct(files) == [f"{name}-2" for name in files]


def test_a_plan_that_is_called_as_a_file_of_the_page_is_written(loaded, small_run, state, tmp_path):
    plans = [tmp_path / f"{name}.npy" for name in ("state.npz", "index.html", "rollout.json")]
    for file in plans:
        np.save(file, np.tile(state.joints[-1], (1, 1)))
    words = ["--actions", *map(str, plans)]
    assert rollout(small_run, tmp_path / "out", *words) == 0
    listed = json.loads((tmp_path / "out" / "rollout.json").read_text())["plans"]
    assert [plan["name"] for plan in listed] == [f"{file.stem}-2" for file in plans]
    assert (tmp_path / "out" / "state.npz").is_file()
    assert all((tmp_path / "out" / plan["name"] / "video.mp4").is_file() for plan in listed)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "0,0,0\n0,0", "row 1 has 2 values"),
        ("a.csv", "shoulder,elbo,grip\n0,0,0", "'elbo' is no joint"),
        ("a.csv", "shoulder,grip,elbow,grip\n0,0,0,0", "once: 'grip' is there 2 times"),
        ("a.csv", "shoulder,grip,grip\n0,0,0", "once: 'grip' is there 2 times"),
        ("a.csv", "shoulder,elbow\n0,0", "once: 'grip' is missing"),
        ("a.csv", "shoulder,elbow,grip,\n0,0,0,", "once: '' is no joint"),
        ("a.csv", "", "no row of joint targets"),
        ("a.csv", "0,0,nan", "is NaN or infinite"),
        ("a.csv", "0,9,0", "its limits are -1.5 to 2"),
        ("a.csv", "\ufeffshoulder,elbo,grip\n0,0,0", "'elbo' is no joint"),
        ("a.npy", "no array", "cannot be read as a .npy array"),
        ("a.npy", "", "cannot be read as a .npy array"),
        ("a.npy", "PK\x03\x04 no archive", "cannot be read as a .npy array"),
        ("a.txt", "0,0,0", "expected a .npy or .csv file"),
        (None, "", "there is no such file"),
    ],
)
def test_action_files_that_do_not_fit_leave_nothing(
    loaded, small_run, tmp_path, capsys, name, content, words
):
    file = tmp_path / (name or "gone.csv")
    if name:
        file.write_text(content)
    assert rollout(small_run, tmp_path / "out", "--actions", str(file)) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    assert not list(tmp_path.glob(".*"))


def test_a_writer_that_fails_leaves_the_earlier_rollout(
    loaded, small_run, tmp_path, monkeypatch, capsys
):
    out = tmp_path / "out"
    out.mkdir()
    (out / "rollout.json").write_text("{}")

    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(command, "write_plan", fail)
    assert rollout(small_run, out, "--steps", str(STEPS)) == 2
    assert "No space left on device" in capsys.readouterr().err
    assert (out / "rollout.json").read_text() == "{}"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_model_that_tells_no_things_apart_cannot_be_stochastic(small_run):
    assert not hdvpd.load(small_run, stochastic=False).config.model.stochastic
    with pytest.raises(UserError, match="stochastic"):
        hdvpd.load(small_run, stochastic=True)
