"""Worker processes that write episodes, and the progress people see.

Used by everything that writes many episodes of one data set in any order. Interrupts belong to the
parent; a worker whose parent is gone ends instead of waiting for ever.
"""

import concurrent.futures
import concurrent.futures.process
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import rich.console
import rich.progress

from hdvpd.basics.errors import UserError
from hdvpd.data import writer

K = TypeVar("K")
T = TypeVar("T")


def run_episodes(
    work: Callable[[K], T], episodes: Sequence[K], *, workers: int, out: Path
) -> Iterator[T]:
    """Write episodes, in this process or in several.

    Args:
      work: writes one episode; picklable.
      episodes: what `work` is called with.
      workers: processes; 1 stays in this one.
      out: the data set, for messages.

    Yields:
      What `work` returned, in the order of finishing.

    Raises:
      UserError: a worker was killed, or `work` raised it.
    """
    if workers == 1 or len(episodes) <= 1:
        yield from (work(episode) for episode in episodes)
        return
    pool = concurrent.futures.ProcessPoolExecutor(
        min(workers, len(episodes)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_start_worker,
    )
    try:
        futures = [pool.submit(work, episode) for episode in episodes]
        for future in concurrent.futures.as_completed(futures):
            yield future.result()
    except concurrent.futures.process.BrokenProcessPool as error:
        raise UserError(
            f"A worker was killed (out of memory?); {len(writer.finished_episodes(out))} episodes "
            f"of {out} are finished and kept. Run the same command again to continue, with fewer "
            "--workers if memory is short."
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def report_progress(
    finished: Iterable[T], total: int, console: rich.console.Console, *, doing: str, done: str
) -> Iterator[T]:
    """Pass on what comes once per episode, and show progress.

    On a terminal that is a bar with the verb `doing`, such as "importing"; elsewhere it is about
    ten plain lines with the verb `done`, such as "imported".
    """
    if console.is_terminal:
        finished = rich.progress.track(finished, doing, total, console=console)
    for count, result in enumerate(finished, 1):
        if not console.is_terminal and (count % max(total // 10, 1) == 0 or count == total):
            console.print(f"{done} {count} of {total} episodes")
        yield result


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Mesa's own threads only get in the way when every core has a process.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch(sentinel: int) -> None:
        multiprocessing.connection.wait([sentinel])
        os._exit(1)

    threading.Thread(target=watch, args=(parent.sentinel,), daemon=True).start()
