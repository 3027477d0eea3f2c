"""Evaluate runs: `main` rolls out held-out episodes and writes curves, videos and the report.

The same checkpoint, data and settings give the same numbers: nothing is random but the choice of
particles, from `eval.seed`.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import apply_overrides, flatten, to_toml
from hdvpd.config.reading import Tables
from hdvpd.config.settings import entries, free_keys
from hdvpd.data.store import Dataset
from hdvpd.data.windows import select_cameras
from hdvpd.errors import UserError
from hdvpd.evaluation.curves import (
    episodes_csv,
    plot_curves,
    summarize,
    to_csv,
    to_json,
    to_png,
)
from hdvpd.evaluation.episodes import (
    SPLIT,
    RunResult,
    Window,
    describe_windows,
    evaluate_run,
    scored_predictors,
    select_windows,
)
from hdvpd.evaluation.outputs import METRICS_FILE, explain_write_errors, publish, staging_folder
from hdvpd.evaluation.report import RunReport, Video, render_report
from hdvpd.evaluation.verdicts import average_table, explain_table, judge, to_markdown
from hdvpd.evaluation.videos import write_clip
from hdvpd.kernels.memory import keep_freed_memory
from hdvpd.model import Model
from hdvpd.training.checkpoints import load_model

_PLANS = {
    "commanded": "recorded commands",
    "next_positions": "where the robot went, for want of recorded commands",
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One run, ready to be evaluated.

    Attributes:
      folder: of the run.
      model: with the checkpoint's parameters.
      checkpoint_step: of the checkpoint.
      config: resolved, with the flags of this evaluation.
      dataset: to evaluate on.
      windows: what is rolled out.
      frames: what decides which images the predictors are scored on.
    """

    folder: Path
    model: Model
    checkpoint_step: int
    config: Config
    dataset: Dataset
    windows: tuple[Window, ...]
    frames: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One run, evaluated.

    Attributes:
      run: what was evaluated.
      result: scores and clips.
      summary: its object in metrics.json.
    """

    run: Run
    result: RunResult
    summary: dict[str, Any]


def main(
    runs: Sequence[Path],
    *,
    out: Path | None = None,
    steps: int | None = None,
    checkpoint_step: int | None = None,
    overrides: Tables | None = None,
) -> None:
    """Evaluate one run into its own folder, or several into one folder with a joint plot.

    Args:
      runs: run folders, or names of runs in `runs/`.
      out: folder of the results; None is `RUN/eval`, with the report in `RUN/report`.
      steps: predicted frames per rollout; None takes the runs' `eval.num_steps`.
      checkpoint_step: which checkpoint; None takes each run's newest sound one.
      overrides: such as `{"eval": {"num_episodes": 4}}`, for every run.

    Raises:
      UserError: a run, its checkpoint or its data is missing, damaged or does not fit.
    """
    keep_freed_memory()
    folders = find_runs(runs)
    if out is None and len(folders) > 1:
        raise UserError(
            f"{len(folders)} runs are compared in one place: say where with --out DIR, for example "
            "--out runs/comparison."
        )
    if steps is not None:
        given = overrides or {}
        overrides = {**given, "eval": {**given.get("eval", {}), "num_steps": steps}}
    first = next(iter(folders.values()))
    target = first / "eval" if out is None else out
    report = (first if out is None else out) / "report" / "index.html"
    with staging_folder(target) as staging:
        ready = {}
        for name, folder in folders.items():
            file = str(folder / "config.toml")
            configure = functools.partial(apply_overrides, overrides=overrides or {}, source=file)
            ready[name] = prepare(folder, checkpoint_step, configure)
        require_same_frames(ready)
        evaluations = {name: evaluate(name, run) for name, run in ready.items()}
        videos = write_results(staging, evaluations)
        publish(staging, target, report)
    for name, evaluation in evaluations.items():
        print_summary(name, evaluation)
    for video in videos[:1]:
        more = f" (and {len(videos) - 1} more)" if len(videos) > 1 else ""
        print(f"video    {target / video}{more}")
    for label, name in (("curve", "ssim.png"), ("table", "metrics.md"), ("numbers", METRICS_FILE)):
        print(f"{label:8} {target / name}")
    print(f"report   {report}", flush=True)


def find_runs(runs: Sequence[Path]) -> dict[str, Path]:
    """Find the folders of runs.

    Args:
      runs: paths, or names of runs in `runs/`.

    Returns:
      Folder by name; the name is the folder's, or the path as given where two are called alike.

    Raises:
      UserError: a run does not exist, is no run, or is named twice.
    """
    folders: list[Path] = []
    for run in runs:
        candidates = [run, Path("runs") / run]
        found = next((c for c in candidates if (c / "config.toml").is_file()), None)
        if found is None:
            there = sorted(p.parent.name for p in Path("runs").glob("*/config.toml"))
            raise UserError(
                f"{run} is no run folder (it has no config.toml). Train one with `hdvpd train`, or "
                f"give the path of one; runs/ holds {', '.join(there) or 'none'}."
            )
        if any(found.resolve() == other.resolve() for other in folders):
            raise UserError(f"{run} is named twice: name every run once.")
        folders.append(found)
    names = [folder.resolve().name for folder in folders]
    return {
        name if names.count(name) == 1 else folder.as_posix(): folder
        for name, folder in zip(names, folders, strict=True)
    }


def prepare(
    folder: Path, checkpoint_step: int | None, configure: Callable[[Config], Config]
) -> Run:
    """Load a run and its data, and check that they fit.

    Args:
      folder: of the run.
      checkpoint_step: which checkpoint, or None for the newest sound one.
      configure: from the configuration of the training to that of the evaluation.

    Returns:
      The run, ready to be evaluated.

    Raises:
      UserError: see `main`.
    """
    model, trained, scene, step = load_model(folder, checkpoint_step)
    config = configure(trained)
    require_changeable(trained, config)
    dataset = Dataset(config.data.path)
    require_scene(scene, dataset, config, folder)
    windows = select_windows(dataset, config.eval)
    frames = {
        "dataset": dataset.identity(),
        "cameras": list(select_cameras(dataset, config.data)),
        "image_size": [config.data.height, config.data.width],
        "far": config.render.far,
        "moving_threshold": config.eval.moving_threshold,
        "split": SPLIT,
        "steps": config.eval.num_steps,
        "predictors": list(scored_predictors(config.eval)),
        "windows": describe_windows(windows),
    }
    return Run(folder, model, step, config, dataset, windows, frames)


def evaluate(name: str, run: Run) -> Evaluation:
    """Evaluate one run.

    Args:
      name: of the run.
      run: ready to be evaluated.

    Returns:
      Scores, clips and the object of metrics.json.
    """
    result = evaluate_run(
        name,
        run.model,
        run.config,
        run.dataset,
        run.windows,
        say=lambda text: print(text, flush=True),
    )
    shown = ("cameras", "steps", "predictors")
    settings = {k: v for k, v in run.frames.items() if k not in shown} | {
        "checkpoint_step": run.checkpoint_step,
        "seed": run.config.eval.seed,
        "psnr": "10 log10(1 / MSE) per frame, then averaged; at most 100 dB",
        "joint_targets_source": run.dataset.joint_targets_source,
        "links_source": run.dataset.links_source,
        "moving_cameras": moving_cameras(run),
    }
    return Evaluation(run, result, summarize(result.scores, settings))


def moving_cameras(run: Run) -> list[str]:
    """Name the evaluated cameras that the robot carries."""
    return [name for name in run.frames["cameras"] if name in run.dataset.moving_cameras]


def describe(evaluation: Evaluation) -> dict[str, str]:
    """Say what an evaluation was made from.

    Args:
      evaluation: of one run.

    Returns:
      Label and value, for the report.
    """
    run, config = evaluation.run, evaluation.run.config
    file = run.folder / "git.txt"
    code = file.read_text(errors="replace").splitlines() if file.is_file() else []
    targets, moving = run.dataset.joint_targets_source, moving_cameras(run)
    poses = f" ({', '.join(moving)}: pose as measured, also of predicted frames)" if moving else ""
    return {
        "checkpoint": f"step {run.checkpoint_step} of {config.train.num_steps}",
        "data set": f"{config.data.path} ({run.frames['dataset']})",
        "held-out episodes": ", ".join(map(str, evaluation.result.scores.episodes)),
        "cameras": ", ".join(run.frames["cameras"]) + poses,
        "plan": f"{_PLANS.get(targets, targets)}, links from {run.dataset.links_source}",
        "images": f"{config.data.height}\u00d7{config.data.width} px",
        "particles": f"{config.model.num_particles:,} per time step",
        "code": code[0] if code else "unknown",
    }


def require_changeable(trained: Config, config: Config) -> None:
    """Refuse flags that would ask a trained model to be another one.

    Args:
      trained: configuration of the run.
      config: the same after the flags of the evaluation.

    Raises:
      UserError: naming the first key that must stay.
    """
    old = flatten(trained)
    for entry in entries(config):
        was = old.get(entry.key)
        if entry.value != was and "evaluation" not in entry.free:
            flags = ", ".join(
                f"--{key.replace('_', '-')}" for key in free_keys(Config, "evaluation")
            )
            raise UserError(
                f"{entry.key} = {entry.value!r} cannot be chosen in an evaluation: the run was "
                f"trained with {was!r}. Flags that can, with all below them: {flags}."
            )


def require_scene(scene: SceneSpec, dataset: Dataset, config: Config, folder: Path) -> None:
    """Refuse a data set of another robot or workspace.

    Args:
      scene: what the model was built for.
      dataset: what it is to be evaluated on.
      config: may override the workspace.
      folder: of the run, for the message.

    Raises:
      UserError: naming both.
    """
    found = dataset.scene_spec(config.data)
    if found != scene:
        raise UserError(
            f"The model in {folder} was trained for {scene.num_robot_points} kinematic points and "
            f"the workspace {scene.workspace_min} to {scene.workspace_max}, but the data set "
            f"{dataset.path} has {found.num_robot_points} and {found.workspace_min} to "
            f"{found.workspace_max}. Name a data set of the same robot and workspace with "
            "--data.path."
        )


def require_same_frames(runs: dict[str, Run]) -> None:
    """Refuse to compare runs that would be scored on different frames.

    Args:
      runs: by name.

    Raises:
      UserError: naming the first run that differs from the first.
    """
    first_name, first = next(iter(runs.items()))
    for name, run in runs.items():
        for key, value in run.frames.items():
            if value != first.frames[key]:
                raise UserError(
                    f"Runs {first_name} and {name} would be scored on different frames and cannot "
                    f"share a plot: {key} is {first.frames[key]} and {value}. Give both the same "
                    "with flags such as --steps, --data.path or --eval.*, or evaluate them apart."
                )


def write_results(staging: Path, evaluations: dict[str, Evaluation]) -> list[Path]:
    """Write all files of an evaluation.

    Args:
      staging: an empty folder.
      evaluations: by name of the run.

    Returns:
      The videos' paths inside the folder.
    """
    summaries = {name: e.summary for name, e in evaluations.items()}
    single = len(summaries) == 1
    curve = to_png(plot_curves(summaries))
    pages, videos = [], []
    with explain_write_errors(staging.parent):
        for name, evaluation in evaluations.items():
            below = Path() if single else Path(name)
            shown = []
            for number, clip in evaluation.result.clips:
                stem = f"episode-{number:04d}"
                videos.append(Path("videos") / below / f"{stem}.mp4")
                write_clip(clip, staging / videos[-1], staging / "frames" / below / stem)
                mp4 = staging / videos[-1]
                poster = mp4.with_suffix(".jpg").read_bytes()
                shown.append(Video(clip.title, mp4.read_bytes(), poster))
            pages.append(
                RunReport(
                    name=name,
                    summary=evaluation.summary,
                    config_toml=to_toml(evaluation.run.config),
                    facts=describe(evaluation),
                    videos=tuple(shown),
                )
            )
        value = next(iter(summaries.values())) if single else {"runs": summaries}
        (staging / METRICS_FILE).write_text(to_json(value))
        (staging / "metrics.csv").write_text(to_csv(summaries))
        (staging / "metrics.md").write_text(to_markdown(summaries), encoding="utf-8")
        scores = [e.result.scores for e in evaluations.values()]
        (staging / "episodes.csv").write_text(episodes_csv(scores))
        (staging / "ssim.png").write_bytes(curve)
        (staging / "report.html").write_text(render_report(pages, curve), encoding="utf-8")
    return videos


def print_summary(name: str, evaluation: Evaluation) -> None:
    """Print means over all rollout steps and what they say.

    Args:
      name: of the run.
      evaluation: of the run.
    """
    summary = evaluation.summary
    title = f"{name}, checkpoint {summary['checkpoint_step']}: {explain_table(summary)}"
    print()
    average_table(summary, title).print()
    print()
    for verdict in judge(summary):
        print(verdict.text)
