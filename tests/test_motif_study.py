"""The study of motifs and cycles: its settings, tables and messages."""

import csv
import sys
import tomllib

import pytest

from hdvpd.basics.errors import UserError
from studies.__main__ import main
from studies.motifs import draw, finished_runs, summarize
from studies.outputs import read_csv
from studies.settings import MotifSettings


def _row(model, seed, accuracy):
    return {
        "task": "grid",
        "model": model,
        "seed": seed,
        "accuracy": accuracy,
        "train accuracy": 1.0,
        "parameters": 7,
        "epochs": 2,
        "seconds per epoch": 0.5,
    }


def test_means_come_with_students_intervals_and_differences_are_paired():
    accuracies = {"gkat": (0.7, 0.8, 0.9), "gat": (0.6, 0.7, 0.8)}
    rows = [_row(name, s, a) for name, own in accuracies.items() for s, a in enumerate(own)]
    gkat, gat = summarize(rows)
    assert gkat["accuracy"] == pytest.approx(0.8)
    # The mean's standard error is 0.1 / sqrt(3), Student's quantile of two degrees 4.30265.
    assert gkat["+-"] == pytest.approx(0.1 / 3**0.5 * 4.30265, rel=1e-5)
    assert gat["minus gkat"] == pytest.approx(-0.1)
    assert gat["+- of that"] == pytest.approx(0.0, abs=1e-12)
    assert gat["ms per epoch"] == pytest.approx(500)
    (axes,) = draw([gkat, gat], rows).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["grid"]


def test_without_gkat_there_are_no_differences():
    (gat,) = summarize([_row("gat", 0, 0.6)])
    assert gat["accuracy"] == 0.6
    assert str(gat["minus gkat"]) == str(gat["+-"]) == "nan"


TINY = ["--tasks", "cycle", "--graphs", "8", "--test-graphs", "4", "--tree-nodes", "12",
        "--batch-size", "4", "--epochs", "2"]  # fmt: skip


def test_the_command_writes_settings_runs_summary_and_figure(tmp_path, capsys):
    out = tmp_path / "study"
    words = ["--out", str(out), "--models", "gkat", "--seeds", "2", *TINY]
    assert main(["motifs", *words]) == 0
    assert "minus" in capsys.readouterr().out
    settings = MotifSettings(**tomllib.loads((out / "settings.toml").read_text()))
    assert (settings.tasks, settings.seeds, settings.epochs) == ("cycle", 2, 2)
    with (out / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["task"], row["model"], row["seed"]) for row in rows] == [
        ("cycle", "gkat", "0"),
        ("cycle", "gkat", "1"),
    ]
    assert all(0 <= float(row["accuracy"]) <= 1 for row in rows)
    assert len((out / "summary.csv").read_text().splitlines()) == 2
    assert (out / "accuracy.png").read_bytes().startswith(b"\x89PNG")

    # More seeds cost only the new runs; other settings cost all of them.
    words[words.index("2")] = "3"
    assert main(["motifs", *words]) == 0
    assert [line.split()[3] for line in _run_lines(capsys)] == ["2:"]
    again = read_csv(out / "runs.csv")
    assert [str(row["accuracy"]) for row in again[:2]] == [row["accuracy"] for row in rows]
    assert finished_runs(out, MotifSettings(learning_rate=0.1)) == []


def _run_lines(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if " seed " in line]


def test_a_missing_library_is_one_message_with_its_remedy(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "studies.baselines", None)
    assert main(["motifs", "--out", str(tmp_path / "study"), *TINY]) == 2
    message = capsys.readouterr().err
    assert "gat, gcn, sgc need torch_geometric" in message
    assert ".[graphs]" in message
    assert "--models gkat" in message
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seeds": 0}, "--seeds 0"),
        ({"tasks": "cycle,square"}, "--tasks cycle,square"),
        ({"models": ""}, "--models"),
        ({"graphs": 8, "batch_size": 13}, "--batch-size 13"),
        ({"join_probability": 0.0}, "--join-probability 0.0"),
        ({"tree_nodes": 4}, "--tree-nodes 4"),
        ({"decay": 1.5}, "--decay 1.5"),
        ({"learning_rate": -1.0}, "--learning-rate -1.0"),
    ],
)
def test_bad_settings_name_the_flag_and_what_was_expected(changes, named):
    with pytest.raises(UserError, match=rf"^{named}.*: expected "):
        MotifSettings(**changes)
