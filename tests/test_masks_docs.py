"""The examples of docs/masks.md run, one after the other, and its picture is there."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs" / "masks.md"


def test_the_examples_run():
    names = {"__name__": "example"}
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)
    assert names["out"].shape == (192, 8)  # type: ignore[attr-defined]


def test_linked_files_exist():
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text())
    assert len(links) > 10
    assert [link for link in links if not (PAGE.parent / link).exists()] == []
