"""How many cores one call of host code takes: all of them, or its device's share.

CPU devices of one process work side by side and share its cores. A call that took all of them would
wait for the others' threads at the end of each of its loops (`benchmarks/window_devices.py`).
"""

from typing import Any

from numba import config, set_num_threads

from hdvpd.kernels import onednn

_settings: Any = config
_share: int | None = None
"""Cores of a call; None as long as none was asked for: all of them."""


def share_cores(devices: int) -> None:
    """Give every call of host code from now on an equal share of the cores.

    Results do not depend on it, but for how oneDNN rounds sums.

    Args:
      devices: of this process that work at once.
    """
    global _share
    if devices > 1 or _share is not None:
        _share = max(_settings.NUMBA_NUM_THREADS // devices, 1)


def take_share() -> None:
    """Keep what the calling thread calls next to its share of the cores.

    numba and OpenMP hold the number for every thread, and another share may have been asked for
    since its last call.
    """
    if _share is not None:
        set_num_threads(_share)
        onednn.take_threads(_share)
