"""The wheel, installed into a fresh environment and used outside the repository."""

import os
import site
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HDVPD = ("-m", "hdvpd")

pytestmark = pytest.mark.slow
Run = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run Python of a fresh environment that borrows the dependencies of this one."""
    folder = tmp_path_factory.mktemp("outside")
    environment = folder / "env"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (packages,) = environment.glob("lib/python*/site-packages")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
         "--target", packages, wheel],
        check=True, capture_output=True,
    )  # fmt: skip
    borrowed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "borrowed.pth").write_text("\n".join(borrowed or site.getsitepackages()))
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # As quick to compile as here, but on one device.
    clean["XLA_FLAGS"] += " --xla_force_host_platform_device_count=1"

    def run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin" / "python"), *words]
        return subprocess.run(
            command, cwd=folder, env=clean, capture_output=True, text=True, check=False
        )

    return run


def test_contents_of_the_wheel(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    modules = {str(path.relative_to(ROOT)) for path in (ROOT / "hdvpd").rglob("*.py")}
    configs = {f"hdvpd/{path.relative_to(ROOT)}" for path in (ROOT / "configs").rglob("*.toml")}
    assert modules | configs | {"hdvpd/py.typed"} <= names
    outside = {name.split("/")[0] for name in names}
    assert len(outside) == 2  # hdvpd and its dist-info
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_command_works_outside_the_repository(installed: Run) -> None:
    done = installed([*HDVPD, "--help"])
    assert (done.returncode, done.stderr) == (0, "")
    assert "hdvpd train" in done.stdout


def test_the_code_comes_from_the_wheel(installed: Run) -> None:
    place = installed(["-c", "import hdvpd; print(hdvpd.__file__)"]).stdout
    assert "site-packages" in place
    assert str(ROOT) not in place


def test_training_outside_the_repository(installed: Run) -> None:
    done = installed([*HDVPD, "data", "synthetic", "--out", "data/debug"])
    assert done.returncode == 0, done.stderr
    # Quick to compile: the sizes do not matter for that, the number of different operations does.
    tiny = "--model.unet-channels 8 --model.dynamics.num-layers 1 --model.dynamics.local none"
    tiny += " --model.kernels xla --model.knn xla"
    once = f"--train.num-steps 1 --train.horizon 1 --train.validate-every 0 {tiny}"
    done = installed([*HDVPD, "train", "debug", *once.split()])
    assert done.returncode == 0, done.stderr
    # The folder exists: a user's mistake.
    assert installed([*HDVPD, "train", "debug"]).returncode == 2


GROUP = """
import numpy as np
from hdvpd.kernels.compiled import group_by
slots, offsets = np.zeros(2, np.int32), np.zeros(3, np.int32)
group_by(np.array([[1, 0]], np.int32), np.ones((1, 2), bool), slots, offsets)
print(slots, offsets, list(group_by.stats.cache_hits.values()))
"""


def test_kernels_are_compiled_and_kept_outside_the_repository(installed: Run) -> None:
    """One stands for all: the others take half a minute, and are in the same folder."""
    first, second = (installed(["-c", GROUP]) for _ in range(2))
    assert first.stdout == "[1 0] [0 1 2] []\n", first.stderr
    assert second.stdout == "[1 0] [0 1 2] [1]\n", second.stderr
