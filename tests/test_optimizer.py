"""Schedule, clipping, decay mask and AdamW's arithmetic against its published form."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import references
import scenes

from hdvpd.basics.layers import Keys
from hdvpd.config import TrainConfig
from hdvpd.model import Model
from hdvpd.training.optimizer import create_optimizer, in_rows, is_decayed, learning_rate


def test_papers_schedule_changes_at_step_1000():
    schedule = learning_rate(TrainConfig())
    rates = [float(schedule(step)) for step in (0, 999, 1000, 1001, 99_999)]
    np.testing.assert_allclose(rates, [3e-4, 3e-4, 1e-4, 1e-4, 1e-4], rtol=1e-6)


def test_piecewise_schedule_takes_any_number_of_pieces():
    config = TrainConfig(learning_rates=(1.0, 0.5, 0.25), boundaries=(2, 5))
    schedule = learning_rate(config)
    rates = [float(schedule(step)) for step in range(8)]
    np.testing.assert_allclose(rates, [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25])


def test_cosine_schedule_warms_up_and_decays_to_zero():
    config = TrainConfig(schedule="cosine", learning_rates=(2e-3,), boundaries=(), warmup_steps=10,
                         num_steps=110)  # fmt: skip
    schedule = learning_rate(config)
    rates = [float(schedule(step)) for step in (0, 5, 10, 60, 110)]
    np.testing.assert_allclose(rates, [0, 1e-3, 2e-3, 1e-3, 0], atol=1e-9)
    without = learning_rate(TrainConfig(schedule="cosine", learning_rates=(2e-3,), boundaries=()))
    assert float(without(0)) == pytest.approx(2e-3)


def test_steps_are_those_of_adamw_on_the_clipped_gradient():
    config = TrainConfig(learning_rates=(1e-2, 3e-3), boundaries=(2,))
    optimizer = create_optimizer(config)
    rng = np.random.default_rng(0)
    params = {"layer": {"kernel": jnp.asarray(rng.normal(size=(3, 4)), jnp.float32)}}
    # The first gradients are far beyond the clip norm of 0.01, the last far below.
    grads = [scale * rng.normal(size=(3, 4)) for scale in (1.0, 10.0, 0.1, 1e-4)]
    expected = references.adamw_steps(
        params["layer"]["kernel"], grads, [1e-2, 1e-2, 3e-3, 3e-3], b1=config.b1, b2=config.b2,
        eps=config.eps, weight_decay=config.weight_decay, clip_norm=config.clip_norm,
    )  # fmt: skip
    state = optimizer.init(params)
    update = jax.jit(optimizer.update)
    for grad in grads:
        grad = {"layer": {"kernel": jnp.asarray(grad, jnp.float32)}}
        updates, state = update(grad, state, params)
        params = optax.apply_updates(params, updates)
    np.testing.assert_allclose(params["layer"]["kernel"], expected, rtol=1e-5, atol=1e-6)


def test_clipped_norm_is_bounded_and_small_gradients_pass():
    clip = optax.clip_by_global_norm(TrainConfig().clip_norm)
    rng = np.random.default_rng(1)
    for scale in (1e-6, 1e-3, 1.0, 1e4):
        grads = {name: jnp.asarray(scale * rng.normal(size=(40, 5)), jnp.float32) for name in "ab"}
        clipped, _ = clip.update(grads, clip.init(grads))
        norm = np.sqrt(sum((np.float64(g) ** 2).sum() for g in jax.tree.leaves(clipped)))
        before = np.sqrt(sum((np.float64(g) ** 2).sum() for g in jax.tree.leaves(grads)))
        assert norm <= 0.01 * (1 + 1e-6)
        assert norm == pytest.approx(min(before, 0.01), rel=1e-5)


def test_first_moment_holds_the_clipped_gradient_so_its_norm_is_bounded():
    # Guards the order: clipping must come before AdamW, whose updates have no small norm.
    config = TrainConfig()
    optimizer = create_optimizer(config)
    params = {"kernel": jnp.ones((30, 30)), "bias": jnp.ones(30)}
    grads = jax.tree.map(lambda x: 100 * x, params)
    _, state = optimizer.update(grads, optimizer.init(params), params)
    moment = optax.tree.get(state, "mu")
    norm = np.sqrt(sum((np.float64(m) ** 2).sum() for m in jax.tree.leaves(moment)))
    assert norm == pytest.approx((1 - config.b1) * 0.01, rel=1e-5)


def test_what_is_learned_before_the_first_step_does_not_decay():
    settings = {"carry": True, "contact": True, "colors": True}
    config = scenes.tiny_config(model=settings)
    _, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))
    read_out = is_decayed(params)["dynamics"]["read_out"]
    assert not any(jax.tree.leaves(read_out["identity"]))
    assert any(jax.tree.leaves(read_out["mlp"]))


def test_weight_decay_acts_on_the_matrices_of_the_model_only():
    config = scenes.tiny_config()
    _, params = scenes.random_params(lambda: Model(config, scenes.SCENE, rngs=Keys(0)))
    decayed = {
        jax.tree_util.keystr(path, simple=True, separator="/"): (bool(value), leaf.ndim)
        for (path, value), leaf in zip(
            jax.tree_util.tree_leaves_with_path(is_decayed(params)),
            jax.tree.leaves(params),
            strict=True,
        )
    }
    for name, (value, ndim) in decayed.items():
        if value:
            assert name.endswith("/kernel"), name
            assert ndim in (2, 4), name
    spared = [name.rsplit("/", 1)[-1] for name, (value, _) in decayed.items() if not value]
    expected = {"bias", "scale", "time", "kind", "point_embedding", "raw_modulation"}
    assert set(spared) == expected
    # Every dense layer, convolution and projection is in.
    assert sum(value for value, _ in decayed.values()) == sum(
        ndim in (2, 4) and not name.endswith(("time", "kind", "point_embedding"))
        for name, (_, ndim) in decayed.items()
    )


def test_decay_shrinks_matrices_without_a_gradient_and_nothing_else():
    config = TrainConfig(learning_rates=(0.1,), boundaries=())
    optimizer = create_optimizer(config)
    params = {"kernel": jnp.full((2, 2), 3.0), "bias": jnp.full(2, 3.0)}
    zero = jax.tree.map(jnp.zeros_like, params)
    updates, _ = optimizer.update(zero, optimizer.init(params), params)
    np.testing.assert_allclose(updates["kernel"], -0.1 * config.weight_decay * 3.0, rtol=1e-6)
    np.testing.assert_array_equal(updates["bias"], 0.0)


def test_an_update_in_rows_is_that_leaf_by_leaf():
    config = TrainConfig(learning_rates=(0.1,), boundaries=(), clip_norm=1e9)
    optimizer = create_optimizer(config)
    rng = np.random.default_rng(0)
    shapes = {"a": {"kernel": (3, 4), "bias": (4,)}, "b": {"kernel": (2, 2, 1), "scale": ()}}
    params, *grads = (
        jax.tree.map(
            lambda shape: jnp.asarray(rng.normal(size=shape), jnp.float32),
            shapes,
            is_leaf=lambda x: isinstance(x, tuple),
        )
        for _ in range(3)
    )
    pack, unpack = in_rows(params)
    state = rows_state = optimizer.init(params)
    assert {name: row.shape for name, row in pack(params).items()} == {
        "kernel": (16,),
        "rest": (5,),
    }
    for grad in grads:
        updates, state = optimizer.update(grad, state, params)
        rows, packed = optimizer.update(pack(grad), pack(rows_state), pack(params))
        rows_state = unpack(packed)
        assert jax.tree.structure(rows_state) == jax.tree.structure(state)
        jax.tree.map(np.testing.assert_array_equal, unpack(rows), updates)
        jax.tree.map(np.testing.assert_array_equal, rows_state, state)


def test_rows_of_one_kind_alone_are_rows_too():
    pack, unpack = in_rows({"kernel": jnp.ones((2, 3))})
    assert list(pack({"kernel": jnp.ones((2, 3))})) == ["kernel"]
    assert unpack(pack({"kernel": jnp.ones((2, 3))}))["kernel"].shape == (2, 3)
