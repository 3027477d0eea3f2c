"""Servers of remote stores for tests, on 127.0.0.1: plain HTTP, S3, Google Cloud Storage."""

import contextlib
import http.server
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from extras import needed

QUICK = {"max_retries": 1, "initial_delay": "10ms", "max_delay": "10ms"}
"""For `hdvpd.data.remote.RETRIES`, where a store is to fail."""


PROMPT = {"disable_nagle_algorithm": True, "protocol_version": "HTTP/1.1"}
"""For a handler: a content does not wait 40 ms for the other side to confirm its head, and a
connection serves many requests."""


class Files(SimpleHTTPRequestHandler):
    """Python's own file server: it knows no byte ranges and lists folders as pages of HTML."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
        del format, arguments


class Objects(BaseHTTPRequestHandler):
    """Sends files below a folder, or the part of one that is asked for."""

    root: Path
    asked: list[str]

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
        del format, arguments

    def file(self) -> Path:
        """Return the file that is asked for."""
        return self.root / unquote(self.path).lstrip("/")

    def do_GET(self) -> None:
        """Send it."""
        self.asked.append(self.path)
        file = self.file()
        if not file.is_file():
            self.send_error(404)
            return
        content, ranges = file.read_bytes(), self.headers.get("Range", "")
        size = len(content)
        self.send_response(206 if ranges else 200)
        if ranges:
            first, _, last = ranges.removeprefix("bytes=").partition("-")
            begin = int(first) if first else size - int(last)
            content = content[begin : int(last) + 1 if first and last else size]
            end = begin + len(content) - 1
            self.send_header("Content-Range", f"bytes {begin}-{end}/{size}")
        self.send_header("x-goog-generation", "1")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class GoogleObjects(Objects):
    """Sends files as the JSON API of Google Cloud Storage: /storage/v1/b/BUCKET/o/NAME."""

    def file(self) -> Path:
        """Return the object that is asked for."""
        _, _, _, _, bucket, _, name = urlsplit(self.path).path.split("/", 6)
        return self.root / bucket / unquote(name)


class Refusing(BaseHTTPRequestHandler):
    """Answers 403 to everything."""

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing."""
        del format, arguments

    def do_GET(self) -> None:
        """Refuse."""
        self.send_error(403)

    def do_HEAD(self) -> None:
        """Refuse."""
        self.send_error(403)


class Server(http.server.ThreadingHTTPServer):
    """Serves nobody after it has been shut down, on connections that are open either."""

    daemon_threads = True

    def __init__(self, handler: Any):
        super().__init__(("127.0.0.1", 0), handler)
        self.connections: list[socket.socket] = []

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own."""
        self.connections.append(request)
        super().process_request(request, client_address)

    def server_close(self) -> None:
        """Close all connections."""
        super().server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):  # it is closed
                connection.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def serving(handler: Any) -> Iterator[str]:
    """Run a server with this handler of requests; yield its address."""
    with Server(handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serving_files(
    root: Path, asked: list[str] | None = None, kind: type[Objects] = Objects
) -> Iterator[str]:
    """Serve a folder over plain HTTP, or as objects of Google's; what is asked for is noted."""
    noting = PROMPT | {"root": root, "asked": [] if asked is None else asked}
    with serving(type("Noting", (kind,), noting)) as address:
        yield address


@contextlib.contextmanager
def serving_s3(root: Path) -> Iterator[str]:
    """Serve the folders in a folder as buckets of S3."""
    localbucket = needed("localbucket")
    handler = type("Bucket", (localbucket.S3Handler,), PROMPT | {"data_root": root})
    with serving(handler) as address:
        yield address
