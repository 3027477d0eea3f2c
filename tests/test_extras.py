"""A missing extra skips tests, unless the run was told that it is installed."""

import os
import subprocess
import sys
from pathlib import Path

import extras
import pytest

TESTS = Path(__file__).parent

IN_A_TEST = """
import extras

extras.EXTRAS["no_such_module"] = "open3d"

def test_needs_it():
    extras.needed("no_such_module")

def test_does_not():
    pass
"""

FOR_THE_FILE = """
import extras

extras.EXTRAS["no_such_module"] = "open3d"
extras.needed("no_such_module")
"""

AS_A_MARK = """
import extras
import pytest

@pytest.mark.skipif(True, reason=extras.reason("open3d", "no libusb"))
def test_needs_it():
    pass
"""


def run(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text("[pytest]\n")
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "--disable-plugin-autoload", "-p", "extras"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [*command, "-rs", *options],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("source", [IN_A_TEST, FOR_THE_FILE, AS_A_MARK])
def test_a_missing_extra_is_skipped_unless_it_should_be_there(tmp_path, source):
    skipped = run(tmp_path, source, "--extras", "keops,sim")
    assert skipped.returncode in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
    assert "needs the extra 'open3d'" in skipped.stdout
    failed = run(tmp_path, source, "--extras", "keops,open3d")
    assert failed.returncode in (pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.INTERRUPTED)
    assert "which --extras says is installed" in failed.stdout


def test_every_skip_for_want_of_a_package_names_its_extra():
    """Only `extras.needed` asks for packages, so no skip escapes `--extras`."""
    others = [
        file for file in TESTS.glob("*.py") if file.name not in ("extras.py", "test_extras.py")
    ]
    assert [file.name for file in others if "importorskip" in file.read_text()] == []


def test_extras_are_those_of_the_package():
    project = (TESTS.parent / "pyproject.toml").read_text()
    for extra in extras.EXTRAS.values():
        assert f"\n{extra} = [" in project, extra
