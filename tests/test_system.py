"""Keeping freed memory: pages that were touched once are not handed out afresh."""

import resource
import subprocess
import sys

import pytest

# Frees and allocates the same 64 MiB ten times, in a thread as XLA does, and counts the pages that
# the kernel had to supply.
SCRIPT = """
import concurrent.futures, resource, sys
import numpy as np
if sys.argv[2:]:
    resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
from hdvpd.basics.machine import keep_freed_memory
if sys.argv[1] == "keep" and not keep_freed_memory():
    sys.exit(3)
with concurrent.futures.ThreadPoolExecutor(1) as pool:
    for round in range(11):
        if round == 1:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        pool.submit(lambda: np.ones(1 << 23).sum()).result()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(*words: str) -> int:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *words], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("this C library has no mallopt")
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_freed_pages_are_used_again():
    block = (1 << 26) // resource.getpagesize()
    kept, default = faults("keep"), faults("default")
    assert kept < block
    # With transparent huge pages the default takes fewer faults, but still some in every round.
    assert kept < default


def test_a_limit_on_address_space_leaves_small_pages_which_are_kept_too():
    assert faults("keep", str(1 << 30)) < (1 << 26) // resource.getpagesize()


# Large buffers come and go, beside what stays: some of it is asked for while no large one is held.
# Before that, as compilation does, the heap is left in pieces that are too small for it.
GROWTH = """
import ctypes, resource, sys
from hdvpd.basics.machine import keep_freed_memory, settle_memory
if not keep_freed_memory():
    sys.exit(3)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
def hold(mib):
    start = libc.malloc(mib << 20)
    assert start
    ctypes.memset(start, 1, mib << 20)
    return start
for piece in [hold(1) for _ in range(100)][::2]:
    libc.free(piece)
for training in range(3):
    settle_memory()
for round in range(8):
    if round == 1:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    large = hold(400)
    hold(2)
    libc.free(large)
    hold(2)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


def test_what_stays_does_not_make_large_buffers_move():
    """28 MiB stay; a large buffer takes 400 MiB more when it moves."""
    done = subprocess.run([sys.executable, "-c", GROWTH], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("this C library has no mallopt")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100


# Leaves free pieces of 1 KiB to 1 MiB, as compilation does. Blocks lie in such pieces, until memory
# is settled.
PIECES = """
import ctypes, random, sys
from hdvpd.basics import machine
libc = machine._libc()
if not machine.keep_freed_memory() or not hasattr(libc, "mallinfo2"):
    sys.exit(3)
def lie_below(end):
    blocks = [libc.malloc(1 << power) for power in range(11, 20)]
    for block in blocks:
        libc.free(block)
    return sum(block < end for block in blocks)
for training in range(2):
    sizes = [int(1024 * 1024 ** random.random()) for _ in range(4000)]
    blocks = [(libc.malloc(size), size) for size in sizes]
    for start, size in blocks:
        ctypes.memset(start, 1, size)
    for start, _ in blocks[::2]:
        libc.free(start)
    end = libc.sbrk(0) - libc.mallinfo2().keepcost
    print(lie_below(end))
    machine.settle_memory()
    print(lie_below(end))
    assert all(ctypes.string_at(start, size) == bytes([1]) * size for start, size in blocks[1::2])
"""


def test_free_pieces_are_closed_and_what_is_used_stays_as_it_is():
    done = subprocess.run([sys.executable, "-c", PIECES], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip("this C library has no mallinfo2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["9", "0"] * 2
