"""`python -m studies closed-loop`: a trained model steers the simulated arms, from images on.

Model-predictive control: observe two frames, plan to the end of the episode, execute a few steps,
observe again. The same planner, with the same candidates, is run with other predictors beside the
model; these see the visible surfaces and need no model, so that they can be run ahead. The mask
that says where the object is seen is the simulator's, as a segmentation would give it.
"""

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np

from hdvpd.basics.statistics import student_interval
from hdvpd.basics.tables import plus_minus
from hdvpd.basics.types import Float
from hdvpd.data.robot import Robot
from hdvpd.planning.costs import AbstractCost, GoalPlace, Lift, object_rows
from hdvpd.planning.planner import Plan, Planner
from hdvpd.planning.solvers import ICEM
from hdvpd.planning.trials import Outcome, Trial, require_simulated, simulated_robot, skill
from hdvpd.world.base import World
from hdvpd.world.loading import load
from hdvpd.world.state import State
from studies.controls import (
    CarriedAlong,
    Chance,
    NothingMoves,
    Simulator,
    ToolDistance,
    seen_surface,
)
from studies.films import Film
from studies.model_settings import ClosedLoopSettings
from studies.outputs import Row, table, write_csv
from studies.resumable import (
    SIZE,
    Entry,
    Kept,
    borrowed_entries,
    chosen_starts,
    draw_start,
    tasks_of,
)
from studies.settings import split_names

CONTROLLERS = ("model", "carried along", "tool path", "nothing moves", "random", "simulator")
EXTENT = ("tasks", "starts", "controllers", "videos", "controls")
"""Settings that say how much is done, not what."""
LIFT_M = 0.12
"""How high a can should be lifted: more than what counts as success."""
SHORTEST = 4
"""Control steps that a plan needs; with fewer left, the one under way goes on."""
CAUSES = {
    "push": ("never moved", "ended farther away", "stopped short or beside", "the arms touched"),
    "can": ("never lifted", "dropped", "not lifted enough", "the arms touched"),
}
"""Of failures: the object was not brought anywhere, the wrong way, or not far enough; or the study
ended there."""
_MOVED_M, _HELD_M = 0.01, 0.04


def main(out: Path, settings: ClosedLoopSettings) -> None:
    """Write settings.toml, starts.jsonl, tables (csv, md), a plot and videos into `out`.

    Raises:
      UserError: `out` holds a study with other settings, or run, robot or simulator are missing.
    """
    tasks, names = tasks_of(settings.tasks), split_names(settings, "controllers", CONTROLLERS)
    known = borrowed_entries(Path(settings.controls), settings, (*EXTENT, "run"))
    world = load(settings.run) if "model" in names else None
    kept = Kept(out, settings, EXTENT, world)
    for start, task in chosen_starts(settings.starts, tasks):
        for name in names:
            key = {"task": task, "start": start, "controller": name}
            if key in kept:
                continue
            elsewhere = [e for e in known if key.items() <= e.items() and name != "model"]
            if elsewhere:
                kept.add(elsewhere[0])
                continue
            film = Film() if name == "model" and start < settings.videos else None
            entry = control(world, name, task, start, settings, film)
            if film is not None:
                film.write(out / "videos" / f"{task}-{start}.webp")
            kept.add(key | entry)
            print(f"{task} {start} {name}: {entry['costs'][-1]:.3f} m", flush=True)
    entries = [e for e in kept.entries if e["start"] < settings.starts]
    rows = {task: failures(entries, task, names) for task in tasks}
    write_csv(out / "closed_loop.csv", summary(entries, tasks, names))
    for task in tasks:
        write_csv(out / f"failures_{task}.csv", rows[task])
    text = [table(summary(entries, tasks, names)).markdown()]
    text += [table(rows[task]).markdown() for task in tasks]
    (out / "closed_loop.md").write_text("\n".join(text))
    _draw(entries, tasks, names, out / "closed_loop.png")
    print("\n".join(text))


@dataclass
class _Episode:
    """One start under way.

    Attributes:
      world: the model that plans, or None for a control.
      robot: that is moved.
      name: who plans.
      trial: as it stands.
      outcome: what counts.
      seen: where the visible particles' centre was at first [m].
      begin: where the object was at first [m].
    """

    world: World | None
    robot: Robot
    name: str
    trial: Trial
    outcome: Outcome
    seen: Float[np.ndarray, "3"]
    begin: Float[np.ndarray, "3"]

    def observe(self) -> State:
        """Return what the trial shows: to a model its particles, to a control surfaces."""
        trial = self.trial
        if self.world is None:
            return seen_surface(trial, self.robot)
        return self.world.observe(trial.rgb, trial.depth_m, trial.cameras, trial.joints, seed=0)

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
        if self.world is not None:
            return self.world
        if self.name == "simulator":
            return Simulator(self.robot, self.trial)
        return (
            CarriedAlong(self.robot) if self.name == "carried along" else NothingMoves(self.robot)
        )

    def expects(self, cost: float) -> bool | None:
        """Say whether a predicted cost means success; None where nothing is predicted."""
        if self.name not in ("model", "carried along", "simulator"):
            return None
        lowest = LIFT_M if self.outcome.task == "can" else 0.0  # `Lift` counts from there
        return bool(self.outcome.succeeds(np.asarray(cost - lowest)))


