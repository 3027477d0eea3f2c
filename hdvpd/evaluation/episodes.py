"""One run on all its held-out episodes: which windows, whose plans, all scores, some clips."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.statistics import masked_mean
from hdvpd.basics.types import Batch
from hdvpd.config import Config, EvalConfig
from hdvpd.data.store import Dataset
from hdvpd.data.truth import read_objects
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
    evaluate_motion,
    has_motion_truth,
)
from hdvpd.evaluation.rollouts import WindowResult, evaluate_window
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
        raise UserError(
            f"Held-out episode {short[0].number} of {dataset.title} has {short[0].length} frames, "
            f"but {settings.num_steps} rollout steps need {length} ({OBSERVED_FRAMES} observed). "
            f"Ask for --steps {short[0].length - OBSERVED_FRAMES} or less, leave such episodes "
            "out with --eval.skip-short, or record longer ones."
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
      Scores and clips; equal for equal arguments, on any number of devices and processes. None
      in all processes but the primary.

    Raises:
      UserError: the data set does not fit, or is damaged.
    """
    cameras = select_cameras(dataset, config.data)
    spread = spread_model(model, config.eval.num_devices, compile_model)
    episodes = list(dict.fromkeys(window.episode for window in windows))
    filmed = [[w.episode for w in windows].index(e) for e in episodes[: config.eval.num_videos]]

    def work(compiled: CompiledModel, i: int) -> tuple[WindowScores, Clip | None]:
        window = windows[i]
        task = dataset.episode(window.episode).task
        notice = "; compiling first" if i == 0 else ""
        title = f"episode {dataset.episode_title(window.episode)}"
        say(f"{name}: window {i + 1}/{len(windows)}, {title} ({task}){notice}")
        batch, result = roll_out_window(compiled, config, dataset, window)
        # Only numbers are kept: memory must not grow by every episode's pictures.
        if i not in filmed:
            return result.scores, None
        return result.scores, make_clip(batch, result, cameras, f"{title}, {task}", dataset.rate_hz)

    results, motion = spread.map(work, range(len(windows))), None
    if has_motion_truth(dataset, episodes):
        starts = all_windows(dataset, config, SPLIT)
        motion = evaluate_motion(spread, config, dataset, starts, say)
    if results is None:
        return None
    scored: dict[int, list[WindowScores]] = {}
    for window, (own, _) in zip(windows, results, strict=True):
        scored.setdefault(window.episode, []).append(own)
    clips = tuple((windows[i].episode, c) for i, (_, c) in enumerate(results) if c is not None)
    scores = collect_scores(name, cameras, scored_predictors(config.eval), scored)
    if motion is not None:
        scores = dataclasses.replace(scores, motion=motion.values)
    return RunResult(scores, motion, clips)


def roll_out_window(
    compiled: CompiledModel, config: Config, dataset: Dataset, window: Window
) -> tuple[Batch, WindowResult]:
    """Read a window, and let the model and its controls predict it.

    Raises:
      UserError: the data set does not fit, or is damaged.
    """
    length = OBSERVED_FRAMES + config.eval.num_steps
    batch = read_window(dataset, window.episode, window.start, length, config.data)
    loan = window.loan
    return batch, evaluate_window(
        compiled,
        batch,
        loan and read_robot(dataset, loan.episode, loan.start, length),
        controls=scored_predictors(config.eval)[1:],
        seed=config.eval.seed,
        moving_threshold=config.eval.moving_threshold,
        objects=read_objects(dataset, window.episode, window.start, length),
    )


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
