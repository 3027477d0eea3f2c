"""One run on all its held-out episodes: which windows, whose plans, all scores, some clips."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.machine import settle_memory
from hdvpd.basics.statistics import masked_mean
from hdvpd.basics.types import Batch
from hdvpd.config import Config, EvalConfig
from hdvpd.data.store import Dataset
from hdvpd.data.truth import Objects, read_objects
from hdvpd.data.windows import (
    OBSERVED_FRAMES,
    WindowIndex,
    read_robot,
    read_window,
    select_cameras,
)
from hdvpd.evaluation.controls import Loan, lend_plans
from hdvpd.evaluation.curves import PREDICTORS, Scores
from hdvpd.evaluation.objects import (
    MotionScores,
    all_windows,
    collect_motion,
    has_motion_truth,
    score_rollout,
    score_windows,
)
from hdvpd.evaluation.rollouts import WindowResult, compile_window, evaluate_window
from hdvpd.evaluation.scoring import WindowScores
from hdvpd.evaluation.spreading import spread_model
from hdvpd.evaluation.videos import Clip
from hdvpd.model import Model
from hdvpd.model.compiled import CompiledModel, CompileModel, make_compiler

SPLIT = "test"


@dataclass(frozen=True)
class Window:
    """What is rolled out.

    Attributes:
      episode: number of the episode.
      start: its first observed frame.
      loan: whose plan the shuffled-action control uses; None where that is not asked for.
    """

    episode: int
    start: int
    loan: Loan | None


@dataclass(frozen=True)
class RunResult:
    """What the evaluation of a run yields.

    Attributes:
      scores: of every episode.
      motion: of the particles, where objects are known.
      clips: number of the episode and its rollout, for the first `eval.num_videos` episodes.
    """

    scores: Scores
    motion: MotionScores | None
    clips: tuple[tuple[int, Clip], ...]


def select_windows(dataset: Dataset, settings: EvalConfig) -> tuple[Window, ...]:
    """Choose the windows of an evaluation and whose plans they borrow.

    Raises:
      UserError: the split is empty, an episode is too short, or there is only one episode.
    """
    length = OBSERVED_FRAMES + settings.num_steps
    short = [e for e in dataset.split(SPLIT)[: settings.num_episodes or None] if e.length < length]
    if short and not settings.skip_short:
        shortest = min(short, key=lambda episode: episode.length)
        steps = shortest.length - OBSERVED_FRAMES
        fewer = f"Ask for --steps {steps} or less, leave" if steps > 0 else "Leave"
        raise UserError(
            f"Held-out episode {shortest.number} of {dataset.title} has {shortest.length} frames, "
            f"but {settings.num_steps} rollout steps need {length} ({OBSERVED_FRAMES} observed). "
            f"{fewer} such episodes out with --eval.skip-short, or record longer ones."
        )
    spread = WindowIndex(dataset, SPLIT, length).spread(settings.windows_per_episode)
    episodes = list(dict.fromkeys(episode for episode, _ in spread))
    chosen = [w for w in spread if w[0] in episodes[: settings.num_episodes or None]]
    if "shuffled_actions" not in settings.controls:
        return tuple(Window(*window, loan=None) for window in chosen)
    loans = lend_plans(dataset, chosen, SPLIT, length)
    return tuple(Window(*window, loan) for window, loan in zip(chosen, loans, strict=True))


def make_clip(
    batch: Batch, result: WindowResult, cameras: tuple[str, ...], title: str, rate_hz: float
) -> Clip:
    """Collect what a video shows of a window."""
    return Clip(
        title=title,
        cameras=cameras,
        rate_hz=rate_hz,
        truth=result.truth,
        depth_m=np.asarray(batch.frames.depth_m),
        camera=batch.frames.camera,
        prediction=result.prediction,
        ssim=result.scores.images[0, :, :, 0].T,
        positions=np.asarray(result.clouds.positions),
        mask=np.asarray(result.clouds.mask),
        robot=batch.robot,
    )


def share_programs() -> CompileModel:
    """Return a `compile_model` whose models share what is compiled, if nothing else differs."""
    made: dict[Any, CompileModel] = {}

    def compile_model(model: Model) -> CompiledModel:
        config = model.config
        size = (config.data.height, config.data.width)
        kind = (size, config.model, config.render, config.train.remat, model.scene)
        if kind not in made:
            made[kind] = make_compiler(model)
        return made[kind](model)

    return compile_model


def evaluate_run(
    name: str,
    model: Model,
    config: Config,
    dataset: Dataset,
    windows: Sequence[Window],
    *,
    say: Callable[[str], None],
    compile_model: CompileModel,
) -> RunResult | None:
    """Roll out all held-out episodes.

    Args:
      name: of the run.
      model: with trained parameters.
      config: `data` and `eval` say what is read and how it is scored.
      dataset: to evaluate on.
      windows: of `select_windows`.
      say: is told of progress.
      compile_model: gives the model its compiled parts (see `share_programs`).

    Returns:
      Scores and clips, equal for equal arguments on any devices; None but in the primary process.

    Raises:
      UserError: the data set does not fit, or is damaged.
    """
    cameras = select_cameras(dataset, config.data)
    spread = spread_model(model, config.eval.num_devices, compile_model)
    episodes = list(dict.fromkeys(window.episode for window in windows))
    filmed = [[w.episode for w in windows].index(e) for e in episodes[: config.eval.num_videos]]

    ready: set[int] = set()

    def work(compiled: CompiledModel, i: int) -> _Finding:
        window, task = windows[i], dataset.episode(windows[i].episode).task
        first = id(compiled) not in ready  # of a device, which is worked off alone
        ready.add(id(compiled))
        title = f"episode {dataset.episode_title(window.episode)}"
        say(f"{name}: window {i + 1}/{len(windows)}, {title} ({task}){'; compiling first' * first}")
        batch, result, objects = roll_out_window(compiled, config, dataset, window, first=first)
        motion = np.empty(0) if objects is None else _score_motion(batch, result, objects)
        shown = batch, result, cameras, f"{title}, {task}", dataset.rate_hz
        return _Finding(result.scores, motion, make_clip(*shown) if i in filmed else None)

    found = spread.map(work, range(len(windows)))
    every = all_windows(dataset, config, SPLIT) if has_motion_truth(dataset, episodes) else []
    unrendered = sorted(set(every) - {(w.episode, w.start) for w in windows})
    unseen = score_windows(spread, config, dataset, unrendered, say)
    if found is None or unseen is None:
        return None
    pairs = list(zip(windows, found, strict=True))
    scored = {e: [x.scores for w, x in pairs if w.episode == e] for e in episodes}
    scores = collect_scores(name, cameras, scored_predictors(config.eval), scored)
    clips = tuple((w.episode, x.clip) for w, x in pairs if x.clip is not None)
    if not every:
        return RunResult(scores, None, clips)
    seen = {(w.episode, w.start): x.motion for w, x in pairs}
    motion = collect_motion(dataset, {at: (unseen | seen)[at] for at in every})
    return RunResult(dataclasses.replace(scores, motion=motion.values), motion, clips)


@dataclass(frozen=True)
class _Finding:
    """What is kept of a window: no pictures unless filmed, for memory must not grow by them."""

    scores: WindowScores
    motion: np.ndarray  # of no predictor where objects are not known
    clip: Clip | None


def roll_out_window(
    compiled: CompiledModel, config: Config, dataset: Dataset, window: Window, *, first: bool
) -> tuple[Batch, WindowResult, Objects | None]:
    """Read a window and its objects, and let the model and its controls predict it.

    Args:
      compiled: the model.
      config: `data` and `eval` say what is read and how it is scored.
      dataset: to read from.
      window: of it.
      first: whether the model's parts are still to be compiled, which is done beside each other.

    Raises:
      UserError: the data set does not fit, or is damaged.
    """
    length = OBSERVED_FRAMES + config.eval.num_steps
    batch = read_window(dataset, window.episode, window.start, length, config.data)
    objects = read_objects(dataset, window.episode, window.start, length)
    loan, controls = window.loan, scored_predictors(config.eval)[1:]
    lent = loan and read_robot(dataset, loan.episode, loan.start, length)
    if first:
        compile_window(compiled, batch, lent, controls=controls, seed=config.eval.seed)
        settle_memory()
    result = evaluate_window(
        compiled,
        batch,
        lent,
        controls=controls,
        seed=config.eval.seed,
        moving_threshold=config.eval.moving_threshold,
        objects=objects,
    )
    return batch, result, objects


def _score_motion(batch: Batch, result: WindowResult, objects: Objects) -> np.ndarray:
    observed = jax.tree.map(lambda x: x[:OBSERVED_FRAMES], result.clouds)
    predicted = result.clouds.positions[OBSERVED_FRAMES:]
    return score_rollout(observed, predicted, batch.robot, objects)


def scored_predictors(settings: EvalConfig) -> tuple[str, ...]:
    """Return the model and the controls asked for, in the order of `PREDICTORS`."""
    return tuple(p for p in PREDICTORS if p == "model" or p in settings.controls)


def collect_scores(
    name: str,
    cameras: tuple[str, ...],
    predictors: tuple[str, ...],
    scored: Mapping[int, Sequence[WindowScores]],
) -> Scores:
    """Average the windows of every episode."""

    def average(name: str) -> np.ndarray:
        windows = ([getattr(window, name) for window in own] for own in scored.values())
        return np.stack([masked_mean(np.stack(values), 0) for values in windows])

    return Scores(
        name=name,
        cameras=cameras,
        episodes=tuple(scored),
        predictors=predictors,
        images=average("images"),
        depth=average("depth"),
        pixels=average("pixels"),
        reconstruction=average("reconstruction"),
    )


def describe_windows(windows: Sequence[Window]) -> list[dict[str, Any]]:
    """Say for metrics.json what was rolled out."""
    return [dataclasses.asdict(window) for window in windows]
