"""AdamW with the schedule and the clipping of arXiv 2410.03462, App. C.3."""

import jax
import optax

from hdvpd.config import TrainConfig


def learning_rate(config: TrainConfig) -> optax.Schedule:
    """Return the schedule: piecewise constant (paper), or warm-up and cosine decay to zero."""
    if config.schedule == "cosine":
        return optax.warmup_cosine_decay_schedule(
            init_value=0.0 if config.warmup_steps else config.learning_rates[0],
            peak_value=config.learning_rates[0],
            warmup_steps=config.warmup_steps,
            decay_steps=max(config.num_steps, config.warmup_steps + 1),
        )
    constants = [optax.constant_schedule(rate) for rate in config.learning_rates]
    return optax.join_schedules(constants, list(config.boundaries))


def is_decayed(params: optax.Params) -> optax.Params:
    """Say which parameters decay: kernels of dense layers and convolutions.

    Not biases, norms, embeddings or the walks' modulation, nor what was learned beforehand and has
    no gradient any more (`identity`).
    """

    def by_name(path: tuple, _: jax.Array) -> bool:
        keys = [getattr(part, "key", None) for part in path]
        return keys[-1] == "kernel" and "identity" not in keys

    return jax.tree_util.tree_map_with_path(by_name, params)


def create_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    """Clip the global norm, then AdamW."""
    return optax.chain(
        optax.clip_by_global_norm(config.clip_norm),
        optax.adamw(
            learning_rate(config),
            b1=config.b1,
            b2=config.b2,
            eps=config.eps,
            weight_decay=config.weight_decay,
            mask=is_decayed,
        ),
    )
