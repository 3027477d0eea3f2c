"""`python -m studies ranking`: does a trained model rank plans as the simulator does?

HD-VPD's use (arXiv 2406.19800): from one start many plans are rolled out in the model, executed in
the simulator, and compared. Each start's numbers are kept as soon as they are known, so that a
study that was stopped goes on where it was.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.figure
import numpy as np
from scipy import stats

from hdvpd.basics.statistics import student_interval
from hdvpd.basics.tables import plus_minus
from hdvpd.basics.types import Float
from hdvpd.planning.planner import Predictor
from hdvpd.planning.trials import Outcome, Trial, propose, require_simulated, simulated_robot
from hdvpd.world.base import World
from hdvpd.world.loading import load
from hdvpd.world.state import State
from studies.controls import CarriedAlong
from studies.executions import EXTENT, executed, open_executions
from studies.model_settings import RankingSettings
from studies.outputs import Row, table, write_csv
from studies.resumable import Entry, Kept, chosen_starts, draw_start, tasks_of

PREDICTORS = (
    "model", "carried along", "tool path", "tool end", "random", "nothing moves", "simulator",
)  # fmt: skip
"""By whom plans are ranked: the model; particles near the robot that go along with it and nothing
else; two distances of the tool's path (`executions`); chance; and the truth itself."""
SHOWN_STEPS = (4, 6, 8)
"""Control steps after which plans are compared, of those that a plan has, and the last one."""
_ROUNDING_M = 3
"""Digits of true costs for ranks: outcomes that differ by less than a millimetre are ties."""


def main(out: Path, settings: RankingSettings) -> None:
    """Write settings.toml, starts.jsonl, ranking.csv, ranking.md and ranking.png into `out`.

    Raises:
      UserError: `out` holds a study with other settings, or run, robot or simulator are missing.
    """
    tasks = tasks_of(settings.tasks)
    world = load(settings.run)
    kept = Kept(out, settings, (*EXTENT, "executed"), world)
    folder = Path(settings.executed) if settings.executed else out / "executed"
    executions = open_executions(folder, settings)
    for start, task in chosen_starts(settings.starts, tasks):
        key = {"task": task, "start": start}
        if key in kept:
            continue
        known = executed(executions, task, start, settings)
        kept.add(known | rank_start(world, task, start, settings, known["possible"]))
        print(f"{task} {start}: Spearman {_scores(kept.entries[-1], 'model', -1)[0]:.2f}")
    entries = {
        task: [e for e in kept.entries if e["task"] == task and e["start"] < settings.starts]
        for task in tasks
    }
    rows = [row for task in tasks for row in summary(task, entries[task], settings.horizon)]
    write_csv(out / "ranking.csv", rows)
    told = [sentence for task in tasks for sentence in verdicts(task, entries[task])]
    text = pages_part(rows) + "\n" + "".join(f"- {sentence}\n" for sentence in told)
    (out / "ranking.md").write_text(text)
    _draw(entries, out / "ranking.png")
    print(text)


def rank_start(
    world: World, task: str, start: int, settings: RankingSettings, possible: Sequence[int]
) -> Entry:
    """Roll out the plans of one start.

    Args:
      world: the model.
      task: push or can.
      start: its number.
      settings: of the study.
      possible: numbers of the plans that could be executed.

    Returns:
      By predictor the costs that it predicts, by step and plan [m].
    """
    trial, outcome, rng = draw_start(task, start, settings.seed, world.size)
    require_simulated(world, trial)
    targets = propose(trial, simulated_robot(), settings.plans, settings.horizon, rng)[possible]
    seen = world.observe(trial.rgb, trial.depth_m, trial.cameras, trial.joints, seed=0)
    state = seen.thinned(settings.particles)
    predictors: dict[str, Predictor] = {
        "model": world, "carried along": CarriedAlong(world.robot),
    }  # fmt: skip
    return {
        name: predicted_costs(predictor, state, trial, outcome, targets).T.tolist()
        for name, predictor in predictors.items()
    }


def predicted_costs(
    predictor: Predictor,
    state: State,
    trial: Trial,
    outcome: Outcome,
    targets: Float[np.ndarray, "k s j"],
) -> Float[np.ndarray, "k s"]:
    """Return what is predicted of a task's cost after every step of every plan [m].

    The object is its visible particles; that their mean is not its centre cancels out.
    """
    state.require(trial.place)
    rows = np.flatnonzero(state.current.mask & trial.place(np.asarray(state.current.positions)))
    future = predictor.rollout(state, targets.astype(np.float32), features=False)
    moved = np.asarray(future.positions, np.float64)[:, :, rows]
    shift = (moved - np.asarray(state.current.positions, np.float64)[rows]).mean(2)
    before = trial.object_to_world[:3, 3]
    return outcome.cost(before, before + shift)


def summary(task: str, entries: Sequence[Entry], horizon: int) -> list[Row]:
    """Return a row per horizon and predictor: means over starts with 95 % intervals."""
    rows = []
    for steps in sorted({step for step in SHOWN_STEPS if step < horizon} | {horizon}):
        for name in PREDICTORS:
            scores = np.array([_scores(entry, name, steps - 1) for entry in entries])
            cells = {
                key: plus_minus(m, c, 3)
                for key, m, c in zip(_SCORES, *student_interval(scores), strict=True)
            }
            rows.append({"task": task, "steps": steps, "ranked by": name} | cells)
    return rows


