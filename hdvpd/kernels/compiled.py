"""numba as the compiled host code uses it.

`no_type_check` on compiled functions keeps the tests' shape checker from wrapping what numba has to
compile.
"""

import contextlib
import fcntl
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, no_type_check

import numpy as np
from numba import config, njit
from numba.core import caching

_settings: Any = config


def _of_these_sources() -> str:
    """Name a folder of compiled functions after the sources of all kernels.

    numba keeps a function until its own file changes, also where it calls one of another file.
    """
    here = Path(__file__).parent
    sources = hashlib.sha256()
    for file in sorted(here.glob("*.py")):
        sources.update(file.read_bytes())
    return str(here / "__pycache__" / f"compiled-{sources.hexdigest()[:16]}")


if not _settings.CACHE_DIR:  # the user's NUMBA_CACHE_DIR comes first; else beside the sources
    _settings.CACHE_DIR = _of_these_sources()


def _one_at_a_time(save: Callable[[Any, Any, Any], None]) -> Callable[[Any, Any, Any], None]:
    """Let processes keep compiled functions one after another.

    numba numbers the files of a function's forms, one for every type of arguments. Two processes
    that compile two forms at once would write both to one file, and load the wrong one later.
    """

    @functools.wraps(save)
    def keep(self: Any, key: Any, data: Any) -> None:
        with Path(f"{self._index_path}.lock").open("wb") as held:
            with contextlib.suppress(OSError):  # of a file system that knows no locks
                fcntl.flock(held, fcntl.LOCK_EX)
            save(self, key, data)

    return keep


_kept: Any = caching.IndexDataCacheFile
_kept.save = _one_at_a_time(_kept.save)
# OpenMP before TBB, whose outdated copy another package (Open3D) may already have loaded.
_settings.THREADING_LAYER_PRIORITY = ["omp", "tbb", "workqueue"]

# Programs that run at the same time, such as those of several plans, wait for no lock of Python's.
compiled_njit = functools.partial(njit, cache=True, nogil=True, error_model="numpy")
"""Compile."""
exact_parallel_njit = functools.partial(compiled_njit, parallel=True)
"""Compile for all cores; results do not depend on their number if each writes rows of its own."""
# Reassociation lets the dot products vectorise; infinities and NaN keep their meaning.
_FAST = {"reassoc", "contract", "nsz"}
parallel_njit = functools.partial(exact_parallel_njit, fastmath=_FAST)
"""The same, with sums in any order that is fixed when compiled."""
fast_njit = functools.partial(compiled_njit, fastmath=_FAST)
"""Compile what one thread does, with such sums: loops in a function of their own become vectors."""
inlined_njit = functools.partial(fast_njit, inline="always")
"""Compile as a part of what calls it."""

SLAB = 16
"""Columns that one thread takes: a cache line of float32."""


@fast_njit()
@no_type_check
def aligned(shape):
    """Return memory that starts with a cache line, for rows of vectors.

    Half of what `np.empty` returns starts in the middle of one, and all vectors in two of them.
    """
    numbers = 1
    for length in shape:
        numbers *= length
    whole = np.empty(numbers + SLAB, np.float32)
    first = -(np.int64(whole.ctypes.data) // 4) % SLAB
    return whole[first : first + numbers].reshape(shape)


@compiled_njit()
@no_type_check
def group_by(targets: np.ndarray, used: np.ndarray, slots: np.ndarray, offsets: np.ndarray) -> None:
    """Order the (row, column) slots of a table by target, as in a counting sort.

    A scatter to targets then becomes a gather by targets, whose sums are in the order of the slots
    whatever the number of threads.

    Args:
      targets: (r, w) target of every slot.
      used: (r, w) which slots there are.
      slots: (r * w,) gets row * w + column, grouped by target, and 0 after the last one in use.
      offsets: (number of targets + 1,) gets each target's first position in `slots`, and the end.
    """
    rows, width = targets.shape
    offsets[:] = 0
    for row in range(rows):
        for column in range(width):
            if used[row, column]:
                offsets[targets[row, column] + 1] += 1
    for target in range(len(offsets) - 1):
        offsets[target + 1] += offsets[target]
    position = offsets[:-1].copy()
    slots[:] = 0
    for row in range(rows):
        for column in range(width):
            if used[row, column]:
                target = targets[row, column]
                slots[position[target]] = row * width + column
                position[target] += 1


@fast_njit()
@no_type_check
def clear(array: np.ndarray) -> None:
    """Fill in zeros, by one thread.

    In a parallel function, numba would wake all threads for `np.zeros`.
    """
    numbers = array.reshape(-1)
    for place in range(numbers.shape[0]):
        numbers[place] = 0


@fast_njit()
@no_type_check
def add_parts(parts: np.ndarray, total: np.ndarray) -> None:
    """Fill in the sum along the first axis, by one thread.

    In a parallel function itself, numba would wake all threads for it.
    """
    if not parts.shape[0]:
        clear(total)
        return
    sums, numbers = total.reshape(-1), parts.reshape(parts.shape[0], -1)
    for column in range(sums.shape[0]):
        sums[column] = numbers[0, column]
    for part in range(1, numbers.shape[0]):
        for column in range(sums.shape[0]):
            sums[column] += numbers[part, column]


@fast_njit()
@no_type_check
def copy_rows(rows: np.ndarray, copy: np.ndarray) -> None:
    """Fill in a copy.

    For `copy[:] = rows` numba compiles the message about shapes that differ, for seconds.
    """
    for row in range(copy.shape[0]):
        for column in range(copy.shape[1]):
            copy[row, column] = rows[row, column]
