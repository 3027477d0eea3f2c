"""The controls: standing still, another's plan, and particles that only follow the robot."""

import jax
import numpy as np
import pytest
import scenes

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import ParticleCloud
from hdvpd.data.schema import EpisodeInfo
from hdvpd.data.simulation import synthetic
from hdvpd.data.store import Dataset
from hdvpd.data.windows import read_robot
from hdvpd.evaluation.controls import carry_particles, hold_still, lend_plans, replace_plan


def test_holding_still_keeps_what_was_observed_and_repeats_it():
    robot = scenes.random_robot(0, 5)
    held = hold_still(robot)
    for before, after in zip(jax.tree.leaves(robot), jax.tree.leaves(held), strict=True):
        np.testing.assert_array_equal(after[:2], before[:2])
        np.testing.assert_array_equal(after[2:], np.stack([before[1]] * 3))


def test_another_plan_keeps_what_was_observed():
    own, other = scenes.random_robot(0, 5), scenes.random_robot(1, 5)
    mixed = replace_plan(own, other)
    for pair in zip(*map(jax.tree.leaves, (mixed, own, other)), strict=True):
        np.testing.assert_array_equal(pair[0][:2], pair[1][:2])
        np.testing.assert_array_equal(pair[0][2:], pair[2][2:])


def make_cloud(positions):
    positions = np.asarray(positions, np.float32)
    features = np.arange(len(positions) * 2, dtype=np.float32).reshape(-1, 2)
    return ParticleCloud(positions=positions, features=features, mask=np.ones(len(positions), bool))


def test_particles_on_the_robot_go_along_and_others_stay():
    # A straight arm of three points goes 3 cm a step; its particles lie up to 9 cm beside it.
    points = np.array([[0, 0, 0.2], [0, 0, 0.5], [0, 0, 0.8]], np.float32)
    motion = np.array([0.03, 0.0, 0.0], np.float32)
    path = points + np.array([0, 0, 1, 2, 3])[:, None, None] * motion
    robot = scenes.unturned(path)
    on_robot = points + np.array([[0.02, 0, 0], [0, 0.09, 0], [0, 0, 0.01]], np.float32)
    far = np.array([[0.9, 0.5, 0.0], [-0.11, 0.0, 0.2]], np.float32)
    cloud = make_cloud(np.concatenate([on_robot, far]))
    clouds = carry_particles(cloud, cloud, robot)
    expected = on_robot + np.arange(1, 4)[:, None, None] * motion
    np.testing.assert_allclose(clouds.positions[:, :3], expected, atol=1e-5)
    np.testing.assert_array_equal(clouds.positions[:, 3:], np.stack([far] * 3))
    np.testing.assert_array_equal(clouds.features, np.stack([cloud.features] * 3))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "scene"
    return synthetic.write_synthetic_dataset(
        path, episodes=20, steps=11, height=16, width=20, seed=0
    )


def test_the_robot_hardly_leaps_to_the_borrowed_plan(dataset):
    length, windows = 6, [(9, 0), (9, 3), (19, 6)]
    for (episode, start), loan in zip(
        windows, lend_plans(dataset, windows, "test", length), strict=True
    ):
        assert loan.episode != episode
        own = read_robot(dataset, episode, start, length)
        lent = read_robot(dataset, loan.episode, loan.start, length)
        robot = replace_plan(own, lent).positions
        leap = np.linalg.norm(robot[2] - robot[1], axis=-1).mean()
        assert leap == pytest.approx(loan.jump_m, rel=1e-5)
        # Nobody's plan begins nearer: every window of all other episodes, one by one.
        others = [
            np.linalg.norm(read_robot(dataset, e.number, s, length).positions[2] - robot[1],
                           axis=-1).mean()
            for e in dataset.episodes if e.number != episode for s in range(e.length - length + 1)
        ]  # fmt: skip
        assert leap == pytest.approx(min(others), rel=1e-5)
        assert leap < 0.5 * np.median(others)
        # Yet it is another plan.
        assert np.abs(robot[2:] - own.positions[2:]).max() > 1e-3


class Listed(Dataset):
    """A data set of which only lengths and splits exist, and whose robot never moves."""

    def __init__(self, lengths, splits, robot):
        self.path = self.title = "data/listed"
        self.episodes = tuple(
            EpisodeInfo(n, length, "push", split)
            for n, (length, split) in enumerate(zip(lengths, splits, strict=True))
        )
        self._by_number = {e.number: e for e in self.episodes}
        self._robot = robot

    @property
    def robot(self):
        return self._robot

    def read(self, number, name, start=None, length=None):
        del name, start, length
        return np.zeros((self.episode(number).length, 20, 4, 4), np.float32)


def lenders(dataset, lengths, splits, windows, length):
    listed = Listed(lengths, splits, dataset.robot)
    return [(x.episode, x.start) for x in lend_plans(listed, windows, "test", length)]


def test_of_equally_near_plans_the_next_episode_lends(dataset):
    splits = ["train", "test", "test", "test"]
    windows = [(1, 0), (2, 0), (3, 0)]
    assert lenders(dataset, [9] * 4, splits, windows, 6) == [(2, 0), (3, 0), (1, 0)]


def test_a_lender_is_long_enough_and_of_the_same_split_if_possible(dataset):
    splits = ["train", "test", "test", "validation"]
    assert lenders(dataset, [12, 12, 8, 12], splits, [(1, 0)], 9) == [(3, 0)]
    assert lenders(dataset, [12, 12, 8, 12], splits, [(1, 0)], 8) == [(2, 0)]
    assert lenders(dataset, [12, 12, 8, 5], splits, [(1, 0)], 9) == [(0, 0)]


def test_without_another_episode_nobody_lends(dataset):
    with pytest.raises(UserError, match=r"needs the plan of another episode.*--eval\.controls"):
        lenders(dataset, [9], ["test"], [(0, 0)], 6)
