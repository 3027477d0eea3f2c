"""Members compared by the motion of particles: means and paired differences."""

import dataclasses

import numpy as np
import pytest

from hdvpd.evaluation.compared_motion import compare_motion, compared_motion_tables
from hdvpd.evaluation.curves import Scores
from hdvpd.evaluation.kept_scores import read_scores, scores_to_json

EPISODES, STEPS = 6, 5


def scores(error, seed):
    """A run whose error on objects is that of no motion, 30 mm, times a factor."""
    rng = np.random.default_rng(seed)
    motion = np.full((EPISODES, 3, STEPS, 4), 0.03)
    motion += 0.01 * np.random.default_rng(99).normal(size=(EPISODES, 1, 1, 1))
    motion[:, 0] *= error
    motion[:, 0] += 1e-4 * rng.normal(size=(EPISODES, STEPS, 4))
    images = rng.normal(size=(EPISODES, 1, 2, STEPS, 4))
    depth = rng.normal(size=(EPISODES, 2, STEPS, 2))
    numbers = tuple(range(EPISODES))
    return Scores("run", ("a", "b"), numbers, ("model",), images, depth, motion=motion)


@pytest.fixture
def members():
    return {
        name: [scores(error, 10 * i + seed) for seed in range(3)]
        for i, (name, error) in enumerate({"good": 0.5, "bad": 1.0}.items())
    }


def test_means_and_paired_differences(members):
    motion = compare_motion(members)
    still = motion["controls"]["static_render"]["object_error_m"]["mean"]
    assert motion["members"]["good"]["object_error_m"]["mean"] == pytest.approx(still / 2, abs=1e-4)
    (pair,) = motion["pairs"]
    assert (pair["first"], pair["second"]) == ("good", "bad")
    entry = pair["moved_error_m"]
    assert entry["mean"] == pytest.approx(-still / 2, abs=1e-4)
    # What episodes have in common is not in the differences, but half of what they differ by is.
    assert entry["ci95"] < 0.75 * motion["members"]["bad"]["moved_error_m"]["ci95"]
    tables = compared_motion_tables(motion)
    assert [[row[0] for row in table.rows] for table in tables] == 2 * [
        ["good", "bad", "no motion", "kinematics only"],
        ["good \u2212 bad"],
    ]
    assert tables[1].markdown().count("**") == 8
    assert tables[3].markdown().count("**") == 2 * STEPS


def test_drift_is_found_where_it_is(members):
    for run in members["good"]:
        run.motion[:, 0, -1, 0] += 0.02
    good, bad = (compare_motion(members)["members"][name] for name in members)
    errors = [run.motion[:, 0, :, 0] for run in members["good"]]
    steps = [entry["mean"] for entry in good["object_error_m_steps"]]
    np.testing.assert_allclose(steps, np.mean(errors, axis=(0, 1)))
    assert np.mean(steps) == pytest.approx(good["object_error_m"]["mean"])
    (pair,) = compare_motion(members)["pairs"]
    differences = [entry["mean"] for entry in pair["object_error_m_steps"]]
    assert differences == pytest.approx(
        [
            step - other["mean"]
            for step, other in zip(steps, bad["object_error_m_steps"], strict=True)
        ]
    )
    assert differences[-1] == pytest.approx(differences[0] + 0.02, abs=1e-3)


def test_without_truth_nothing_is_compared(members):
    blind = dataclasses.replace(members["bad"][1], motion=None)
    assert compare_motion({**members, "bad": [members["bad"][0], blind]}) == {}


def test_motion_is_kept_beside_the_run(members, tmp_path):
    own = members["good"][0]
    own.motion[0, 1, 2] = np.nan
    file = tmp_path / "scores.json"
    file.write_text(scores_to_json(own, {}))
    back = read_scores(file, {})
    np.testing.assert_array_equal(back.motion, own.motion)
    assert back.pixels is None
