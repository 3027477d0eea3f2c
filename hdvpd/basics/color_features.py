"""Colours as features of particles (`model.colors`)."""

import jax.numpy as jnp

from hdvpd.basics.types import Array, Float

# Black and white have infinite logits.
_COLOR_MARGIN = 0.02


def color_features(rgb: Float[Array, "*batch 3"]) -> Float[Array, "*batch 3"]:
    """Return the logits of colours in [0, 1], of those within .02 of black and white the bounds'.

    The renderer's sigmoid turns them into the colours again.
    """
    rgb = jnp.clip(rgb, _COLOR_MARGIN, 1.0 - _COLOR_MARGIN)
    return jnp.log(rgb) - jnp.log1p(-rgb)
