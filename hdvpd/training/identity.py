"""Learn which particles are the robot's, and its body, from recorded frames, before training."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from hdvpd.basics.types import (
    Array,
    Bool,
    Float,
    Int,
    JaxArray,
    ParticleCloud,
    PRNGKey,
    RgbdFrames,
    pytree,
)
from hdvpd.config import Config
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_window
from hdvpd.dynamics.identity import CERTAIN, Identity, NearRobot, contrast, point_nearness
from hdvpd.model import Model
from hdvpd.training.body import fit_boxes

_FRAMES = 256
"""Recorded frames that are looked at."""
_POINTS = 16384
"""Of each frame at most."""
_BATCH = 2048
"""Points near the robot that a step sees."""
_FAR = 8
"""One in so many of the points that are not near it is kept."""
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
      axes: of their links, in columns.
      far_colors: of the points that are not near the robot, 0 to 1.
    """

    positions: Float[Array, "n 3"]
    colors: Float[Array, "n 3"]
    frame: Int[Array, "n"]
    points: Float[Array, "f p 3"]
    axes: Float[Array, "f p 3 3"]
    far_colors: Float[Array, "c 3"]


def learn_identity(model: Model, config: Config, dataset: Dataset) -> None:
    """Teach a model with `model.contact` which particles are the robot's, and its body.

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
        own = robots_points(part, seen)
        part.body.learn(fit_boxes(seen.positions[own], seen.frame[own], seen.points, seen.axes))


def look_at(
    model: Model, config: Config, dataset: Dataset, windows: Sequence[tuple[int, int]]
) -> Seen:
    """Read a frame of every window."""

    @jax.jit
    def measure(frames: RgbdFrames, points: Array, key: PRNGKey) -> tuple[ParticleCloud, Array]:
        cloud = model.measure(frames, _POINTS, key)
        return cloud, point_nearness(cloud.positions, points[None])[1]

    key = jax.random.key(config.train.seed)
    near, frame, far_colors, points, axes = [], [], [], [], []
    for number, window in enumerate(windows):
        batch = read_window(dataset, *window, OBSERVED_FRAMES, config.data)
        frames, robot = jax.tree.map(lambda x: x[-1], (batch.frames, batch.robot))
        told = measure(frames, robot.positions, jax.random.fold_in(key, number))
        cloud, is_near = jax.device_get(told)
        colored = np.concatenate([cloud.positions, jax.nn.sigmoid(cloud.features)], axis=1)
        near.append(colored[cloud.mask & is_near])
        frame.append(np.full(len(near[-1]), number, np.int32))
        far_colors.append(colored[cloud.mask & ~is_near, 3:][::_FAR])
        points.append(robot.positions)
        axes.append(robot.axes)
    positions, colors = np.split(np.concatenate(near), 2, axis=1)
    return Seen(
        positions=positions,
        colors=colors,
        frame=np.concatenate(frame),
        points=np.stack(points),
        axes=np.stack(axes),
        far_colors=np.concatenate(far_colors),
    )


def robots_points(identity: Identity, seen: Seen) -> Bool[np.ndarray, "n"]:
    """Say which points near the robot are its own, each by itself."""
    graphdef, state = nnx.split(identity)

    @jax.jit
    def judge(state: Any, positions: Array, colors: Array, points: Array) -> Array:
        nearness, _ = point_nearness(positions, points[None])
        return nnx.merge(graphdef, state)(nearness, colors) > CERTAIN

    # Frame by frame, padded to a common number, so that one program does for all.
    counts = np.bincount(seen.frame, minlength=len(seen.points))
    ends = np.cumsum(counts)
    told = []
    for number, (count, end) in enumerate(zip(counts, ends, strict=True)):
        own = np.zeros((2, counts.max(), 3), np.float32)
        own[:, :count] = seen.positions[end - count : end], seen.colors[end - count : end]
        told.append(np.asarray(judge(state, *own, seen.points[number]))[:count])
    return np.concatenate(told)


def fit(graphdef: nnx.GraphDef, state: Any, seen: Seen, key: PRNGKey, num_steps: int) -> Any:
    """Return the parameters of an `Identity` after so many steps of Adam."""
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, num_steps))

    @jax.jit
    def run(state: Any, seen: Seen) -> Any:
        def loss(state: Any, key: PRNGKey) -> Float[JaxArray, ""]:
            draw, chance = jax.random.split(key)
            chosen = jax.random.randint(draw, (_BATCH,), 0, len(seen.positions))
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
