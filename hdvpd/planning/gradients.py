"""Planning by gradients through the model: the best of a few candidates is improved by Adam.

The cost's slope with regard to the predicted particles goes back through the rollout to the planned
kinematic points. From there to the variables of the space, through forward and inverse kinematics
that are not JAX's, it is carried by central differences: a space has few variables.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, ParticleCloud, RobotPoints
from hdvpd.config.settings import Count, Settings
from hdvpd.dynamics.base import Known
from hdvpd.planning.costs import AbstractCost
from hdvpd.planning.limits import Amount
from hdvpd.planning.planner import NOTHING_FINITE, Plan, Planner
from hdvpd.planning.solvers import ICEM, AbstractSolver
from hdvpd.planning.spaces import AbstractSpace
from hdvpd.world.base import World
from hdvpd.world.state import State

_DIFFERENCE = 1e-2
_DECAYS = 0.8, 0.95  # of Adam's two means: few steps are taken
_TINY = 1e-8


@dataclass(frozen=True)
class GradientPlanner(Settings):
    """Chooses plans by what a model predicts, and improves them along its gradient.

    Attributes:
      world: the model.
      cost: what is to be small; its `slope` must be known.
      space: plans that are considered.
      solver: draws the candidates of the first round.
      steps: of Adam (Kingma & Ba, 2015).
      rate: length of its steps, in normalised variables.
    """

    world: World
    cost: AbstractCost
    space: AbstractSpace
    solver: AbstractSolver = field(default_factory=lambda: ICEM(num_samples=8))
    steps: Count = 6
    rate: Amount = 0.1

    def plan(self, state: State, rng: np.random.Generator) -> Plan:
        """Search from a state; `Plan.mean_costs` are those of every step, as `best_costs`.

        Raises:
          UserError: as `Planner.plan`, already if no candidate of the first round has a finite
            cost, or the cost has no slope.
        """
        begin = time.perf_counter()
        sampled = Planner(self.world, self.cost, self.space, self.solver)
        sampled.check_start(state, rng)
        search = self.solver.start(self.space.knots, self.space.variables)
        candidates = self.solver.ask(search, rng)
        costs = sampled.costs(state, self.space.joint_targets(state, candidates))
        search = self.solver.tell(search, candidates, costs)
        candidate = candidates[int(np.argmin(costs))].astype(np.float64)
        best, best_cost = candidate, float(costs.min())
        if not np.isfinite(best_cost):  # nor would there be a gradient to go along
            raise UserError(NOTHING_FINITE)
        back = make_pull_back(self.world)
        first, second = np.zeros_like(candidate), np.zeros_like(candidate)
        found, best_costs = [], []
        for step in range(1, self.steps + 1):
            cost, slope = self.slope(state, candidate, back)
            found.append(cost)
            if cost < best_cost:
                best, best_cost = candidate, cost
            best_costs.append(best_cost)
            first = _DECAYS[0] * first + (1 - _DECAYS[0]) * slope
            second = _DECAYS[1] * second + (1 - _DECAYS[1]) * slope**2
            ahead = first / (1 - _DECAYS[0] ** step)
            spread = np.sqrt(second / (1 - _DECAYS[1] ** step))
            candidate = np.clip(candidate - self.rate * ahead / (spread + _TINY), -1, 1)
        targets = self.space.joint_targets(state, best[None])[0].astype(np.float32)
        return Plan(
            joint_targets=targets,
            cost=best_cost,
            best_costs=tuple(best_costs),
            mean_costs=tuple(found),
            search=search,
            future=self.world.rollout(state, targets),
            seconds=time.perf_counter() - begin,
        )

    def slope(
        self, state: State, candidate: Float[np.ndarray, "q d"], back: Callable[..., RobotPoints]
    ) -> tuple[float, Float[np.ndarray, "q d"]]:
        """Return the cost of a candidate and its gradient, 0 where that is not finite.

        Args:
          state: to start from.
          candidate: of the space.
          back: of `make_pull_back`.
        """
        count = candidate.size
        shifts = _DIFFERENCE * np.concatenate([np.eye(count), -np.eye(count)])
        several = candidate[None] + np.concatenate([np.zeros((1, count)), shifts]).reshape(
            -1, *candidate.shape
        )
        targets = self.space.joint_targets(state, several)
        future = self.world.rollout(state, targets[:1], features=False)
        cost, slope = float(self.cost(future)[0]), self.cost.slope(future)[0]
        points = self.world.robot.points(targets)
        gradient = back(state, jax.tree.map(lambda x: x[0], points), slope.astype(np.float32))
        total = np.zeros(count)
        pairs = zip(jax.tree.leaves(points), jax.tree.leaves(gradient), strict=True)
        for value, of in pairs:
            values = np.asarray(value, np.float64)
            change = (values[1 : count + 1] - values[count + 1 :]) / (2 * _DIFFERENCE)
            with np.errstate(invalid="ignore"):  # inf times 0; what comes of it is left out below
                total += change.reshape(count, -1) @ np.asarray(of, np.float64).ravel()
        # Not as the largest number: its square would stay infinite in Adam's mean of squares.
        return cost, np.where(np.isfinite(total), total, 0.0).reshape(candidate.shape)


def make_pull_back(world: World) -> Callable[..., RobotPoints]:
    """Compile the gradient of a rollout with regard to the planned kinematic points.

    Args:
      world: the model.

    Returns:
      From a state, planned points, axes (s), and the slope with regard to the predicted positions,
      (s n 3), to the slope with regard to the points.
    """
    graphdef = nnx.graphdef(world.model)

    @jax.jit
    def pull_back(
        params: Any, clouds: tuple[ParticleCloud, ParticleCloud], known: Known | None,
        observed: RobotPoints, planned: RobotPoints, key: Any, slope: Float[jax.Array, "s n 3"],
    ) -> RobotPoints:  # fmt: skip
        def positions(planned: RobotPoints) -> Float[jax.Array, "s n 3"]:
            robot = jax.tree.map(lambda a, b: jax.numpy.concatenate([a, b]), observed, planned)
            return nnx.merge(graphdef, params).rollout(*clouds, robot, key, known).positions

        return jax.vjp(positions, planned)[1](slope)[0]

    def back(state: State, planned: RobotPoints, slope: Float[np.ndarray, "s n 3"]) -> RobotPoints:
        key = world.keys(state.episode, state.start)[1]
        params, clouds = nnx.state(world.model), (state.previous, state.current)
        return pull_back(params, clouds, state.known, state.robot, planned, key, slope)

    return back
