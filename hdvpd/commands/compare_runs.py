"""`hdvpd compare`: train every member of the dynamics family alike, and score all of them together.

All runs share one experiment: data, encoder, renderer, optimiser, step budget and seeds; only what
their member's file states differs, or the values that are varied. The members take turns, so that
a change of the machine's load meets all of them, and the first round already compares them.

Everything is kept in the runs' folders. The same command continues after an interruption: a
finished run is not trained again, an interrupted one is resumed exactly, and what was scored on the
same frames is not scored again, whether its checkpoint is still there or not. More seeds or members
later cost only their own runs.

The same command in several processes, on one machine or on many that see the folder, shares the
work: each takes what nobody else has locked (`share`), and all end with the whole comparison.
"""

import dataclasses
import functools
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import jax

from hdvpd.basics import files
from hdvpd.basics.errors import UserError
from hdvpd.basics.layers import count_parameters
from hdvpd.basics.machine import keep_freed_memory
from hdvpd.commands.planned_runs import PlannedRun, choose_variants, plan_runs
from hdvpd.config import Config
from hdvpd.config.experiments import load_config
from hdvpd.config.reading import Tables
from hdvpd.data.mixture import open_dataset
from hdvpd.evaluation.comparison import (
    ComparedRun,
    comparison_tables,
    curves_csv,
    members_csv,
    pairs_csv,
    plot_comparison,
    runs_csv,
    summarize_comparison,
    to_markdown,
)
from hdvpd.evaluation.curves import REFERENCE, Scores, to_json, to_png
from hdvpd.evaluation.episodes import evaluate_run, select_windows, share_programs
from hdvpd.evaluation.eval import prepare, scored_frames
from hdvpd.evaluation.kept_scores import read_scores, scores_to_json
from hdvpd.evaluation.results import require_same_frames
from hdvpd.model import abstract_model
from hdvpd.model.compiled import CompileModel
from hdvpd.training import train
from hdvpd.training.checkpoint_folder import find_damage
from hdvpd.training.parallel import offer_cores
from hdvpd.training.run_folder import RunFolder, config_identity
from hdvpd.training.step import TrainStep, make_train_step

Program = TypeVar("Program")
Result = TypeVar("Result")

_LOOK_AGAIN_S = 5.0
_REMEDY = (
    "What is finished is kept. Free some space or permit writing there, then give the same command "
    "again."
)


def main(
    experiment: str,
    *,
    out: Path,
    members: Sequence[str],
    vary: Sequence[str] = (),
    ablate: Sequence[str] = (),
    num_seeds: int = 3,
    overrides: Tables | None = None,
) -> None:
    """Train what is not yet trained, score what is not yet scored, and write the comparison.

    The arguments are the flags of `hdvpd compare`; those of the configuration are tables.

    Raises:
      UserError: there is no such member, the runs would be scored on different frames, or a run in
        the folder was made otherwise than asked for.
      SystemExit: after a signal, with everything saved.
    """
    keep_freed_memory()
    config = load_config(experiment, overrides)
    runs = plan_runs(config, members, num_seeds, out / "runs", choose_variants(vary, ablate))
    frames = frames_of(runs)
    require_same_frames(frames)
    offer_cores(*(run.config.train for run in runs))
    train_runs(runs)
    compared = evaluate_runs(runs, frames)
    summary = summarize_comparison(compared, describe(runs))
    share({"tables": lambda: write_comparison(out, compared, summary)})
    for table in comparison_tables(summary):
        print()
        table.print()
    print()
    for label, name in (("plot", "ssim.png"), ("tables", "comparison.md")):
        print(f"{label:8} {out / name}", flush=True)


def train_runs(runs: Sequence[PlannedRun]) -> None:
    """Train or resume every run that is not finished.

    Args:
      runs: in this order; those of a member share one compiled step.

    Raises:
      UserError: a run in the folder was made otherwise than asked for.
      SystemExit: after a signal, with everything saved.
    """
    dataset = open_dataset(runs[0].config.data).identity()
    steps: dict[str, TrainStep] = {}

    def finish(number: int, run: PlannedRun) -> None:
        finished = is_finished(run, dataset)
        if not finished:
            with RunFolder(run.folder).lock():  # nothing is said of what is refused
                pass
        state = "is finished" if finished else "training"
        print(f"\n== run {number}/{len(runs)}: {run.name} {state}", flush=True)
        if not finished:
            train.main(
                run.config,
                run_dir=run.folder,
                resume="auto",
                make_step=make_once(steps, run.member, make_train_step),
            )

    share({run.name: functools.partial(finish, number, run) for number, run in enumerate(runs, 1)})


