"""The two-layer perceptron that every dynamics model is made of."""

import jax
from flax import nnx

from hdvpd.basics.layers import Linear
from hdvpd.basics.types import Float, JaxArray


class Mlp(nnx.Module):
    """Two dense layers with GELU between."""

    def __init__(self, in_dim: int, hidden_dim: int, out_dim: int, *, rngs: nnx.Rngs):
        self.hidden = Linear(in_dim, hidden_dim, rngs=rngs)
        self.out = Linear(hidden_dim, out_dim, rngs=rngs)

    def __call__(self, x: Float[JaxArray, "*batch d"]) -> Float[JaxArray, "*batch o"]:
        """Apply to every row."""
        return self.out(jax.nn.gelu(self.hidden(x)))
