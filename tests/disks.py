"""Small and read-only file systems, for tests of disks that refuse. Only root can make one."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Mount = Callable[[str], Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Return a function that mounts a file system in memory: options -> its folder."""
    mounted: list[Path] = []

    def make(options: str) -> Path:
        path = tmp_path / f"disk-{len(mounted)}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("cannot mount a file system here: only root can")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture
def small_disk(mount: Mount) -> Path:
    """A file system of 3 MiB."""
    return mount("size=3m")


@pytest.fixture
def read_only(mount: Mount) -> Path:
    """A file system that takes nothing; root may write into any folder of another."""
    return mount("ro,size=1m")
