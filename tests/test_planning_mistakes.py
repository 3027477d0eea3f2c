"""Planning: what no plan can be made of is one message where it is given, not a number later."""

import annotations
import numpy as np
import pytest
from test_planning import HOME, TOOL, PushedPoint, PushedPointWorld, make_state, robot

from hdvpd.basics.errors import UserError
from hdvpd.planning.costs import Clearance, GoalImage, GoalPlace, GoalPose, Lift, Sum
from hdvpd.planning.gradients import GradientPlanner
from hdvpd.planning.planner import Planner, remaining
from hdvpd.planning.skills import Grasp, Push
from hdvpd.planning.solvers import CEM, ICEM, MPPI, SOLVERS
from hdvpd.planning.spaces import JointKnots, ToolWaypoints
from hdvpd.world.state import near

__all__ = ["robot"]

THING = near((0.0, 0.0, 0.0), 0.1)
BOX = {"low": (-0.2, -0.3, 0.05), "high": (0.2, 0.4, 0.3)}
NAN, INF = np.nan, np.inf
DOUBLED = np.diag([2.0, 2.0, 2.0, 1.0])
MIRRORED = np.diag([1.0, 1.0, -1.0, 1.0])


@pytest.fixture(autouse=True)
def unchecked(monkeypatch):
    """Call as users do: annotations are checked in tests alone."""
    monkeypatch.setattr(annotations, "MOST", 0)


def refused(key, make, **values):
    """Require one line about a key, with its value if the test gives it, and a remedy."""
    with pytest.raises(UserError) as error:
        make(**values)
    message = str(error.value)
    assert message.startswith(f"{key} = ")
    assert " is not possible: use " in message or "leave it out" in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("solver", SOLVERS.values())
@pytest.mark.parametrize(
    ("key", "value"),
    [("num_samples", 0), ("num_samples", -3), ("init_std", 0.0), ("init_std", INF)],
)
def test_a_solver_draws_candidates(solver, key, value):
    assert refused(key, solver, **{key: value}).startswith(f"{key} = {value!r} is")


@pytest.mark.parametrize(
    ("solver", "key", "value"),
    [
        (CEM, "num_elites", 0),
        (CEM, "min_std", -0.1),
        (CEM, "momentum", 1.0),
        (ICEM, "num_elites", -1),
        (ICEM, "momentum", NAN),
        (ICEM, "noise_beta", -2.0),
        (ICEM, "keep_fraction", 1.5),
        (ICEM, "keep_fraction", -0.5),
        (MPPI, "temperature", 0.0),
        (MPPI, "temperature", NAN),
    ],
)
def test_a_solver_can_learn(solver, key, value):
    assert refused(key, solver, **{key: value}).startswith(f"{key} = {value!r} is")


@pytest.mark.parametrize(
    ("knots", "std", "key"), [(-1, 0.3, "knots"), (1, -0.3, "std"), (1, NAN, "std")]
)
def test_a_warm_start_goes_forward(knots, std, key):
    refused(key, ICEM().start(4, 2).shifted, knots=knots, std=std)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("horizon", {"horizon": 0}),
        ("knots", {"knots": 0}),
        ("reach", {"reach": -0.4}),
        ("reach", {"reach": 0.0}),
        ("reach", {"reach": NAN}),
        ("reach", {"reach": INF}),
    ],
)
def test_knots_of_joints_reach_somewhere(robot, key, values):
    refused(key, JointKnots, **{"robot": robot, "horizon": 4, "knots": 2} | values)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("knots", {"knots": 0}),
        ("high", {"low": BOX["high"], "high": BOX["low"]}),
        ("high", {"low": (-0.2, 0.5, 0.05)}),  # in one coordinate
        ("high", {"low": BOX["high"]}),
        ("low", {"low": (0.0, NAN, 0.0)}),
        ("low", {"low": (0.0, 0.0)}),
        ("high", {"high": (1.0, 1.0, INF)}),
    ],
)
def test_waypoints_of_a_tool_lie_in_a_box(robot, key, values):
    fitting = {"robot": robot, "horizon": 4, "knots": 2, "link": TOOL} | BOX
    refused(key, ToolWaypoints, **fitting | values)


def test_the_box_of_a_tool_may_be_flat_and_the_default_is_none(robot):
    flat = ToolWaypoints(robot, 4, 2, TOOL, (-0.2, -0.3, 0.1), (0.2, 0.4, 0.1))
    assert flat.variables == 3
    refused("high", ToolWaypoints, robot=robot, horizon=4, knots=2, link=TOOL)


