"""How well particles follow the objects that they lie on, and whether the others stay.

Where a data set knows the poses and shapes of its objects, the true motion of an encoded particle
is known: that of its object, or none for particles of neither object nor robot. Every window of
every held-out episode is rolled out and nothing is rendered, so that all contacts are seen.
Compared are the model, the same particles unmoved (whose error is the true displacement) and
the same carried along with the robot (`controls.carry_particles`). Lengths are metres.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.statistics import masked_mean
from hdvpd.basics.types import Array, Bool, Float, ParticleCloud, RobotPoints
from hdvpd.config import Config
from hdvpd.data.store import Dataset
from hdvpd.data.truth import MOVED_M, Objects, has_objects, read_objects
from hdvpd.data.windows import OBSERVED_FRAMES, WindowIndex, read_robot, read_window
from hdvpd.evaluation.controls import carry_particles
from hdvpd.evaluation.pixels import near_points
from hdvpd.evaluation.rollouts import window_keys
from hdvpd.evaluation.spreading import SpreadModel
from hdvpd.model.compiled import CompiledModel

MOTION_METRICS = ("object_error_m", "moved_error_m", "untouched_error_m", "static_jump_m")
"""Mean distance of particles from where they should be: on all objects, on those that move in the
window, on those that do not, and on what is neither object nor near the robot."""
MOTION_PREDICTORS = ("model", "static_render", "kinematics_only")
FAR_FROM_ROBOT_M = 0.25
"""Particles farther than this from every kinematic point of the window are none of the robot."""


@dataclass(frozen=True)
class ParticleTruth:
    """Where the particles of the last observed frame should go.

    Attributes:
      places: at every predicted frame; where they were for particles of no object [m].
      moved: particles on objects that move by `MOVED_M` in the window.
      untouched: particles on the other objects.
      static: particles of no object and far from the robot.
    """

    places: Float[np.ndarray, "s n 3"]
    moved: Bool[np.ndarray, "n"]
    untouched: Bool[np.ndarray, "n"]
    static: Bool[np.ndarray, "n"]


@dataclass(frozen=True)
class MotionScores:
    """What the particles' motion scored on every held-out episode.

    Attributes:
      episodes: numbers of the episodes.
      tasks: theirs.
      windows: windows rolled out, over all episodes.
      moving_windows: those in which a seen object moves.
      values: `MOTION_METRICS` of every predictor; NaN where nothing of a kind was seen.
    """

    episodes: tuple[int, ...]
    tasks: tuple[str, ...]
    windows: int
    moving_windows: int
    values: Float[np.ndarray, "episodes predictors steps 4"]


def particle_truth(
    cloud: ParticleCloud, objects: Objects, robot_positions: Float[Array, "f p 3"]
) -> ParticleTruth:
    """Say where particles should go, and which of them can be judged.

    Args:
      cloud: encoded from the last observed frame.
      objects: during the window.
      robot_positions: kinematic points of the window [m].
    """
    last = OBSERVED_FRAMES - 1
    points, mask = np.asarray(cloud.positions), np.asarray(cloud.mask)
    owners = np.where(mask, objects.owners(last, points), -1)
    moving = objects.displacements(last)[OBSERVED_FRAMES:].max(axis=0) >= MOVED_M
    # One more entry for the owner -1, which is no object.
    moved = np.append(moving, False)[owners]
    robot = np.asarray(robot_positions).reshape(-1, 3)
    return ParticleTruth(
        places=objects.move(points, owners, last)[OBSERVED_FRAMES:],
        moved=moved,
        untouched=(owners >= 0) & ~moved,
        static=mask & (owners < 0) & ~near_points(points, robot, FAR_FROM_ROBOT_M),
    )


def score_motion(
    positions: Float[Array, "s n 3"], truth: ParticleTruth
) -> Float[np.ndarray, "s 4"]:
    """Score predicted particles.

    Returns:
      `MOTION_METRICS` [m]; NaN where there is no such particle.
    """
    error = np.linalg.norm(np.asarray(positions, np.float64) - truth.places, axis=-1)
    groups = (truth.moved | truth.untouched, truth.moved, truth.untouched, truth.static)
    columns = [np.where(group[None], error, np.nan) for group in groups]
    return np.stack([masked_mean(column, 1) for column in columns], axis=1)


def has_motion_truth(dataset: Dataset, episodes: Sequence[int]) -> bool:
    """Say whether the objects of all these episodes are known."""
    return all(has_objects(dataset, number) for number in episodes)


def evaluate_motion(
    spread: SpreadModel,
    config: Config,
    dataset: Dataset,
    windows: Sequence[tuple[int, int]],
    say: Callable[[str], None] = lambda text: None,
) -> MotionScores | None:
    """Roll out windows without rendering, and score the particles' motion.

    Args:
      spread: the model, on the devices that share the windows.
      config: `data` and `eval` say what is read, how far is rolled out, and the seed.
      dataset: whose objects are known.
      windows: number of the episode and first frame.
      say: is told when an episode begins.

    Returns:
      Scores; an episode's windows are averaged. None in all processes but the primary.

    Raises:
      UserError: the data set is damaged.
    """
    scored = score_windows(spread, config, dataset, windows, say)
    return None if scored is None else collect_motion(dataset, scored)


def score_windows(
    spread: SpreadModel,
    config: Config,
    dataset: Dataset,
    windows: Sequence[tuple[int, int]],
    say: Callable[[str], None],
) -> dict[tuple[int, int], Float[np.ndarray, "predictors s 4"]] | None:
    """Return what `score_motion` says of every predictor; arguments as of `evaluate_motion`."""
    told: set[int] = set()

    def work(compiled: CompiledModel, window: tuple[int, int]) -> np.ndarray:
        episode, start = window
        if episode not in told:
            told.add(episode)
            say(f"motion of objects, episode {episode} ({dataset.episode(episode).task})")
        return _score_window(compiled, config, dataset, episode, start)

    every = spread.map(work, windows)
    return None if every is None else dict(zip(windows, every, strict=True))


def collect_motion(
    dataset: Dataset, scored: Mapping[tuple[int, int], Float[np.ndarray, "predictors s 4"]]
) -> MotionScores:
    """Average the windows of every episode.

    Args:
      dataset: theirs.
      scored: by number of the episode and first frame.
    """
    episodes: dict[int, list[np.ndarray]] = {}
    for (episode, _), scores in scored.items():
        episodes.setdefault(episode, []).append(scores)
    return MotionScores(
        episodes=tuple(episodes),
        tasks=tuple(dataset.episode(number).task for number in episodes),
        windows=len(scored),
        moving_windows=sum(bool(np.isfinite(scores[0, 0, 1])) for scores in scored.values()),
        values=np.stack([masked_mean(np.stack(rows), 0) for rows in episodes.values()]),
    )


def all_windows(dataset: Dataset, config: Config, split: str) -> list[tuple[int, int]]:
    """List the windows from every possible start of the episodes that an evaluation takes.

    Args:
      dataset: to list from.
      config: `eval` says how many episodes and steps.
      split: train, validation or test.
    """
    index = WindowIndex(dataset, split, OBSERVED_FRAMES + config.eval.num_steps)
    chosen = [e.number for e in index.episodes][: config.eval.num_episodes or None]
    listed = (index[number] for number in range(len(index)))
    return [window for window in listed if window[0] in chosen]


def _score_window(
    compiled: CompiledModel, config: Config, dataset: Dataset, episode: int, start: int
) -> Float[np.ndarray, "predictors s 4"]:
    length = OBSERVED_FRAMES + config.eval.num_steps
    batch = read_window(dataset, episode, start, OBSERVED_FRAMES, config.data)
    robot = read_robot(dataset, episode, start, length)
    objects = read_objects(dataset, episode, start, length)
    if objects is None:
        raise ValueError(f"the objects of episode {episode} are not known")
    encode_key, rollout_key = window_keys(config.eval.seed, batch)
    observed = compiled.encode(batch.frames, batch.robot, encode_key)
    predicted = compiled.rollout(observed, robot, rollout_key)
    return score_rollout(observed, predicted.positions, robot, objects)


def score_rollout(
    observed: ParticleCloud,
    predicted: Float[Array, "s n 3"],
    robot: RobotPoints,
    objects: Objects,
) -> Float[np.ndarray, "predictors s 4"]:
    """Score how a window's particles move in a rollout and in those that need no model.

    Args:
      observed: clouds at -2 and -1, axes (2).
      predicted: the model's particles at every predicted frame [m].
      robot: of the window, axes (2 + s).
      objects: during the window.

    Returns:
      What `score_motion` says of every one of `MOTION_PREDICTORS`.

    Raises:
      UserError: a predicted place is not finite, which must not be taken for nothing to score.
    """
    real = np.asarray(observed.mask)[-1]
    bad = ~np.isfinite(np.asarray(predicted)[:, real]).all(axis=(1, 2))
    if bad.any():
        raise UserError(
            f"Particles of rollout step {int(np.argmax(bad))} are not finite; this checkpoint is "
            "unusable. Choose an earlier one with --step, or train again."
        )
    previous, current = (jax.tree.map(lambda x, i=i: x[i], observed) for i in range(2))
    truth = particle_truth(current, objects, robot.positions)
    still = np.repeat(np.asarray(current.positions)[None], len(predicted), axis=0)
    carried = carry_particles(previous, current, robot).positions
    return np.stack([score_motion(x, truth) for x in (predicted, still, carried)])
