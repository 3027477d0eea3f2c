"""One training step: a pure, jitted function of (state, batch).

Everything random is a function of (the run's key, step), so a resumed run repeats an uninterrupted
one, and runs of all seeds are the same program.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from hdvpd.basics.layers import Keys
from hdvpd.basics.types import Array, Batch, Int, PRNGKey, pytree
from hdvpd.config import Config, SceneSpec
from hdvpd.model import Model
from hdvpd.training.optimizer import create_optimizer, in_rows, learning_rate
from hdvpd.training.parallel import Layout, in_parts, make_gradient, make_layout, over_windows

Params = Any
Metrics = dict[str, jax.Array]


@pytree
class TrainState:
    """All that a training step changes.

    Attributes:
      step: steps done.
      params: pure nested dictionary of parameters, which models are made of.
      opt_state: optax state.
      nonfinite_in_row: skipped steps since the last good one.
      nonfinite_total: skipped steps of the whole run.
      iterate: parameters at which gradients are taken, where `params` is their average
        (`train.ema_decay`); None where it is not, and they are `params`.
    """

    step: Int[Array, ""]
    params: Params
    opt_state: Any
    nonfinite_in_row: Int[Array, ""]
    nonfinite_total: Int[Array, ""]
    iterate: Params | None = None


TrainStep = Callable[[TrainState, Batch, PRNGKey], tuple[TrainState, Metrics]]


def create_model(config: Config, scene: SceneSpec) -> tuple[nnx.GraphDef, Params]:
    """Build the model; return its graph definition and its parameters as a pure dictionary."""
    model = Model(config, scene, rngs=Keys(config.train.seed))
    graphdef, state = nnx.split(model)
    return graphdef, nnx.to_pure_dict(state)


def merge_model(graphdef: nnx.GraphDef, params: Params) -> Model:
    """Put parameters into a model; the inverse of `create_model`."""
    return nnx.merge(graphdef, nnx.State(params))


def create_train_state(config: Config, scene: SceneSpec) -> tuple[nnx.GraphDef, TrainState]:
    """Return the model's definition and the state before the first step."""
    graphdef, params = create_model(config, scene)
    zero = jnp.zeros((), jnp.int32)
    return graphdef, TrainState(
        step=zero,
        params=params,
        # One program: without jit, every shape's zeros are a program of their own.
        opt_state=jax.jit(create_optimizer(config.train).init)(params),
        nonfinite_in_row=jnp.zeros((), jnp.int32),
        nonfinite_total=jnp.zeros((), jnp.int32),
        iterate=jax.tree.map(jnp.copy, params) if config.train.ema_decay else None,
    )


def make_train_step(config: Config, graphdef: nnx.GraphDef) -> TrainStep:
    """Return the jitted step, a function of (state, batch, the run's key); it donates the state.

    State, batch and key lie as the configuration's layout says (`make_layout`).

    The seed of `config` is not part of it: runs that differ in nothing else can share one step.
    A non-finite loss or gradient leaves parameters and optimiser as they were and is counted;
    the step number advances, so that the next batch is another one.
    """
    optimizer = create_optimizer(config.train)
    schedule, decay = learning_rate(config.train), config.train.ema_decay
    layout = make_layout(config.train)

    def rows(params: Params) -> tuple[Callable[[Any], Any], Callable[[Any], Any]]:
        if layout.shard_state:
            return lambda x: x, lambda x: x
        return in_rows(params)

    gradient = make_gradient(_mean_loss(graphdef), layout, lambda params, x: rows(params)[0](x))

    def train_step(state: TrainState, batch: Batch, run_key: PRNGKey) -> tuple[TrainState, Metrics]:
        key = jax.random.fold_in(run_key, state.step)
        averages = state.iterate is not None
        old = (state.iterate, state.params) if averages else (state.params, None)
        (value, per_step), grads = gradient(old[0], batch, key)
        pack, unpack = rows(state.params)
        kept = pack((*old, state.opt_state))
        grad_norm = optax.tree.norm(grads)
        finite = jnp.isfinite(value) & jnp.isfinite(grad_norm)
        taken = state.step - state.nonfinite_total

        def update(params: Params, average: Params | None, opt_state: Any) -> tuple:
            updates, opt_state = optimizer.update(grads, opt_state, params)
            params = optax.apply_updates(params, updates)
            return params, _averaged(average, params, decay, taken), opt_state

        # A branch, whose results are written: each leaf would compute a selection anew.
        *new, opt_state = unpack(jax.lax.cond(finite, update, lambda *old: old, *kept))
        skipped = (~finite).astype(jnp.int32)
        new_state = TrainState(
            step=state.step + 1,
            params=new[averages],
            opt_state=opt_state,
            nonfinite_in_row=(state.nonfinite_in_row + 1) * skipped,
            nonfinite_total=state.nonfinite_total + skipped,
            iterate=new[0] if averages else None,
        )
        metrics = {
            "loss": value,
            "grad_norm": grad_norm,
            "learning_rate": jnp.asarray(schedule(taken), jnp.float32),
            "nonfinite": skipped,
            "nonfinite_in_row": new_state.nonfinite_in_row,
        }
        metrics |= {f"loss_step_{s}": per_step[s] for s in range(config.train.horizon)}
        if config.train.reconstruct:
            metrics["loss_reconstruction"] = per_step[-1]
        return layout.constrain_state(new_state), metrics

    return jax.jit(train_step, donate_argnums=0)


def _mean_loss(graphdef: nnx.GraphDef) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return a function of parameters: the mean loss, and that of every image."""

    def loss(
        params: Params, batch: Batch, key: PRNGKey, first_window: Int[Array, ""] | int
    ) -> tuple[jax.Array, jax.Array]:
        model = merge_model(graphdef, params)
        per_step = jnp.asarray(model.loss(batch, key, first_window=first_window))
        return jnp.mean(per_step), per_step

    return loss


def _averaged(
    average: Params | None, params: Params, decay: float, taken: Int[Array, ""]
) -> Params | None:
    """Return the moving average with new parameters in it; none stays none.

    After few steps it takes more of the new ones: the first would stay in it for long.
    """
    if average is None:
        return None
    share = jnp.maximum(1.0 - decay, 9.0 / (10.0 + taken))
    return jax.tree.map(lambda old, new: old + share * (new - old), average, params)


def make_validate(
    graphdef: nnx.GraphDef, layout: Layout | None = None, *, spread: bool = True
) -> Callable[[Params, Batch, jax.Array], Metrics]:
    """Return the jitted validation loss of a batch, total and per predicted step.

    Rays are uniform over the pixels, so that losses of runs with other `train.moving_ray_weight`
    can be compared.

    Args:
      graphdef: of the model.
      layout: of the training, or None on one device.
      spread: the windows over the devices of the layout; else each computes all of them.
    """

    def validate(
        params: Params, batch: Batch, key: jax.Array, first_window: Int[Array, ""] | int
    ) -> Metrics:
        model = merge_model(graphdef, params)
        per_step = jnp.asarray(model.loss(batch, key, scored=True, first_window=first_window))
        metrics = {"loss": jnp.mean(per_step)}
        return metrics | {f"loss_step_{s}": per_step[s] for s in range(per_step.shape[0])}

    if layout is None or not spread:
        alone = in_parts(validate, 1 if layout is None else layout.parts)
        return jax.jit(lambda params, batch, key: alone(params, batch, key, 0))
    return jax.jit(over_windows(validate, layout))
