"""Planning: solvers find optima, inverse kinematics inverts, costs are their formulas."""

import dataclasses

import jax
import numpy as np
import pytest
import scenes

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import ParticleCloud
from hdvpd.data.robot import Robot, describe_robot
from hdvpd.data.simulation import scene
from hdvpd.planning import gradients
from hdvpd.planning.costs import Clearance, GoalPlace, GoalPose, Lift, Smoothness, Sum
from hdvpd.planning.gradients import GradientPlanner
from hdvpd.planning.inverse_kinematics import solve_pose
from hdvpd.planning.planner import Planner
from hdvpd.planning.solvers import CEM, ICEM, MPPI, SOLVERS, RandomShooting, coloured_noise
from hdvpd.planning.spaces import JointKnots, ToolWaypoints
from hdvpd.world.actions import check_actions
from hdvpd.world.base import World
from hdvpd.world.future import Future
from hdvpd.world.state import State, near

HOME = np.array([*scene.HOME, 0.03] * 2)
TOOL = "R_tcp"


@pytest.fixture(scope="module")
def robot(tmp_path_factory):
    description = describe_robot(scene.robot_description(), scene.robot_xml(), scene.joint_moves())
    return Robot(description, tmp_path_factory.mktemp("robot") / "robot.json")


def make_state(positions, joints=HOME):
    cloud = ParticleCloud(
        positions=np.asarray(positions, np.float32),
        features=np.zeros((len(positions), 0), np.float32),
        mask=np.ones(len(positions), bool),
    )
    points = scenes.unturned(np.zeros((2, 1, 3)))
    return State(
        previous=cloud,
        current=cloud,
        colors=np.zeros((len(positions), 3), np.uint8),
        robot=points,
        joints=np.stack([joints, joints]),
        cameras={},
        size=(8, 8),
    )


def make_future(state, positions, targets=None, points=None):
    b, s, n, _ = positions.shape
    if points is None:
        points = np.zeros((b, s, 1, 3))
    return Future(
        start=state,
        clouds=ParticleCloud(
            np.asarray(positions, np.float32),
            np.zeros((b, s, n, 0), np.float32),
            np.ones((b, s, n), bool),
        ),
        robot=scenes.unturned(points),
        expected=scenes.unturned(points),
        joint_targets=targets,
        kinematics=None,
        render_cloud=lambda *_: pytest.fail("nothing is rendered"),
    )


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers_find_the_optimum_of_a_quadratic(name):
    optimum = np.linspace(-0.6, 0.7, 8).reshape(4, 2)
    solver, rng = SOLVERS[name](num_samples=48), np.random.default_rng(0)
    search, best = solver.start(4, 2), np.inf
    for _ in range(12):
        candidates = solver.ask(search, rng)
        assert candidates.shape == (48, 4, 2)
        assert np.abs(candidates).max() <= 1
        costs = ((candidates - optimum) ** 2).sum((1, 2))
        search, best = solver.tell(search, candidates, costs), min(best, costs.min())
    # 576 uniform draws in eight dimensions come about this near; the others must learn.
    assert best < (1.0 if name == "random" else 0.08)


