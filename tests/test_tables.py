"""Tables in Markdown, CSV and the terminal."""

import csv
import io

import numpy as np

from hdvpd.basics.tables import Table, bold, plus_minus

TABLE = Table(
    ("", "SSIM", "PSNR [dB]"),
    [("model", bold("0.786 ± 0.008"), 20.293), ("a, b", None, np.float64(1 / 3))],
    title="scores [of two]",
)


def test_markdown_has_a_line_per_row():
    assert TABLE.markdown() == (
        "|  | SSIM | PSNR [dB] |\n"
        "| --- | --- | --- |\n"
        "| model | **0.786 ± 0.008** | 20.29 |\n"
        "| a, b | \u2013 | 0.3333 |\n"
    )


def test_csv_keeps_all_digits_and_commas():
    head, *rows = csv.reader(io.StringIO(TABLE.csv()))
    assert head == ["", "SSIM", "PSNR [dB]"]
    assert rows == [["model", "**0.786 ± 0.008**", "20.293"], ["a, b", "", repr(1 / 3)]]


def test_the_terminal_shows_every_cell_and_no_marks(capsys):
    TABLE.print()
    printed = capsys.readouterr().out
    assert "scores [of two]" in printed
    assert "PSNR [dB]" in printed
    assert [line.split() for line in printed.splitlines()][-2:] == [
        ["model", "0.786", "±", "0.008", "20.29"],
        ["a,", "b", "\u2013", "0.3333"],
    ]


def test_the_terminal_wraps_instead_of_dropping(capsys):
    words = [f"word{number}" for number in range(30)]
    Table(("name", "first", "second"), [("x" * 30, " ".join(words), "y" * 90)]).print()
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    assert all(word in printed for word in words)
    assert printed.count("y") == 90


def test_columns_without_room_follow_below_and_numbers_stay_whole(capsys):
    values = [1.5e-07 + number for number in range(24)]
    head = ("member", *(f"step{number:.0f}" for number in values))
    Table(head, [("grf", *values), ("none", *values)]).print()
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    found: dict[str, list[str]] = {"member": [], "grf": [], "none": []}
    for line in lines:
        name, *cells = line.split() or [""]
        found.get(name, []).extend(cells)
    assert found["member"] == list(head[1:])
    assert found["grf"] == found["none"] == [f"{value:.4g}" for value in values]


def test_an_empty_table_prints_its_title_and_head(capsys):
    Table(("name", "a column"), [], title="nothing").print()
    assert capsys.readouterr().out.split()[:4] == ["nothing", "name", "a", "column"]


def test_what_is_not_known_is_left_out_of_a_mean_with_its_interval():
    nan = float("nan")
    assert plus_minus(1.25, 0.5, 1, sign=True) == "+1.2 ± 0.5"
    assert plus_minus(1.25, None, 2) == plus_minus(1.25, nan, 2) == "1.25"
    assert plus_minus(None, 0.5, 1) == plus_minus(nan, 0.5, 1) == "\u2013"
