"""Random-walk graph-node kernels (arXiv 2107.07999, Sec. 4.2), the masks of GKAT.

The frequency vector of a walk counts lambda^e at the node on which it stands after e hops. With R
the mean vectors of all tokens, K = Psi Psi^T for Psi = R with each row divided by its norm to the
power alpha. R = sum_e lambda^e P^e, P the transition matrix of the uniform walk: graph random
features of P instead of W, which is what they are without importance weights.
"""

import dataclasses

import jax.numpy as jnp

from hdvpd.attention.masks.walks import WalkMask, walk_rows
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, is_known
from hdvpd.kernels.sparse_rows import SparseRows
from hdvpd.kernels.walks import Walks, merged


def rwgnk_rows(
    walks: Walks, decay: float | Float[Array, ""], norm_power: float = 1.0
) -> SparseRows:
    """Return Psi of walks on `hdvpd.attention.graphs.transition_graph`.

    Args:
      walks: sampled ones estimate R; exact ones are its walks of at most their number of hops.
        Walkers that stop with probability p give R = (I - rho P)^-1, rho = (1 - p) lambda, in the
        limit of many hops.
      decay: lambda, not negative.
      norm_power: alpha. 1 bounds K by 1, with a diagonal of 1; 0 leaves R as it is.

    Raises:
      UserError: lambda is negative or not finite.
    """
    if is_known(decay) and not 0 <= float(decay) < float("inf"):
        raise UserError(f"decay = {float(decay)}: lambda must be finite and not negative.")
    # Products instead of powers: lambda = 0 has a finite derivative.
    factors = jnp.full((walks.loads.shape[-1] - 1,), decay, jnp.result_type(decay, float))
    powers = jnp.concatenate([jnp.ones(1, factors.dtype), jnp.cumprod(factors)])
    rows = walk_rows(merged(walks), powers)
    norms = jnp.sqrt((rows.values**2).sum(1, keepdims=True))
    return dataclasses.replace(rows, values=rows.values / norms**norm_power)


def rwgnk_mask(walks: Walks, decay: float | Float[Array, ""], norm_power: float = 1.0) -> WalkMask:
    """Return K = Psi Psi^T; arguments as in `rwgnk_rows`."""
    rows = rwgnk_rows(walks, decay, norm_power)
    return WalkMask(rows, rows)
