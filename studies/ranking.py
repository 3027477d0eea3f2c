"""`python -m studies ranking`: does a trained model rank plans as the simulator does?

HD-VPD's use (arXiv 2406.19800): from one start many plans are rolled out in the model, executed in
the simulator, and compared. Each start's numbers are kept as soon as they are known, so that a
study that was stopped goes on where it was.
"""

import dataclasses
import tomllib
from pathlib import Path

import matplotlib.figure
import numpy as np
from scipy import stats

from hdvpd.errors import UserError
from hdvpd.planning.trials import Outcome, Trial, propose
from hdvpd.reporting.statistics import student_interval
from hdvpd.reporting.tables import plus_minus
from hdvpd.types import Float
from hdvpd.world.base import World
from hdvpd.world.loading import load
from studies.outputs import Row, table, write_csv
from studies.resumable import Entry, Kept, chosen_starts, draw_start, read_entries, tasks_of
from studies.settings import RankingSettings


def main(out: Path, settings: RankingSettings) -> None:
    """Write settings.toml, starts.jsonl, ranking.csv, ranking.md and ranking.png into `out`.

    Raises:
      UserError: `out` holds a study with other settings, or run, robot or simulator are missing.
    """
    tasks, executed = tasks_of(settings.tasks), _executed(settings)
    world = load(settings.run)
    kept = Kept(out, settings)
    for start, task in chosen_starts(settings.starts, tasks):
        key = {"task": task, "start": start}
        if key in kept:
            continue
        known = [entry for entry in executed if key.items() <= entry.items()]
        kept.add(key | rank_start(world, task, start, settings, known))
        print(f"{task} {start}: Spearman {_spearman(kept.entries[-1]):.2f}", flush=True)
    rows = summary(kept.entries, settings)
    write_csv(out / "ranking.csv", rows)
    result = table(rows, f"{settings.plans} plans from each of {settings.starts} starts")
    (out / "ranking.md").write_text(result.markdown())
    _draw(kept.entries, tasks, out / "ranking.png")
    print(result.markdown())


def _executed(settings: RankingSettings) -> list[Entry]:
    """Return what an earlier study of the same plans has executed already."""
    if not settings.executed:
        return []
    folder = Path(settings.executed)
    try:
        other = tomllib.loads((folder / "settings.toml").read_text())
    except OSError as error:
        raise UserError(f"--executed {folder}: {error.strerror}; give a study's --out.") from None
    own = dataclasses.asdict(settings)
    for name in ("seed", "plans", "horizon"):
        if other.get(name) != own[name]:
            raise UserError(
                f"--executed {folder}: its {name} is {other.get(name)}, here it is {own[name]}."
            )
    return read_entries(folder / "starts.jsonl")


def rank_start(
    world: World, task: str, start: int, settings: RankingSettings, known: list[Entry]
) -> Entry:
    """Execute and roll out the plans of one start.

    Args:
      world: the model.
      task: push or can.
      start: its number.
      settings: of the study.
      known: the same start of another model's study, if there is one.

    Returns:
      Costs by step and plan [m]: `true` ones and those that the `model` predicts; by plan the
      distance of the `tool`'s path from the object. Plans that the simulator cannot execute (the
      arms touch) are left out; `possible` lists the others.
    """
    trial, outcome, rng = draw_start(world, task, start, settings.seed)
    targets = propose(trial, world.robot, settings.plans, settings.horizon, rng)
    before = trial.object_to_world[:3, 3]
    if known:
        possible, true = known[0]["possible"], known[0]["true"]
    else:
        executed = [trial.execute(plan) for plan in targets]
        possible = [k for k, poses in enumerate(executed) if poses is not None]
        if len(possible) < 3:
            raise UserError(
                f"{task} {start}: the arms touch in nearly all plans; use another --seed."
            )
        poses = np.stack([poses for poses in executed if poses is not None])
        true = outcome.cost(before, poses[:, :, :3, 3]).T.tolist()
    targets = targets[possible]
    return {
        "true": true,
        "possible": possible,
        "model": predicted_costs(world, trial, outcome, targets).T.tolist(),
        "tool": _tool_distance(world, trial, targets).tolist(),
    }


