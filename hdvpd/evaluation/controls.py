"""What the controls are told of the robot, and whose plan the shuffled-action control borrows."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Float, ParticleCloud, PRNGKey, RobotPoints
from hdvpd.data.kinematics import kinematic_points
from hdvpd.data.store import Dataset
from hdvpd.data.windows import OBSERVED_FRAMES
from hdvpd.dynamics.base import Change
from hdvpd.dynamics.carrying import taken_along
from hdvpd.dynamics.rollout import rollout
from hdvpd.evaluation.pixels import NEAR_ROBOT_M

# Enough to find a near pose (docs/evaluation.md), few enough to read from a large data set.
_MAX_LENDERS = 64


def hold_still(robot: RobotPoints) -> RobotPoints:
    """Let every planned frame, axes (f), repeat the last observed one: the zero-action control."""

    def hold(x: np.ndarray) -> np.ndarray:
        last = x[OBSERVED_FRAMES - 1 : OBSERVED_FRAMES]
        return np.concatenate([x[:OBSERVED_FRAMES], last.repeat(len(x) - OBSERVED_FRAMES, axis=0)])

    return jax.tree.map(hold, robot)


def replace_plan(robot: RobotPoints, other: RobotPoints) -> RobotPoints:
    """Replace a plan by another: the shuffled-action control.

    Args:
      robot: of a window, axes (f); what was observed stays.
      other: whose planned frames are taken.
    """
    return jax.tree.map(
        lambda own, foreign: np.concatenate([own[:OBSERVED_FRAMES], foreign[OBSERVED_FRAMES:]]),
        robot,
        other,
    )


@jax.jit
def carry_particles(
    previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints
) -> ParticleCloud:
    """Carry particles along with the robot's skeleton: the kinematics-only control.

    What is within 10 cm of a kinematic point goes wholly along with the skeleton at its place
    (`carrying.taken_along`); no parameter is used and nothing else moves.

    Args:
      previous: particles at step -2.
      current: particles at step -1.
      robot: axes (2 + s): measured points of steps -2 and -1, planned ones after.

    Returns:
      Clouds of steps 0..s-1, axes (s).
    """

    def step(
        previous: ParticleCloud, current: ParticleCloud, robot: RobotPoints, key: PRNGKey
    ) -> Change:
        del previous, key
        motion = taken_along(current, robot, 1, 2, NEAR_ROBOT_M)
        return Change(displacement=motion, features=jnp.zeros_like(current.features))

    return rollout(step, previous, current, robot, jax.random.key(0))


@dataclass(frozen=True)
class Loan:
    """Whose plan a window borrows.

    Attributes:
      episode: number of the lending episode.
      start: first frame of the lending window.
      jump_m: mean distance of its first planned points from the borrower's last observed ones [m].
    """

    episode: int
    start: int
    jump_m: float


def lend_plans(
    dataset: Dataset, windows: Sequence[tuple[int, int]], split: str, length: int
) -> list[Loan]:
    """Find for every window the plan of another episode that starts nearest to its robot.

    So the robot does not leap when it begins to follow another's plan. Candidates are all windows
    of up to 64 other episodes: those of the same split, then of validation and training.

    Args:
      dataset: to look in.
      windows: episode and first frame of those who borrow.
      split: theirs.
      length: frames per window.

    Returns:
      One loan per window.

    Raises:
      UserError: no other episode is long enough.
    """

    @functools.cache
    def points(episode: int, links: str) -> Float[np.ndarray, "f p 3"]:
        origins = dataset.read(episode, f"robot/{links}")[..., :3, 3]
        source, _ = dataset.source_of(episode)
        return np.asarray(kinematic_points(origins, source.robot.skeleton))

    def lend(episode: int, start: int) -> Loan:
        own = points(episode, "link_to_world")[start + OBSERVED_FRAMES - 1]
        loans = []
        for lender in _lenders(dataset, episode, split, length):
            commanded = points(lender, "target_link_to_world")
            # Row t is commanded from frame t to frame t + 1: a window's first plan is in row 1.
            first = commanded[OBSERVED_FRAMES - 1 : len(commanded) - length + OBSERVED_FRAMES]
            jumps = np.linalg.norm(first - own, axis=-1).mean(axis=-1)
            nearest = int(np.argmin(jumps))
            loans.append(Loan(lender, nearest, float(jumps[nearest])))
        return min(loans, key=lambda loan: loan.jump_m)

    return [lend(*window) for window in windows]


def _lenders(dataset: Dataset, episode: int, split: str, length: int) -> list[int]:
    """List episodes that may lend; of equally near ones the first lends, so each begins anew."""
    same = [e for e in dataset.split(split) if e.number > episode]
    same += [e for e in dataset.split(split) if e.number < episode]
    others = [e for s in ("test", "validation", "train") if s != split for e in dataset.split(s)]
    numbers = [e.number for e in (*same, *others) if e.length >= length]
    # Of a mixture, the robot's own data set lends.
    own, _ = dataset.source_of(episode)
    numbers = [number for number in numbers if dataset.source_of(number)[0] is own]
    if not numbers:
        raise UserError(
            f"The shuffled-action control of episode {episode} needs the plan of another episode "
            f"with at least {length} frames, and {own.title} has none. Ask for fewer --steps, "
            "add an episode, or leave shuffled_actions out of --eval.controls."
        )
    return numbers[:_MAX_LENDERS]
