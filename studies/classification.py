"""Training classifiers that differ in one setting from equal seeds, and comparing them."""

import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from matplotlib.figure import Figure

from hdvpd.basics import colors
from hdvpd.basics.layers import count_parameters
from hdvpd.basics.types import Array, Bool, Float, Int, JaxArray
from studies import head_masks
from studies.head_masks import AbstractGridMask
from studies.outputs import (
    Row,
    make_folder,
    paired_summary,
    table,
    write_csv,
    write_settings,
)
from studies.settings import TransformerSettings, Variant, parse_variant, split_words

_LAST_RATE = 1e-5
# Examples that are scored at once.
_CHUNK = 64

MakeModel = Callable[[Variant, bool, nnx.Rngs], nnx.Module]


class Examples(NamedTuple):
    """Inputs of any shape with their classes."""

    inputs: Float[Array, "b *_"]
    labels: Int[Array, "b"]


def split(
    num_examples: int, num_train: int, seed: int
) -> tuple[Int[np.ndarray, "train"], Int[np.ndarray, "test"]]:
    """Return the examples to train on and the others, to test; the seed draws which."""
    order = np.random.default_rng(seed).permutation(num_examples)
    return order[:num_train], order[num_train:]


def draw_batches(
    examples: Int[np.ndarray, "train"], batch_size: int, num_steps: int, seed: int
) -> Int[np.ndarray, "steps b"]:
    """Return the examples of every step: epochs in new orders, rests of epochs left out."""
    rng = np.random.default_rng(seed)
    per_epoch = len(examples) // batch_size
    orders = [rng.permutation(examples) for _ in range(math.ceil(num_steps / per_epoch))]
    batches = [order[: per_epoch * batch_size].reshape(-1, batch_size) for order in orders]
    return np.concatenate(batches)[:num_steps]


def family_of(
    variant: Variant, settings: TransformerSettings
) -> Callable[[tuple[int, int]], AbstractGridMask] | None:
    """Return what makes the family of a variant's masks on a grid; None without a mask."""
    if not variant.mask:
        return None
    if variant.mask in ("grf", "ad-hoc"):
        return functools.partial(
            head_masks.Walked,
            num_hops=settings.hops,
            num_walkers=variant.walkers,
            halting=settings.halting,
            importance=variant.mask == "grf",
        )
    if variant.mask == "exact":
        return functools.partial(head_masks.Series, num_hops=settings.hops)
    return {"toeplitz": head_masks.Toeplitz, "free": head_masks.Free}[variant.mask]


class Trained(NamedTuple):
    """What training came to.

    Attributes:
      model: with the last parameters.
      losses: of every step's batch, before the step.
    """

    model: nnx.Module
    losses: Float[JaxArray, "steps"]


def train(
    model: nnx.Module,
    examples: Examples,
    batches: Int[np.ndarray, "steps b"],
    learning_rate: float,
) -> Trained:
    """Minimise the mean cross-entropy by Adam, in one compiled loop over all batches.

    Args:
      model: from one example's input to logits; only its `nnx.Param`s are trained.
      examples: those to train on among others.
      batches: examples of every step.
      learning_rate: the highest: after a tenth of the steps, then a cosine down to 1e-5.
    """
    structure, params, frozen = nnx.split(model, nnx.Param, ...)
    params, losses = _train(structure, params, frozen, examples, batches, learning_rate)
    return Trained(nnx.merge(structure, params, frozen), losses)


@functools.partial(jax.jit, static_argnums=(0, 5))
def _train(
    structure: Any,
    params: Any,
    frozen: Any,
    examples: Examples,
    batches: Int[Array, "steps b"],
    learning_rate: float,
) -> tuple[Any, Float[JaxArray, "steps"]]:
    num_steps = batches.shape[0]
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, learning_rate, max(1, num_steps // 10), max(2, num_steps), _LAST_RATE
    )
    optimizer = optax.adam(schedule)

    inputs, labels = (jnp.asarray(x) for x in examples)

    def loss_of(params: Any, batch: Int[JaxArray, "b"]) -> JaxArray:
        logits = jax.vmap(nnx.merge(structure, params, frozen))(inputs[batch])
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels[batch]).mean()

    def step(state: Any, batch: Int[JaxArray, "b"]) -> tuple[Any, JaxArray]:
        params, moments = state
        loss, gradients = jax.value_and_grad(loss_of)(params, batch)
        updates, moments = optimizer.update(gradients, moments, params)
        return (optax.apply_updates(params, updates), moments), loss

    (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), jnp.asarray(batches))
    return params, losses


def is_right(model: nnx.Module, examples: Examples) -> Bool[np.ndarray, "b"]:
    """Say of every example whether the model gives its class the highest logit."""
    structure, state = nnx.split(model)
    return np.asarray(_classes(structure, state, examples.inputs) == examples.labels)


