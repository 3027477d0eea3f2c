"""`hdvpd plan`: a plan for the simulated arms, what the model expects, and what it leads to."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import matplotlib.figure
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Camera, Float, RgbdFrames
from hdvpd.planning.costs import AbstractCost, GoalPlace, Lift, object_rows
from hdvpd.planning.planner import Plan, Planner
from hdvpd.planning.solvers import SOLVERS
from hdvpd.planning.trials import (
    Outcome,
    Trial,
    begin_trial,
    draw_outcome,
    require_simulated,
    skill,
)
from hdvpd.world.base import World
from hdvpd.world.command import only_writer, replacing
from hdvpd.world.future import Future
from hdvpd.world.loading import load
from hdvpd.world.outputs import Plan as Shown
from hdvpd.world.outputs import write_index, write_plan
from hdvpd.world.state import State
from hdvpd.world.truth import Truth, score, truth_of

LIFT_M = 0.12
"""How high a can is to be lifted: more than what counts as success."""
RATE_HZ = 2.0
NAME = "plan"


@dataclass(frozen=True)
class Search:
    """How a plan is sought.

    Attributes:
      solver: of `SOLVERS`.
      samples: candidates per round.
      iterations: rounds.
      horizon: control steps of the plan.
      particles: that candidates are rolled out with, at most; the plan is shown with all.
    """

    solver: str = "icem"
    samples: int = 32
    iterations: int = 2
    horizon: int = 8
    particles: int = 2048

    def __post_init__(self) -> None:
        """Validate; never mutate."""
        if self.solver not in SOLVERS:
            raise UserError(f"--solver {self.solver}: choose of {', '.join(SOLVERS)}.")
        least = {"samples": 2, "iterations": 1, "horizon": 4, "particles": 1}
        for name, value in least.items():
            if getattr(self, name) < value:
                raise UserError(f"--{name} {getattr(self, name)}: give {value} or more.")


def make_plan(
    run: Path, *, task: str, out: Path, search: Search, seed: int = 0,
    goal: Sequence[float] | None = None, checkpoint_step: int | None = None,
) -> None:  # fmt: skip
    """Plan from a simulated start, execute the plan in the simulator, and write both as a rollout.

    Args:
      run: folder of a run on simulated data, or its name in `runs/`.
      task: push or can.
      out: folder of the results; new, or of an earlier rollout, which is replaced.
      search: how the plan is sought.
      seed: of the start, the goal and the candidates.
      goal: where the block's centre is to go (x, y) [m]; None draws it.
      checkpoint_step: which checkpoint; None is the newest sound one.

    Raises:
      UserError: something does not fit; nothing is written then.
    """
    if goal is not None and task != "push":
        raise UserError(f"--goal is where a block is pushed; --task {task} has none. Leave it out.")
    if goal is not None and not np.isfinite(goal).all():
        raise UserError(f"--goal {_words(goal)}: give two finite numbers, x and y in metres.")
    with only_writer(out):
        world = load(run, checkpoint_step)
        world.robot  # noqa: B018 - refuses a run without one before anything is simulated
        _require_inside(goal, *world.workspace)
        trial = begin_trial(task, world.size, [seed])
        require_simulated(world, trial)
        rng = np.random.default_rng(seed)
        outcome = _outcome(world, trial, rng, goal)
        state = world.observe(trial.rgb, trial.depth_m, trial.cameras, trial.joints, seed=seed)
        plan = find_plan(world, trial, outcome, state, search, rng)
        targets = plan.joint_targets.astype(np.float64)
        poses = trial.execute(targets)
        report = _report(trial, outcome, plan, poses)
        shown = _shown(world, trial, plan, report["told"])
        about = {
            "run": str(world.folder.resolve()),
            "checkpoint": world.step,
            "task": task,
            "seed": seed,
            "rate_hz": RATE_HZ,
        }
        with replacing(out) as staging:
            write_plan(shown, staging / NAME, RATE_HZ)
            write_index(staging, [shown], about)
            np.save(staging / "plan.npy", plan.joint_targets)
            (staging / "plan.json").write_text(json.dumps(report | about, indent=1) + "\n")
            _draw_costs(plan, staging / "costs.png")
        print(report["told"])
        tried = f"{search.iterations} rounds of {search.samples} candidates"
        print(f"decision {plan.seconds:.1f} s: {tried}")
        print(f"page     {out / 'index.html'}")


def _require_inside(
    goal: Sequence[float] | None, low: Sequence[float], high: Sequence[float]
) -> None:
    """Refuse a goal beside the workspace; None is drawn inside."""
    if goal is not None and not all(np.less_equal(low[:2], goal) & np.less_equal(goal, high[:2])):
        raise UserError(
            f"--goal {_words(goal)} lies outside the workspace, x {low[0]:g} to {high[0]:g}, "
            f"y {low[1]:g} to {high[1]:g} m. Choose a place inside."
        )


def _words(goal: Sequence[float]) -> str:
    return " ".join(f"{value:g}" for value in goal)


def find_plan(
    world: World,
    trial: Trial,
    outcome: Outcome,
    state: State,
    search: Search,
    rng: np.random.Generator,
) -> Plan:
    """Plan once from what is seen of a trial.

    Raises:
      UserError: no particle shows the object, or the goal lies outside the workspace.
    """
    place, whole = trial.place, state
    state = state.thinned(search.particles)
    seen = np.asarray(state.current.positions, np.float64)[object_rows(state, place)].mean(0)
    solver = SOLVERS[search.solver](num_samples=search.samples)
    space = skill(trial, world.robot, search.horizon, seen)
    cost: AbstractCost = Lift(place, height=LIFT_M)
    if trial.task == "push":
        # What is seen of the block should move as far as its centre.
        goal = seen[:2] + outcome.goal - trial.object_to_world[:2, 3]
        cost = GoalPlace(place, (*goal.tolist(), np.nan))
    plan = Planner(world, cost, space, solver, search.iterations).plan(state, rng)
    return dataclasses.replace(plan, future=world.rollout(whole, plan.joint_targets))


def _outcome(
    world: World, trial: Trial, rng: np.random.Generator, goal: Sequence[float] | None
) -> Outcome:
    robot = world.robot
    if goal is not None:
        return Outcome(trial.task, np.asarray(goal, np.float64))
    tool = robot.link_poses(trial.command[None].astype(np.float64))[0, robot.links.index(trial.arm)]
    return draw_outcome(trial, tool[:3, 3], rng)


def _report(
    trial: Trial, outcome: Outcome, plan: Plan, poses: Float[np.ndarray, "s 4 4"] | None
) -> dict[str, Any]:
    """Return what was decided and what came of it, as plain values and in one sentence."""
    before = trial.object_to_world[:3, 3]
    what = "distance of the block from its goal" if trial.task == "push" else "rise of the can"
    report: dict[str, Any] = {
        "predicted_cost": plan.cost,
        "best_costs": list(plan.best_costs),
        "mean_costs": list(plan.mean_costs),
        "seconds": plan.seconds,
        "goal": outcome.goal.tolist() if trial.task == "push" else None,
        "object": before.tolist(),
    }
    # The cost of a can says no more than what is missing of `LIFT_M`.
    expected = plan.cost if trial.task == "push" else _expected_rise(trial, plan.future)
    if poses is None:
        told = f"{what}: {expected:.3f} m expected; the arms touched when the plan was executed"
        return report | {"executed": False, "success": False, "told": told}
    costs = outcome.cost(before, poses[:, :3, 3])
    success = bool(outcome.succeeds(costs[-1:])[0])
    true = abs(float(costs[-1])) if trial.task == "push" else -float(costs[-1])
    told = f"{what}: {expected:.3f} m expected, {true:.3f} m when the plan was executed: "
    told += "success" if success else "no success"
    return report | {
        "executed": True,
        "success": success,
        "true_cost": costs.tolist(),
        "told": told,
    }


def _expected_rise(trial: Trial, future: Future) -> float:
    """Return how far what is seen of the object rises in a single plan's prediction [m]."""
    rows = object_rows(future.start, trial.place)
    before = np.asarray(future.start.current.positions, np.float64)[rows, 2]
    return float((np.asarray(future.positions[-1], np.float64)[rows, 2] - before).mean())


