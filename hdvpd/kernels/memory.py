"""The machine's main memory, and how the C library hands it out."""

import ctypes
import os

# <malloc.h> of glibc: parameter, value.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_ALLOCATOR = ((_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 * 2**20), (_MMAP_MAX, 0))


def keep_freed_memory() -> bool:
    """Let the process keep freed memory for the next step instead of giving it back.

    XLA on a CPU asks for its buffers anew in every step. By default glibc maps large buffers and
    unmaps them when freed, so that the kernel has to clear every page again in every step: a
    quarter of the demo's training time went there (`benchmarks/allocator.py`). Peak memory stays;
    memory between steps does not fall.

    Returns:
      Whether it was done; other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and all(mallopt(*setting) == 1 for setting in _ALLOCATOR)


def main_memory() -> int:
    """Return the size of the machine's main memory [bytes]."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
