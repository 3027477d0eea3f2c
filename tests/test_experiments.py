import dataclasses
import math
import re
import tomllib
from pathlib import Path

import jax
import pytest
from flax import nnx

from hdvpd.basics.errors import UserError
from hdvpd.config import Config, DataConfig, EvalConfig, RenderConfig, SceneSpec, TrainConfig
from hdvpd.config.experiments import (
    apply_overrides,
    config_files,
    find_experiment,
    flatten,
    load_config,
    read_toml,
    to_toml,
)
from hdvpd.config.members import with_member
from hdvpd.config.reading import key_types, nearest_key
from hdvpd.dynamics.interlacer import InterlacerSettings
from hdvpd.dynamics.neighbor_attender import NeighborAttenderSettings
from hdvpd.model import abstract_model

DOCS = Path(__file__).parent.parent / "docs"


def write(folder: Path, text: str) -> Path:
    path = folder / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def leaves(tables: dict, prefix: str = "") -> dict:
    """Return every value by its dotted key."""
    found = {}
    for key, value in tables.items():
        inner = isinstance(value, dict)
        found |= leaves(value, f"{prefix}{key}.") if inner else {f"{prefix}{key}": value}
    return found


@pytest.mark.parametrize("name", config_files())
def test_every_experiment_survives_writing_and_reading(name: str, tmp_path: Path) -> None:
    config = load_config(name)
    assert read_toml(write(tmp_path, to_toml(config))) == config


def test_round_trip_of_unusual_values(tmp_path: Path) -> None:
    config = Config(
        data=DataConfig(
            path='C:\\new "data"\t\x7f\u00e9\U0001f916\n', cameras=("left arm", "#1", "a=b")
        ),
        render=RenderConfig(near=1e-300, far=1e17, radii=(1 / 3,), bandwidths=(2**-40,)),
        train=TrainConfig(seed=2**40, eps=5e-324, learning_rates=(0.1 + 0.2,), boundaries=()),
    )
    assert read_toml(write(tmp_path, to_toml(config))) == config


def test_written_file_states_every_key() -> None:
    stated = leaves(tomllib.loads(to_toml(Config())))
    # A part that is left out is no table: its key is its kind.
    assert stated.pop("model.dynamics.attention.mask") == "none"
    assert {*stated, "model.dynamics.attention.mask.kind"} == set(flatten(Config()))
    assert set(flatten(Config())) <= set(key_types())


@pytest.mark.parametrize("member", config_files("members"))
def test_every_member_survives_writing_and_reading(member: str, tmp_path: Path) -> None:
    config = with_member(Config(), member)
    assert read_toml(write(tmp_path, to_toml(config))) == config
    assert hash(config) == hash(with_member(Config(), member))


def test_paper_is_the_defaults() -> None:
    assert load_config("paper") == Config()


def test_experiments_that_come_with_the_package() -> None:
    assert {"paper", "demo", "debug"} <= set(config_files())


def test_experiment_files_state_only_deviations() -> None:
    for path in config_files().values():
        defaults = flatten(Config())
        for key, value in leaves(tomllib.loads(path.read_text())).items():
            found = tuple(value) if isinstance(value, list) else value
            assert found != defaults[key], f"{path.name}: {key} repeats the default"


@pytest.mark.parametrize("name", config_files())
def test_every_experiment_builds_with_the_documented_size(name: str) -> None:
    scene = SceneSpec(84, (-0.5, -0.75, -0.05), (0.6, 0.75, 0.8))
    config = load_config(name)
    model = abstract_model(config, scene)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
    page = (DOCS / "experiments.md").read_text()
    (documented,) = re.findall(rf"^\| `{name}` \| ([\d,]+) \|", page, flags=re.MULTILINE)
    assert size == int(documented.replace(",", ""))


def test_file_of_one_key_changes_only_that_key(tmp_path: Path) -> None:
    config = read_toml(write(tmp_path, "[model]\nnum_particles = 77\n"))
    expected = dataclasses.replace(Config().model, num_particles=77)
    assert config == dataclasses.replace(Config(), model=expected)


def test_path_and_name_find_the_same_experiment() -> None:
    assert load_config(str(find_experiment("debug"))) == load_config("debug")


def test_overrides_win_over_the_file() -> None:
    config = load_config(
        "debug",
        {
            "model": {"num_particles": 96, "unet_channels": [8, 24], "dynamics": {"local": "mp"}},
            "train": {"remat": False, "tensorboard": True},
            "render": {"far": 3},
        },
    )
    assert (config.model.num_particles, config.model.unet_channels) == (96, (8, 24))
    assert isinstance(config.model.dynamics, InterlacerSettings)
    assert config.model.dynamics.local == NeighborAttenderSettings()
    # What the file says of the same part stays.
    assert config.model.dynamics.num_layers == 2
    assert (config.train.remat, config.train.tensorboard) == (False, True)
    assert (config.render.far, type(config.render.far)) == (3.0, float)
    assert config.model.latent_dim == load_config("debug").model.latent_dim


