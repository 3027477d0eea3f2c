"""How far the robot gets on the way to its commands.

Beyond the papers (`model.tracking`). A plan is commanded joints; a servo that is commanded to move
is behind until it may rest. So planned poses are ahead of what happens, and what the robot pushes
ends too far. Lengths are metres.
"""

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.geometry import safe_norm
from hdvpd.basics.types import Array, Float, JaxArray, RobotPoints


class Tracking(nnx.Module):
    """The share of the way as a parameter of every kinematic point, without gradient."""

    def __init__(self, num_points: int):
        self.share = nnx.Param(jnp.ones((num_points,)))

    def __call__(self, robot: RobotPoints) -> RobotPoints:
        """Return where the robot is expected to be; see `tracked`."""
        return tracked(robot, jax.lax.stop_gradient(self.share[...]))

    def learn(self, share: Float[Array, "p"]) -> None:
        """Take these shares."""
        self.share[...] = jnp.asarray(share)


def tracked(robot: RobotPoints, share: Float[Array, "p"]) -> RobotPoints:
    """Replace commanded poses by those that are expected.

    In every step a kinematic point goes the same share of the way from where it is to where it is
    commanded to be, as a servo of first order does; its axes turn alike. Openings stay commanded.

    Args:
      robot: axes (f p), measured at the first two times, commanded after.
      share: of every point, 1 where commands are reached.
    """
    positions, axes, share = (jnp.asarray(x) for x in (robot.positions, robot.axes, share))

    def follow(
        pose: tuple[JaxArray, JaxArray], commanded: tuple[JaxArray, JaxArray]
    ) -> tuple[tuple[JaxArray, JaxArray], tuple[JaxArray, JaxArray]]:
        (place, turn), (to_place, to_turn) = pose, commanded
        place += share[:, None] * (to_place - place)
        turn = _orthonormal(turn + share[:, None, None] * (to_turn - turn))
        return (place, turn), (place, turn)

    begin, commands = (positions[1], axes[1]), (positions[2:], axes[2:])
    _, (places, turns) = jax.lax.scan(follow, begin, commands)
    return dataclasses.replace(
        robot,
        positions=jnp.concatenate([positions[:2], places]),
        axes=jnp.concatenate([axes[:2], turns]),
    )


def _orthonormal(axes: Float[JaxArray, "p 3 3"]) -> Float[JaxArray, "p 3 3"]:
    """Return the columns made orthonormal, the first one keeping its direction (Gram-Schmidt)."""
    first = axes[..., 0] / safe_norm(axes[..., 0])[..., None]
    third = jnp.cross(first, axes[..., 1])
    third /= safe_norm(third)[..., None]
    return jnp.stack([first, jnp.cross(third, first), third], axis=-1)
