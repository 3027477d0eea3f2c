"""The examples of docs/masks.md run; what it and docs/equations.md name is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "masks.md"
EQUATIONS = ROOT / "docs" / "equations.md"


def test_the_examples_run():
    names = {"__name__": "example"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    assert names["out"].shape == (192, 8)  # type: ignore[attr-defined]


def defined(folder):
    """Return the names of all functions and classes in a folder's files."""
    return {
        name
        for path in (ROOT / folder).rglob("*.py")
        for name in re.findall(r"^ *(?:def|class) (\w+)", path.read_text(), re.MULTILINE)
    }


def test_every_equation_names_code_and_tests_that_exist():
    rows = [
        line.strip("| \n").split(" | ")
        for line in EQUATIONS.read_text().splitlines()
        if line.startswith("| ") and not line.startswith("| item")
    ]
    # Errata have two columns.
    code, tests = defined("hdvpd") | defined("studies"), defined("tests")
    rows = [row for row in rows if len(row) != 2]
    assert len(rows) > 30
    for row in rows:
        where, shown = row[-2:]
        missing = set(re.findall(r"`(\w+)", where)) - code
        missing |= set(re.findall(r"`(test_\w+)`", shown)) - tests
        assert not missing, row[0]
