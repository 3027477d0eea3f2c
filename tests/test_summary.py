"""`hdvpd model summary`: counts are the model's, memory is near what the compiler reports."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes

from hdvpd.__main__ import main
from hdvpd.basics.layers import Keys
from hdvpd.config.experiments import load_config
from hdvpd.config.members import member_names, with_member
from hdvpd.model import Model
from hdvpd.training import summary
from hdvpd.training.summary import (
    Memory,
    _dynamics_step,
    count_parameters,
    residual_bytes,
    training_memory,
)

CONFIG = scenes.tiny_config(
    model={"num_particles": 256, "latent_dim": 32, "dynamics": {"num_layers": 2}}
)


@pytest.mark.parametrize("member", member_names())
def test_parts_add_up_to_the_model(member):
    config = with_member(CONFIG, member)
    counts = count_parameters(config, scenes.SCENE)
    _, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))
    sizes = {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in params.items()}
    assert sum(counts.values()) == sum(sizes.values())
    assert counts["unet"] == sizes["unet"]
    assert counts["renderer"] == sizes["renderer"]
    width = config.model.latent_dim
    local = counts.get("dynamics.blocks.local", 0)
    mask_parameters = {"grf": 4, "grf_sampled": 4, "rwgnk": 1, "diffusion": 1}
    if member in mask_parameters:
        # Four dense layers of which two have a bias, and the mask's parameters; two blocks.
        assert local == 2 * (4 * width**2 + 2 * width + mask_parameters[member])
    else:
        assert (local > 0) == (member == "mp")
    rounds = {"dynamics.rounds.edge", "dynamics.rounds.node"}
    assert (rounds <= counts.keys()) == (member == "graph_network")


def test_residuals_are_what_the_backward_pass_needs():
    x = jax.ShapeDtypeStruct((10, 10), jnp.float32)
    assert residual_bytes(lambda x: 3 * x, x) == 0
    # The cosine is kept; the argument itself would not count.
    assert residual_bytes(lambda x: jnp.sin(x).sum(), x) == 400
    assert residual_bytes(lambda x: (x * x).sum(), x) == 0

    def chain(x, remat):
        body = (
            jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))
            if remat
            else lambda x: jnp.sin(jnp.sin(x))
        )
        for _ in range(3):
            x = body(x)
        return x

    assert residual_bytes(lambda x: chain(x, remat=False), x) == 6 * 400
    assert residual_bytes(lambda x: chain(x, remat=True), x) == 2 * 400


def assert_near_the_compilers(estimate, function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes
    print(f"estimate / compiler's {estimate / temporary:.2f}")
    assert 0.5 < estimate / temporary < 2.5


@pytest.mark.parametrize("member", member_names())
def test_residuals_of_a_dynamics_step_are_near_the_compilers_memory(member, long):
    if member != "grf" and not long:
        pytest.skip("compiles a gradient for every member; make longtest")
    config = with_member(CONFIG, member)
    step = _dynamics_step(config, scenes.SCENE)
    _, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))
    clouds = [scenes.random_cloud(seed, 256, 6) for seed in range(4)]
    stacked = jax.tree.map(lambda *x: np.stack(x).reshape(2, 2, *x[0].shape), *clouds)
    robot = jax.tree.map(lambda x: np.stack([x, x]), scenes.random_robot(0, 3))
    moving = (params, stacked.positions, stacked.features, robot)

    def total(moving, mask):
        change = step(moving, mask)
        return (change.displacement**2).sum() + (change.features**2).sum()

    estimate = residual_bytes(step, moving, stacked.mask)
    assert_near_the_compilers(estimate, jax.grad(total), moving, stacked.mask)


@pytest.mark.parametrize("remat", [False, True])
def test_memory_of_a_training_step_is_near_the_compilers(remat, long):
    if not long:
        pytest.skip("compiles two training steps; make longtest")
    config = dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, remat=remat))
    graphdef, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))
    batch = scenes.make_batch(config.train.batch_size, 2 + config.train.horizon,
                              config.data.height, config.data.width)  # fmt: skip

    def loss(params):
        return scenes.apply(graphdef, params).loss(batch, jax.random.key(0)).mean()

    memory = training_memory(config, scenes.SCENE, 2)
    estimate = memory.recomputed if remat else memory.stored
    assert_near_the_compilers(estimate, jax.grad(loss), params)


GIB = 2**30


@pytest.fixture
def machine(monkeypatch):
    """Sixteen GiB of memory, of which training of `debug` takes 1, and 2 or 20 per window."""
    monkeypatch.setattr(summary, "device_memory", lambda: ("the machine", 16 * GIB))
    monkeypatch.setattr(summary, "training_memory", lambda *_: Memory(GIB, 40 * GIB, 4 * GIB))


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ((), ["It fits here (the machine: 16 GiB), with about 5 GiB."]),
        (("--train.batch-size", "8"), ["It fits here"]),
        (("--train.no-remat",), ["does not fit", "needs about 41 GiB", "fits: --train.remat."]),
    ],
)
def test_whether_training_fits_is_said(flags, words, machine, capsys):
    assert main(["model", "summary", "debug", *flags]) == 0
    text = capsys.readouterr().out
    assert all(word in text for word in words)


@pytest.mark.parametrize(
    ("memory", "remat", "size", "part"),
    [
        (Memory(GIB, 200 * GIB, 131 * GIB), True, 16, "What fits: --train.batch-size 1."),
        (Memory(GIB, 100 * GIB, 30 * GIB), False, 16,
         "What fits: --train.batch-size 2, or --train.batch-size 7 --train.remat."),
        (Memory(GIB, 30 * GIB, 14 * GIB), False, 4,
         "What fits: --train.batch-size 1, or --train.batch-size 3 --train.remat."),
        (Memory(GIB, 500 * GIB, 320 * GIB), True, 16,
         "Not even --train.batch-size 1 --train.remat fits (21 GiB)"),
        (Memory(20 * GIB, GIB, GIB), True, 2, "Not even"),
    ],
)  # fmt: skip
def test_what_would_fit_is_said(memory, remat, size, part):
    train = dataclasses.replace(CONFIG.train, remat=remat, batch_size=size)
    text = summary.verdict(memory, dataclasses.replace(CONFIG, train=train), 16 * GIB, "here")
    assert "It does not fit here (here: 16 GiB)" in text
    assert part in text


def test_the_advised_batch_size_is_the_largest_that_fits():
    memory, limit = Memory(GIB, 100 * GIB, 30 * GIB), 16 * GIB
    batch = summary.largest_batch(memory, 16, limit, remat=True)
    needed = [1.1 * (GIB + 30 * GIB * b / 16) for b in (batch, batch + 1)]
    assert needed[0] <= limit < needed[1]


def test_memory_is_this_devices():
    where, size = summary.device_memory()
    assert GIB / 4 < size < 2**50
    assert where


def test_verb_works_without_a_data_set(capsys, tmp_path, machine):
    words = ["model", "summary", "debug", "--data.path", str(tmp_path / "none"), "--all-members"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"84 kinematic points and 2 cameras, assumed: there is no data set at {tmp_path}" in text
    members = member_names()
    rows = [line.split() for line in text.splitlines()[2 : 2 + len(members)]]
    assert [row[0] for row in rows] == list(members)
    numbers = [[int(cell.replace(",", "")) for cell in row[1:3]] for row in rows]
    shared = {}
    for name, (dynamics, total) in zip(members, numbers, strict=True):
        scene, _, _ = summary.find_scene(load_config("debug"))
        counts = count_parameters(with_member(load_config("debug"), name), scene)
        own = [counts.pop(part) for part in list(counts) if part.startswith("dynamics.")]
        assert [dynamics, total] == [sum(own), sum(own) + sum(counts.values())]
        # What stands below the table is true of every member.
        shared = shared or counts
        assert counts == shared
        assert all(f"{part} {count:,}" in text for part, count in counts.items())
    # Comparable: the largest member has less than three times the smallest.
    totals = [total for _, total in numbers]
    assert max(totals) < 3 * min(totals)
    assert all(row[3:] == ["40", "4", "2"] for row in rows)
    assert max(map(len, text.splitlines()[: 2 + len(members)])) < 80


def test_members_are_printed_one_by_one(capsys, monkeypatch, machine):
    printed = []

    def measure(*_):
        printed.append(capsys.readouterr().out)
        return Memory(GIB, GIB, GIB)

    monkeypatch.setattr(summary, "training_memory", measure)
    assert main(["model", "summary", "debug", "--all-members"]) == 0
    assert printed[0].splitlines()[1].startswith("member")
    for name, text in zip(member_names(), printed[1:], strict=False):
        assert text.split()[0] == name


def test_verb_reads_the_scene_of_a_data_set(capsys, synthetic_dataset):
    # Traced in pieces, rematerialisation looks like a second use of the rollout's key.
    with jax.debug_key_reuse(False):
        assert main(["model", "summary", "debug", "--data.path", str(synthetic_dataset)]) == 0
    text = capsys.readouterr().out
    assert f"as in {synthetic_dataset}" in text
    for part in ("unet", "dynamics.tokens", "dynamics.blocks.local", "renderer", "total"):
        assert f"\n{part} " in text
    assert "train.remat" in text
    assert "It fits here" in text
