"""A process that reads batches for another, where threads would wait for one interpreter.

`ReadingProcess` is the side that asks; run as a program, this module is the side that reads. They
talk over a pair of sockets. A batch comes back in a file in memory that only the two hold, so its
arrays are never copied. When nobody holds them any more, the file serves for another batch: new
memory would cost the system more time than most batches take to be read. Either side sees at once
when the other is gone: a reader that dies is an error of the batch it read, and one whose parent
dies ends.
"""

import mmap
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import hdvpd
from hdvpd.basics.errors import UserError
from hdvpd.basics.machine import keep_freed_memory
from hdvpd.basics.types import Batch
from hdvpd.config import DataConfig
from hdvpd.data.store import Dataset
from hdvpd.data.windows import describe_windows, read_window, stack_windows

_HEADER = struct.Struct("<QQ")
"""Bytes of the pickle that follows, and of a new file that comes along; 0 for none."""
_ALIGNMENT = 64
"""Of arrays in the file [bytes]; jax copies what is less aligned."""


class ReadingProcess:
    """A process that reads windows of one data set; used by one thread at a time."""

    def __init__(self, dataset: Dataset, length: int, data_config: DataConfig) -> None:
        """Start it; it is told what to read at the first `read`.

        Args:
          dataset: to read from.
          length: frames per window.
          data_config: cameras and image size.
        """
        self._dataset = dataset
        self._greeting: tuple[Any, ...] | None = (dataset, length, data_config)
        self._borrowed = _Borrowed()
        self._channel, theirs = socket.socketpair()
        root = str(Path(hdvpd.__file__).parents[1])
        environment = os.environ | {
            "JAX_PLATFORMS": "cpu",  # it computes nothing, and must not take an accelerator
            "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "hdvpd.data.reading_process", str(theirs.fileno())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def read(self, windows: Sequence[tuple[int, int]]) -> Batch:
        """Read windows.

        Args:
          windows: episodes and first frames.

        Returns:
          Numpy arrays with a leading batch axis; their memory is theirs as long as any of them, or
          a view of one, is alive.

        Raises:
          UserError: what is stored is damaged, or the process is gone.
        """
        try:
            if self._greeting is not None:
                _send(self._channel, self._greeting)
                self._greeting = None
            _send(self._channel, (list(windows), self._borrowed.returned()))
            answer = _receive(self._channel, self._borrowed)
        except (EOFError, OSError) as error:
            raise self._gone(windows) from error
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def close(self) -> None:
        """End the process, whatever it does; may be called twice, by any thread."""
        self._process.kill()
        self._process.wait()
        self._channel.close()

    def _gone(self, windows: Sequence[tuple[int, int]]) -> UserError:
        try:
            status = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = 0
        how = f"with status {status}"
        if status < 0:
            how = f"by signal {-status} ({signal.Signals(-status).name})"
        read = describe_windows([self._dataset.window_id(*window) for window in windows])
        return UserError(
            f"Process {self.pid}, which read data ({read} of {self._dataset.title}), was ended "
            f"{how}. If memory ran out, use fewer data.num_workers or a smaller data.prefetch; "
            "everything saved is intact, and --resume continues."
        )


class _Lent:
    """The files in memory of the side that reads, which the other side holds or has returned."""

    def __init__(self) -> None:
        self._memory: list[mmap.mmap] = []
        self._free: list[int] = []

    def take(self, size: int) -> tuple[int, mmap.mmap, int | None]:
        """Return the number and the memory of a free file; of a new one its descriptor too."""
        for number in self._free:
            if len(self._memory[number]) >= size:
                self._free.remove(number)
                return number, self._memory[number], None
        descriptor = _memory_file(size)
        self._memory.append(mmap.mmap(descriptor, size))
        return len(self._memory) - 1, self._memory[-1], descriptor

    def take_back(self, numbers: Sequence[int]) -> None:
        self._free += numbers


class _Borrowed:
    """The same files on the side that asks."""

    def __init__(self) -> None:
        self._memory: dict[int, mmap.mmap] = {}
        self._unused: list[int] = []

    def add(self, number: int, descriptor: int, size: int) -> None:
        try:
            self._memory[number] = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)

    def view(self, number: int) -> memoryview:
        """Return a file's memory, which is unused again as soon as nothing is left of the view."""
        whole = np.frombuffer(self._memory[number], np.uint8)
        weakref.finalize(whole, self._unused.append, number).atexit = False
        return whole.data

    def returned(self) -> list[int]:
        """Return, once, the numbers of files that have become unused."""
        return [self._unused.pop() for _ in range(len(self._unused))]


