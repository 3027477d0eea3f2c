"""A page on this machine until it is told to stop; it asks nothing and needs no terminal."""

import contextlib
import signal
import socket
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from hdvpd.basics.errors import UserError
from hdvpd.viewing.offline import start_server, stop_server
from hdvpd.viewing.page import Page
from hdvpd.viewing.progress import Progress
from hdvpd.viewing.runs import RunSource
from hdvpd.viewing.sources import AbstractSource

_LOOK_S = 0.5


def require_free(host: str, port: int) -> None:
    """Refuse a place where nothing can be served; viser would silently take another port.

    Raises:
      UserError: the port is in use or not allowed, or the host is not this machine's.
    """
    try:
        if not 0 <= port < 2**16:  # the system would take what is left of it
            raise OverflowError("ports are 0 to 65535")
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except (OSError, OverflowError) as error:
        raise UserError(
            f"{host}:{port} cannot be served ({getattr(error, 'strerror', None) or error}). Name "
            "another port with --port, 0 for any that is free; --host is localhost unless other "
            "machines are to see the page."
        ) from error


@contextlib.contextmanager
def served(source: AbstractSource, host: str, port: int) -> Iterator[Page]:
    """Serve a page for a while.

    Args:
      source: what it shows.
      host: this machine's address at which it listens.
      port: 0 takes any that is free.

    Yields:
      The page; `page.server.get_port()` is where.

    Raises:
      UserError: the port is in use, or the first scene cannot be loaded.
    """
    require_free(host, port)
    server = start_server(host, port)
    try:
        if port and server.get_port() != port:  # another program was quicker
            raise UserError(f"{host}:{port} is in use; name another port with --port.")
        page = Page(server, source)
        progress = None
        if isinstance(source, RunSource) and source.watched:
            progress = Progress(page, source)
        try:
            yield page
        finally:
            if progress is not None:
                progress.stop()
            page.stop()
    finally:
        stop_server(server)


def serve(source: AbstractSource, host: str, port: int) -> int:
    """Serve a page until the process is interrupted or terminated.

    Args:
      source: what it shows.
      host: this machine's address at which it listens.
      port: 0 takes any that is free.

    Returns:
      The exit status, 128 and the number of the signal: 130 after Ctrl-C, 143 after SIGTERM.

    Raises:
      UserError: see `served`.
      KeyboardInterrupt: Ctrl-C came before the page was up; SIGTERM ends the process then.
    """
    stopped, received = threading.Event(), 0
    before: dict[int, Any] = {}

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal received
        del frame
        received = number
        stopped.set()

    try:
        with served(source, host, port) as page:
            # Not earlier: nobody looks at the event while the first scene is rolled out.
            for number in (signal.SIGINT, signal.SIGTERM):
                before[number] = signal.signal(number, stop)
            print(f"showing {source.name} at http://{host}:{page.server.get_port()}", flush=True)
            print("Ctrl-C stops it", flush=True)
            # Python runs handlers between its instructions: during an endless wait never, where the
            # signal came just before it or another thread received it.
            while not stopped.wait(timeout=_LOOK_S):
                pass
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    print("stopped", flush=True)
    return 128 + received
