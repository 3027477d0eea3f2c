"""Graphs to classify: planted motifs and induced cycles (arXiv 2107.07999, sections 5.1 and A.2).

A positive graph is a random graph joined to a motif; in a negative one the motif is replaced by a
random graph of as many nodes and edges, so that only its shape differs. A positive tree is closed
to one cycle by joining two nodes at the largest distance; in a negative one two others are joined.

What the label says is what was planted. It is not proven that a negative graph holds no copy of the
motif: random graphs of mean degree 2 and more hold long circles of their own.
"""

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

import networkx as nx
import numpy as np

from hdvpd.basics.types import Bool, Float, Int
from studies.settings import MotifSettings

CYCLE = "cycle"
NUM_NEIGHBOR_DEGREES = 5


def _caveman() -> nx.Graph:
    """Return three cliques of three, joined through one member of each."""
    graph = nx.caveman_graph(3, 3)
    graph.add_edges_from([(2, 5), (5, 8), (2, 8)])
    return graph


MOTIFS: dict[str, Callable[[], nx.Graph]] = {
    "caveman": _caveman,
    "circle": lambda: nx.cycle_graph(10),
    "grid": lambda: nx.convert_node_labels_to_integers(nx.grid_2d_graph(3, 3)),
    "ladder": lambda: nx.ladder_graph(5),
    "circular-ladder": lambda: nx.circular_ladder_graph(5),
}
"""The papers' motifs in the sizes of their program: 9 or 10 nodes, mean degree 2 to 3."""


@dataclass(frozen=True)
class GraphSet:
    """Graphs of one task, padded to one number of nodes.

    Attributes:
      adjacency: edges of each graph; none at padding.
      features: of each node; 0 at padding.
      real: nodes that are not padding.
      labels: 1 for positive graphs.
    """

    adjacency: Bool[np.ndarray, "b t t"]
    features: Float[np.ndarray, "b t d"]
    real: Bool[np.ndarray, "b t"]
    labels: Int[np.ndarray, "b"]

    def __len__(self) -> int:
        """Return the number of graphs."""
        return len(self.labels)

    def take(self, graphs: Int[np.ndarray, "chosen"]) -> "GraphSet":
        """Return some of the graphs."""
        fields = (self.adjacency, self.features, self.real, self.labels)
        return GraphSet(*(field[graphs] for field in fields))


@dataclass(frozen=True)
class Task:
    """A task's graphs: to train on, to stop and choose by, and to report."""

    name: str
    train: GraphSet
    validation: GraphSet
    test: GraphSet


