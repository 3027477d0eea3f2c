"""Compiled programs that are kept from one process to the next.

JAX's persistent compilation cache, in the user's cache folder and of bounded size. The key of an
entry is the program, with all versions and flags. Host kernels are called by their names and are
not part of a program (`kernels/ffi.py`), so a changed kernel is never served as it was. Machines
that share a home do not share entries: machine code for one may not run on the other.

JAX's own settings come first: JAX_ENABLE_COMPILATION_CACHE=false turns this off, and
JAX_COMPILATION_CACHE_DIR chooses another folder, which is used as it is.
"""

import contextlib
import hashlib
import os
import platform
import sys
import warnings
from pathlib import Path

import jax

MAX_BYTES = 256 * 2**20
"""Least recently used entries go first; those of the demo, train and eval, take 5 MB."""

# Shorter compilations are not worth the reading.
_MIN_COMPILE_S = 0.2


def cache_folder() -> Path:
    """Return the folder of what can always be made again.

    Raises:
      RuntimeError: the user has no home.
    """
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "hdvpd"
    given = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if Path(given).is_absolute() else Path.home() / ".cache") / "hdvpd"


def keep_programs() -> Path | None:
    """Keep compiled programs on disk, and use those that are there.

    Nothing about the cache stops a run: an entry that cannot be read or written is compiled.

    Returns:
      The folder, or None where the user has decided otherwise or it cannot be written.
    """
    if jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    try:
        folder = cache_folder() / "programs" / _machine()
        folder.mkdir(parents=True, exist_ok=True)
        _remove_torn(folder)
    except (OSError, RuntimeError):
        return None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        return None
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _MIN_COMPILE_S)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # A full disk or a damaged entry costs time, and is nobody's mistake.
    warnings.filterwarnings("ignore", r"Error (reading|writing) persistent compilation cache")
    return folder


def kept_beside(name: str) -> Path | None:
    """Return a folder for other things to keep, as long as programs are kept in the user's cache.

    Args:
      name: of the things; what is below it is of this machine alone.

    Returns:
      A folder that may not exist yet; None before `keep_programs`, and wherever that keeps none.
    """
    used = jax.config.jax_compilation_cache_dir  # pyright: ignore[reportAttributeAccessIssue]
    if not used or not jax.config.jax_enable_compilation_cache:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    own = cache_folder() / "programs"
    return own.parent / name / Path(used).name if Path(used).parent == own else None


def _machine() -> str:
    """Name the machine by what decides which code runs on it."""
    flags = ""
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        flags = next((x for x in lines if x.startswith(("flags", "Features"))), "")
    description = f"{platform.machine()} {flags}".encode()
    return hashlib.sha256(description).hexdigest()[:16]


def _remove_torn(folder: Path) -> None:
    """Remove entries that a killed process or a full disk left without their time of use.

    JAX writes it last; without it, an entry may be half of one, and would stop the eviction.
    """
    for entry in folder.glob("*-cache"):
        if not entry.with_name(entry.name.removesuffix("-cache") + "-atime").is_file():
            entry.unlink(missing_ok=True)
