"""Batches spread over devices and parts: the same training as on one device at once."""

import dataclasses
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scenes

from hdvpd.basics.errors import UserError
from hdvpd.basics.machine import usable_cores
from hdvpd.config import TrainConfig
from hdvpd.model import Model
from hdvpd.training import step as step_module
from hdvpd.training.parallel import make_layout, offer_cores, stated_bytes
from hdvpd.training.step import create_train_state, make_train_step, make_validate

CONFIG = scenes.tiny_config(model={"unet_channels": (8,)}, train={"batch_size": 4, "num_rays": 24})


def config(**train):
    return dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, **train))


def train(config, steps=2):
    """Return parameters and metrics after some steps on a batch of four different windows."""
    layout = make_layout(config.train)
    graphdef, state = create_train_state(config, scenes.SCENE)
    step = make_train_step(config, graphdef)
    windows = scenes.make_batch(4, 2 + config.train.horizon, 12, 16)
    batch = layout.place_batch(jax.tree.map(jnp.asarray, windows))
    key = layout.place_everywhere(jax.random.key(0))
    state = layout.place_state(state)
    placed = jax.tree.map(lambda x: x.sharding, state)
    with jax.debug_key_reuse(False):
        for _ in range(steps):
            state, metrics = step(state, batch, key)
    assert jax.tree.map(lambda x: x.sharding, state) == placed or layout.mesh.size == 1
    return state, jax.device_get(metrics)


@pytest.mark.parametrize(
    ("settings", "model"),
    [
        # The real model takes long to compile: all at once, with one predicted step. One by one
        # with a small.
        ({"num_devices": 0, "accumulate": 2, "shard_state": True, "horizon": 1}, Model),
        ({"accumulate": 2}, scenes.TinyModel),
        ({"num_devices": 2}, scenes.TinyModel),
    ],
)
def test_devices_and_parts_change_rounding_only(monkeypatch, settings, model):
    monkeypatch.setattr(step_module, "Model", model)
    alone = train(config(horizon=settings.get("horizon", CONFIG.train.horizon)))
    state, metrics = train(config(**settings))
    for name, value in alone[1].items():
        np.testing.assert_allclose(metrics[name], value, rtol=2e-4, err_msg=name)
    mean, ours = (optax.tree_utils.tree_get(s.opt_state, "mu") for s in (alone[0], state))
    for gradient, other, weights, moved in zip(
        *map(jax.tree.leaves, (mean, ours, alone[0].params, state.params)), strict=True
    ):
        largest = np.abs(gradient).max()
        np.testing.assert_allclose(other, gradient, atol=2e-4 * largest + 1e-9)
        # Nothing depends on a bias before a normalisation: its gradient is rounding, of which Adam
        # makes steps of the rate's size.
        if largest > 1e-8:
            rate = CONFIG.train.learning_rates[0]
            np.testing.assert_allclose(moved, weights, atol=0.2 * rate)
    if settings.get("shard_state") and model is Model:
        spread = [x for x in jax.tree.leaves(state.opt_state) if not x.is_fully_replicated]
        assert sum(x.size for x in spread) > 0.8 * sum(
            x.size for x in jax.tree.leaves(state.opt_state)
        )


@pytest.mark.parametrize(
    ("settings", "windows", "at_once"),
    [
        ({"accumulate": 2}, 4, 2),
        ({"accumulate": 4, "batch_size": 8}, 6, 1),  # six windows are not divided by four
        ({"num_devices": 2, "accumulate": 2}, 4, 1),
        ({"num_devices": 2, "accumulate": 2}, 3, 1),  # nor by two devices: each computes all
    ],
)
def test_validation_goes_in_parts_as_the_step_does(monkeypatch, settings, windows, at_once):
    sizes = []

    class Counting(scenes.TinyModel):
        def loss(self, batch, key, **options):
            sizes.append(batch.start.shape[0])
            return super().loss(batch, key, **options)

    monkeypatch.setattr(step_module, "Model", Counting)
    own = config(**settings)
    layout = make_layout(own.train)
    graphdef, state = create_train_state(own, scenes.SCENE)
    batch = jax.tree.map(jnp.asarray, scenes.make_batch(windows, 4, 12, 16))
    spread = windows % layout.mesh.size == 0
    validate = make_validate(graphdef, layout, spread=spread)
    alone = jax.device_get(make_validate(graphdef)(state.params, batch, jax.random.key(3)))
    assert sizes == [windows]
    sizes.clear()
    place = layout.place_batch if spread else layout.place_everywhere
    key = layout.place_everywhere(jax.random.key(3))
    ours = validate(layout.place_everywhere(state.params), place(batch), key)
    assert set(sizes) == {at_once}
    for name, value in alone.items():
        np.testing.assert_allclose(ours[name], value, rtol=1e-5, err_msg=name)


