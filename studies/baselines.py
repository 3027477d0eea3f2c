"""The networks that GKAT is compared with, built of the layers of torch_geometric.

- gcn: graph convolutions (arXiv 1609.02907).
- gat: graph attention over a node's neighbours and itself (arXiv 1710.10903), without biases, as in
  the paper's program.
- sgc: "spectral graph convolutions" of Chebyshev polynomials (arXiv 1606.09375). The simplified
  graph convolution, for which others write SGC, is not what arXiv 2107.07999 cites and counts.

Importing this module needs the extra `graphs`.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import ChebConv, GATConv, GCNConv, global_mean_pool

from hdvpd.basics.types import Int
from studies.fitting import AbstractLearner, Score
from studies.graph_tasks import GraphSet


class GraphClassifier(torch.nn.Module):
    """Layers with an activation after each, the mean over nodes, and one linear layer."""

    def __init__(self, layers: Sequence[torch.nn.Module], width: int, activation: torch.nn.Module):
        super().__init__()
        self.layers = torch.nn.ModuleList(layers)
        self.activation = activation
        self.classify = torch.nn.Linear(width, 2)

    def forward(self, graphs: Batch) -> torch.Tensor:
        """Return the logits of every graph, [b, 2]."""
        x = graphs.x
        for layer in self.layers:
            x = self.activation(layer(x, graphs.edge_index))
        return self.classify(global_mean_pool(x, graphs.batch, graphs.num_graphs))


def gcn(in_dim: int, widths: Sequence[int]) -> GraphClassifier:
    """Return a network of graph convolutions of these widths."""
    layers = [GCNConv(a, b) for a, b in zip((in_dim, *widths), widths, strict=False)]
    return GraphClassifier(layers, widths[-1], torch.nn.ReLU())


def gat(in_dim: int, heads: Sequence[int], head_dims: Sequence[int]) -> GraphClassifier:
    """Return a network of attention over neighbours, heads side by side."""
    widths = [count * dim for count, dim in zip(heads, head_dims, strict=True)]
    layers = [
        GATConv(a, dim, heads=count, bias=False)
        for a, count, dim in zip((in_dim, *widths), heads, head_dims, strict=False)
    ]
    return GraphClassifier(layers, widths[-1], torch.nn.ELU())


def sgc(in_dim: int, widths: Sequence[int], filters: Sequence[int]) -> GraphClassifier:
    """Return a network of Chebyshev convolutions with so many polynomials per layer."""
    layers = [
        ChebConv(a, b, K=count)
        for a, b, count in zip((in_dim, *widths), widths, filters, strict=False)
    ]
    return GraphClassifier(layers, widths[-1], torch.nn.ReLU())


# Operations on graphs this small gain nothing from threads, and threads that wait for each other
# take seconds per step where others use the cores.
torch.set_num_threads(1)

BUILDERS = {"gcn": gcn, "gat": gat, "sgc": sgc}


class GeometricLearner(AbstractLearner):
    """A network of torch_geometric trained by Adam.

    Args:
      name: gcn, gat or sgc.
      in_dim: features of a node.
      sizes: further arguments of the function of that name.
      learning_rate: of Adam.
      seed: of the initial weights.
    """

    def __init__(
        self, name: str, in_dim: int, *sizes: Sequence[int], learning_rate: float, seed: int
    ):
        torch.manual_seed(seed)
        self._model = BUILDERS[name](in_dim, *sizes)
        self._optimizer = torch.optim.Adam(self._model.parameters(), lr=learning_rate)

    @property
    def num_parameters(self) -> int:
        """Trained numbers."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    def prepare(self, graphs: GraphSet) -> list[Data]:
        """List edges; padding is left out."""
        return [
            Data(
                x=torch.from_numpy(features[real]),
                edge_index=torch.from_numpy(np.array(np.nonzero(adjacency[real][:, real]))),
                y=int(label),
            )
            for adjacency, features, real, label in zip(
                graphs.adjacency, graphs.features, graphs.real, graphs.labels, strict=True
            )
        ]

    def train_epoch(self, prepared: list[Data], batches: Int[np.ndarray, "steps b"]) -> None:
        """Take one step of Adam per batch of graphs."""
        self._model.train()
        for batch in batches:
            graphs = Batch.from_data_list([prepared[graph] for graph in batch])
            self._optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self._model(graphs), graphs.y).backward()
            self._optimizer.step()

    def evaluate(self, prepared: list[Data]) -> Score:
        """Score graphs."""
        self._model.eval()
        graphs = Batch.from_data_list(prepared)
        with torch.no_grad():
            logits = self._model(graphs)
        loss = torch.nn.functional.cross_entropy(logits, graphs.y)
        correct = (logits.argmax(1) == graphs.y).float().mean()
        return Score(loss.item(), correct.item())

    def parameters(self) -> Any:
        """Return a copy of the parameters."""
        return copy.deepcopy(self._model.state_dict())

    def restore(self, parameters: Any) -> None:
        """Go back to earlier parameters."""
        self._model.load_state_dict(parameters)