def share(tasks: Mapping[str, Callable[[], Result]]) -> dict[str, Result]:
    """Do tasks that other processes may be doing too.

    Args:
      tasks: by name; a task that another process has locked raises `FolderInUseError`, and is come
        back to after the others. What a process that died has left is done again.

    Returns:
      The results, in the order of the tasks.
    """
    done: dict[str, Result] = {}
    waiting, told = dict(tasks), set[str]()
    while waiting:
        before = len(waiting)
        for name, task in list(waiting.items()):
            try:
                done[name] = task()
            except files.FolderInUseError:
                if name not in told:
                    print(f"{name}: another process is at it; looking again later", flush=True)
                told.add(name)
            else:
                del waiting[name]
        if len(waiting) == before:
            time.sleep(_LOOK_AGAIN_S)
    return {name: done[name] for name in tasks}


def make_once(
    made: dict[str, Program], member: str, make: Callable[..., Program]
) -> Callable[..., Program]:
    """Return what makes a member's program the first time and then gives the same one."""

    def make_or_reuse(*arguments: Any) -> Program:
        if member not in made:
            made[member] = make(*arguments)
        return made[member]

    return make_or_reuse


def is_finished(run: PlannedRun, dataset: str) -> bool:
    """Say whether a run was scored as it is asked for, or its last checkpoint is there and sound.

    Raises:
      UserError: the run was made with another configuration or on another data set.
    """
    if read_scores(run.scores, trained_as(run, dataset)) is not None:
        return True
    folder, step = RunFolder(run.folder), run.config.train.num_steps
    store = folder.checkpoints()
    if run.scores.exists() and not store.steps():
        raise UserError(
            f"{run.scores} is damaged or was made otherwise than this command asks for "
            f"({folder.config_file} says how), and no checkpoint is left: training the run anew "
            "would write over it. Give its settings, remove the folder, or take another --out."
        )
    if step not in store.steps() or find_damage(store.path / str(step)) is not None:
        return False
    saved, _, progress = store.read_origin(step)
    folder.require_same(saved, run.config, saved_dataset=progress["dataset"], dataset=dataset)
    was_shown, shown = _shown_by(saved), _shown_by(run.config)
    for key, asked in shown.items():
        if (was := was_shown[key]) != asked:
            raise UserError(
                f"{run.folder} was trained with {key} = {was!r}, which decides how it is scored, "
                f"but this command says {asked!r}. Give {was!r}, or another --out."
            )
    return True


def trained_as(run: PlannedRun, dataset: str) -> dict[str, Any]:
    """Say what decides a run's last checkpoint and its images; `dataset` is an identity."""
    step = run.config.train.num_steps
    own = {"config": config_identity(run.config), "dataset": dataset, "step": step}
    return {"trained": own | _shown_by(run.config)}


def _shown_by(config: Config) -> dict[str, Any]:
    """List what decides predictions, though a run that is resumed may change it."""
    return {
        "render.eval_num_samples": config.render.eval_num_samples,
        "render.eval_num_proposals": config.render.eval_num_proposals,
    }


def frames_of(runs: Sequence[PlannedRun]) -> dict[str, dict[str, Any]]:
    """Say on which frames each run is scored, by its name."""
    opened = {data: open_dataset(data) for data in {run.config.data for run in runs}}

    def describe_frames(run: PlannedRun) -> dict[str, Any]:
        config, dataset = configure(run, run.config), opened[run.config.data]
        return scored_frames(config, dataset, select_windows(dataset, config.eval))

    return {run.name: describe_frames(run) for run in runs}


