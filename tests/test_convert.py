"""Experiment files and runs of earlier versions, rewritten in present keys."""

import errno
import json
import subprocess
import sys
from typing import Any, NamedTuple

import numpy as np
import pytest

from hdvpd.__main__ import main
from hdvpd.attention.learned.diffusion import LearnedDiffusion
from hdvpd.attention.learned.grf import LearnedGrf
from hdvpd.attention.learned.rwgnk import LearnedRwgnk
from hdvpd.basics import files as basic_files
from hdvpd.config import Config
from hdvpd.config.earlier import MOVED, converted
from hdvpd.config.experiments import read_toml
from hdvpd.config.reading import key_types, read
from hdvpd.dynamics.global_attention import GlobalAttentionSettings
from hdvpd.dynamics.graph_attention import GraphAttentionSettings
from hdvpd.dynamics.graph_network import GraphNetworkSettings
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.dynamics.neighbor_attender import NeighborAttenderSettings
from hdvpd.training.checkpoint_folder import find_damage
from hdvpd.training.checkpoints import CheckpointStore

# All that an earlier version wrote of [model] into every run.
EARLIER = {
    "num_particles": 2048,
    "feature_dim": 16,
    "unet_channels": [8, 16, 32],
    "dynamics": "interlacer",
    "local": "grf",
    "global_mask": "none",
    "num_layers": 2,
    "latent_dim": 64,
    "num_heads": 8,
    "local_heads": 2,
    "mlp_ratio": 3,
    "num_neighbors": 4,
    "num_hops": 2,
    "walks": "iid",
    "num_walkers": 6,
    "halting": 0.25,
    "max_diffusion_time": 3.0,
    "feature_map": "elu",
    "num_random_features": 5,
    "anchor_fraction": 0.5,
    "anchor_neighbors": 7,
    "aggregate": "sum",
    "abstract_fraction": 0.25,
    "abstract_links": 2,
    "abstract_neighbors": 5,
    "message_rounds": 4,
    "position_frequencies": 1,
    "carry": True,
    "max_displacement": 0.125,
    "position_embedding": False,
    "knn": "xla",
    "kernels": "xla",
}
WALKS: dict[str, Any] = {"num_hops": 2, "walks": "iid", "num_walkers": 6, "halting": 0.25}
FEATURES: dict[str, Any] = {"num_heads": 8, "feature_map": "elu", "num_random_features": 5}


def interlacer(local, **attention):
    return InterlacerSettings(
        num_layers=2,
        mlp_ratio=3,
        attention=GlobalAttentionSettings(**FEATURES, **attention),
        local=local,
    )


def masked(mask):
    return GraphAttentionSettings(num_heads=2, num_neighbors=4, mask=mask)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, interlacer(masked(LearnedGrf(**WALKS)))),
        ({"local": "rwgnk"}, interlacer(masked(LearnedRwgnk(**WALKS)))),
        (
            {"local": "diffusion", "global_mask": "grf"},
            interlacer(
                masked(LearnedDiffusion(max_time=3.0)), mask=LearnedGrf(**WALKS), num_neighbors=4
            ),
        ),
        ({"local": "none"}, interlacer(None)),
        (
            {"local": "mp"},
            interlacer(
                NeighborAttenderSettings(anchor_fraction=0.5, anchor_neighbors=7, aggregate="sum")
            ),
        ),
        (
            {"dynamics": "graph_network"},
            GraphNetworkSettings(
                abstract_fraction=0.25, abstract_links=2, abstract_neighbors=5, message_rounds=4
            ),
        ),
    ],
)
def test_every_model_of_before_is_the_same_now(changes, expected):
    model = read(converted({"model": EARLIER | changes}), source="earlier").model
    assert model.dynamics == expected
    assert (model.num_particles, model.latent_dim, model.knn) == (2048, 64, "xla")
    assert (model.carry, model.max_displacement, model.position_embedding) == (True, 0.125, False)


def test_every_key_that_moved_leads_to_one_that_is_there():
    assert {f"model.{key}" for key in EARLIER} == MOVED.keys() | {
        f"model.{key}" for key in EARLIER if f"model.{key}" in key_types()
    } | {"model.dynamics"}
    for new in MOVED.values():
        assert new in key_types() or f"{new}.kind" in key_types()


def test_defaults_stay_defaults():
    assert read(converted({}), source="earlier") == Config()


class State(NamedTuple):
    params: dict
    step: np.ndarray


def toml(values):
    return "[model]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items())


