import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hdvpd import config as schema
from hdvpd.config import (
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RenderConfig,
    SceneSpec,
    TrainConfig,
)
from hdvpd.errors import UserError

SECTIONS = (DataConfig, ModelConfig, RenderConfig, TrainConfig, EvalConfig)


def test_defaults_are_the_papers() -> None:
    config = Config()
    assert (config.data.height, config.data.width) == (240, 320)
    assert (config.model.num_particles, config.model.feature_dim) == (32768, 16)
    assert (config.model.dynamics, config.model.local) == ("interlacer", "grf")
    assert (config.model.num_layers, config.model.latent_dim) == (4, 128)
    assert (config.model.num_heads, config.model.mlp_ratio) == (4, 2)
    assert (config.model.num_neighbors, config.model.num_hops) == (3, 3)
    assert (config.model.walks, config.model.num_walkers) == ("exact", 27)
    assert config.model.halting == 0.0
    assert config.model.max_displacement == 0.25
    assert config.render.radii == (0.0, 0.01, 0.02, 0.05)
    assert config.render.bandwidths == (0.01, 0.01, 0.01, 0.05)
    assert (config.render.near, config.render.far) == (0.1, 2.0)
    assert config.render.num_neighbors == 16
    assert (config.train.batch_size, config.train.horizon, config.train.num_rays) == (16, 6, 128)
    assert config.train.num_steps == 100_000
    assert (config.train.learning_rates, config.train.boundaries) == ((3e-4, 1e-4), (1000,))
    assert (config.train.weight_decay, config.train.clip_norm) == (1e-3, 0.01)
    assert config.eval.num_steps == 8


def test_import_needs_no_jax() -> None:
    heavy = ["jax", "numpy", "flax", "tyro"]
    code = f"import hdvpd.config, sys; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_configurations_are_values() -> None:
    assert hash(Config()) == hash(Config())
    assert Config() == Config()
    assert Config(train=TrainConfig(seed=1)) != Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().train.seed = 1  # type: ignore[misc]


def test_validation_never_mutates() -> None:
    for section in SECTIONS:
        values = section()
        before = dataclasses.asdict(values)
        values.__post_init__()
        assert dataclasses.asdict(values) == before


def test_every_key_is_explained() -> None:
    lines = [line.strip() for line in Path(schema.__file__).read_text().splitlines()]
    for section in SECTIONS:
        for field in dataclasses.fields(section):
            place = next(i for i, line in enumerate(lines) if line.startswith(f"{field.name}: "))
            assert lines[place + 1].startswith('"""'), field.name


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        (DataConfig, {"height": 0}, "data.height"),
        (DataConfig, {"num_workers": 0}, "data.num_workers"),
        (DataConfig, {"workspace_min": (0.0, 1.0)}, "data.workspace_min"),
        (DataConfig, {"workspace_min": (0.0, 1.0, 2.0)}, "data.workspace_max"),
        (
            DataConfig,
            {"workspace_min": (0.0, 0.0, 0.0), "workspace_max": (1.0, 0.0, 1.0)},
            "data.workspace_max",
        ),
        (ModelConfig, {"num_particles": 0}, "model.num_particles"),
        (ModelConfig, {"latent_dim": 100, "num_heads": 3}, "model.num_heads"),
        (ModelConfig, {"unet_channels": ()}, "model.unet_channels"),
        (ModelConfig, {"unet_channels": (12,)}, "model.unet_channels"),
        (ModelConfig, {"max_displacement": 0.0}, "model.max_displacement"),
        (ModelConfig, {"anchor_fraction": 0.0}, "model.anchor_fraction"),
        (ModelConfig, {"anchor_neighbors": 0}, "model.anchor_neighbors"),
        (ModelConfig, {"abstract_fraction": 1.5}, "model.abstract_fraction"),
        (ModelConfig, {"message_rounds": 0}, "model.message_rounds"),
        (ModelConfig, {"num_random_features": -1}, "model.num_random_features"),
        (ModelConfig, {"num_neighbors": 8, "num_particles": 8}, "model.num_neighbors"),
        (
            ModelConfig,
            {"num_neighbors": 8, "num_particles": 8, "local": "none", "global_mask": "grf"},
            "model.num_neighbors",
        ),
        (ModelConfig, {"local_heads": 0}, "model.local_heads"),
        (ModelConfig, {"latent_dim": 100, "local_heads": 3}, "model.local_heads"),
        (ModelConfig, {"max_diffusion_time": 0.0}, "model.max_diffusion_time"),
        (ModelConfig, {"max_diffusion_time": float("inf")}, "model.max_diffusion_time"),
        (ModelConfig, {"num_walkers": 0}, "model.num_walkers"),
        (ModelConfig, {"walks": "iid", "halting": 1.0}, "model.halting"),
        (ModelConfig, {"walks": "iid", "halting": -0.1}, "model.halting"),
        (ModelConfig, {"walks": "iid", "halting": float("nan")}, "model.halting"),
        (ModelConfig, {"halting": 0.5}, "model.halting"),
        (ModelConfig, {"walks": "antithetic", "num_walkers": 4}, "model.halting"),
        (
            ModelConfig,
            {"walks": "repelling-antithetic", "num_walkers": 27, "halting": 0.5},
            "model.num_walkers",
        ),
        (ModelConfig, {"num_neighbors": 8, "num_hops": 5}, "model.num_hops"),
        (RenderConfig, {"near": 0.0}, "render.near"),
        (RenderConfig, {"near": 2.0}, "render.near"),
        (RenderConfig, {"radii": (0.0,)}, "render.bandwidths"),
        (RenderConfig, {"radii": (0.0,), "bandwidths": (0.0,)}, "render.bandwidths"),
        (RenderConfig, {"num_proposals": -1}, "render.num_proposals"),
        (RenderConfig, {"cutoff": 0.0}, "render.cutoff"),
        (TrainConfig, {"horizon": 0}, "train.horizon"),
        (TrainConfig, {"boundaries": ()}, "train.learning_rates"),
        (TrainConfig, {"schedule": "cosine", "learning_rates": ()}, "train.learning_rates"),
        (TrainConfig, {"learning_rates": (1e-3, -1e-4)}, "train.learning_rates"),
        (
            TrainConfig,
            {"learning_rates": (1e-3,) * 3, "boundaries": (9, 5)},
            "train.boundaries",
        ),
        (TrainConfig, {"num_steps": 10, "warmup_steps": 10}, "train.warmup_steps"),
        (TrainConfig, {"clip_norm": 0.0}, "train.clip_norm"),
        (TrainConfig, {"validate_every": -1}, "train.validate_every"),
        (EvalConfig, {"windows_per_episode": 0}, "eval.windows_per_episode"),
        (EvalConfig, {"num_episodes": -1}, "eval.num_episodes"),
    ],
)
def test_impossible_values_are_named(section: Any, values: dict[str, Any], key: str) -> None:
    with pytest.raises(UserError) as caught:
        section(**values)
    message = str(caught.value)
    assert message.startswith(f"{key} = ")
    assert "\n" not in message
    assert ": " in message  # value, then remedy


def test_scene_centre() -> None:
    scene = SceneSpec(84, (-1.0, 0.0, 2.0), (3.0, 1.0, 2.5))
    assert scene.center == (1.0, 0.5, 2.25)
    assert scene.to_dict()["num_robot_points"] == 84


def test_many_hops_and_neighbours_can_be_sampled() -> None:
    config = ModelConfig(walks="repelling", num_neighbors=8, num_hops=10, num_walkers=4)
    assert config.halting == 0.0
    assert ModelConfig(num_particles=2, local="none").num_particles == 2
