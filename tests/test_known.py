"""What a rollout knows of its particles goes on with the states that it ends in.

A hand of two points, of which the lower one comes along x into or against a block on a table. The
model is untrained, but for the hand's boxes, so that all motion is what is said of things.
"""

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scenes
from extras import needed
from flax import nnx
from test_things import CLOSED, OPEN, SIZE, cloud_of, cube, table

from hdvpd.basics.types import RobotPoints
from hdvpd.data.robot import Robot
from hdvpd.data.store import Dataset
from hdvpd.dynamics.base import Known
from hdvpd.dynamics.body import Boxes
from hdvpd.dynamics.unseen import Unseen
from hdvpd.model import Model
from hdvpd.planning.gradients import make_pull_back
from hdvpd.world.base import World
from hdvpd.world.frames import look_at
from hdvpd.world.state import State, inside

STEPS = 6
TORN = {"stochastic": False}, OPEN
"""The open hand comes into the block, whose particles there are not the hand's for that."""
PUSHED = {"stochastic": True}, CLOSED
"""The closed hand pushes it, beside its middle and by as much as what is hidden says."""
CASES = pytest.mark.parametrize("case", [TORN, PUSHED], ids=["torn", "pushed"])


class Gantry(Robot):
    """A robot whose joints are where its lower point is along x and how far it is open."""

    joints, units = ("x", "opening"), ("m", "rad")
    limits = np.asarray([[-1.0, 1.0], [0.0, 2.0]])

    def __init__(self):
        pass

    def points(self, joints: np.ndarray) -> RobotPoints:
        x, opening = np.moveaxis(np.asarray(joints), -1, 0)
        lower = np.stack([x, np.full_like(x, 0.01), np.full_like(x, 0.03)], axis=-1)
        points = np.stack([lower, lower + [0, 0, 0.25]], axis=-2)
        return scenes.unturned(points, opening[..., None])


class Scene(World):
    """Shows the block to whoever observes."""

    robot, cameras = Gantry(), {"front": look_at((0.6, 0.0, 0.4), (0.0, 0.0, 0.0), size=(12, 16))}
    opening = OPEN

    def targets(self, first: int, steps: int) -> np.ndarray:
        x = -0.07 + 0.015 * np.arange(first, first + steps)
        return np.stack([x, np.full(steps, self.opening)], axis=1).astype(np.float32)

    def state_from(self, *_) -> State:
        cloud = cloud_of(cube(np.asarray([0.025, 0.0, 0.027])), table())
        wide = np.pad(cloud.features, ((0, 0), (0, self.config.model.feature_dim - 3)))
        cloud = dataclasses.replace(cloud, features=wide)
        return State(
            previous=cloud,
            current=cloud,
            colors=np.zeros((len(wide), 3), np.uint8),
            robot=self.robot.points(self.targets(0, 2)),
            joints=None,
            cameras=self.cameras,
            size=self.size,
        )


class Recordings(Dataset):
    """One episode, of which only the length is asked."""

    def __init__(self):
        pass

    def split(self, _):
        return [SimpleNamespace(number=0, length=9)]

    def episode(self, _):
        return self.split("test")[0]


@functools.cache
def scene(stochastic, opening):
    settings = {
        "carry": True,
        "contact": True,
        "colors": True,
        "lasting_features": True,
        "stochastic": stochastic,
        "up": "z",
        "hidden_spreads": (1.0, 0.5, 0.003),
    }
    config = scenes.tiny_config(model=settings)
    of = dataclasses.replace(scenes.SCENE, num_robot_points=2)
    model = Model(config, of, rngs=nnx.Rngs(0))
    half = np.full((2, 3), 0.02, np.float32)
    model.dynamics.read_out.identity.body.learn(Boxes(-half, half))
    world = Scene(model, config, of, 0, Path("run"), None)
    world.opening = opening
    return world


def world_of(case):
    return scene(*case[0].values(), case[1])


def stepped(world, state, anew=False):
    """Positions after each single step, and the last state."""
    found = []
    for target in world.targets(2, STEPS):
        state = dataclasses.replace(state, known=None) if anew else state
        state = world.rollout(state, target[None]).last()
        found.append(state.current.positions)
    return np.stack(found), state


def assert_same(known, other):
    jax.tree.map(np.testing.assert_array_equal, known, other)


