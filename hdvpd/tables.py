"""Tables as text: Markdown for pages, CSV for other programs, and for the terminal through rich."""

import csv
import io
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
        """Print the table; cells are wrapped to the terminal's width, 80 columns in a pipe."""
        table = RichTable(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        rows = [[_styled(_shown(cell)) for cell in row] for row in self.rows]
        names = max((row[0].cell_len for row in rows), default=0)
        for number, name in enumerate(self.head):
            table.add_column(
                Text(name),
                justify="right" if number else "left",
                overflow="fold",
                # What does not fit is wrapped in heads and other cells first.
                min_width=None if number else min(names, _NAME_WIDTH),
            )
        for row in rows:
            table.add_row(*row)
        console = Console()
        if self.title:
            console.print(Text(self.title, "bold"))
        console.print(table)


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
