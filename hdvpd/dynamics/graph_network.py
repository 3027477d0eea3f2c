"""Hierarchical graph network of VPD (arXiv 2312.05359), the Interlacer's baseline."""

import dataclasses
import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from hdvpd.basics.sampling import uniform_fraction
from hdvpd.basics.types import (
    Array,
    Bool,
    Float,
    Int,
    JaxArray,
    ParticleCloud,
    PRNGKey,
    RobotPoints,
    pytree,
)
from hdvpd.config import AbstractDynamicsSettings, ModelConfig, SceneSpec
from hdvpd.config.settings import Count, Fraction
from hdvpd.dynamics.base import AbstractDynamics, Change, Known, Step
from hdvpd.dynamics.edges import OFFSET_DIM, EdgeMlp, Edges, NormedMlp, nearest_edges
from hdvpd.dynamics.tokens import ReadOut, Tokens
from hdvpd.kernels.choice import Kernels


@dataclass(frozen=True)
class GraphNetworkSettings(AbstractDynamicsSettings):
    """Messages among abstract nodes that are drawn from the particles."""

    abstract_fraction: Fraction = 0.0625
    """Abstract nodes of the graph network over the particles of one time step."""
    abstract_links: Count = 3
    """Nearest abstract nodes that a particle is joined to."""
    abstract_neighbors: Count = 8
    """Nearest abstract nodes that an abstract node hears."""
    message_rounds: Count = 8
    """Rounds of messages among abstract nodes."""

    def make(self, model: ModelConfig, scene: SceneSpec, *, rngs: nnx.Rngs) -> "GraphNetwork":
        """Return the model."""
        return GraphNetwork(self, model, scene, rngs=rngs)


@pytree
class Hierarchy:
    """The graph of one call.

    Attributes:
      nodes: tokens that the abstract nodes start from.
      links: edges from every token to its nearest abstract nodes.
      among: edges from every abstract node to the nearest others.
    """

    nodes: Int[Array, "*batch a"]
    links: Edges
    among: Edges


def build_hierarchy(
    settings: GraphNetworkSettings,
    model: ModelConfig,
    positions: Float[Array, "t 3"],
    mask: Bool[Array, "t"],
    num_particles: int,
    key: PRNGKey,
) -> Hierarchy:
    """Draw the abstract nodes among the particles of both slices and join them.

    Args:
      settings: of the graph.
      model: which search.
      positions: of all tokens, both slices first [m].
      mask: real tokens.
      num_particles: of both slices.
      key: draws the nodes.

    Returns:
      The graph; no edge of it touches padding, and without any real particle it has none.
    """
    # The fraction is of one slice, the draw is from two.
    nodes, drawn = uniform_fraction(mask[:num_particles], settings.abstract_fraction / 2, key)
    places = positions[nodes]
    search = functools.partial(nearest_edges, node_mask=drawn, backend=model.knn)
    return Hierarchy(
        nodes=nodes,
        links=search(positions, places, settings.abstract_links, query_mask=mask),
        among=search(
            places, places, settings.abstract_neighbors, query_mask=drawn, exclude_self=True
        ),
    )


class MessageRound(nnx.Module):
    """One round of messages among abstract nodes: edges, then nodes, both residual."""

    def __init__(self, dim: int, kernels: Kernels, *, rngs: nnx.Rngs):
        self.edge = EdgeMlp(dim, dim, rngs=rngs)
        self.node = NormedMlp(2 * dim, dim, kernels, rngs=rngs)

    def __call__(
        self, nodes: Float[JaxArray, "a d"], edge: Float[JaxArray, "a k d"], edges: Edges
    ) -> tuple[Float[JaxArray, "a d"], Float[JaxArray, "a k d"]]:
        """Return nodes and edges after the round."""
        messages = self.edge(nodes, nodes, edge, edges)
        received = jnp.concatenate([nodes, messages.sum(1)], axis=-1)
        return nodes + self.node(received), edge + messages


