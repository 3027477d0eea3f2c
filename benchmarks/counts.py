"""What the mathematics of every part needs: floating-point operations and bytes, from the shapes.

Products are counted exactly (a multiplication and an addition are two operations), what is done to
single numbers roughly, one operation each; a search counts what a k-d tree cannot do without. Bytes
are float32: what enters a part is read once, what leaves it is written once, and so are parameters;
nothing between counts, because it could stay in registers and caches. Backward, a part reads its
input and the cotangent of its output, writes the cotangent of its input, and products are needed
twice, for their input's and their parameters' cotangents; nothing is computed again.

`tests/test_floor.py` holds the counts of operations against XLA's.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from hdvpd.dynamics import surroundings
from hdvpd.dynamics.body import NEAREST
from hdvpd.dynamics.surroundings import PARTNERS

FLOAT = 4


@dataclass(frozen=True)
class Cost:
    """Floating-point operations, and bytes that must be moved."""

    flop: float = 0.0
    moved: float = 0.0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.flop + other.flop, self.moved + other.moved)

    def __mul__(self, times: float) -> "Cost":
        return Cost(self.flop * times, self.moved * times)

    def seconds(self, rate: float, bandwidth: float) -> float:
        """Return the least time [s] at a rate [FLOP/s] and a bandwidth [bytes/s]."""
        return max(self.flop / rate, self.moved / bandwidth)


@dataclass(frozen=True)
class Need:
    """What a part needs forward, and what forward and backward."""

    forward: Cost
    both: Cost


def need(
    *,
    products: float = 0.0,
    others: float = 0.0,
    read: float = 0.0,
    written: float = 0.0,
    parameters: float = 0.0,
    fixed_input: float = 0.0,
) -> Need:
    """Return the need of a part.

    Args:
      products: operations of matrix products and convolutions.
      others: operations on single numbers.
      read: numbers of the input.
      written: numbers of the output.
      parameters: numbers.
      fixed_input: operations of the products that read an input without a cotangent.
    """
    forward = Cost(products + others, FLOAT * (read + written + parameters))
    twice = 1 if fixed_input else 2  # read again, and its cotangent written
    backward = Cost(
        2 * products - fixed_input + 2 * others,
        FLOAT * (twice * read + written + 2 * parameters),
    )
    return Need(forward, forward + backward)


def fixed(flop: float, read: float, written: float) -> Need:
    """Return the need of a part without a gradient: its backward pass is nothing."""
    cost = Cost(flop, FLOAT * (read + written))
    return Need(cost, cost)


def dense(rows: int, inputs: int, outputs: int) -> float:
    """Return the operations of a dense layer's product."""
    return 2.0 * rows * inputs * outputs


def perceptron(rows: int, widths: Sequence[int]) -> Need:
    """Return the need of dense layers one after another, with something smooth between."""
    pairs = list(itertools.pairwise(widths))
    return need(
        products=sum(dense(rows, a, b) for a, b in pairs),
        others=rows * sum(widths[1:]),
        read=rows * widths[0],
        written=rows * widths[-1],
        parameters=sum(a * b for a, b in pairs),
    )


def unet(images: int, height: int, width: int, channels: Sequence[int], outputs: int) -> Need:
    """Return the need of the U-Net (hdvpd/encoders/unet.py); images have no cotangent."""

    def block(level: int, inputs: int, outputs: int) -> tuple[float, int]:
        pixels = images * math.ceil(height / 2**level) * math.ceil(width / 2**level)
        weights = 9 * (inputs + outputs) * outputs
        return 2.0 * pixels * weights, weights

    down = [
        block(level, i, o)
        for level, (i, o) in enumerate(zip((3, *channels), channels, strict=False))
    ]
    up = [
        block(level, channels[level + 1] + channels[level], channels[level])
        for level in range(len(channels) - 1)
    ]
    pixels = images * height * width
    head = (dense(pixels, channels[0], outputs), channels[0] * outputs)
    operations, parameters = zip(*down, *up, head, strict=True)
    # Two norms, each followed by GELU, per block; and what is resized.
    smooth = sum(
        2 * 20 * images * math.ceil(height / 2**level) * math.ceil(width / 2**level) * c
        for level, c in [*enumerate(channels), *enumerate(channels[:-1])]
    )
    return need(
        products=sum(operations),
        others=smooth,
        read=3 * pixels,
        written=outputs * pixels,
        parameters=sum(parameters),
        fixed_input=2.0 * pixels * 9 * 3 * channels[0],
    )


