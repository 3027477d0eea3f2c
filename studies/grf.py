"""`python -m studies grf`: graph random features against theory, in tables and figures."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hdvpd.basics import colors
from hdvpd.basics.machine import keep_freed_memory
from studies import grf_measurements as measure
from studies.costs import fitted_slope
from studies.grf_measurements import AD_HOC, COUPLINGS
from studies.outputs import Row, make_folder, table, write_csv
from studies.settings import GrfSettings

_COLORS = {
    "iid": colors.BLUE,
    "antithetic": colors.ORANGE,
    "repelling": colors.GREEN,
    "repelling-antithetic": colors.VERMILION,
    AD_HOC: colors.GRAY,
}
_ERROR = "squared relative error"


class Part(NamedTuple):
    """One question of the study.

    Attributes:
      name: of its files.
      title: the question, printed above its table.
      measure: makes the rows of its CSV from a seed.
      summary: what is printed of them.
      figure: what is drawn of them.
    """

    name: str
    title: str
    measure: Callable[[int], list[Row]]
    summary: Callable[[list[Row]], list[Row]]
    figure: Callable[[list[Row]], Figure]


def main(out: Path, settings: GrfSettings) -> None:
    """Run all parts: NAME.csv and NAME.png in `out`, a table of each on the screen.

    Args:
      out: folder to write to; files of an earlier study are replaced.
      settings: the seed.

    Raises:
      UserError: `out` cannot be a folder.
    """
    make_folder(out)
    keep_freed_memory()
    for part in PARTS:
        started = time.monotonic()
        rows = part.measure(settings.seed)
        write_csv(out / f"{part.name}.csv", rows)
        part.figure(rows).savefig(out / f"{part.name}.png", dpi=130)
        title = f"{part.title} ({part.name}, {time.monotonic() - started:.0f} s)"
        print()
        table(part.summary(rows), title).print()
    print(f"\nfigures and numbers are in {out}")


def _unchanged(rows: list[Row]) -> list[Row]:
    return rows


# Bias ---------------------------------------------------------------------------------------------


def _draw_bias(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(10, 4), layout="constrained")
    scores, diagonal = figure.subplots(1, 2)
    place = np.arange(len(rows))
    names = [row["coupling"].replace("-", "-\n") for row in rows]
    for shift, column in ((-0.2, "max |z| of 144 features"), (0.2, "max |z| of 132 mask entries")):
        scores.bar(place + shift, [row[column] for row in rows], 0.4, label=column)
    scores.axhline(4, color="black", linestyle=":", label="4 standard errors")
    scores.set(title="off the diagonal: difference / standard error", ylim=(0, 6))
    columns = ("bias, one set", "sum of variances", "bias, two sets")
    for shift, column in zip((-0.27, 0, 0.27), columns, strict=True):
        error = [4 * row["its standard error"] for row in rows] if "two" in column else None
        diagonal.bar(place + shift, [row[column] for row in rows], 0.27, yerr=error, label=column)
    diagonal.set(title=f"mean bias of the diagonal, whose value is {rows[0]['diagonal']:.3f}")
    for axes in (scores, diagonal):
        axes.set_xticks(place, names)
        axes.legend()
    return figure


# Exactness ----------------------------------------------------------------------------------------


def _draw_exactness(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    names = [f"{row['graph']}, {row['walkers']} {row['coupling']}" for row in rows]
    errors = [max(row["relative error (not squared)"], 1e-9) for row in rows]
    axes.barh(names, errors, color=[_COLORS[row["coupling"]] for row in rows])
    axes.invert_yaxis()
    axes.set(
        xscale="log",
        xlabel="relative Frobenius error of Phi (not squared); float32 rounds at 1e-7",
        title="3 hops on 3-neighbour lists of 200 points",
    )
    return figure


# Error against walkers ----------------------------------------------------------------------------


def _curve(rows: list[Row], graph: str, estimator: str) -> tuple[list[int], list[float]]:
    chosen = [row for row in rows if (row["graph"], row["estimator"]) == (graph, estimator)]
    return [row["walkers"] for row in chosen], [row[_ERROR] for row in chosen]


def summarize_errors(rows: list[Row]) -> list[Row]:
    """Return per graph and estimator the error at 4 and 16 walkers, the gain and the slope.

    The slope of log error against log walkers is fitted over all numbers of walkers; of the squared
    error, -1 is the Monte-Carlo rate (n^-1/2 before squaring).
    """
    summary: list[Row] = []
    for graph in dict.fromkeys(row["graph"] for row in rows):
        independent = dict(zip(*_curve(rows, graph, "iid"), strict=True))
        for estimator in (*COUPLINGS, AD_HOC):
            walkers, errors = _curve(rows, graph, estimator)
            at = dict(zip(walkers, errors, strict=True))
            summary.append(
                {
                    "graph": graph,
                    "estimator": estimator,
                    "error, n = 4": at[4],
                    "n = 16": at[16],
                    "gain over iid at 16": independent[16] / at[16],
                    "slope": fitted_slope(walkers, errors),
                }
            )
    return summary


def _draw_errors(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    graphs = list(dict.fromkeys(row["graph"] for row in rows))
    for axes, graph in zip(figure.subplots(2, 2).flat, graphs, strict=True):
        for estimator, color in _COLORS.items():
            walkers, errors = _curve(rows, graph, estimator)
            label = f"{estimator}: slope {fitted_slope(walkers, errors):.2f}"
            axes.plot(walkers, errors, "o-", color=color, label=label, markersize=4)
        _log_log(axes, sorted({row["walkers"] for row in rows}))
        axes.set(title=graph, xlabel="walkers per node", ylabel=_ERROR)
        # Room for the legend below the lowest curve.
        axes.set_ylim(bottom=axes.get_ylim()[0] / 30)
        axes.legend(fontsize="small", loc="lower left")
    figure.suptitle("exp(0.25 W), p = 0.5, one walk set, diagonal included")
    return figure


def _log_log(axes: Axes, ticks: list[int]) -> None:
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.25)


# Concentration and sparsity -----------------------------------------------------------------------


def _summarize_concentration(rows: list[Row]) -> list[Row]:
    summary: list[Row] = []
    for walkers in dict.fromkeys(row["walkers"] for row in rows):
        some = [row for row in rows if row["walkers"] == walkers]
        summary.append(
            {
                "walkers": walkers,
                "t with bound 0.05": next((r["t"] for r in some if r["bound"] <= 0.05), "over 4"),
                "t with tail 0.05": next(r["t"] for r in some if r["tail"] <= 0.05),
                "bound holds": all(row["tail"] <= row["bound"] for row in some),
                "largest row sum": some[0]["largest row sum of a feature"],
                "c": some[0]["c"],
            }
        )
    return summary


def _draw_concentration(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    numbers = dict.fromkeys(row["walkers"] for row in rows)
    for walkers, color in zip(numbers, itertools.cycle(colors.SERIES), strict=False):
        some = [row for row in rows if row["walkers"] == walkers]
        distance = np.array([row["t"] for row in some])
        tail = np.array([row["tail"] for row in some])
        axes.plot(distance[tail > 0], tail[tail > 0], ".-", color=color, label=f"n = {walkers}")
        axes.plot(distance, [r["bound"] for r in some], ":", color=color, label="its bound")
    axes.set(
        yscale="log",
        ylim=(1e-4, 2),
        xlabel="t",
        ylabel="P(|estimate - mask entry| > t)",
        title="tail of the heaviest pair off the diagonal",
    )
    axes.grid(alpha=0.25)
    axes.legend()
    return figure


def _draw_sparsity(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    place = np.arange(len(rows))
    axes.bar(place - 0.2, [row["mean nonzeros"] for row in rows], 0.4, label="mean nonzeros")
    axes.bar(place + 0.2, [row["bound of nonzeros"] for row in rows], 0.4, label="bound")
    names = [f"p = {row['p']}, n = {row['walkers']}\nwithin b: {row['all walks within b']:.3f}"
             for row in rows]  # fmt: skip
    axes.set_xticks(place, names)
    axes.set(title=f"nonzeros per row, promised with probability {rows[0]['promised']}")
    axes.legend()
    return figure


# Cost ---------------------------------------------------------------------------------------------

_ATTENTIONS = {"softmax": colors.GRAY, "linear": colors.BLUE, "grf": colors.VERMILION}
_FROM = 1024  # Smaller calls cost what any call costs.


def flop_exponents(rows: list[Row]) -> dict[str, float]:
    """Return the exponent of FLOP against tokens, per attention, fitted from 32 tokens on.

    Shorter paths are mostly ends.
    """
    return {name: _exponent(rows, name, 32) for name in _ATTENTIONS}


def _exponent(rows: list[Row], column: str, smallest: int) -> float:
    some = [row for row in rows if row["tokens"] >= smallest and row[column] > 0]
    return fitted_slope([row["tokens"] for row in some], [row[column] for row in some])


def _measure_flops(seed: int) -> list[Row]:
    return measure.attention_seconds(seed, measure.flop_counts(seed))


def _summarize_flops(rows: list[Row]) -> list[Row]:
    last = rows[-1]
    return [
        {
            "attention": name,
            "rule": rule,
            "exponent": exponent,
            f"FLOP at N = {last['tokens']}": last[name],
            "over linear": last[name] / last["linear"],
            f"exponent of time from N = {_FROM}": _exponent(rows, f"{name} seconds", _FROM),
        }
        for (name, exponent), rule in zip(
            flop_exponents(rows).items(), ("4 N^2 d", "4 N m d", "4 nnz m d"), strict=True
        )
    ]


def _draw_flops(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(11, 5), layout="constrained")
    flops, seconds = figure.subplots(1, 2)
    tokens = [row["tokens"] for row in rows]
    for axes, suffix, smallest in ((flops, "", 32), (seconds, " seconds", _FROM)):
        for name, color in _ATTENTIONS.items():
            column = name + suffix
            label = f"{name}: exponent {_exponent(rows, column, smallest):.2f} from {smallest}"
            axes.plot(tokens, [row[column] for row in rows], "o-", color=color, label=label,
                      markersize=4)  # fmt: skip
        axes.set(xscale="log", yscale="log", xlabel="tokens N")
        axes.grid(alpha=0.25)
        axes.legend()
    flops.set_ylabel("FLOP (multiply-add = 2, normaliser not counted)")
    seconds.set_ylabel("processor seconds, best of 5 calls")
    figure.suptitle("attention on a 1-D grid, n = 4, p = 0.5, d = m = 8")
    return figure


def _draw_nonzeros(rows: list[Row]) -> Figure:
    figure = Figure(figsize=(6.5, 4), layout="constrained")
    axes = figure.subplots()
    walkers = [row["walkers"] for row in rows]
    axes.plot(walkers, [row["nonzeros per token"] for row in rows], "o-", color=colors.BLUE)
    axes.set_xscale("log")
    axes.set_xticks(walkers, [str(number) for number in walkers])
    axes.minorticks_off()
    axes.set(xlabel="walkers", ylabel="nonzeros per token", title="path of 64 nodes, p = 0.5")
    axes.grid(alpha=0.25)
    return figure


PARTS = (
    Part("bias", "Is it unbiased off the diagonal, and with two walk sets on it?",
         measure.unbiasedness, _unchanged, _draw_bias),
    Part("exactness", "When are repelling walks exact?",
         measure.exactness, _unchanged, _draw_exactness),
    Part("errors", "How does the squared relative Frobenius error fall with walkers?",
         measure.coupling_errors, summarize_errors, _draw_errors),
    Part("concentration", "Does the concentration bound hold?",
         measure.concentration, _summarize_concentration, _draw_concentration),
    Part("sparsity", "Does the sparsity bound hold?",
         measure.sparsity, _unchanged, _draw_sparsity),
    Part("flops", "How does the cost grow with tokens?",
         _measure_flops, _summarize_flops, _draw_flops),
    Part("nonzeros", "How does the cost grow with walkers?",
         measure.nonzeros_against_walkers, _unchanged, _draw_nonzeros),
)  # fmt: skip
