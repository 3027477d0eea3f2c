"""Recursive prediction: (S_-2, S_-1) -> S_0, (S_-1, S_0) -> S_1, ... (HD-VPD, arXiv 2406.19800)."""

import jax

from hdvpd.basics.types import ParticleCloud, PRNGKey, RobotPoints
from hdvpd.dynamics.base import Step, advance

# Steps that may be compiled after each other: programs of more take long to compile.
_UNROLLED = 8


def rollout(
    step: Step,
    previous: ParticleCloud,
    current: ParticleCloud,
    robot: RobotPoints,
    key: PRNGKey,
    *,
    remat: bool = False,
    unroll: bool = False,
) -> ParticleCloud:
    """Roll a dynamics model out over the robot's planned motion.

    Args:
      step: one dynamics call, as `AbstractDynamics.begin` returns it.
      previous: observed particles at step -2.
      current: observed particles at step -1.
      robot: kinematic points of steps -2..s-1, axes (2 + s, p): measured for the first two,
        planned after. Read anew at every step, never predicted.
      key: split over the steps' calls.
      remat: recompute each step in the backward pass instead of storing its activations.
      unroll: compile a few steps after each other instead of as a loop, which would copy all that
        its backward pass needs into stacks; not with `remat`, which needs the loop.

    Returns:
      Clouds of steps 0..s-1, stacked along a leading axis.
    """
    length = robot.positions.shape[0] - 2
    windows = jax.tree.map(
        lambda x: jax.numpy.stack([x[start : start + length] for start in range(3)], axis=1), robot
    )

    keys = jax.random.split(key, length)

    def body(
        clouds: tuple[ParticleCloud, ParticleCloud], given: tuple[RobotPoints, PRNGKey]
    ) -> tuple[tuple[ParticleCloud, ParticleCloud], ParticleCloud]:
        previous, current = clouds
        following = advance(current, step(previous, current, *given))
        return (current, following), following

    body = jax.checkpoint(body, prevent_cse=False) if remat else body
    unroll = unroll and not remat and length <= _UNROLLED
    return jax.lax.scan(body, (previous, current), (windows, keys), unroll=unroll)[1]
