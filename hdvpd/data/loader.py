"""Batches read ahead of the training step by threads or processes.

Which windows a step gets is decided by `WindowIndex.sample(seed, step)`, and every batch is read
by one worker from start to end, so neither order nor content depends on their number or kind.
Threads decode outside the interpreter lock, which is enough for some cores; for more, every thread
can hand its work to a process of its own (`hdvpd.data.reading_process`). A disk that does not
answer ends the wait for it after `data.patience_s`, with a message, instead of hanging for ever.
"""

import collections
import concurrent.futures
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Batch
from hdvpd.config import DataConfig
from hdvpd.data.reading_process import ReadingProcess
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, describe_windows, read_window, stack_windows

Windows = Sequence[tuple[int, int]]

_REMINDER_S = 30.0
_ASKING_S = 0.5
"""How often it is asked whether to stop, while data are waited for."""
_CLOSING_S = 10.0
"""A thread that does not end by then hangs in the system, and is left to it."""


class Loader:
    """Endless iterator over `(step, batch)`, kept `data_config.prefetch` batches ahead.

    Attributes:
      data_wait_s: seconds the consumer has waited for data so far.
    """

    def __init__(
        self,
        dataset: Dataset,
        index: WindowIndex,
        data_config: DataConfig,
        *,
        batch_size: int,
        seed: int,
        start_step: int = 0,
        part: slice = slice(None),
        stopped: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start reading.

        Args:
          dataset: to read from.
          index: windows to draw from.
          data_config: cameras, image size, workers and batches read ahead.
          batch_size: windows per batch.
          seed: of the order.
          start_step: first step; a resumed run gives the step it stopped before.
          part: places in the batch that are read here; others read the rest.
          stopped: says whether to stop waiting for data, and so the iteration.
        """
        self.data_wait_s = 0.0
        self._dataset, self._index, self._config = dataset, index, data_config
        self._batch_size, self._seed, self._next_step = batch_size, seed, start_step
        self._part, self._stopped = part, stopped
        self._readers = _Readers(
            data_config.num_workers,
            (lambda: ReadingProcess(dataset, index.length, data_config))
            if data_config.workers == "processes"
            else (lambda: _ThisProcess(dataset, index.length, data_config)),
        )
        self._ahead: collections.deque[tuple[int, concurrent.futures.Future[Batch]]] = (
            collections.deque()
        )
        for _ in range(data_config.prefetch):
            self._submit()

    def __iter__(self) -> "Loader":
        """Return itself."""
        return self

    def __next__(self) -> tuple[int, Batch]:
        """Return the next step and its batch.

        Returns:
          The step, and numpy arrays with a leading batch axis.

        Raises:
          UserError: what is stored is damaged; raised at the step that needs it. Or it could not
            be read for `data.patience_s`, or a process that reads is gone.
          StopIteration: the loader is closed, or was told to stop while data were waited for.
        """
        if not self._ahead:
            raise StopIteration
        step, future = self._ahead.popleft()
        begin = time.perf_counter()
        try:
            batch = self._wait(step, future)
        except BaseException:
            self.close()
            raise
        self.data_wait_s += time.perf_counter() - begin
        self._submit()
        return step, batch

    def close(self) -> None:
        """Stop reading and end the workers; may be called twice."""
        self._ahead.clear()
        self._readers.close()

    def __enter__(self) -> "Loader":
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        del kind, error, trace
        self.close()

    def _submit(self) -> None:
        step = self._next_step
        self._next_step += 1
        self._ahead.append((step, self._readers.submit(self._windows(step))))

    def _windows(self, step: int) -> Windows:
        return self._index.sample(self._seed, step, self._batch_size)[self._part]

    def _wait(self, step: int, future: "concurrent.futures.Future[Batch]") -> Batch:
        """Wait for a batch, saying so now and then, and not for ever."""
        begin = time.monotonic()
        remind_at = begin + _REMINDER_S
        while True:
            until = min(begin + self._config.patience_s, remind_at)
            left = until - time.monotonic()
            try:
                return future.result(timeout=max(min(left, _ASKING_S), 0.0))
            except TimeoutError:
                if future.done():  # since then, or the reading itself has raised it
                    return future.result()
            if self._stopped():
                raise StopIteration
            if time.monotonic() < until:
                continue
            remind_at = time.monotonic() + _REMINDER_S
            windows = [self._dataset.window_id(*window) for window in self._windows(step)]
            read = describe_windows(windows)
            waited = time.monotonic() - begin
            if waited >= self._config.patience_s:
                raise UserError(
                    f"The data of step {step + 1} ({read} of {self._dataset.title}) were not read "
                    f"within data.patience_s = {self._config.patience_s:g} s. Look whether the "
                    "disk or the network answers; everything saved is intact, and --resume "
                    "continues."
                )
            logging.getLogger("hdvpd").warning(
                "waiting for the data of step %d for %.0f s: %s of %s",
                step + 1, waited, read, self._dataset.title,
            )  # fmt: skip


class _ThisProcess:
    """Reads in the thread that asks."""

    def __init__(self, dataset: Dataset, length: int, data_config: DataConfig) -> None:
        self._dataset, self._length, self._config = dataset, length, data_config

    def read(self, windows: Windows) -> Batch:
        return stack_windows(
            [read_window(self._dataset, e, s, self._length, self._config) for e, s in windows]
        )

    def close(self) -> None:
        """Leave the thread to end by itself."""


class _Readers:
    """Threads that read; unlike those of an executor, one that hangs lets the process end."""

    def __init__(self, count: int, make: Callable[[], _ThisProcess | ReadingProcess]) -> None:
        self._todo: queue.SimpleQueue[tuple[concurrent.futures.Future[Batch], Windows] | None] = (
            queue.SimpleQueue()
        )
        self._closed = False
        self._readers = [make() for _ in range(count)]
        self._threads = [
            threading.Thread(
                target=self._work, args=(reader,), daemon=True, name=f"hdvpd-loader-{number}"
            )
            for number, reader in enumerate(self._readers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, windows: Windows) -> "concurrent.futures.Future[Batch]":
        future: concurrent.futures.Future[Batch] = concurrent.futures.Future()
        self._todo.put((future, windows))
        return future

    def close(self) -> None:
        """End after what is being read; what is not begun is not read."""
        if self._closed:
            return
        self._closed = True
        for _ in self._threads:
            self._todo.put(None)
        for reader in self._readers:
            reader.close()
        deadline = time.monotonic() + _CLOSING_S
        for thread in self._threads:
            thread.join(max(deadline - time.monotonic(), 0.0))

    def _work(self, reader: _ThisProcess | ReadingProcess) -> None:
        while (task := self._todo.get()) is not None:
            if self._closed:
                continue
            future, windows = task
            try:
                future.set_result(reader.read(windows))
            except BaseException as error:
                future.set_exception(error)
