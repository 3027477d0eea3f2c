"""Learn where the lamp is that casts the robot's shadow, from recorded frames, before training."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from hdvpd.basics.types import Array, Float, Int, JaxArray, PRNGKey, pytree
from hdvpd.config import Config, SceneSpec
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_robot, read_window
from hdvpd.dynamics.shadow import Lamp, Shadow, light_blocked
from hdvpd.encoders.particles import visible_points
from hdvpd.model import Model

_PAIRS = 128
"""Pairs of recorded frames that are looked at."""
_PIXELS = 512
"""Of each image at most, half of them from those whose brightness changed."""
_STAYED_M, _STAYED = 0.005, 0.01
"""Depth that changed by less than this, or this share of itself, is that of what did not move."""
_CHANGED = 0.15
"""Change of the logarithm of brightness that is more than noise."""
_FAR_M = 3.0
"""Distance at which lamps are tried in all directions."""
_DIRECTIONS, _TRIED_ON = 200, 512
"""So many directions, each on so many pixels: enough to begin with the best of them."""
_STEPS, _BATCH, _RATE = 400, 2048, 2e-2
"""Of Adam; its rate falls to 0 by a cosine."""
_EXPLAINED = 0.1
"""Share of the changes below which there is no shadow to speak of."""


@pytree
class Changes:
    """What became darker or brighter where nothing moved.

    Attributes:
      positions: of pixels' surfaces [m].
      brighter: change of the logarithm of brightness.
      pair: of frames, which each pixel is of.
      points: kinematic points in the first and the last frame of every pair [m].
    """

    positions: Float[Array, "n 3"]
    brighter: Float[Array, "n"]
    pair: Int[Array, "n"]
    points: Float[Array, "f 2 p 3"]


def learn_shadow(model: Model, config: Config, dataset: Dataset) -> None:
    """Teach a model with `model.shadow` where the lamp is; other models stay as they are.

    Equal for equal configurations and data. Only cameras that stand still tell anything; where they
    show no shadow that goes with the robot, none is predicted.

    Args:
      model: is changed in place.
      config: whose seed draws frames and pixels.
      dataset: its training episodes are looked at.

    Raises:
      UserError: what is stored is damaged or impossible.
    """
    parts = [part for _, part in nnx.iter_modules(model) if isinstance(part, Shadow)]
    if not parts:
        return
    length = OBSERVED_FRAMES + config.train.horizon
    index = WindowIndex(dataset, "train", length)
    windows = index.sample(config.train.seed, 0, min(_PAIRS, len(index)))
    changes = look_at(config, model.scene, dataset, windows, length)
    told = "none found in"
    if len(changes.positions):
        key = jax.random.key(config.train.seed)
        lamp, explained = jax.jit(fit)(parts[0].lamp, changes, key)
        if explained > _EXPLAINED and lamp.darkness > 0:
            told = f"explains {explained:.0%} of"
            for part in parts:
                part.learn(lamp)
    seen = f"{len(changes.positions):,} pixels in {len(windows)} pairs of frames"
    print(f"shadow   {told} the changes of {seen}")


def look_at(
    config: Config,
    scene: SceneSpec,
    dataset: Dataset,
    windows: Sequence[tuple[int, int]],
    length: int,
) -> Changes:
    """Compare the last observed and the last predicted frame of every window."""
    rng = np.random.default_rng(config.train.seed)
    box = scene.workspace_min, scene.workspace_max, config.render.far
    positions, brighter, pair, points = (
        [np.zeros((0, 3))],
        [np.zeros(0)],
        [np.zeros(0, np.int32)],
        [],
    )
    for number, window in enumerate(windows):
        batch = read_window(dataset, *window, length, config.data)
        frames = jax.tree.map(lambda x: np.asarray(x)[[OBSERVED_FRAMES - 1, -1]], batch.frames)
        # Where the robot was, of both: a window has what it was told to do after what is observed.
        episode, start = window
        then = read_robot(dataset, episode, start + length - OBSERVED_FRAMES, OBSERVED_FRAMES)
        now = np.asarray(batch.robot.positions)[OBSERVED_FRAMES - 1]
        points.append(np.stack([now, np.asarray(then.positions)[-1]]))
        poses = frames.camera.camera_to_world
        surfaces, visible = map(np.asarray, visible_points(frames.depth_m, frames.camera, *box))
        brightness = np.log(frames.rgb.mean(axis=-1) / 255 + 0.02)
        moved_m = np.abs(frames.depth_m[1] - frames.depth_m[0])
        stayed = visible.all(axis=0)
        stayed &= moved_m < np.maximum(_STAYED_M, _STAYED * frames.depth_m[0])
        stayed &= np.isclose(poses[0], poses[1], atol=1e-3).all(axis=(1, 2))[:, None, None]
        change = brightness[1] - brightness[0]
        for view in range(len(change)):
            drawn = _draw(stayed[view], change[view], rng)
            positions.append(surfaces[0, view].reshape(-1, 3)[drawn])
            brighter.append(change[view].reshape(-1)[drawn])
            pair.append(np.full(len(drawn), number))
    return Changes(
        positions=np.concatenate(positions, dtype=np.float32),
        brighter=np.concatenate(brighter, dtype=np.float32),
        pair=np.concatenate(pair, dtype=np.int32),
        points=np.stack(points),
    )


def _draw(
    stayed: np.ndarray, change: Float[np.ndarray, "h w"], rng: np.random.Generator
) -> np.ndarray:
    """Return pixels of what stayed: half any, half of those that changed, as far as there are."""
    any_, changed = (np.flatnonzero(x) for x in (stayed, stayed & (np.abs(change) > _CHANGED)))
    return np.concatenate(
        [rng.permutation(x)[: _PIXELS // 2] for x in (any_, changed)], dtype=np.int64
    )


def fit(lamp: Lamp, changes: Changes, key: PRNGKey) -> tuple[Lamp, Float[JaxArray, ""]]:
    """Return what best explains the changes, beginning with `lamp`, and which share it explains.

    Lamps all around are tried, then Adam moves the best one, the radii and the darkness.
    """
    optimizer = optax.adam(optax.cosine_decay_schedule(_RATE, _STEPS))
    changes = jax.tree.map(jnp.asarray, changes)

    def drawn(key: PRNGKey, count: int) -> Changes:
        chosen = jax.random.randint(key, (count,), 0, len(changes.positions))
        each = changes.positions[chosen], changes.brighter[chosen], changes.pair[chosen]
        return Changes(*each, changes.points)

    some = drawn(key, _TRIED_ON)

    def tried(way: Float[Array, "3"]) -> tuple[Lamp, Float[JaxArray, ""]]:
        position = some.positions.mean(axis=0) + _FAR_M * way
        there = dataclasses.replace(lamp, position=position)
        more = _blocked_more(there, some)
        darkness = -jnp.sum(more * some.brighter) / (jnp.sum(more**2) + 1e-6)
        there = dataclasses.replace(there, darkness=darkness)
        return there, _unexplained(there, some)

    def step(carry: tuple[Any, Any], key: PRNGKey) -> tuple[tuple[Any, Any], None]:
        lamp, opt_state = carry
        updates, opt_state = optimizer.update(
            jax.grad(_unexplained)(lamp, drawn(key, _BATCH)), opt_state
        )
        return (optax.apply_updates(lamp, updates), opt_state), None

    lamps, unexplained = jax.lax.map(tried, _directions())
    best = jax.tree.map(lambda x: x[jnp.argmin(unexplained)], lamps)
    keys = jax.random.split(jax.random.fold_in(key, 1), _STEPS)
    learned = jax.lax.scan(step, (best, optimizer.init(best)), keys)[0][0]
    nothing = dataclasses.replace(learned, darkness=jnp.zeros(()))
    return learned, 1.0 - _unexplained(learned, changes) / _unexplained(nothing, changes)


def _blocked_more(lamp: Lamp, changes: Changes) -> Float[JaxArray, "n"]:
    """Return by how much the light that does not arrive grew."""
    first, last = (
        light_blocked(lamp, changes.positions, changes.points[changes.pair, k]) for k in range(2)
    )
    return last - first


def _unexplained(lamp: Lamp, changes: Changes) -> Float[JaxArray, ""]:
    """Return how far what the lamp would change is from the changes, by Huber's loss."""
    brighter = -lamp.darkness * _blocked_more(lamp, changes)
    return jnp.mean(optax.huber_loss(brighter, jnp.asarray(changes.brighter), delta=_CHANGED))


def _directions() -> Float[JaxArray, "d 3"]:
    """Return unit vectors all around, evenly: a Fibonacci lattice."""
    number = np.arange(_DIRECTIONS)
    height, angle = 1 - (2 * number + 1) / _DIRECTIONS, np.pi * (3 - np.sqrt(5)) * number
    flat = np.sqrt(1 - height**2)
    return jnp.asarray(
        np.stack([flat * np.cos(angle), flat * np.sin(angle), height], axis=1), jnp.float32
    )
