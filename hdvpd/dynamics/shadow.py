"""The robot's shadow, which goes with it.

Beyond the papers (`model.shadow`). One lamp stands somewhere; every kinematic point keeps its
light from what lies behind it, as a ball with a soft edge does. Where the lamp is, how thick the
robot is about each of its points and how dark a shadow is are parameters: learned from recorded
frames before the first step (`hdvpd/training/shadow.py`), then trained with all others. Lengths
are metres.
"""

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from hdvpd.basics.color_features import color_features
from hdvpd.basics.geometry import safe_norm
from hdvpd.basics.types import Array, Float, JaxArray, ParticleCloud, RobotPoints, pytree
from hdvpd.config import SceneSpec
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.light import light_passed

RADIUS_M = 0.05
"""Of a link about its kinematic points, to begin with."""
# A point blocks what lies behind it; this far before it, half.
_BEHIND_M = 0.02
# Nothing is wholly dark.
_MOST = 0.99


@pytree
class Lamp:
    """What is learned of light.

    Attributes:
      position: of the lamp [m].
      log_radii: logarithm of the robot's radius about each kinematic point [m].
      darkness: how much the logarithm of brightness falls where none of its light arrives.
    """

    position: Float[Array, "3"]
    log_radii: Float[Array, "p"]
    darkness: Float[Array, ""]


def light_blocked(
    lamp: Lamp,
    positions: Float[Array, "n 3"],
    points: Float[Array, "*n p 3"],
    kernels: Kernels = "auto",
) -> Float[JaxArray, "n"]:
    """Return the share of the lamp's light that the robot keeps from places.

    1 - prod_p (1 - .99 b_p) with b_p = exp(-(d / r_p)^4) sigmoid(a / 2 cm): d is the distance of
    kinematic point p from the way to the lamp, a how far along it is, r_p its radius. Where places
    and points are has no gradient.

    Args:
      lamp: and the robot's radii.
      positions: [m].
      points: kinematic points, of all places or of each its own [m].
      kernels: compiled host code, for points of all places, or plain JAX.
    """
    positions, points = jax.lax.stop_gradient((jnp.asarray(positions), jnp.asarray(points)))
    if points.shape[0] == 1 and use_host_kernels(kernels):
        robot = jnp.asarray(lamp.position), jnp.asarray(lamp.log_radii)
        return 1.0 - light_passed(*robot, positions, points[0], _MOST, _BEHIND_M)
    way = lamp.position[None] - positions
    way /= safe_norm(way)[:, None]
    # Axis by axis, with the places last: so that loops over them are vectorised.
    points = jnp.moveaxis(points, -2, 0)
    apart = [points[..., k] - positions[None, :, k] for k in range(3)]
    ahead = apart[0] * way[None, :, 0] + apart[1] * way[None, :, 1] + apart[2] * way[None, :, 2]
    beside = jnp.maximum(apart[0] ** 2 + apart[1] ** 2 + apart[2] ** 2 - ahead**2, 0.0)
    near = jnp.exp(-((beside * jnp.exp(-2 * lamp.log_radii)[:, None]) ** 2))
    return 1.0 - _product(1.0 - _MOST * near * jax.nn.sigmoid(ahead / _BEHIND_M))


@jax.custom_jvp
def _product(kept: Float[Array, "p n"]) -> Float[JaxArray, "n"]:
    """Return the product over the first axis, of which nothing is 0."""
    return jnp.prod(kept, axis=0)


@_product.defjvp
def _(
    primals: tuple[Float[Array, "p n"]], tangents: tuple[Float[Array, "p n"]]
) -> tuple[Float[JaxArray, "n"], Float[JaxArray, "n"]]:
    product = _product(*primals)
    return product, product * jnp.sum(tangents[0] / primals[0], axis=0)


class Shadow(nnx.Module):
    """Shade particles that the robot begins or ceases to keep the light from."""

    def __init__(self, scene: SceneSpec, kernels: Kernels = "auto"):
        self.kernels: Kernels = kernels
        self.position = nnx.Param(jnp.asarray(np.add(scene.center, (0, 0, 3)), jnp.float32))
        self.log_radii = nnx.Param(jnp.full(scene.num_robot_points, np.log(RADIUS_M)))
        # Before recordings were looked at there is no shadow.
        self.darkness = nnx.Param(jnp.zeros(()))

    @property
    def lamp(self) -> Lamp:
        """The parameters."""
        return Lamp(self.position[...], self.log_radii[...], self.darkness[...])

    def learn(self, lamp: Lamp) -> None:
        """Take these parameters."""
        self.position[...], self.log_radii[...] = lamp.position, lamp.log_radii
        self.darkness[...] = lamp.darkness

    def __call__(
        self, cloud: ParticleCloud, robot: RobotPoints, displacement: Float[Array, "n 3"]
    ) -> Float[JaxArray, "n 3"]:
        """Return by how much the first three features, logits of colours, change until t.

        Args:
          cloud: particles of t - 1.
          robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
          displacement: of the particles until t [m].
        """
        places, points = jnp.asarray(cloud.positions), jnp.asarray(robot.positions)
        moved = places + displacement
        darker = light_blocked(self.lamp, moved, points[2][None], self.kernels)
        darker -= light_blocked(self.lamp, places, points[1][None], self.kernels)
        logits = jnp.asarray(cloud.features)[:, :3]
        shaded = jax.nn.sigmoid(logits) * jnp.exp(-self.darkness[...] * darker)[:, None]
        # What keeps its light keeps its colour to the bit.
        return jnp.where(darker[:, None] == 0, 0.0, color_features(shaded) - logits)
