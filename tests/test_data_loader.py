import concurrent.futures
import itertools
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from data_tools import chunk_file

from hdvpd.basics.errors import UserError
from hdvpd.basics.types import Batch
from hdvpd.config import DataConfig
from hdvpd.data.loader import Loader
from hdvpd.data.simulation.synthetic import write_synthetic_dataset
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex, read_window


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("loader") / "scene"
    write_synthetic_dataset(path, episodes=4, steps=6, height=12, width=16, seed=2)
    return path


def make_loader(
    path: Path,
    *,
    workers: int = 2,
    start_step: int = 0,
    prefetch: int = 3,
    part: slice = slice(None),
) -> Loader:
    dataset = Dataset(path)
    config = DataConfig(height=12, width=16, num_workers=workers, prefetch=prefetch)
    index = WindowIndex(dataset, "train", 4)
    return Loader(dataset, index, config, batch_size=3, seed=7, start_step=start_step, part=part)


def take(loader: Loader, count: int) -> list[tuple[int, Batch]]:
    with loader:
        return list(itertools.islice(loader, count))


def test_batches_are_the_windows_the_index_names(pristine):
    dataset = Dataset(pristine)
    index = WindowIndex(dataset, "train", 4)
    for step, batch in take(make_loader(pristine), 5):
        windows = index.sample(7, step, 3)
        assert list(zip(batch.episode.tolist(), batch.start.tolist(), strict=True)) == windows
        config = DataConfig(height=12, width=16)
        for row, (episode, start) in enumerate(windows):
            expected = read_window(dataset, episode, start, 4, config)
            ours = jax.tree.map(lambda x, row=row: x[row], batch)
            jax.tree.map(np.testing.assert_array_equal, ours, expected)


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (5, 8)])
def test_order_and_content_do_not_depend_on_threads(pristine, workers, prefetch):
    expected = take(make_loader(pristine), 12)
    ours = take(make_loader(pristine, workers=workers, prefetch=prefetch), 12)
    assert [step for step, _ in ours] == list(range(12))
    jax.tree.map(np.testing.assert_array_equal, ours, expected)


def test_a_resumed_loader_continues_exactly(pristine):
    whole = take(make_loader(pristine), 10)
    rest = take(make_loader(pristine, start_step=6), 4)
    jax.tree.map(np.testing.assert_array_equal, rest, whole[6:])


NEXT = """
import sys
from hdvpd.data.store import Dataset
from hdvpd.data.windows import WindowIndex
index = WindowIndex(Dataset(sys.argv[1]), "train", 4)
print([index.sample(7, step, 2) for step in range(11, 61)])
"""


def test_a_new_process_draws_the_same_next_hundred_windows(pristine):
    done = subprocess.run(
        [sys.executable, "-c", NEXT, str(pristine)], capture_output=True, text=True, check=True
    )
    index = WindowIndex(Dataset(pristine), "train", 4)
    expected = [index.sample(7, step, 2) for step in range(11, 61)]
    assert sum(map(len, expected)) == 100
    assert done.stdout.strip() == str(expected)


def test_processes_read_the_parts_of_one_batch(pristine):
    expected = take(make_loader(pristine), 5)
    parts = [take(make_loader(pristine, part=p), 5) for p in (slice(0, 1), slice(1, 3))]
    for (step, whole), *read in zip(expected, *parts, strict=True):
        assert [number for number, _ in read] == [step, step]
        joined = jax.tree.map(lambda *x: np.concatenate(x), *(batch for _, batch in read))
        jax.tree.map(np.testing.assert_array_equal, joined, whole)


def test_damage_is_raised_at_the_step_that_needs_it_and_ends_the_loader(pristine, tmp_path):
    path = Path(shutil.copytree(pristine, tmp_path / "scene"))
    index = WindowIndex(Dataset(path), "train", 4)
    needs = [any(e == 1 for e, _ in index.sample(7, step, 3)) for step in range(20)]
    first = needs.index(True)
    chunk_file(path, 1, "cameras/cam0/depth").unlink()
    loader = make_loader(path)
    assert [next(loader)[0] for _ in range(first)] == list(range(first))
    with pytest.raises(UserError, match="cameras/cam0/depth"):
        next(loader)
    with pytest.raises(StopIteration):
        next(loader)


class Late(concurrent.futures.Future):
    """Ends between the time-out of who waits and its next look."""

    def __init__(self, outcome: object) -> None:
        super().__init__()
        self.outcome = outcome

    def result(self, timeout: float | None = None) -> object:
        if self.done():
            return super().result(timeout)
        if isinstance(self.outcome, BaseException):
            self.set_exception(self.outcome)
        else:
            self.set_result(self.outcome)
        raise TimeoutError


def test_a_batch_that_arrives_with_the_time_out_is_taken(pristine):
    with make_loader(pristine) as loader:
        _, batch = next(loader)
        loader._ahead.appendleft((9, Late(batch)))
        assert next(loader) == (9, batch)
        assert [step for step, _ in itertools.islice(loader, 2)] == [1, 2]


@pytest.mark.parametrize("fault", [UserError("damaged"), TimeoutError("of a disk")])
def test_a_fault_that_arrives_with_the_time_out_is_raised(pristine, fault):
    with make_loader(pristine) as loader:
        loader._ahead.appendleft((9, Late(fault)))
        with pytest.raises(type(fault), match=str(fault)):
            next(loader)


def test_closing_ends_every_thread_and_may_be_repeated(pristine):
    before = threading.active_count()
    loader = make_loader(pristine, workers=4)
    next(loader)
    loader.close()
    loader.close()
    assert threading.active_count() == before
    assert loader.data_wait_s > 0
    with pytest.raises(StopIteration):
        next(loader)
