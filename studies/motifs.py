"""`python -m studies motifs`: GKAT against graph networks at finding motifs and cycles.

The tasks of arXiv 2107.07999, section 5.1, with its data recipe and sizes of networks. Beyond the
paper, accuracy is that on test graphs which had no part in stopping or choosing an epoch.
"""

import dataclasses
import itertools
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from hdvpd.basics import colors
from hdvpd.basics.errors import UserError, how_to_install
from studies.fitting import AbstractLearner, fit
from studies.graph_tasks import CYCLE, NUM_NEIGHBOR_DEGREES, Task, make_task
from studies.outputs import (
    Row,
    make_folder,
    paired_summary,
    read_csv,
    table,
    write_csv,
    write_settings,
)
from studies.settings import MOTIF_MODELS, MOTIF_TASKS, MotifSettings, split_names

# Heads and widths, or widths and filters, of every layer: section 5.1.1, and table 5 for trees.
# Table 5 counts GAT's additive attention for GKAT; the program's variant with queries, keys and
# values has these heads and widths on trees, for about as many parameters.
_MOTIF_SIZES = {
    "gkat": ((2, 2), (9, 9)),
    "gat": ((2, 2), (9, 9)),
    "gcn": ((32, 32),),
    "sgc": ((32, 32), (2, 2)),
}
_CYCLE_SIZES = {
    "gkat": ((7, 1), (4, 2)),
    "gat": ((8, 1), (4, 4)),
    "gcn": ((14, 14),),
    "sgc": ((10, 8), (4, 2)),
}
# Okabe and Ito's colours, which stay apart for colour-blind readers.
_COLORS = {
    "gkat": colors.VERMILION, "gat": colors.BLUE, "gcn": colors.GREEN, "sgc": colors.GRAY,
}  # fmt: skip


def main(out: Path, settings: MotifSettings) -> None:
    """Train every model on every task from every seed; write tables and a figure.

    Args:
      out: folder for settings.toml, runs.csv (one row per run, after every run), summary.csv and
        accuracy.png. Runs that are there already, with the same settings, are not repeated; with
        others they are replaced.
      settings: what to run.

    Raises:
      UserError: `out` cannot be a folder, or a model's library is not installed.
    """
    models = split_names(settings, "models", MOTIF_MODELS)
    require_library(models)
    make_folder(out)
    rows = finished_runs(out, settings)
    write_settings(out / "settings.toml", settings)
    for row in _run_all(settings, models, done={_name(row) for row in rows}):
        rows.append(row)
        write_csv(out / "runs.csv", rows)
        print(
            f"{row['task']:16} {row['model']:5} seed {row['seed']}: accuracy {row['accuracy']:.3f} "
            f"after epoch {row['best epoch']} of {row['epochs']}, {row['seconds']:.0f} s",
            flush=True,
        )
    summary = summarize(rows)
    write_csv(out / "summary.csv", summary)
    draw(summary, rows).savefig(out / "accuracy.png", dpi=130)
    print()
    table(summary).print()
    print(f"\nfigure and numbers are in {out}")


def require_library(models: tuple[str, ...]) -> None:
    """Find out before hours of work whether torch_geometric is there.

    Raises:
      UserError: it is needed and not installed.
    """
    others = [model for model in models if model != "gkat"]
    if not others:
        return
    try:
        import studies.baselines  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"{', '.join(others)} need torch_geometric ({error}): {how_to_install('graphs')}, or "
            "run GKAT alone with --models gkat."
        ) from error


def finished_runs(out: Path, settings: MotifSettings) -> list[Row]:
    """Return the runs in a study's folder if they were made with these settings.

    Which tasks, models and seeds are chosen does not change a run.
    """
    made_with, runs = out / "settings.toml", out / "runs.csv"
    if not (made_with.is_file() and runs.is_file()):
        return []
    try:
        earlier = MotifSettings(**tomllib.loads(made_with.read_text()))
    except (TypeError, UserError, tomllib.TOMLDecodeError):
        return []
    chosen = {name: getattr(settings, name) for name in ("tasks", "models", "seeds")}
    return read_csv(runs) if dataclasses.replace(earlier, **chosen) == settings else []


def _name(row: Row) -> tuple[str, str, int]:
    return row["task"], row["model"], row["seed"]


