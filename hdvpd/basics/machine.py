"""The machine's cores and main memory, and how the C library hands it out."""

import ctypes
import functools
import mmap
import os
from pathlib import Path

# <malloc.h> of glibc: parameter, value. -1 as a threshold is the largest size there is.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8
_ALLOCATOR = ((_TRIM_THRESHOLD, -1), (_TOP_PAD, 64 * 2**20), (_MMAP_MAX, 0), (_ARENA_MAX, 1))
_HUGE_PAGE = 2**21
_SMALL_BLOCKS = (16, 64, 256)
"""Blocks for what is small are these parts of main memory; pages are taken as they are used."""
_HOLES = (2**10, 2**24)
"""Free pieces of these sizes are closed; of smaller ones glibc has lists of one size each."""
_CLOSER = 0.93
"""By which the next smaller hole is asked for: at most the rest of a hole stays open."""
_RETURNED = 2**16
"""Pages of closed holes of this size go back to the system."""
_HELD: list[int] = []
_CONTAINER_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@functools.cache
def keep_freed_memory() -> bool:
    """Let the process keep freed memory for the next step instead of giving it back.

    XLA on a CPU asks for its buffers anew in every step, in threads of its own. By default glibc
    maps large buffers and unmaps them when freed, so that the kernel has to clear every page again
    in every step: 0.8 GB of the demo's step (`benchmarks/allocator.py`). Here all threads take
    their memory from the one heap that never shrinks, whose address range is asked for in advance
    so that Linux can back it with huge pages. Peak memory rises, by a half for the demo, and
    memory between steps does not fall.

    Call it early: threads that have allocated before keep what they have.

    Returns:
      Whether freed memory is kept; other C libraries are left alone. Huge pages are used where the
      machine has them.
    """
    libc = _libc()
    mallopt = getattr(libc, "mallopt", None)
    if mallopt is None or not all(mallopt(*setting) == 1 for setting in _ALLOCATOR):
        return False
    if hasattr(mmap, "MADV_HUGEPAGE"):
        _reserve_huge_pages(libc, main_memory() // 2)
    return True


def settle_memory() -> None:
    """Make the heap as good as new for large buffers; call it when programs have been compiled.

    Compilation leaves free pieces of all sizes, 130,000 of them for the demo's training step. glibc
    keeps those in lists that it walks for every large buffer, in which the demo's step spent 40 %
    of its time (`benchmarks/allocator.py`). So they are taken, and their pages go back to the
    system. What is small is kept apart from large buffers: what stays, or is only held while the
    next step begins, must not lie where a large buffer was, because the next would not fit there,
    and the heap would grow by its size. glibc puts it there if no smaller free block has room. So
    whole blocks are set aside. What earlier trainings of this process left goes back, too.
    """
    if not keep_freed_memory():
        return
    libc = _libc()
    while _HELD:  # since an earlier call
        libc.free(_HELD.pop())
    if hasattr(libc, "mallinfo2"):
        _close_holes(libc)
    libc.malloc_trim(main_memory())  # not the end of the heap, which the next step takes
    for share in _SMALL_BLOCKS:
        _set_block_aside(libc, main_memory() // share)


class _MallInfo(ctypes.Structure):
    """glibc's account of its main arena [bytes]: `struct mallinfo2` of <malloc.h>."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.realloc.restype = ctypes.c_void_p
    libc.realloc.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    if hasattr(libc, "mallinfo2"):  # since glibc 2.33
        libc.sbrk.restype, libc.sbrk.argtypes = ctypes.c_void_p, (ctypes.c_ssize_t,)
        libc.mallinfo2.restype = _MallInfo
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim.argtypes = (ctypes.c_size_t,)
    return libc


def _reserve_huge_pages(libc: ctypes.CDLL, size: int) -> None:
    """Extend the heap by `size` bytes of huge pages, which take memory only when they are used."""
    start = libc.malloc(size)
    if start is None:  # a limit on address space, or no overcommitment: small pages then
        return
    first = -(-start // _HUGE_PAGE) * _HUGE_PAGE
    libc.madvise(first, (start + size - first) // _HUGE_PAGE * _HUGE_PAGE, mmap.MADV_HUGEPAGE)
    libc.free(start)


def _close_holes(libc: ctypes.CDLL) -> None:
    """Hold every free piece that lies before the end of the heap."""
    end = (libc.sbrk(0) or 0) - libc.mallinfo2().keepcost
    smallest, size = _HOLES
    page = mmap.PAGESIZE
    while size >= smallest:
        start = libc.malloc(size)
        if start is not None and start < end:
            _HELD.append(start)
            first, behind = -(-start // page) * page, (start + size) // page * page
            if size >= _RETURNED:
                libc.madvise(first, behind - first, mmap.MADV_DONTNEED)
        else:
            libc.free(start)
            size = int(_CLOSER * size)


def _set_block_aside(libc: ctypes.CDLL, size: int) -> None:
    """Leave a free block with a few bytes behind it that stay, so that it does not grow."""
    block, behind = libc.malloc(size), libc.malloc(size)
    if behind is not None:  # as large, so that it lies behind; what it shrinks by is free again
        _HELD.append(libc.realloc(behind, 64))
    if block is not None:
        libc.free(block)


def main_memory() -> int:
    """Return the main memory of the machine, or of the container if that has less [bytes]."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in _CONTAINER_LIMITS:
        text = file.read_text().strip() if file.is_file() else ""
        total = min(total, int(text)) if text.isdecimal() else total
    return total


def usable_cores() -> int:
    """Return how many cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
