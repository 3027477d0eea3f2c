"""A trained model as one file: written, read back as a run, and what its card says."""

import dataclasses
import json
import zipfile
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from hdvpd.__main__ import main as command
from hdvpd.basics.errors import UserError
from hdvpd.data.store import Dataset
from hdvpd.evaluation.model_card import departures, training_hours
from hdvpd.training import packed, train
from hdvpd.training.checkpoints import CheckpointStore, load_model
from hdvpd.training.run_folder import RunFolder
from hdvpd.training.session import new_progress
from hdvpd.training.step import create_train_state


@pytest.fixture(scope="module")
def run(tmp_path_factory, debug_config, synthetic_dataset):
    """The folder of a run, never written to by a test."""
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    folder.mkdir()
    dataset = Dataset(synthetic_dataset)
    data = dataclasses.replace(debug_config.data, path=str(synthetic_dataset))
    config = dataclasses.replace(debug_config, data=data)
    scene = dataset.scene_spec(config.data)
    _, state = create_train_state(config, scene)
    texts = RunFolder(folder).describe(config, scene, dataset_identity=dataset.identity())
    progress = new_progress(dataset.identity())
    CheckpointStore(folder).save(7, state, progress=progress, files=texts)
    return folder


@pytest.fixture(scope="module")
def file(tmp_path_factory, run):
    path = tmp_path_factory.mktemp("packed") / "tiny.zip"
    assert packed.pack(run, path) == 7
    return path


def parameters(folder):
    model, config, scene, step = load_model(folder)
    return nnx.to_pure_dict(nnx.state(model)), config, scene, step


def test_a_packed_model_is_used_and_not_resumed(file, tmp_path):
    packed.unpack(file, tmp_path / "back")
    config, known = parameters(tmp_path / "back")[1], CheckpointStore(tmp_path / "back").steps()
    with pytest.raises(UserError, match=r"back was made from a packed model.*not resumed"):
        train.main(config, run_dir=tmp_path / "back", resume="auto")
    assert CheckpointStore(tmp_path / "back").steps() == known


def test_a_packed_run_comes_back_to_eleven_bits(run, file, tmp_path):
    packed.unpack(file, tmp_path / "back")
    old, config, scene, step = parameters(run)
    new, *described = parameters(tmp_path / "back")
    assert described == [config, scene, step]
    assert jax.tree.structure(old) == jax.tree.structure(new)
    for before, after in zip(jax.tree.leaves(old), jax.tree.leaves(new), strict=True):
        assert after.dtype == before.dtype
        # Half of the last of 11 bits; below 2^-14 halves have a fixed grid of 2^-24.
        np.testing.assert_allclose(after, before, rtol=2.0**-11, atol=2.0**-25)
    raw = sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(old))
    assert file.stat().st_size < 0.6 * raw
    with pytest.raises(UserError, match="exists"):
        packed.unpack(file, tmp_path / "back")


def test_equal_runs_give_equal_bytes_and_large_numbers_stay(run, file, tmp_path):
    packed.pack(run, tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == file.read_bytes()
    large = np.array([1e6, 1e-3], np.float32)
    np.testing.assert_array_equal(packed._halved(large), large)
    assert packed._halved(large[1:]).dtype == np.float16


def rewrite(file, target, change):
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if (content := change(name, old.read(name))) is not None:
                new.writestr(name, content)


def test_damage_and_other_versions_are_named(file, tmp_path):
    broken = tmp_path / "broken.zip"
    broken.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"broken\.zip is no packed model"):
        packed.unpack(broken, tmp_path / "one")
    with zipfile.ZipFile(file) as archive:
        name = next(n for n in archive.namelist() if n.startswith("params/"))
    for missing, message in ((name, "another version"), ("scene.json", "no packed model")):
        rewrite(file, tmp_path / "less.zip", lambda n, c, m=missing: None if n == m else c)
        with pytest.raises(UserError, match=message):
            packed.unpack(tmp_path / "less.zip", tmp_path / "two")
    assert not (tmp_path / "one").exists()
    assert not (tmp_path / "two").exists()


def test_without_a_shipped_model_one_message_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(packed, "files", lambda package: tmp_path)
    monkeypatch.chdir(tmp_path)
    for words in (["eval", "reference"], ["demo", "--pretrained"]):
        assert command(words) == 2
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert "comes without a trained model" in message
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "reference.zip").touch()
    assert packed.shipped_model() == tmp_path / "pretrained" / "reference.zip"


