"""Which particles are one thing: what stands out of its support, hangs together and looks it.

Beyond the papers (`model.contact`): pure functions of observed places and colours, without
gradient. Lengths are metres.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, ParticleCloud, pytree
from hdvpd.config import Up
from hdvpd.dynamics.components import connected_labels, followed
from hdvpd.dynamics.parts import told_apart
from hdvpd.dynamics.surroundings import PARTNERS, Surroundings
from hdvpd.kernels.choice import Kernels

# Below this a particle may be the support's.
_ABOVE_M = 0.012
# The support of a place is the lowest particle in three by three cells of this size about it.
_CELL_M = 0.05
_CELLS = 64
# Neighbours of one hue hang together if they are not farther apart than this many times the reach;
# of different hues, as stripes of one thing or two things side by side, if they are nearer.
_LINK_REACHES, _TOUCHING_REACHES = 1.3, 0.75
# Particles of a thing's lower edge follow those above by likeness, one neighbour a round.
_EDGE_ROUNDS = 3
# What is wider is a support, where no axis says what stands on what.
_WIDEST_M = 0.3


@pytree
class Segments:
    """Things.

    Attributes:
      label: for every particle the number of a particle of its thing, the same for all of them; n
        for those of no thing.
      height_m: above the support; 0 where no axis points up [m].
      reach_m: median distance of the eighth neighbour: how far particles are apart [m].
    """

    label: Int[JaxArray, "n"]
    height_m: Float[JaxArray, "n"]
    reach_m: Float[JaxArray, ""]

    @property
    def inside(self) -> Bool[JaxArray, "n"]:
        """Particles that belong to a thing."""
        return self.label < self.label.shape[0]

    def sum(self, values: Float[Array, "n *d"]) -> Float[JaxArray, "n *d"]:
        """Return for every particle the sum over its thing."""
        return jax.ops.segment_sum(values, self.label, self.label.shape[0] + 1)[self.label]

    def min(self, values: Float[Array, "n"]) -> Float[JaxArray, "n"]:
        """Return for every particle the least value of its thing."""
        return jax.ops.segment_min(values, self.label, self.label.shape[0] + 1)[self.label]

    def max(self, values: Float[Array, "n"]) -> Float[JaxArray, "n"]:
        """Return for every particle the largest value of its thing."""
        return -self.min(-jnp.asarray(values))

    def last(self, chosen: Bool[Array, "n"]) -> Int[JaxArray, "n"]:
        """Return for every particle the last of its thing that is chosen; itself without thing."""
        number = jnp.arange(self.label.shape[0])
        best = jax.ops.segment_max(jnp.where(chosen, number, -1), self.label, number.size + 1)
        return jnp.where(self.inside, jnp.maximum(best[self.label], 0), number)

    def mean(
        self, values: Float[Array, "n *d"], weights: Float[Array, "n"]
    ) -> Float[JaxArray, "n *d"]:
        """Return for every particle the weighted mean over its thing; 0 without weights."""
        values, weights = jnp.asarray(values), jnp.asarray(weights)
        total = jnp.maximum(self.sum(weights), 1e-12)
        broad = (-1, *[1] * (values.ndim - 1))
        return self.sum(weights.reshape(broad) * values) / total.reshape(broad)


def segments(
    cloud: ParticleCloud, around: Surroundings, *, up: Up, kernels: Kernels = "auto"
) -> Segments:
    """Tell things apart.

    With an axis that points up, things are what stands more than 1.2 cm above its support, which is
    the lowest that is seen within 5 to 10 cm. Neighbours hang together, if their colours differ
    only where they touch; what hangs together is told apart by hue and place (`parts.py`), and
    lower edges follow by likeness. Without an axis, neighbours of one hue belong together, and what
    is wider than 30 cm is no thing.

    Args:
      cloud: particles, `mask` those that are not the robot's.
      around: their surroundings.
      up: axis of the world that points up; "none" where it is not known.
      kernels: form in which labels are computed.
    """
    positions = jax.lax.stop_gradient(jnp.asarray(cloud.positions))
    mask = jnp.asarray(cloud.mask)
    indices, distances = jnp.asarray(around.indices), jnp.asarray(around.distances)
    reach_m = _median(distances[:, PARTNERS // 2])
    near = (distances < _LINK_REACHES * reach_m) & mask[indices] & mask[:, None]
    like = near & (jnp.asarray(around.unlike) < 1.0)
    if up == "none":
        label = connected_labels(mask, like, indices, kernels)
        height_m = jnp.zeros(mask.shape)
    else:
        axis = up_axis(up)
        height_m = jnp.where(mask, positions @ axis - _support(positions, mask, axis), 0.0)
        standing = mask & (height_m > _ABOVE_M)
        touching = near & (distances < _TOUCHING_REACHES * reach_m)
        whole = connected_labels(standing, like | touching, indices, kernels)
        level = positions[:, np.flatnonzero(axis == 0)]
        label = told_apart(whole, near, around, level, height_m, kernels)
        label = followed(label, like, distances, indices, _EDGE_ROUNDS, kernels)
    count = label.shape[0]
    found = Segments(jnp.where(mask & (label >= 0), label, count), height_m, reach_m)
    if up != "none":
        return found
    extents = [found.max(x) - found.min(x) for x in positions.T]
    narrow = jnp.max(jnp.stack(extents), axis=0) < _WIDEST_M
    return Segments(jnp.where(narrow, found.label, count), height_m, reach_m)


def up_axis(up: Up) -> Float[np.ndarray, "3"]:
    """Return the unit vector that points up."""
    return (-1.0 if up[0] == "-" else 1.0) * np.eye(3, dtype=np.float32)["xyz".index(up[-1])]


def _support(
    positions: Float[Array, "n 3"], mask: Bool[Array, "n"], axis: Float[np.ndarray, "3"]
) -> Float[JaxArray, "n"]:
    """Return the lowest height within 5 to 10 cm of every particle; cells beyond 3 m are one."""
    flat = positions[:, np.flatnonzero(axis == 0)]
    corner = jnp.min(jnp.where(mask[:, None], flat, jnp.inf), axis=0)
    cell = jnp.clip(jnp.floor((flat - corner[None]) / _CELL_M), 0, _CELLS - 1).astype(jnp.int32)
    number = cell[:, 0] * _CELLS + cell[:, 1]
    heights = jnp.where(mask, positions @ axis, jnp.inf)
    lowest = jax.ops.segment_min(heights, number, _CELLS**2).reshape(_CELLS, _CELLS)
    lowest = jax.lax.reduce_window(lowest, jnp.inf, jax.lax.min, (3, 3), (1, 1), "SAME")
    return lowest.reshape(-1)[number]


def _median(x: Float[Array, "n"]) -> Float[JaxArray, ""]:
    """Return the median of the finite ones of distances, 0 without any."""
    count = jnp.isfinite(x).sum()
    # Bits of numbers that are not negative are in the same order, and integers are sorted sooner.
    bits = jnp.sort(jax.lax.bitcast_convert_type(x, jnp.int32))[jnp.maximum(count - 1, 0) // 2]
    return jnp.where(count > 0, jax.lax.bitcast_convert_type(bits, jnp.float32), 0.0)
