"""`python -m studies mechanisms`: topology, cost and error of every attention mechanism.

Costs are those of one forward call for one head, m features and values of width m, with graphs,
walks and decompositions given:

- time: the fastest of several rounds. Exponents are fitted to processor time, which a busy machine
  hardly changes, over all sizes, and once more over their upper half: there what a call costs
  whatever its size no longer counts, but caches that overflow do. Wall time is in the CSV.
- memory: XLA's plan of arguments, temporaries and results, the mask's own arrays among them, fitted
  over the upper half.
- peak memory: resident memory of a process of its own that makes everything and attends once.

The error is the largest difference from float64 attention with the mask's dense form, over the
largest entry. For sampled walks that form is the sampled mask's: how far it is from the power
series is what `python -m studies grf` measures.
"""

import functools
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hdvpd.attention.feature_maps import relu_features
from hdvpd.attention.grf import walk_attention
from hdvpd.attention.linear import linear_attention
from hdvpd.attention.masked import masked_linear_attention
from hdvpd.attention.masks.base import AbstractMask
from hdvpd.attention.masks.walks import SparseMask, walk_rows
from hdvpd.basics.machine import keep_freed_memory
from hdvpd.basics.types import Array, Float
from studies.attention import dense
from studies.attention.causal import causal_attention
from studies.attention.masks.forests import edge_forest
from studies.attention.masks.sequences import CausalMask, PaddingMask
from studies.attention.masks.trees import ExponentialForestMask
from studies.costs import compiled_bytes, fastest, fitted_slope, peak_resident_bytes
from studies.example_masks import KINDS, neighbor_walks, tree_example
from studies.outputs import (
    Row,
    make_folder,
    table,
    write_csv,
    write_settings,
)
from studies.settings import MechanismSettings, split_names

BARS = {"N": 1.1, "N log N": 1.2, "N log^2 N": 1.35}
"""Largest exponent of time that a cost may show between 2^10 and 2^16 tokens."""

PEAKS = ("linear", "GRF symmetric", "GRF along walks")
"""Mechanisms whose peak memory is measured."""

_ERROR_TOKENS = 64


class Mechanism(NamedTuple):
    """A way to attend.

    Attributes:
      topology: what its mask depends on.
      cost: of a call, in the number of tokens N.
      prepare: of the number of tokens and a generator, the mask and what `attend` takes of it.
      attend: of positive features of queries and keys [t m], values [t m] and what was prepared.
      scores: what the mask multiplies.
    """

    topology: str
    cost: str
    prepare: Callable[[int, np.random.Generator], tuple[AbstractMask, Any]]
    attend: Callable[..., Float[Array, "t m"]] = masked_linear_attention
    scores: Literal["linear", "softmax"] = "linear"


def main(out: Path, settings: MechanismSettings) -> None:
    """Write settings.toml, costs.csv, table.csv, table.md and peaks.csv; print the tables.

    Args:
      out: folder to write to; files of an earlier study are replaced.
      settings: what to measure.

    Raises:
      UserError: `out` cannot be a folder, or a mechanism is not known.
    """
    names = split_names(settings, "mechanisms", tuple(MECHANISMS))
    make_folder(out)
    keep_freed_memory()  # as training does: time would go to clearing pages from 2^16 tokens on
    write_settings(out / "settings.toml", settings)
    started = time.monotonic()
    costs: list[Row] = []
    for name in names:
        costs += cost_rows(name, settings)
        write_csv(out / "costs.csv", costs)  # after each, as they take minutes together
        print(f"measured {name}", flush=True)
    errors = {name: relative_error(name, _ERROR_TOKENS, settings) for name in names}
    summary = table(summarize(costs, errors), f"One head, m = {settings.width}")
    (out / "table.csv").write_text(summary.csv())
    (out / "table.md").write_text(summary.markdown())
    print()
    summary.print()
    if settings.peak_tokens:
        peaks = [peak_row(name, settings) for name in PEAKS if name in names]
        write_csv(out / "peaks.csv", peaks)
        print()
        table(peaks, "Peak resident memory").print()
    print(f"\n{time.monotonic() - started:.0f} s; numbers are in {out}")


# Measurements -------------------------------------------------------------------------------------


