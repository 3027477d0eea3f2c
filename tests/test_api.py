"""The public names of the package: loaded on use, one list, one page."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hdvpd

ROOT = Path(__file__).parent.parent


def test_importing_the_package_loads_nothing_else():
    code = "import sys; before = set(sys.modules); import hdvpd; print(set(sys.modules) - before)"
    run = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name.partition(".")[0] for name in ast.literal_eval(run.stdout)}
    assert "hdvpd" in loaded
    assert loaded <= {"hdvpd"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("name", hdvpd.__all__)
def test_every_name_is_there_and_under_the_name_that_it_is_made_under(name):
    value = getattr(hdvpd, name)
    if name != "__version__":
        module = f"hdvpd.{hdvpd._HOMES[name]}.{name}"
        assert value.__name__ == (module if name in hdvpd._MODULES else name)
        assert value.__doc__
    assert name in dir(hdvpd)


def test_another_name_is_no_attribute():
    with pytest.raises(AttributeError, match="no attribute 'Modell'"):
        hdvpd.Modell  # noqa: B018


def test_type_checkers_and_readers_find_the_same_names():
    stub = ast.parse((ROOT / "hdvpd" / "__init__.pyi").read_text()).body
    imports = [node for node in stub if isinstance(node, ast.ImportFrom)]
    homes = {alias.asname: node.module for node in imports for alias in node.names}
    assert homes == {name: f"hdvpd.{home}" for name, home in hdvpd._HOMES.items()}
    rows = re.findall(r"^\| (`.+?) \|", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)", row)} == homes.keys()
