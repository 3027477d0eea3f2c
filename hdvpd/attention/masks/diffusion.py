"""Graph diffusion kernels exp(-lambda T) by their action on vectors (arXiv 2107.07999, Sec. 4.1).

T is the Laplacian L = D - A, its random-walk form L D^-1, or -A. Each is, up to a diagonal scaling
that is undone afterwards, an affine function of a symmetric matrix X with spectrum in [-1, 1]:
exp(-lambda T) = sum_k c_k T_k(X) with Chebyshev polynomials T_k, whose terms fall faster than
exponentially. lambda is the diffusion time itself (the paper's text says its inverse). L D^-1 is
not symmetric, contrary to the paper's proof; D^1/2 exp(-lambda D^-1/2 L D^-1/2) D^-1/2 is the same
kernel by a symmetric matrix.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import scipy.sparse
import scipy.special

from hdvpd.array_typing import Array, Float, JaxArray, is_known, pytree, static
from hdvpd.attention.graphs import Graph, SymmetricPart
from hdvpd.attention.masks.base import AbstractMask
from hdvpd.errors import UserError

Generator = Literal["laplacian", "walk", "adjacency"]

TOLERANCE = 1e-6
"""Error of a product, relative to the largest entry of x."""

# exp of it is still a float32 number, with room for sums over many tokens.
_LARGEST_EXPONENT = 60.0


@pytree
class DiffusionMask(AbstractMask):
    """exp(-lambda T), made by `diffusion_mask`. An isolated node sees itself only, with weight 1.

    Attributes:
      graph: A, symmetric.
      degrees: row sums of A.
      time: lambda.
      generator: what T is.
      num_terms: Chebyshev terms, enough for the largest lambda.
    """

    graph: Graph | SymmetricPart
    degrees: Float[Array, "t"]
    time: Float[Array, ""]
    generator: Generator = static()
    num_terms: int = static()

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.graph.num_nodes

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return M x by Clenshaw's recursion."""
        return _clenshaw(self, x)

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Bound what truncation and rounding make of a column: `TOLERANCE` of its largest entry.

        For T = -A it is that times e^(lambda d_max), more than the mask's largest entry where
        degrees differ.
        """
        _, _, outer, rate = self.affine_form()
        growth = jnp.exp(self.time * rate) if self.generator == "adjacency" else 1.0
        largest = jnp.abs(x / outer).max(0, keepdims=True)
        return TOLERANCE * growth * outer * largest

    def affine_form(self) -> tuple[JaxArray, JaxArray, JaxArray, JaxArray]:
        """Return columns diagonal, scale, outer and the rate r of the form below.

        T = outer r (X + shift) / outer with X x = diagonal x - scale A (scale x), shift 1 where T
        is a Laplacian and 0 where it is -A.
        """
        degrees = jnp.asarray(self.degrees)[:, None]
        ones, connected = jnp.ones_like(degrees), degrees > 0
        if self.generator == "walk":
            root = jnp.sqrt(jnp.where(connected, degrees, 1.0))
            return connected - ones, 1.0 / root, root, jnp.ones((), root.dtype)
        largest = degrees.max(initial=0.0)
        bound = jnp.where(largest > 0, largest, 1.0)
        diagonal = 0.0 * ones if self.generator == "adjacency" else degrees / bound - 1.0
        return diagonal, ones / jnp.sqrt(bound), ones, largest

    def dense(self) -> Float[JaxArray, "t t"]:
        """Return M as the exponential of a dense matrix."""
        adjacency = self.graph.dense()
        degrees = adjacency.sum(1)
        if self.generator == "adjacency":
            return jax.scipy.linalg.expm(self.time * adjacency)
        laplacian = jnp.diag(degrees) - adjacency
        if self.generator == "walk":
            laplacian /= jnp.where(degrees > 0, degrees, 1.0)[None]
        return jax.scipy.linalg.expm(-self.time * laplacian)


@jax.jit
def _clenshaw(mask: DiffusionMask, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
    diagonal, scale, outer, rate = mask.affine_form()
    shift = 0.0 if mask.generator == "adjacency" else 1.0
    coefficients = chebyshev_coefficients(mask.time * rate, shift, mask.num_terms)
    x = jnp.asarray(x / outer)

    def multiply(x: JaxArray) -> JaxArray:
        return diagonal * x - scale * (mask.graph @ (scale * x))

    def add(last: tuple[JaxArray, JaxArray], coefficient: JaxArray) -> tuple[tuple, None]:
        return (coefficient * x + 2 * multiply(last[0]) - last[1], last[0]), None

    zero = jnp.zeros_like(coefficients[0] * x)
    (one, two), _ = jax.lax.scan(add, (zero, zero), coefficients[1:], reverse=True)
    return outer * (coefficients[0] * x + multiply(one) - two)


def diffusion_mask(
    graph: Graph | SymmetricPart,
    time: float | Float[Array, ""],
    generator: Generator = "walk",
    *,
    largest_time: float | None = None,
) -> DiffusionMask:
    """Prepare exp(-lambda T) of a graph.

    Args:
      graph: A, symmetric and not negative; `SymmetricPart` makes a directed graph so.
      time: lambda. A traced one is cut to [0, largest_time], where its gradient is zero beyond.
      generator: T = L ("laplacian", rows and columns of the mask sum to 1), L D^-1 ("walk", columns
        sum to 1: a Poisson number of random steps) or -A ("adjacency").
      largest_time: bound of lambda, from which the number of products with A follows; by default
        lambda itself.

    Raises:
      UserError: lambda is negative, not finite or above its bound, A is not symmetric or has a
        negative entry, exp(lambda A) would overflow, or a traced value is needed for the number of
        products: a lambda without a bound, or degrees where T is not normalised by them.
    """
    if not is_known(time) and largest_time is None:
        raise UserError("largest_time: give a bound where the time is traced.")
    bound = float(time) if largest_time is None else float(largest_time)
    if is_known(time) and not 0 <= float(time) <= bound < float("inf"):
        raise UserError(
            f"time = {float(time)}: a diffusion time must be finite, not negative and at most "
            f"largest_time = {bound}."
        )
    if not 0 <= bound < float("inf"):
        raise UserError(f"largest_time = {bound}: use a finite number that is not negative.")
    if is_known(graph):
        _require_symmetric(graph)
    # Known of a known graph, also while a time is traced.
    with jax.ensure_compile_time_eval():
        degrees = (graph @ jnp.ones((graph.num_nodes, 1)))[:, 0]
    return DiffusionMask(
        graph=graph,
        degrees=degrees,
        time=jnp.clip(jnp.asarray(time), 0.0, bound),
        generator=generator,
        num_terms=_num_terms(bound, degrees, generator),
    )


def _num_terms(largest_time: float, degrees: JaxArray, generator: Generator) -> int:
    if generator == "walk":
        return chebyshev_degree(largest_time) + 1
    if not is_known(degrees):
        raise UserError(
            f'generator = {generator!r}: the graph must be known before tracing; "walk" needs no '
            "bound of the degrees."
        )
    exponent = largest_time * float(np.asarray(degrees).max(initial=0.0))
    if generator == "adjacency" and exponent > _LARGEST_EXPONENT:
        allowed = _LARGEST_EXPONENT * largest_time / exponent
        raise UserError(
            f"largest_time = {largest_time}: exp(lambda A) has entries up to e^{exponent:.0f}, too "
            f"large for float32; use lambda <= {allowed:.3g}, or a Laplacian."
        )
    return chebyshev_degree(exponent) + 1


def _require_symmetric(graph: Graph | SymmetricPart) -> None:
    directed = graph.graph if isinstance(graph, SymmetricPart) else graph
    neighbors, degrees = np.asarray(directed.neighbors), np.asarray(directed.degrees)
    rows, columns = np.nonzero(np.arange(neighbors.shape[1])[None] < degrees[:, None])
    weights = np.asarray(directed.weights, np.float64)[rows, columns]
    if (weights < 0).any():
        raise UserError(
            f"graph: weight {weights.min()}; diffusion needs weights >= 0, those of the adjacency "
            "and not of a Laplacian."
        )
    if isinstance(graph, SymmetricPart):
        return
    entries = (weights, (rows, neighbors[rows, columns]))
    matrix = scipy.sparse.csr_array(entries, shape=(graph.num_nodes, graph.num_nodes))
    difference = abs(matrix - matrix.T).tocoo()
    if difference.nnz and difference.data.max() > 1e-6 * weights.max():
        entry = int(difference.data.argmax())
        i, j = int(difference.coords[0][entry]), int(difference.coords[1][entry])
        raise UserError(
            f"graph: A[{i}, {j}] = {matrix[i, j]:g} but A[{j}, {i}] = {matrix[j, i]:g}; diffusion "
            "needs a symmetric matrix, for example SymmetricPart(graph)."
        )


def chebyshev_coefficients(
    exponent: Float[Array, ""], shift: float, num_terms: int
) -> Float[JaxArray, "l"]:
    """Expand exp(-exponent (X + shift)) in Chebyshev polynomials of X in [-1, 1].

    c_0 = e^(-exponent shift) I_0(exponent), c_k = 2 (-1)^k e^(-exponent shift) I_k(exponent) with
    modified Bessel functions I_k, whose cosine integral the rule below gives up to I_k for k beyond
    three times the number of terms. So they are differentiable in the exponent.

    Args:
      exponent: not negative.
      shift: 1 bounds every coefficient by 2.
      num_terms: coefficients.
    """
    num_samples = 2 * num_terms
    angles = np.pi * (np.arange(num_samples) + 0.5) / num_samples
    cosines = np.cos(np.arange(num_terms)[:, None] * angles) * 2 / num_samples
    cosines[0] /= 2
    samples = jnp.exp(-exponent * jnp.asarray(np.cos(angles) + shift))
    return jnp.matmul(jnp.asarray(cosines), samples, precision=jax.lax.Precision.HIGHEST)


@functools.lru_cache
def chebyshev_degree(exponent: float) -> int:
    """Return the degree that expands exp(-exponent (X + 1)) with an error of at most `TOLERANCE`.

    The neglected terms are summed; about 8 up to exponent 2, 16 up to 8, 32 up to 30.
    """
    orders = np.arange(int(2 * exponent) + 32)
    beyond = np.cumsum(2 * scipy.special.ive(orders, exponent)[::-1])[::-1]
    return int(np.argmax(beyond[1:] <= TOLERANCE))
