"""How many cores one call of host code takes: all of them, or its device's share.

CPU devices of one process work side by side and share its cores. A call that took all of them would
wait for the others' threads at the end of each of its loops (`benchmarks/window_devices.py`).
"""

import ctypes
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import config, get_num_threads, set_num_threads

from hdvpd.kernels import onednn

_settings: Any = config
_share = ctypes.c_int32(0)
"""Cores of a call; 0 as long as none was asked for: all of them."""


def share_cores(devices: int) -> None:
    """Give every call of host code from now on an equal share of the cores.

    Results do not depend on it, but for how oneDNN rounds sums.

    Args:
      devices: of this process that work at once.
    """
    if devices > 1 or _share.value:
        _share.value = max(_settings.NUMBA_NUM_THREADS // devices, 1)


def take_share() -> None:
    """Keep what the calling thread calls next to its share of the cores.

    numba and OpenMP hold the number for every thread, and another share may have been asked for
    since its last call.
    """
    if _share.value:
        set_num_threads(_share.value)
        onednn.take_threads(_share.value)


def give_share(builder: Any, module: Any) -> None:
    """Generate code that does what `take_share` does."""
    get_num_threads()  # numba has a symbol from its first use of threads on
    names, number = ["set_num_threads"], ir.IntType(32)
    if onednn.available():
        names.append("hdvpd_omp_set_num_threads")
        llvm.add_symbol(names[1], onednn.address("omp_set_num_threads"))
    place = ir.IntType(64)(ctypes.addressof(_share))
    share = builder.load(builder.inttoptr(place, number.as_pointer()))
    with builder.if_then(builder.icmp_signed(">", share, number(0))):
        for name in names:
            setter = ir.Function(module, ir.FunctionType(ir.VoidType(), [number]), name)
            builder.call(setter, [share])
