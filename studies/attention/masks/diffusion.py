"""Graph diffusion kernels exp(-lambda T) by their action on vectors (arXiv 2107.07999, Sec. 4.1).

T is the Laplacian L = D - A, its random-walk form L D^-1, or -A. Each is, up to a diagonal scaling
that is undone afterwards, an affine function of a symmetric matrix X with spectrum in [-1, 1]:
exp(-lambda T) = sum_k c_k T_k(X) with Chebyshev polynomials T_k, whose terms fall faster than
exponentially. lambda is the diffusion time itself (the paper's text says its inverse). L D^-1 is
not symmetric, contrary to the paper's proof; D^1/2 exp(-lambda D^-1/2 L D^-1/2) D^-1/2 is the same
kernel by a symmetric matrix, and the one that models learn (hdvpd.attention.masks.diffusion).
"""

import logging
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jax.scipy.linalg
import numpy as np
import scipy.sparse
import scipy.sparse.linalg

from hdvpd.attention.graphs import SymmetricPart
from hdvpd.attention.masks.base import AbstractMask
from hdvpd.attention.masks.diffusion import (
    TOLERANCE,
    chebyshev_coefficients,
    chebyshev_degree,
    chebyshev_sum,
)
from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Array, Float, JaxArray, is_known, pytree, static
from hdvpd.kernels.sparse_rows import SparseRows

Generator = Literal["laplacian", "walk", "adjacency"]

# exp of it is still a float32 number, with room for sums over many tokens.
_LARGEST_EXPONENT = 60.0
# Rounding errors of products with A count exponent times over: up to here they stay in `TOLERANCE`.
_EXACT_EXPONENT = 8.0
# Likewise the rounding errors of a sum over this many neighbours.
_EXACT_DEGREE = 64.0
# Below this a dense decomposition is as quick, and Lanczos' method wants more nodes than vectors.
_DENSE_NODES = 64


