"""`python -m studies closed-loop`: a trained model steers the simulated arms, from images on.

Model-predictive control: observe two frames, plan to the end of the episode, execute a few steps,
observe again. The same planner, with the same candidates, is run with other predictors beside the
model. The mask that says where the object is seen is the simulator's, as a segmentation would give
it.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np

from hdvpd.evaluation.videos import enlarge, write_video
from hdvpd.planning.controls import Chance, NothingMoves, Simulator, ToolDistance
from hdvpd.planning.costs import AbstractCost, GoalPlace, Lift, object_rows
from hdvpd.planning.planner import Plan, Planner
from hdvpd.planning.solvers import ICEM
from hdvpd.planning.trials import Outcome, Trial, skill
from hdvpd.reporting.statistics import student_interval
from hdvpd.reporting.tables import plus_minus
from hdvpd.types import Float, UInt8
from hdvpd.world.base import World
from hdvpd.world.loading import load
from hdvpd.world.state import State
from studies.outputs import Row, table, write_csv
from studies.resumable import Entry, Kept, chosen_starts, draw_start, tasks_of
from studies.settings import ClosedLoopSettings, split_names

CONTROLLERS = ("model", "tool path", "nothing moves", "random", "simulator")
LIFT_M = 0.12
"""How high a can should be lifted: more than what counts as success."""
SHORTEST = 4
"""Control steps that a plan needs; with fewer left, the one under way goes on."""
_MOVED_M, _HELD_M = 0.01, 0.04
_SCALE, _BLOCK = 3, 16


def main(out: Path, settings: ClosedLoopSettings) -> None:
    """Write settings.toml, starts.jsonl, tables (csv, md), a plot and videos into `out`.

    Raises:
      UserError: `out` holds a study with other settings, or run, robot or simulator are missing.
    """
    tasks, names = tasks_of(settings.tasks), split_names(settings, "controllers", CONTROLLERS)
    world = load(settings.run)
    kept = Kept(out, settings)
    for start, task in chosen_starts(settings.starts, tasks):
        for name in names:
            key = {"task": task, "start": start, "controller": name}
            if key in kept:
                continue
            film = name == "model" and start < settings.videos
            pictures: list[UInt8[np.ndarray, "h w 3"]] = []
            entry = control(world, name, task, start, settings, pictures if film else None)
            if film:
                write_video(out / "videos" / f"{task}-{start}.mp4", pictures, 2)
            kept.add(key | entry)
            print(f"{task} {start} {name}: {entry['costs'][-1]:.3f} m", flush=True)
    write_csv(out / "closed_loop.csv", summary(kept.entries, tasks, names))
    write_csv(out / "failures.csv", failures(kept.entries, tasks, names))
    text = [
        table(summary(kept.entries, tasks, names), f"{settings.starts} starts").markdown(),
        table(failures(kept.entries, tasks, names), "why starts failed").markdown(),
    ]
    (out / "closed_loop.md").write_text("\n".join(text))
    _draw(kept.entries, tasks, names, out / "closed_loop.png")
    print("\n".join(text))


@dataclass
class _Episode:
    """One start under way.

    Attributes:
      world: encodes what is observed.
      name: who plans.
      trial: as it stands.
      outcome: what counts.
      seen: where the visible particles' centre was at first [m].
      begin: where the object was at first [m].
    """

    world: World
    name: str
    trial: Trial
    outcome: Outcome
    seen: Float[np.ndarray, "3"]
    begin: Float[np.ndarray, "3"]

    def cost(self, state: State, rng: np.random.Generator) -> AbstractCost:
        """Return what the controller minimises: the task's cost, if it predicts anything."""
        place = self.trial.place
        if self.name == "tool path":
            return ToolDistance(place, link=self.trial.arm)
        if self.name in ("random", "nothing moves"):
            return Chance(rng)
        if self.outcome.task == "push":
            # The goal is one of what is seen: how far the visible particles should move.
            goal = self.seen[:2] + self.outcome.goal - self.begin[:2]
            return GoalPlace(place, (*goal.tolist(), np.nan))
        risen = centre(state, self.trial)[2] - self.seen[2]
        return Lift(place, height=max(LIFT_M - float(risen), 0.0))

    def predictor(self) -> Any:
        """Return what predicts."""
        if self.name == "model":
            return self.world
        if self.name == "simulator":
            return Simulator(self.trial, self.world.robot)
        return NothingMoves(self.world.robot)


