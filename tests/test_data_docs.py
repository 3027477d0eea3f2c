"""The examples of docs/data-format.md run."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hdvpd.data import schema
from hdvpd.data.inspect import inspect

PAGE = Path(__file__).parent.parent / "docs" / "data-format.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_writing_and_then_reading_as_documented(folder):
    reading, writing = blocks("python")
    names: dict[str, Any] = {}
    exec(writing, names)
    exec(reading, names)
    batch = names["batch"]
    assert batch.frames.rgb.shape == (2, 4, 1, 24, 32, 3)
    assert batch.frames.depth_m.max() == pytest.approx(0.8)
    assert batch.robot.positions.shape == (2, 4, 1, 3)
    inspect("data/mine")
    assert (folder / "data/mine/contact_sheet.png").is_file()


def test_the_documented_descriptions_are_valid():
    dataset, episode = (json.loads(block) for block in blocks("json"))
    info = schema.parse_dataset(dataset, PAGE)
    assert info.robot.skeleton.num_points == 5
    assert schema.parse_episode(episode, 0, PAGE).length == 21
