import dataclasses
import subprocess
import sys
from typing import Any

import pytest

from hdvpd.attention.learned.diffusion import LearnedDiffusion
from hdvpd.attention.learned.grf import LearnedGrf
from hdvpd.basics.errors import UserError
from hdvpd.commands.flags import documentation
from hdvpd.config import (
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    RenderConfig,
    SceneSpec,
    TrainConfig,
)
from hdvpd.config.parts import DYNAMICS, GRAPH_MASKS, LOCAL_LAYERS
from hdvpd.config.settings import entries, free_keys
from hdvpd.config.training import AugmentConfig
from hdvpd.dynamics.global_attention import GlobalAttentionSettings
from hdvpd.dynamics.graph_attention import GraphAttentionSettings
from hdvpd.dynamics.graph_network import GraphNetworkSettings
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.dynamics.neighbor_attender import NeighborAttenderSettings

within = InterlacerSettings
SECTIONS = (DataConfig, ModelConfig, RenderConfig, TrainConfig, AugmentConfig, EvalConfig)


def test_defaults_are_the_papers() -> None:
    config = Config()
    assert (config.data.height, config.data.width) == (240, 320)
    assert (config.model.num_particles, config.model.feature_dim) == (32768, 16)
    dynamics = config.model.dynamics
    assert isinstance(dynamics, InterlacerSettings)
    assert isinstance(dynamics.local, GraphAttentionSettings)
    assert isinstance(dynamics.local.mask, LearnedGrf)
    assert (dynamics.num_layers, config.model.latent_dim) == (4, 128)
    assert (dynamics.attention.num_heads, dynamics.mlp_ratio) == (4, 2)
    assert dynamics.attention.mask is None
    assert (dynamics.local.num_neighbors, dynamics.local.mask.num_hops) == (3, 3)
    assert (dynamics.local.mask.walks, dynamics.local.mask.num_walkers) == ("exact", 27)
    assert dynamics.local.mask.halting == 0.0
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
    parts = [
        kind for family in (DYNAMICS, LOCAL_LAYERS, GRAPH_MASKS) for kind in family.known().values()
    ]
    for schema in (*SECTIONS, GlobalAttentionSettings, *parts):
        texts = documentation(schema)
        for field in dataclasses.fields(schema):
            assert texts.get(field.name), f"{schema.__name__}.{field.name}"


def test_what_may_change_stands_at_the_field() -> None:
    assert list(free_keys(Config, "evaluation")) == [
        *("data.path", "data.cameras", "data.num_workers", "data.workers", "data.prefetch"),
        "eval",
    ]
    free = {entry.key for entry in entries(Config()) if "resume" in entry.free}
    assert {"data.path", "train.num_steps", "train.log_every", "eval.num_steps"} <= free
    assert not {"data.height", "train.seed", "model.dynamics.kind", "model.knn"} & free
    # The cosine schedule is shaped by the number of steps.
    cosine = Config(train=TrainConfig(schedule="cosine"))
    assert free - {entry.key for entry in entries(cosine) if "resume" in entry.free} == {
        "train.num_steps"
    }


