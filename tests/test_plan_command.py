"""`hdvpd plan` and the studies of planning at debug size: what they write, what they refuse."""

import dataclasses
import json
import re
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
from extras import needed

from hdvpd.__main__ import HDVPD
from hdvpd.__main__ import main as command
from hdvpd.commands.plan import PlanTask
from hdvpd.errors import UserError

needed("mujoco")

import hdvpd  # noqa: E402
from hdvpd.planning import command as planning  # noqa: E402
from hdvpd.planning.controls import Chance, NothingMoves, Simulator, ToolDistance  # noqa: E402
from hdvpd.planning.costs import GoalPlace, Lift  # noqa: E402
from hdvpd.planning.gradients import GradientPlanner, make_pull_back  # noqa: E402
from hdvpd.planning.planner import Planner  # noqa: E402
from hdvpd.planning.skills import Grasp, Push  # noqa: E402
from hdvpd.planning.solvers import ICEM  # noqa: E402
from hdvpd.planning.trials import begin_trial, skill  # noqa: E402
from hdvpd.world.state import near  # noqa: E402

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


def test_mistakes_are_one_message(world, arms_run, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("hdvpd.planning.command.load", lambda run, step: world)
    out = tmp_path / "out"

    def refused(*words: str) -> str:
        assert command(["plan", str(arms_run), "--out", str(out), *words]) == 2
        assert not out.exists()
        text = capsys.readouterr().err
        assert text.count("\n") == 1
        return text

    assert "outside the workspace" in refused("--task", "push", "--goal", "3", "0")
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
    (lines,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    for line in lines.splitlines():
        assert isinstance(HDVPD.parse(shlex.split(line)[1:]), PlanTask)


def test_the_simulator_plans_what_it_then_does(world, state, trial):
    robot, rng = world.robot, np.random.default_rng(1)
    space = skill(trial, robot, HORIZON, trial.object_to_world[:3, 3])
    goal = trial.object_to_world[:2, 3] - [0.0, 0.05 * np.sign(trial.object_to_world[1, 3])]
    cost = GoalPlace(trial.place, (*goal, np.nan))
    plan = Planner(Simulator(trial, robot), cost, space, ICEM(6), 1).plan(state, rng)
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


def test_the_studies_go_on_where_they_were_stopped(world, tmp_path, monkeypatch, capsys):
    from studies import closed_loop, ranking
    from studies.settings import ClosedLoopSettings, RankingSettings

    monkeypatch.setattr(ranking, "load", lambda run: world)
    monkeypatch.setattr(closed_loop, "load", lambda run: world)
    settings = RankingSettings(tasks="push", starts=2, plans=3, horizon=HORIZON)
    ranking.main(tmp_path / "ranking", settings)
    kept = (tmp_path / "ranking" / "starts.jsonl").read_text().splitlines()
    (tmp_path / "ranking" / "starts.jsonl").write_text(kept[0] + '\n{"task": "pu')
    monkeypatch.setattr(ranking, "rank_start", lambda *_: json.loads(kept[1]))
    ranking.main(tmp_path / "ranking", settings)
    assert (tmp_path / "ranking" / "ranking.csv").read_text().count("\n") == 1 + 5
    with pytest.raises(UserError, match="with other settings"):
        ranking.main(tmp_path / "ranking", RankingSettings(tasks="push", starts=3))

    names = ("model", "simulator", "random", "nothing moves", "tool path")
    loop = ClosedLoopSettings(
        tasks="push", starts=1, steps=HORIZON, samples=2, controllers=",".join(names), every=4
    )
    closed_loop.main(tmp_path / "loop", loop)
    lines = (tmp_path / "loop" / "starts.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["controller"] for entry in entries] == list(names)
    assert all(len(entry["costs"]) == HORIZON + 1 for entry in entries)
    assert (tmp_path / "loop" / "videos" / "push-0.mp4").stat().st_size > 0
    monkeypatch.setattr(closed_loop, "control", lambda *_: pytest.fail("known already"))
    closed_loop.main(tmp_path / "loop", loop)
    assert "what happened" in capsys.readouterr().out


def test_failures_have_causes():
    from studies.closed_loop import cause

    def entry(task, *costs, touched=False):
        return {"task": task, "costs": costs, "touched": touched}

    assert cause(entry("push", 0.1, 0.1, 0.099)) == "never moved"
    assert cause(entry("push", 0.1, 0.08, 0.15)) == "ended farther away"
    assert cause(entry("push", 0.1, 0.08, 0.05)) == "stopped short or beside the goal"
    assert cause(entry("push", 0.1, touched=True)) == "the arms touched"
    assert cause(entry("can", 0.0, -0.005)) == "never lifted"
    assert cause(entry("can", 0.0, -0.06, 0.0)) == "dropped"
    assert cause(entry("can", 0.0, -0.03, -0.06)) == "not lifted enough"
