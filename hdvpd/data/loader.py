"""Batches read ahead of the training step by threads.

Which windows a step gets is decided by `WindowIndex.sample(seed, step)`, and every batch is read
by one thread from start to end, so neither order nor content depends on the number of threads.
Reading decodes outside the interpreter lock, which is why threads are enough.
"""

import collections
import concurrent.futures
import time
from types import TracebackType

from hdvpd.config import DataConfig
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window, stack_windows
from hdvpd.types import Batch


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
    ) -> None:
        """Start reading.

        Args:
          dataset: to read from.
          index: windows to draw from.
          data_config: cameras, image size, threads and batches read ahead.
          batch_size: windows per batch.
          seed: of the order.
          start_step: first step; a resumed run gives the step it stopped before.
        """
        self.data_wait_s = 0.0
        self._dataset, self._index, self._config = dataset, index, data_config
        self._batch_size, self._seed, self._next_step = batch_size, seed, start_step
        self._pool = concurrent.futures.ThreadPoolExecutor(
            data_config.num_workers, thread_name_prefix="hdvpd-loader"
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
          UserError: what is stored is damaged; raised at the step that needs it.
          StopIteration: the loader is closed.
        """
        if not self._ahead:
            raise StopIteration
        step, future = self._ahead.popleft()
        begin = time.perf_counter()
        try:
            batch = future.result()
        except BaseException:
            self.close()
            raise
        self.data_wait_s += time.perf_counter() - begin
        self._submit()
        return step, batch

    def close(self) -> None:
        """Stop reading and end the threads; may be called twice."""
        self._ahead.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

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
        self._ahead.append((step, self._pool.submit(self._read, step)))

    def _read(self, step: int) -> Batch:
        windows = self._index.sample(self._seed, step, self._batch_size)
        length = self._index.length
        return stack_windows(
            [read_window(self._dataset, e, s, length, self._config) for e, s in windows]
        )
