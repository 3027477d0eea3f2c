"""Parts of other packages: a layer and a mask that are defined here work from a configuration."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx

from hdvpd.attention.learned.base import AbstractLearnedMask, raw
from hdvpd.basics.errors import UserError
from hdvpd.commands.flags import read_flags
from hdvpd.config.experiments import load_config, read_toml, to_toml
from hdvpd.config.parts import DYNAMICS, GRAPH_MASKS, LOCAL_LAYERS
from hdvpd.config.settings import Positive
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.dynamics.local_layer import AbstractLocalLayer, AbstractLocalSettings
from hdvpd.training.step import create_train_state, make_train_step
from studies.attention.masks.low_rank import LowRankMask

TINY = """
[data]
height = 12
width = 16

[model]
num_particles = 48
feature_dim = 6
unet_channels = [8]
latent_dim = 16

[model.dynamics]
num_layers = 1
attention = {num_heads = 2, mask = "test_parts:Constant"}
local = {kind = "test_parts:Nearby", reach_m = 0.2}

[render]
num_samples = 8
num_proposals = 4
mlp_width = 16

[train]
batch_size = 1
horizon = 1
num_rays = 8
num_steps = 100
learning_rates = [1e-2]
boundaries = []
clip_norm = 1.0
"""


class Averaging(AbstractLocalLayer[jax.Array]):
    """One dense layer on the average of a token's neighbourhood."""

    def __init__(self, width: int, *, rngs: nnx.Rngs):
        self.out = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, tokens, plan):
        return self.out(plan @ tokens)


@dataclass(frozen=True)
class Nearby(AbstractLocalSettings[jax.Array]):
    """Every token reads the average of all that are near."""

    reach_m: Positive = 0.1
    """How near [m]."""

    def make(self, model, *, rngs):
        return Averaging(model.latent_dim, rngs=rngs)

    def plan(self, model, positions, mask, key):
        del model, key
        squared = ((positions[:, None] - positions[None]) ** 2).sum(-1)
        near = (squared < self.reach_m**2) & mask[:, None] & mask[None]
        return near / jnp.maximum(near.sum(1, keepdims=True), 1)


@dataclass(frozen=True)
class Constant(AbstractLearnedMask[jax.Array]):
    """The same learned number everywhere."""

    def initial_raw(self, key):
        del key
        return raw(np.ones(1))

    def plan(self, graph, key):
        del key
        return jnp.ones((graph.num_rows, 1))

    def mask(self, parameters, plan):
        return LowRankMask(parameters[0] * plan, plan)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "toy.toml"
    path.write_text(TINY)
    return path


def test_a_foreign_layer_and_mask_train_from_a_configuration(file):
    config = read_toml(file)
    assert isinstance(config.model.dynamics, InterlacerSettings)
    assert config.model.dynamics.local == Nearby(reach_m=0.2)
    graphdef, state = create_train_state(config, scenes.SCENE)
    before = jax.device_get(state.params["dynamics"])
    step = make_train_step(config, graphdef)
    batch = scenes.make_batch(1, 3, config.data.height, config.data.width)
    for _ in range(2):
        state, metrics = step(state, batch, jax.random.key(0))
        assert np.isfinite(metrics["loss"])
    now = jax.device_get(state.params["dynamics"])

    def change(*path):
        was, is_ = before["blocks"][0], now["blocks"][0]
        for name in path:
            was, is_ = was[name], is_[name]
        return np.abs(is_ - was).max()

    # The read-out starts at zero, so that the first step changes nothing below it.
    assert change("local", "out", "kernel") > 1e-4
    assert now["blocks"][0]["global_attention"]["raw_mask"].shape == (2, 1)


def test_a_foreign_part_is_written_read_and_changed_like_any_other(file):
    config = read_toml(file)
    text = to_toml(config)
    assert 'kind = "test_parts:Nearby"' in text
    (file.parent / "again.toml").write_text(text)
    assert read_toml(file.parent / "again.toml") == config
    words = ["--model.dynamics.local", "test_parts:Nearby", "--model.dynamics.local.reach-m", "0.3"]
    changed = load_config("debug", read_flags(words))
    assert isinstance(changed.model.dynamics, InterlacerSettings)
    assert changed.model.dynamics.local == Nearby(reach_m=0.3)
    file.write_text(TINY.replace("0.2", "-1.0"))
    with pytest.raises(UserError, match=r"dynamics\.local\.reach_m = -1\.0 .*positive"):
        read_toml(file)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("test_parts:Averaging", "Averaging is no local layer: derive its settings from"),
        ("test_parts:Constant", "Constant is no local layer"),
        ("test_parts:Missing", "no attribute 'Missing'"),
        ("no_such_package:Layer", "No module named 'no_such_package'"),
    ],
)
def test_what_is_no_layer_is_refused(file, kind, message):
    file.write_text(TINY.replace("test_parts:Nearby", kind))
    with pytest.raises(UserError) as caught:
        read_toml(file)
    assert str(caught.value).startswith(f'{file}: model.dynamics.local.kind = "{kind}": ')
    assert message in str(caught.value)


@pytest.mark.parametrize("parts", [DYNAMICS, LOCAL_LAYERS, GRAPH_MASKS])
def test_known_kinds_are_found_under_their_names(parts):
    for name in parts.classes:
        assert parts.kind_of(parts.make(name)) == name