def pages_part(rows: Sequence[Row]) -> str:
    """Return tables for a page: all scores after the last step, and Spearman by the steps."""
    shown = [row for row in rows if row["ranked by"] != "nothing moves"]  # the same as random
    tasks = dict.fromkeys(row["task"] for row in rows)
    last = max(row["steps"] for row in rows)
    parts = []
    for task in tasks:
        own = [row for row in shown if row["task"] == task and row["steps"] == last]
        cells = [{k: v for k, v in row.items() if k not in ("task", "steps")} for row in own]
        parts.append(f"`{task}`, after {last} steps:\n\n{table(cells).markdown()}")
    by_steps: dict[str, Row] = {}
    for row in shown:
        line = by_steps.setdefault(row["ranked by"], {"Spearman": row["ranked by"]})
        line[f"{row['task']}, {row['steps']} steps"] = row["Spearman"]
    return "\n".join([*parts, table(list(by_steps.values())).markdown()])


def verdicts(task: str, entries: Sequence[Entry]) -> list[str]:
    """Say how the model stands after the last step beside the controls, start by start."""
    by = {name: np.array([_scores(e, name, -1) for e in entries]) for name in PREDICTORS}
    told = []
    for control in ("tool path", "tool end", "carried along"):
        mean, ci95 = student_interval(by["model"][:, :1] - by[control][:, :1])
        verdict = "above" if mean[0] > ci95[0] else "below" if -mean[0] > ci95[0] else "not apart"
        told.append(
            f"{task}: Spearman of the model minus that of {control}: {mean[0]:.3f} ± "
            f"{ci95[0]:.3f} over {len(entries)} starts ({verdict})."
        )
    model, random, best = (by[name][:, 3] for name in ("model", "random", "simulator"))
    mean, ci95 = student_interval((model - 2 * random)[:, None])
    ratio = model.mean() / random.mean() if random.mean() > 0 else np.inf
    told.append(
        f"{task}: the chosen plan succeeds in {model.sum():.0f} of {len(entries)} starts, "
        f"{ratio:.1f} times as often as a random one (less twice that: {mean[0]:.3f} ± "
        f"{ci95[0]:.3f}); {best.sum():.0f} starts have a plan that succeeds."
    )
    return told


_SCORES = ("Spearman", "Kendall", "regret [m]", "success of the chosen")


def _scores(entry: Entry, name: str, step: int) -> list[float]:
    """Return `_SCORES` of one start; a correlation with outcomes that are all alike is unknown."""
    true = np.array(entry["true"][step])
    success = Outcome(entry["task"], np.zeros(2)).succeeds(true)
    ranks = np.round(true, _ROUNDING_M)
    known = np.nan if np.ptp(ranks) == 0 else 0.0
    if name in ("random", "nothing moves"):  # where nothing moves, all plans are alike
        return [known, known, float(true.mean() - true.min()), float(success.mean())]
    if name == "simulator":
        return [known + 1, known + 1, 0.0, float(success.any())]
    given = np.array(entry[name])
    predicted = given[step] if given.ndim == 2 else given
    chosen = int(np.argmin(predicted))
    apart = known == 0 and np.ptp(predicted) > 0
    return [
        _statistic(stats.spearmanr(predicted, ranks)) if apart else known,
        _statistic(stats.kendalltau(predicted, ranks)) if apart else known,
        float(true[chosen] - true.min()),
        float(success[chosen]),
    ]


def _statistic(result: object) -> float:
    return float(result.statistic)  # pyright: ignore[reportAttributeAccessIssue] - scipy's own


def _draw(entries: dict[str, list[Entry]], file: Path) -> None:
    """Draw correlation by step, and all plans' predicted and true costs after the last step."""
    figure = matplotlib.figure.Figure(figsize=(7.2, 3.0 * len(entries)), layout="constrained")
    panels = figure.subplots(len(entries), 2, squeeze=False)
    for (left, right), (task, own) in zip(panels, entries.items(), strict=True):
        steps = range(len(own[0]["true"]))
        for name in ("model", "carried along", "tool path", "tool end"):
            scores = np.array([[_scores(e, name, step)[:1] for step in steps] for e in own])
            mean, ci95 = (np.squeeze(x, -1) for x in student_interval(scores))
            (line,) = left.plot([step + 1 for step in steps], mean, label=name)
            low, high = mean - ci95, mean + ci95
            left.fill_between([s + 1 for s in steps], low, high, color=line.get_color(), alpha=0.15)
        left.axhline(0, color="0.7", lw=0.8)
        left.set(title=task, xlabel="control steps", ylabel="Spearman, mean over starts")
        for entry in own:
            right.plot(entry["model"][-1], entry["true"][-1], ".", ms=2, alpha=0.35, color="C0")
        right.set(title=task, xlabel="predicted cost [m]", ylabel="true cost [m]")
        right.axline((0, 0), slope=1, color="0.7", lw=0.8, zorder=0)
        right.locator_params(nbins=5)
    panels[0, 0].legend(fontsize=7)
    figure.savefig(file, dpi=100)