def test_a_list_can_be_emptied() -> None:
    config = apply_overrides(Config(data=DataConfig(cameras=("a",))), {"data": {"cameras": ()}})
    assert config.data.cameras == ()


def test_combinations_are_judged_after_all_overrides() -> None:
    heads = {"attention": {"num_heads": 3}}
    config = load_config("debug", {"model": {"latent_dim": 33, "dynamics": heads}})
    assert config.model.latent_dim == 33
    config = load_config("debug", {"render": {"near": 3, "far": 4}})
    assert config.render.near == 3.0


def test_apply_overrides_leaves_the_original() -> None:
    config = Config()
    changed = apply_overrides(config, {"eval": {"num_steps": 24}})
    assert changed.eval == EvalConfig(num_steps=24)
    assert config.eval.num_steps == 8


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[model]\nnum_particle = 5", ["model.num_particle = 5", "is model.num_particles"]),
        ("[modle]\nnum_particles = 5", ["modle.num_particles = 5", "is model.num_particles"]),
        ("[model]\nparticles = 5", ["model.particles = 5", "is model.num_particles"]),
        ("[eval]\nbatch_size = 5", ["eval.batch_size = 5", "is train.batch_size"]),
        ("num_particles = 5", ["num_particles = 5", "is model.num_particles"]),
        ("model = 5", ["model = 5", "expected a table"]),
        ("[model.num_particles]\nx = 1", ["model.num_particles", "expected an integer"]),
        ("[zzz]\nqqqqqq = 1", ["zzz.qqqqqq = 1", "docs/experiments.md"]),
        ("[model]\nnum_particles = '5'", ['model.num_particles = "5"', "expected an integer"]),
        ("[model]\nnum_particles = 5.0", ["model.num_particles = 5.0", "expected an integer"]),
        ("[model]\nnum_particles = true", ["model.num_particles = true", "expected an integer"]),
        ("[train]\nremat = 1", ["train.remat = 1", "expected true or false"]),
        ("[train]\nclip_norm = nan", ["train.clip_norm = nan", "expected a finite number"]),
        ("[train]\nclip_norm = inf", ["train.clip_norm = inf", "expected a finite number"]),
        ("[model]\nunet_channels = 8", ["model.unet_channels = 8", "each item an integer"]),
        ("[model]\nunet_channels = [8, 'a']", ['[8, "a"]', "expected an integer"]),
        ("[model.dynamics]\nlocal = 'mpp'", ["'mp', 'none'", "the nearest is 'mp'"]),
        ("[model.dynamics.local]\nkind = 'mp'\nnum_heads = 2", ["num_heads = 2", "this kind"]),
        ("[model.dynamics.attention.mask]\nnum_hops = 2", ["num_hops = 2", "this kind"]),
        ("[model]\ndynamics = 3", ["model.dynamics = 3", "'interlacer', 'graph_network'"]),
        ("[model.dynamics]\nkind = 3", ["model.dynamics.kind = 3", "expected a text"]),
        ("[model.dynamics]\nlocal = 'nowhere.x:Y'", ['local = "nowhere.x:Y"', "No module named"]),
        ("[model.dynamics]\nlocal = 'hdvpd.config:Nothing'", ["no attribute 'Nothing'"]),
        ("[model.dynamics]\nlocal = 'hdvpd.config:Config'", ["Config is no local layer"]),
        ("[data]\npath = 1979-05-27", ["data.path = ", "expected a text"]),
        (
            "[model.dynamics]\nattention = {num_heads = 3}",
            ["model.dynamics.attention.num_heads = 3", "must divide model.latent_dim = 128"],
        ),
        ("[render]\nfar = 0.05", ["render.near = 0.1", "far = 0.05"]),
        ("[model\nx=1", ["not valid TOML", "line 1"]),
        ("[model]\nknn = 'xla'\nknn = 'auto'\n", ["not valid TOML", "line 3"]),
    ],
)
def test_mistake_in_a_file_is_one_line(tmp_path: Path, text: str, parts: list[str]) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        read_toml(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("overrides", "parts"),
    [
        ({"model": {"num_particle": 5}}, ["model.num_particle = 5", "is model.num_particles"]),
        ({"num_particles": 5}, ["unknown key num_particles = 5", "is model.num_particles"]),
        ({"model": {"num_particles": "many"}}, ['num_particles = "many"', "an integer"]),
        ({"render": {"far": math.nan}}, ["render.far = nan", "finite"]),
        ({"model": {"dynamics": {"local": "mpp"}}}, ['local.kind = "mpp"', "the nearest is 'mp'"]),
        (
            {"model": {"dynamics": {"attention": {"num_heads": 3}}}},
            ["debug.toml with model.dynamics.attention.num_heads = 3", "latent_dim = 32"],
        ),
        (
            {"model": {"dynamics": {"local": {"anchor_neighbors": 3}}}},
            ["model.dynamics.local.anchor_neighbors = 3", "of this kind has no such setting"],
        ),
    ],
)
def test_mistake_in_an_override_is_one_line(overrides: dict, parts: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        load_config("debug", overrides)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


@pytest.mark.parametrize(
    ("text", "overrides", "parts"),
    [
        ("[[train]]\nnum_steps = 7", {"train": {"seed": 1}}, ["train = ", "expected a table"]),
        ("train = 3", {"train": {"seed": 1}}, ["train = 3", "expected a table"]),
        ("model = 3", {"model": {"dynamics": "graph_network"}}, ["model = 3", "expected a table"]),
        (
            "[model]\ndynamics = 3",
            {"model": {"dynamics": {"num_layers": 1}}},
            ["model.dynamics = 3", "'interlacer', 'graph_network'"],
        ),
        (
            "[model.dynamics]\nattention = []",
            {"model": {"dynamics": {"attention": {"num_heads": 1}}}},
            ["model.dynamics.attention = []", "expected a table"],
        ),
        (
            "[model.dynamics]\nkind = ['interlacer']",
            {"model": {"dynamics": {"num_layers": 1}}},
            ['model.dynamics.kind = ["interlacer"]', "expected a text"],
        ),
    ],
)
def test_a_wrong_section_of_a_file_is_refused_beside_overrides(
    tmp_path: Path, text: str, overrides: dict, parts: list[str]
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load_config(str(path), overrides)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    for part in parts:
        assert part in message


def test_removed_keys_are_left_out_of_files_and_refused_as_overrides(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = write(tmp_path, "[eval]\nnum_bootstrap = 100\nnum_steps = 3\n")
    assert read_toml(path) == dataclasses.replace(Config(), eval=EvalConfig(num_steps=3))
    (message,) = caplog.messages
    assert message.startswith(f"{path}: eval.num_bootstrap is left out: intervals are Student's")
    with pytest.raises(UserError, match=r"eval\.num_bootstrap = 100: .*Student's"):
        load_config("debug", {"eval": {"num_bootstrap": 100}})


def test_keys_that_moved_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nnum_hops = 2\n")
    with pytest.raises(UserError) as caught:
        read_toml(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: model.num_hops = 2 is a key of an earlier version")
    assert "model.dynamics.local.mask.num_hops now" in message
    assert "hdvpd model convert" in message


def test_another_kind_replaces_a_part_and_the_same_kind_keeps_it() -> None:
    sampled = {"mask": {"kind": "grf", "walks": "iid", "num_walkers": 4}}
    config = load_config("debug", {"model": {"dynamics": {"local": sampled}}})
    kept = {"mask": {"kind": "grf", "num_hops": 2}}
    again = apply_overrides(config, {"model": {"dynamics": {"local": kept}}})
    values = flatten(again)
    assert values["model.dynamics.local.mask.walks"] == "iid"
    assert values["model.dynamics.local.mask.num_hops"] == 2
    other = apply_overrides(config, {"model": {"dynamics": {"local": {"mask": "rwgnk"}}}})
    assert flatten(other)["model.dynamics.local.mask.walks"] == "exact"
    without = apply_overrides(config, {"model": {"dynamics": {"local": "none"}}})
    assert flatten(without)["model.dynamics.local.kind"] == "none"


def test_controls_are_chosen_by_name() -> None:
    overrides = {"eval": {"controls": ["zero_actions", "static_render"]}}
    assert load_config("debug", overrides).eval.controls == ("zero_actions", "static_render")
    assert load_config("debug", {"eval": {"controls": ()}}).eval.controls == ()
    with pytest.raises(UserError, match=r"one of .*'zero_actions'.*the nearest is 'zero_actions'"):
        load_config("debug", {"eval": {"controls": ["zero_action"]}})


def test_unknown_experiment_names_the_nearest() -> None:
    with pytest.raises(UserError, match=re.escape("did you mean 'debug'?")):
        find_experiment("debgu")
    with pytest.raises(UserError, match="no such experiment file"):
        find_experiment("configs/nowhere.toml")


def test_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "latin.toml").write_bytes(b"[data]\npath = '\xe9'\n")
    with pytest.raises(UserError, match="not valid TOML"):
        read_toml(tmp_path / "latin.toml")
    with pytest.raises(UserError, match="cannot be read"):
        read_toml(tmp_path)


def test_a_dropped_letter_is_recognised() -> None:
    keys = key_types()
    for key in keys:
        section, _, name = key.rpartition(".")
        wrong = f"{section}.{name[:1]}{name[2:]}"
        assert nearest_key(wrong) in keys
        if len(name) > 4:
            assert nearest_key(wrong) == key