@pytest.mark.parametrize("solver", [RandomShooting(8), CEM(8), ICEM(8), MPPI(8)])
def test_candidates_are_a_function_of_the_generator(solver):
    search = solver.start(3, 2)
    once, again = (solver.ask(search, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(once, again)
    np.testing.assert_array_equal(once[0], search.mean)


def test_icem_tries_its_elites_again():
    solver, rng = ICEM(num_samples=10, num_elites=5, keep_fraction=0.4), np.random.default_rng(0)
    search = solver.start(3, 2)
    candidates = solver.ask(search, rng)
    search = solver.tell(search, candidates, np.arange(10.0)[::-1])
    np.testing.assert_array_equal(solver.ask(search, rng)[1:3], candidates[[9, 8]])


def test_a_cost_that_is_not_finite_moves_nothing():
    solver, rng = MPPI(num_samples=6), np.random.default_rng(0)
    search = solver.start(2, 1)
    candidates = solver.ask(search, rng)
    costs = np.array([np.inf, 1.0, np.inf, 2.0, np.inf, np.inf])
    mean = solver.tell(search, candidates, costs).mean
    assert np.isfinite(mean).all()
    low, high = (f(candidates[[1, 3]], axis=0) for f in (np.min, np.max))
    assert ((mean >= low) & (mean <= high)).all()
    assert solver.tell(search, candidates, np.full(6, np.inf)) is search


def test_a_warm_start_begins_where_the_last_plan_goes_on():
    solver, rng = CEM(num_samples=6, num_elites=2), np.random.default_rng(0)
    search = solver.start(4, 2)
    search = solver.tell(search, solver.ask(search, rng), np.arange(6.0))
    shifted = search.shifted(1, std=0.4)
    np.testing.assert_array_equal(shifted.mean[:3], search.mean[1:])
    np.testing.assert_array_equal(shifted.mean[3], search.mean[3])
    assert (shifted.std >= 0.4).all()
    for done in (4, 7):  # all of it, and more
        over = search.shifted(done, std=0.4)
        np.testing.assert_array_equal(over.mean, np.repeat(search.mean[3:], 4, axis=0))
        assert over.std.shape == search.std.shape
        assert over.elites.shape == search.elites.shape


@pytest.mark.parametrize("beta", [0.0, 1.0, 2.0])
def test_coloured_noise_has_its_variance_and_spectrum(beta):
    noise = coloured_noise((20_000,), 32, beta, np.random.default_rng(0))
    assert noise.shape == (20_000, 32)
    # Relative standard error of a variance of correlated draws: at most sqrt(2 / 20,000) = 1 %.
    np.testing.assert_allclose(noise.var(0), 1, atol=0.05)
    power = (np.abs(np.fft.rfft(noise * np.hanning(32), axis=-1)) ** 2).mean(0)
    slope = np.polyfit(np.log(np.arange(3, 10)), np.log(power[3:10]), 1)[0]
    assert slope == pytest.approx(-beta, abs=0.3)


def test_inverse_kinematics_inverts(robot):
    rng = np.random.default_rng(0)
    number = robot.links.index(TOOL)
    for _ in range(4):
        joints = HOME + rng.uniform(-0.2, 0.2, len(HOME)) * (np.arange(16) % 8 != 7)
        pose = robot.link_poses(joints[None])[0, number]
        solved, missed = solve_pose(robot, TOOL, pose, HOME)
        reached = robot.link_poses(solved[None])[0, number]
        assert missed < 1e-4
        np.testing.assert_allclose(reached, pose, atol=1e-3)
        # The other arm and the openings do not concern the tool.
        np.testing.assert_array_equal(solved[:8], HOME[:8])
        assert solved[15] == HOME[15]
        low, high = robot.limits.T
        assert ((solved >= low) & (solved <= high)).all()


def test_a_pose_out_of_reach_is_approached_and_the_miss_is_told(robot):
    pose = robot.link_poses(HOME[None])[0, robot.links.index(TOOL)].copy()
    pose[0, 3] += 2.0
    solved, missed = solve_pose(robot, TOOL, pose, HOME)
    assert 0.5 < missed < 2.0
    assert np.isfinite(solved).all()
    with pytest.raises(UserError, match="no link 'R_toe'"):
        solve_pose(robot, "R_toe", pose, HOME)


def test_joint_knots_are_linear_between_knots_and_within_limits(robot):
    space = JointKnots(robot, horizon=4, knots=2, reach=0.4, joints=("R_j2", "R_grip"))
    state = make_state(np.zeros((1, 3)))
    candidates = np.array([[[0.5, 0.0], [1.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]]])
    targets = space.joint_targets(state, candidates)
    assert targets.shape == (2, 4, 16)
    np.testing.assert_array_equal(targets[1], np.repeat(HOME[None], 4, axis=0))
    moved = robot.joints.index("R_j2")
    np.testing.assert_allclose(targets[0, :, moved] - HOME[moved], [0.1, 0.2, 0.3, 0.4])
    grip = robot.joints.index("R_grip")
    # 0.03 + 0.4 m is far beyond what the fingers open.
    np.testing.assert_allclose(targets[0, :, grip], [0.03, 0.03, 0.04, 0.05])
    with pytest.raises(UserError, match="no joint 'R_j9'"):
        dataclasses.replace(space, joints=("R_j9",)).joint_targets(state, candidates)


def test_tool_waypoints_are_reached_with_the_orientation_kept(robot):
    number = robot.links.index(TOOL)
    pose = robot.link_poses(HOME[None])[0, number]
    goal = pose[:3, 3] + [0.03, 0.05, -0.04]
    space = ToolWaypoints(
        robot, horizon=3, knots=1, link=TOOL, low=(-0.3, -0.6, 0.0), high=(0.3, 0.6, 0.6)
    )
    candidates = space.normalised(goal)[None, None]
    targets = space.joint_targets(make_state(np.zeros((1, 3))), candidates)
    poses = robot.link_poses(targets[0])[:, number]
    np.testing.assert_allclose(poses[-1, :3, 3], goal, atol=1e-3)
    np.testing.assert_allclose(poses[:, :3, :3], np.repeat(pose[None, :3, :3], 3, 0), atol=2e-3)
    np.testing.assert_allclose(poses[0, :3, 3], pose[:3, 3] + (goal - pose[:3, 3]) / 3, atol=1e-3)


def measured_beyond(robot, joint, by):
    """HOME, but one joint measured beyond its upper limit."""
    joints, column = HOME.copy(), robot.joints.index(joint)
    joints[column] = robot.limits[column, 1] + by
    return joints


@pytest.mark.parametrize("joint", ["R_j4", "L_grip"])  # that moves the tool, and that does not
def test_plans_from_joints_measured_beyond_their_limits_keep_within_them(robot, joint):
    joints = measured_beyond(robot, joint, 0.01)
    state, (low, high) = make_state(np.zeros((1, 3)), joints), robot.limits.T
    candidates = np.random.default_rng(0).uniform(-1, 1, (3, 2, 16))
    tool = robot.link_poses(joints[None])[0, robot.links.index(TOOL), :3, 3]
    box = {"low": tuple(tool - 0.05), "high": tuple(tool + 0.05)}
    spaces = JointKnots(robot, 8, 2), ToolWaypoints(robot, 8, 2, link=TOOL, **box)
    for space in spaces:
        targets = space.joint_targets(state, candidates[..., : space.variables])
        assert ((targets >= low - 1e-12) & (targets <= high + 1e-12)).all(), space
        check_actions(robot, targets)


def test_the_pose_of_joints_beyond_their_limits_is_solved_within_them(robot):
    joints = measured_beyond(robot, "R_j4", 0.01)
    pose = robot.link_poses(joints[None])[0, robot.links.index(TOOL)]
    solved, missed = solve_pose(robot, TOOL, pose, joints)
    low, high = robot.limits.T
    assert ((solved >= low) & (solved <= high)).all()
    assert missed < 0.01


def test_costs_are_their_formulas():
    start = np.array([[0.0, 0, 0], [0.02, 0, 0], [1.0, 1.0, 1.0]])
    state, thing = make_state(start), near((0.01, 0.0, 0.0), 0.1)
    moved = np.stack([start, start + np.array([[0.1, 0.2, 0.05]] * 2 + [[0, 0, 0]])])
    positions = np.stack([np.stack([start, end]) for end in moved])
    future = make_future(state, positions)
    goal = GoalPlace(thing, (0.11, np.nan, 0.05))
    np.testing.assert_allclose(goal(future), [np.hypot(0.1, 0.05), 0], atol=1e-7)
    motion = np.eye(4)
    motion[:3, 3] = [0.1, 0.2, 0.05]
    np.testing.assert_allclose(
        GoalPose(thing, motion)(future), [np.linalg.norm([0.1, 0.2, 0.05]), 0], atol=1e-7
    )
    np.testing.assert_allclose(Lift(thing, 0.08)(future), [0.08, 0.03], atol=1e-7)
    points = np.zeros((2, 2, 1, 3))
    points[:, :, 0] = [0.01, 0.03, 0.0]
    robot_near = make_future(state, positions, points=points)
    between = np.hypot(0.01, 0.03)
    after = np.linalg.norm([0.09 - 0.01 + 0.01, 0.17, 0.05])
    expected = [0.1 - between, (0.1 - between + max(0.1 - after, 0)) / 2]
    np.testing.assert_allclose(Clearance(thing, 0.1)(robot_near), expected, atol=1e-6)
    targets = np.zeros((1, 2, 16)) + HOME
    targets[0, 0, 0] += 0.1
    steps = make_future(state, positions[:1], targets)
    # Second differences of 0, 0, 0.1, 0 in one of 16 joints.
    np.testing.assert_allclose(Smoothness()(steps), [(0.1**2 + 0.2**2) / 32], atol=1e-12)
    both = Sum(((2.0, goal), (0.5, Lift(thing, 0.08))))
    np.testing.assert_allclose(both(future), 2 * goal(future) + 0.5 * np.array([0.08, 0.03]))
    assert not both.needs_images


def test_slopes_are_those_of_differences():
    rng = np.random.default_rng(0)
    start = np.array([[0.0, 0, 0], [0.02, 0, 0], [1.0, 1.0, 1.0]])
    state, thing = make_state(start), near((0.01, 0.0, 0.0), 0.1)
    positions = start[None, None] + rng.normal(0, 0.02, (1, 2, 3, 3))
    goal = GoalPlace(thing, (0.11, np.nan, 0.05))
    cost = Sum(((2.0, goal), (0.5, Lift(thing, 0.2))))
    slope = cost.slope(make_future(state, positions))
    for index in np.ndindex(positions.shape):
        moved = [positions.copy(), positions.copy()]
        moved[0][index] += 1e-2
        moved[1][index] -= 1e-2
        ends = [cost(make_future(state, there))[0] for there in moved]
        assert slope[index] == pytest.approx((ends[0] - ends[1]) / 2e-2, abs=3e-3)
    assert (slope[:, 0] == 0).all()  # only the end counts
    assert (slope[:, 1, 2] == 0).all()  # of the object
    with pytest.raises(UserError, match="Smoothness has no gradient"):
        Smoothness().slope(make_future(state, positions))
    broken = make_future(state, np.full_like(positions, np.nan))
    assert np.isnan(goal(broken)).all()


def test_an_object_that_no_particle_shows_is_one_message():
    state = make_state(np.zeros((3, 3)))
    with pytest.raises(UserError, match="No particle of the state"):
        Sum(((1.0, GoalPlace(near((1.0, 1.0, 1.0), 0.1), (0.0, 0.0, 0.0))),)).check(state)


class PushedPoint:
    """A world in closed form: one particle that goes where the tool goes, and nothing else."""

    def __init__(self, robot):
        self.robot = robot

    def rollout(self, state, joint_targets, *, chunk=1, features=True):
        targets = np.atleast_3d(joint_targets).reshape(-1, *np.shape(joint_targets)[-2:])
        tools = self.robot.link_poses(targets)[:, :, self.robot.links.index(TOOL), :3, 3]
        return make_future(state, tools[:, :, None], targets)


@pytest.mark.parametrize("solver", [CEM(24), ICEM(24), MPPI(24)])
def test_the_planner_brings_a_pushed_point_to_its_goal(robot, solver):
    tool = robot.link_poses(HOME[None])[0, robot.links.index(TOOL), :3, 3]
    goal = tool + [0.06, 0.04, -0.05]
    space = JointKnots(
        robot, horizon=4, knots=1, reach=0.4, joints=tuple(f"R_j{i}" for i in range(1, 8))
    )
    planner = Planner(
        PushedPoint(robot),
        GoalPlace(near(tuple(tool.tolist()), 0.01), tuple(goal.tolist())),
        space,
        solver,
        12,
    )
    state = make_state(tool[None])
    plan = planner.plan(state, np.random.default_rng(0))
    assert plan.cost < 0.02 < np.linalg.norm(goal - tool)
    assert list(plan.best_costs) == sorted(plan.best_costs, reverse=True)
    assert len(plan.best_costs) == 12
    assert plan.joint_targets.shape == (4, 16)
    again = planner.plan(state, np.random.default_rng(0))
    np.testing.assert_array_equal(plan.joint_targets, again.joint_targets)


class PushedPointWorld(PushedPoint, World):
    """The same as a `World`, which gradients go through; where it ends is not known."""

    robot = workspace = None


class Broken(PushedPointWorld):
    """Predicts nothing that is finite."""

    def rollout(self, *arguments, **options):
        future = super().rollout(*arguments, **options)
        clouds = dataclasses.replace(
            future.clouds, positions=np.full_like(future.clouds.positions, np.nan)
        )
        return dataclasses.replace(future, clouds=clouds)


@pytest.mark.parametrize("solver", [RandomShooting(4), CEM(4), ICEM(4), MPPI(4)])
def test_predictions_that_are_never_finite_are_one_message(robot, solver, monkeypatch):
    monkeypatch.setattr(gradients, "make_pull_back", lambda world: lambda _, points, slope: points)
    space = JointKnots(robot, horizon=2, knots=1, joints=("R_j1",))
    cost = Lift(near((0.0, 0.0, 0.0), 0.01))
    for planner in (
        Planner(Broken(robot), cost, space, solver, 2),
        GradientPlanner(Broken(robot), cost, space, solver, 2),
    ):
        with pytest.raises(UserError, match="finite cost"):
            planner.plan(make_state(np.zeros((1, 3))), np.random.default_rng(0))


@pytest.mark.parametrize("broken", [np.inf, np.nan])
def test_a_gradient_that_is_not_finite_once_stops_no_later_step(robot, broken, monkeypatch):
    turned = HOME + 0.1 * (np.asarray(robot.joints) == "R_j1")
    ends = robot.points(np.stack([HOME, turned])).positions
    coordinate = int(np.argmax(np.abs(ends[1] - ends[0])))  # what the joint moves most
    calls = []

    def back(state, points, slope):
        calls.append(slope)
        none = jax.tree.map(np.zeros_like, points)
        none.positions[-1].ravel()[coordinate] = broken if len(calls) == 1 else 1.0
        return none

    monkeypatch.setattr(gradients, "make_pull_back", lambda world: back)
    tool = robot.link_poses(HOME[None])[0, robot.links.index(TOOL), :3, 3]
    cost = GoalPlace(near(tuple(tool.tolist()), 0.01), tuple((tool + [0.06, 0, 0]).tolist()))
    space = JointKnots(robot, horizon=2, knots=1, joints=("R_j1",))
    planner = GradientPlanner(PushedPointWorld(robot), cost, space, ICEM(4), steps=4)
    plan = planner.plan(make_state(tool[None]), np.random.default_rng(0))
    first, still, *later = plan.mean_costs
    assert still == first
    assert len({still, *later}) == 3
