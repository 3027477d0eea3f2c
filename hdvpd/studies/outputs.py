"""What every study writes and prints: its folder, settings, tables, and intervals over seeds."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from hdvpd.errors import UserError
from hdvpd.experiments import section_toml

Row = dict[str, Any]


def make_folder(out: Path) -> None:
    """Make the folder of a study; one that exists is used again.

    Raises:
      UserError: `out` cannot be a folder.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out}: {error.strerror}; give a folder that can be made.") from None


def write_settings(path: Path, settings: Any) -> None:
    """Write every field of a dataclass as TOML."""
    path.write_text("\n".join(section_toml(settings)) + "\n")


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows of equal keys."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def read_csv(path: Path) -> list[Row]:
    """Read what `write_csv` wrote; what looks like a number comes back as one."""
    with path.open(newline="") as file:
        return [{name: _parse(text) for name, text in row.items()} for row in csv.DictReader(file)]


def _parse(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def format_table(rows: Sequence[Row]) -> str:
    """Return aligned columns, numbers with four digits."""
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    return "\n".join(
        "  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in cells
    )


def markdown_table(rows: Sequence[Row]) -> str:
    """Return the same as a table in Markdown."""
    cells = [list(rows[0]), ["---"] * len(rows[0])]
    cells += [[_cell(value) for value in row.values()] for row in rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _cell(value: object) -> str:
    if isinstance(value, float | np.floating):
        return f"{value:.4g}"
    return str(value)


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of independent values and half the width of its 95 % interval.

    Student's interval; NaN for a single value.
    """
    if len(values) < 2:
        return float(values[0]), math.nan
    spread = np.std(values, ddof=1) / math.sqrt(len(values))
    return float(np.mean(values)), float(stdtrit(len(values) - 1, 0.975) * spread)
