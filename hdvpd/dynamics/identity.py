"""Which particles are the robot's: those that are there again and again in the axes of its links.

Beyond the papers (`model.contact`). Seen from a link, its own surface stays the same in every
recording; a table or an object in the hand is at another place, or of another colour, or not there
at all. So the logit of being the robot's is a density: how much more often something of this
colour is at this place of the robot than by chance. It is learned from recorded frames alone, by
noise-contrastive estimation (Gutmann and Hyvarinen, AISTATS 2010). Lengths are metres.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.geometry import safe_norm
from hdvpd.basics.layers import Linear
from hdvpd.basics.types import (
    Array,
    Bool,
    Float,
    JaxArray,
    ParticleCloud,
    PRNGKey,
    RobotPoints,
    pytree,
)
from hdvpd.dynamics.body import NEAR_M, Body, body_distance
from hdvpd.dynamics.mlp import Mlp
from hdvpd.dynamics.surroundings import Surroundings, shared
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.layers import bent
from hdvpd.kernels.neighbors import Backend

# A place is told by its nearness to all kinematic points, in this unit.
_NEARNESS_M = 0.06
_HIDDEN = 64
# Log ratio of densities above which a particle is the robot's: what is now and then in the hand is
# more frequent there than by chance as well.
CERTAIN = 1.8
# Farther from the robot's boxes than this is what it holds or touches; what bulges from a box is up
# to here the robot's if most of what is around it, and like it, is on the body.
_ON_BODY_M, _BESIDE_M, _MOST = 0.006, 0.035, 0.6
# What is as near to a side of a box as depth is exact is the robot's own, of whatever colour: an
# edge's pixel of mixed colours, taken for a thing's, would make the hand touch that thing.
_SURFACE_M = 0.001
# Until it has been learned, what is near is the robot's.
_UNTOLD = CERTAIN + 1.0


@pytree
class NearRobot:
    """Particles near the robot, each with the robot of its time.

    Attributes:
      positions: [m].
      colors: 0 to 1.
      points: kinematic points [m].
    """

    positions: Float[Array, "n 3"]
    colors: Float[Array, "n 3"]
    points: Float[Array, "n p 3"]


class Identity(nnx.Module):
    """Log ratio of densities: of the particles near a robot over places and colours by chance."""

    def __init__(self, num_points: int, kernels: Kernels = "auto", *, colors: bool, rngs: nnx.Rngs):
        self.hidden = Linear(num_points + 6 * colors, _HIDDEN, rngs=rngs)
        self.mlp = Mlp(_HIDDEN, _HIDDEN, 1, kernels, rngs=rngs)
        self.mlp.out.kernel[...] = jnp.zeros_like(self.mlp.out.kernel[...])
        self.body = Body(num_points)
        self.colors = colors

    def __call__(
        self, nearness: Float[Array, "n p"], colors: Float[Array, "n 3"]
    ) -> Float[JaxArray, "n"]:
        """Return the log ratio of every particle.

        Args:
          nearness: to the kinematic points, `point_nearness`.
          colors: 0 to 1; not looked at by a model without colours.
        """
        told = jnp.asarray(nearness)
        if self.colors:
            brightness = colors.mean(axis=-1, keepdims=True)
            hue = (colors - brightness) / (brightness + 0.1)
            told = jnp.concatenate([told, 4 * colors - 2, 2 * hue], axis=-1)
        return self.mlp(bent(self.hidden, told, self.mlp.kernels))[:, 0] + _UNTOLD

    def is_robot(
        self,
        cloud: ParticleCloud,
        robot: RobotPoints,
        around: Surroundings,
        backend: Backend = "auto",
    ) -> Bool[JaxArray, "n"]:
        """Say which particles are the robot's: on its surface, or about it and like it.

        Args:
          cloud: particles; with colours, the first three features are their logits.
          robot: kinematic points, axes (3 p), of which the second are of the same time.
          around: the surroundings of the particles.
          backend: of the neighbour search.
        """
        cloud, points, axes = jax.lax.stop_gradient((cloud, robot.positions[1], robot.axes[1]))
        nearness, near = point_nearness(jnp.asarray(cloud.positions), points[None])
        distance_m = body_distance(self.body.boxes, cloud.positions, points, axes, backend)
        logits = self(nearness, jax.nn.sigmoid(jnp.asarray(cloud.features)[:, :3]))
        agreed, on_body = shared(logits, around), distance_m < _ON_BODY_M
        around_it = shared(on_body.astype(jnp.float32), around) > _MOST
        beside = (distance_m < _BESIDE_M) & (agreed > CERTAIN) & around_it
        on_surface = jnp.abs(distance_m) < _SURFACE_M
        on_body &= on_surface | (jnp.maximum(logits, agreed) > CERTAIN)
        return near & (on_body | beside) & jnp.asarray(cloud.mask)


def point_nearness(
    positions: Float[Array, "n 3"], points: Float[Array, "m p 3"]
) -> tuple[Float[JaxArray, "n p"], Bool[JaxArray, "n"]]:
    """Return exp(-(d / 6 cm)^2) of the distances d to kinematic points, and who is near to any.

    Args:
      positions: particles [m].
      points: of each particle's robot, or, with m = 1, of the one of all [m].
    """
    positions, points = jnp.asarray(positions), jnp.asarray(points)
    x, y, z = ((positions[:, axis, None] - points[..., axis]) ** 2 for axis in range(3))
    squared = x + y + z
    return jnp.exp(-squared / _NEARNESS_M**2), squared.min(axis=-1) < NEAR_M**2


def contrast(
    identity: Identity, seen: NearRobot, far_colors: Float[Array, "c 3"], key: PRNGKey
) -> Float[JaxArray, ""]:
    """Return the loss of telling particles near robots from places and colours by chance.

    By chance is: up to 12 cm from one of the same kinematic points; of any colour or, half of
    them, of a colour that is seen far from the robot.

    Args:
      identity: tells them.
      seen: particles near the robot.
      far_colors: of particles far from it, 0 to 1.
      key: draws what is by chance.
    """
    at, way, far, shade, pick = jax.random.split(key, 5)
    count, num_points = seen.points.shape[:2]
    start = jnp.take_along_axis(
        seen.points, jax.random.randint(at, (count, 1, 1), 0, num_points), axis=1
    )[:, 0]
    way_m = jax.random.normal(way, (count, 3))
    way_m *= NEAR_M * jnp.sqrt(jax.random.uniform(far, (count, 1))) / safe_norm(way_m)[:, None]
    chosen = jax.random.randint(pick, (count,), 0, far_colors.shape[0])
    shades = jax.random.uniform(shade, (count, 3))
    colors = jnp.where((jnp.arange(count) % 2 == 0)[:, None], far_colors[chosen], shades)
    truly = identity(point_nearness(seen.positions, seen.points)[0], seen.colors)
    by_chance = identity(point_nearness(start + way_m, seen.points)[0], colors)
    return jnp.mean(jax.nn.softplus(-truly) + jax.nn.softplus(by_chance))
