"""What every study writes and prints: its folder, settings, tables, and intervals over seeds."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError
from hdvpd.basics.statistics import student_interval
from hdvpd.basics.tables import Table
from hdvpd.config.reading import toml_lines

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
    path.write_text("\n".join(toml_lines(vars(settings))) + "\n")


def table(rows: Sequence[Row], title: str = "") -> Table:
    """Return rows of equal keys as a table."""
    return Table(list(rows[0]), [list(map(_plain, row.values())) for row in rows], title)


def transposed(rows: Sequence[Row]) -> list[Row]:
    """Exchange rows and columns; the first column becomes the head."""
    first, *others = rows[0]
    return [{first: name} | {row[first]: row[name] for row in rows} for name in others]


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.integer) else value


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write rows of equal keys."""
    path.write_text(table(rows).csv())


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


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of values of several seeds and half the width of its 95 % interval.

    Student's interval (`hdvpd.basics.statistics`); NaN below three values.
    """
    mean, half_width = student_interval(np.array(values))
    return mean.item(), half_width.item()


def paired_summary(
    rows: Sequence[Row], group: str, entry: str, reference: str
) -> list[tuple[Row, list[Row]]]:
    """Return mean accuracies over seeds per group and entry, with half widths of 95 % intervals.

    Args:
      rows: runs, with columns `seed` and `accuracy`.
      group: column within which entries are compared.
      entry: column that names what is compared.
      reference: entry that is subtracted from the others, seed by seed.

    Returns:
      For every group and entry a row and the runs it was made of. `minus REFERENCE` is the mean
      paired difference; NaN where the reference was not run.
    """
    of_run = {(row[group], row[entry], row["seed"]): row["accuracy"] for row in rows}
    summary = []
    for place, name in dict.fromkeys((row[group], row[entry]) for row in rows):
        some = [row for row in rows if (row[group], row[entry]) == (place, name)]
        mean, half_width = mean_and_half_width([row["accuracy"] for row in some])
        pairs = [(row["accuracy"], of_run.get((place, reference, row["seed"]))) for row in some]
        gains = [own - other for own, other in pairs if other is not None]
        gain, gain_half_width = mean_and_half_width(gains) if gains else (math.nan, math.nan)
        columns = {
            group: place,
            entry: name,
            "seeds": len(some),
            "accuracy": mean,
            "+-": half_width,
            f"minus {reference}": gain,
            "+- of that": gain_half_width,
        }
        summary.append((columns, some))
    return summary
