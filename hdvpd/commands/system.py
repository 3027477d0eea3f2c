"""Libraries of the system that are missing.

Uses only the standard library, so that the Makefile can run it before anything is installed:
`python3 -m hdvpd.commands.system simulation open3d` prints the missing packages in one line.
"""

import ctypes
import shutil
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

PROGRAMS: Mapping[str, Mapping[tuple[str, ...], str]] = {
    "browser": {("chromium", "chromium-browser", "google-chrome"): "chromium"},
}
"""Programs that a part of hdvpd's tests starts, by any of their names, with their packages."""

EGL_DRIVERS = ("libegl-mesa0", "libgl1-mesa-dri")
"""Packages of the software renderer, for machines whose GPU driver brings no EGL device."""

_PLATFORM_DEVICE = 0x313F  # EGL_PLATFORM_DEVICE_EXT
_MAX_DEVICES = 16


def missing_packages(purposes: Iterable[str]) -> list[str]:
    """List the Debian packages that are needed and not there.

    Returns:
      Package names, sorted; empty where nothing is missing, and on systems other than Linux, where
      MuJoCo does not render through EGL.
    """
    if not sys.platform.startswith("linux"):
        return []
    packages = set()
    for purpose in purposes:
        for library, package in LIBRARIES.get(purpose, {}).items():
            if not loads(library):
                packages.add(package)
        for names, package in PROGRAMS.get(purpose, {}).items():
            if find_program(names) is None:
                packages.add(package)
        if purpose == "simulation" and count_egl_devices() == 0:
            packages.update(EGL_DRIVERS)
    return sorted(packages)


def find_program(names: Iterable[str]) -> str | None:
    """Return where the first program is that goes by one of the names."""
    return next(filter(None, map(shutil.which, names)), None)


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