def make_task(name: str, settings: MotifSettings, seed: int) -> Task:
    """Draw the graphs of a task: as many positive as negative ones in every part.

    Features are standardised by mean and standard deviation over the training graphs' nodes.

    Args:
      name: `cycle` or a motif.
      settings: sizes and counts.
      seed: the same seed gives the same graphs.
    """
    rng = random.Random(f"{name} {seed}")
    draw = _draw_cycle_pair if name == CYCLE else _draw_motif_pair
    count = settings.graphs + settings.test_graphs
    pairs = [draw(name, settings, rng) for _ in range(count)]
    # A pair stays on one side: the two graphs of a tree differ by one edge.
    ends = (settings.graphs - settings.graphs // 4, settings.graphs, count)
    width = max(len(graph) for pair in pairs for graph in pair)
    if name != CYCLE:
        # One width for all motifs: their programs need not be compiled again.
        width = max(len(motif()) for motif in MOTIFS.values()) + settings.nodes
    parts = [
        graph_set(pairs[first:last], width, by_neighbors=name != CYCLE)
        for first, last in itertools.pairwise((0, *ends))
    ]
    nodes = parts[0].features[parts[0].real]
    mean, spread = nodes.mean(0), np.maximum(nodes.std(0), 1e-6)
    return Task(name, *(_standardised(part, mean, spread) for part in parts))


def _draw_motif_pair(
    name: str, settings: MotifSettings, rng: random.Random
) -> tuple[nx.Graph, nx.Graph]:
    motif = MOTIFS[name]()
    positive, negative = (
        join_random_graph(planted, settings.nodes, settings.join_probability, rng)
        for planted in (motif, random_lookalike(motif, rng))
    )
    return positive, negative


def random_lookalike(motif: nx.Graph, rng: random.Random) -> nx.Graph:
    """Draw an Erdos-Renyi graph G(n, m) of the motif's nodes and edges.

    Connected, as the motif is, and not the motif itself.
    """
    while True:
        graph = nx.gnm_random_graph(len(motif), motif.size(), seed=rng)
        if nx.is_connected(graph) and not nx.is_isomorphic(graph, motif):
            return graph


def join_random_graph(
    planted: nx.Graph, num_nodes: int, join_probability: float, rng: random.Random
) -> nx.Graph:
    """Join a graph to an Erdos-Renyi graph G(n, m) of the same mean degree.

    Args:
      planted: keeps its nodes 0, 1, ..; the random graph's follow.
      num_nodes: of the random graph.
      join_probability: of each edge between the two; drawn again until there is one.
      rng: draws.
    """
    num_edges = round(planted.size() / len(planted) * num_nodes)
    whole = nx.disjoint_union(planted, nx.gnm_random_graph(num_nodes, num_edges, seed=rng))
    between = list(itertools.product(range(len(planted)), range(len(planted), len(whole))))
    links: list[tuple[int, int]] = []
    while not links:
        links = [pair for pair in between if rng.random() < join_probability]
    whole.add_edges_from(links)
    return whole


def _draw_cycle_pair(
    name: str, settings: MotifSettings, rng: random.Random
) -> tuple[nx.Graph, nx.Graph]:
    del name
    tree = random_binary_tree(settings.tree_nodes, rng)
    farthest, others = closing_pairs(tree)
    while not others:
        tree = random_binary_tree(settings.tree_nodes, rng)
        farthest, others = closing_pairs(tree)
    closed = []
    for pairs in (farthest, others):
        graph = tree.copy()
        graph.add_edge(*rng.choice(pairs))
        closed.append(graph)
    return closed[0], closed[1]


def random_binary_tree(num_nodes: int, rng: random.Random) -> nx.Graph:
    """Grow a tree from node 0: each next node takes a random one of all places for a child."""
    tree = nx.empty_graph(1)
    places = [0, 0]
    for node in range(1, num_nodes):
        tree.add_edge(places.pop(rng.randrange(len(places))), node)
        places += [node, node]
    return tree


def closing_pairs(tree: nx.Graph) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the pairs of nodes at the largest distance, and the others that have no edge."""
    distances = {
        (first, second): distance
        for first, reached in nx.all_pairs_shortest_path_length(tree)
        for second, distance in reached.items()
        if first < second
    }
    diameter = max(distances.values())
    farthest = [pair for pair, distance in distances.items() if distance == diameter]
    others = [pair for pair, distance in distances.items() if 1 < distance < diameter]
    return farthest, others


def graph_set(
    pairs: list[tuple[nx.Graph, nx.Graph]], num_nodes: int, *, by_neighbors: bool
) -> GraphSet:
    """Make arrays of positive and negative graphs.

    Args:
      pairs: positive and negative graphs in turn.
      num_nodes: nodes with padding.
      by_neighbors: a node's features are its neighbours' largest degrees; otherwise its degree.
    """
    graphs = [graph for pair in pairs for graph in pair]
    adjacency = np.zeros((len(graphs), num_nodes, num_nodes), bool)
    real = np.zeros((len(graphs), num_nodes), bool)
    for index, graph in enumerate(graphs):
        sources, targets = np.array(list(graph.edges)).T
        adjacency[index, sources, targets] = adjacency[index, targets, sources] = True
        real[index, : len(graph)] = True
    degrees = adjacency.sum(-1)
    features = neighbor_degrees(adjacency) if by_neighbors else degrees[..., None]
    labels = np.tile([1, 0], len(pairs))
    return GraphSet(adjacency, features.astype(np.float32), real, labels)


def neighbor_degrees(
    adjacency: Bool[np.ndarray, "b t t"], count: int = NUM_NEIGHBOR_DEGREES
) -> Int[np.ndarray, "b t count"]:
    """Return the largest degrees among each node's neighbours, 0 where it has fewer."""
    of_neighbors = adjacency * adjacency.sum(-1)[:, None, :]
    return -np.sort(-of_neighbors, axis=-1)[..., :count]


def _standardised(
    graphs: GraphSet, mean: Float[np.ndarray, "d"], spread: Float[np.ndarray, "d"]
) -> GraphSet:
    features = np.where(graphs.real[..., None], (graphs.features - mean) / spread, 0.0)
    return GraphSet(graphs.adjacency, features.astype(np.float32), graphs.real, graphs.labels)