def test_a_run_is_rewritten_and_its_checkpoints_stay_sound(tmp_path, capsys):
    run = tmp_path / "run"
    store = CheckpointStore(run, keep=2)
    scene = {"num_robot_points": 5, "workspace_min": [0.0] * 3, "workspace_max": [1.0] * 3}
    files = {"config.toml": toml(EARLIER), "scene.json": json.dumps(scene)}
    for step in (1, 2):
        store.save(
            step, State({"w": np.ones(3)}, np.array(step)), progress={"step": step}, files=files
        )
    (run / "config.toml").write_text(toml(EARLIER))
    damaged = run / "checkpoints" / "2" / "progress.json"
    damaged.write_text("{}")
    assert main(["train", "--resume", str(run)]) == 2
    assert "`hdvpd model convert` rewrites" in capsys.readouterr().err
    assert main(["model", "convert", str(run)]) == 0
    assert f"rewrote {run / 'config.toml'}" in capsys.readouterr().out
    config = read_toml(run / "config.toml")
    assert config.model.dynamics == interlacer(masked(LearnedGrf(**WALKS)))
    assert (run / "config-earlier.toml").read_text() == toml(EARLIER)
    assert find_damage(run / "checkpoints" / "1") is None
    assert store.read_origin(1)[0] == config
    # What is damaged stays visibly so.
    assert "progress.json has changed" in str(find_damage(run / "checkpoints" / "2"))
    assert main(["model", "convert", str(run)]) == 0
    assert "needs no rewriting" in capsys.readouterr().out


def earlier_run(folder):
    """Write a run of earlier keys with one checkpoint."""
    run = folder / "run"
    scene = {"num_robot_points": 5, "workspace_min": [0.0] * 3, "workspace_max": [1.0] * 3}
    files = {"config.toml": toml(EARLIER), "scene.json": json.dumps(scene)}
    state = State({"w": np.ones(3)}, np.array(1))
    CheckpointStore(run, keep=1).save(1, state, progress={"step": 1}, files=files)
    (run / "config.toml").write_text(toml(EARLIER))
    return run


def test_a_full_disk_leaves_a_checkpoint_that_can_be_converted(tmp_path, monkeypatch, capsys):
    run = earlier_run(tmp_path)
    replace = basic_files.replace

    def full(file, content):
        if file.name == "digest.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(file, content)

    with monkeypatch.context() as patch:
        patch.setattr(basic_files, "replace", full)
        assert main(["model", "convert", str(run)]) == 2
        assert "then convert again" in capsys.readouterr().err
    assert find_damage(run / "checkpoints" / "1") is None
    assert main(["model", "convert", str(run)]) == 0
    assert find_damage(run / "checkpoints" / "1") is None
    assert read_toml(run / "checkpoints" / "1" / "config.toml") == read_toml(run / "config.toml")


@pytest.mark.parametrize("writes", [1, 2, 3])
def test_a_conversion_that_was_killed_is_finished(writes, tmp_path, monkeypatch):
    run = earlier_run(tmp_path)
    checkpoint = run / "checkpoints" / "1"
    before = set(checkpoint.rglob("*"))
    code = f"""
import os
from hdvpd.basics import files
from hdvpd.training.convert import convert
from pathlib import Path
replace, left = files.replace, {writes}
def counted(file, content):
    global left
    if left == 0:
        os._exit(9)
    left -= 1
    replace(file, content)
files.replace = counted
convert(Path({str(run)!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 9
    assert main(["model", "convert", str(run)]) == 0
    assert find_damage(checkpoint) is None
    assert set(checkpoint.rglob("*")) == before
    assert read_toml(checkpoint / "config.toml") == read_toml(run / "config.toml")


def test_an_experiment_file_is_rewritten(tmp_path, capsys):
    file = tmp_path / "mine.toml"
    file.write_text("[model]\nlocal = 'mp'\nanchor_neighbors = 4\n[train]\nseed = 3\n")
    assert main(["model", "convert", str(file)]) == 0
    config = read_toml(file)
    assert config.train.seed == 3
    assert config.model.dynamics == InterlacerSettings(
        local=NeighborAttenderSettings(anchor_neighbors=4)
    )
    assert "anchor_neighbors = 4" in (tmp_path / "mine-earlier.toml").read_text()
    before = (file.read_bytes(), sorted(tmp_path.iterdir()))
    assert main(["model", "convert", str(file)]) == 0
    assert (file.read_bytes(), sorted(tmp_path.iterdir())) == before
    (tmp_path / "bad.toml").write_text("[model]\nnum_layers = 0\n")
    assert main(["model", "convert", str(tmp_path / "bad.toml")]) == 2
    assert "num_layers = 0" in capsys.readouterr().err
    assert (tmp_path / "bad.toml").read_text() == "[model]\nnum_layers = 0\n"
    assert main(["model", "convert", str(tmp_path)]) == 2
    assert "no run folder" in capsys.readouterr().err
