"""The table of mechanisms: errors, exponents and bars of made-up costs, and what is written."""

import csv
import time

import numpy as np
import pytest

from studies import masks
from studies.__main__ import main
from studies.costs import fastest, fitted_slope
from studies.example_masks import KINDS
from studies.mechanisms import MECHANISMS, relative_error, summarize
from studies.settings import MechanismSettings

SETTINGS = MechanismSettings(width=4)


# One of every way to attend and of every kind of product; each mask has tests of its own.
SOME = ("softmax", "softmax with dense mask", "linear with dense mask", "linear", "causal",
        "causal in blocks", "grid distance", "GRF symmetric", "GRF along walks")  # fmt: skip


@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_equals_its_dense_form(name, long):
    if not long and name not in SOME:
        pytest.skip("with --long")
    # Rounding of float32 in sums of positive terms; Fourier transforms and Chebyshev series cancel.
    assert relative_error(name, 16, SETTINGS) < 1e-5


def costs(name: str, seconds, tokens=tuple(2**exponent for exponent in range(10, 17))) -> list:
    return [
        {
            "mechanism": name,
            "tokens": size,
            "seconds": 2 * seconds(size),
            "processor seconds": seconds(size),
            "bytes": 100 * size + 500,
        }
        for size in tokens
    ]


def test_exponents_over_all_sizes_are_held_against_the_bars():
    rows = costs("linear", lambda size: max(1e-8 * size, 5e-5))  # what any call costs: up to 2^12
    rows += costs("causal", lambda size: 1e-8 * size**1.5)
    rows += costs("grid distance", lambda size: 1e-8 * size * np.log(size))
    rows += costs("softmax", lambda size: 1e-9 * size**2, (256, 512, 1024, 2048, 4096))
    table = summarize(rows, dict.fromkeys(("linear", "causal", "grid distance", "softmax"), 1e-6))
    linear, causal, grid, softmax = table
    assert linear["upper half"] == pytest.approx(1, abs=1e-9)
    assert 0.5 < linear["exponent of time"] < 0.9
    assert linear["exponent of memory"] == pytest.approx(1, abs=1e-2)
    assert linear["bar"] == "1.1 kept"
    assert causal["exponent of time"] == pytest.approx(1.5)
    assert causal["bar"] == "1.1 missed"
    assert 1.05 < grid["exponent of time"] < 1.15
    assert grid["bar"] == "1.2 kept"
    assert softmax["exponent of time"] == pytest.approx(2)
    assert softmax["bar"] == ""
    assert (linear["tokens"], linear["processor ms"]) == (65536, pytest.approx(0.65536))


def test_slopes_are_exponents():
    sizes = np.array([1.0, 2.0, 8.0])
    assert fitted_slope(sizes, 3 * sizes**1.25) == pytest.approx(1.25)


def test_the_first_round_does_not_count():
    calls = []

    def call():
        calls.append(None)
        time.sleep(0.3 if len(calls) <= 2 else 0.06)  # longer than a round: no repetitions

    (seconds,) = fastest([call], rounds=3)
    assert len(calls) == 2 + 3 * 2
    assert 0.06 <= seconds.wall < 0.3
    assert 0 <= seconds.cpu < np.inf


def test_the_command_writes_the_tables(tmp_path, capsys):
    out = tmp_path / "study"
    flags = ["--mechanisms", "softmax,linear", "--from-exponent", "5", "--to-exponent", "8",
             "--rounds", "1", "--peak-tokens", "64", "--peak-width", "4"]  # fmt: skip
    assert main(["mechanisms", "--out", str(out), *flags]) == 0
    printed = capsys.readouterr().out
    assert "exponent" in printed
    assert "Peak resident memory" in printed

    def read(name):
        with (out / name).open() as file:
            return list(csv.DictReader(file))

    assert [(row["mechanism"], row["tokens"]) for row in read("costs.csv")] == [
        *(("softmax", str(size)) for size in (8, 16)),
        *(("linear", str(size)) for size in (32, 64, 128, 256)),
    ]
    softmax, linear = read("table.csv")
    assert (softmax["topology"], softmax["cost"], softmax["bar"]) == ("none", "N^2", "")
    assert float(linear["relative error"]) < 1e-5
    # One row per mechanism under a head and a rule.
    assert (out / "table.md").read_text().count("\n") == 4
    (peak,) = read("peaks.csv")
    assert 0 < float(peak["before attention GiB"]) <= float(peak["peak GiB"]) < 2
    assert "peak_tokens = 64" in (out / "settings.toml").read_text()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mechanisms", "sofmax"], "expected some of softmax,"),
        (["--to-exponent", "11"], "three more than --from-exponent"),
        (["--peak-tokens", "-1"], "no negative number"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, flags, message):
    assert main(["mechanisms", "--out", str(tmp_path / "out"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_pictures_show_every_kind(tmp_path, monkeypatch):
    kinds = {name: KINDS[name] for name in ("padding", "exponential on a forest", "hypercube heat")}
    monkeypatch.setattr(masks, "KINDS", kinds)
    assert main(["masks", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "masks.png").read_bytes().startswith(b"\x89PNG")


def test_trees_are_laid_out_apart():
    example = KINDS["exponential on a forest"].make(12, np.random.default_rng(0))
    points = masks.layout(example).reshape(3, 4, 2)
    centers = points.mean(1)
    own = np.linalg.norm(points - centers[:, None], axis=2)
    other = np.linalg.norm(points - np.roll(centers, 1, axis=0)[:, None], axis=2)
    assert (own < other).all()
