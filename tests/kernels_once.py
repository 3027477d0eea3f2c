"""Kernels of numba are compiled once for all processes of a run, however many need one at once."""

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numba.core.dispatcher import Dispatcher

_alone = threading.RLock()
_depth = 0


@contextmanager
def _one_process() -> Iterator[None]:
    """Let no other process in; a kernel that calls another compiles that one inside."""
    global _depth
    with _alone:
        folder = os.open(Path(__file__).parent, os.O_RDONLY)
        try:
            if not _depth:
                fcntl.flock(folder, fcntl.LOCK_EX)
            _depth += 1
            yield
        finally:
            _depth -= 1
            os.close(folder)  # which lets the next one in


def compile_once() -> None:
    """Make whoever needs a kernel wait for the process that compiles it, and then read it."""
    compile_kernel = Dispatcher.compile

    def compile_or_wait(self: Any, sig: Any) -> Any:
        with _one_process():
            return compile_kernel(self, sig)

    Dispatcher.compile = compile_or_wait
