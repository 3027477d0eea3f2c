"""Tables as text: Markdown for pages, CSV for other programs, and for the terminal through rich."""

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

import rich.box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

Cell = str | int | float | None

_BOLD = "**"
_MISSING = "\u2013"
_NAME_WIDTH = 24


@dataclass(frozen=True)
class Table:
    """A head and rows of as many cells.

    Texts are shown as they are and numbers with four digits; None is a value that does not exist.

    Attributes:
      head: names of the columns.
      rows: cells; the first of each row is its name.
      title: what the table shows; the terminal prints it above.
    """

    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    def markdown(self) -> str:
        """Return the table in Markdown."""
        lines = [self.head, ["---"] * len(self.head), *(map(_shown, row) for row in self.rows)]
        return "".join(f"| {' | '.join(line)} |\n" for line in lines)

    def csv(self) -> str:
        """Return the table with all digits of its numbers, and nothing where one is missing."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.head)
        writer.writerows(self.rows)
        return text.getvalue()

    def print(self) -> None:
        """Print the table, texts wrapped to the terminal's width, 80 columns in a pipe.

        Numbers and the words of the head are never cut: too many columns make longer lines.
        """
        table = RichTable(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        rows = [[_styled(_shown(cell)) for cell in row] for row in self.rows]
        cells = [max((row[i].cell_len for row in rows), default=1) for i in range(len(self.head))]
        widths = [min(cells[0], _NAME_WIDTH), *map(self._uncut, range(1, len(cells)))]
        console = Console()
        room = console.width - 2 * len(cells)
        heads = _folded(self.head, cells, widths, room)
        console = Console(width=max(room, sum(widths)) + 2 * len(cells))
        for number, (name, width) in enumerate(zip(heads, widths, strict=True)):
            justify = "right" if number else "left"
            table.add_column(Text(name), justify=justify, overflow="fold", min_width=width)
        for row in rows:
            table.add_row(*row)
        if self.title:
            console.print(Text(self.title, "bold"))
        console.print(table)

    def _uncut(self, column: int) -> int:
        numbers = [_shown(row[column]) for row in self.rows if isinstance(row[column], int | float)]
        return max(map(len, [*self.head[column].split(), *numbers]), default=1)


def _folded(
    heads: Sequence[str], cells: Sequence[int], widths: Sequence[int], room: int
) -> Sequence[str]:
    """Fold heads no more than columns need; rich would fold texts and cut numbers as well."""
    folded = heads
    for limit in range(max(map(len, heads)), 0, -1):
        folded = [
            textwrap.fill(name, max(limit, width))
            for name, width in zip(heads, widths, strict=True)
        ]
        lines = [max(map(len, name.split("\n"))) for name in folded]
        if sum(map(max, cells, lines)) <= room:
            break
    return folded


def bold(text: str) -> str:
    """Mark a cell, as Markdown does."""
    return f"{_BOLD}{text}{_BOLD}"


def plus_minus(
    mean: float | None, half_width: float | None, digits: int, *, sign: bool = False
) -> str:
    """Write a mean with half the width of its interval, as far as they exist.

    Args:
      mean: shown with `digits` decimals.
      half_width: likewise.
      digits: decimals.
      sign: write a plus too.
    """
    if mean is None:
        return _MISSING
    text = f"{mean:{'+' if sign else ''}.{digits}f}"
    return text if half_width is None else f"{text} \u00b1 {half_width:.{digits}f}"


def _styled(text: str) -> Text:
    marked = text.startswith(_BOLD) and text.endswith(_BOLD) and len(text) > 2 * len(_BOLD)
    return Text(text.removeprefix(_BOLD).removesuffix(_BOLD), "bold") if marked else Text(text)


def _shown(cell: Cell) -> str:
    if cell is None:
        return _MISSING
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