@pytree
class GraphDiffusionMask(AbstractMask):
    """exp(-lambda T), made by `diffusion_mask`. An isolated node sees itself only, with weight 1.

    Attributes:
      graph: A, symmetric.
      degrees: row sums of A.
      rate: r, which bounds the spectrum of T: 1 for the random walk, the largest degree for the
        Laplacian, 1.001 times the spectral radius for -A.
      time: lambda.
      generator: what T is.
      num_terms: Chebyshev terms, enough for the largest lambda.
    """

    graph: SparseRows | SymmetricPart
    degrees: Float[Array, "t"]
    rate: Float[Array, ""]
    time: Float[Array, ""]
    generator: Generator = static()
    num_terms: int = static()

    @property
    def num_tokens(self) -> int:
        """Rows and columns of M."""
        return self.graph.num_rows

    def __matmul__(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Return M x by Clenshaw's recursion."""
        return _product(self, x)

    def rounding_error(self, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
        """Bound what truncation and rounding make of a column: `TOLERANCE` of its largest entry.

        For T = -A it is that share of the column's norm and of the mask's largest eigenvalue,
        e^(lambda r); rounding errors are more of it from lambda r = 8 and degrees of 64 on.
        """
        if self.generator == "adjacency":
            norm = jnp.sqrt(jnp.sum(x * x, axis=0, keepdims=True))
            share = jnp.maximum(1.0, self.time * self.rate / _EXACT_EXPONENT)
            share *= jnp.maximum(1.0, jnp.max(self.degrees) / _EXACT_DEGREE)
            return jnp.broadcast_to(TOLERANCE * share * self.growth() * norm, x.shape)
        *_, outer = self.affine_form()
        return TOLERANCE * outer * jnp.abs(x / outer).max(0, keepdims=True)

    def growth(self) -> JaxArray:
        """Return what bounds the mask's eigenvalues: e^(lambda r) for T = -A, else 1."""
        return jnp.exp(self.time * self.rate if self.generator == "adjacency" else 0.0)

    def affine_form(self) -> tuple[JaxArray, JaxArray, JaxArray, JaxArray]:
        """Return columns diagonal, left, right and outer of the form below.

        T = outer r (X + 1) / outer with X x = diagonal x - left A (right x); for T = -A the 1 is
        left out, so that exp(-lambda T) is e^(lambda r) times what X + 1 gives.
        """
        degrees = jnp.asarray(self.degrees)[:, None]
        ones, connected = jnp.ones_like(degrees), degrees > 0
        if self.generator == "walk":
            root = jnp.sqrt(jnp.where(connected, degrees, 1.0))
            return connected - ones, 1.0 / root, 1.0 / root, root
        rate = jnp.where(self.rate > 0, self.rate, 1.0)
        diagonal = 0.0 * ones if self.generator == "adjacency" else degrees / rate - 1.0
        return diagonal, ones / rate, ones, ones

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
def _product(mask: GraphDiffusionMask, x: Float[Array, "t c"]) -> Float[JaxArray, "t c"]:
    diagonal, left, right, outer = mask.affine_form()

    def multiply(x: JaxArray) -> JaxArray:
        return diagonal * x - left * (mask.graph @ (right * x))

    coefficients = chebyshev_coefficients(mask.time * mask.rate, mask.num_terms)
    return outer * chebyshev_sum(multiply, coefficients, jnp.asarray(mask.growth() * x / outer))


def diffusion_mask(
    graph: SparseRows | SymmetricPart,
    time: float | Float[Array, ""],
    generator: Generator = "walk",
    *,
    largest_time: float | None = None,
) -> GraphDiffusionMask:
    """Prepare exp(-lambda T) of a graph.

    Args:
      graph: A, symmetric and not negative; `SymmetricPart` makes a directed graph so.
      time: lambda. A traced one is cut to [0, largest_time], where its gradient is zero beyond.
      generator: T = L ("laplacian", rows and columns of the mask sum to 1), L D^-1 ("walk", columns
        sum to 1: a Poisson number of random steps) or -A ("adjacency": entries grow like
        e^(lambda r), and rows below a millionth of that attend to nothing, which is logged).
      largest_time: bound of lambda, from which the number of products with A follows; by default
        lambda itself.

    Raises:
      UserError: lambda is negative, not finite or above its bound, A is not symmetric or has a
        negative entry, exp(lambda A) would overflow, or a traced value is needed for the number of
        products: a lambda without a bound, or the graph where T is not normalised by its degrees.
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
        degrees = (graph @ jnp.ones((graph.num_rows, 1)))[:, 0]
    rate = _rate(graph, degrees, generator)
    if generator == "adjacency":
        _check_growth(graph, bound, rate)
    return GraphDiffusionMask(
        graph=graph,
        degrees=degrees,
        rate=jnp.asarray(rate, degrees.dtype),
        time=jnp.clip(jnp.asarray(time), 0.0, bound),
        generator=generator,
        # Where entries grow, truncation stays a tenth of what rounding makes of them.
        num_terms=chebyshev_degree(
            bound * rate, 0.1 * TOLERANCE if generator == "adjacency" else TOLERANCE
        )
        + 1,
    )


def _rate(graph: SparseRows | SymmetricPart, degrees: JaxArray, generator: Generator) -> float:
    if generator == "walk":
        return 1.0
    if not is_known(degrees):
        raise UserError(
            f'generator = {generator!r}: the graph must be known before tracing; "walk" needs no '
            "bound of the degrees."
        )
    largest = float(np.asarray(degrees).max(initial=0.0))
    return largest if generator == "laplacian" else min(1.001 * spectral_radius(graph), largest)


def spectral_radius(graph: SparseRows | SymmetricPart) -> float:
    """Return the largest eigenvalue of a symmetric A >= 0, up to 1e-4 of it, by Lanczos' method.

    Args:
      graph: A, known before tracing.
    """
    matrix = _sparse(graph)
    if graph.num_rows < _DENSE_NODES:
        return float(np.linalg.eigvalsh(matrix.toarray()).max(initial=0.0))
    # Positive, so never orthogonal to the eigenvector, which is not negative (Perron, Frobenius).
    start = np.random.default_rng(0).uniform(0.5, 1.5, graph.num_rows)
    tolerance: Any = 1e-4  # which scipy annotates as an integer
    try:
        found = scipy.sparse.linalg.eigsh(
            matrix, 1, which="LA", v0=start, tol=tolerance, return_eigenvectors=False
        )
    except scipy.sparse.linalg.ArpackNoConvergence:
        return float(matrix.sum(1).max())  # a bound, if not a close one
    return float(found[0])


def _check_growth(graph: SparseRows | SymmetricPart, largest_time: float, rate: float) -> None:
    """Refuse exp(lambda A) that overflows; log rows too small beside its largest entries."""
    exponent = largest_time * rate
    if exponent > _LARGEST_EXPONENT:
        raise UserError(
            f"largest_time = {largest_time}: exp(lambda A) has entries up to e^{exponent:.0f}, too "
            f"large for float32; use lambda <= {_LARGEST_EXPONENT / rate:.3g}, or a Laplacian."
        )
    ones = np.ones(graph.num_rows)
    share = max(1.0, exponent / _EXACT_EXPONENT)
    error = TOLERANCE * share * np.exp(exponent) * np.linalg.norm(ones)
    if error < 1.0:  # every row holds at least a one
        return
    rows = scipy.sparse.linalg.expm_multiply(largest_time * _sparse(graph), ones)
    lost = int(np.sum(rows <= error))
    if lost:
        logging.getLogger("hdvpd").warning(
            "exp(lambda A) at lambda = %g: the sums of %d of its %d rows lie below the rounding "
            "errors of the largest, so that these tokens attend to nothing; use a smaller lambda, "
            'or generator = "walk".', largest_time, lost, graph.num_rows
        )  # fmt: skip


def _sparse(graph: SparseRows | SymmetricPart) -> scipy.sparse.csr_array:
    """Return A in float64, on the host."""
    if isinstance(graph, SymmetricPart):
        matrix = _sparse(graph.graph)
        return (matrix + matrix.T) / 2
    neighbors, degrees = np.asarray(graph.columns), np.asarray(graph.num_entries)
    rows, columns = np.nonzero(np.arange(neighbors.shape[1])[None] < degrees[:, None])
    entries = (
        np.asarray(graph.values, np.float64)[rows, columns],
        (rows, neighbors[rows, columns]),
    )
    return scipy.sparse.csr_array(entries, shape=(graph.num_rows, graph.num_rows))


def _require_symmetric(graph: SparseRows | SymmetricPart) -> None:
    directed = graph.graph if isinstance(graph, SymmetricPart) else graph
    used = np.arange(directed.columns.shape[1])[None] < np.asarray(directed.num_entries)[:, None]
    lightest = np.asarray(directed.values).min(initial=0.0, where=used)
    if lightest < 0:
        raise UserError(
            f"graph: weight {lightest}; diffusion needs weights >= 0, those of the adjacency "
            "and not of a Laplacian."
        )
    if isinstance(graph, SymmetricPart):
        return
    matrix = _sparse(graph)
    difference = abs(matrix - matrix.T).tocoo()
    if difference.nnz and difference.data.max() > 1e-6 * matrix.data.max():
        entry = int(difference.data.argmax())
        i, j = int(difference.coords[0][entry]), int(difference.coords[1][entry])
        raise UserError(
            f"graph: A[{i}, {j}] = {matrix[i, j]:g} but A[{j}, {i}] = {matrix[j, i]:g}; diffusion "
            "needs a symmetric matrix, for example SymmetricPart(graph)."
        )