@CASES
def test_single_steps_are_the_rollout(case):
    world = world_of(case)
    state = world.state_from()
    whole = world.rollout(state, world.targets(2, STEPS))
    single, last = stepped(world, state)
    np.testing.assert_allclose(single, whole.positions, atol=1e-5)
    assert_same(last.known, whole.known)
    # The scene is one in which it matters.
    anew, _ = stepped(world, state, anew=True)
    assert np.abs(anew - whole.positions)[-1, :SIZE].max() > 0.005


@CASES
def test_steps_of_the_environment_are_the_rollout(case):
    needed("gymnasium")
    from hdvpd.world.environment import WorldEnv

    world = world_of(case)
    env = WorldEnv(world, Recordings(), horizon=STEPS)
    env.reset(seed=0)
    targets = world.targets(2, STEPS)
    for target in targets:
        env.step(target)
    whole = world.rollout(world.state_from(), targets)
    np.testing.assert_allclose(env.state.current.positions, whole.positions[-1], atol=1e-5)


def test_what_is_hidden_is_drawn_once_for_all_plans_and_seeds_that_go_on():
    world = world_of(PUSHED)
    state, targets = world.state_from(), world.targets(2, STEPS)
    plans = world.rollout(state, np.stack([targets, targets[::-1]]))
    alone = world.rollout(state, targets)
    assert_same(plans.known, alone.known)
    np.testing.assert_allclose(plans[0].positions, alone.positions, atol=1e-5)
    assert_same(plans[1].last().known, alone.known)
    assert_same(world.rollout(alone.last(), targets, seed=5).known, alone.known)
    other = world.rollout(state, targets, seed=5).known
    assert np.abs(other.unseen.turning - alone.known.unseen.turning).max() > 0.1


def test_gradients_know_what_the_rollout_knew():
    """What the open hand has come into does not go where the hand is planned to go."""
    world = world_of(TORN)
    _, last = stepped(world, world.state_from())
    back = make_pull_back(world)
    planned = world.robot.points(world.targets(2 + STEPS, 1))
    slope = np.zeros((1, *last.current.positions.shape), np.float32)
    slope[:, :SIZE] = 1.0
    assert np.abs(back(last, planned, slope).positions).max() < 1e-3


def numbered():
    """A predicted state whose known rows say where its particles are."""
    state = world_of(PUSHED).state_from()
    places = state.current.positions
    hidden = Unseen(places + 1, places[:, 0] + 1, places[:, 1] + 1, places + 2)
    return dataclasses.replace(state, known=Known(places[:, 2] > 0.02, hidden))


def assert_numbered(state, places):
    """The rows of real particles are those of `places`, and padding has none."""
    mask, known = state.current.mask, state.known
    np.testing.assert_array_equal(known.unseen.middle[mask], places + 1)
    np.testing.assert_array_equal(known.unseen.turning[mask], places[:, 0] + 1)
    np.testing.assert_array_equal(known.unseen.margin_m[mask], places[:, 1] + 1)
    np.testing.assert_array_equal(known.unseen.places[mask], places + 2)
    np.testing.assert_array_equal(known.robots[mask], places[:, 2] > 0.02)
    for rows in jax.tree.leaves(known):
        assert len(rows) == len(mask)
        assert not rows[~mask].any()


def test_rows_of_what_is_known_are_edited_with_their_particles(tmp_path):
    state, block = numbered(), inside((-0.01, -0.04, 0.001), (0.06, 0.04, 0.06))
    without, only = state.remove(block), state.keep(block)
    without.save(tmp_path / "without.npz")
    read = State.load(tmp_path / "without.npz")
    for edited in (
        without,
        only,
        without.merge(only),
        only.thinned(70),
        without.thinned(5000),
        read,
    ):
        assert_numbered(edited, edited.positions)
    assert_numbered(state.move(block, (0.0, 0.0, 0.3)), state.positions)
    assert_numbered(
        state.copy(block, (0.0, 0.0, 0.3)), np.concatenate([state.positions, only.positions])
    )
    of_robot = dataclasses.replace(state, known=Known(state.known.robots, None))
    of_robot.save(tmp_path / "robot.npz")
    assert_same(State.load(tmp_path / "robot.npz").known, of_robot.known)
    observed = dataclasses.replace(state, known=None)
    observed.save(tmp_path / "observed.npz")
    for told_anew in (
        State.load(tmp_path / "observed.npz"),
        observed.merge(state),
        state.merge(observed),
        state.merge(of_robot),
        observed.copy(block, (0.0, 0.0, 0.3)),
        observed.thinned(70),
    ):
        assert told_anew.known is None
