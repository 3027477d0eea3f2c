"""Variants: every combination of values, what they change, and what is refused."""

import pytest

from hdvpd.basics.errors import UserError
from hdvpd.commands.planned_runs import choose_variants, plan_runs
from hdvpd.config.experiments import flatten
from hdvpd.config.variants import list_changes, list_variants


def test_every_combination_comes_once():
    variants = list_variants(["train.clip-norm=0.01,0.1", "model.carry=true,false"])
    assert [variant.label for variant in variants] == [
        "clip_norm=0.01,carry=true",
        "clip_norm=0.01,carry=false",
        "clip_norm=0.1,carry=true",
        "clip_norm=0.1,carry=false",
    ]
    assert variants[1].tables == {"train": {"clip_norm": 0.01}, "model": {"carry": False}}
    (same,) = list_variants([])
    assert (same.label, same.tables) == ("", {})


def test_values_are_numbers_words_and_lists():
    words = list_variants(["train.schedule=piecewise,cosine"])
    assert [v.tables["train"]["schedule"] for v in words] == ["piecewise", "cosine"]
    lists = list_variants(["train.learning_rates=[0.003],[0.001, 0.0001]"])
    assert lists[1].tables["train"]["learning_rates"] == [0.001, 0.0001]
    assert lists[1].label == "learning_rates=0.001+0.0001"
    paths = list_variants(["data.path=data/one,data/two"])
    assert [v.label for v in paths] == ["path=data_one", "path=data_two"]


def test_keys_that_end_alike_are_written_out():
    (first, *_) = list_variants(["train.num_steps=5,1", "eval.num_steps=2,3"])
    assert first.label == "train.num_steps=5,eval.num_steps=2"


@pytest.mark.parametrize(
    "varied",
    [["train.clip_norm"], ["train.clip_norm=0.1"], ["=1,2"], ["train.horizon=1,1"],
     ["train.horizon=1,2", "train.horizon=3,4"], ["train.seed=1,2"]],
)  # fmt: skip
def test_what_cannot_be_varied_is_named(varied):
    with pytest.raises(UserError, match="--vary"):
        list_variants(varied)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_key_inside_another_is_refused_and_the_remedy_works(swapped, debug_config, tmp_path):
    varied = ["model.dynamics=interlacer,graph_network", "model.dynamics.num-layers=1,2"]
    with pytest.raises(UserError) as caught:
        list_variants(varied[::-1] if swapped else varied)
    message = str(caught.value)
    assert message.startswith("--vary names model.dynamics and model.dynamics.num_layers inside it")
    assert "by model.dynamics.kind instead" in message
    mask = "model.dynamics.local.mask"
    variants = list_variants([f"{mask}.kind=grf,rwgnk", f"{mask}.num-hops=1,2"])
    runs = [flatten(run.config) for run in plan_runs(debug_config, [], 1, tmp_path, variants)]
    assert [(run[f"{mask}.kind"], run[f"{mask}.num_hops"]) for run in runs] == [
        ("grf", 1), ("grf", 2), ("rwgnk", 1), ("rwgnk", 2),
    ]  # fmt: skip


def test_a_key_and_one_inside_it_are_two_changes(debug_config, tmp_path):
    changes = list_changes(["model.dynamics.num_layers=3", "model.dynamics=graph_network"])
    runs = [flatten(run.config) for run in plan_runs(debug_config, [], 1, tmp_path, changes)]
    assert [run.get("model.dynamics.num_layers") for run in runs] == [2, 3, None]
    assert runs[2]["model.dynamics.kind"] == "graph_network"


def test_runs_of_every_variant_and_seed(debug_config, tmp_path):
    runs = plan_runs(debug_config, [], 2, tmp_path, list_variants(["train.clip-norm=0.01,0.1"]))
    assert [run.name for run in runs] == [
        "clip_norm=0.01-0", "clip_norm=0.1-0", "clip_norm=0.01-1", "clip_norm=0.1-1",
    ]  # fmt: skip
    assert [run.config.train.clip_norm for run in runs] == [0.01, 0.1, 0.01, 0.1]
    assert [run.config.train.seed for run in runs] == [0, 0, 1, 1]
    assert all(run.config.model == debug_config.model for run in runs)
    runs = plan_runs(debug_config, ["grf", "none"], 1, tmp_path, list_variants(["eval.seed=3,4"]))
    assert [run.member for run in runs] == [
        "grf,seed=3", "grf,seed=4", "none,seed=3", "none,seed=4",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"train\.clip_nrm = 1; the nearest"):
        plan_runs(debug_config, [], 1, tmp_path, list_variants(["train.clip-nrm=1,2"]))


def test_changes_stand_alone_beside_the_experiment_as_it_is(debug_config, tmp_path):
    changes = list_changes(["train.clip-norm=0.1,1", "model.even=false"])
    assert [(change.label, change.tables) for change in changes] == [
        ("base", {}),
        ("clip_norm=0.1", {"train": {"clip_norm": 0.1}}),
        ("clip_norm=1", {"train": {"clip_norm": 1}}),
        ("even=false", {"model": {"even": False}}),
    ]
    base, *changed = plan_runs(debug_config, [], 1, tmp_path, changes)
    assert (base.name, base.config) == ("base-0", debug_config)
    assert [run.config.train.clip_norm for run in changed] == [0.1, 1.0, 0.01]
    runs = plan_runs(debug_config, ["grf", "none"], 1, tmp_path, changes[:2])
    assert [run.member for run in runs] == [
        "grf,base", "grf,clip_norm=0.1", "none,base", "none,clip_norm=0.1",
    ]  # fmt: skip


def test_an_impossible_change_is_named_with_its_flag(debug_config, tmp_path):
    with pytest.raises(UserError, match=r"--ablate with train\.horizon = 0"):
        plan_runs(debug_config, [], 1, tmp_path, list_changes(["train.horizon=0"]))


@pytest.mark.parametrize(
    "ablated",
    [["train.clip_norm"], ["=1"], ["train.horizon=1,1"], ["train.horizon=1", "train.horizon=2"],
     ["train.seed=1"]],
)  # fmt: skip
def test_what_is_no_change_is_named(ablated):
    with pytest.raises(UserError, match="--ablate"):
        list_changes(ablated)


def test_combinations_and_single_changes_do_not_mix():
    assert choose_variants([], ["model.even=false"]) == list_changes(["model.even=false"])
    assert choose_variants(["model.even=false,true"], []) == list_variants(
        ["model.even=false,true"]
    )
    with pytest.raises(UserError, match="one of them"):
        choose_variants(["model.even=false,true"], ["model.carry=false"])
