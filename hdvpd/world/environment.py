"""The model as a gymnasium environment: reset to an observed state, step with joint targets.

There is no task in a recording, so reward and end are the caller's: functions of what the model
predicts. Needs the extra `gym`.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.data.store import Dataset
from hdvpd.world.base import World
from hdvpd.world.state import State

Judge = Callable[[State], float]


class WorldEnv(gymnasium.Env[np.ndarray, np.ndarray]):
    """A trained model behind gymnasium's interface.

    An action is a row of joint targets in the units of the training data, within the robot's
    limits, or within a full turn or a metre where its model states none. An
    observation is the rendered image of one camera, uint8 (h, w, 3).

    Attributes:
      world: the model.
      state: where the environment is; its particles are `state.positions`.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012 - as gymnasium declares it

    def __init__(
        self,
        world: World,
        dataset: Dataset,
        *,
        camera: str = "",
        split: str = "test",
        horizon: int = 8,
        reward: Judge | None = None,
        done: Callable[[State], bool] | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Prepare; nothing is computed yet.

        Args:
          world: from `hdvpd.load`.
          dataset: whose frames `reset` observes.
          camera: that is rendered; empty is the first.
          split: whose episodes `reset` draws from.
          horizon: steps after which an episode is truncated.
          reward: of the state after a step; 0 by default.
          done: whether that state ends the episode; never by default.
          render_mode: "rgb_array" or nothing, as gymnasium asks.

        Raises:
          UserError: there is no robot model, no such camera or no episode in the split.
        """
        self.world = world
        self._dataset = dataset
        _ = world.robot  # without one no action can be taken, and no camera may be known
        self._camera = camera or next(iter(world.cameras))
        if self._camera not in world.cameras:
            raise UserError(
                f"There is no camera {camera!r}; the model knows {', '.join(world.cameras)}."
            )
        self._episodes = [e.number for e in self._dataset.split(split) if e.length >= 2]
        if not self._episodes:
            raise UserError(
                f"The data set {self._dataset.title} has no episode in split {split!r}."
            )
        self._horizon, self._reward, self._done = horizon, reward, done
        self.render_mode = render_mode
        height, width = world.size
        self.observation_space = gymnasium.spaces.Box(0, 255, (height, width, 3), np.uint8)
        low, high = _bounds(world)
        self.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        self.state: State | None = None
        self._steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Observe two frames of an episode.

        Args:
          seed: draws episode and start.
          options: "episode" and "start" choose them instead.

        Returns:
          The image of the second frame, and a dictionary of episode and start.

        Raises:
          UserError: there is no such episode or frame.
        """
        super().reset(seed=seed)
        options = options or {}
        episode = int(options.get("episode", self.np_random.choice(self._episodes)))
        last = self._dataset.episode(episode).length - 2
        start = int(options.get("start", self.np_random.integers(0, last + 1)))
        self.state = self.world.state_from(self._dataset, episode, start)
        self._steps = 0
        return self._observe(), {"episode": episode, "start": start}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Send the robot to joint targets for one control step.

        Args:
          action: one row of joint targets.

        Returns:
          Image, reward, whether the episode ended, whether it was cut off at the horizon, and an
          empty dictionary.

        Raises:
          UserError: `reset` was not called, or the targets are impossible.
        """
        if self.state is None:
            raise UserError("Call reset before step: the model starts from an observed state.")
        self.state = self.world.rollout(self.state, np.asarray(action, np.float32)[None]).last()
        self._steps += 1
        reward = 0.0 if self._reward is None else float(self._reward(self.state))
        done = False if self._done is None else bool(self._done(self.state))
        return self._observe(), reward, done, self._steps >= self._horizon, {}

    def render(self) -> np.ndarray | None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the present image, if `render_mode` is "rgb_array"."""
        return self._observe() if self.render_mode == "rgb_array" else None

    def _observe(self) -> np.ndarray:
        assert self.state is not None
        return self.world.render(self.state, self._camera).rgb


def _bounds(world: World) -> tuple[np.ndarray, np.ndarray]:
    low, high = world.robot.limits.T.astype(np.float32)
    # A space needs finite bounds to be sampled; 2 pi, or a metre, where the model states none.
    widest = np.where(np.array(world.robot.units) == "rad", 2 * np.pi, 1.0).astype(np.float32)
    return np.where(np.isfinite(low), low, -widest), np.where(np.isfinite(high), high, widest)
