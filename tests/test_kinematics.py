import itertools

import jax.numpy as jnp
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hdvpd.data import schema
from hdvpd.data.kinematics import (
    POINTS_PER_SEGMENT,
    Skeleton,
    kinematic_points,
    point_grippers,
    robot_points,
)
from hdvpd.data.simulation import scene


@pytest.fixture
def skeleton() -> Skeleton:
    return Skeleton(
        points=(2, 0),
        segments=((0, 1), (1, 2)),
        grippers=(1, -1, *[-1] * 4, *[1] * 4),
        gripper_units=(0.05, 1.0, *[1.0] * 4, *[0.05] * 4),
    )


@pytest.fixture
def links() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(5, 2, 3, 3)).astype(np.float32)


def test_points_are_link_origins_then_fifths_of_every_segment(skeleton, links):
    expected = np.zeros((5, 2, 10, 3))
    for i in range(5):
        for j in range(2):
            base, elbow, tip = links[i, j].astype(np.float64)
            rows = [tip, base]
            rows += [base + m / 5 * (elbow - base) for m in (1, 2, 3, 4)]
            rows += [elbow + m / 5 * (tip - elbow) for m in (1, 2, 3, 4)]
            expected[i, j] = rows
    points = kinematic_points(links, skeleton)
    assert points.dtype == np.float32
    np.testing.assert_allclose(points, expected, atol=1e-6)
    assert points.shape[-2] == skeleton.num_points


def test_points_have_the_axes_of_their_own_link_or_the_first_of_their_segment(skeleton, links):
    poses = np.tile(np.eye(4), (5, 2, 3, 1, 1))
    turns = Rotation.random(30, random_state=0).as_matrix().reshape(5, 2, 3, 3, 3)
    poses[..., :3, :3], poses[..., :3, 3] = turns, links
    points = robot_points(poses, links[..., 0], skeleton)
    assert points.axes.dtype == np.float32
    for row, link in enumerate((2, 0, *[0] * 4, *[1] * 4)):
        np.testing.assert_array_equal(points.axes[:, :, row], np.float32(turns[:, :, link]))
    np.testing.assert_array_equal(points.positions, kinematic_points(links, skeleton))
    np.testing.assert_array_equal(points.gripper, point_grippers(links[..., 0], skeleton))


def test_jax_and_numpy_give_the_same_points(skeleton, links):
    joints = links[..., 0]
    ours = kinematic_points(jnp.asarray(links), skeleton)
    np.testing.assert_array_equal(ours, kinematic_points(links, skeleton))
    grippers = point_grippers(jnp.asarray(joints), skeleton)
    np.testing.assert_allclose(grippers, point_grippers(joints, skeleton), rtol=1e-6)


def test_points_move_rigidly_with_the_links(skeleton, links):
    angle = 0.7
    turn = np.array(
        [[np.cos(angle), -np.sin(angle), 0], [np.sin(angle), np.cos(angle), 0], [0, 0, 1]],
        np.float32,
    )
    shift = np.array([0.3, -2.0, 1.0], np.float32)
    moved = links @ turn.T + shift[None, None, None]
    expected = kinematic_points(links, skeleton) @ turn.T + shift[None, None, None]
    np.testing.assert_allclose(kinematic_points(moved, skeleton), expected, atol=1e-5)


def test_gripper_opening_goes_to_the_points_of_its_arm_in_its_unit_and_zero_elsewhere(skeleton):
    joints = np.array([[7.0, 0.03], [8.0, 0.05]], np.float32)
    expected = [[0.6, 0, 0, 0, 0, 0, 0.6, 0.6, 0.6, 0.6]]
    expected += [[1.0, 0, 0, 0, 0, 0, 1.0, 1.0, 1.0, 1.0]]
    np.testing.assert_allclose(point_grippers(joints, skeleton), expected, rtol=1e-6)


def test_a_robot_of_single_links_has_no_points_between():
    links = np.ones((4, 2, 3), np.float32)
    skeleton = Skeleton(points=(1,), segments=(), grippers=(-1,), gripper_units=(1.0,))
    assert kinematic_points(links, skeleton).shape == (4, 1, 3)


def test_the_two_simulated_arms_have_84_points(tmp_path):
    raw = scene.robot_description()
    robot = schema.parse_robot(raw, tmp_path / "dataset.json")
    assert len(robot.links) == 28
    assert len(robot.joints) == 16
    assert robot.skeleton.num_points == 84
    names = [robot.links[i] for i in robot.skeleton.points]
    for arm in "LR":
        own = {f"{arm}_link{i}" for i in range(1, 8)}
        own |= {f"{arm}_tcp", f"{arm}_tip_l", f"{arm}_tip_r"}
        assert own == {n for n in names if n[0] == arm}
        chain = [f"{arm}_base", *(f"{arm}_link{i}" for i in range(1, 8)), f"{arm}_tcp"]
        pairs = [(robot.links[a], robot.links[b]) for a, b in robot.skeleton.segments]
        assert [p for p in pairs if p[0][0] == arm] == list(itertools.pairwise(chain))
    # 42 points follow each gripper: the left one is joint 7, the right one joint 15.
    assert robot.skeleton.grippers.count(7) == robot.skeleton.grippers.count(15) == 42
    assert set(robot.skeleton.gripper_units) == {0.05}  # their openings are metres
    assert POINTS_PER_SEGMENT == 4
