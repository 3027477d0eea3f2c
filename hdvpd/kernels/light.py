"""Light that balls let pass on its way from a lamp, as host code.

XLA's twin is `dynamics.shadow.light_blocked`.
"""

import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Float, JaxArray
from hdvpd.kernels import light_host
from hdvpd.kernels.derivatives import differentiable
from hdvpd.kernels.host import fill


def light_passed(
    lamp: Float[JaxArray, "3"],
    log_radii: Float[JaxArray, "p"],
    places: Float[JaxArray, "n 3"],
    points: Float[JaxArray, "p 3"],
    most: float,
    edge: float,
) -> Float[JaxArray, "n"]:
    """Return prod_p (1 - most exp(-(d / r_p)^4) sigmoid(a / edge)); see `light_blocked`.

    Args:
      lamp: where it is [m].
      log_radii: log r_p [m].
      places: [m]; they carry no gradient.
      points: middles of balls [m]; they carry no gradient.
      most: share that a ball keeps at most.
      edge: length in which light ceases behind a ball [m].
    """
    return _pass((most, edge), (lamp, jnp.exp(-2 * log_radii)), (places, points))


def _forward(settings, moving, fixed):
    places, _ = fixed
    (passed,) = fill(light_host.forward, [places.shape[:1]], *_all(settings, moving, fixed))
    return passed, passed


def _backward(settings, moving, fixed, passed, passed_bar):
    shapes = [x.shape for x in moving]
    arguments = *_all(settings, moving, fixed), passed, passed_bar
    return tuple(fill(light_host.backward, shapes, *arguments))


def _all(settings, moving, fixed):
    return (*moving, *(np.asarray(x, np.float32) for x in settings), *fixed)


_pass = differentiable(_forward, _backward)
