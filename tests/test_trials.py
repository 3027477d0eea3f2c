"""Trials in the simulator: what plans truly lead to, from a state that can be taken up again."""

from pathlib import Path

import numpy as np
import pytest

from hdvpd.basics.errors import UserError
from hdvpd.data.robot import Robot
from hdvpd.data.simulation import bimanual, clip, scene
from hdvpd.planning.trials import ARRIVED, RATE_STEPS, Outcome, begin_trial, draw_outcome, propose

SIZE = (24, 32)
SEED = [3, 0]


@pytest.fixture(scope="module")
def trial():
    return begin_trial("push", SIZE, SEED)


def test_a_trial_goes_on_exactly_as_the_clip_that_it_is_cut_from(trial):
    whole = clip.simulate_clip("push", steps=RATE_STEPS, size=SIZE, seed=SEED)
    last = ARRIVED["push"]
    expected = clip.frame_poses(whole.model, whole.states, scene.object_names("push"))[:, 0]
    np.testing.assert_array_equal(trial.object_to_world, expected[last].astype(np.float64))
    for _ in range(2):  # executing leaves the start as it was
        poses = trial.execute(whole.path[last + 1 : last + 9])
        np.testing.assert_array_equal(poses, expected[last + 1 : last + 9])
    assert np.linalg.norm(poses[-1, :2, 3] - poses[0, :2, 3]) > 0.02
    joints = whole.states[last - 1 : last + 1, clip.joint_addresses(whole.model)]
    np.testing.assert_array_equal(trial.joints, joints.astype(np.float32))


def test_the_place_is_where_the_cameras_see_the_block(trial):
    from hdvpd.encoders.particles import visible_points

    points, _ = visible_points(
        trial.depth_m[-1, 0], trial.cameras["cam0"],
        scene.WORKSPACE_MIN, scene.WORKSPACE_MAX, 3.0,
    )  # fmt: skip
    on = trial.place(np.asarray(points).reshape(-1, 3))
    assert 3 < on.sum() < 200
    off = np.asarray(points).reshape(-1, 3)[on] - trial.object_to_world[None, :3, 3]
    assert np.linalg.norm(off, axis=-1).max() < 0.1


def test_plans_are_of_mixed_quality_and_within_the_limits(trial):
    robot = Robot(bimanual.robot(), Path("robot.json"))
    plans = propose(trial, robot, 5, 6, np.random.default_rng(0))
    assert plans.shape == (5, 6, 16)
    low, high = robot.limits.T
    assert ((plans >= low) & (plans <= high)).all()
    assert np.ptp(plans[:, -1], axis=0).max() > 0.05
    again = propose(trial, robot, 5, 6, np.random.default_rng(0))
    np.testing.assert_array_equal(plans, again)
    # The arm that does not act stays.
    idle = slice(0, 8) if trial.arm.startswith("R") else slice(8, 16)
    np.testing.assert_allclose(plans[..., idle], trial.command[idle] * np.ones((5, 6, 1)))
    ends = [trial.execute(plan)[-1, :2, 3] for plan in plans[:3]]
    assert np.ptp(ends, axis=0).max() > 0.01


def test_outcomes_are_their_formulas(trial):
    push = Outcome("push", np.array([0.1, 0.2]))
    before, after = np.zeros(3), np.array([[0.1, 0.17, 0.5], [0.4, 0.6, 0.0]])
    np.testing.assert_allclose(push.cost(before, after), [0.03, 0.5])
    assert push.succeeds(np.array([0.03, 0.031])).tolist() == [True, False]
    can = Outcome("can", np.zeros(2))
    np.testing.assert_allclose(can.cost(np.array([0, 0, 0.06]), after), [-0.44, 0.06])
    assert can.succeeds(np.array([-0.08, -0.079])).tolist() == [True, False]
    drawn = draw_outcome(trial, np.array([0.0, -0.3, 0.05]), np.random.default_rng(0))
    assert 0.06 <= np.linalg.norm(drawn.goal - trial.object_to_world[:2, 3]) <= 0.16


def test_a_task_without_plans_is_one_message():
    with pytest.raises(UserError, match="push and can"):
        begin_trial("sweep", SIZE, SEED)