def cost_rows(name: str, settings: MechanismSettings) -> list[Row]:
    """Measure time and memory of a mechanism at every size."""
    mechanism = MECHANISMS[name]
    quadratic = mechanism.cost == "N^2"
    exponents = settings.quadratic_exponents if quadratic else settings.exponents
    sizes = [1 << exponent for exponent in exponents]
    calls, memory = [], []
    for size in sizes:
        _, arguments = _prepare(mechanism, size, settings.width, settings.seed)
        compiled = jax.jit(mechanism.attend).lower(*arguments).compile()
        calls.append(functools.partial(compiled, *arguments))
        memory.append(compiled_bytes(compiled))
    return [
        {
            "mechanism": name,
            "tokens": size,
            "seconds": seconds.wall,
            "processor seconds": seconds.cpu,
            "bytes": num_bytes,
        }
        for size, seconds, num_bytes in zip(
            sizes, fastest(calls, settings.rounds), memory, strict=True
        )
    ]


def relative_error(name: str, num_tokens: int, settings: MechanismSettings) -> float:
    """Return a mechanism's largest error against its dense form, over the largest entry."""
    mechanism = MECHANISMS[name]
    mask, arguments = _prepare(mechanism, num_tokens, settings.width, settings.seed)
    got = np.asarray(jax.jit(mechanism.attend)(*arguments), np.float64)
    query, key, value = (np.asarray(x, np.float64) for x in arguments[:3])
    scores = query @ key.T
    if mechanism.scores == "softmax":
        scores = np.exp(scores / np.sqrt(settings.width))
    weights = np.asarray(mask.dense(), np.float64) * scores
    total = weights.sum(1, keepdims=True)
    expected = weights @ value / np.where(total > 0, total, 1.0)
    return float(np.abs(got - expected).max() / np.abs(expected).max())


