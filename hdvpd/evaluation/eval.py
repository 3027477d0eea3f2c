"""Evaluate runs: `main` rolls out held-out episodes and writes curves, videos and the report.

The same checkpoint, data and settings give the same numbers: nothing is random but the choice of
particles, from `eval.seed`.
"""

import contextlib
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hdvpd.basics.errors import UserError
from hdvpd.basics.machine import keep_freed_memory
from hdvpd.config import Config, SceneSpec
from hdvpd.config.experiments import apply_overrides, flatten
from hdvpd.config.reading import Tables
from hdvpd.config.settings import entries, free_keys
from hdvpd.data.mixture import open_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import select_cameras
from hdvpd.evaluation.curves import summarize
from hdvpd.evaluation.episodes import (
    SPLIT,
    Window,
    describe_windows,
    evaluate_run,
    scored_predictors,
    select_windows,
    share_programs,
)
from hdvpd.evaluation.motion_plots import judge_motion, write_motion
from hdvpd.evaluation.motion_tables import motion_tables, summarize_motion
from hdvpd.evaluation.objects import all_windows, evaluate_motion, has_motion_truth
from hdvpd.evaluation.outputs import METRICS_FILE, publish, require_place, staging_folder
from hdvpd.evaluation.pixel_tables import summarize_pixels
from hdvpd.evaluation.results import (
    ORIGIN,
    Evaluation,
    Run,
    ScenePage,
    moving_cameras,
    print_summary,
    require_same_frames,
    write_results,
)
from hdvpd.evaluation.spreading import spread_model
from hdvpd.kernels.kept_programs import keep_programs
from hdvpd.model.compiled import CompileModel
from hdvpd.training.checkpoints import load_model
from hdvpd.training.packed import find_or_unpack
from hdvpd.training.processes import Team


def main(
    runs: Sequence[Path],
    *,
    out: Path | None = None,
    steps: int | None = None,
    checkpoint_step: int | None = None,
    overrides: Tables | None = None,
    objects_only: bool = False,
    scene_page: ScenePage | None = None,
) -> None:
    """Evaluate one run into its own folder, or several into one folder with a joint plot.

    Args:
      runs: run folders, or names of runs in `runs/`.
      out: folder of the results; None is `RUN/eval`, with the report in `RUN/report`.
      steps: predicted frames per rollout; None takes the runs' `eval.num_steps`.
      checkpoint_step: which checkpoint; None takes each run's newest sound one.
      overrides: such as `{"eval": {"num_episodes": 4}}`, for every run.
      objects_only: score the motion of objects and render nothing.
      scene_page: makes a page in three dimensions of a rollout, which the report links; or None.

    Raises:
      UserError: a run, its checkpoint or its data is missing, damaged or does not fit.
    """
    keep_freed_memory()
    keep_programs()
    team = Team.here()
    # The primary first, for it may have to unpack a model for all.
    team.together(lambda: find_runs(runs) if team.primary else None)
    folders = team.together(lambda: find_runs(runs))
    if steps is not None:
        given = overrides or {}
        overrides = {**given, "eval": {**given.get("eval", {}), "num_steps": steps}}
    target, report = team.together(lambda: find_place(list(folders.values()), out, team))
    with contextlib.ExitStack() as opened:
        # Processes but the primary compute, and neither write nor talk.
        place = staging_folder(target) if team.primary else contextlib.nullcontext(target)
        staging = team.together(lambda: opened.enter_context(place))
        ready = team.together(lambda: prepare_all(folders, checkpoint_step, overrides or {}))
        say = _say if team.primary else lambda text: None
        if objects_only:
            return _report_motion(staging, target, score_motions(ready, say))
        compile_model = share_programs()
        found = {name: evaluate(name, run, compile_model, say) for name, run in ready.items()}
        if not team.primary:
            return
        evaluations = {name: result for name, result in found.items() if result is not None}
        results = os.path.relpath(target, report.parent)
        videos = write_results(staging, evaluations, results, scene_page)
        publish(staging, target, report)
    for name, evaluation in evaluations.items():
        print_summary(name, evaluation)
    _say_where(target, report, videos)


def find_place(runs: Sequence[Path], out: Path | None, team: Team) -> tuple[Path, Path]:
    """Say where results and report go; only the primary, which writes, looks at what is there.

    Raises:
      UserError: several runs have no place, or the one given belongs to something else.
    """
    if out is None and len(runs) > 1:
        raise UserError(
            f"{len(runs)} runs are compared in one place: say where with --out DIR, for example "
            "--out runs/comparison."
        )
    if out is None:
        return runs[0] / "eval", runs[0] / "report" / "index.html"
    if team.primary:
        require_place(out, runs)
    return out, out / "report" / "index.html"


def find_runs(runs: Sequence[Path]) -> dict[str, Path]:
    """Find the folders of runs.

    Args:
      runs: paths, or names of runs in `runs/`; `reference` is the model that comes with hdvpd,
        which becomes a run there.

    Returns:
      Folder by name; the name is the folder's, or the path as given where two are called alike.

    Raises:
      UserError: a run does not exist, is no run, or is named twice; `reference` is there, but of
        another version.
    """
    folders: list[Path] = []
    for run in runs:
        found = find_or_unpack(run)
        if any(found.resolve() == other.resolve() for other in folders):
            raise UserError(f"{run} is named twice: name every run once.")
        folders.append(found)
    names = [folder.resolve().name for folder in folders]
    return {
        name if names.count(name) == 1 else folder.as_posix(): folder
        for name, folder in zip(names, folders, strict=True)
    }


