"""The two-layer perceptron that every dynamics model is made of."""

from flax import nnx

from hdvpd.basics.layers import Linear
from hdvpd.basics.types import Float, JaxArray
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.layers import applied, bent


class Mlp(nnx.Module):
    """Two dense layers with GELU between."""

    def __init__(
        self,
        in_dim: int,
        hidden_dim: int,
        out_dim: int,
        kernels: Kernels = "auto",
        *,
        rngs: nnx.Rngs,
    ):
        self.hidden = Linear(in_dim, hidden_dim, rngs=rngs)
        self.out = Linear(hidden_dim, out_dim, rngs=rngs)
        self.kernels: Kernels = kernels

    def __call__(self, x: Float[JaxArray, "*batch d"]) -> Float[JaxArray, "*batch o"]:
        """Apply to every row."""
        rows = bent(self.hidden, x.reshape(-1, x.shape[-1]), self.kernels)
        rows = applied(self.out, rows, self.kernels)
        return rows.reshape(*x.shape[:-1], rows.shape[-1])
