"""What a point in space sees of the particles around it (docs/equations.md, Renderer).

The MLP never sees the query's position, only features interpolated from nearby particles.
"""

import jax.numpy as jnp
import numpy as np

from hdvpd.basics.types import Array, Float

_EPS = 1e-8


def annular_features(sums: Float[Array, "q a c"]) -> Float[Array, "q a*c"]:
    """Turn sums under annular kernels into the MLP's input.

    Args:
      sums: from `hdvpd.kernels.annular_sums`.

    Returns:
      Per kernel the interpolated features F = sum w f / (S + eps) and the density channel
      g = 1 + ln(S + eps) / ln(1 / eps): 0 in empty space, 1 at S = 1; eps = 1e-8.
    """
    total = sums[..., -1:]
    density = 1.0 + jnp.log(total + _EPS) / np.log(1 / _EPS)
    features = jnp.concatenate([sums[..., :-1] / (total + _EPS), density], axis=-1)
    return features.reshape(sums.shape[0], -1)