def predicted_costs(
    world: World, trial: Trial, outcome: Outcome, targets: Float[np.ndarray, "k s j"]
) -> Float[np.ndarray, "k s"]:
    """Return what the model predicts a task's cost to be after every step of every plan [m].

    The object is its visible particles; that their mean is not its centre cancels out.
    """
    state = world.observe(trial.rgb, trial.depth_m, trial.cameras, trial.joints, seed=0)
    state.require(trial.place)
    rows = np.flatnonzero(state.current.mask & trial.place(np.asarray(state.current.positions)))
    future = world.rollout(state, targets.astype(np.float32), features=False)
    moved = np.asarray(future.positions, np.float64)[:, :, rows]
    shift = (moved - np.asarray(state.current.positions, np.float64)[rows]).mean(2)
    before = trial.object_to_world[:3, 3]
    return outcome.cost(before, before + shift)


def _tool_distance(
    world: World, trial: Trial, targets: Float[np.ndarray, "k s j"]
) -> Float[np.ndarray, "k"]:
    """Return how near each plan's tool comes to the object [m]."""
    poses = world.robot.link_poses(targets)[:, :, world.robot.links.index(trial.arm)]
    return np.linalg.norm(poses[..., :3, 3] - trial.object_to_world[:3, 3], axis=-1).min(1)


def summary(known: list[Entry], settings: RankingSettings) -> list[Row]:
    """Return a row per task, horizon and predictor: means over starts with 95 % intervals."""
    rows = []
    for task in settings.tasks.split(","):
        entries = [entry for entry in known if entry["task"] == task]
        for step in sorted({min(3, settings.horizon - 1), settings.horizon - 1}):
            for name in ("model", "tool path", "nothing moves", "random", "simulator"):
                scores = np.array([_scores(entry, name, step) for entry in entries])
                mean, ci95 = student_interval(scores)
                cells = {
                    key: plus_minus(_known(m), _known(c), 3)
                    for key, m, c in zip(_SCORES, mean, ci95, strict=True)
                }
                rows.append({"task": task, "steps": step + 1, "ranked by": name} | cells)
    return rows


_SCORES = ("Spearman", "Kendall", "regret [m]", "success of the chosen")


def _scores(entry: Entry, name: str, step: int) -> list[float]:
    """Return `_SCORES` of one start."""
    true = np.array(entry["true"][step])
    success = Outcome(entry["task"], np.zeros(2)).succeeds(true)
    if name in ("random", "nothing moves"):  # where nothing moves, all plans are alike
        return [0.0, 0.0, float(true.mean() - true.min()), float(success.mean())]
    ranked = {"model": np.array(entry["model"][step]), "tool path": np.array(entry["tool"])}
    ranked["simulator"] = true
    predicted = ranked[name]
    chosen = int(np.argmin(predicted))
    constant = np.ptp(predicted) == 0 or np.ptp(true) == 0
    return [
        np.nan if constant else _statistic(stats.spearmanr(predicted, true)),
        np.nan if constant else _statistic(stats.kendalltau(predicted, true)),
        float(true[chosen] - true.min()),
        float(success[chosen]),
    ]


def _statistic(result: object) -> float:
    return float(result.statistic)  # pyright: ignore[reportAttributeAccessIssue] - scipy's own


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _spearman(entry: Entry) -> float:
    return _scores(entry, "model", len(entry["true"]) - 1)[0]


def _draw(known: list[Entry], tasks: list[str], file: Path) -> None:
    figure = matplotlib.figure.Figure(figsize=(4.2 * len(tasks), 3.6), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for entry in known:
            if entry["task"] == task:
                axes.plot(entry["model"][-1], entry["true"][-1], ".", ms=3, alpha=0.4, color="C0")
        axes.set(title=task, xlabel="predicted cost [m]", ylabel="true cost [m]")
    figure.savefig(file, dpi=110)
