"""Learn which particles are the robot's, from recorded frames, before the first training step."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from hdvpd.basics.types import Array, Float, Int, JaxArray, PRNGKey, pytree
from hdvpd.config import Config
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_window
from hdvpd.dynamics.identity import NEAR_M, Identity, NearRobot, contrast
from hdvpd.model import Model

_FRAMES = 256
"""Recorded frames that are looked at."""
_POINTS = 2048
"""Points of each frame; and how many of those near the robot a step sees."""
_RATE = 1e-2
"""Of Adam, at first; it falls to 0 by a cosine."""


@pytree
class Seen:
    """Points of recorded frames.

    Attributes:
      positions: of those near the robot [m].
      colors: theirs, 0 to 1.
      frame: which frame each is of.
      points: kinematic points of every frame [m].
      far_colors: of the points that are not near the robot, 0 to 1.
    """

    positions: Float[Array, "n 3"]
    colors: Float[Array, "n 3"]
    frame: Int[Array, "n"]
    points: Float[Array, "f p 3"]
    far_colors: Float[Array, "c 3"]


def learn_identity(model: Model, config: Config, dataset: Dataset) -> None:
    """Teach a model with `model.contact` which particles are the robot's, for `identity_steps`.

    Equal for equal configurations and data; other models stay as they are. Where the frames show
    nothing near the robot, or nothing else, whatever is near it stays the robot's.

    Args:
      model: is changed in place.
      config: whose seed draws frames, points and what is by chance.
      dataset: its training episodes are looked at.

    Raises:
      UserError: what is stored is damaged or impossible.
    """
    parts = [part for _, part in nnx.iter_modules(model) if isinstance(part, Identity)]
    if not parts or not config.train.identity_steps:
        return
    index = WindowIndex(dataset, "train", OBSERVED_FRAMES)
    windows = index.sample(config.train.seed, 0, min(_FRAMES, len(index)))
    seen = look_at(model, config, dataset, windows)
    print(f"robot    {len(seen.positions):,} points near it in {len(windows)} frames")
    if not len(seen.positions) or not len(seen.far_colors):
        return
    key = jax.random.key(config.train.seed)
    for part in parts:
        graphdef, state = nnx.split(part)
        nnx.update(part, fit(graphdef, state, seen, key, config.train.identity_steps))


def look_at(
    model: Model, config: Config, dataset: Dataset, windows: Sequence[tuple[int, int]]
) -> Seen:
    """Read a frame of every window."""
    measure = jax.jit(lambda frames, key: model.measure(frames, _POINTS, key))
    key = jax.random.key(config.train.seed)
    near, frame, far_colors, points = [], [], [], []
    for number, window in enumerate(windows):
        batch = read_window(dataset, *window, OBSERVED_FRAMES, config.data)
        frames, robot = jax.tree.map(lambda x: x[-1], (batch.frames, batch.robot))
        cloud = jax.device_get(measure(frames, jax.random.fold_in(key, number)))
        apart_m = np.linalg.norm(cloud.positions[:, None] - robot.positions[None], axis=-1)
        is_near = apart_m.min(axis=1) < NEAR_M
        colored = np.concatenate([cloud.positions, jax.nn.sigmoid(cloud.features)], axis=1)
        near.append(colored[cloud.mask & is_near])
        frame.append(np.full(len(near[-1]), number, np.int32))
        far_colors.append(colored[cloud.mask & ~is_near, 3:])
        points.append(robot.positions)
    positions, colors = np.split(np.concatenate(near), 2, axis=1)
    return Seen(
        positions=positions,
        colors=colors,
        frame=np.concatenate(frame),
        points=np.stack(points),
        far_colors=np.concatenate(far_colors),
    )


def fit(graphdef: nnx.GraphDef, state: Any, seen: Seen, key: PRNGKey, num_steps: int) -> Any:
    """Return the parameters of an `Identity` after so many steps of Adam."""
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, num_steps))

    @jax.jit
    def run(state: Any, seen: Seen) -> Any:
        def loss(state: Any, key: PRNGKey) -> Float[JaxArray, ""]:
            draw, chance = jax.random.split(key)
            chosen = jax.random.randint(draw, (_POINTS,), 0, len(seen.positions))
            near = NearRobot(
                positions=seen.positions[chosen],
                colors=seen.colors[chosen],
                points=seen.points[seen.frame[chosen]],
            )
            return contrast(nnx.merge(graphdef, state), near, seen.far_colors, chance)

        def step(carry: tuple[Any, Any], key: PRNGKey) -> tuple[tuple[Any, Any], None]:
            state, opt_state = carry
            updates, opt_state = optimizer.update(jax.grad(loss)(state, key), opt_state)
            return (optax.apply_updates(state, updates), opt_state), None

        begin = state, optimizer.init(state)
        return jax.lax.scan(step, begin, jax.random.split(key, num_steps))[0][0]

    return run(state, jax.tree.map(jnp.asarray, seen))
