"""The examples of docs/importing.md and docs/formats/ work."""

import dataclasses
import json
import re
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import extras
import import_sources as sources
import lerobot_sources
import numpy as np
import pytest

from hdvpd.__main__ import HDVPD, main
from hdvpd.commands.data import Check, Import, Inspect
from hdvpd.commands.train import Train
from hdvpd.config.experiments import load_config
from hdvpd.data.importers import FORMATS
from hdvpd.data.importers.sidecar import read_sidecar
from hdvpd.data.store import Dataset

DOCS = Path(__file__).parent.parent / "docs"
PAGE = (DOCS / "importing.md").read_text()
PAGES = {name: (DOCS / "formats" / f"{name}.md").read_text() for name in FORMATS}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)


def commands(page: str) -> list[list[str]]:
    """Return the words of every documented command, without `hdvpd`."""
    lines = [shlex.split(line) for block in blocks(page, "sh") for line in block.splitlines()]
    assert all(words[0] == "hdvpd" for words in lines)
    return [words[1:] for words in lines]


def test_the_documented_calibration_is_read_as_described(tmp_path):
    (block,) = blocks(PAGE, "json")
    file = tmp_path / "hdvpd_calibration.json"
    file.write_text(block)
    sidecar = read_sidecar(file)
    assert list(sidecar.cameras) == ["front", "wrist"]
    assert sidecar.cameras["wrist"].link == "hand"
    for camera in sidecar.cameras.values():
        rotation = camera.camera_to_world[:3, :3]
        np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)
        assert np.linalg.det(rotation) > 0
    assert sidecar.joints[2].drives == {"finger_a": 0.04, "finger_b": 0.04}
    for key in json.loads(block)["cameras"]["front"]:
        assert f"`{key}`" in PAGE or f'"{key}"' in PAGE


def test_the_calibration_of_the_lerobot_page_is_read(tmp_path):
    (block,) = blocks(PAGES["lerobot"], "json5")
    file = tmp_path / "hdvpd_calibration.json"
    file.write_text(block)
    sidecar = read_sidecar(file)
    assert sidecar.cameras["front"].depth == "observation.images.front_depth"
    assert [joint.name for joint in sidecar.joints] == ["shoulder", "elbow", "grip"]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_has_a_page_with_import_check_and_training(name):
    assert f"(formats/{name}.md)" in PAGE
    parsed = [HDVPD.parse(words) for words in commands(PAGES[name])]
    imported, inspected, checked, trained = parsed
    assert isinstance(imported, Import)
    assert isinstance(inspected, Inspect)
    assert isinstance(checked, Check)
    assert isinstance(trained, Train)
    assert imported.format == trained.experiment == name
    assert imported.out == checked.path
    assert inspected.path == (str(imported.out),)
    assert load_config(name).data.path == str(imported.out)


def test_every_flag_of_the_command_is_documented():
    for field in dataclasses.fields(Import):
        if field.name not in ("format", "source"):
            assert f"`--{field.name.replace('_', '-')}" in PAGE or field.name == "out"


# --- the worked examples, run as they stand ------------------------------------------------------


@dataclass(frozen=True)
class Example:
    """What lies where the example of a page expects it.

    Attributes:
      write: makes the source in the current folder.
      cameras: names in the source.
      rate_hz: of the source.
    """

    write: Callable[[list[sources.Scene]], None]
    cameras: tuple[str, str]
    rate_hz: float


def _folder(scenes: list[sources.Scene]) -> None:
    sources.write_folder(Path("recordings"), scenes)
    Path("recordings/arm.urdf").rename("arm.urdf")


def _lerobot(scenes: list[sources.Scene]) -> None:
    extras.needed("pyarrow")
    lerobot_sources.write_lerobot(Path("my_dataset"), scenes)
    Path("arm.urdf").write_text(sources.URDF)


def _robotwin(scenes: list[sources.Scene]) -> None:
    sources.write_robotwin(Path("data"), scenes)
    Path("data/push_block").rename("data/beat_block_hammer")


def _maniskill(scenes: list[sources.Scene]) -> None:
    sources.write_maniskill(Path("replayed"), scenes)
    for file in Path("replayed").iterdir():
        file.rename(file.name)


def _robomimic(scenes: list[sources.Scene]) -> None:
    demos = {f"demo_{k}": scene for k, scene in enumerate(scenes)}
    sources.write_robomimic(Path("demo_depth.hdf5"), demos)


def _rlbench(scenes: list[sources.Scene]) -> None:
    sources.write_rlbench(Path("train"), scenes)


EXAMPLES = {
    "folder": Example(_folder, ("front", "side"), 10.0),
    "lerobot": Example(_lerobot, ("front", "side"), 10.0),
    "robotwin": Example(_robotwin, ("head_camera", "front_camera"), 250 / 15),
    "maniskill": Example(_maniskill, ("base_camera", "side_camera"), 20.0),
    "robomimic": Example(_robomimic, ("agentview", "frontview"), 20.0),
    "rlbench": Example(_rlbench, ("front", "left_shoulder"), 20.0),
}


@pytest.fixture
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Example:
    """Write the source of an example, two seconds long, and stand beside it."""
    extras.needed("h5py")
    extras.needed("mujoco")
    example = EXAMPLES[request.param]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sources, "SIZE", (96, 128))
    monkeypatch.setattr(sources, "RATE", example.rate_hz)
    frames = int(2.0 * example.rate_hz) + 1
    # One episode, which stays in this process: workers have their own tests.
    scene = sources.make_scene(
        0, frames, names=example.cameras, speed=2.0 / example.rate_hz, arm=True
    )
    example.write([scene])
    return example


def run(page: str, capsys: pytest.CaptureFixture[str], *, checked: bool = True) -> str:
    """Run the page's commands on data as they stand; return what they printed."""
    for words in commands(page):
        if words[0] == "data" and (checked or words[1] != "check"):
            # Two seconds of one episode may not tell the world from its mirror image: unproven, 1.
            assert main(words) in ((0, 1) if words[1] == "check" else (0,)), words
    return capsys.readouterr().out


@pytest.mark.parametrize(("place", "name"), [(n, n) for n in FORMATS], indirect=["place"])
def test_the_worked_example_of_a_page_runs_and_prints_what_the_page_shows(
    place, name, capsys, long
):
    """Every import is proven; what has been imported is alike and checked again once."""
    checked = long or name == "folder"
    printed = run(PAGES[name], capsys, checked=checked).splitlines()
    dataset = Dataset(Path(f"data/{name}"))
    assert set(dataset.cameras) == set(place.cameras)
    assert len(dataset.episodes) == 1
    assert dataset.read(0, "cameras/" + place.cameras[0] + "/rgb").shape == (5, 96, 128, 3)
    calibration = dataset.info.raw["source"]["calibration"]
    assert calibration["cameras"] == dict.fromkeys(place.cameras, "pass")
    assert not calibration["mistakes"]
    for file in ("contact_sheet.png", *["check/check.html", "check/check.json"] * checked):
        assert (dataset.path / file).is_file()
    (shown,) = blocks(PAGES[name], "text")
    for line in shown.splitlines():
        assert any(own.startswith(line.rstrip()) for own in printed), line


@pytest.mark.parametrize("place", ["robomimic"], indirect=True)
def test_the_commands_of_the_overview_run(place, capsys):
    run(PAGE, capsys)
    assert Dataset(Path("data/square")).cameras == place.cameras
