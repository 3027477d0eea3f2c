"""The planner: search for joint targets whose predicted future costs least."""

import time
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float
from hdvpd.config.settings import Count, Settings, require
from hdvpd.planning.costs import AbstractCost, require_in_workspace
from hdvpd.planning.solvers import ICEM, AbstractSolver, Search
from hdvpd.planning.spaces import AbstractSpace
from hdvpd.world.future import Future
from hdvpd.world.state import State

NOTHING_FINITE = (
    "No candidate plan has a finite cost: the model's predictions are not finite. Choose another "
    "checkpoint."
)


@runtime_checkable
class Predictor(Protocol):
    """Predicts plans: a `World`, or something to compare it with, such as the simulator itself."""

    def rollout(
        self,
        state: State,
        joint_targets: Float[np.ndarray, "*batch j"],
        *,
        chunk: int = 1,
        features: bool = True,
    ) -> Future:
        """Predict what follows; see `World.rollout`."""
        ...


@dataclass(frozen=True)
class Plan:
    """What was decided.

    Attributes:
      joint_targets: of the best candidate of all rounds.
      cost: its predicted cost.
      best_costs: least cost found up to the end of every round.
      mean_costs: mean over every round's candidates of finite cost.
      search: what the solver knows in the end, for a warm start.
      future: prediction of the best candidate, with features, so that it can be rendered.
      seconds: that the decision took.
    """

    joint_targets: Float[np.ndarray, "s j"]
    cost: float
    best_costs: tuple[float, ...]
    mean_costs: tuple[float, ...]
    search: Search
    future: Future
    seconds: float


@dataclass(frozen=True)
class Planner(Settings):
    """Chooses plans by what a world model predicts.

    Attributes:
      world: what predicts.
      cost: what is to be small.
      space: plans that are considered.
      solver: how the space is searched.
      iterations: rounds of candidates.
      chunk: candidates that are rolled out at once.
    """

    world: Predictor
    cost: AbstractCost
    space: AbstractSpace
    solver: AbstractSolver = field(default_factory=ICEM)
    iterations: Count = 4
    chunk: Count = 1

    def plan(
        self,
        state: State,
        rng: np.random.Generator,
        warm: Search | None = None,
        rest: Float[np.ndarray, "s j"] | None = None,
    ) -> Plan:
        """Search from a state.

        Args:
          state: two observed steps.
          rng: draws the candidates.
          warm: search to go on from, as `Search.shifted` makes it; None begins anew.
          rest: what is left of the plan under way (`remaining`); it is kept unless another costs
            less.

        Raises:
          UserError: as `check_start`; `warm` or `rest` are of another space; or no candidate has a
            finite cost.
        """
        begin = time.perf_counter()
        self.check_start(state, rng)
        self._check_former(warm, rest)
        search = warm or self.solver.start(self.space.knots, self.space.variables)
        best_cost, best = np.inf, None
        best_costs, mean_costs = [], []
        if rest is not None:
            rest = np.asarray(rest, np.float64)
            cost = float(self.costs(state, rest[None])[0])
            best_cost, best = (cost, rest) if np.isfinite(cost) else (np.inf, None)
        for _ in range(self.iterations):
            candidates = self.solver.ask(search, rng)
            targets = self.space.joint_targets(state, candidates)
            costs = self.costs(state, targets)
            search = self.solver.tell(search, candidates, costs)
            if costs.min() < best_cost:
                best_cost, best = float(costs.min()), targets[int(np.argmin(costs))]
            best_costs.append(best_cost)
            known = costs[np.isfinite(costs)]
            mean_costs.append(float(known.mean()) if len(known) else np.inf)
        if best is None:
            raise UserError(NOTHING_FINITE)
        return Plan(
            joint_targets=best.astype(np.float32),
            cost=best_cost,
            best_costs=tuple(best_costs),
            mean_costs=tuple(mean_costs),
            search=search,
            future=self.world.rollout(state, best),
            seconds=time.perf_counter() - begin,
        )

    def check_start(self, state: State, rng: np.random.Generator) -> None:
        """Refuse what no search can start from, before anything is rolled out.

        Raises:
          UserError: the cost does not fit the state, its goal lies outside the workspace, or `rng`
            is no generator.
        """
        # Not a seed: with the same one at every decision the same candidates would be drawn.
        remedy = "use a generator, np.random.default_rng(0) for one whose draws can be repeated"
        require(isinstance(rng, np.random.Generator), "rng", rng, remedy)
        self.cost.check(state)
        require_in_workspace(self.cost.goals, getattr(self.world, "workspace", None))

    def _check_former(self, warm: Search | None, rest: Float[np.ndarray, "s j"] | None) -> None:
        """Refuse what numpy would stretch to the space, or compare at another end."""
        if warm is not None:
            wanted = (self.space.knots, self.space.variables)
            remedy = f"use a search of this space, {wanted}: knots, variables"
            require(warm.mean.shape == wanted, "shape of warm", warm.mean.shape, remedy)
        if rest is not None:
            wanted = (self.space.horizon, len(self.space.robot.joints))
            remedy = f"use as many targets as a plan of this space, {wanted}: steps, joints"
            require(np.shape(rest) == wanted, "shape of rest", np.shape(rest), remedy)

    def costs(self, state: State, targets: Float[np.ndarray, "k s j"]) -> Float[np.ndarray, "k"]:
        """Predict what plans cost; a prediction that is not finite costs infinitely much."""
        future = self.world.rollout(
            state, targets, chunk=self.chunk, features=self.cost.needs_images
        )
        costs = np.asarray(self.cost(future), np.float64)
        return np.where(np.isfinite(costs), costs, np.inf)


def remaining(plan: Float[np.ndarray, "s j"], done: int) -> Float[np.ndarray, "s j"]:
    """Return what is left of a plan after some of its steps; then the robot stays at its end.

    Raises:
      UserError: the plan has not as many steps.
    """
    require(0 <= done <= len(plan), "done", done, f"use a number from 0 to {len(plan)}, its steps")
    return np.concatenate([plan[done:], np.repeat(plan[-1:], done, axis=0)])
