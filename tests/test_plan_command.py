"""`hdvpd plan` and the studies of planning at debug size: what they write, what they refuse."""

import dataclasses
import functools
import json
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
from extras import needed
from PIL import Image

from hdvpd.__main__ import HDVPD
from hdvpd.__main__ import main as command
from hdvpd.basics.errors import UserError
from hdvpd.commands.plan import PlanTask

needed("mujoco")

import hdvpd  # noqa: E402
from hdvpd.planning import command as planning  # noqa: E402
from hdvpd.planning.costs import GoalPlace, Lift, object_rows  # noqa: E402
from hdvpd.planning.gradients import GradientPlanner, make_pull_back  # noqa: E402
from hdvpd.planning.planner import Plan, Planner  # noqa: E402
from hdvpd.planning.skills import Grasp, Push  # noqa: E402
from hdvpd.planning.solvers import ICEM  # noqa: E402
from hdvpd.planning.trials import Outcome, begin_trial, skill  # noqa: E402
from hdvpd.world.future import Future  # noqa: E402
from hdvpd.world.state import near  # noqa: E402
from studies import resumable  # noqa: E402
from studies.__main__ import PROGRAM, Study  # noqa: E402
from studies.controls import Chance, NothingMoves, Simulator, ToolDistance  # noqa: E402

HORIZON = 4


@pytest.fixture(scope="module")
def world(arms_run):
    """A model of the simulated arms; what it compiles is shared."""
    return hdvpd.load(arms_run)


@pytest.fixture(scope="module")
def trial(world):
    return begin_trial("push", world.size, [3, 0])


@pytest.fixture(scope="module")
def state(world, trial):
    return world.observe(trial.rgb, trial.depth_m, trial.cameras, trial.joints, seed=0)


@pytest.fixture
def begun_once(monkeypatch):
    """Simulate and render every start of the studies once, as the model sees it.

    Nothing changes a trial, and of the images' size depends nothing else.
    """
    monkeypatch.setattr(resumable, "begin_trial", _begun)


def _begun(task, size, seed):
    del size
    return _begun_once(task, (24, 32), tuple(seed))


_begun_once = functools.cache(begin_trial)


@pytest.fixture(scope="module")
def plan_folder(world, tmp_path_factory):
    """What the verb writes."""
    out = tmp_path_factory.mktemp("plans") / "push"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hdvpd.planning.command.load", lambda run, step: world)
        words = "plan arms --task push --samples 3 --iterations 2 --horizon 4 --seed 3 --out"
        assert command([*words.split(), str(out)]) == 0
    return out


def test_a_plan_is_written_with_its_prediction_and_its_outcome(plan_folder):
    told = json.loads((plan_folder / "plan.json").read_text())
    targets = np.load(plan_folder / "plan.npy")
    assert targets.shape == (HORIZON, 16)
    assert told["executed"]
    assert len(told["true_cost"]) == HORIZON
    assert len(told["best_costs"]) == 2
    assert told["predicted_cost"] == told["best_costs"][-1] <= told["best_costs"][0]
    assert told["success"] == (told["true_cost"][-1] <= 0.03)
    for name in ("index.html", "costs.png", "plan/video.mp4", "plan/metrics.csv", "state.npz"):
        assert (plan_folder / name).stat().st_size > 0
    again = begin_trial("push", (24, 32), [3])
    end = again.execute(targets.astype(np.float64))[-1, :2, 3]
    off = np.linalg.norm(end - np.asarray(told["goal"]))
    assert told["true_cost"][-1] == pytest.approx(off, abs=1e-9)


