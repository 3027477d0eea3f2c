"""What the nearest kinematic points say to particles, as host code.

XLA's twin is in `dynamics.contact.PointEdges`.
"""

import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Float, Int, JaxArray
from hdvpd.kernels import point_edges_host
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import fill
from hdvpd.kernels.point_edges_host import WIDTH


def attend_to_points(
    about: Float[JaxArray, "p c"],
    points: Float[JaxArray, "p 3"],
    positions: Float[JaxArray, "n 3"],
    near: Int[Array, "n k"],
    kernel: Float[JaxArray, "c+4 h"],
    bias: Float[JaxArray, "h"],
    score: Float[JaxArray, "h 1"],
    out: Float[JaxArray, "h d"],
    *,
    unit_m: float,
    fade: float,
) -> Float[JaxArray, "n d"]:
    """Return what the edges from points say to each particle; see `dynamics.contact.PointEdges`.

    An edge's hidden row is GELU([about, o, l] kernel / (1 + l / fade) + bias) with the offset o
    of the point and its length l. Rows are summed with the softmax over edges of row score, and the
    sum is multiplied by `out`.

    Args:
      about: what each point says.
      points: [m].
      positions: of particles [m].
      near: points of every particle.
      kernel: of the hidden layer, whose width h is `WIDTH`.
      bias: of the hidden layer.
      score: what gives a row's score.
      out: the last layer.
      unit_m: of offsets [m].
      fade: length at which an edge says half as much, in that unit.

    Raises:
      ValueError: the hidden layer has another width.
    """
    if kernel.shape[1] != WIDTH:
        raise ValueError(f"the host form's hidden layer is {WIDTH} wide, not {kernel.shape[1]}.")
    layer = jnp.concatenate([kernel, bias[None], score.T])
    return _attend((unit_m, fade), (about, points, positions, layer, out), near)


def _forward(settings, moving, fixed):
    (count, width), out = fixed.shape, moving[-1]
    shapes = [(count, out.shape[1]), (width, count), (count, WIDTH)]
    result, *saved = fill(point_edges_host.forward, shapes, *moving, fixed, _numbers(settings))
    return result, saved


def _backward(settings, moving, fixed, saved, result_bar):
    shapes = [x.shape for x in moving]
    arguments = (*moving, fixed, _numbers(settings), *saved, result_bar)
    return tuple(fill(point_edges_host.backward, shapes, *arguments))


def _numbers(settings):
    return np.asarray(settings, np.float32)


_attend = differentiable(_forward, _backward)