def summarize(costs: Sequence[Row], errors: dict[str, float]) -> list[Row]:
    """Return the table: exponents, and whether those of time over all sizes are in their bars.

    Args:
      costs: rows of `cost_rows`, of each mechanism from the smallest size to the largest.
      errors: of each mechanism.
    """
    table: list[Row] = []
    for name, error in errors.items():
        rows = [row for row in costs if row["mechanism"] == name]
        upper = rows[len(rows) // 2 :] if len(rows) > 3 else rows
        sizes = [row["tokens"] for row in upper]
        cost, last = MECHANISMS[name].cost, rows[-1]
        growth, growth_above = (
            fitted_slope(
                [row["tokens"] for row in fitted], [row["processor seconds"] for row in fitted]
            )
            for fitted in (rows, upper)
        )
        bar = BARS.get(cost)
        table.append(
            {
                "mechanism": name,
                "topology": MECHANISMS[name].topology,
                "cost": cost,
                "exponent of time": growth,
                "upper half": growth_above,
                "bar": "" if bar is None else f"{bar:g} {'kept' if growth <= bar else 'missed'}",
                "exponent of memory": fitted_slope(sizes, [row["bytes"] for row in upper]),
                "relative error": error,
                "tokens": last["tokens"],
                "processor ms": 1e3 * last["processor seconds"],
                "MiB": last["bytes"] / 2**20,
            }
        )
    return table


def peak_row(name: str, settings: MechanismSettings) -> Row:
    """Measure the peak memory of one call in a process of its own."""
    tokens, width = settings.peak_tokens, settings.peak_width
    words = [name, str(tokens), str(width), str(settings.seed)]
    command = [sys.executable, "-m", "studies.mechanisms", *words]
    before, after = subprocess.run(
        command, check=True, capture_output=True, text=True
    ).stdout.split()
    return {
        "mechanism": name,
        "tokens": tokens,
        "m": width,
        "peak GiB": int(after) / 2**30,
        "before attention GiB": int(before) / 2**30,
    }


def _print_peaks(name: str, num_tokens: int, width: int, seed: int) -> None:
    """Attend once; print the process's peak memory [bytes] before and after."""
    mechanism = MECHANISMS[name]
    _, arguments = _prepare(mechanism, num_tokens, width, seed)
    before = peak_resident_bytes()
    jax.block_until_ready(jax.jit(mechanism.attend)(*arguments))
    print(before, peak_resident_bytes())


def _prepare(
    mechanism: Mechanism, num_tokens: int, width: int, seed: int
) -> tuple[AbstractMask, tuple[Any, ...]]:
    """Return the mask and the arguments of `attend`, on the device."""
    rng = np.random.default_rng(seed)
    mask, operand = mechanism.prepare(num_tokens, rng)
    query, key, value = rng.normal(size=(3, mask.num_tokens, width)).astype(np.float32)
    arguments = (relu_features(query), relu_features(key), value, operand)
    return mask, jax.device_put(jax.tree.map(jnp.asarray, arguments))


# Mechanisms ---------------------------------------------------------------------------------------


def _no_mask(num_tokens: int, rng: np.random.Generator) -> tuple[AbstractMask, Any]:
    del rng
    return PaddingMask(np.ones(num_tokens, bool)), None


def _of_kind(name: str, num_tokens: int, rng: np.random.Generator) -> tuple[AbstractMask, Any]:
    mask = KINDS[name].make(num_tokens, rng).mask
    return mask, mask


def _dense_grid(num_tokens: int, rng: np.random.Generator) -> tuple[AbstractMask, Any]:
    mask = KINDS["grid distance"].make(num_tokens, rng).mask
    return mask, mask.dense()


def _no_operand(num_tokens: int, rng: np.random.Generator) -> tuple[AbstractMask, Any]:
    del rng
    return CausalMask(num_tokens), None


def _along_walks(num_tokens: int, rng: np.random.Generator) -> tuple[AbstractMask, Any]:
    walks = neighbor_walks(num_tokens, rng)[0]
    modulation = np.exp(-0.5 * np.arange(4, dtype=np.float32))
    return SparseMask(walk_rows(walks, modulation)), (modulation, walks)


def _exponential_path(num_tokens: int, rng: np.random.Generator) -> tuple[AbstractMask, Any]:
    lengths = rng.uniform(0.3, 1.5, num_tokens - 1)
    mask = ExponentialForestMask(edge_forest(num_tokens, _path(num_tokens), lengths), -0.7, 0.0)
    return mask, mask


def _tree_path(num_tokens: int, rng: np.random.Generator) -> tuple[AbstractMask, Any]:
    del rng
    mask = tree_example(_path(num_tokens)).mask
    return mask, mask


def _tree_levels(num_tokens: int, rng: np.random.Generator) -> tuple[AbstractMask, Any]:
    del rng
    node = np.arange(1, num_tokens)
    mask = tree_example(np.stack([node, (node - 1) // 2], axis=1), by_levels=True).mask
    return mask, mask


def _path(num_tokens: int) -> np.ndarray:
    return np.stack([np.arange(num_tokens - 1), np.arange(1, num_tokens)], axis=1)


MECHANISMS: dict[str, Mechanism] = {
    "softmax": Mechanism(
        "none", "N^2", _no_mask,
        lambda query, key, value, _: dense.softmax_attention(query, key, value), "softmax",
    ),
    "softmax with dense mask": Mechanism(
        "any", "N^2", _dense_grid, dense.masked_softmax_attention, "softmax"
    ),
    "linear with dense mask": Mechanism(
        "any", "N^2", _dense_grid, dense.masked_linear_attention
    ),
    "linear": Mechanism(
        "none", "N", _no_mask,
        lambda query, key, value, _: linear_attention(
            query[:, None], key[:, None], value[:, None], jnp.ones(len(query), bool)
        )[:, 0],
    ),
    **{
        name: Mechanism(kind.topology, kind.cost, functools.partial(_of_kind, name))
        for name, kind in KINDS.items()
    },
    "causal in blocks": Mechanism(
        "order", "N", _no_operand,
        lambda query, key, value, _: causal_attention(query, key, value),
    ),
    "GRF along walks": Mechanism(
        "graph", "N", _along_walks,
        lambda query, key, value, operand: walk_attention(query, key, value, *operand),
    ),
    "exponential on a path": Mechanism("forest", "N", _exponential_path),
    "distance on a path": Mechanism("tree", "N log^2 N", _tree_path),
    "distance by level arrays": Mechanism("tree", "N log N", _tree_levels),
}  # fmt: skip
"""Every mechanism by name: softmax and linear attention, linear attention under every kind of mask,
and forms and graphs of their own. Level arrays cost O(N diameter), here of a binary tree."""


if __name__ == "__main__":
    _print_peaks(sys.argv[1], *map(int, sys.argv[2:]))
