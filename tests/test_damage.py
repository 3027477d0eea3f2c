"""A changed byte in any file of a run: named, made up for, or without any effect."""

import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from hdvpd.basics import sealed
from hdvpd.basics.errors import UserError
from hdvpd.config.experiments import to_toml
from hdvpd.data.setup import describe_setup, read_setup
from hdvpd.data.store import Dataset
from hdvpd.evaluation.model_card import read_summary
from hdvpd.training.checkpoints import CheckpointStore, load_model
from hdvpd.training.metrics_log import MetricsLog
from hdvpd.training.packed import pack, read_packed
from hdvpd.training.run_folder import RunFolder

Result = TypeVar("Result")
HEADER = {"kind": "run", "seed": 0}


@pytest.fixture
def run(small_run: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_run, tmp_path / "run"))


def damaged(file: Path, count: int) -> Iterator[int]:
    """Flip a bit of about so many bytes of a file, one after another; at the end it is whole."""
    content = file.read_bytes()
    for number, place in enumerate(np.linspace(0, len(content) - 1, count).astype(int)):
        changed = bytearray(content)
        changed[place] ^= 1 << number % 8
        file.write_bytes(changed)
        yield int(place)
    file.write_bytes(content)


def tried(act: Callable[[], Result]) -> tuple[Result | None, str]:
    """Return a result or the message; anything but that message is an error of the test."""
    try:
        return act(), ""
    except UserError as error:
        return None, str(error)


def test_every_file_of_a_checkpoint_is_watched(run: Path) -> None:
    (checkpoint,) = (run / "checkpoints").iterdir()
    files = [f for f in checkpoint.rglob("*") if f.is_file()]
    assert {"config.toml", "scene.json", "progress.json", "digest.json"} < {f.name for f in files}
    for file in files:
        for place in damaged(file, 3):
            _, refusal = tried(lambda: CheckpointStore(run).sound_step(3))
            # The layout of the digests is not their content.
            assert str(checkpoint) in refusal or file.name == "digest.json", (file, place)


def test_a_runs_configuration_is_that_of_its_checkpoint_or_refused(run: Path) -> None:
    folder = RunFolder(run)
    saved, _, progress = folder.checkpoints().read_origin(3)
    identity = progress["dataset"]
    refused = 0
    for place in damaged(folder.config_file, 150):
        _, refusal = tried(
            lambda: folder.require_same(
                saved, folder.config(), saved_dataset=identity, dataset=identity
            )
        )
        assert not refusal or str(run) in refusal, place
        refused += bool(refusal)
    assert refused > 60  # others are comments, spaces, and what may change between starts
    assert to_toml(folder.config()) == to_toml(saved)


def test_a_damaged_setup_is_refused(run: Path, synthetic_dataset: Path) -> None:
    expected = describe_setup(Dataset(synthetic_dataset))
    for place in damaged(run / "setup.json", 40):
        setup, refusal = tried(lambda: read_setup(run))
        assert (setup is None) == ("setup.json" in refusal)
        assert setup is None or setup.max_step.tolist() == expected["max_step"], place


def test_a_damaged_line_of_the_log_costs_only_itself(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "metrics.jsonl"
    lines = [HEADER] + [{"kind": "train", "step": step, "loss": 0.5} for step in range(1, 6)]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    file.write_text(whole)
    with caplog.at_level(logging.WARNING, "hdvpd"):
        for place in damaged(file, len(whole)):
            before = file.read_bytes()
            MetricsLog(file, HEADER, step=5).close()
            kept = [json.loads(line) for line in file.read_text().splitlines()]
            assert len(kept) >= len(lines) - 2, (place, before)
            assert sum(line in kept for line in lines) >= len(lines) - 2
    assert f"{file} has 1 line that cannot be read" in caplog.text


def test_a_damaged_packed_model_is_refused(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.zip"
    pack(run, file)
    config, scene, origin, arrays = read_packed(file)
    refused = 0
    for place in damaged(file, 400):
        found, refusal = tried(lambda: read_packed(file))
        refused += bool(refusal)
        if found is None:
            assert str(file) in refusal
        else:
            assert found[:3] == (config, scene, origin), place
            assert found[3].keys() == arrays.keys()
            for name, values in arrays.items():
                np.testing.assert_array_equal(found[3][name], values)
    assert refused > 300


def test_a_damaged_evaluation_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "metrics.json"
    summary = {
        "checkpoint_step": 3,
        "dataset": "d",
        "average_over_steps": {"model": {"ssim": {"mean": 0.875}}},
    }
    file.write_text(sealed.dumps(summary, indent=2))
    refused = 0
    for place in damaged(file, 100):
        found, refusal = tried(lambda: read_summary(file, 3, "d"))
        refused += bool(refusal)
        same = found is not None and {name: found.get(name) for name in summary} == summary
        assert str(file) in refusal or same, place
    assert refused > 60


def test_a_card_states_numbers_of_the_runs_own_data(tmp_path: Path) -> None:
    file = tmp_path / "metrics.json"
    file.write_text(sealed.dumps({"checkpoint_step": 3, "dataset": "another"}))
    with pytest.raises(UserError, match="identity another, but the run was trained on d"):
        read_summary(file, 3, "d")


def test_what_is_not_read_again_may_be_damaged(run: Path) -> None:
    folder = RunFolder(run)
    for name in ("scene.json", "dataset.json", "git.txt", "env.txt"):
        (run / name).write_bytes(b"\xff\x00 not what it was")
    _, config, _, step = load_model(run)
    assert step == 3
    assert isinstance(folder.code(), str)
    folder.describe(config, load_model(run)[2], dataset_identity="0")
    assert json.loads((run / "dataset.json").read_text())["identity"] == "0"
