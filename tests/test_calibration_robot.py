"""Where the robot is, by what is seen of it: base, joints, time."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from hdvpd.data.calibration.agreement import measure
from hdvpd.data.calibration.clouds import choose_indexer
from hdvpd.data.calibration.diagnosis import diagnose
from hdvpd.data.calibration.explanation import SCREENING_MOMENTS, explain
from hdvpd.data.calibration.proof_findings import world_findings
from hdvpd.data.calibration.proofs import WorldProofs
from hdvpd.data.calibration.recording import read_sample
from hdvpd.data.calibration.robot_depth import CAP_M, depths, differences, look
from hdvpd.data.calibration.robot_fit import Arm, fit_robot, joint_axes
from hdvpd.data.calibration.robot_shape import DIRECTIONS, settle
from hdvpd.data.calibration.timing import Shift, agreeing, between_frames, robot_shift
from hdvpd.data.calibration.views import Moment, some
from hdvpd.data.pinhole import AXES
from hdvpd.data.robot import read_robot
from hdvpd.data.simulation import synthetic
from hdvpd.data.store import Dataset

INDEX = choose_indexer("scipy")[1]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("robot") / "scene"
    synthetic.write_synthetic_dataset(path, episodes=4, steps=9, height=72, width=96, seed=4)
    return path


@pytest.fixture(scope="module")
def moments(good: Path) -> tuple[Moment, ...]:
    return read_sample(Dataset(good), 4, 4).moments


# --- A body of any shape --------------------------------------------------------------------------


def body(turns: np.ndarray, offset: np.ndarray, radii: np.ndarray, upper: bool):
    """Return where a point is said to be, and what is seen of the body around its true place."""
    centers = np.random.default_rng(1).uniform(-0.2, 0.2, (len(turns), 1, 3)) + [0, 0, 0.6]
    clouds = []
    for center, turn in zip(centers[:, 0], turns, strict=True):
        directions = DIRECTIONS @ turn.T
        points = center + radii[:, None] * directions
        clouds.append([points[directions[:, 2] > 0] if upper else points])

    def place(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return centers + offset + x, turns[:, None]

    return place, clouds


def test_a_body_that_turns_is_placed_whatever_its_shape():
    """Only its upper half is seen, and its radius is another in every direction."""
    rng = np.random.default_rng(0)
    turns = Rotation.random(60, random_state=2).as_matrix()
    offset = np.array([0.006, -0.005, 0.007])
    place, clouds = body(turns, offset, rng.uniform(0.03, 0.045, len(DIRECTIONS)), upper=True)
    x, error = settle(place, np.zeros(3), clouds, np.full(3, 0.15))
    np.testing.assert_allclose(x, -offset, atol=1.5e-3)
    assert (np.abs(x + offset) < 4 * error).all()


def test_a_round_body_is_placed_without_turning():
    """The curvature of the half that is seen tells how far away its middle is, if less well."""
    offset = np.array([0.006, -0.005, 0.007])
    still = np.tile(np.eye(3), (60, 1, 1))
    place, clouds = body(still, offset, np.full(len(DIRECTIONS), 0.035), upper=True)
    x, _ = settle(place, np.zeros(3), clouds, np.full(3, 0.15))
    np.testing.assert_allclose(x[:2], -offset[:2], atol=1e-3)
    assert x[2] == pytest.approx(-offset[2], abs=6e-3)  # towards the half that is seen


def test_nothing_near_the_robot_settles_nothing():
    place, _ = body(np.tile(np.eye(3), (3, 1, 1)), np.zeros(3), np.ones(len(DIRECTIONS)), False)
    assert settle(place, np.zeros(3), [[np.full((500, 3), 9.0)]] * 3, np.ones(3)) is None


# --- The base -------------------------------------------------------------------------------------


def displaced(moments: tuple[Moment, ...], shift: np.ndarray) -> list[Moment]:
    pose = np.eye(4)
    pose[:3, 3] = shift
    return [dataclasses.replace(m, robot=m.robot + shift, links=pose @ m.links) for m in moments]


@pytest.mark.parametrize("shift", [(0.06, -0.07, 0.03), (0.05, 0.0, 0.12)])
def test_the_base_is_found_to_millimetres_and_then_all_pass(good, moments, shift):
    """A displaced arm of spheres; the second move is mostly towards the cameras."""
    arm = Arm(Dataset(good).robot, joint_axes(read_robot(good)))
    wrong = displaced(moments, np.array(shift))
    evidence = measure(wrong, INDEX)
    found = explain(wrong, evidence, INDEX, arm)
    fit = found.robot[0]
    assert not fit.joints
    assert fit.after_m < 0.6 * fit.before_m
    assert all(found.evidence.status(name) == "pass" for name in ("cam0", "cam1"))
    middle = np.median(np.concatenate([m.robot for m in wrong]), axis=0)
    left = (fit.pose @ [*middle, 1])[:3] - middle + shift
    assert np.linalg.norm(left) < 0.006
    assert np.linalg.norm(left) < 3 * fit.move_m[1]


def test_a_table_is_no_link_though_everything_above_it_is_as_deep_inside(moments):
    """An arm that is said to move 6 cm below a table keeps its distance from it."""
    seen = look(moments, INDEX)
    naive = [[dataclasses.replace(what, still=None) for what in row] for row in seen]
    true, sunk = (
        np.stack([m.robot for m in placed])
        for placed in (moments, displaced(moments, np.array([0.0, 0.0, -0.22])))
    )
    assert differences(depths(true, seen)[0]).mean() < 0.5 * CAP_M
    fooled, told = (differences(depths(sunk, how)[0]).mean() for how in (naive, seen))
    assert fooled < 0.4 * CAP_M
    assert told > 2 * fooled


def test_a_robot_that_stands_elsewhere_says_nothing_of_a_mirror():
    world = WorldProofs({"left to right": 5.0, "upside down": -4.0}, "upside down", None)
    mirrored, displaced_ = (next(world_findings(world, displaced=d)) for d in (False, True))
    assert (mirrored.verdict, displaced_.verdict) == ("fail", "unproven")
    assert "mirrored upside down" in mirrored.text
    assert "stands elsewhere" in displaced_.text


# --- Time -----------------------------------------------------------------------------------------


def late(moments: tuple[Moment, ...], frames: int, *odd: int) -> list[Moment]:
    """Return moments whose robot is said to be where it was later, in all or in odd episodes."""
    found = []
    for moment in moments:
        if not odd or moment.episode in odd:
            path = moment.path[np.clip(np.arange(7) + frames, 0, 6)]
            moment = dataclasses.replace(moment, path=path)
        found.append(moment)
    return found


def test_a_lag_is_known_to_hundredths_of_a_frame(good, moments):
    skeleton = Dataset(good).robot.skeleton
    for name in ("cam0", "cam1"):
        still = robot_shift(moments, name, INDEX, skeleton)
        assert not still.proven
        shift = robot_shift(late(moments, 1), name, INDEX, skeleton)
        assert shift.proven
        assert abs(shift.lag - 1.0) < 2 * shift.error < 0.05


def test_a_robot_is_not_before_one_camera_and_behind_another():
    """Mirror images, seen from two sides, look like that."""
    late, early, open_ = (Shift(lag, 0.02, 16, 3.0, True, 1.0) for lag in (2.1, -1.9, 0.05))
    assert late.proven
    assert early.proven
    assert not open_.proven
    found = agreeing({"a": late, "b": early, "c": open_, "d": None})
    assert not any(shift.proven for shift in found.values() if shift is not None)
    same = {"a": late, "b": dataclasses.replace(late, lag=0.6), "c": open_, "d": None}
    assert agreeing(same) == same


def test_between_frames_a_robot_is_where_it_turns_through():
    """At a radian per frame; 1 mm of its 0.3 m per frame were a lag of 0.003 frames."""
    times = np.arange(-3.0, 4.0)

    def turned(time: np.ndarray) -> np.ndarray:
        return 0.3 * np.stack([np.cos(time), np.sin(time), 0 * time], axis=-1)[..., None, :]

    asked = np.linspace(-1.0, 1.0, 21)
    off = between_frames(turned(times))(asked) - turned(asked)
    assert np.linalg.norm(off, axis=-1).max() < 0.0008


def test_episodes_that_do_not_agree_name_no_lag(good, moments):
    shift = robot_shift(late(moments, 1, 0, 1), "cam0", INDEX, Dataset(good).robot.skeleton)
    assert shift.agreement <= 0.5
    assert not shift.proven


def test_what_mends_a_few_moments_must_mend_all(moments):
    """Of another convention in the moments that a diagnosis looks at, turned as well in others."""
    rng = np.random.default_rng(0)
    few = [(m.episode, m.frame) for m in some(moments, SCREENING_MOMENTS)]
    wrong = []
    for moment in moments:
        pose = AXES["opengl"].copy()
        if (moment.episode, moment.frame) not in few:
            pose[:3, :3] @= Rotation.from_rotvec(rng.uniform(-0.15, 0.15, 3)).as_matrix()
        view = moment.views["cam1"]
        view = dataclasses.replace(view, camera_to_world=view.camera_to_world @ pose)
        wrong.append(dataclasses.replace(moment, robot=None, views={**moment.views, "cam1": view}))
    diagnosis = diagnose(some(wrong, SCREENING_MOMENTS), INDEX)
    assert [mistake.name for mistake in diagnosis.mistakes] == ["OpenGL axes"]
    found = explain(wrong, measure(wrong, INDEX), INDEX, late=True)
    assert found.diagnosis is None
    assert found.evidence is None


def test_robots_that_stand_right_are_left_there(good, moments):
    arm = Arm(Dataset(good).robot, joint_axes(read_robot(good)))
    assert fit_robot(moments, arm, INDEX) == ()