def _shown(world: World, trial: Trial, plan: Plan, told: str) -> Shown:
    """Render the prediction beside what the simulator gives, as far as it can be executed."""
    images = {camera: plan.future.images(camera) for camera in trial.cameras}
    executed = trial.images(plan.joint_targets.astype(np.float64))
    truth: Truth | None = None
    if executed is not None:
        rgb, depth_m = (
            np.concatenate(pair) for pair in zip((trial.rgb, trial.depth_m), executed, strict=True)
        )
        cameras = list(trial.cameras.values())
        camera: Camera = jax.tree.map(
            lambda *x: np.broadcast_to(np.stack(x), (len(rgb), len(x), *x[0].shape)), *cameras
        )
        truth = truth_of(world, RgbdFrames(rgb=rgb, depth_m=depth_m, camera=camera))
    threshold = world.config.eval.moving_threshold
    return Shown(
        name=NAME,
        source=told,
        future=plan.future,
        images=images,
        truth=truth,
        scores=score(truth, list(images.values()), tuple(images), threshold) if truth else (),
        warning="" if executed is not None else "The arms touched: this plan cannot be executed.",
    )


def _draw_costs(plan: Plan, file: Path) -> None:
    figure = matplotlib.figure.Figure(figsize=(4, 3), layout="constrained")
    axes = figure.subplots()
    rounds = range(1, len(plan.best_costs) + 1)
    axes.plot(rounds, plan.best_costs, "o-", label="best so far")
    axes.plot(rounds, plan.mean_costs, "s--", label="mean of the round")
    axes.set(xlabel="round", ylabel="predicted cost [m]", xticks=list(rounds))
    axes.legend()
    figure.savefig(file, dpi=110)
