"""Reading by processes: the same batches as threads read, and nothing left behind."""

import contextlib
import dataclasses
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from data_tools import chunk_file

from hdvpd.basics.errors import UserError
from hdvpd.config import DataConfig
from hdvpd.data.loader import Loader
from hdvpd.data.mixture import open_dataset
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.windows import WindowIndex

CONFIG = DataConfig(height=12, width=16, num_workers=2, prefetch=3, workers="processes")


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("processes") / "scene"
    write_synthetic_dataset(path, episodes=4, steps=6, height=12, width=16, seed=2)
    return path


def open_loader(*paths: Path, **changes: object) -> Loader:
    given = {"path": tuple(map(str, paths)), **changes}
    config = dataclasses.replace(CONFIG, **given)  # type: ignore[arg-type]
    dataset = open_dataset(config)
    index = WindowIndex(dataset, "train", 4, config.weights)
    return Loader(dataset, index, config, batch_size=3, seed=7)


def pids(loader: Loader) -> list[int]:
    return [reader.pid for reader in loader._readers._readers]


def is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for_end(numbers: list[int], seconds: float = 20) -> list[int]:
    """Return those that still live after some time."""
    deadline = time.monotonic() + seconds
    while (alive := [pid for pid in numbers if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def test_processes_read_what_threads_read_and_end_with_the_loader(pristine):
    with open_loader(pristine, workers="threads") as threads:
        expected = list(itertools.islice(threads, 6))
    with open_loader(pristine) as loader:
        ours = list(itertools.islice(loader, 6))
        numbers = pids(loader)
        assert len(set(numbers)) == 2
        assert all(map(is_alive, numbers))
    assert not wait_for_end(numbers, 5)
    jax.tree.map(np.testing.assert_array_equal, ours, expected)
    leaves = jax.tree.leaves([batch for _, batch in ours])
    assert all(leaf.flags.writeable for leaf in leaves)
    assert {leaf.ctypes.data % 64 for leaf in leaves} == {0}  # jax takes them as they lie
    ours[0][1].frames.rgb[:] = 0  # and they are the reader's own


def test_a_batch_that_is_held_keeps_its_memory_and_one_that_is_not_lends_it(pristine):
    with open_loader(pristine, workers="threads") as threads:
        expected = list(itertools.islice(threads, 12))
    with open_loader(pristine, num_workers=1, prefetch=2) as loader:
        _, held = next(loader)
        part = held.frames.rgb[1, 2:]  # a view keeps what it is a part of
        as_jax = jnp.asarray(held.frames.depth_m)
        del held
        places, later = [], []
        for _ in range(10):
            step, batch = next(loader)
            places.append(batch.frames.rgb.ctypes.data)
            later.append((step, jax.tree.map(np.copy, batch)))
            batch.frames.rgb[:] = 7  # nobody else reads it
            del batch
        (reader,) = loader._readers._readers
        assert len(reader._borrowed._memory) <= 5
    assert len(set(places)) <= 4
    first = expected[0][1].frames
    np.testing.assert_array_equal(part, first.rgb[1, 2:])
    np.testing.assert_array_equal(as_jax, first.depth_m)
    jax.tree.map(np.testing.assert_array_equal, later, expected[1:11])


def test_damage_that_a_process_finds_is_the_same_message(pristine, tmp_path):
    path = Path(shutil.copytree(pristine, tmp_path / "scene"))
    chunk_file(path, 1, "cameras/cam0/depth").unlink()
    found = []
    for workers in ("threads", "processes"):
        with open_loader(path, workers=workers) as loader, pytest.raises(UserError) as caught:
            list(itertools.islice(loader, 20))
        found.append(str(caught.value))
    assert found[0] == found[1]


def test_a_process_that_is_killed_ends_the_loader_with_a_message(pristine):
    with open_loader(pristine, num_workers=1, prefetch=1) as loader:
        next(loader)
        (pid,) = pids(loader)
        os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        with pytest.raises(UserError, match=rf"Process {pid}.*signal 9 \(SIGKILL\).*--resume"):
            list(itertools.islice(loader, 3))
        assert time.monotonic() - begin < 5
        with pytest.raises(StopIteration):
            next(loader)


def test_a_process_that_hangs_is_given_up_and_ended(pristine):
    with open_loader(pristine, num_workers=1, prefetch=1, patience_s=1.0) as loader:
        (pid,) = pids(loader)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(UserError, match=r"were not read within data\.patience_s = 1 s"):
            next(loader)
    assert not wait_for_end([pid], 5)


@pytest.fixture
def parent(pristine: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process that reads by two others, and their numbers."""
    program = PARENT.format(tests=str(Path(__file__).parent), path=str(pristine))
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )  # fmt: skip
    assert process.stdout is not None
    with process:
        yield process, [int(number) for number in process.stdout.readline().split()]
        process.kill()


PARENT = """
import sys, time
sys.path.insert(0, {tests!r})
from pathlib import Path
from test_data_processes import open_loader, pids
loader = open_loader(Path({path!r}))
next(loader)
print(*pids(loader), flush=True)
time.sleep(60)
"""


def test_processes_end_with_a_parent_that_is_killed(parent):
    process, numbers = parent
    assert len(numbers) == 2
    os.kill(numbers[0], signal.SIGINT)  # Ctrl-C reaches all of a terminal's processes
    time.sleep(0.2)
    assert all(map(is_alive, numbers))
    os.kill(numbers[1], signal.SIGSTOP)  # one stands still, as it would while a disk hangs
    process.kill()
    process.wait()
    assert not wait_for_end(numbers[:1])
    os.kill(numbers[1], signal.SIGCONT)
    assert not wait_for_end(numbers)
