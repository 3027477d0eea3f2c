"""Tables as Markdown and HTML for pages, as CSV for other programs, and for the terminal."""

import csv
import html
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import rich.box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

Cell = str | int | float | None

_BOLD = "**"
_MISSING = "\u2013"
# Wider cells are folded.
_WIDEST = 24
_GAP = 2


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

    def html(self, notes: Mapping[str, str] | None = None) -> str:
        """Return the table in HTML, the first cell of each row its header, with a note if given."""
        notes = notes or {}
        titles = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in self.head)
        body = ""
        for name, *cells in (map(_shown, row) for row in self.rows):
            note = f"<small>{html.escape(notes[name])}</small>" if name in notes else ""
            body += f'<tr><th scope="row">{html.escape(name)}{note}</th>'
            body += "".join(f"<td>{_marked_up(cell)}</td>" for cell in cells) + "</tr>"
        return (
            f'<div class="scroll"><table><thead><tr>{titles}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )

    def print(self) -> None:
        """Print the table, as wide as the terminal, 80 columns in a pipe.

        Columns that find no room follow below, beside the names of the rows again. Heads are folded
        between words, cells only where they are wider than 24 columns.
        """
        console = Console()
        cells = [[_styled(_shown(cell)) for cell in row] for row in self.rows]
        widths = [
            min(_WIDEST, max([len(word) for word in name.split()] + [r[i].cell_len for r in cells],
                             default=0))
            for i, name in enumerate(self.head)
        ]  # fmt: skip
        if self.title:
            console.print(Text(self.title, "bold"))
        for number, part in enumerate(_parts(widths, console.width)):
            if number:
                console.print()
            table = RichTable(box=rich.box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
            for column in part:
                table.add_column(
                    Text(self.head[column]),
                    justify="right" if column else "left",
                    overflow="fold",
                    min_width=widths[column],
                )
            for row in cells:
                table.add_row(*(row[column] for column in part))
            console.print(table)


def _parts(widths: Sequence[int], room: int) -> list[list[int]]:
    """Deal columns out to tables that fit, each with the first column."""
    parts: list[list[int]] = []
    left = 0
    for column, width in enumerate(widths[1:], 1):
        left -= width + _GAP
        if left < 0 or not parts:
            parts.append([0])
            left = room - widths[0] - width - _GAP
        parts[-1].append(column)
    return parts


def bold(text: str) -> str:
    """Mark a cell, as Markdown does."""
    return f"{_BOLD}{text}{_BOLD}"


def plus_minus(
    mean: float | None, half_width: float | None, digits: int, *, sign: bool = False
) -> str:
    """Write a mean with half the width of its interval, as far as they exist and are finite."""
    if mean is None or not math.isfinite(mean):
        return _MISSING
    text = f"{mean:{'+' if sign else ''}.{digits}f}"
    known = half_width is not None and math.isfinite(half_width)
    return f"{text} \u00b1 {half_width:.{digits}f}" if known else text


def _unmarked(text: str) -> tuple[str, bool]:
    """Return a cell's text without marks, and whether it is bold."""
    marked = text.startswith(_BOLD) and text.endswith(_BOLD) and len(text) > 2 * len(_BOLD)
    return (text.removeprefix(_BOLD).removesuffix(_BOLD), True) if marked else (text, False)


def _styled(text: str) -> Text:
    plain, marked = _unmarked(text)
    return Text(plain, "bold" if marked else "")


def _marked_up(text: str) -> str:
    plain, marked = _unmarked(text)
    number, sign, spread = html.escape(plain).partition(" \u00b1 ")
    number = f"<b>{number}</b>" if marked else number
    return f"{number} <small>\u00b1 {spread}</small>" if sign else number


def _shown(cell: Cell) -> str:
    if cell is None:
        return _MISSING
    return f"{cell:.4g}" if isinstance(cell, float) else str(cell)