@pytest.mark.parametrize(
    ("section", "values", "key"),
    [
        (DataConfig, {"height": 0}, "height"),
        (DataConfig, {"num_workers": 0}, "num_workers"),
        (DataConfig, {"workspace_min": (0.0, 1.0)}, "workspace_min"),
        (DataConfig, {"workspace_min": (0.0, 1.0, 2.0)}, "workspace_max"),
        (
            DataConfig,
            {"workspace_min": (0.0, 0.0, 0.0), "workspace_max": (1.0, 0.0, 1.0)},
            "workspace_max",
        ),
        (ModelConfig, {"num_particles": 0}, "num_particles"),
        (ModelConfig, {"near_weight": 2.0}, "near_weight"),
        (ModelConfig, {"unet_channels": ()}, "unet_channels"),
        (ModelConfig, {"unet_channels": (12,)}, "unet_channels"),
        (ModelConfig, {"max_displacement": 0.0}, "max_displacement"),
        (
            ModelConfig,
            {"dynamics": within(attention=GlobalAttentionSettings(num_heads=3))},
            "dynamics.attention.num_heads",
        ),
        (
            ModelConfig,
            {"dynamics": within(local=GraphAttentionSettings(num_heads=3))},
            "dynamics.local.num_heads",
        ),
        (
            ModelConfig,
            {"dynamics": within(local=GraphAttentionSettings(num_neighbors=8)), "num_particles": 8},
            "dynamics.local.num_neighbors",
        ),
        (
            ModelConfig,
            {
                "num_particles": 8,
                "dynamics": within(
                    local=None,
                    attention=GlobalAttentionSettings(mask=LearnedGrf(), num_neighbors=8),
                ),
            },
            "dynamics.attention.num_neighbors",
        ),
        (GlobalAttentionSettings, {"num_random_features": -1}, "num_random_features"),
        (NeighborAttenderSettings, {"anchor_fraction": 0.0}, "anchor_fraction"),
        (NeighborAttenderSettings, {"anchor_neighbors": 0}, "anchor_neighbors"),
        (GraphNetworkSettings, {"abstract_fraction": 1.5}, "abstract_fraction"),
        (GraphNetworkSettings, {"message_rounds": 0}, "message_rounds"),
        (GraphAttentionSettings, {"num_heads": 0}, "num_heads"),
        (
            GraphAttentionSettings,
            {"num_neighbors": 8, "mask": LearnedGrf(num_hops=5)},
            "mask.num_hops",
        ),
        (LearnedDiffusion, {"max_time": 0.0}, "max_time"),
        (LearnedDiffusion, {"max_time": float("inf")}, "max_time"),
        (LearnedGrf, {"num_walkers": 0}, "num_walkers"),
        (LearnedGrf, {"walks": "iid", "halting": 1.0}, "halting"),
        (LearnedGrf, {"walks": "iid", "halting": -0.1}, "halting"),
        (LearnedGrf, {"walks": "iid", "halting": float("nan")}, "halting"),
        (LearnedGrf, {"halting": 0.5}, "halting"),
        (LearnedGrf, {"walks": "antithetic", "num_walkers": 4}, "halting"),
        (
            LearnedGrf,
            {"walks": "repelling-antithetic", "num_walkers": 27, "halting": 0.5},
            "num_walkers",
        ),
        (RenderConfig, {"near": 0.0}, "near"),
        (RenderConfig, {"near": 2.0}, "near"),
        (RenderConfig, {"radii": (0.0,)}, "bandwidths"),
        (RenderConfig, {"radii": (0.0,), "bandwidths": (0.0,)}, "bandwidths"),
        (RenderConfig, {"num_proposals": -1}, "num_proposals"),
        (RenderConfig, {"cutoff": 0.0}, "cutoff"),
        (TrainConfig, {"horizon": 0}, "horizon"),
        (TrainConfig, {"boundaries": ()}, "learning_rates"),
        (TrainConfig, {"schedule": "cosine", "learning_rates": ()}, "learning_rates"),
        (TrainConfig, {"learning_rates": (1e-3, -1e-4)}, "learning_rates"),
        (
            TrainConfig,
            {"learning_rates": (1e-3,) * 3, "boundaries": (9, 5)},
            "boundaries",
        ),
        (TrainConfig, {"num_steps": 10, "warmup_steps": 10}, "warmup_steps"),
        (TrainConfig, {"schedule": "piecewise", "warmup_steps": 10}, "warmup_steps"),
        (TrainConfig, {"b1": 1.0}, "b1"),
        (TrainConfig, {"b2": 1.0}, "b2"),
        (TrainConfig, {"eps": 0.0}, "eps"),
        (TrainConfig, {"weight_decay": -1.0}, "weight_decay"),
        (RenderConfig, {"density_scale": -100.0}, "density_scale"),
        (TrainConfig, {"clip_norm": 0.0}, "clip_norm"),
        (TrainConfig, {"validate_every": -1}, "validate_every"),
        (TrainConfig, {"num_rays": 100, "patch_size": 8}, "patch_size"),
        (TrainConfig, {"structure_weight": 0.1}, "structure_weight"),
        (AugmentConfig, {"colors": -0.1}, "colors"),
        (RenderConfig, {"supersample": 0}, "supersample"),
        (
            Config,
            {"data": DataConfig(height=4), "train": TrainConfig(patch_size=8)},
            "train.patch_size",
        ),
        (
            Config,
            {
                "model": ModelConfig(colors=True, shadow=True),
                "train": TrainConfig(augment=AugmentConfig(mirror="y")),
            },
            "train.augment.mirror",
        ),
        (
            Config,
            {
                "model": ModelConfig(contact=True, up="-z"),
                "train": TrainConfig(augment=AugmentConfig(mirror="z")),
            },
            "train.augment.mirror",
        ),
        (EvalConfig, {"windows_per_episode": 0}, "windows_per_episode"),
        (EvalConfig, {"num_episodes": -1}, "num_episodes"),
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
    mask = LearnedGrf(walks="repelling", num_hops=10, num_walkers=4)
    assert GraphAttentionSettings(num_neighbors=8, mask=mask).mask.halting == 0.0
    assert ModelConfig(num_particles=2, dynamics=within(local=None)).num_particles == 2
