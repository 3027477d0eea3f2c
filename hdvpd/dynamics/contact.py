"""What a particle knows of touching: which kinematic points are near, and what moved it last.

Beyond the papers (`model.contact`), whose particles learn both from attention alone.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.geometry import safe_norm
from hdvpd.basics.layers import Linear
from hdvpd.basics.types import Array, Float, JaxArray, ParticleCloud, RobotPoints
from hdvpd.dynamics.carrying import nearest_points
from hdvpd.dynamics.mlp import Mlp
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.dense import on_host
from hdvpd.kernels.layers import applied
from hdvpd.kernels.neighbors import Backend, knn
from hdvpd.kernels.point_edges import WIDTH, attend_to_points

_SCALE_M = 0.05
_FADE = 4.0
_HIDDEN = 32


def explanations(
    cloud: ParticleCloud,
    other: ParticleCloud,
    carried_m: Float[Array, "n 3"],
    backend: Backend = "auto",
) -> Float[Array, "n e"]:
    """Compare two explanations of where particles were, or will be, at another time.

    A particle that stood still has a particle like itself at its place in the other cloud; one
    that went along with the robot has it where the skeleton took it. No correspondence between
    the clouds is assumed.

    Args:
      cloud: particles.
      other: the cloud of the other time.
      carried_m: displacement of the skeleton at each particle's place until the other time [m].
      backend: of the neighbour search.

    Returns:
      For either explanation the distance to the nearest particle of the other cloud, in units of
      5 cm and at most 1, and how much its features differ, each at most by 1; then the skeleton's
      displacement in 5 cm. Without gradient.
    """
    cloud, other, carried_m = jax.lax.stop_gradient((cloud, other, carried_m))
    # One search: building its tree costs as much as asking it.
    places = jnp.concatenate([cloud.positions, cloud.positions + carried_m])
    near = knn(places, other.positions, 1, mask=other.mask, backend=backend)
    columns = []
    for indices, distances in zip(
        jnp.split(near.indices[:, 0], 2), jnp.split(near.distances[:, :1], 2), strict=True
    ):
        difference = jnp.abs(other.features[indices] - cloud.features)
        columns += [jnp.minimum(distances / _SCALE_M, 1.0), jnp.tanh(difference)]
    return jnp.concatenate([*columns, carried_m / _SCALE_M], axis=-1)


class PointEdges(nnx.Module):
    """What the nearest kinematic points say to a particle: a softmax-weighted sum over edges."""

    def __init__(self, dim: int, identity_dim: int, kernels: Kernels = "auto", *, rngs: nnx.Rngs):
        self.kernels: Kernels = kernels
        self.edge = Linear(identity_dim + 8, _HIDDEN, rngs=rngs)
        self.score = Linear(_HIDDEN, 1, use_bias=False, rngs=rngs)
        self.out = Linear(_HIDDEN, dim, use_bias=False, rngs=rngs)

    def __call__(
        self,
        cloud: ParticleCloud,
        robot: RobotPoints,
        slice_: int,
        identity: Float[JaxArray, "p i"],
        backend: Backend = "auto",
    ) -> Float[JaxArray, "n d"]:
        """Return one vector per particle.

        Args:
          cloud: particles of slice 0 (t - 2) or 1 (t - 1).
          robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
          slice_: which of the two.
          identity: embedding of the kinematic points.
          backend: of the neighbour search.
        """
        positions, points = jnp.asarray(cloud.positions), jnp.asarray(robot.positions[slice_])
        near = nearest_points(cloud, robot, slice_, backend).indices
        motion = (robot.positions[-1] - points) / _SCALE_M
        about = jnp.concatenate([identity, robot.gripper[slice_, :, None], motion], axis=-1)
        if self._on_host(positions, points, about):
            assert self.edge.bias is not None
            return attend_to_points(
                about,
                points,
                positions,
                near,
                self.edge.kernel[...],
                self.edge.bias[...],
                self.score.kernel[...],
                self.out.kernel[...],
                unit_m=_SCALE_M,
                fade=_FADE,
            )
        offset = (points[near] - positions[:, None]) / _SCALE_M
        edges = jnp.concatenate([about[near], offset, safe_norm(offset)[..., None]], axis=-1)
        # Offsets grow without bound far from the robot, where they say nothing.
        edges /= 1.0 + safe_norm(offset)[..., None] / _FADE
        rows = applied(self.edge, edges.reshape(-1, edges.shape[-1]), self.kernels)
        hidden = jax.nn.gelu(rows).reshape(*near.shape, _HIDDEN)
        weights = jax.nn.softmax(self.score(hidden), axis=1)
        return self.out(jnp.sum(weights * hidden, axis=1))

    def _on_host(self, *arrays: jax.Array) -> bool:
        plain = all(layer.dtype is None for layer in (self.edge, self.score, self.out))
        return plain and self.edge.out_features == WIDTH and on_host(self.kernels, *arrays)


class ContactTokens(nnx.Module):
    """The part of a particle's token that is about touching."""

    def __init__(
        self,
        dim: int,
        feature_dim: int,
        identity_dim: int,
        backend: Backend,
        kernels: Kernels,
        *,
        rngs: nnx.Rngs,
    ):
        self.backend: Backend = backend
        self.edges = PointEdges(dim, identity_dim, kernels, rngs=rngs)
        self.history = Mlp(2 * (1 + feature_dim) + 3, _HIDDEN, dim, kernels, rngs=rngs)

    def __call__(
        self,
        clouds: Sequence[ParticleCloud],
        robot: RobotPoints,
        carried_m: Sequence[Float[Array, "n 3"]],
        identity: Float[JaxArray, "p i"],
    ) -> list[Float[JaxArray, "n d"]]:
        """Return the parts of the particles at t - 2 and of those at t - 1.

        Args:
          clouds: at t - 2 and t - 1.
          robot: kinematic points at t - 2, t - 1 and t, axes (3 p).
          carried_m: displacement of the skeleton at the particles' places, for those at t - 2 until
            t - 1 and the other way [m].
          identity: embedding of the kinematic points.
        """
        parts = []
        for slice_, cloud in enumerate(clouds):
            other, moved_m = clouds[1 - slice_], carried_m[slice_]
            told = explanations(cloud, other, moved_m, self.backend)
            edges = self.edges(cloud, robot, slice_, identity, self.backend)
            parts.append(self.history(jnp.asarray(told), edges))
        return parts