@functools.partial(jax.jit, static_argnums=0)
def _classes(structure: Any, state: Any, inputs: Float[Array, "b *_"]) -> Int[JaxArray, "b"]:
    logits = jax.lax.map(nnx.merge(structure, state), inputs, batch_size=_CHUNK)
    return jnp.argmax(logits, axis=1)


def run_study(
    out: Path,
    examples: Examples,
    num_train: int,
    make_model: MakeModel,
    settings: TransformerSettings,
    *,
    reference: str,
    title: str,
) -> None:
    """Train every variant from every seed; write tables and a figure.

    Args:
      out: folder for settings.toml, runs.csv (one row per run, after every run), summary.csv and
        accuracy.png; files of an earlier study are replaced.
      examples: all of them.
      num_train: examples to train on; the others are to test.
      make_model: from a variant, whether positions are embedded, and random streams.
      settings: what to run.
      reference: variant that the others are compared with.
      title: of the figure.

    Raises:
      UserError: `out` cannot be a folder.
    """
    make_folder(out)
    write_settings(out / "settings.toml", settings)
    rows: list[Row] = []
    for row in run_all(examples, num_train, make_model, settings):
        rows.append(row)
        write_csv(out / "runs.csv", rows)
        print(
            f"positions {row['positions']:7} {row['variant']:16} seed {row['seed']}: accuracy "
            f"{row['accuracy']:.3f}, {row['seconds']:.0f} s",
            flush=True,
        )
    summary = summarize(rows, reference)
    write_csv(out / "summary.csv", summary)
    draw(summary, rows, title).savefig(out / "accuracy.png", dpi=110)
    print()
    table(summary).print()
    print(f"\nfigure and numbers are in {out}")


def run_all(
    examples: Examples,
    num_train: int,
    make_model: MakeModel,
    settings: TransformerSettings,
) -> Iterator[Row]:
    """Train and test every variant with the same seeds; yield a row per run.

    A seed gives every variant the same split, batches and weights; masks draw from their own
    stream.

    Arguments are those of `run_study`.
    """
    variants = split_words(settings.variants)
    # Seed by seed: after the first round there is something to compare.
    for seed in range(settings.seeds):
        to_train, to_test = split(len(examples.labels), num_train, seed)
        batches = draw_batches(to_train, settings.batch_size, settings.steps, seed)
        for positions, word in itertools.product(split_words(settings.positions), variants):
            variant = parse_variant(word)
            assert variant is not None
            started = time.monotonic()
            model = make_model(variant, positions == "learned", _streams(seed))
            trained = train(model, examples, batches, settings.learning_rate)
            right = is_right(trained.model, examples)
            yield {
                "positions": positions,
                "variant": word,
                "seed": seed,
                "accuracy": right[to_test].mean(),
                "train accuracy": right[to_train].mean(),
                "last losses": float(trained.losses[-100:].mean()),
                "parameters": count_parameters(model),
                "seconds": time.monotonic() - started,
            }


def _streams(seed: int) -> nnx.Rngs:
    weights, masks = jax.random.split(jax.random.key(seed))
    return nnx.Rngs(params=weights, masks=masks)


def summarize(rows: list[Row], reference: str) -> list[Row]:
    """Return means over seeds per positions and variant, paired with a reference variant.

    A seed gives all variants the same split, batches and weights.
    """
    return [
        {
            **columns,
            "train accuracy": np.mean([row["train accuracy"] for row in some]),
            "parameters": some[0]["parameters"],
            "seconds": np.median([row["seconds"] for row in some]),
        }
        for columns, some in paired_summary(rows, "positions", "variant", reference)
    ]


def draw(summary: list[Row], rows: list[Row], title: str) -> Figure:
    """Draw accuracies with intervals, and every run as a dot; one panel per kind of positions."""
    kinds = list(dict.fromkeys(row["positions"] for row in summary))
    variants = list(dict.fromkeys(row["variant"] for row in summary))
    figure = Figure(figsize=(4.2 * len(kinds) + 2, 0.4 * len(variants) + 1.6), layout="constrained")
    panels = figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, kinds, strict=True):
        some = [row for row in summary if row["positions"] == kind]
        place = np.array([variants.index(row["variant"]) for row in some], float)
        axes.errorbar([row["accuracy"] for row in some], place, xerr=[row["+-"] for row in some],
                      fmt="o", color=colors.BLUE, capsize=3)  # fmt: skip
        for row in rows:
            if row["positions"] == kind:
                at = variants.index(row["variant"]) + 0.22
                axes.plot(row["accuracy"], at, ".", color=colors.GRAY, markersize=4)
        axes.set_yticks(range(len(variants)), variants)
        axes.set(xlabel="test accuracy", title=f"position embeddings: {kind}")
        axes.grid(axis="x", alpha=0.25)
    panels[0].invert_yaxis()
    figure.suptitle(f"{title}: mean over seeds with 95 % interval, dots are runs")
    return figure
