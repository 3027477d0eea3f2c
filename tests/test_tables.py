"""Tables in Markdown, CSV and the terminal."""

import csv
import io

import numpy as np

from hdvpd.tables import Table, bold

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


def test_numbers_are_never_cut(capsys):
    values = [1.5e-07 + number for number in range(12)]
    Table(["name", *(f"column {number}" for number in values)], [["row", *values]]).print()
    printed = capsys.readouterr().out
    assert printed.splitlines()[-1].split() == ["row", *(f"{value:.4g}" for value in values)]