def prepare_all(
    folders: Mapping[str, Path], checkpoint_step: int | None, overrides: Tables
) -> dict[str, Run]:
    """Load runs that are to be scored on the same frames; arguments and errors as in `main`."""
    ready = {}
    for name, folder in folders.items():
        file = str(folder / "config.toml")
        configure = functools.partial(apply_overrides, overrides=overrides, source=file)
        ready[name] = prepare(folder, checkpoint_step, configure)
    require_same_frames({name: run.frames for name, run in ready.items()})
    return ready


def prepare(
    folder: Path, checkpoint_step: int | None, configure: Callable[[Config], Config]
) -> Run:
    """Load a run and its data, and check that they fit.

    Raises:
      UserError: see `main`.
    """
    model, trained, scene, step = load_model(folder, checkpoint_step)
    config = configure(trained)
    require_changeable(trained, config)
    dataset = open_dataset(config.data)
    require_scene(scene, dataset, config, folder)
    windows = select_windows(dataset, config.eval)
    frames = scored_frames(config, dataset, windows)
    return Run(folder, model, step, config, dataset, windows, frames)


def scored_frames(config: Config, dataset: Dataset, windows: Sequence[Window]) -> dict[str, Any]:
    """Say what decides which images predictors are scored on."""
    scene = dataset.scene_spec(config.data)  # white is what lies outside of its workspace
    return {
        "dataset": dataset.identity(),
        "cameras": list(select_cameras(dataset, config.data)),
        "image_size": [config.data.height, config.data.width],
        "far": config.render.far,
        "workspace": [list(scene.workspace_min), list(scene.workspace_max)],
        "moving_threshold": config.eval.moving_threshold,
        "split": SPLIT,
        "steps": config.eval.num_steps,
        "predictors": list(scored_predictors(config.eval)),
        "windows": describe_windows(windows),
    }


def evaluate(
    name: str, run: Run, compile_model: CompileModel, say: Callable[[str], None]
) -> Evaluation | None:
    """Evaluate one run; `compile_model` gives the model its compiled parts, `say` is told.

    Returns:
      Scores, clips and the object of metrics.json; None in all processes but the primary.
    """
    subject = (name, run.model, run.config, run.dataset, run.windows)
    result = evaluate_run(*subject, say=say, compile_model=compile_model)
    if result is None:
        return None
    shown = ("cameras", "steps", "predictors")
    settings = {k: v for k, v in run.frames.items() if k not in shown} | {
        "checkpoint_step": run.checkpoint_step,
        "seed": run.config.eval.seed,
        "psnr": "10 log10(1 / MSE) per frame, then averaged; at most 100 dB",
        "joint_targets_source": run.dataset.joint_targets_source,
        "links_source": run.dataset.links_source,
        "moving_cameras": moving_cameras(run),
    }
    if result.motion is not None:
        settings["motion"] = summarize_motion(result.motion)
    settings |= summarize_pixels(result.scores)
    return Evaluation(run, result, summarize(result.scores, settings))


def score_motions(
    runs: dict[str, Run], say: Callable[[str], None]
) -> dict[str, dict[str, Any]] | None:
    """Score the motion of objects of every run, and render nothing.

    Returns:
      What motion.json holds of each; None in all processes but the primary.

    Raises:
      UserError: the data set does not know its objects.
    """
    motions, compile_model = {}, share_programs()
    for name, run in runs.items():
        if not has_motion_truth(run.dataset, [window.episode for window in run.windows]):
            raise UserError(
                f"{run.dataset.title} does not know where its objects are: every held-out episode "
                "needs truth/object_to_world and a shape per object in episode.json "
                "(docs/data-format.md). Simulate the data set again, or leave out --objects-only."
            )
        windows = all_windows(run.dataset, run.config, SPLIT)
        spread = spread_model(run.model, run.config.eval.num_devices, compile_model)
        scores = evaluate_motion(spread, run.config, run.dataset, windows, say)
        if scores is not None:
            origin = run.checkpoint_step, run.frames["dataset"], run.config.eval.seed
            motions[name] = dict(zip(ORIGIN, origin, strict=True)) | summarize_motion(scores)
    return motions or None


def _report_motion(
    staging: Path, target: Path, motions: Mapping[str, Mapping[str, Any]] | None
) -> None:
    if motions is None:
        return
    write_motion(staging, motions)
    publish(staging, target)
    for name, motion in motions.items():
        print(f"\n{name}, checkpoint {motion['checkpoint_step']}")
        for table in motion_tables(motion):
            print()
            table.print()
        print()
        for verdict in judge_motion(motion):
            print(verdict.text)
    print(f"\nnumbers  {target / 'motion.json'}\ntable    {target / 'motion.md'}", flush=True)


def _say_where(target: Path, report: Path, videos: Sequence[Path]) -> None:
    for video in videos[:1]:
        more = f" (and {len(videos) - 1} more)" if len(videos) > 1 else ""
        print(f"video    {target / video}{more}")
    for label, name in (("curve", "ssim.png"), ("table", "metrics.md"), ("numbers", METRICS_FILE)):
        print(f"{label:8} {target / name}")
    print(f"report   {report}", flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def require_changeable(trained: Config, config: Config) -> None:
    """Refuse flags that would ask a trained model to be another one.

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

    Raises:
      UserError: naming both.
    """
    found = dataset.scene_spec(config.data)
    if found != scene:
        raise UserError(
            f"The model in {folder} was trained for {scene.num_robot_points} kinematic points and "
            f"the workspace {scene.workspace_min} to {scene.workspace_max}, but the data set "
            f"{dataset.title} has {found.num_robot_points} and {found.workspace_min} to "
            f"{found.workspace_max}. Name a data set of the same robot and workspace."
        )
