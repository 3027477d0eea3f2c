"""What recordings teach is kept from one start to the next, and never instead of what is right."""

import dataclasses
import os

import jax
import numpy as np
import pytest
import scenes

from hdvpd.config.experiments import apply_overrides
from hdvpd.data.store import Dataset
from hdvpd.training import teaching
from hdvpd.training.step import create_train_state

LEARNED = "ahead of the robot in"
TAUGHT = {"carry": True, "tracking": True}
"""What is quickly learned."""
KEPT = "taught   by an earlier start"


@pytest.fixture
def config(synthetic_dataset):
    return scenes.tiny_config(
        model=TAUGHT,
        data={"path": str(synthetic_dataset)},
    )


@pytest.fixture(scope="module")
def created(synthetic_dataset):
    """A new model's definition and state."""
    config = scenes.tiny_config(model=TAUGHT)
    graphdef, state = create_train_state(config, Dataset(synthetic_dataset).scene_spec(config.data))
    # The robot reaches its commands, as a new model expects: so this one expects less.
    params = jax.tree.map_with_path(
        lambda path, x: 0.5 * x if "tracking" in jax.tree_util.keystr(path) else x, state.params
    )
    return graphdef, dataclasses.replace(state, params=params)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where it is kept."""
    monkeypatch.setattr(teaching, "kept_beside", tmp_path.joinpath)
    return tmp_path / "taught"


@pytest.fixture
def teach(config, created, capsys):
    """Returns the parameters of a start with other settings, and what it says."""

    def start(**train):
        changed = apply_overrides(config, {"train": train})
        state = teaching.taught(changed, *created, Dataset(config.data.path))
        return state.params, capsys.readouterr().out

    return start


def test_a_second_start_takes_what_the_first_has_learned(
    synthetic_dataset, folder, monkeypatch, capsys
):
    """The same to the bit; what is kept is what was learned and nothing else."""
    config = scenes.tiny_config(
        model={"carry": True, "contact": True, "colors": True},
        train={"identity_steps": 3},
        data={"path": str(synthetic_dataset)},
    )
    dataset = Dataset(synthetic_dataset)
    created = create_train_state(config, dataset.scene_spec(config.data))
    first = teaching.taught(config, *created, dataset).params
    assert "points near it in" in capsys.readouterr().out
    (file,) = folder.iterdir()
    monkeypatch.setattr(teaching, "learn_identity", None)  # cannot be called
    second = teaching.taught(config, *created, dataset).params
    told = capsys.readouterr().out
    assert told.startswith(KEPT)
    assert str(file) in told
    jax.tree.map(np.testing.assert_array_equal, first, second)
    assert jax.tree.structure(first) == jax.tree.structure(second)
    before = jax.tree.leaves_with_path(created[1].params)
    pairs = zip(before, jax.tree.leaves(first), strict=True)
    changed = {jax.tree_util.keystr(p) for (p, x), y in pairs if not np.array_equal(x, y)}
    assert any("identity" in name for name in changed)
    with np.load(file) as kept:
        assert set(kept) == changed


@pytest.mark.parametrize("train", [{"seed": 1}, {"identity_steps": 4}])
def test_other_settings_are_learned_anew(teach, folder, train):
    teach()
    assert LEARNED in teach(**train)[1]
    assert teach(**train)[1].startswith(KEPT)
    assert len(list(folder.iterdir())) == 2


def test_settings_that_decide_nothing_may_change(teach, folder):
    teach()
    assert teach(num_steps=7)[1].startswith(KEPT)


def test_data_that_were_written_again_are_looked_at_again(teach, folder, config):
    teach()
    file = Dataset(config.data.path).path / "dataset.json"
    before = file.stat()
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    try:
        assert LEARNED in teach()[1]
    finally:
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_other_code_learns_anew(teach, folder, tmp_path, monkeypatch):
    teach()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "tracking.py").write_text("OTHER = 1\n")
    monkeypatch.setattr(teaching, "_PACKAGE", tmp_path / "code")
    assert LEARNED in teach()[1]


@pytest.mark.parametrize("damaged", [b"", b"PK\x03\x04 torn"])
def test_what_is_damaged_is_learned_again(teach, folder, damaged):
    first, _ = teach()
    (file,) = folder.iterdir()
    file.write_bytes(damaged)
    again, told = teach()
    assert LEARNED in told
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert teach()[1].startswith(KEPT)


def test_the_least_recently_used_goes_first(teach, folder, monkeypatch):
    monkeypatch.setattr(teaching, "KEPT", 2)
    teach(seed=1)
    teach(seed=2)
    for number, file in enumerate(sorted(folder.iterdir())):
        os.utime(file, ns=(number, number))
    assert teach(seed=1)[1].startswith(KEPT)
    teach(seed=3)
    assert teach(seed=1)[1].startswith(KEPT)
    assert LEARNED in teach(seed=2)[1]


@pytest.mark.usefixtures("folder")
def test_a_disk_that_refuses_costs_time_only(teach, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(teaching.files, "replace", refuse)
    assert LEARNED in teach()[1]
    assert LEARNED in teach()[1]


def test_without_a_cache_nothing_is_kept(teach, monkeypatch):
    monkeypatch.setattr(teaching, "kept_beside", lambda _: None)
    monkeypatch.setattr(teaching, "_write", None)  # cannot be called
    assert LEARNED in teach()[1]


def test_data_elsewhere_are_looked_at_every_time(config, created, folder, capsys):
    """Nothing says when they were written."""
    dataset = Dataset(config.data.path)
    remote = apply_overrides(config, {"data": {"path": "gs://bucket/data"}})
    for _ in range(2):
        teaching.taught(remote, *created, dataset)
        assert LEARNED in capsys.readouterr().out
    assert not folder.exists()


def test_a_model_that_has_nothing_to_learn_leaves_nothing_and_says_nothing(
    synthetic_dataset, folder, capsys
):
    config = scenes.tiny_config(data={"path": str(synthetic_dataset)})
    dataset = Dataset(synthetic_dataset)
    created = create_train_state(config, dataset.scene_spec(config.data))
    for _ in range(2):
        params = teaching.taught(config, *created, dataset).params
        jax.tree.map(np.testing.assert_array_equal, params, created[1].params)
    assert not capsys.readouterr().out
    assert not folder.exists()
