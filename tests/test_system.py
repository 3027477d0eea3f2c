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
