"""Checkpoints written by a thread while training goes on: one at a time, and none waits in line.

Training stands still for a copy of the state, and for the rest of a save that has not ended when
the next is due. What goes wrong in the thread is raised at the next step.
"""

import concurrent.futures
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hdvpd.training.checkpoint_folder import Progress
from hdvpd.training.checkpoints import CheckpointStore
from hdvpd.training.spread_checkpoints import SpreadStore


@dataclass(frozen=True)
class Saved:
    """A checkpoint that is safely on disk.

    Attributes:
      step: of the checkpoint.
      seconds: that writing took, beside training.
      waited_s: that training stood still for it.
    """

    step: int
    seconds: float
    waited_s: float


class BackgroundSaver:
    """Writes the checkpoints of a run, in order, in one thread.

    Args:
      store: checkpoints of the run.
    """

    def __init__(self, store: CheckpointStore | SpreadStore) -> None:
        """Start no thread yet."""
        self._store = store
        self._pool = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="hdvpd-saver")
        self._running: concurrent.futures.Future[Saved] | None = None

    def save(
        self,
        step: int,
        state: Any,
        *,
        progress: Progress,
        files: Mapping[str, str],
        verify: bool = False,
    ) -> Saved | None:
        """Copy the state and begin to write it.

        Args:
          step: training steps done.
          state: as in `CheckpointStore.save`; may be donated once this has returned.
          progress: as there.
          files: as there.
          verify: read the checkpoint back and compare.

        Returns:
          The save that had to end first, if one was under way.

        Raises:
          UserError: that save failed.
        """
        begin = time.perf_counter()
        before = self.finished(wait=True)
        copy = self._store.copy(state)
        waited_s = time.perf_counter() - begin

        def write() -> Saved:
            begin = time.perf_counter()
            self._store.save(step, copy, progress=progress, files=files)
            if verify:
                self._store.verify(step, copy)
            return Saved(step, time.perf_counter() - begin, waited_s)

        self._running = self._pool.submit(write)
        return before

    def finished(self, *, wait: bool = False) -> Saved | None:
        """Return the save under way once it has ended, each save once.

        Args:
          wait: until it has ended.

        Raises:
          UserError: it failed; earlier checkpoints are intact.
        """
        running = self._running
        if running is None or not (wait or running.done()):
            return None
        self._running = None
        return running.result()

    def close(self, patience_s: float | None = None) -> BaseException | None:
        """Wait for the save under way and end the thread.

        Args:
          patience_s: leave a save to itself after this time, of which others may be waited for.

        Returns:
          What went wrong in it, if that was not raised before.
        """
        running, self._running = self._running, None
        if running is not None and not concurrent.futures.wait([running], patience_s).done:
            self._pool.shutdown(wait=False)
            return TimeoutError(f"it had not ended after {patience_s:g} s")
        self._pool.shutdown()
        return None if running is None else running.exception()