def tokens(particles: int, points: int, width: int, features: int, octaves: int) -> Need:
    """Return the need of tokens of two clouds and three poses of the robot, as in the papers."""
    rows, robot = 2 * particles + 3 * points, 3 * points
    place = 3 + 6 * octaves
    return need(
        products=dense(2 * particles, features, width)
        + dense(robot, 20, width)
        + dense(rows, place, width),
        others=rows * (place + 3 * width),
        read=2 * particles * (features + 3) + 4 * robot,
        written=rows * width,
        parameters=(features + 20 + place) * width,
    )


def carried(particles: int, points: int, motions: int) -> Need:
    """Return the need of the motions of links and of particles that go along, and of their reach.

    Of which points are nearest see `neighbor_search`.
    """
    # A link's turn is a product of 3 x 3; a particle's, with its arm and its place, 18 + 3 + 3.
    turns = points * motions * 54
    return need(
        others=turns + particles * (24 * motions + 12),
        read=3 * particles + 12 * (1 + motions) * points,
        written=particles * (1 + 3 * motions),
    )


def held(particles: int, points: int, motions: int) -> Need:
    """Return the need of a softmax over kinematic points and the mean motions of their links."""
    pairs = particles * points
    fixed_by_plan = fixed(pairs * (8 + 3 + 24 * motions), 3 * points, 0)
    moved = need(
        others=particles * 24 * motions, read=3 * particles, written=3 * particles * motions
    )
    return in_sum([fixed_by_plan, moved])


