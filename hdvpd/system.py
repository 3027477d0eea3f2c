"""The system outside Python: libraries that are missing, and how the C library hands out memory.

Uses only the standard library, so that the Makefile can run it before anything is installed:
`python3 -m hdvpd.system simulation open3d` prints the missing packages in one line.
"""

import ctypes
import os
import sys
from collections.abc import Iterable, Mapping

LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "simulation": {"libEGL.so.1": "libegl1", "libGL.so.1": "libgl1"},
    "open3d": {
        "libEGL.so.1": "libegl1",
        "libGL.so.1": "libgl1",
        "libX11.so.6": "libx11-6",
        "libgomp.so.1": "libgomp1",
        "libudev.so.1": "libudev1",
        "libusb-1.0.so.0": "libusb-1.0-0",
    },
}
"""Shared libraries that a part of hdvpd loads, with their Debian and Ubuntu packages."""

EGL_DRIVERS = ("libegl-mesa0", "libgl1-mesa-dri")
"""Packages of the software renderer, for machines whose GPU driver brings no EGL device."""

# <malloc.h> of glibc: parameter, value.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_ALLOCATOR = ((_TRIM_THRESHOLD, 2**31 - 1), (_TOP_PAD, 64 * 2**20), (_MMAP_MAX, 0))

_PLATFORM_DEVICE = 0x313F  # EGL_PLATFORM_DEVICE_EXT
_MAX_DEVICES = 16


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


def missing_packages(purposes: Iterable[str]) -> list[str]:
    """List the Debian packages that are needed and not there.

    Args:
      purposes: keys of `LIBRARIES`.

    Returns:
      Package names, sorted; empty where nothing is missing, and on systems other than Linux, where
      MuJoCo does not render through EGL.
    """
    if not sys.platform.startswith("linux"):
        return []
    packages = set()
    for purpose in purposes:
        for library, package in LIBRARIES[purpose].items():
            if not loads(library):
                packages.add(package)
        if purpose == "simulation" and count_egl_devices() == 0:
            packages.update(EGL_DRIVERS)
    return sorted(packages)


def loads(library: str) -> bool:
    """Tell whether the dynamic linker finds a library, whoever installed it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def count_egl_devices() -> int:
    """Count the devices, software renderers included, that EGL can draw with off screen."""
    try:
        egl = ctypes.CDLL("libEGL.so.1")
    except OSError:
        return 0
    pointer, pointers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)
    integer, integers = ctypes.c_int, ctypes.POINTER(ctypes.c_int)
    egl.eglGetProcAddress.restype = pointer
    egl.eglInitialize.argtypes = (pointer, integers, integers)
    query = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    display_of = egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT")
    if not query or not display_of:
        return 0
    devices, count = (pointer * _MAX_DEVICES)(), integer(0)
    ctypes.CFUNCTYPE(ctypes.c_uint, integer, pointers, integers)(query)(
        _MAX_DEVICES, devices, ctypes.byref(count)
    )
    open_display = ctypes.CFUNCTYPE(pointer, ctypes.c_uint, pointer, integers)(display_of)
    displays = [open_display(_PLATFORM_DEVICE, devices[i], None) for i in range(count.value)]
    return sum(bool(d and egl.eglInitialize(d, None, None)) for d in displays)


if __name__ == "__main__":
    print(" ".join(missing_packages(sys.argv[1:])))
