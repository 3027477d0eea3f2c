"""`hdvpd model summary`: counts are the model's, memory is near what the compiler reports."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scenes
from flax import nnx

from hdvpd import summary
from hdvpd.__main__ import main
from hdvpd.members import MEMBERS, with_member
from hdvpd.model import Model
from hdvpd.summary import (
    PARTS,
    Memory,
    _dynamics_step,
    count_parameters,
    residual_bytes,
    training_memory,
)

CONFIG = scenes.tiny_config(model={"num_particles": 256, "latent_dim": 32, "num_layers": 2})


@pytest.mark.parametrize("member", MEMBERS)
def test_parts_add_up_to_the_model(member):
    config, fields = with_member(CONFIG, member), MEMBERS[member]
    counts = count_parameters(config, scenes.SCENE)
    assert list(counts) == list(PARTS)
    _, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=nnx.Rngs(0)))
    sizes = {name: sum(x.size for x in jax.tree.leaves(tree)) for name, tree in params.items()}
    assert sum(counts.values()) == sum(sizes.values())
    assert counts["encoder"] == sizes["unet"]
    assert counts["renderer"] == sizes["renderer"]
    width = config.model.latent_dim
    mask_parameters = {"grf": 4, "rwgnk": 1, "diffusion": 1}
    if fields.get("local") in mask_parameters:
        # Four dense layers of which two have a bias, the mask's parameters, LayerNorm; two blocks.
        learned = mask_parameters[str(fields["local"])]
        assert counts["local"] == 2 * (4 * width**2 + 2 * width + learned + 2 * width)
    else:
        assert (counts["local"] > 0) == (fields.get("local") == "mp")


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


@pytest.mark.parametrize("member", MEMBERS)
def test_residuals_of_a_dynamics_step_are_near_the_compilers_memory(member, long):
    if member != "grf" and not long:
        pytest.skip("compiles a gradient for every member; make longtest")
    config = with_member(CONFIG, member)
    step = _dynamics_step(config, scenes.SCENE)
    _, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=nnx.Rngs(0)))
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
    graphdef, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=nnx.Rngs(0)))
    batch = scenes.make_batch(config.train.batch_size, 2 + config.train.horizon,
                              config.data.height, config.data.width)  # fmt: skip

    def loss(params):
        return scenes.apply(graphdef, params).loss(batch, jax.random.key(0)).mean()

    memory = training_memory(config, scenes.SCENE, 2)
    estimate = memory.recomputed if remat else memory.stored
    assert_near_the_compilers(estimate, jax.grad(loss), params)


def test_verb_works_without_a_data_set(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(summary, "training_memory", lambda *_: Memory(2**30, 2**31, 2**29))
    words = ["model", "summary", "debug", "--data.path", str(tmp_path / "none"), "--all-members"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert f"84 kinematic points and 2 cameras, assumed: there is no data set at {tmp_path}" in text
    assert text.splitlines()[0].split() == ["parameters", *MEMBERS]
    totals = next(line for line in text.splitlines() if line.startswith("total"))
    numbers = [int(cell.replace(",", "")) for cell in totals.split()[1:]]
    assert len(numbers) == len(MEMBERS)
    # Comparable: the largest member has less than three times the smallest.
    assert max(numbers) < 3 * min(numbers)
    assert [line.split() for line in text.splitlines() if line.startswith("activations")] == [
        ["activations,", "train.no-remat", *["2"] * len(MEMBERS)],
        ["activations,", "train.remat", *["0.5"] * len(MEMBERS)],
    ]


def test_verb_reads_the_scene_of_a_data_set(capsys, synthetic_dataset):
    # Traced in pieces, rematerialisation looks like a second use of the rollout's key.
    with jax.debug_key_reuse(False):
        assert main(["model", "summary", "debug", "--data.path", str(synthetic_dataset)]) == 0
    text = capsys.readouterr().out
    assert f"as in {synthetic_dataset}" in text
    assert np.array([part in text for part in PARTS]).all()
