"""The command of the studies, and their place outside the package."""

import subprocess
import sys
from pathlib import Path

import pytest

from studies.__main__ import STUDIES, main

ROOT = Path(__file__).parent.parent
Captured = pytest.CaptureFixture[str]


def test_the_list_is_shown_without_jax() -> None:
    code = (
        "import sys, studies.__main__ as m; status = m.main([]);"
        "print(status, [n for n in ('jax', 'numpy', 'networkx') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    *listed, last = done.stdout.splitlines()
    assert last == "0 []"
    for name in STUDIES:
        assert any(f"• {name} " in line for line in listed)
        assert (ROOT / "studies" / f"{name.replace('-', '_')}.py").is_file()


@pytest.mark.parametrize("name", STUDIES)
def test_help_of_a_study(name: str, capsys: Captured) -> None:
    assert main([name, "--help"]) == 0
    assert "--out DIR" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "named"),
    [("grff --out x", "grff"), ("grf", "--out"), ("grf --out x --sed 1", "--seed")],
)
def test_a_mistake_is_named(words: str, named: str, capsys: Captured) -> None:
    assert main(words.split()) == 2
    assert named in capsys.readouterr().err


def test_a_missing_library_is_one_message(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "studies.expressivity", raising=False)
    monkeypatch.setitem(sys.modules, "networkx", None)
    assert main(["expressivity", "--out", str(tmp_path / "out")]) == 2
    message = capsys.readouterr().err
    assert "networkx" in message
    assert ".[studies]" in message
