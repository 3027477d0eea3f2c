"""How many cores one call of host code takes: all of them, or its device's share.

CPU devices of one process work side by side and share its cores. A call that took all of them would
wait for the others' threads at the end of each of its loops (`benchmarks/window_devices.py`).
"""

import threading

import numba

from hdvpd.kernels import onednn

_sharing = 1
_thread = threading.local()


def share_cores(devices: int) -> None:
    """Give every call of host code from now on an equal share of the cores.

    Results do not depend on it, but for how oneDNN rounds sums.

    Args:
      devices: of this process that work at once.
    """
    global _sharing
    _sharing = devices


def take_share() -> None:
    """Keep what the calling thread calls next to its share of the cores.

    numba and OpenMP hold the number of threads for every thread that calls them.
    """
    if getattr(_thread, "sharing", 1) == _sharing:
        return
    share = max(numba.config.NUMBA_NUM_THREADS // _sharing, 1)
    numba.set_num_threads(share)
    onednn.take_threads(share)
    _thread.sharing = _sharing
