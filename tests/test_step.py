"""The training step: deterministic, skips what is not finite, compiles once, can over-fit."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scenes

import hdvpd.model
from hdvpd.basics.layers import Keys
from hdvpd.model import Model
from hdvpd.training import step as training
from hdvpd.training.step import create_train_state, make_train_step, make_validate

STEPS = 300
CONFIG = scenes.tiny_config(
    model={"num_particles": 160},
    render={"num_samples": 20, "num_proposals": 8},
    train={
        "batch_size": 1,
        "num_rays": 96,
        "schedule": "cosine",
        "learning_rates": (1e-2,),
        "num_steps": STEPS,
    },
)
KEY = jax.random.key(CONFIG.train.seed)


@pytest.fixture(scope="module")
def batch():
    """One window of two observed and two predicted frames."""
    return jax.tree.map(jnp.asarray, scenes.make_batch(1, 4, 12, 16))


@pytest.fixture(scope="module")
def trainer():
    """Definition, initial state on the host, the jitted step and the jitted validation."""
    graphdef, state = create_train_state(CONFIG, scenes.SCENE)
    step, validate = make_train_step(CONFIG, graphdef), make_validate(graphdef)
    return graphdef, jax.device_get(state), step, validate


def on_device(state):
    return jax.tree.map(jnp.array, state)


def run(trainer, batches):
    """Train from the initial state; return the state and the metrics of every step."""
    _, initial, step, _ = trainer
    state, history = on_device(initial), []
    for batch in batches:
        state, metrics = step(state, batch, KEY)
        history.append(jax.device_get(metrics))
    return jax.device_get(state), history


def assert_same_bits(tree, other):
    for one, two in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture(scope="module")
def four_steps(trainer, batch):
    return run(trainer, [batch] * 4)


def test_same_seed_gives_the_same_bits(trainer, batch, four_steps):
    state, history = run(trainer, [batch] * 4)
    assert_same_bits(state, four_steps[0])
    assert_same_bits(history, four_steps[1])


def test_two_and_two_steps_equal_four(trainer, batch, four_steps):
    _, _, step, _ = trainer
    state, history = run(trainer, [batch] * 2)
    state = on_device(jax.device_get(state))  # as from a checkpoint
    for _ in range(2):
        state, metrics = step(state, batch, KEY)
        history.append(jax.device_get(metrics))
    assert_same_bits(state, four_steps[0])
    assert_same_bits(history, four_steps[1])


def test_the_average_follows_what_is_trained_and_changes_nothing_else(trainer, batch):
    """Beside an oracle in float64; decay 0.2 lets 0.9, 0.82 and then 0.8 of every step in."""
    config = dataclasses.replace(CONFIG, train=dataclasses.replace(CONFIG.train, ema_decay=0.2))
    graphdef, averaged = create_train_state(config, scenes.SCENE)
    step, plain = make_train_step(config, graphdef), on_device(trainer[1])
    bad = dataclasses.replace(batch, robot=jax.tree.map(lambda x: x * jnp.nan, batch.robot))
    expected = [np.float64(x) for x in jax.tree.leaves(plain.params)]
    assert_same_bits(averaged.params, averaged.iterate)
    taken = 0
    for given in (batch, batch, bad, batch, batch):
        averaged, metrics = step(averaged, given, KEY)
        plain, told = trainer[2](plain, given, KEY)
        assert metrics["nonfinite"] == (given is bad)
        for name, value in metrics.items():
            np.testing.assert_allclose(value, told[name], rtol=1e-5)
        if given is not bad:
            share = max(0.8, 9 / (10 + taken))
            leaves = zip(expected, jax.tree.leaves(plain.params), strict=True)
            expected = [old + share * (np.float64(new) - old) for old, new in leaves]
            taken += 1
        for one, two in zip(expected, jax.tree.leaves(averaged.params), strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-6)
        for one, two in zip(*map(jax.tree.leaves, (plain.params, averaged.iterate)), strict=True):
            np.testing.assert_allclose(two, one, rtol=1e-4, atol=1e-6)
    assert any(
        np.abs(one - two).max() > 1e-3
        for one, two in zip(*map(jax.tree.leaves, (averaged.params, averaged.iterate)), strict=True)
    )


def test_second_step_does_not_compile_again(trainer, batch, four_steps):
    _, _, step, _ = trainer
    del four_steps, batch
    assert step._cache_size() == 1


def test_state_and_metrics_are_those_of_the_step(trainer, four_steps):
    _, initial, _, _ = trainer
    state, history = four_steps
    assert int(state.step) == 4
    rates = [float(metrics["learning_rate"]) for metrics in history]
    assert rates[0] == pytest.approx(1e-2)
    assert sorted(rates, reverse=True) == rates
    for metrics in history:
        per_step = [metrics[f"loss_step_{s}"] for s in range(CONFIG.train.horizon)]
        assert metrics["loss"] == pytest.approx(np.mean(per_step), rel=1e-6)
        assert metrics["nonfinite"] == 0
        assert metrics["grad_norm"] > 0
    changed = jax.tree.map(lambda new, old: (new != old).any(), state.params, initial.params)
    still = [jax.tree_util.keystr(path) for path, value in
             jax.tree_util.tree_leaves_with_path(changed) if not value]  # fmt: skip
    assert still == []


def test_everything_random_is_a_function_of_seed_and_step(trainer, batch):
    _, initial, step, validate = trainer
    seed = jax.random.key(CONFIG.train.seed)

    def loss(params, number):
        with jax.debug_key_reuse(False):
            return float(validate(params, batch, jax.random.fold_in(seed, number))["loss"])

    state = on_device(initial)
    for number in range(3):
        # The step donates its state, so look first.
        expected, other = loss(state.params, number), loss(state.params, number + 1)
        state, metrics = step(state, batch, KEY)
        assert float(metrics["loss"]) == pytest.approx(expected, rel=1e-5)
        assert expected != pytest.approx(other, rel=1e-3)


def test_every_parameter_takes_part_once_the_read_out_has_moved(trainer, batch):
    # AdamW's first moment is a running mean of gradients. In the very first step the read-out's
    # zeros hide the dynamics behind it from the gradient.
    state, _ = run(trainer, [batch] * 3)
    moment = optax.tree.get(state.opt_state, "mu")
    silent = [jax.tree_util.keystr(path) for path, value in
              jax.tree_util.tree_leaves_with_path(moment) if not (value != 0).any()]  # fmt: skip
    assert silent == []


@pytest.mark.parametrize("depth", [0.0, np.nan])
def test_windows_without_any_valid_depth_train_on(trainer, batch, depth):
    frames = dataclasses.replace(batch.frames, depth_m=jnp.full_like(batch.frames.depth_m, depth))
    _, history = run(trainer, [dataclasses.replace(batch, frames=frames)] * 2)
    # Nothing is seen and nothing should be: white on white.
    assert [metrics["nonfinite"] for metrics in history] == [0, 0]
    assert [metrics["loss"] for metrics in history] == [0, 0]
    part = dataclasses.replace(batch.frames, depth_m=batch.frames.depth_m.at[:, 1].set(depth))
    _, history = run(trainer, [dataclasses.replace(batch, frames=part)] * 2)
    assert [metrics["nonfinite"] for metrics in history] == [0, 0]
    assert all(metrics["loss"] > 0 for metrics in history)


def test_plan_matters_once_trained_and_not_before(trainer, batch, four_steps):
    _, initial, _, validate = trainer
    robot = dataclasses.replace(batch.robot, positions=batch.robot.positions.at[:, 2:].add(0.1))
    other = dataclasses.replace(batch, robot=robot)

    def losses(params):
        with jax.debug_key_reuse(False):
            return [float(validate(on_device(params), x, jax.random.key(1))["loss"])
                    for x in (batch, other)]  # fmt: skip

    before, same = losses(initial.params)
    assert before == same
    after, different = losses(four_steps[0].params)
    assert after != different


def test_validation_rays_are_uniform_whatever_the_training_prefers(batch, monkeypatch):
    train = dataclasses.replace(CONFIG.train, moving_ray_weight=4.0)
    config = dataclasses.replace(CONFIG, train=train)
    graphdef, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))
    sample, weights = hdvpd.model.sample_rays, []

    def record(*arguments, **squares):
        weights.append(arguments[-2])
        return sample(*arguments, **squares)

    monkeypatch.setattr(hdvpd.model, "sample_rays", record)
    model = scenes.apply(graphdef, params)
    jax.eval_shape(model.loss, batch, KEY)
    jax.eval_shape(make_validate(graphdef), params, batch, KEY)
    assert weights == [4.0, 1.0]


def test_a_batch_in_parts_has_the_loss_of_the_whole():
    batch = jax.tree.map(jnp.asarray, scenes.make_batch(3, 4, 12, 16))
    graphdef, params = scenes.random_params(lambda: Model(CONFIG, scenes.SCENE, rngs=Keys(0)))

    @jax.jit
    def loss(batch, first):
        return scenes.apply(graphdef, params).loss(batch, KEY, first_window=first)

    with jax.debug_key_reuse(False):
        whole = loss(batch, 0)
        parts = [loss(jax.tree.map(lambda x, i=i: x[i : i + 1], batch), i) for i in range(3)]
        moved = loss(jax.tree.map(lambda x: x[:1], batch), 1)
    np.testing.assert_allclose(whole, np.mean(parts, axis=0), rtol=1e-5)
    # A window that stands elsewhere in the batch draws otherwise.
    assert np.abs(moved - parts[0]).max() > 1e-5


def test_host_and_xla_agree_on_the_loss(trainer, batch, four_steps):
    # One search for both: static points seen twice tie, and searches may break ties differently.
    _, _, _, validate = trainer
    model = dataclasses.replace(CONFIG.model, kernels="xla", knn="kdtree")
    config = dataclasses.replace(CONFIG, model=model)
    graphdef, _ = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))
    params = on_device(four_steps[0].params)
    with jax.debug_key_reuse(False):
        host = validate(params, batch, jax.random.key(2))
        xla = make_validate(graphdef)(params, batch, jax.random.key(2))
    for name, value in host.items():
        np.testing.assert_allclose(value, xla[name], rtol=1e-5)


def spoil(batch):
    """Make the robot's planned positions infinite, which no validity mask hides."""
    positions = batch.robot.positions.at[0, 2].set(jnp.inf)
    return dataclasses.replace(batch, robot=dataclasses.replace(batch.robot, positions=positions))