def test_the_expected_rise_is_that_of_the_predicted_future(trial, state):
    can = dataclasses.replace(trial, task="can")  # a can in the place of the block
    rows = object_rows(state, can.place)
    clouds = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], 2, axis=0), state.current)
    still = Future(
        start=state,
        clouds=clouds,
        robot=state.robot,
        expected=state.robot,
        joint_targets=None,
        kinematics=None,
        render_cloud=lambda *_: pytest.fail("nothing is rendered"),
    )
    for rise in (0.2, -0.03):
        positions = clouds.positions.copy()
        positions[-1, rows, 2] += rise
        future = dataclasses.replace(still, clouds=dataclasses.replace(clouds, positions=positions))
        cost = max(planning.LIFT_M - rise, 0.0)
        plan = Plan(np.zeros((2, 16)), cost, (cost,), (cost,), ICEM().start(1, 4), future, 1.0)
        told = planning._report(can, Outcome("can", np.zeros(2)), plan, None)["told"]
        assert told.startswith(f"rise of the can: {rise:.3f} m expected")


def test_mistakes_are_one_message(world, arms_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hdvpd.planning.command.load", lambda run, step: world)
    out = tmp_path / "out"

    def refused(*words: str) -> str:
        assert command(["plan", str(arms_run), "--out", str(out), *words]) == 2
        assert not out.exists()
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    outside = refused("--task", "push", "--goal", "3", "0")
    assert "--goal 3 0 lies outside the workspace" in outside
    assert "give two finite numbers" in refused("--task", "push", "--goal", "nan", "0")
    assert "--task can has none" in refused("--task", "can", "--goal", "0", "0")
    assert "give 4 or more" in refused("--task", "push", "--horizon", "2")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    words = ["plan", str(arms_run), "--task", "push", "--out", str(tmp_path / "mine")]
    assert command(words) == 2
    assert "is no earlier rollout" in capsys.readouterr().err


def test_a_run_of_another_robot_or_of_none_is_one_message(small_world, tmp_path, monkeypatch):
    monkeypatch.setattr("hdvpd.planning.command.load", lambda run, step: small_world)
    with pytest.raises(UserError, match="shoulder, elbow, grip, not of the simulated arms"):
        planning.make_plan(tmp_path, task="push", out=tmp_path / "o", search=planning.Search())
    monkeypatch.setattr(small_world, "setup", None)
    with pytest.raises(UserError, match="has no robot model"):
        planning.make_plan(tmp_path, task="push", out=tmp_path / "o", search=planning.Search())
    assert list(tmp_path.iterdir()) == []


def test_an_object_out_of_sight_and_a_goal_outside_are_one_message(world, state, trial):
    space = skill(trial, world.robot, HORIZON, trial.object_to_world[:3, 3])
    rng = np.random.default_rng(0)
    gone = Planner(world, Lift(near((0.0, 0.0, 5.0), 0.01)), space)
    with pytest.raises(UserError, match="No particle of the state"):
        gone.plan(state, rng)
    far = Planner(world, GoalPlace(trial.place, (0.0, 0.0, 5.0)), space)
    with pytest.raises(UserError, match="outside the workspace"):
        far.plan(state, rng)


def test_the_page_on_planning_runs(world, monkeypatch):
    page = (Path(__file__).parent.parent / "docs" / "planning.md").read_text()
    start = begin_trial("push", world.size, [10_000, 0, 0])
    seen = world.observe(start.rgb, start.depth_m, start.cameras, start.joints, seed=0)
    monkeypatch.setattr("hdvpd.world.loading.load", lambda run: world)
    monkeypatch.setattr(type(world), "state_from", lambda *_, **__: seen)
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {}
    exec(block, names)
    assert names["plan"].joint_targets.shape == (HORIZON, 16)
    told = "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines()
    for words in map(shlex.split, told):
        if words[0] == "hdvpd":
            assert isinstance(HDVPD.parse(words[1:]), PlanTask)
        else:
            assert words[:3] == ["python", "-m", "studies"]
            assert isinstance(PROGRAM.parse(words[3:]), Study)
    assert len(told) == 6


def test_the_simulator_plans_what_it_then_does(world, state, trial):
    robot, rng = world.robot, np.random.default_rng(1)
    space = skill(trial, robot, HORIZON, trial.object_to_world[:3, 3])
    goal = trial.object_to_world[:2, 3] - [0.0, 0.05 * np.sign(trial.object_to_world[1, 3])]
    cost = GoalPlace(trial.place, (*goal, np.nan))
    plan = Planner(Simulator(robot, trial), cost, space, ICEM(6), 1).plan(state, rng)
    poses = trial.execute(plan.joint_targets.astype(np.float64))
    rows = state.current.mask & trial.place(np.asarray(state.current.positions))
    seen = np.asarray(state.current.positions, np.float64)[rows]
    local = (seen - trial.object_to_world[:3, 3]) @ trial.object_to_world[:3, :3]
    end = (local @ poses[-1, :3, :3].T + poses[-1, :3, 3]).mean(0)
    assert plan.cost == pytest.approx(np.linalg.norm(end[:2] - goal), abs=1e-4)
    # Where nothing moves every plan costs the same; the one under way is kept.
    rest = plan.joint_targets.astype(np.float64)
    still = Planner(NothingMoves(robot), cost, space, ICEM(4), 1).plan(state, rng, rest=rest)
    np.testing.assert_array_equal(still.joint_targets, plan.joint_targets)
    drawn = Planner(NothingMoves(robot), Chance(rng), space, ICEM(4), 1).plan(state, rng)
    assert 0 <= drawn.cost <= 1
    nearest = Planner(NothingMoves(robot), ToolDistance(trial.place, trial.arm), space, ICEM(4), 1)
    plan = nearest.plan(state, rng)
    tool = robot.link_poses(plan.joint_targets)[:, robot.links.index(trial.arm), :3, 3]
    assert plan.cost == pytest.approx(np.linalg.norm(tool - seen.mean(0), axis=-1).min(), abs=1e-4)


def test_gradients_go_back_through_the_model(world, state, trial):
    still = np.repeat(state.joints[-1:], HORIZON, axis=0)
    points = world.robot.points(still)
    rng = np.random.default_rng(0)
    shape = (HORIZON, *state.current.positions.shape)
    slope = np.where(state.current.mask[:, None], rng.normal(size=shape), 0).astype(np.float32)
    back = make_pull_back(world)
    found = back(state, points, slope)
    towards = rng.normal(size=points.positions.shape).astype(np.float32)
    ends = []
    for sign in (1, -1):
        moved = dataclasses.replace(points, positions=points.positions + sign * 2e-3 * towards)
        future = world.rollout_points(state, jax.tree.map(lambda x: x[None], moved))
        ends.append(float((future.positions[0].astype(np.float64) * slope).sum()))
    expected = (ends[0] - ends[1]) / 4e-3
    assert float((found.positions * towards).sum()) == pytest.approx(expected, rel=0.1, abs=0.05)
    space = skill(trial, world.robot, HORIZON, trial.object_to_world[:3, 3])
    cost = GoalPlace(trial.place, (0.0, 0.0, np.nan))
    planner = GradientPlanner(world, cost, space, ICEM(2), steps=2)
    plan = planner.plan(state, np.random.default_rng(0))
    assert len(plan.best_costs) == 2
    assert plan.cost <= min(plan.mean_costs)
    low, high = world.robot.limits.T
    assert ((plan.joint_targets >= low - 1e-4) & (plan.joint_targets <= high + 1e-4)).all()


def test_skills_are_ways_about_the_object(world):
    robot, tool = world.robot, np.array([0.0, -0.2, 0.06])
    push = Push(robot, 6, link="L_tcp", centre=(0.0, 0.0, 0.05))
    times, places, openings = push.way(tool, np.zeros(3))
    assert list(times) == [0, 2, 6]
    assert openings is None
    np.testing.assert_allclose(places, [tool, [0, -0.13, 0.06], [0, 0.03, 0.06]])
    # A push under way does not draw back.
    closer = push.way(np.array([0.0, -0.06, 0.06]), np.zeros(3)).places
    np.testing.assert_allclose(closer[1], [0, -0.06, 0.06])
    grasp = Grasp(robot, 6, link="L_tcp", centre=(0.1, 0.2, 0.06), joint="L_grip")
    times, places, openings = grasp.way(tool, np.array([1.0, 0.0, 1.0, 1.0]))
    np.testing.assert_allclose(places[1:], [[0.18, 0.2, 0.07]] * 2 + [[0.18, 0.2, 0.27]])
    assert list(openings) == [0.05, 0.05, 0.02, 0.02]
    wrong = Grasp(robot, 6, link="L_tcp", centre=(0.1, 0.2, 0.06), joint="thumb")
    with pytest.raises(UserError, match="no joint 'thumb' to grasp with"):
        wrong.targets_from(np.zeros(16), np.zeros((1, 1, 4)))


def test_a_trial_goes_on_from_where_it_was(trial):
    space = np.repeat(trial.command[None].astype(np.float64), 3, axis=0)
    space[:, 1] += [0.02, 0.04, 0.06]
    later = trial.advanced(space[:1])
    poses = trial.execute(space)
    np.testing.assert_array_equal(later.execute(space[1:]), poses[1:])
    np.testing.assert_array_equal(later.object_to_world, poses[0])
    np.testing.assert_array_equal(later.rgb[0], trial.rgb[1])
    np.testing.assert_array_equal(later.joints[0], trial.joints[1])


@pytest.mark.usefixtures("begun_once")
def test_the_ranking_study_goes_on_where_it_was_stopped(world, tmp_path, monkeypatch):
    from studies import executions, ranking
    from studies.model_settings import ExecutionSettings, RankingSettings

    monkeypatch.setattr(ranking, "load", lambda run: world)
    plans = {"tasks": "push", "plans": 3, "horizon": HORIZON}
    executions.main(tmp_path / "executed", ExecutionSettings(starts=1, **plans))
    with (tmp_path / "executed" / "starts.jsonl").open("a") as file:
        file.write('{"task": "pu')  # as a crash leaves it
    again = ExecutionSettings(starts=2, **plans)  # a study may be extended
    executions.main(tmp_path / "executed", again)
    kept = (tmp_path / "executed" / "starts.jsonl").read_text().splitlines()
    assert [json.loads(line)["start"] for line in kept] == [0, 1]

    settings = RankingSettings(starts=2, executed=str(tmp_path / "executed"), **plans)
    monkeypatch.setattr(executions, "draw_start", lambda *_: pytest.fail("executed already"))
    ranking.main(tmp_path / "ranking", settings)
    lines = (tmp_path / "ranking" / "starts.jsonl").read_text().splitlines()
    for line, executed in zip(map(json.loads, lines), map(json.loads, kept), strict=True):
        assert executed.items() <= line.items()
        assert np.shape(line["model"]) == np.shape(line["carried along"]) == (HORIZON, 3)
    monkeypatch.setattr(ranking, "rank_start", lambda *_: pytest.fail("known already"))
    ranking.main(tmp_path / "ranking", settings)
    rows = (tmp_path / "ranking" / "ranking.csv").read_text().splitlines()
    assert len(rows) == 1 + len(ranking.PREDICTORS)
    assert rows[-1].startswith(f"push,{HORIZON},simulator,1.000")
    assert "times as often as a random one" in (tmp_path / "ranking" / "ranking.md").read_text()
    with pytest.raises(UserError, match=r"seed was 0, is 1.*--out"):
        ranking.main(tmp_path / "ranking", dataclasses.replace(settings, seed=1))
    with pytest.raises(UserError, match="plans was 3, is 4"):
        ranking.main(tmp_path / "other", dataclasses.replace(settings, plans=4))


def test_scores_of_a_ranking_are_their_definitions():
    from studies.ranking import _scores

    true = [[0.10, 0.02, 0.0204, 0.20]]
    entry = {
        "task": "push",
        "true": true,
        "model": [[0.3, 0.2, 0.1, 0.4]],
        "tool path": [4, 3, 2, 1],
    }
    spearman, kendall, regret, success = _scores(entry, "model", 0)
    # Outcomes that differ by less than a millimetre are ties: ranks 3, 1.5, 1.5, 4.
    assert spearman == pytest.approx(np.corrcoef([3, 2, 1, 4], [3, 1.5, 1.5, 4])[0, 1])
    assert kendall == pytest.approx(5 / np.sqrt(6 * 5))
    assert regret == pytest.approx(0.0004)
    assert success == 1
    assert _scores(entry, "tool path", 0)[2:] == [pytest.approx(0.18), 0]
    assert _scores(entry, "random", 0) == [0, 0, pytest.approx(0.0651), 0.5]
    assert _scores(entry, "simulator", 0) == [1, 1, 0, 1]
    alike = entry | {"true": [[0.1, 0.1, 0.1, 0.1]]}
    assert np.isnan(_scores(alike, "model", 0)[0])


@pytest.mark.usefixtures("begun_once")
def test_the_closed_loop_study_goes_on_where_it_was_stopped(world, tmp_path, monkeypatch, capsys):
    from studies import closed_loop
    from studies.model_settings import ClosedLoopSettings

    monkeypatch.setattr(closed_loop, "load", lambda run: pytest.fail("controls need no model"))
    controls = ("carried along", "simulator", "random", "nothing moves", "tool path")
    loop = ClosedLoopSettings(
        tasks="push", starts=1, steps=HORIZON, samples=2, controllers=",".join(controls), every=4
    )
    closed_loop.main(tmp_path / "controls", loop)

    monkeypatch.setattr(closed_loop, "load", lambda run: world)
    whole = dataclasses.replace(loop, controllers="all", controls=str(tmp_path / "controls"))
    closed_loop.main(tmp_path / "loop", whole)
    lines = (tmp_path / "loop" / "starts.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert sorted(entry["controller"] for entry in entries) == sorted(("model", *controls))
    assert all(len(entry["costs"]) == HORIZON + 1 for entry in entries)
    told = {entry["controller"]: entry["expected"] for entry in entries}
    assert told["random"] is told["tool path"] is None
    assert told["simulator"] in (True, False)
    with Image.open(tmp_path / "loop" / "videos" / "push-0.webp") as film:
        assert film.size == (2 * 2 * 32, 2 * 24)
        assert film.n_frames == HORIZON
    monkeypatch.setattr(closed_loop, "control", lambda *_: pytest.fail("known already"))
    closed_loop.main(tmp_path / "loop", whole)
    assert "failed though success was expected" in capsys.readouterr().out
    with pytest.raises(UserError, match="samples was 2, is 3"):
        closed_loop.main(tmp_path / "third", dataclasses.replace(whole, samples=3))
    with pytest.raises(UserError, match="holds no study"):
        closed_loop.main(tmp_path / "third", dataclasses.replace(whole, controls="gone"))
    assert not (tmp_path / "third").exists()


def test_failures_have_causes():
    from studies.closed_loop import cause

    def entry(task, *costs, touched=False):
        return {"task": task, "costs": costs, "touched": touched}

    assert cause(entry("push", 0.1, 0.1, 0.099)) == "never moved"
    assert cause(entry("push", 0.1, 0.08, 0.15)) == "ended farther away"
    assert cause(entry("push", 0.1, 0.08, 0.05)) == "stopped short or beside"
    assert cause(entry("push", 0.1, touched=True)) == "the arms touched"
    assert cause(entry("can", 0.0, -0.005, 0.03)) == "never lifted"
    assert cause(entry("can", 0.0, -0.06, 0.0)) == "dropped"
    assert cause(entry("can", 0.0, -0.03, -0.06)) == "not lifted enough"