def global_attention(rows: int, width: int, heads: int) -> Need:
    """Return the need of norm, linear attention with its projections, and residual."""
    return need(
        products=dense(rows, width, 4 * width) + 2 * dense(rows, width, width // heads),
        others=rows * width * 9,
        read=rows * width,
        written=rows * width,
        parameters=4 * width * width,
    )


def mlp(rows: int, width: int, hidden: int) -> Need:
    """Return the need of norm, MLP and residual."""
    return need(
        products=2 * dense(rows, width, hidden),
        others=rows * (width * 7 + hidden * 8),
        read=rows * width,
        written=rows * width,
        parameters=2 * width * hidden,
    )


def local_layer(rows: int, width: int, entries: float, hops: int) -> Need:
    """Return the need of norm, attention along walks with its projections, and residual.

    Args:
      rows: tokens.
      width: of a token.
      entries: distinct tokens that all walks of a token visit, in the mean.
      hops: of a walk.
    """
    walks = rows * entries
    return need(
        products=dense(rows, width, 4 * width) + walks * 4.0 * width,
        others=walks * 2 * (hops + 1) + rows * width * 9,
        read=rows * width + walks * (2 + hops),
        written=rows * width,
        parameters=4 * width * width,
    )


def neighbor_search(queries: int, points: int, neighbors: int) -> Need:
    """Return the least that a k-d tree does: one way down, and the distances to one leaf of 16.

    Neighbours and distances are written; no gradient.
    """
    down = math.log2(max(points / 16, 1))
    build = points * max(down, 1)
    return fixed(build + queries * (down + 16 * 8), 3 * (queries + points), 2 * queries * neighbors)


def walk_plan(rows: int, listed: int, entries: float, hops: int) -> Need:
    """Return the need of following all walks and writing each row's distinct entries twice."""
    return fixed(rows * listed * 2, rows * 6, rows * (entries * (hops + 3)))


def read_out(rows: int, width: int, outputs: int) -> Need:
    """Return the need of norm, MLP and the bounded change."""
    return need(
        products=dense(rows, width, width) + dense(rows, width, outputs),
        others=rows * (width * 14 + 4 * outputs),
        read=rows * width,
        written=rows * outputs,
        parameters=width * (width + outputs),
    )


def draw_particles(pixels: int, particles: int, features: int) -> Need:
    """Return the need of points of all pixels, one order of them, and the drawn rows."""
    ordered = pixels * math.log2(max(pixels, 2))
    return fixed(pixels * 40 + ordered, 4 * pixels, particles * (features + 4))


def place_samples(samples: int, strata: int) -> Need:
    """Return the need of strata, proposals and their common order; search apart."""
    return fixed(samples * (8 + math.log2(max(samples, 2))) + strata * 8, strata, samples)


def annular_sums(pairs: float, queries: float, kernels: int, features: int) -> Need:
    """Return the need of the kernels' sums over found pairs of a sample and a particle."""
    return need(
        products=pairs * kernels * 2.0 * features,
        others=pairs * (9 + 5 * kernels),
        read=pairs * (1 + 3 + features),
        written=queries * kernels * (features + 1),
    )


def surface(pairs: float, queries: float) -> Need:
    """Return the need of the weighted mean and covariance of neighbours, and the sheet's light."""
    return need(
        products=pairs * (2 * 3 + 2 * 9),
        others=pairs * (9 + 4) + queries * 150,
        read=pairs * (1 + 3) + queries * 6,
        written=queries * 2,
    )


def compositing(rays: int, samples: int) -> Need:
    """Return the need of blending samples front to back."""
    return need(others=rays * samples * 20, read=rays * samples * 6, written=rays * 5)


def things(particles: int, points: int) -> Need:
    """Return the need of who is the robot and of `moved_things`: searches, agreement, a perceptron.

    Roughly one operation for a number compared, added or moved into a box's axes.
    """
    searches = [neighbor_search(particles, particles, PARTNERS)]
    searches += [neighbor_search(particles, points, NEAREST)] * 2
    agreed = particles * PARTNERS * (16 + 2 * surroundings.ROUNDS + 2)
    in_boxes = particles * NEAREST * 3 * (3 + 15 + 30)
    moved = particles * 250
    told = particles * points * 10 + perceptron(particles, (points + 6, 64, 64, 1)).forward.flop
    geometry = fixed(agreed + in_boxes + moved + told, 13 * particles, 6 * particles)
    return in_sum([*searches, geometry])


def shadow(particles: int, points: int) -> Need:
    """Return the need of the light that arrives before and after a step, and of colours by it."""
    pairs = 2 * particles * points
    return need(
        others=pairs * 27 + particles * 60,
        read=particles * 6 + 3 * points,
        written=particles * 3,
        parameters=points,
    )


def matching(particles: int, points: int) -> Need:
    """Return the need of the nearest counterparts in place and colour, both ways, by two trees."""
    searches = [neighbor_search(particles, points, 1), neighbor_search(points, particles, 1)]
    compared = need(others=20 * (particles + points), read=3 * particles, written=1)
    return in_sum([*searches, compared])


def optimizer(parameters: int) -> Need:
    """Return the need of clipping and AdamW: gradient, two moments and parameters."""
    return fixed(parameters * 20, 5 * parameters, 3 * parameters)


def contact(particles: int, points: int, width: int, features: int, nearest: int) -> Need:
    """Return the need of `model.contact` in the tokens of two clouds, its searches included."""
    rows, hidden, identity = 2 * particles, 32, 16
    edges = perceptron(rows * nearest, (identity + 8, hidden))
    score = dense(rows * nearest, hidden, 1)
    history = perceptron(rows, (2 * (1 + features) + 3, hidden, width))
    learned = need(
        products=edges.forward.flop + score + dense(rows, hidden, width) + history.forward.flop,
        others=rows * nearest * (hidden * 4 + 20),
        read=rows * (3 + features),
        written=rows * width,
        parameters=hidden * (identity + 9 + 2 * width),
    )
    searches = neighbor_search(2 * rows, rows, 1), neighbor_search(rows, 2 * points, nearest)
    return in_sum([learned, *searches])


def in_sum(needs: Sequence[Need]) -> Need:
    """Return the need of several parts."""
    return Need(sum((n.forward for n in needs), Cost()), sum((n.both for n in needs), Cost()))
