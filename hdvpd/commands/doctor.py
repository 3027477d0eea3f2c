"""`hdvpd doctor`: the machine, the versions and what is missing, each with its remedy.

Every check looks at one thing and returns findings; none raises, because the report is needed most
where something is broken.
"""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import hdvpd
from hdvpd.basics.errors import how_to_install
from hdvpd.basics.machine import main_memory, usable_cores
from hdvpd.commands.base import AbstractCommand
from hdvpd.commands.system import LIBRARIES, missing_packages

Status = Literal["ok", "note", "problem"]

CORE = {
    "jax": "jax",
    "jaxlib": "jaxlib",
    "flax": "flax",
    "optax": "optax",
    "orbax-checkpoint": "orbax.checkpoint",
    "tensorstore": "tensorstore",
    "numpy": "numpy",
    "scipy": "scipy",
    "numba": "numba",
    "av": "av",
}
"""Packages whose versions decide numbers, stored bytes or speed, and what is imported of them."""

EXCLUDED = {
    ("jax", "0.10.2"): "compiles wrong CPU code (jax-ml/jax#39103)",
    ("jax", "0.11.0"): "crashes on CPU (jax-ml/jax#39257)",
    ("jax", "0.11.1"): "is slow in CPU loops (jax-ml/jax#40101)",
}
"""Releases that hdvpd must not run with, and why."""

OPTIONAL = {
    "mujoco": ("mujoco", "sim", "simulated data"),
    "h5py": ("h5py", "import", "importers"),
    "pyarrow": ("pyarrow", "import", "importers"),
    "open3d-cpu": ("open3d", "open3d", "neighbour search `open3d`"),
    "pykeops": ("pykeops", "keops", "neighbour search `keops`"),
    "viser": ("viser", "view", "`hdvpd view`, `hdvpd export --format html`"),
    "rerun-sdk": ("rerun", "rerun", "`hdvpd export --format rerun`"),
    "gymnasium": ("gymnasium", "gym", "`hdvpd.make_env`"),
    "tensorboardX": ("tensorboardX", "tensorboard", "train.tensorboard"),
    "networkx": ("networkx", "studies", "`python -m studies` and the tests"),
    "scikit-learn": ("sklearn", "vision", "images of `python -m studies vision`"),
    "torch-geometric": ("torch_geometric", "graphs", "`python -m studies motifs` beside GKAT"),
}
"""Packages that are not core: what is imported of them, the extra that brings them, its purpose."""


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
      topic: what was looked at.
      status: `problem` keeps something from working or from being right; `note` is worth knowing.
      text: what was found.
      remedy: what to do about it; empty when there is nothing to do.
    """

    topic: str
    status: Status
    text: str
    remedy: str = ""


@dataclass(frozen=True)
class Doctor(AbstractCommand):
    """Report the machine, the versions and what is missing, each with its remedy.

    Example: hdvpd doctor
    """

    def run(self) -> None:
        """Report."""
        print_report()


def print_report() -> None:
    """Print all findings and a closing line that counts the problems."""
    problems = 0
    for finding in diagnose():
        mark = {"ok": "ok", "note": "note", "problem": "PROBLEM"}[finding.status]
        _print_folded(f"{mark:8}{finding.topic:18}", finding.text)
        if finding.remedy:
            # A command stays in one line, to be copied.
            print(f"{'':8}-> {finding.remedy}", flush=True)
        problems += finding.status == "problem"
    print(f"{problems} problem{'s' * (problems != 1)} found.")


def _print_folded(start: str, text: str) -> None:
    indent = " " * len(start)
    print(textwrap.fill(text, 80, initial_indent=start, subsequent_indent=indent), flush=True)


def diagnose() -> Iterator[Finding]:
    """Run every check.

    Yields:
      Findings, in the order of the report.
    """
    for check in (check_python, check_versions, check_devices, check_memory, check_disk, check_egl,
                  check_onednn, check_compiler, check_optional):  # fmt: skip
        yield from _guarded(check)


def _guarded(check: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return check()
    except Exception as error:
        topic = check.__name__.removeprefix("check_")
        reason = str(error).partition("\n")[0]
        return [Finding(topic, "problem", f"{type(error).__name__}: {reason}")]


def check_python() -> list[Finding]:
    """Report hdvpd, Python and the system."""
    version = sys.version_info[:2]
    tested = version in ((3, 11), (3, 12))
    return [
        Finding("hdvpd", "ok", f"{hdvpd.__version__} in {Path(hdvpd.__file__).parent}"),
        Finding(
            "python",
            "ok" if tested else "note",
            f"{platform.python_version()} on {platform.platform()}",
            "" if tested else "hdvpd is tested with Python 3.11 and 3.12",
        ),
    ]


def check_versions() -> list[Finding]:
    """Report the core packages, and releases that hdvpd must not run with."""
    findings = []
    faults = import_faults(CORE)
    for name in CORE:
        version = installed_version(name)
        if version is None:
            findings.append(Finding(name, "problem", "not installed", how_to_install()))
        elif reason := excluded_because(name, version):
            text = f"{version}, which {reason}"
            findings.append(Finding(name, "problem", text, how_to_install()))
        elif fault := faults[name]:
            text = f"{version}, which cannot be imported: {fault}"
            findings.append(Finding(name, "problem", text, how_to_install()))
        else:
            findings.append(Finding(name, "ok", version))
    return findings


def import_faults(modules: Mapping[str, str]) -> dict[str, str]:
    """Import modules of installed packages outside this process, which they may end.

    Returns:
      What went wrong by package; empty where nothing did or the package is not installed.
    """
    there = {name: module for name, module in modules.items() if installed_version(name)}
    # Together they load much once; each alone only to find out which fails.
    if not _import_fault(", ".join(there.values())):
        there = {}
    return dict.fromkeys(modules, "") | {name: _import_fault(there[name]) for name in there}


def _import_fault(modules: str) -> str:
    command = [sys.executable, "-c", f"import {modules}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode == 0:
        return ""
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"Python ended with status {done.returncode}"


def excluded_because(name: str, version: str) -> str:
    """Say why a release must not be used; empty when it may be."""
    if (name, version) in EXCLUDED:
        return EXCLUDED[name, version]
    if name == "jax" and _numbers(version) >= (0, 12):
        return "hdvpd has not been tested with"
    jax = installed_version("jax")
    if name == "flax" and jax and _numbers(jax) >= (0, 11) and _numbers(version) < (0, 12, 10):
        return f"fails to import with jax {jax}"
    return ""


def installed_version(name: str) -> str | None:
    """Return the version of an installed package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def check_devices() -> list[Finding]:
    """Report what jax computes on."""
    import jax

    findings = []
    for device in jax.devices():
        limit = (device.memory_stats() or {}).get("bytes_limit")
        memory = f", {limit / 2**30:.1f} GiB of memory" if limit else ""
        findings.append(
            Finding("device", "ok", f"{device.device_kind} ({device.platform}){memory}")
        )
    if jax.default_backend() == "cpu" and shutil.which("nvidia-smi"):
        remedy = f"{how_to_install('cuda')}, and leave JAX_PLATFORMS unset"
        findings.append(Finding("device", "note", "there is a GPU that jax does not use", remedy))
    return findings


