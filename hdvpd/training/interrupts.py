"""Stopping a run from outside: the first signal asks, the second one does not.

SIGTERM (a cluster's preemption) and SIGINT (Ctrl-C) set a flag that the training loop reads after
every step; the run then saves and exits with 128 + the signal's number: 143 or 130. A second signal
ends the process at once with the same status. Finished checkpoints are safe in both cases.
"""

import os
import signal
import socket
import sys
import threading
from types import TracebackType

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_SHOW_CURSOR = "\x1b[?25h"
"""A progress bar hides it, and a process that ends at once cannot tidy up."""


class StopSignals:
    """Context in which SIGTERM and SIGINT are noted instead of obeyed.

    Python runs its own signal handlers only between two bytecodes, hence not while XLA compiles,
    which can take minutes. The wake-up descriptor is written by the C handler at once, and a thread
    reads it: the answer comes immediately and a second signal always works.

    Outside the main thread, where signals cannot be caught, the context does nothing.

    Attributes:
      received: number of the first signal; None until one comes.
    """

    def __init__(self) -> None:
        """Note nothing yet."""
        self.received: int | None = None

    @property
    def exit_status(self) -> int | None:
        """128 + the signal's number, as shells report it; None until one comes."""
        return None if self.received is None else 128 + self.received

    def __enter__(self) -> "StopSignals":
        """Take over the two signals."""
        self._active = threading.current_thread() is threading.main_thread()
        if self._active:
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            self._old_descriptor = signal.set_wakeup_fd(self._writer.fileno())
            self._old_handlers = {n: signal.signal(n, self._note) for n in _SIGNALS}
            self._thread = threading.Thread(target=self._watch, daemon=True, name="signals")
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Give the signals back."""
        del kind, error, traceback
        if self._active:
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._old_descriptor)
            self._writer.close()
            self._thread.join()
            self._reader.close()

    def _note(self, number: int, _: object = None) -> None:
        self.received = self.received or number

    def _watch(self) -> None:
        count = 0
        while data := self._reader.recv(1):
            number = data[0]
            if number not in _SIGNALS:
                continue
            count += 1
            if count > 1:
                if sys.stdout.isatty():
                    print(_SHOW_CURSOR, end="", flush=True)
                os._exit(128 + number)
            self._note(number)
            print(
                f"\n{signal.Signals(number).name}: saving after the current step; send it again "
                "to stop at once",
                file=sys.stderr,
                flush=True,
            )
