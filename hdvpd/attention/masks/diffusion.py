"""Diffusion on a graph, exp(-lambda L D^-1), by its action on vectors (arXiv 2107.07999, Sec. 4.1).

L D^-1 = (D - A) D^-1 is not symmetric, contrary to the paper's proof, but X = -D^-1/2 A D^-1/2 is,
with spectrum in [-1, 1], and the kernel is D^1/2 exp(-lambda (X + 1)) D^-1/2. The exponential is
sum_k c_k T_k(X) with Chebyshev polynomials T_k, whose terms fall faster than exponentially. A node
without edges has D = 1 and X = -1 there. lambda is the diffusion time itself (the paper's text says
its inverse).
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import scipy.special

from hdvpd.attention.graphs import SymmetricPart
from hdvpd.attention.masks.base import AbstractMask
from hdvpd.basics.types import Array, Float, JaxArray, pytree, static

TOLERANCE = 1e-6
"""Error of a product, relative to the largest entry of x."""


@pytree
class DiffusionMask(AbstractMask):
    """exp(-lambda L D^-1), made by `diffusion_mask`. An isolated node sees itself only.

    Attributes:
      graph: A, not negative.
      degrees: row sums of A.
      time: lambda.
      num_terms: Chebyshev terms, enough for the largest lambda.
    """

    graph: SymmetricPart
    degrees: Float[Array, "t"]
    time: Float[Array, ""]
    num_terms: int = static()

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.graph.num_rows

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return M x, D^1/2 exp(-lambda (X + 1)) D^-1/2 x."""
        return _product(self, x)

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Bound the error of a product: `TOLERANCE` of the largest entry of D^-1/2 x."""
        root = self.root_degrees()
        return TOLERANCE * root * jnp.abs(x / root).max(0, keepdims=True)

    def root_degrees(self) -> Float[JaxArray, "t 1"]:
        """Return the diagonal of D^1/2, 1 for isolated nodes."""
        degrees = jnp.asarray(self.degrees)[:, None]
        return jnp.sqrt(jnp.where(degrees > 0, degrees, 1.0))

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return M as the exponential of a dense matrix."""
        adjacency = self.graph.dense()
        degrees = adjacency.sum(1)
        laplacian = jnp.diag(degrees) - adjacency
        laplacian /= jnp.where(degrees > 0, degrees, 1.0)[None]
        return jax.scipy.linalg.expm(-self.time * laplacian)


@jax.jit
def _product(mask: DiffusionMask, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
    root = mask.root_degrees()
    scale = 1.0 / root
    diagonal = jnp.where(jnp.asarray(mask.degrees)[:, None] > 0, 0.0, -1.0)

    def multiply(x: JaxArray) -> JaxArray:
        return diagonal * x - scale * (mask.graph @ (scale * x))

    coefficients = chebyshev_coefficients(mask.time, mask.num_terms)
    return root * chebyshev_sum(multiply, coefficients, jnp.asarray(x / root))


def diffusion_mask(
    graph: SymmetricPart, time: Float[Array, ""], largest_time: float
) -> DiffusionMask:
    """Prepare the diffusion on a graph, also where the graph and the time are traced.

    Args:
      graph: A, not negative.
      time: lambda, cut to [0, largest_time], where its gradient is zero beyond.
      largest_time: decides the number of products with A.
    """
    degrees = (graph @ jnp.ones((graph.num_rows, 1)))[:, 0]
    time = jnp.clip(jnp.asarray(time), 0.0, largest_time)
    return DiffusionMask(graph, degrees, time, num_terms=chebyshev_degree(largest_time) + 1)


def chebyshev_sum(
    multiply: Callable[[JaxArray], JaxArray],
    coefficients: Float[JaxArray, "l"],
    x: Float[JaxArray, "t c"],
) -> Float[JaxArray, "t c"]:
    """Return sum_k c_k T_k(X) x by Clenshaw's recursion."""

    def add(last: tuple[JaxArray, JaxArray], coefficient: JaxArray) -> tuple[tuple, None]:
        return (coefficient * x + 2 * multiply(last[0]) - last[1], last[0]), None

    zero = jnp.zeros_like(coefficients[0] * x)
    (one, two), _ = jax.lax.scan(add, (zero, zero), coefficients[1:], reverse=True)
    return coefficients[0] * x + multiply(one) - two


def chebyshev_coefficients(exponent: Float[Array, ""], num_terms: int) -> Float[JaxArray, "l"]:
    """Expand exp(-exponent (X + 1)) in Chebyshev polynomials of X in [-1, 1].

    c_0 = e^-exponent I_0(exponent), c_k = 2 (-1)^k e^-exponent I_k(exponent), at most 2, with
    modified Bessel functions I_k, whose cosine integral the rule below gives up to I_k for k beyond
    three times the number of terms. So they are differentiable in the exponent.

    Args:
      exponent: not negative.
      num_terms: coefficients.
    """
    num_samples = 2 * num_terms
    angles = np.pi * (np.arange(num_samples) + 0.5) / num_samples
    cosines = np.cos(np.arange(num_terms)[:, None] * angles) * 2 / num_samples
    cosines[0] /= 2
    samples = jnp.exp(-exponent * jnp.asarray(np.cos(angles) + 1))
    return jnp.matmul(jnp.asarray(cosines), samples, precision=jax.lax.Precision.HIGHEST)


@functools.lru_cache
def chebyshev_degree(exponent: float, tolerance: float = TOLERANCE) -> int:
    """Return the degree that expands exp(-exponent (X + 1)) with an error of at most `tolerance`.

    The neglected terms are summed; about 8 up to exponent 2, 16 up to 8, 32 up to 30.
    """
    orders = np.arange(int(2 * exponent) + 32)
    beyond = np.cumsum(2 * scipy.special.ive(orders, exponent)[::-1])[::-1]
    return int(np.argmax(beyond[1:] <= tolerance))