def _send(channel: socket.socket, value: Any, lent: _Lent | None = None) -> None:
    """Send a value; its arrays go into a file in memory that is lent to the other side."""
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(value, protocol=5, buffer_callback=buffers.append if lent else None)
    raw = [buffer.raw() for buffer in buffers]
    sizes = [len(view) for view in raw]
    places, total = _places(sizes)
    number, descriptor = -1, None
    if lent and total:
        number, memory, descriptor = lent.take(total)
        for place, view in zip(places, raw, strict=True):
            memory[place : place + len(view)] = view
    text = pickle.dumps((number, sizes, text))
    if descriptor is None:
        channel.sendall(_HEADER.pack(len(text), 0) + text)
        return
    try:
        socket.send_fds(channel, [_HEADER.pack(len(text), total)], [descriptor])
    finally:
        os.close(descriptor)
    channel.sendall(text)


def _receive(channel: socket.socket, borrowed: _Borrowed | None = None) -> Any:
    """Receive a value that `_send` sent; its arrays lie in a file and are not copied.

    Raises:
      EOFError: the other side is gone.
    """
    header, descriptors, _, _ = socket.recv_fds(channel, _HEADER.size, 1)
    header += _receive_bytes(channel, _HEADER.size - len(header))
    length, total = _HEADER.unpack(header)
    number, sizes, text = pickle.loads(_receive_bytes(channel, length))
    if number < 0 or borrowed is None:
        return pickle.loads(text, buffers=[b""] * len(sizes))
    if descriptors:
        borrowed.add(number, descriptors[0], total)
    memory = borrowed.view(number)
    places, _ = _places(sizes)
    views = [memory[place : place + size] for place, size in zip(places, sizes, strict=True)]
    return pickle.loads(text, buffers=views)


def _receive_bytes(channel: socket.socket, count: int) -> bytes:
    parts = []
    while count:
        part = channel.recv(min(count, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Lay buffers out one after the other; return where each begins, and the end."""
    places, end = [], 0
    for size in sizes:
        places.append(end)
        end += -(-size // _ALIGNMENT) * _ALIGNMENT
    return places, end


def _memory_file(size: int) -> int:
    """Make a file that has no name and vanishes with its last user; return its descriptor."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("hdvpd-batch")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor


def _answer(dataset: Dataset, length: int, data_config: DataConfig, windows: Any) -> Any:
    """Return the batch, or what went wrong in a form that another process can raise."""
    try:
        return stack_windows([read_window(dataset, e, s, length, data_config) for e, s in windows])
    except UserError as error:
        return UserError(str(error))
    except Exception:
        return RuntimeError(f"in a process that reads data:\n{traceback.format_exc()}")


def _end_with(channel: socket.socket) -> None:
    """End this process as soon as nobody listens, even in the middle of a read that hangs."""
    poll = select.poll()
    poll.register(channel, 0)  # whatever is asked for, a hang-up is reported
    poll.poll()
    os._exit(0)


def main() -> None:
    """Read what is asked for until the other side is gone."""
    # Signals are for the parent, which ends this process when it has saved.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    keep_freed_memory()  # as the training does, for the next batch
    channel = socket.socket(fileno=int(sys.argv[1]))
    threading.Thread(target=_end_with, args=(channel,), daemon=True).start()
    try:
        dataset, length, data_config = _receive(channel)
        lent = _Lent()
        while True:
            windows, returned = _receive(channel)
            lent.take_back(returned)
            _send(channel, _answer(dataset, length, data_config, windows), lent)
    except (EOFError, OSError):
        pass


if __name__ == "__main__":
    main()