def centre(state: State, trial: Trial) -> Float[np.ndarray, "3"]:
    """Return the mean of the visible particles on the object [m].

    Raises:
      UserError: there is none.
    """
    rows = object_rows(state, trial.place)
    return np.asarray(state.current.positions, np.float64)[rows].mean(0)


def begin(
    world: World | None, name: str, task: str, start: int, settings: ClosedLoopSettings
) -> tuple[_Episode, np.random.Generator]:
    """Simulate a start for a controller, and return what draws its candidates.

    Raises:
      UserError: the model is of another robot, or MuJoCo is missing.
    """
    own = world if name == "model" else None
    trial, outcome, rng = draw_start(task, start, settings.seed, SIZE if own is None else own.size)
    if own is not None:
        require_simulated(own, trial)
    place = trial.object_to_world[:3, 3]
    return _Episode(own, simulated_robot(), name, trial, outcome, np.zeros(3), place), rng


def control(
    world: World | None, name: str, task: str, start: int, settings: ClosedLoopSettings,
    film: Film | None = None,
) -> Entry:  # fmt: skip
    """Run one controller from one start.

    Args:
      world: the model; None does for the controls.
      name: of `CONTROLLERS`.
      task: push or can.
      start: its number.
      settings: of the study.
      film: gets a picture per executed step.

    Returns:
      `costs` after every executed step, that of the start first [m]; `predicted`, the predicted
      cost of every decision; `expected`, whether the last of them means success; `seconds` of every
      decision; whether the object was `hidden` at one, whether the arms `touched`, and whether it
      was a `success`.
    """
    episode, rng = begin(world, name, task, start, settings)
    outcome, place = episode.outcome, episode.begin
    costs = [float(outcome.cost(place, place))]
    predicted, seconds, hidden, touched = [], [], False, False
    rest: np.ndarray | None = None
    for decision in range(-(-settings.steps // settings.every)):
        started = time.perf_counter()
        seen = episode.observe()
        state = seen.thinned(settings.particles)
        shown = bool(episode.trial.place(state.positions).any())
        plan, hidden = None, hidden or not shown
        if decision == 0:
            episode.seen = centre(state, episode.trial)
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
        costs += outcome.cost(place, poses[:, :3, 3]).tolist()
        if film is not None:
            assert world is not None
            future = None if plan is None else world.rollout(seen, plan.joint_targets)
            film.take(episode.trial, done, future, outcome)
        episode.trial, rest = following, targets[len(done) :]
    success = not touched and bool(outcome.succeeds(np.asarray(costs[-1:]))[0])
    return {
        "costs": costs, "predicted": predicted, "expected": episode.expects(predicted[-1]),
        "seconds": seconds, "hidden": hidden, "touched": touched, "success": success,
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
    planner = Planner(
        episode.predictor(),
        episode.cost(state, rng),
        skill(trial, episode.robot, left, centre(state, trial)),
        ICEM(num_samples=settings.samples),
        settings.rounds,
    )
    # At random a new plan is drawn at every decision; elsewhere the one under way competes.
    return planner.plan(state, rng, rest=None if episode.name == "random" else rest)


def cause(entry: Entry) -> str:
    """Say why a start failed, from what happened to the object."""
    costs = np.array(entry["costs"])
    unmoved, wrong, short, touched = CAUSES[entry["task"]]
    if entry["touched"]:
        return touched
    reached = -costs.min() if entry["task"] == "can" else np.abs(costs - costs[0]).max()
    if reached < _MOVED_M:
        return unmoved
    if entry["task"] == "can":
        return wrong if -costs.min() >= _HELD_M > -costs[-1] else short
    return wrong if costs[-1] > costs[0] else short


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
                "success": plus_minus(mean[0], ci95[0], 2),
                "final cost [m]": plus_minus(mean[1], ci95[1], 3),
                "seconds per decision": round(float(np.median(seconds)), 2),
            })  # fmt: skip
    return rows


def failures(entries: Sequence[Entry], task: str, names: Sequence[str]) -> list[Row]:
    """Return a row per controller: in how many starts what happened, and what was expected."""
    rows = []
    for name in names:
        own = [e for e in entries if (e["task"], e["controller"]) == (task, name)]
        causes = Counter("success" if e["success"] else cause(e) for e in own)
        wrong = [not e["success"] for e in own if e["expected"]]
        expects = any(e["expected"] is not None for e in own)
        rows.append({
            "task": task,
            "controller": name,
            **{what: causes[what] for what in ("success", *CAUSES[task])},
            "failed though success was expected": sum(wrong) if expects else None,
            "object out of sight at a decision": sum(e["hidden"] for e in own),
        })  # fmt: skip
    return rows


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
