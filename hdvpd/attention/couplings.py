"""How the walkers of one start node depend on each other while each keeps its own law.

Independent walkers, antithetic termination (arXiv 2305.12470) and repelling walks (arXiv
2310.04854). All walkers of a start node move together: first every halting draw, then every choice
of a neighbour. Walkers of different start nodes are independent. Axis `n` counts the walkers of one
start node, in their fixed order.
"""

from typing import Literal

import jax.numpy as jnp

from hdvpd.basics.types import Bool, Float, Int, JaxArray, Shaped

Coupling = Literal["iid", "antithetic", "repelling", "repelling-antithetic"]


def uniform(bits: Shaped[JaxArray, "n"]) -> Float[JaxArray, "n"]:
    """Turn 32 random bits each into multiples of 2^-24, uniform in [0, 1)."""
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def antithetic_draws(draws: Float[JaxArray, "n"]) -> Float[JaxArray, "n"]:
    """Pair the halting draws of an even number of walkers; who draws less than p_halt stops.

    Args:
      draws: independent and uniform in [0, 1).

    Returns:
      u_i for walker i < n/2 and (u_i + 1/2) mod 1 for walker i + n/2: uniform too, and for
      p_halt <= 1/2 the two never stop at the same hop.
    """
    half = draws[: draws.shape[0] // 2]
    return jnp.concatenate([half, (half + 0.5) % 1.0])


def independent_slots(
    bits: Shaped[JaxArray, "n"], degrees: Int[JaxArray, "n"]
) -> Int[JaxArray, "n"]:
    """Choose a place in its node's list of neighbours for every walker by itself, uniformly."""
    return _below(bits, jnp.maximum(degrees, 1))


def repelling_slots(
    bits: Shaped[JaxArray, "n"],
    nodes: Int[JaxArray, "n"],
    alive: Bool[JaxArray, "n"],
    degrees: Int[JaxArray, "n"],
) -> Int[JaxArray, "n"]:
    """Spread the walkers that stand on one node over its neighbours (the public program's rule).

    Of m live walkers on a node with d neighbours, walker j (in order) takes

    - m <= d: neighbour floor(((j/m + u) mod 1) d) with one uniform u, so that all differ;
    - m > d: in each full block of d walkers a cyclic shift of all neighbours by the block's own
      uniform integer; the rest take consecutive neighbours from another uniform integer.

    In integers throughout: with u = (c + fraction) / (m d), c uniform in 0..md-1, the first rule is
    ((j d + c) mod m d) // m exactly, where floating point can repeat a neighbour.

    Args:
      bits: 32 random bits per walker.
      nodes: where each walker stands.
      alive: walkers that move.
      degrees: out-degree of each walker's node.

    Returns:
      Position in the node's list of neighbours, uniform over it for each walker by itself; any
      number for walkers that do not move.
    """
    # Each walker compares itself with all others: n^2 comparisons without a sort, n being few. Its
    # rank among the live walkers of its node says in which full block of d it is and where in it.
    order = jnp.arange(nodes.shape[0])
    together = alive[:, None] & alive[None] & (nodes[:, None] == nodes[None])
    rank = (together & (order[None] < order[:, None])).sum(1)
    count = jnp.maximum(together.sum(1), 1)
    degree = jnp.maximum(degrees, 1)
    block, place = rank // degree, rank % degree
    sparse = count <= degree
    # The first walker of a block draws for all of it. Where m <= d there is one block, the group
    # itself, which draws c from 0..md-1 instead of a shift from 0..d-1.
    first = jnp.argmax(together & (block[:, None] == block[None]), axis=1)
    draw = _below(bits[first], jnp.where(sparse, count * degree, degree))
    spread = (place * degree + draw) % (count * degree) // count
    return jnp.where(sparse, spread, (place + draw) % degree)


def _below(bits: Shaped[JaxArray, "n"], bound: Int[JaxArray, "n"]) -> Int[JaxArray, "n"]:
    """Return integers in [0, bound); their probabilities differ by 2^-32 at most."""
    return (bits % bound.astype(jnp.uint32)).astype(jnp.int32)
