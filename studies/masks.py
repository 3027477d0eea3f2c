"""`python -m studies masks`: every kind of mask, its graph on the left, its matrix on the right."""

from pathlib import Path

import networkx as nx
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

from hdvpd.basics import colors
from hdvpd.basics.types import Float
from studies.example_masks import KINDS, Example
from studies.outputs import make_folder
from studies.settings import PictureSettings

_TOKENS = 36
_CORNERS = 16  # of the hypercube
_COLUMNS = 4
_COLORS = "viridis"


def main(out: Path, settings: PictureSettings) -> None:
    """Write masks.png: every kind of mask over a few tokens.

    Colours are mask values, from 0 (dark) to the largest. In the graph they are those of one token,
    marked by a ring: how much it sees of each other one, its row of the matrix.

    Args:
      out: folder to write to.
      settings: the seed.

    Raises:
      UserError: `out` cannot be a folder.
    """
    make_folder(out)
    rows = -(-len(KINDS) // _COLUMNS)
    figure = Figure(figsize=(3.6 * _COLUMNS, 2.0 * rows), layout="constrained")
    parts = np.asarray(figure.subfigures(rows, _COLUMNS)).flat
    for part, (name, kind) in zip(parts, KINDS.items(), strict=False):
        tokens = _CORNERS if kind.topology == "hypercube" else _TOKENS
        example = kind.make(tokens, np.random.default_rng(settings.seed))
        matrix = np.asarray(example.mask.dense())
        graph, entries = part.subplots(1, 2)
        token = 7 * len(matrix) // 12
        _draw_graph(graph, example, matrix[token], token)
        _draw_matrix(entries, matrix, token)
        part.suptitle(name, fontsize="medium")
    figure.savefig(out / "masks.png", dpi=80)
    print(f"{len(KINDS)} masks are drawn in {out / 'masks.png'}")


def layout(example: Example) -> Float[np.ndarray, "t 2"]:
    """Return where to draw the tokens of an example."""
    if example.points is not None:
        return example.points
    graph = nx.Graph(map(tuple, example.edges.tolist()))
    graph.add_nodes_from(range(example.mask.num_tokens))
    places = np.zeros((len(graph), 2))
    parts = list(nx.connected_components(graph))
    for part, angle in zip(
        parts, np.linspace(0, 2 * np.pi, len(parts), endpoint=False), strict=True
    ):
        # Every part fills a circle of radius sqrt(2) at most; these do not overlap.
        radius = np.sqrt(2) / np.sin(np.pi / len(parts)) if len(parts) > 1 else 0.0
        center = radius * np.array([np.cos(angle), np.sin(angle)])
        for node, place in nx.kamada_kawai_layout(graph.subgraph(part)).items():
            places[node] = center + place
    return places


def _draw_graph(axes: Axes, example: Example, row: Float[np.ndarray, "t"], token: int) -> None:
    points = layout(example)
    edges = list(points[example.edges])
    axes.add_collection(LineCollection(edges, colors="#b0b0b0", linewidths=0.6))
    axes.scatter(*points.T, c=row, cmap=_COLORS, vmin=0, s=14, zorder=2)
    axes.scatter(*points[token], s=60, facecolors="none", edgecolors=colors.VERMILION, zorder=3)
    axes.set_aspect("equal", adjustable="datalim")
    axes.axis("off")


def _draw_matrix(axes: Axes, matrix: Float[np.ndarray, "t t"], token: int) -> None:
    axes.imshow(matrix, cmap=_COLORS, vmin=0, interpolation="nearest")
    axes.plot(-1.5, token, ">", color=colors.VERMILION, markersize=5, clip_on=False)
    axes.axis("off")
