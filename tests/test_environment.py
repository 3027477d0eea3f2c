"""The gymnasium environment, by gymnasium's own checker."""

import sys

import numpy as np
import pytest
from extras import needed

import hdvpd
from hdvpd.basics.errors import UserError
from hdvpd.world.base import World

needed("mujoco")
gymnasium = needed("gymnasium")


@pytest.fixture(scope="module")
def env(small_world, synthetic_dataset):
    ball_far_left = lambda state: -float(state.positions[:, 1].min())  # noqa: E731
    return hdvpd.make_env(
        small_world, synthetic_dataset, horizon=3, reward=ball_far_left, render_mode="rgb_array"
    )


def test_gymnasium_accepts_it(env, recwarn):
    from gymnasium.utils.env_checker import check_env

    check_env(env, skip_render_check=True)
    # Joint limits are the robot's, so actions are neither symmetric nor normalised.
    expected = ("render", "symmetric and normalized")
    messages = [str(warning.message) for warning in recwarn]
    assert [m for m in messages if not any(text in m for text in expected)] == []


def test_steps_are_the_models_rollout(env, small_world, synthetic_dataset):
    image, info = env.reset(options={"episode": 9, "start": 1})
    assert info == {"episode": 9, "start": 1}
    state = small_world.state_from(synthetic_dataset, 9, 1)
    np.testing.assert_array_equal(image, small_world.render(state, "cam0").rgb)
    targets = small_world.recorded_targets(synthetic_dataset, 9, 1, 3)
    ends = []
    for target in targets:
        image, reward, done, cut, _ = env.step(target)
        ends.append((done, cut))
    assert ends == [(False, False), (False, False), (False, True)]
    future = small_world.rollout(state, targets)
    np.testing.assert_allclose(env.state.current.positions, future.positions[-1], atol=1e-5)
    assert reward == pytest.approx(-env.state.positions[:, 1].min())
    np.testing.assert_array_equal(env.render(), image)


def test_mistakes_get_one_message(small_world, synthetic_dataset):
    with pytest.raises(UserError, match="There is no camera 'top'"):
        hdvpd.make_env(small_world, synthetic_dataset, camera="top")
    with pytest.raises(UserError, match="no episode in split 'tset'"):
        hdvpd.make_env(small_world, synthetic_dataset, split="tset")
    known = small_world.model, small_world.config, small_world.scene, 0, small_world.folder
    with pytest.raises(UserError, match="has no robot model"):
        hdvpd.make_env(World(*known, setup=None), synthetic_dataset)
    fresh = hdvpd.make_env(small_world, synthetic_dataset)
    with pytest.raises(UserError, match="Call reset before step"):
        fresh.step(np.zeros(3))
    fresh.reset(seed=0)
    with pytest.raises(UserError, match="its limits are"):
        fresh.step(np.array([0.0, 9.0, 0.0]))


def test_without_gymnasium_the_message_says_how_to_get_it(small_world, monkeypatch):
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    monkeypatch.delitem(sys.modules, "hdvpd.world.environment", raising=False)
    with pytest.raises(UserError, match=r"pip install .*\[gym\]"):
        hdvpd.make_env(small_world, "data")
