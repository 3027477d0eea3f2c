"""The two-layer perceptron that every dynamics model is made of."""

from flax import nnx

from hdvpd.basics.layers import Linear
from hdvpd.basics.types import Float, JaxArray
from hdvpd.kernels.choice import Kernels
from hdvpd.kernels.layers import bent, summed


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

    def __call__(
        self, x: Float[JaxArray, "*batch d"], residual: Float[JaxArray, "*batch o"] | None = None
    ) -> Float[JaxArray, "*batch o"]:
        """Apply to every row, and add to a residual."""
        rows = bent(self.hidden, x.reshape(-1, x.shape[-1]), self.kernels)
        if residual is not None:
            residual = residual.reshape(-1, residual.shape[-1])
        rows = summed([(self.out, rows)], None, residual, self.kernels)
        return rows.reshape(*x.shape[:-1], rows.shape[-1])