def check_memory() -> list[Finding]:
    """Report cores and main memory."""
    size = main_memory() / 2**30
    return [Finding("machine", "ok", f"{usable_cores()} CPU cores, {size:.1f} GiB of main memory")]


def check_disk() -> list[Finding]:
    """Report the space left where runs and data sets go by default."""
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    remedy = "free some space before training: a full disk ends a run" if free < 2 else ""
    return [Finding("disk", "note" if remedy else "ok", f"{free:.1f} GiB free here", remedy)]


def check_egl() -> list[Finding]:
    """Report whether MuJoCo can render off screen."""
    # In a child, because a broken graphics driver may end the process.
    command = [sys.executable, "-m", "hdvpd.commands.system", "simulation"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode != 0:
        text = f"looking for a device ended with status {done.returncode}"
        return [Finding("EGL", "problem", text, "repair the graphics driver, or MUJOCO_GL=osmesa")]
    if packages := done.stdout.split():
        remedy = f"apt-get install {' '.join(packages)}"
        return [Finding("EGL", "note", "missing: `hdvpd data simulate` cannot render", remedy)]
    return [Finding("EGL", "ok", "renders off screen (MUJOCO_GL=egl)")]


def check_onednn() -> list[Finding]:
    """Report whether there is a library for convolutions on CPUs."""
    # Imports numba.
    from hdvpd.kernels import onednn

    version = installed_version(onednn.PACKAGE)
    if onednn.available():
        return [Finding("oneDNN", "ok", f"{version}: convolutions on CPUs")]
    text = "not installed" if version is None else f"{version}, which cannot be loaded"
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        return [Finding("oneDNN", "ok", "for Linux on x86-64 only: XLA does its work")]
    text += ": convolutions on CPUs are XLA's, which take longer"
    remedy = f"pip install {onednn.PACKAGE}" if version is None else "apt-get install libgomp1"
    return [Finding("oneDNN", "note", text, remedy)]


def check_compiler() -> list[Finding]:
    """Report the compiler that pykeops needs at run time."""
    found = shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++")
    if found or installed_version("pykeops") is None:
        return []
    remedy = "apt-get install g++"
    return [Finding("compiler", "note", "missing: pykeops cannot compile its formulas", remedy)]


def check_optional() -> list[Finding]:
    """Report the packages of the extras."""
    faults = import_faults({name: module for name, (module, _, _) in OPTIONAL.items()})
    return [
        _check_optional(name, extra, purpose, faults[name])
        for name, (_, extra, purpose) in OPTIONAL.items()
    ]


def _check_optional(name: str, extra: str, purpose: str, fault: str) -> Finding:
    version = installed_version(name)
    if version is None:
        return Finding(name, "note", f"not installed ({purpose})", how_to_install(extra))
    if fault:
        packages = missing_packages([extra]) if extra in LIBRARIES else []
        remedy = f"apt-get install {' '.join(packages)}" if packages else how_to_install(extra)
        text = f"{version}, which cannot be imported ({purpose}): {fault}"
        return Finding(name, "problem", text, remedy)
    if name == "mujoco" and version != "4.0.0":
        text = f"{version}: simulated pixels differ from those of 4.0.0"
        return Finding(name, "note", text, how_to_install(extra))
    return Finding(name, "ok", version)


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split("+")[0].split(".")
    return tuple(int(part) for part in parts if part.isdecimal())