def test_a_step_exchanges_the_gradient_and_few_numbers_more(monkeypatch):
    monkeypatch.setattr(step_module, "Model", scenes.TinyModel)
    two = config(num_devices=2)
    layout = make_layout(two.train)
    graphdef, state = create_train_state(two, scenes.SCENE)
    batch = layout.place_batch(jax.tree.map(jnp.asarray, scenes.make_batch(4, 4, 12, 16)))
    key = layout.place_everywhere(jax.random.key(0))
    program = make_train_step(two, graphdef).lower(layout.place_state(state), batch, key).compile()
    gradient = sum(x.nbytes for x in jax.tree.leaves(state.params))
    stated = stated_bytes(program.as_text())
    assert stated["all-gather"] == 0
    # And the loss, as a whole and of each predicted step.
    assert stated["all-reduce"] == gradient + 4 * (1 + two.train.horizon)


def test_what_cannot_be_divided_is_refused():
    with pytest.raises(UserError, match=r"batch_size = 4 .* 3 parts.*multiple of 3"):
        make_layout(config(accumulate=3).train)
    with pytest.raises(UserError, match=r"num_devices is 512, but jax sees 2"):
        make_layout(config(num_devices=512).train)


@pytest.mark.parametrize(
    ("asked", "flags", "seen"),
    [
        (2, "", min(2, usable_cores())),
        (4096, "", usable_cores()),
        (1, "", 1),
        (2, "--xla_force_host_platform_device_count=3", 3),
    ],
)
def test_cores_are_offered_as_devices(asked, flags, seen):
    program = (
        "import jax; from hdvpd.config import TrainConfig as Training\n"
        "from hdvpd.training.parallel import offer_cores as offer\n"
        f"offer(Training(num_devices={asked}), Training(num_devices=1))\n"
        "print(jax.local_device_count()); offer(Training(num_devices=1 + jax.local_device_count()))"
    )
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    environment.pop("JAX_NUM_CPU_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.split()) == (0, [str(seen)]), done.stderr


def test_the_users_own_settings_of_xla_go_before(monkeypatch):
    jax.devices()  # there are as many as there are from here on
    own = "--xla_cpu_enable_concurrency_optimized_scheduler=true"
    monkeypatch.setenv("XLA_FLAGS", own)
    offer_cores(TrainConfig(num_devices=2))
    first, second = os.environ["XLA_FLAGS"].split()
    assert first == own
    assert second.startswith("--xla_cpu_collective_call_terminate_timeout_seconds=")
    monkeypatch.setenv("XLA_FLAGS", "")
    offer_cores(TrainConfig(num_devices=2))
    assert "concurrency_optimized_scheduler=false" in os.environ["XLA_FLAGS"]


@pytest.mark.soak
def test_devices_wait_for_each_other_longer_than_a_minute():
    program = """if True:
        import time, jax, jax.numpy as jnp
        from jax.sharding import Mesh, PartitionSpec as P
        from hdvpd.config import TrainConfig
        from hdvpd.training.parallel import offer_cores

        def slow(x):
            time.sleep(80)
            return x

        def late(x):
            alike = jax.ShapeDtypeStruct(x.shape, x.dtype)
            second = jax.lax.axis_index("w") == 1
            wait = lambda v: jax.pure_callback(slow, alike, v)
            return jax.lax.pmean(jax.lax.cond(second, wait, lambda v: v, x), "w")

        offer_cores(TrainConfig(num_devices=2))
        mesh = Mesh(jax.devices()[:2], ("w",))
        mean = jax.shard_map(late, mesh=mesh, in_specs=P("w"), out_specs=P(), check_vma=False)
        print(*jax.jit(mean)(jnp.arange(2.0)))
        """
    environment = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout.strip()) == (0, "0.5"), done.stderr[-2000:]


@pytest.mark.parametrize(
    ("settings", "devices"),
    [({}, 2), ({"accumulate": 2}, 2), ({"batch_size": 3}, 1), ({"accumulate": 4}, 1)],
)
def test_as_many_devices_as_divide_the_windows(settings, devices):
    assert make_layout(config(**{"num_devices": 0, **settings}).train).mesh.size == devices
