"""The nearest particles of every particle, how like it in colour they are, and what they agree on.

Beyond the papers (`model.contact`): pure functions of observed places and colours. Nothing here has
a gradient. Lengths are metres.
"""

import dataclasses

import jax
import jax.numpy as jnp

from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray, ParticleCloud, pytree
from hdvpd.kernels.neighbors import Backend, knn

# Neighbours that share what they know: how many, how near and how like in colour.
PARTNERS = 16
_PARTNER_M = 0.03
_PARTNER_COLOR = 0.25
# So that the opinion of a few centimetres decides where particles are half a centimetre apart.
ROUNDS = 6
# Brightness is divided out of colours as far as there is light to tell a hue by.
_DARK = 0.1


@pytree
class Surroundings:
    """The nearest particles of every particle, and how unlike in colour they are.

    Attributes:
      indices: of the particles, nearest first, oneself among them.
      distances: [m]; inf where there are fewer particles, and of padding.
      unlike: squared difference of hues, 1 where a colour's edge is.
      hue: colour without brightness, in units of an edge.
    """

    indices: Int[Array, "n k"]
    distances: Float[Array, "n k"]
    unlike: Float[JaxArray, "n k"]
    hue: Float[JaxArray, "n 3"]

    def among(self, mask: Bool[Array, "n"]) -> "Surroundings":
        """Return the surroundings of which only particles of a mask are left; others are at inf."""
        distances = jnp.where(jnp.asarray(mask)[self.indices], self.distances, jnp.inf)
        return dataclasses.replace(self, distances=distances)


def surroundings(cloud: ParticleCloud, *, colors: bool, backend: Backend = "auto") -> Surroundings:
    """Find every particle's surroundings.

    Args:
      cloud: particles.
      colors: whether the first three features are the logits of colours; without them all
        particles are alike.
      backend: of the neighbour search.
    """
    cloud = jax.lax.stop_gradient(cloud)
    near = knn(cloud.positions, cloud.positions, PARTNERS, mask=cloud.mask, backend=backend)
    own = _colors(cloud, colors)
    brightness = own.mean(axis=-1, keepdims=True)
    # Faces of one object differ in brightness, and by the light that falls on them.
    hue = (own - brightness) / (brightness + _DARK) / _PARTNER_COLOR
    unlike = jnp.sum((hue[near.indices] - hue[:, None]) ** 2, axis=-1)
    # Rows of padding are somewhere, too, and how far particles are apart is asked of all rows.
    distances = jnp.where(cloud.mask[:, None], near.distances, jnp.inf)
    return Surroundings(near.indices, distances, unlike, hue)


def shared(values: Float[Array, "n"], around: Surroundings) -> Float[JaxArray, "n"]:
    """Return the mean that near particles of one colour agree on, in several rounds."""
    weights = jnp.exp(-((around.distances / _PARTNER_M) ** 2) - around.unlike)
    weights /= jnp.maximum(weights.sum(axis=1, keepdims=True), 1e-12)
    # A loop of the program: unrolled, every neighbour's value would be computed anew.
    return jax.lax.fori_loop(
        0, ROUNDS, lambda _, x: jnp.sum(weights * x[around.indices], axis=1), jnp.asarray(values)
    )


def _colors(cloud: ParticleCloud, known: bool) -> Float[JaxArray, "n 3"]:
    return jax.nn.sigmoid(jax.lax.stop_gradient(jnp.asarray(cloud.features))[:, :3]) * known