def _run_all(
    settings: MotifSettings, models: tuple[str, ...], done: set[tuple[str, str, int]]
) -> Iterator[Row]:
    tasks = split_names(settings, "tasks", MOTIF_TASKS)
    # Seed by seed: after the first round there is something to compare.
    for seed, name in itertools.product(range(settings.seeds), tasks):
        missing = [model for model in models if (name, model, seed) not in done]
        if missing:
            task = make_task(name, settings, seed)
            yield from (run(task, model, settings, seed) for model in missing)


def run(task: Task, model: str, settings: MotifSettings, seed: int) -> Row:
    """Train one model on one task."""
    started = time.monotonic()
    learner = make_learner(task.name, model, settings, seed)
    found = fit(
        learner,
        task.train,
        task.validation,
        epochs=settings.epochs,
        patience=settings.patience,
        batch_size=settings.batch_size,
        seed=seed,
    )
    return {
        "task": task.name,
        "model": model,
        "seed": seed,
        "accuracy": learner.evaluate(learner.prepare(task.test)).accuracy,
        "train accuracy": learner.evaluate(learner.prepare(task.train)).accuracy,
        "validation accuracy": found.validation.accuracy,
        "validation loss": found.validation.loss,
        "parameters": learner.num_parameters,
        "epochs": found.epochs,
        "best epoch": found.best_epoch,
        "seconds per epoch": found.seconds_per_epoch,
        "seconds": time.monotonic() - started,
    }


def make_learner(task: str, model: str, settings: MotifSettings, seed: int) -> AbstractLearner:
    """Build an untrained model in the size of the task."""
    sizes = (_CYCLE_SIZES if task == CYCLE else _MOTIF_SIZES)[model]
    in_dim = 1 if task == CYCLE else NUM_NEIGHBOR_DEGREES
    rate = settings.learning_rate
    if model == "gkat":
        from studies.gkat import GkatLearner

        hops = settings.cycle_walk_length if task == CYCLE else settings.walk_length
        return GkatLearner(
            in_dim, *sizes, walk_length=hops, decay=settings.decay, learning_rate=rate, seed=seed
        )
    from studies.baselines import GeometricLearner

    return GeometricLearner(model, in_dim, *sizes, learning_rate=rate, seed=seed)


def summarize(rows: list[Row]) -> list[Row]:
    """Return means over seeds per task and model, paired with GKAT.

    A seed gives all models the same graphs.
    """
    return [
        {
            **columns,
            "train accuracy": np.mean([row["train accuracy"] for row in some]),
            "parameters": some[0]["parameters"],
            "epochs": np.mean([row["epochs"] for row in some]),
            "ms per epoch": 1e3 * np.median([row["seconds per epoch"] for row in some]),
        }
        for columns, some in paired_summary(rows, "task", "model", "gkat")
    ]


def draw(summary: list[Row], rows: list[Row]) -> Figure:
    """Draw accuracies with intervals, and every run as a dot."""
    figure = Figure(figsize=(10, 4.5), layout="constrained")
    axes = figure.subplots()
    tasks = list(dict.fromkeys(row["task"] for row in summary))
    models = list(dict.fromkeys(row["model"] for row in summary))
    for index, model in enumerate(models):
        some = [row for row in summary if row["model"] == model]
        place = np.array([tasks.index(row["task"]) for row in some], float)
        place += (index - (len(models) - 1) / 2) * 0.18
        means = [row["accuracy"] for row in some]
        color = _COLORS[model]
        axes.errorbar(place, means, [row["+-"] for row in some], fmt="o", color=color, capsize=3,
                      label=f"{model}: {_span(some, 'parameters')} parameters")  # fmt: skip
        for at, row in zip(place, some, strict=True):
            dots = [r["accuracy"] for r in rows if (r["task"], r["model"]) == (row["task"], model)]
            axes.plot([at + 0.05] * len(dots), dots, ".", color=color, alpha=0.4, markersize=5)
    axes.axhline(0.5, color="black", linestyle=":", linewidth=1)
    axes.set_xticks(range(len(tasks)), tasks)
    axes.set(ylabel="accuracy on test graphs", ylim=(0.4, 1.02))
    axes.set_title("motifs and cycles: mean over seeds with 95 % interval, dots are runs")
    axes.grid(axis="y", alpha=0.25)
    axes.legend(fontsize="small", ncols=2)
    return figure


def _span(rows: list[Row], column: str) -> str:
    values = sorted({row[column] for row in rows})
    return " or ".join(str(value) for value in values)