def test_the_reference_of_another_version_is_not_taken_for_this_ones(
    file, tmp_path, monkeypatch, capsys
):
    shipped = tmp_path / "pretrained" / "reference.zip"
    shipped.parent.mkdir()
    shipped.write_bytes(file.read_bytes())
    monkeypatch.setattr(packed, "files", lambda _: tmp_path)
    monkeypatch.chdir(tmp_path)
    reference, folder = Path("reference"), Path("runs/reference")
    assert packed.find_or_unpack(reference) == folder
    assert "unpacking" in capsys.readouterr().out
    assert packed.find_or_unpack(reference) == folder
    assert not capsys.readouterr().out
    shipped.write_bytes(file.read_bytes() + b" ")
    with pytest.raises(UserError, match=r"not the model that comes with this version") as refusal:
        packed.find_or_unpack(reference)
    assert str(folder.absolute()) in str(refusal.value)
    assert packed.find_or_unpack(folder) == folder
    # One's own run may be called so.
    (folder / "metrics.jsonl").touch()
    assert packed.find_or_unpack(reference) == folder


def averages(predictors):
    entry = {"mean": 0.75, "ci95": 0.01, "behind_model": 0.1, "behind_model_ci95": 0.02}
    metrics = ("ssim", "psnr", "moving_ssim", "moving_psnr")
    return {p: dict.fromkeys(metrics, entry) for p in predictors}


def test_the_card_states_what_made_the_model_and_what_it_scored(run, tmp_path, capsys, monkeypatch):
    out = tmp_path / "tiny.zip"
    assert command(["model", "pack", str(run), "--out", str(out)]) == 2
    assert "Evaluate the run first" in capsys.readouterr().err
    assert not out.exists()
    summary = {
        "checkpoint_step": 7,
        "dataset": CheckpointStore(run).read_origin(7)[2]["dataset"],
        "episodes": 3,
        "steps": 8,
        "predictors": ["model", "copy_last_frame"],
        "average_over_steps": averages(["model", "copy_last_frame"]),
        "windows": [{"episode": e} for e in (1, 2, 3)],
    }
    (run / "eval").mkdir()
    (run / "eval" / "metrics.json").write_text(json.dumps(summary))
    for _ in range(2):  # its own card may be replaced
        assert command(["model", "pack", str(run), "--out", str(out)]) == 0
    card = out.with_suffix(".md").read_text()
    parts = ["# tiny", "`write_synthetic_dataset`", "0.750 \u00b1 0.010", "## Limits", "Apache-2.0"]
    code = f"- code: {RunFolder(run).code()}\n"
    for part in (*parts, code, "3 held-out episodes", "`model.num_particles` | 512 | 32768"):
        assert part in card
    (run / "eval" / "metrics.json").write_text(json.dumps(summary | {"checkpoint_step": 6}))
    assert command(["model", "pack", str(run), "--out", str(out)]) == 2
    assert "is of checkpoint 6, but 7 is packed" in capsys.readouterr().err
    own = tmp_path / "README.md"
    own.write_text("# Mine\n\n## Numbers\n")
    assert command(["model", "pack", str(run), "--out", str(own.with_suffix(".zip"))]) == 2
    assert f"would replace {own}, which is no model card" in capsys.readouterr().err
    assert own.read_text() == "# Mine\n\n## Numbers\n"
    assert not own.with_suffix(".zip").exists()
    for name in (".", "tiny.md"):
        assert command(["model", "pack", str(run), "--out", name]) == 2
        assert "a packed model is a .zip file" in capsys.readouterr().err


def test_a_run_to_pack_is_found_by_its_name_and_a_wrong_one_named(
    run, tmp_path, capsys, monkeypatch
):
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mine").symlink_to(run)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("hdvpd.evaluation.model_card.write_card", lambda *_: "card")
    assert command(["model", "pack", "mine", "--out", "mine.zip"]) == 0
    assert (tmp_path / "mine.zip").is_file()
    capsys.readouterr()
    assert command(["model", "pack", "runs/mien", "--out", "other.zip"]) == 2
    message = capsys.readouterr().err
    assert "runs/mien is no run folder" in message
    assert "runs/ holds mine" in message


def test_hours_are_those_of_the_steps(tmp_path, debug_config):
    records = [
        {"kind": "start", "step": 0},
        {"kind": "train", "step": 50, "steps_per_s": 0.5},
        {"kind": "start", "step": 40},
        {"kind": "train", "step": 100, "steps_per_s": 2.0},
    ]
    text = "\n".join(map(json.dumps, records)) + '\n{"kind": "tra'
    (tmp_path / "timing.jsonl").write_text(text)
    assert training_hours(tmp_path) == pytest.approx((100 + 30) / 3600)
    assert training_hours(tmp_path / "none") == 0.0
    assert "`train.num_rays`" in departures(debug_config)