@pytest.mark.parametrize("skill", [Push, Grasp])
@pytest.mark.parametrize(
    ("key", "value"), [("horizon", 3), ("knots", 2), ("knots", 0), ("centre", (0.0, 0.0, NAN))]
)
def test_a_skill_has_one_knot_and_time_enough(robot, skill, key, value):
    refused(key, skill, **{"robot": robot, "horizon": 4, "link": TOOL} | {key: value})


@pytest.mark.parametrize(
    ("key", "cost", "values"),
    [
        ("goal", GoalPlace, {"goal": (NAN, NAN, NAN)}),
        ("goal", GoalPlace, {"goal": (0.2, 0.1)}),
        ("goal", GoalPlace, {"goal": (0.2, 0.1, INF)}),
        ("motion", GoalPose, {"motion": np.eye(3)}),
        ("motion", GoalPose, {"motion": np.full((4, 4), NAN)}),
        ("motion", GoalPose, {"motion": DOUBLED}),
        ("motion", GoalPose, {"motion": MIRRORED}),
        ("motion", GoalPose, {"motion": np.eye(4).T + np.eye(4, k=-3)}),  # transposed
        ("height", Lift, {"height": -0.1}),
        ("height", Lift, {"height": NAN}),
        ("height", Lift, {"height": INF}),
        ("margin", Clearance, {"margin": 0.0}),
        ("margin", Clearance, {"margin": NAN}),
    ],
)
def test_a_cost_of_an_object_tells_plans_apart(key, cost, values):
    refused(key, cost, place=THING, **values)


@pytest.mark.parametrize(
    "image",
    [np.zeros((4, 4, 3)), np.zeros((4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)],
    ids=["floats", "grey", "empty"],
)
def test_a_goal_image_is_of_colours(image):
    refused("type and shape of image", GoalImage, camera="cam0", image=image)


@pytest.mark.parametrize("weights", [(), (NAN,), (1.0, INF)])
def test_a_sum_has_terms_of_finite_weight(weights):
    refused("weights of terms", Sum, terms=tuple((weight, Lift(THING)) for weight in weights))


def space_of(robot):
    return JointKnots(robot, horizon=4, knots=2, joints=("R_j1",))


@pytest.mark.parametrize(
    ("planner", "key", "value"),
    [
        (Planner, "iterations", 0),
        (Planner, "iterations", -1),
        (Planner, "chunk", 0),
        (GradientPlanner, "steps", 0),
        (GradientPlanner, "rate", 0.0),
        (GradientPlanner, "rate", NAN),
    ],
)
def test_a_planner_has_rounds(robot, planner, key, value):
    parts = {"world": PushedPointWorld(robot), "cost": Lift(THING), "space": space_of(robot)}
    refused(key, planner, **parts, **{key: value})


@pytest.mark.parametrize("planner", [Planner, GradientPlanner])
@pytest.mark.parametrize("rng", [0, None, np.random.RandomState(0)], ids=["seed", "none", "old"])
def test_candidates_are_drawn_by_a_generator(robot, planner, rng):
    made = planner(PushedPointWorld(robot), Lift(THING), space_of(robot))
    message = refused("rng", made.plan, state=make_state(np.zeros((1, 3))), rng=rng)
    assert "np.random.default_rng(0)" in message


@pytest.mark.parametrize(
    ("key", "values"),
    [
        ("shape of rest", {"rest": np.zeros((7, 3))}),
        ("shape of rest", {"rest": np.repeat(HOME[None], 3, axis=0)}),  # an end before the plan's
        ("shape of rest", {"rest": np.repeat(HOME[None], 4, axis=0)[None]}),
        ("shape of warm", {"warm": ICEM().start(1, 1)}),
        ("shape of warm", {"warm": ICEM().start(2, 3)}),
    ],
)
def test_what_a_plan_goes_on_from_is_of_its_space(robot, key, values):
    planner = Planner(PushedPoint(robot), Lift(THING), space_of(robot), ICEM(2), 1)
    given = {"state": make_state(np.zeros((1, 3))), "rng": np.random.default_rng(0)}
    refused(key, planner.plan, **given, **values)


@pytest.mark.parametrize("done", [5, 3, -1])
def test_no_more_of_a_plan_is_done_than_it_has(done):
    assert "from 0 to 2" in refused("done", remaining, plan=np.zeros((2, 3)), done=done)


@pytest.mark.parametrize("done", [0, 1, 2])
def test_what_remains_of_a_plan_ends_where_it_ends(done):
    plan = np.arange(6.0).reshape(2, 3)
    left = remaining(plan, done)
    assert left.shape == plan.shape
    np.testing.assert_array_equal(left, plan[np.minimum(np.arange(2) + done, 1)])
