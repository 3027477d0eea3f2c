"""Reading Parquet files that others wrote: every fault becomes a message.

PyArrow is imported when it is needed; it comes with the extra `import`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hdvpd.basics.errors import UserError, how_to_install
from hdvpd.data.importers.faults import (
    AGAIN,
    SourcePlace,
    diagnosis,
    fault,
    reason,
)

BATCH_ROWS = 32
"""Rows of pictures read at once."""


class Table:
    """An opened Parquet file.

    Attributes:
      file: its path.
      columns: names, those of lists without the suffix that Parquet adds.
    """

    def __init__(self, file: Path, stream: Any, place: SourcePlace | None) -> None:
        """Wrap a PyArrow file."""
        self.file, self._stream, self._place = file, stream, place
        self.columns: tuple[str, ...] = tuple(stream.schema_arrow.names)

    def read(self, name: str, first: int = 0, stop: int | None = None) -> list[Any]:
        """Read a column, or some rows of it, as Python objects."""
        return self._column(name, first, stop).to_pylist()

    def numbers(self, name: str, first: int = 0, stop: int | None = None) -> np.ndarray:
        """Read a column of numbers, or of equally long lists of them, as (rows, columns) float64.

        Raises:
          UserError: it is missing or damaged, holds no numbers, or rows of unequal length; a
            `BadEpisodeError` where the file was opened for an episode.
        """
        column = self._column(name, first, stop)
        values, wrong = _flattened(column)
        if wrong:
            raise self.error(f"column {name!r} holds {wrong}, expected equal rows of numbers")
        rows = len(column)
        return np.asarray(values, np.float64).reshape(rows, -1) if rows else np.zeros((0, 1))

    def stream(self, name: str, rows: Sequence[int]) -> Iterator[Any]:
        """Read chosen, ascending rows of a column one after the other, a few at a time."""
        groups = self._groups(rows[0], rows[-1] + 1)
        start = self._starts[groups[0]]
        wanted = iter(rows)
        row = next(wanted, None)
        batches = self._stream.iter_batches(BATCH_ROWS, row_groups=groups, columns=[name])
        with self._faults(f"column {name!r}"):
            for batch in batches:
                while row is not None and row < start + len(batch):
                    yield batch.column(0)[row - start].as_py()
                    row = next(wanted, None)
                start += len(batch)

    def rows_of(self, name: str, value: int) -> tuple[int, int]:
        """Find the rows where a column has a value: the first, and one past the last.

        Raises:
          UserError: as of `numbers`, or the rows are not consecutive, or there are none.
        """
        found = np.flatnonzero(self.numbers(name)[:, 0] == value)
        if not len(found):
            raise self.error(f"no row has {name} {value}")
        first, stop = int(found[0]), int(found[-1]) + 1
        if stop - first != len(found):
            raise self.error(f"the rows of {name} {value} are not consecutive")
        return first, stop

    def error(self, found: str, remedy: str = "") -> UserError:
        """Return the exception for something wrong in this file."""
        return fault(self.file, self._place, found, remedy or AGAIN)

    @property
    def _starts(self) -> list[int]:
        metadata = self._stream.metadata
        counts = [metadata.row_group(k).num_rows for k in range(metadata.num_row_groups)]
        return [0, *np.cumsum(counts).tolist()]

    def _groups(self, first: int, stop: int) -> list[int]:
        starts = self._starts
        return [k for k in range(len(starts) - 1) if starts[k] < stop and starts[k + 1] > first]

    def _column(self, name: str, first: int, stop: int | None) -> Any:
        if name not in self.columns:
            raise self.error(
                f"there is no column {name!r}", f"It has {', '.join(self.columns) or 'none'}."
            )
        end = self._starts[-1] if stop is None else stop
        groups = self._groups(first, end)
        with self._faults(f"column {name!r}"):
            column = self._stream.read_row_groups(groups, columns=[name]).column(name)
            offset = self._starts[groups[0]] if groups else 0
            return column.slice(first - offset, end - first).combine_chunks()

    @contextlib.contextmanager
    def _faults(self, what: str) -> Iterator[None]:
        import pyarrow as pa

        try:
            yield
        except (pa.ArrowException, OSError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise self.error(f"{what} is damaged ({reason(error)})") from error


@contextlib.contextmanager
def open_parquet(file: Path, place: SourcePlace | None = None) -> Iterator[Table]:
    """Open a Parquet file.

    Raises:
      UserError: PyArrow is not installed, or the file is missing, truncated or no Parquet; for an
        episode a `BadEpisodeError`.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise UserError(
            "Reading Parquet files needs PyArrow, which is not installed: "
            f"{how_to_install('import')}."
        ) from error
    try:
        stream = pq.ParquetFile(file)
    except FileNotFoundError as error:
        raise fault(file, place, "the file is missing") from error
    except (pa.ArrowException, OSError, ValueError) as error:
        wrong = diagnosis(file, f"is damaged or no Parquet file ({reason(error)})")
        raise fault(file, place, *wrong) from error
    with stream:
        yield Table(file, stream, place)


def _flattened(values: Any) -> tuple[Any, str]:
    """Flatten lists of any depth, and say what they hold if that is not equal rows of numbers."""
    import pyarrow as pa
    import pyarrow.compute

    compute: Any = pyarrow.compute
    lists = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    while any(are(values.type) for are in lists):
        # Every level by itself: rows of 1 and 3 values hold as many as two of 2. Flattening leaves
        # nulls out.
        lengths = np.unique(compute.list_value_length(values.drop_null()))
        if len(lengths) > 1:
            return values, f"lists of {lengths[0]} and {lengths[-1]} values"
        if values.null_count:
            return values, "nulls"
        if 0 in lengths:
            return values, "empty lists"
        values = values.flatten()
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        return values, str(values.type)
    return values, "nulls" if values.null_count else ""
