"""Graph kernel attention transformer, GKAT (arXiv 2107.07999, section 4.2), to classify graphs.

Softmax attention over all nodes, its weights multiplied with the random-walk graph-node kernel K of
the graph: M_ij = K_ij in `studies.attention.dense`. The graphs are small, so the mask is a matrix
(the paper's GKAT-0). Queries, keys and values have no biases, as in the paper's program.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray
from studies.attention.dense import masked_softmax_attention
from studies.attention.power_series import power_series
from studies.fitting import AbstractLearner, Score
from studies.graph_tasks import GraphSet

# Graphs whose attention weights are held at once when scoring.
_CHUNK = 64


class GkatLayer(nnx.Module):
    """Masked softmax attention in several heads, then elu."""

    def __init__(self, in_dim: int, num_heads: int, head_dim: int, *, rngs: nnx.Rngs):
        self.query, self.key, self.value = (
            nnx.Linear(
                in_dim,
                num_heads * head_dim,
                use_bias=False,
                kernel_init=nnx.initializers.glorot_uniform(),
                rngs=rngs,
            )
            for _ in range(3)
        )
        self.num_heads = num_heads

    def __call__(self, x: Float[Array, "t d"], mask: Float[Array, "t t"]) -> Float[JaxArray, "t o"]:
        """Return the heads' outputs side by side."""
        x = jnp.asarray(x)
        query, key, value = (
            project(x).reshape(len(x), self.num_heads, -1)
            for project in (self.query, self.key, self.value)
        )
        attend = jax.vmap(masked_softmax_attention, in_axes=(1, 1, 1, None), out_axes=1)
        return jax.nn.elu(attend(query, key, value, mask).reshape(len(x), -1))


class Gkat(nnx.Module):
    """Layers of GKAT, the mean over nodes, and one linear layer to two classes."""

    def __init__(
        self, in_dim: int, heads: Sequence[int], head_dims: Sequence[int], *, rngs: nnx.Rngs
    ):
        layers = []
        for num_heads, head_dim in zip(heads, head_dims, strict=True):
            layers.append(GkatLayer(in_dim, num_heads, head_dim, rngs=rngs))
            in_dim = num_heads * head_dim
        self.layers = nnx.List(layers)
        self.classify = nnx.Linear(
            in_dim, 2, kernel_init=nnx.initializers.glorot_uniform(), rngs=rngs
        )

    def __call__(
        self, features: Float[Array, "t d"], mask: Float[Array, "t t"], real: Bool[Array, "t"]
    ) -> Float[JaxArray, "2"]:
        """Return the logits of one graph.

        Args:
          features: of its nodes.
          mask: K; 0 in rows and columns of padding.
          real: nodes that are not padding.
        """
        for layer in self.layers:
            features = layer(features, mask)
        share = jnp.asarray(real / jnp.maximum(real.sum(), 1), jnp.float32)
        return self.classify(share @ features)


class PreparedGraphs(NamedTuple):
    """What GKAT reads of graphs; fields as in `GraphSet`, and their kernels."""

    features: Float[Array, "b t d"]
    masks: Float[Array, "b t t"]
    real: Bool[Array, "b t"]
    labels: Int[Array, "b"]


