"""The study's numbers against the ranges of the papers' programs, and what it writes."""

import csv

import numpy as np
import pytest

from studies import grf
from studies import grf_measurements as measure
from studies.__main__ import main
from studies.attention.power_series import exponential, power_series

# Squared relative Frobenius error of exp(0.25 W) with 4 and 16 walkers, by the public programs of
# arXiv 2310.04854 and 2305.12470 (mean of 4 to 6 runs, spread about 20 %).
PUBLIC_ERRORS = {
    ("grid 8x8", "iid"): (0.013, 0.0033),
    ("grid 8x8", "antithetic"): (0.011, 0.0030),
    ("grid 8x8", "repelling"): (0.0072, 0.0008),
    ("grid 8x8", "repelling-antithetic"): (0.0067, 0.00014),
    ("circulant 100, d = 10", "iid"): (0.0146, 0.0036),
    ("circulant 100, d = 10", "antithetic"): (0.0139, 0.0035),
    ("circulant 100, d = 10", "repelling"): (0.0120, 0.00095),
    ("circulant 100, d = 10", "repelling-antithetic"): (0.0120, 0.00075),
    ("Erdos-Renyi 20, p = 0.2", "iid"): (0.016, 0.0036),
    ("Erdos-Renyi 20, p = 0.2", "antithetic"): (0.0125, 0.0028),
    ("Erdos-Renyi 20, p = 0.2", "repelling"): (0.009, 0.0009),
    ("Erdos-Renyi 20, p = 0.2", "repelling-antithetic"): (0.008, 0.00035),
    ("Erdos-Renyi 100, p = 0.5", "iid"): (0.0155, 0.0039),
    ("Erdos-Renyi 100, p = 0.5", "antithetic"): (0.0155, 0.0039),
    ("Erdos-Renyi 100, p = 0.5", "repelling"): (0.0155, 0.0034),
    ("Erdos-Renyi 100, p = 0.5", "repelling-antithetic"): (0.0152, 0.0033),
}

EXPONENTS = (3, 5, 7, 9, 11)


@pytest.fixture(scope="module")
def errors(long):
    # Every number of walkers and coupling is a compilation: four walkers of each only when long.
    rows = measure.coupling_errors(0, walkers=(16,))
    few = measure.COUPLINGS if long else ("iid",)
    rows += measure.coupling_errors(0, walkers=(4,), couplings=few)
    return {
        (row["graph"], row["estimator"], row["walkers"]): row["squared relative error"]
        for row in rows
    }


@pytest.mark.parametrize(("graph", "coupling"), PUBLIC_ERRORS)
def test_errors_are_in_the_range_of_the_public_programs(errors, graph, coupling):
    # The small random graph varies with its draw; there are few of its nodes, too.
    factor = 2.2 if "20" in graph else 1.35
    for walkers, public in zip((4, 16), PUBLIC_ERRORS[graph, coupling], strict=True):
        if (graph, coupling, walkers) in errors:
            assert public / factor < errors[graph, coupling, walkers] < public * factor


def test_couplings_gain_what_the_papers_say(errors):
    def gain(graph, coupling):
        return errors[graph, "iid", 16] / errors[graph, coupling, 16]

    assert 3 < gain("grid 8x8", "repelling") < 5.5
    assert 3 < gain("circulant 100, d = 10", "repelling") < 5.5
    assert 10 < gain("grid 8x8", "repelling-antithetic") < 30
    assert 0.9 < gain("Erdos-Renyi 100, p = 0.5", "repelling") < 1.4
    for graph in measure.benchmark_graphs(0):
        ratio = errors[graph, "iid", 4] / errors[graph, "iid", 16]
        assert ratio == pytest.approx(4, rel=0.3)


def test_counts_without_importance_weights_keep_their_bias(errors):
    four, sixteen = (errors["grid 8x8", measure.AD_HOC, walkers] for walkers in (4, 16))
    assert sixteen > 1.3 * errors["grid 8x8", "iid", 16]
    assert sixteen > 0.5 * four


def test_flop_grow_linearly_with_tokens_but_softmaxs_quadratically():
    rows = measure.flop_counts(0, exponents=EXPONENTS)
    exponents = grf.flop_exponents(rows)
    assert exponents["softmax"] == pytest.approx(2, abs=1e-9)
    assert exponents["linear"] == pytest.approx(1, abs=1e-9)
    # The nonzeros of 32 tokens have a standard error of 6 %.
    assert exponents["grf"] == pytest.approx(1, abs=0.05)
    # 4 nnz m d is about 3.1 times linear attention's 4 N m d (the paper's drawing shows 1.93).
    assert rows[-1]["grf"] / rows[-1]["linear"] == pytest.approx(3.13, rel=0.05)


def test_nonzeros_grow_slower_than_walkers():
    rows = measure.nonzeros_against_walkers(0)
    # Distinct nodes counted with the public programs' walks, n = 2..256.
    expected = [2.2, 3.2, 4.1, 5.0, 5.9, 6.9, 8.0, 9.0]
    np.testing.assert_allclose([row["nonzeros per token"] for row in rows], expected, rtol=0.08)


def test_sparsity_and_concentration_bounds_hold():
    for row in measure.sparsity(0, cases=((0.5, 4),)):
        assert row["all walks within b"] >= row["promised"] - 0.02
        assert row["nonzeros within bound"] >= row["all walks within b"]
        assert row["mean nonzeros"] < row["bound of nonzeros"]
    rows = measure.concentration(0, walkers=(16,), num_runs=512)
    assert all(row["tail"] <= row["bound"] for row in rows)
    assert min(row["bound"] for row in rows) < 0.1
    # What the bound rests on: no row of features is longer than c.
    assert 0.5 * rows[0]["c"] < rows[0]["largest row sum of a feature"] <= rows[0]["c"] + 1e-5


def test_relative_error_is_squared():
    truth = power_series(measure.grid(2, 2), exponential(4).mask)
    assert measure.relative_error(1.1 * truth, truth) == pytest.approx(0.01)


def test_the_command_writes_tables_and_figures(tmp_path, monkeypatch, capsys):
    def flops(seed):
        return measure.attention_seconds(
            seed, measure.flop_counts(seed, exponents=(10, 11, 12)), largest_softmax=2048
        )

    quick = {"flops": flops}
    parts = [part._replace(measure=quick[part.name]) for part in grf.PARTS if part.name in quick]
    monkeypatch.setattr(grf, "PARTS", parts)
    out = tmp_path / "study"
    assert main(["grf", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "How does the cost grow with tokens?" in printed
    assert "4 nnz m d" in printed
    with (out / "flops.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["tokens"] for row in rows] == ["1024", "2048", "4096"]
    assert rows[0]["softmax"] == str(4 * 1024**2 * 8)
    assert [row["softmax seconds"] == "nan" for row in rows] == [False, False, True]
    assert all(float(row["grf seconds"]) > 0 for row in rows)
    assert (out / "flops.png").read_bytes().startswith(b"\x89PNG")


def test_a_file_in_the_place_of_the_folder_is_one_line(tmp_path, capsys):
    (tmp_path / "taken").write_text("")
    assert main(["grf", "--out", str(tmp_path / "taken")]) == 2
    assert capsys.readouterr().err.startswith(f"python -m studies: --out {tmp_path}/taken: ")
