"""Labels on a graph of neighbours: what hangs together, and what follows its nearest.

Pure functions of links, without gradient; a label is the number of a particle, -1 is none.
"""

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray
from hdvpd.kernels import components_host
from hdvpd.kernels.choice import Kernels, use_host_kernels
from hdvpd.kernels.host import host_call


def connected_labels(
    members: Bool[Array, "n"],
    linked: Bool[Array, "n k"],
    indices: Int[Array, "n k"],
    kernels: Kernels = "auto",
) -> Int[JaxArray, "n"]:
    """Label the connected components of a graph of neighbours, whichever of two counts the other.

    In plain JAX by rounds of hooking and jumping until nothing changes (Shiloach and Vishkin, J.
    Algorithms 1982): about six, whatever the shape of a thing and the order of its particles.

    Args:
      members: which particles are of the graph.
      linked: which neighbours a particle hangs together with.
      indices: of the neighbours.
      kernels: form in which this is computed.

    Returns:
      The largest number of a particle's component, -1 for those that are no members.
    """
    count = members.shape[0]
    if use_host_kernels(kernels):
        labels = [jax.ShapeDtypeStruct((count,), np.int32)]
        return host_call(components_host.connect, labels, members, linked, indices)[0]
    linked &= members[indices] & members[:, None]

    def spread(
        state: tuple[Int[Array, "n"], Bool[Array, ""]],
    ) -> tuple[Int[Array, "n"], Bool[Array, ""]]:
        label = state[0]
        heard = jnp.maximum(label, jnp.where(linked, label[indices], -1).max(axis=1))
        # The particle that numbers a label is told what those of the label, and whoever counts
        # them among its neighbours, have heard; all of the label ask it.
        own = jax.ops.segment_max(heard, jnp.where(members, label, count), count + 1)
        its = jax.ops.segment_max(
            jnp.broadcast_to(heard[:, None], linked.shape).reshape(-1),
            jnp.where(linked, label[indices], count).reshape(-1),
            count + 1,
        )
        told = jnp.maximum(heard, jnp.maximum(own, its)[:count])
        told = jnp.where(members, told[jnp.maximum(told, 0)], -1)
        return told, jnp.any(told != label)

    start = jnp.where(members, jnp.arange(count), -1)
    labels = jax.lax.while_loop(lambda state: state[1], spread, (start, jnp.bool_(True)))[0]
    return jnp.asarray(labels)


def followed(
    label: Int[Array, "n"],
    linked: Bool[Array, "n k"],
    distances: Float[Array, "n k"],
    indices: Int[Array, "n k"],
    rounds: int,
    kernels: Kernels = "auto",
) -> Int[JaxArray, "n"]:
    """Give what has no label that of its nearest neighbour that has one.

    Args:
      label: of the particles, -1 without.
      linked: which neighbours a particle may follow.
      distances: of the neighbours [m].
      indices: of the neighbours.
      rounds: how many neighbours away a label may come from.
      kernels: form in which this is computed.
    """
    if use_host_kernels(kernels):
        labels = [jax.ShapeDtypeStruct(label.shape, np.int32)]
        arguments = label, linked, distances, indices, np.asarray(rounds, np.int32)
        return host_call(components_host.follow, labels, *arguments)[0]

    def follow(_: object, label: Int[JaxArray, "n"]) -> Int[JaxArray, "n"]:
        apart = jnp.where(linked & (label[indices] >= 0), distances, jnp.inf)
        best = jnp.argmin(apart, axis=1, keepdims=True)
        theirs = jnp.take_along_axis(label[indices], best, axis=1)[:, 0]
        return jnp.where((label < 0) & jnp.isfinite(apart.min(axis=1)), theirs, label)

    # A loop of the program: unrolled, every neighbour's label would be computed anew.
    return jax.lax.fori_loop(0, rounds, follow, jnp.asarray(label))