class GkatLearner(AbstractLearner):
    """GKAT trained by Adam.

    Args:
      in_dim: features of a node.
      heads: of each layer.
      head_dims: width of a head, of each layer.
      walk_length: hops of the kernel's walks.
      decay: lambda of the kernel.
      learning_rate: of Adam.
      seed: of the initial weights.
    """

    def __init__(
        self,
        in_dim: int,
        heads: Sequence[int],
        head_dims: Sequence[int],
        *,
        walk_length: int,
        decay: float,
        learning_rate: float,
        seed: int,
    ):
        model = Gkat(in_dim, heads, head_dims, rngs=nnx.Rngs(seed))
        self._graphdef, self._params = nnx.split(model)
        self._optimizer_state = optax.adam(learning_rate).init(self._params)
        self._kernel = (walk_length, decay)
        self._learning_rate = learning_rate

    @property
    def num_parameters(self) -> int:
        """Trained numbers."""
        return sum(leaf.size for leaf in jax.tree.leaves(self._params))

    def prepare(self, graphs: GraphSet) -> PreparedGraphs:
        """Compute the kernels."""
        masks = kernel_matrices(graphs.adjacency, *self._kernel)
        arrays = (graphs.features, masks, graphs.real, graphs.labels)
        return PreparedGraphs(*(jnp.asarray(array) for array in arrays))

    def train_epoch(self, prepared: PreparedGraphs, batches: Int[np.ndarray, "steps b"]) -> None:
        """Take one step of Adam per batch of graphs."""
        state = (self._params, self._optimizer_state)
        state = _train_epoch(self._graphdef, self._learning_rate, state, prepared, batches)
        self._params, self._optimizer_state = jax.block_until_ready(state)

    def evaluate(self, prepared: PreparedGraphs) -> Score:
        """Score graphs."""
        return Score(*(float(x) for x in _evaluate(self._graphdef, self._params, prepared)))

    def parameters(self) -> Any:
        """Return the parameters, which are never changed in place."""
        return self._params

    def restore(self, parameters: Any) -> None:
        """Go back to earlier parameters."""
        self._params = parameters


def kernel_matrices(
    adjacency: Bool[Array, "b t t"], num_hops: int, decay: float
) -> Float[JaxArray, "b t t"]:
    """Return the random-walk graph-node kernel of every graph, exact and with unit diagonal.

    The dense form of `hdvpd.attention.masks.rwgnk.rwgnk_mask` on exact walks, alpha = 1, by matrix
    products: these graphs have some hundred nodes, while thousands of walks start at each.

    Args:
      adjacency: of each graph.
      num_hops: hops of the walks, tau.
      decay: lambda.
    """
    powers = np.float32(decay) ** np.arange(num_hops + 1, dtype=np.float32)

    def kernel(adjacency: Bool[JaxArray, "t t"]) -> Float[JaxArray, "t t"]:
        edges = adjacency.astype(jnp.float32)
        transition = edges / jnp.maximum(edges.sum(1, keepdims=True), 1)
        visits = power_series(transition, powers)
        psi = visits / jnp.linalg.norm(visits, axis=1, keepdims=True)
        return psi @ psi.T

    return jax.lax.map(kernel, jnp.asarray(adjacency), batch_size=_CHUNK)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _train_epoch(
    graphdef: nnx.GraphDef,
    learning_rate: float,
    state: tuple[Any, Any],
    prepared: PreparedGraphs,
    batches: Int[Array, "steps b"],
) -> tuple[Any, Any]:
    optimizer = optax.adam(learning_rate)

    def loss(params: Any, some: PreparedGraphs) -> Float[JaxArray, ""]:
        model = nnx.merge(graphdef, params)
        logits = jax.vmap(model)(some.features, some.masks, some.real)
        return optax.softmax_cross_entropy_with_integer_labels(logits, some.labels).mean()

    def step(state: tuple[Any, Any], batch: Int[JaxArray, "b"]) -> tuple[tuple[Any, Any], None]:
        params, optimizer_state = state
        some = jax.tree.map(lambda array: array[batch], prepared)
        updates, optimizer_state = optimizer.update(jax.grad(loss)(params, some), optimizer_state)
        return (optax.apply_updates(params, updates), optimizer_state), None

    return jax.lax.scan(step, state, jnp.asarray(batches))[0]


@functools.partial(jax.jit, static_argnums=0)
def _evaluate(
    graphdef: nnx.GraphDef, params: Any, prepared: PreparedGraphs
) -> tuple[Float[JaxArray, ""], Float[JaxArray, ""]]:
    model = nnx.merge(graphdef, params)
    logits = jax.lax.map(lambda args: model(*args), prepared[:3], batch_size=_CHUNK)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, prepared.labels)
    return losses.mean(), (logits.argmax(1) == prepared.labels).mean()