class GraphNetwork(AbstractDynamics):
    """Particles of both times to abstract nodes, messages among these, and back to the present.

    Everything knows relative positions only: `model.position_embedding` has no effect. Sums, as in
    MeshGraphNets (arXiv 2010.03409), with two-layer MLPs, LayerNorm and residuals.
    """

    def __init__(
        self,
        settings: GraphNetworkSettings,
        model: ModelConfig,
        scene: SceneSpec,
        *,
        rngs: nnx.Rngs,
    ):
        dim = model.latent_dim
        relative = dataclasses.replace(model, position_embedding=False)
        self.tokens = Tokens(relative, scene, rngs=rngs)
        self.up_edge = EdgeMlp(dim, OFFSET_DIM, rngs=rngs)
        self.up_node = NormedMlp(2 * dim, dim, model.kernels, rngs=rngs)
        self.among = NormedMlp(OFFSET_DIM, dim, model.kernels, rngs=rngs)
        rounds = range(settings.message_rounds)
        self.rounds = nnx.List([MessageRound(dim, model.kernels, rngs=rngs) for _ in rounds])
        self.down_edge = EdgeMlp(dim, OFFSET_DIM, rngs=rngs)
        self.down_node = NormedMlp(2 * dim, dim, model.kernels, rngs=rngs)
        self.read_out = ReadOut(model, scene, rngs=rngs)
        self.settings = settings
        self.model = model

    def know(self, current: ParticleCloud, robot: RobotPoints, key: PRNGKey) -> Known | None:
        """Say what stays as it is during a rollout; see `AbstractDynamics`."""
        return self.read_out.know(current, robot, key)

    def begin(self, known: Known | None) -> Step:
        """Return the step of a rollout; see `AbstractDynamics`."""
        return functools.partial(self, known=known)

    def __call__(
        self,
        previous: ParticleCloud,
        current: ParticleCloud,
        robot: RobotPoints,
        key: PRNGKey,
        known: Known | None = None,
    ) -> Change:
        """Return the change of `current`; see `AbstractDynamics` and `ReadOut`."""
        num_particles = current.mask.shape[0]
        tokens, positions, mask = self.tokens(previous, current, robot)
        with jax.named_scope("neighbors"):
            graph = build_hierarchy(
                self.settings, self.model, positions, mask, 2 * num_particles, key
            )
        with jax.named_scope("up"):
            nodes = self._up(tokens, graph)
        with jax.named_scope("messages"):
            edge = self.among(jnp.asarray(graph.among.offsets))
            for message_round in self.rounds:
                nodes, edge = message_round(nodes, edge, graph.among)
        with jax.named_scope("down"):
            present = slice(num_particles, 2 * num_particles)
            links = jax.tree.map(lambda x: x[present], graph.links)
            tokens = self._down(tokens[present], nodes, links)
        return self.read_out(tokens, current, robot, known)

    def _up(self, tokens: Float[JaxArray, "t d"], graph: Hierarchy) -> Float[JaxArray, "a d"]:
        """Return the abstract nodes after every token sent to its nearest ones."""
        nodes, links = tokens[graph.nodes], graph.links
        messages = self.up_edge(tokens, nodes, jnp.asarray(links.offsets), links)
        received = jnp.zeros_like(nodes).at[links.nodes].add(messages)
        return nodes + self.up_node(jnp.concatenate([nodes, received], axis=-1))

    def _down(
        self, tokens: Float[JaxArray, "n d"], nodes: Float[JaxArray, "a d"], links: Edges
    ) -> Float[JaxArray, "n d"]:
        """Return the tokens after their nearest abstract nodes sent to them."""
        messages = self.down_edge(tokens, nodes, jnp.asarray(links.offsets), links)
        return tokens + self.down_node(jnp.concatenate([tokens, messages.sum(1)], axis=-1))
