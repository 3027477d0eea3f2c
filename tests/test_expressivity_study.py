"""What masks tell apart: exactly, and in sampled walks against their noise."""

import csv

import networkx as nx
import numpy as np
import pytest

from hdvpd.basics.errors import UserError
from studies import expressivity
from studies.__main__ import main
from studies.settings import ExpressivitySettings

ROUNDING = 1e-5


@pytest.fixture(scope="module")
def exact():
    return {row["pair"]: row for row in expressivity.exact_rows(6)}


def test_pairs_have_equal_hashes_and_are_not_isomorphic(exact):
    for pair in expressivity.make_pairs():
        graphs = [nx.convert_node_labels_to_integers(graph) for graph in pair[1:]]
        for graph in graphs:
            nx.set_node_attributes(graph, "", "start")
        hashes = {
            nx.weisfeiler_lehman_graph_hash(graph, node_attr="start", iterations=20)
            for graph in graphs
        }
        assert len(hashes) == 1
        assert not nx.could_be_isomorphic(*graphs) or not nx.is_isomorphic(*graphs)
        assert exact[pair.name]["same colours"]
        assert not exact[pair.name]["isomorphic"]


def test_colors_differ_where_refinement_tells_graphs_apart():
    assert len(set(expressivity.colors(nx.path_graph(5)))) == 3
    assert sorted(expressivity.colors(nx.path_graph(4))) != sorted(
        expressivity.colors(nx.star_graph(3))
    )


def test_features_of_colors_are_told_apart_neither_with_a_mask_nor_without(exact):
    for row in exact.values():
        for column in ("unmasked, by colour", "masked, constant", "masked, by colour"):
            assert row[column] < ROUNDING
    # Not because they are all alike: three colours are three different features.
    decalin = expressivity.make_pairs()[2].first
    assert len(np.unique(expressivity.color_features(decalin), axis=0)) == 3


def test_a_mark_is_told_apart_with_the_mask_and_not_without(exact):
    *told_apart, strongly_regular = exact.values()
    for row in exact.values():
        assert row["unmasked, marked"] < ROUNDING
    for row in told_apart:
        assert row["masked, marked"] > 100 * ROUNDING
    # Powers of both matrices are the same combination of 1, A and its complement.
    assert strongly_regular["masked, marked"] < ROUNDING


def test_return_weights_count_closed_walks():
    """On a regular graph: trace of sum_l f_l (A / d)^l over the sum of all entries."""
    graph = nx.circulant_graph(11, [1, 2])
    powers = [np.linalg.matrix_power(nx.to_numpy_array(graph) / 4, hop) for hop in range(4)]
    factors = np.exp(-0.01 * np.arange(4))
    mask = expressivity.exact_mask(graph, 3)
    expected = sum(f * np.trace(power) for f, power in zip(factors, powers, strict=True))
    np.testing.assert_allclose(
        np.sum(expressivity.return_weights(mask)), expected / factors.sum(), rtol=1e-5
    )


def test_sampled_return_weights_separate_a_pair_and_agree_with_the_exact_ones():
    settings = ExpressivitySettings(walkers="32", hops=3, runs=64, seeds=1)
    rows = {row["pair"]: row for row in expressivity.sampled_rows(settings)}
    first, *_, last = expressivity.make_pairs()
    row = rows[first.name]
    assert row["separation"] > 2
    assert row["right"] > 0.9
    for column, graph in (("mean of the first", first.first), ("of the second", first.second)):
        exact = np.mean(expressivity.return_weights(expressivity.exact_mask(graph, 3)))
        # The ratio of two estimates is biased by about the square of their relative errors.
        assert row[column] == pytest.approx(float(exact), abs=0.01)
    # Standard error of a separation whose truth is 0: sqrt(2 / runs).
    assert abs(rows[last.name]["separation"]) < 4 * np.sqrt(2 / 64)


def test_separation_and_order_of_known_samples():
    first, second = np.array([3.0, 5.0]), np.array([1.0, 3.0])
    row = expressivity.compare_draws(first, second, larger_first=True)
    assert row["noise"] == pytest.approx(np.sqrt(2))
    assert row["separation"] == pytest.approx(2 / np.sqrt(2))
    assert row["right"] == pytest.approx(3.5 / 4)
    swapped = expressivity.compare_draws(first, second, larger_first=False)
    assert swapped["separation"] == pytest.approx(-row["separation"])
    assert swapped["right"] == pytest.approx(0.5 / 4)


def test_the_command_writes_tables_and_figure(tmp_path, capsys):
    out = tmp_path / "study"
    words = ["--out", str(out), "--walkers", "32", "--hops", "3", "--runs", "64", "--seeds", "1"]
    assert main(["expressivity", *words]) == 0
    assert "masked, marked" in capsys.readouterr().out
    with (out / "summary.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 5
    assert 'walkers = "32"' in (out / "settings.toml").read_text()
    assert (out / "separation.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"walkers": "4,x"}, "--walkers 4,x"),
        ({"halting": 1.0}, "--halting 1.0"),
        ({"runs": 1}, "--runs 1"),
    ],
)
def test_bad_settings_name_the_flag(changes, named):
    with pytest.raises(UserError, match=rf"^{named}: expected "):
        ExpressivitySettings(**changes)
