"""AdamW with the schedule and the clipping of arXiv 2410.03462, App. C.3."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from hdvpd.config import TrainConfig

Tree = Any


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


def in_rows(params: optax.Params) -> tuple[Callable[[Tree], Tree], Callable[[Tree], Tree]]:
    """Return functions that put all arrays of a tree into two rows of numbers, and back.

    An optimiser works number by number. Of rows, it is the same few kernels for a model of any
    number of layers; leaf by leaf it was a fifth of the kernels that a training step compiled.

    Args:
      params: parameters; what is put into rows has their structure, or has parts that have it.

    Returns:
      From a tree to the same tree with rows, those of decayed parameters called `kernel`, for
      `is_decayed`; and the inverse.
    """
    structure, leaves = jax.tree.structure(params), jax.tree.leaves(params)
    names = ["kernel" if decays else "rest" for decays in jax.tree.leaves(is_decayed(params))]

    def through(convert: Callable[[dict], dict], tree: Tree) -> Tree:
        def is_dict(x: Any) -> bool:
            return isinstance(x, dict)

        return jax.tree.map(lambda x: convert(x) if is_dict(x) else x, tree, is_leaf=is_dict)

    def pack(tree: dict) -> dict:
        rows: dict[str, list[jax.Array]] = {"kernel": [], "rest": []}
        for name, leaf in zip(names, jax.tree.leaves(tree), strict=True):
            rows[name].append(leaf.reshape(-1))
        return {name: jnp.concatenate(row) for name, row in rows.items() if row}

    def unpack(rows: dict) -> dict:
        found, taken = [], dict.fromkeys(rows, 0)
        for name, leaf in zip(names, leaves, strict=True):
            begin = taken[name]
            taken[name] += int(np.prod(leaf.shape))
            found.append(rows[name][begin : taken[name]].reshape(leaf.shape))
        return jax.tree.unflatten(structure, found)

    return lambda tree: through(pack, tree), lambda tree: through(unpack, tree)