def evaluate_runs(
    runs: Sequence[PlannedRun], frames: Mapping[str, dict[str, Any]]
) -> list[ComparedRun]:
    """Score every run on the same frames, those of `frames_of`, and collect its speed and size.

    Raises:
      UserError: a run's checkpoint is missing or damaged.
    """
    dataset = open_dataset(runs[0].config.data)
    compile_model = share_programs()

    def evaluate(number: int, run: PlannedRun) -> ComparedRun:
        lock, refusal = f"{files.LOCK}-scores", f"Another process is scoring {run.folder}."
        made_from = trained_as(run, dataset.identity()) | {
            "frames": frames[run.name],
            "measures": ["images", "pixels", "motion"],
            "seed": run.config.eval.seed,
        }
        with files.locked(run.folder / lock, refusal, _REMEDY):
            print(f"\n== evaluate {number}/{len(runs)}: {run.name}", flush=True)
            scores = score_once(run, made_from, compile_model)
        model = abstract_model(run.config, dataset.scene_spec(run.config.data))
        folder = RunFolder(run.folder)
        return ComparedRun(
            member=run.member,
            seed=run.config.train.seed,
            scores=scores,
            parameters=count_parameters(model),
            dynamics_parameters=count_parameters(model.dynamics),
            steps_per_s=folder.numbers("timing.jsonl", "train", "steps_per_s"),
            particles_per_s=folder.numbers("timing.jsonl", "train", "particles_per_s"),
            skipped_steps=len(folder.numbers("metrics.jsonl", "skipped", "step")),
        )

    tasks = {
        run.name: functools.partial(evaluate, number, run) for number, run in enumerate(runs, 1)
    }
    return list(share(tasks).values())


def configure(run: PlannedRun, trained: Config) -> Config:
    """Return a trained configuration, to be evaluated as this comparison asks for."""
    data = dataclasses.replace(trained.data, path=run.config.data.path)
    settings = dataclasses.replace(run.config.eval, controls=(REFERENCE,))
    return dataclasses.replace(trained, data=data, eval=settings)


def score_once(
    run: PlannedRun, made_from: Mapping[str, Any], compile_model: CompileModel
) -> Scores:
    """Score a run, or read what it scored on the same frames.

    Returns:
      The scores, which are also kept in the run's `scores.json`; with them its checkpoints are
      not needed any more.

    Raises:
      UserError: it was not scored on these frames, and its checkpoint is missing or damaged.
    """
    kept = read_scores(run.scores, made_from)
    if kept is not None:
        print(f"{run.name}: scored before", flush=True)
        return kept
    step = run.config.train.num_steps
    if step not in RunFolder(run.folder).checkpoints().steps():
        raise UserError(
            f"{run.folder} was scored on other frames, and its checkpoint of step {step} is gone. "
            "Put it back to score it on these, or remove the folder to train it again."
        )
    ready = prepare(run.folder, step, functools.partial(configure, run))
    result = evaluate_run(
        run.name,
        ready.model,
        ready.config,
        ready.dataset,
        ready.windows,
        say=lambda text: print(text, flush=True),
        compile_model=compile_model,
    )
    assert result is not None  # this process is alone
    files.write(run.scores, scores_to_json(result.scores, made_from), _REMEDY)
    return result.scores


def describe(runs: Sequence[PlannedRun]) -> dict[str, str]:
    """Say what a comparison was made from."""
    config = runs[0].config
    train, model, dataset = config.train, config.model, open_dataset(config.data)
    return {
        "data set": f"{dataset.title} ({dataset.identity()}), images "
        f"{config.data.height}\u00d7{config.data.width} px",
        "training": f"{train.num_steps} steps, batch size {train.batch_size}, horizon "
        f"{train.horizon}, {train.num_rays} rays",
        "model": f"{model.num_particles:,} particles, tokens of width {model.latent_dim}",
        "code": "; ".join(dict.fromkeys(RunFolder(run.folder).code() for run in runs)),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, "
        f"{jax.devices()[0].device_kind}, jax {jax.__version__}",
    }


def write_comparison(out: Path, runs: Sequence[ComparedRun], summary: Mapping[str, Any]) -> None:
    """Write tables and plot; those of an earlier state of the comparison are replaced.

    Raises:
      FolderInUseError: another process writes the same.
      UserError: the disk is full or not writable.
    """
    texts = {
        "comparison.json": to_json(summary),
        "comparison.md": to_markdown(summary),
        "members.csv": members_csv(summary),
        "pairs.csv": pairs_csv(summary),
        "curves.csv": curves_csv(summary),
        "runs.csv": runs_csv(runs),
    }
    plot = to_png(plot_comparison(summary))
    with files.locked(out / files.LOCK, f"Another process is writing {out}.", _REMEDY):
        for name, text in texts.items():
            files.write(out / name, text, _REMEDY)
        files.write(out / "ssim.png", plot, _REMEDY)
