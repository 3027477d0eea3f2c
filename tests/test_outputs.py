"""Results appear whole, and earlier ones are kept."""

import pytest

from hdvpd.basics.errors import UserError
from hdvpd.evaluation.outputs import publish, staging_folder


def write(target, report, files):
    with staging_folder(target) as staging:
        for name, text in files.items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_text(text)
        publish(staging, target, report)


def contents(folder):
    return {
        str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()
    }  # fmt: skip


FILES = {"metrics.json": "1", "ssim.png": "curve", "videos/a.mp4": "film", "report.html": "page"}


def test_files_go_to_their_places_and_nothing_is_left_over(tmp_path):
    write(tmp_path / "eval", tmp_path / "report" / "index.html", FILES)
    assert contents(tmp_path) == {
        "eval/metrics.json": "1",
        "eval/ssim.png": "curve",
        "eval/videos/a.mp4": "film",
        "report/index.html": "page",
    }
    assert {p.name for p in (tmp_path / "eval").iterdir()} == {"metrics.json", "ssim.png", "videos"}


def test_equal_results_replace_each_other(tmp_path):
    report = tmp_path / "report.html"
    write(tmp_path / "eval", report, FILES)
    again = {**FILES, "ssim.png": "better curve"}
    del again["videos/a.mp4"]
    write(tmp_path / "eval", report, again)
    assert contents(tmp_path / "eval") == {
        "metrics.json": "1", "ssim.png": "better curve", "videos/a.mp4": "film",
    }  # fmt: skip


def test_other_results_are_kept_beside_the_new_ones(tmp_path):
    report = tmp_path / "report" / "index.html"
    for number in ("1", "2", "3"):
        write(tmp_path / "eval", report, {**FILES, "metrics.json": number, "report.html": number})
    found = contents(tmp_path)
    assert found["eval/metrics.json"] == found["report/index.html"] == "3"
    for number in ("1", "2"):
        kept = f"eval/previous-{number}"
        assert found[f"{kept}/metrics.json"] == found[f"{kept}/report.html"] == number
        assert found[f"{kept}/videos/a.mp4"] == "film"


def test_files_of_others_are_not_touched(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for number in ("1", "2"):
        write(tmp_path, tmp_path / "report" / "index.html", {**FILES, "metrics.json": number})
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_failure_changes_nothing(tmp_path):
    report = tmp_path / "report.html"
    write(tmp_path / "eval", report, FILES)
    before = contents(tmp_path)

    def fail():
        with staging_folder(tmp_path / "eval") as staging:
            (staging / "metrics.json").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert contents(tmp_path) == before


def test_a_failed_first_evaluation_leaves_no_folder(tmp_path):
    def fail():
        with staging_folder(tmp_path / "eval"):
            raise UserError("no data")

    with pytest.raises(UserError):
        fail()
    assert not (tmp_path / "eval").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "eval").write_text("a file")

    def start():
        with staging_folder(tmp_path / "eval"):
            raise AssertionError

    with pytest.raises(UserError, match=r"Could not write .*eval"):
        start()