def observe(world: World, trial: Trial) -> State:
    """Encode the two frames that a trial shows."""
    return world.observe(trial.rgb, trial.depth_m, trial.cameras, trial.joints, seed=0)


def centre(state: State, trial: Trial) -> Float[np.ndarray, "3"]:
    """Return the mean of the visible particles on the object [m].

    Raises:
      UserError: there is none.
    """
    rows = object_rows(state, trial.place)
    return np.asarray(state.current.positions, np.float64)[rows].mean(0)


def control(
    world: World, name: str, task: str, start: int, settings: ClosedLoopSettings,
    pictures: list[UInt8[np.ndarray, "h w 3"]] | None = None,
) -> Entry:  # fmt: skip
    """Run one controller from one start.

    Args:
      world: the model, which also encodes for the controls.
      name: of `CONTROLLERS`.
      task: push or can.
      start: its number.
      settings: of the study.
      pictures: gets a picture per executed step: what the camera saw, what was predicted.

    Returns:
      `costs` after every executed step, that of the start first [m]; `predicted`, the predicted
      cost of every decision; `seconds` of every decision; whether the object was `hidden` at one,
      whether the arms `touched`, and whether it was a `success`.
    """
    trial, outcome, rng = draw_start(world, task, start, settings.seed)
    begin = trial.object_to_world[:3, 3]
    episode = _Episode(world, name, trial, outcome, np.zeros(3), begin)
    costs, predicted, seconds, hidden, touched = (
        [_cost(outcome, begin, begin)],
        [],
        [],
        False,
        False,
    )
    rest: np.ndarray | None = None
    for decision in range(-(-settings.steps // settings.every)):
        started = time.perf_counter()
        state = observe(world, episode.trial)
        shown = bool(episode.trial.place(state.positions).any())
        plan, hidden = None, hidden or not shown
        if decision == 0:
            episode.seen = centre(state, trial)
        left = settings.steps - len(costs) + 1
        if rest is None or (shown and left >= SHORTEST and name != "nothing moves"):
            plan = decide(episode, state, rest, rng, settings, left)
            predicted.append(plan.cost)
        targets = rest if plan is None else plan.joint_targets.astype(np.float64)
        assert targets is not None
        seconds.append(time.perf_counter() - started)
        done = targets[: min(settings.every, left)]
        poses, following = episode.trial.execute(done), episode.trial.advanced(done)
        if poses is None or following is None:
            touched = True
            break
        costs += [_cost(outcome, begin, pose[:3, 3]) for pose in poses]
        if pictures is not None:
            _film(pictures, episode.trial, done, plan)
        episode.trial, rest = following, targets[len(done) :]
    success = not touched and bool(outcome.succeeds(np.asarray(costs[-1:]))[0])
    return {
        "costs": costs, "predicted": predicted, "seconds": seconds, "hidden": hidden,
        "touched": touched, "success": success,
        "goal": float(np.linalg.norm(outcome.goal - begin[:2])),
    }  # fmt: skip


def decide(
    episode: _Episode,
    state: State,
    rest: Float[np.ndarray, "s j"] | None,
    rng: np.random.Generator,
    settings: ClosedLoopSettings,
    left: int,
) -> Plan:
    """Plan the steps that are left; a plan that ended later would be put off again and again."""
    trial = episode.trial
    space = skill(trial, episode.world.robot, left, centre(state, trial))
    planner = Planner(
        episode.predictor(),
        episode.cost(state, rng),
        space,
        ICEM(num_samples=settings.samples),
        settings.rounds,
    )
    # At random a new plan is drawn at every decision; elsewhere the one under way competes.
    return planner.plan(state, rng, rest=None if episode.name == "random" else rest)


def _cost(outcome: Outcome, before: np.ndarray, after: np.ndarray) -> float:
    return float(outcome.cost(before, after))


def cause(entry: Entry) -> str:
    """Say why a start failed, from what happened to the object."""
    costs = np.array(entry["costs"])
    if entry["touched"]:
        return "the arms touched"
    if entry["task"] == "can":
        if -costs.min() < _MOVED_M:
            return "never lifted"
        return "dropped" if -costs.min() >= _HELD_M > -costs[-1] else "not lifted enough"
    moved = np.abs(costs - costs[0]).max()
    if moved < _MOVED_M:
        return "never moved"
    return "ended farther away" if costs[-1] > costs[0] else "stopped short or beside the goal"


def summary(entries: Sequence[Entry], tasks: Sequence[str], names: Sequence[str]) -> list[Row]:
    """Return a row per task and controller: means over starts with 95 % intervals."""
    rows = []
    for task in tasks:
        for name in names:
            own = [e for e in entries if (e["task"], e["controller"]) == (task, name)]
            ends = np.array([[e["success"], e["costs"][-1]] for e in own], float)
            mean, ci95 = student_interval(ends)
            seconds = [s for e in own for s in e["seconds"]]
            rows.append({
                "task": task,
                "controller": name,
                "starts": len(own),
                "success": plus_minus(float(mean[0]), _known(ci95[0]), 2),
                "final cost [m]": plus_minus(float(mean[1]), _known(ci95[1]), 3),
                "seconds per decision": round(float(np.median(seconds)), 2),
            })  # fmt: skip
    return rows


def failures(entries: Sequence[Entry], tasks: Sequence[str], names: Sequence[str]) -> list[Row]:
    """Return a row per task, controller and cause: how many starts failed so."""
    rows = []
    for task in tasks:
        for name in names:
            own = [e for e in entries if (e["task"], e["controller"]) == (task, name)]
            causes = Counter("success" if e["success"] else cause(e) for e in own)
            rows += [
                {"task": task, "controller": name, "what happened": what, "starts": count}
                for what, count in sorted(causes.items())
            ]
    return rows


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _film(pictures: list, trial: Trial, done: np.ndarray, plan: Plan | None) -> None:
    """Add a picture per step: the first camera's, and what the plan's future showed for it."""
    rendered = trial.images(done)
    assert rendered is not None
    true = rendered[0][:, 0]
    name = next(iter(trial.cameras))
    if plan is None:
        seen = np.full_like(true, 255)
    else:
        future = plan.future
        clouds = [future.cloud(step) for step in range(len(done))]
        camera = trial.cameras[name]
        seen = np.stack([future.render_cloud(c, camera, trial.size).rgb for c in clouds])
    for pair in zip(true, seen, strict=True):
        picture = np.concatenate([enlarge(image, _SCALE) for image in pair], axis=1)
        padding = [(0, -size % _BLOCK) for size in picture.shape[:2]]
        pictures.append(np.pad(picture, [*padding, (0, 0)]))


def _draw(entries: Sequence[Entry], tasks: Sequence[str], names: Sequence[str], file: Path) -> None:
    figure = matplotlib.figure.Figure(figsize=(4.2 * len(tasks), 3.4), layout="constrained")
    for axes, task in zip(figure.subplots(1, len(tasks), squeeze=False)[0], tasks, strict=True):
        for name in names:
            own = [e["costs"] for e in entries if (e["task"], e["controller"]) == (task, name)]
            longest = max(map(len, own))
            held = np.array([costs + costs[-1:] * (longest - len(costs)) for costs in own])
            axes.plot(held.mean(0), label=name)
        what = "distance to the goal [m]" if task == "push" else "minus the rise [m]"
        axes.set(title=task, xlabel="control step", ylabel=what)
    figure.axes[0].legend(fontsize=8)
    figure.savefig(file, dpi=110)
