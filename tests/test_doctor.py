import ctypes
import ctypes.util
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from hdvpd.commands import doctor, system
from hdvpd.commands.doctor import CORE, EXCLUDED, OPTIONAL, Finding, diagnose
from hdvpd.commands.system import EGL_DRIVERS, LIBRARIES, missing_packages

Patch = pytest.MonkeyPatch
Captured = pytest.CaptureFixture[str]


def test_report_covers_everything_and_succeeds() -> None:
    command = [sys.executable, "-m", "hdvpd", "doctor"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr
    for topic in ("python", "device", "machine", "disk", "EGL", *CORE, *OPTIONAL):
        assert any(line.split()[1] == topic for line in done.stdout.splitlines()[:-1] if line)
    assert done.stdout.splitlines()[-1].endswith("found.")


def test_every_extra_of_use_is_reported() -> None:
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    extras = set(project["project"]["optional-dependencies"]) - {"all", "cuda", "dev"}
    assert {extra for _, extra, _ in OPTIONAL.values()} == extras


def test_every_complaint_has_a_remedy(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "installed_version", lambda _: None)
    findings = list(diagnose())
    assert {f.topic for f in findings if f.status == "problem"} >= set(CORE)
    assert {f.topic for f in findings if f.status == "note"} >= set(OPTIONAL)
    assert all(f.remedy for f in findings if f.status != "ok")


def versions(**installed: str) -> Callable[[str], str | None]:
    return lambda name: installed.get(name.replace("-", "_"), "1.0")


@pytest.mark.parametrize(("name", "version"), EXCLUDED)
def test_excluded_release_is_a_problem(name: str, version: str, monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "CORE", {name: name})
    monkeypatch.setattr(doctor, "installed_version", versions(**{name: version}))
    (finding,) = doctor.check_versions()
    assert finding.status == "problem"
    assert version in finding.text
    assert "jax-ml/jax#" in finding.text
    assert "constraints.txt" in finding.remedy


@pytest.mark.parametrize(
    ("jax", "flax", "fits"),
    [
        ("0.10.1", "0.12.8", True),
        ("0.11.2", "0.12.12", True),
        ("0.11.2", "0.12.8", False),
        ("0.12.0.1", "0.12.12", False),
    ],
)
def test_pairs_of_jax_and_flax(jax: str, flax: str, fits: bool, monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "installed_version", versions(jax=jax, flax=flax))
    reasons = [doctor.excluded_because("jax", jax), doctor.excluded_because("flax", flax)]
    assert any(reasons) != fits


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("raise OSError('libusb-1.0.so.0: cannot open shared object file')", "libusb-1.0.so.0"),
        ("import os; os._exit(7)", "status 7"),
    ],
)
def test_what_cannot_be_imported_is_not_ok(
    code: str, fault: str, tmp_path: Path, monkeypatch: Patch
) -> None:
    for module in ("open3d", "scipy"):
        (tmp_path / f"{module}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(doctor, "OPTIONAL", {"open3d-cpu": OPTIONAL["open3d-cpu"]})
    monkeypatch.setattr(doctor, "CORE", {"scipy": "scipy"})
    monkeypatch.setattr(system, "loads", lambda library: library != "libusb-1.0.so.0")
    (optional,), (core,) = doctor.check_optional(), doctor.check_versions()
    assert optional.status == core.status == "problem"
    assert fault in optional.text
    assert fault in core.text
    assert optional.remedy == "apt-get install libusb-1.0-0"
    monkeypatch.setattr(system, "loads", lambda _: True)
    (optional,) = doctor.check_optional()
    assert "constraints.txt -e '.[open3d]'" in optional.remedy


def test_lines_are_folded_but_commands_are_not(monkeypatch: Patch, capsys: Captured) -> None:
    found = Finding("luck", "problem", "no luck " * 20, "run " * 30)
    monkeypatch.setattr(doctor, "diagnose", lambda: [found])
    doctor.print_report()
    *text, remedy, end = capsys.readouterr().out.splitlines()
    assert len(text) > 1
    assert max(map(len, text)) <= 80
    assert remedy == f"        -> {found.remedy}"
    assert end == "1 problem found."


def test_another_mujoco_is_noted(monkeypatch: Patch) -> None:
    monkeypatch.setattr(doctor, "installed_version", versions(mujoco="3.8.1"))
    monkeypatch.setattr(doctor, "OPTIONAL", {"mujoco": OPTIONAL["mujoco"]})
    (mujoco,) = doctor.check_optional()
    assert (mujoco.status, mujoco.text[:6]) == ("note", "3.8.1:")


def test_a_failing_check_does_not_end_the_report() -> None:
    def check_luck() -> list[Finding]:
        raise RuntimeError("no luck\nat all")

    assert doctor._guarded(check_luck) == [Finding("luck", "problem", "RuntimeError: no luck")]


def test_unused_gpu_is_noted(monkeypatch: Patch) -> None:
    import jax

    if jax.default_backend() != "cpu":
        pytest.skip("jax uses the GPU")
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    notes = [f for f in doctor.check_devices() if f.status == "note"]
    assert len(notes) == 1
    assert "cuda" in notes[0].remedy


def test_crash_of_the_graphics_driver_is_reported(monkeypatch: Patch) -> None:
    def crash(command: list[str], **_: object) -> subprocess.CompletedProcess:
        return subprocess.CompletedProcess(command, -11, "", "")

    monkeypatch.setattr(subprocess, "run", crash)
    (finding,) = doctor.check_egl()
    assert finding.status == "problem"
    assert "-11" in finding.text


def test_missing_libraries_are_named_by_package(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(system, "loads", lambda library: library != "libusb-1.0.so.0")
    assert missing_packages(["open3d"]) == ["libusb-1.0-0"]
    monkeypatch.setattr(system, "loads", lambda _: False)
    monkeypatch.setattr(system, "count_egl_devices", lambda: 0)
    assert set(missing_packages(["simulation"])) == {"libegl1", "libgl1", *EGL_DRIVERS}
    monkeypatch.setattr(system, "loads", lambda _: True)
    assert set(missing_packages(["simulation"])) == set(EGL_DRIVERS)
    monkeypatch.setattr(system, "count_egl_devices", lambda: 1)
    assert missing_packages(list(LIBRARIES)) == []


def test_nothing_is_asked_for_on_other_systems(monkeypatch: Patch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(system, "loads", lambda _: False)
    assert missing_packages(list(LIBRARIES)) == []


def test_loading_a_library() -> None:
    assert not system.loads("libdoes-not-exist.so.7")
    assert system.loads(ctypes.util.find_library("c") or "libc.so.6")


def test_no_egl_library_means_no_device(monkeypatch: Patch) -> None:
    def refuse(name: str) -> ctypes.CDLL:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert system.count_egl_devices() == 0