def test_nonfinite_step_is_skipped_and_counted(trainer, batch, four_steps):
    state, history = run(trainer, [batch, spoil(batch), spoil(batch), batch])
    assert [int(m["nonfinite"]) for m in history] == [0, 1, 1, 0]
    assert [int(m["nonfinite_in_row"]) for m in history] == [0, 1, 2, 0]
    assert int(state.nonfinite_total) == 2
    assert int(state.step) == 4
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((state.params, state.opt_state)))
    assert history[0]["loss"] == four_steps[1][0]["loss"]


def test_skipped_step_leaves_parameters_and_optimiser_bit_for_bit(trainer, batch):
    before, _ = run(trainer, [batch])
    after, history = run(trainer, [batch, spoil(batch)])
    assert int(history[1]["nonfinite"]) == 1
    assert_same_bits(before.params, after.params)
    assert_same_bits(before.opt_state, after.opt_state)


def test_nonfinite_gradient_of_a_finite_loss_is_skipped_too(trainer, batch, monkeypatch):
    graphdef, initial, _, _ = trainer

    @jax.custom_vjp
    def poison(x):
        return x

    poison.defvjp(lambda x: (x, None), lambda _, g: (g * jnp.nan,))

    class Finite:
        def __init__(self, params):
            self.params = params

        def loss(self, batch, key, *, first_window):
            del batch, key, first_window
            first = jax.tree.leaves(self.params)[0]
            return jnp.ones(2) + poison(first.sum())

    monkeypatch.setattr(training, "merge_model", lambda graphdef, params: Finite(params))
    step = make_train_step(CONFIG, graphdef)
    state, metrics = step(on_device(initial), batch, KEY)
    assert np.isfinite(metrics["loss"])
    assert not np.isfinite(metrics["grad_norm"])
    assert int(metrics["nonfinite"]) == 1
    assert_same_bits(jax.device_get(state.params), initial.params)


def test_validation_changes_nothing_and_repeats(trainer, batch):
    _, initial, _, validate = trainer
    params = on_device(initial.params)
    with jax.debug_key_reuse(False):
        first, second = (validate(params, batch, jax.random.key(5)) for _ in range(2))
    assert_same_bits(first, second)
    assert_same_bits(jax.device_get(params), initial.params)


def test_one_batch_can_be_overfitted(trainer, batch):
    _, initial, step, validate = trainer

    def measure(params):
        with jax.debug_key_reuse(False):
            losses = [validate(params, batch, jax.random.key(seed))["loss"] for seed in range(8)]
        return float(np.mean(losses))

    state = on_device(initial)
    before = after = measure(state.params)
    for number in range(1, STEPS + 1):
        state, _ = step(state, batch, KEY)
        if number % 50 == 0 and (after := measure(state.params)) < before / 10:
            break
    assert after < before / 10
