"""The code of docs/using.md and of docs/tutorial.md runs."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from extras import needed
from small_runs import TINY

import hdvpd
from hdvpd.__main__ import HDVPD, main
from hdvpd.commands.rollout import Rollout

needed("mujoco")
DOCS = Path(__file__).parent.parent / "docs"
# One predicted step: each more is compiled once more.
SHORT = {"num_steps": 2, "horizon": 1, "validate_every": 0, "checkpoint_every": 2}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def commands(block: str) -> list[list[str]]:
    """Return the words of every command of a block, without `hdvpd`."""
    lines = [shlex.split(line) for line in block.replace("\\\n", " ").splitlines()]
    return [words[1:] for words in lines if words[0] == "hdvpd"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_on_using_runs(folder, monkeypatch, small_world, synthetic_dataset):
    needed("gymnasium")
    (folder / "data").mkdir()
    (folder / "data" / "demo").symlink_to(synthetic_dataset)
    monkeypatch.setattr("hdvpd.world.loading.load", lambda run, stochastic=None: small_world)
    names = {}
    for block in blocks("using.md", "python"):
        exec(block, names)
    assert names["video"].shape == (4, 16, 20, 3)
    assert names["plans"].plans == 2
    assert len(names["doubled"].positions) > len(names["state"].positions)
    assert (folder / "scene.npz").is_file()
    np.testing.assert_array_equal(names["again"].positions, names["both"].positions)
    assert names["image"].shape == (16, 20, 3)
    for block in blocks("using.md", "sh"):
        for words in commands(block):
            assert isinstance(HDVPD.parse(words), Rollout)


def flags(tables: dict, prefix: str = "") -> list[str]:
    """Write tables of settings as flags."""
    words = []
    for key, value in tables.items():
        if isinstance(value, dict):
            words += flags(value, f"{prefix}{key}.")
        else:
            values = value if isinstance(value, list) else [value]
            words += [f"--{prefix}{key}".replace("_", "-"), *map(str, values)]
    return words


def test_the_tutorial_runs_from_a_recording_to_a_plan(folder, monkeypatch):
    """At a smaller size than the page's: fewer particles, layers and steps.

    The page's own model is used again by the command after it, for what it has compiled.
    """
    needed("h5py")  # the extra of imports
    small = {**TINY, "train": SHORT}
    page = re.findall(r"```(python|sh)\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.DOTALL)
    names = {}
    for language, block in page:
        if language == "python":
            exec(block, names)
            continue
        for words in commands(block):
            extra = flags(small) if words[0] == "train" else []
            if words[0] == "rollout":
                world = names["world"]
                monkeypatch.setattr("hdvpd.world.command.load", lambda run, step, w=world: w)
            assert main([*words, *extra]) == 0, words
    assert (folder / "rollouts" / "reach" / "index.html").is_file()
    assert (folder / "rollouts" / "reach" / "reach" / "video.mp4").is_file()
    assert names["future"].positions.shape[0] == len(names["reach"])
    assert names["plan"].joint_targets.shape == (2, 3)
    assert names["plan"].best_costs[-1] <= names["plan"].mean_costs[0]
    assert (folder / "rollouts" / "plan" / "plan" / "video.mp4").is_file()
    assert hdvpd.load(folder / "runs" / "arm").robot.joints == ("shoulder", "elbow", "grip")
