"""Learn how far the robot gets on the way to its commands, from recordings, before training."""

import numpy as np
from flax import nnx

from hdvpd.basics.types import Float
from hdvpd.config import Config
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_robot
from hdvpd.dynamics.tracking import Tracking
from hdvpd.model import Model

_STEPS = 256
"""Recorded steps that are looked at."""
_TREMBLING_M = 1e-3
"""Ways as short as this say nothing: where a point hardly moves, commands are reached."""


def learn_tracking(model: Model, config: Config, dataset: Dataset) -> None:
    """Teach a model with `model.tracking` how its robot follows commands; others stay as they are.

    Args:
      model: is changed in place.
      config: whose seed draws the steps.
      dataset: its training episodes are looked at.

    Raises:
      UserError: what is stored is damaged or impossible.
    """
    parts = [part for _, part in nnx.iter_modules(model) if isinstance(part, Tracking)]
    if not parts:
        return
    index = WindowIndex(dataset, "train", OBSERVED_FRAMES + 1)
    measured, commanded = [], []
    steps = index.sample(config.train.seed, 0, min(_STEPS, len(index)))
    for episode, start in steps:
        plan = read_robot(dataset, episode, start, OBSERVED_FRAMES + 1)
        then = read_robot(dataset, episode, start + 1, OBSERVED_FRAMES)
        measured.append(np.stack([plan.positions[1], then.positions[1]]))
        commanded.append(plan.positions[2])
    share = fit(np.stack(measured), np.stack(commanded))
    behind_m = np.linalg.norm(np.stack(measured)[:, 1] - np.stack(commanded), axis=-1)
    print(f"commands {behind_m.mean() * 1e3:.1f} mm ahead of the robot in {len(steps)} steps")
    for part in parts:
        part.learn(share)


def fit(
    measured: Float[np.ndarray, "n 2 p 3"], commanded: Float[np.ndarray, "n p 3"]
) -> Float[np.ndarray, "p"]:
    """Return the share of the way to its command that every point goes in a step, by least squares.

    Args:
      measured: points before and after steps [m].
      commanded: where they were to be after them [m].
    """
    before, after = np.moveaxis(np.asarray(measured, np.float64), 1, 0)
    way, went = commanded - before, after - before
    still = len(way) * _TREMBLING_M**2
    share = (np.sum(way * went, axis=(0, 2)) + still) / (np.sum(way**2, axis=(0, 2)) + still)
    return np.clip(share, 0.0, 1.0).astype(np.float32)
